"""Random shapes, strides, dtypes and offsets: the compiled operator against the oracle.

DPP_FUZZ is the number of cases. `make sanitize` runs many more, under AddressSanitizer.
"""

import os
import random

import pytest
import torch

from dpp import ops, reference

CASES = int(os.environ.get("DPP_FUZZ", 150))
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, 1e-5, 1e6, -1e6, float("inf"), float("-inf"), float("nan")]


pytestmark = pytest.mark.usefixtures("one_thread")


def draw_tensor(rng, generator, shape, dtype):
    """Values in [0, 1), some exactly 0, in a random memory layout."""
    order = rng.sample(range(4), 4)
    gaps = [rng.choice([1, 1, 1, 2]) for _ in shape]
    stored = [shape[axis] * gaps[axis] for axis in order]
    values = torch.rand(stored, generator=generator, dtype=torch.float64)
    values *= torch.rand(stored, generator=generator) < rng.choice([0.3, 0.7, 1.0])
    values = values.permute([order.index(axis) for axis in range(4)])
    values = values.to(dtype)[tuple(slice(None, None, gap) for gap in gaps)]
    assert values.shape == torch.Size(shape)
    return values


def draw_case(seed):
    """Arguments of `compare`."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    dtype = rng.choice([torch.float32, torch.float64])
    kernel_size = rng.choice([1, 2, 2, 3, 3, 4])
    dilation = rng.choice([2, 4] if kernel_size % 2 == 0 else [1, 2, 3])
    images, count = rng.choice([0, 1, 1, 2, 3]), rng.choice([0, 1, 2, 7, 40])
    channels = rng.choice([1, 2, 15, 16, 17, 33, 64, 65, 97])
    height, width = rng.randint(1, 6), rng.randint(1, 6)
    z = draw_tensor(rng, generator, [images, channels, height, width], dtype)
    prototypes = draw_tensor(rng, generator, [count, channels, kernel_size, kernel_size], dtype)
    offsets = None
    if rng.random() < 0.85:
        shape = [images, 2 * kernel_size**2, height, width]
        offsets = (draw_tensor(rng, generator, shape, dtype) - 0.5) * rng.choice([0.1, 2, 20, 1e9])
        for value in rng.sample(SPECIAL, 3):
            offsets[torch.rand(shape, generator=generator) < 0.05] = value
    centres = torch.randint(height * width, (images, rng.randint(0, 5)), generator=generator)
    outside = rng.choice([None, 0.0, 0.5, -0.25])
    return z, offsets, prototypes, centres, dilation, outside


def run(module, z, offsets, prototypes, centres, dilation, outside):
    """Outputs of the three operators, and all their gradients."""
    inputs = [t.detach().requires_grad_() for t in (z, offsets, prototypes) if t is not None]
    placed = (inputs[0], None if offsets is None else inputs[1])
    keywords = {"dilation": dilation, "outside": outside}
    kernel_size = prototypes.shape[2]
    scores, argmax = module.max_similarity(*placed, inputs[-1], **keywords)
    similarity = module.similarity_map(*placed, inputs[-1], **keywords)
    samples = module.sample_parts(*placed, centres, kernel_size=kernel_size, **keywords)
    grads = []
    for output, used in ((similarity, inputs), (samples, inputs[:-1])):
        weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
        grads += torch.autograd.grad(output, used, weights)
    return argmax, [scores, similarity, samples, *grads], (scores, inputs)


def assert_close(ours, theirs, tolerance):
    assert torch.isfinite(ours).all()
    # Terms of size 1 may cancel in a sum, and leave their rounding behind.
    scale = max(0.1, theirs.abs().max().item()) if theirs.numel() else 1
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * scale)


def compare(case):
    z, offsets, prototypes, centres, dilation, outside = case
    tolerance = 2e-5 if z.dtype == torch.float32 else 1e-11
    argmax, found, (scores, inputs) = run(ops, *case)
    other, expected, (other_scores, other_inputs) = run(reference, *case)
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, tolerance)
    # Near ties either place may win; the gradient of the winner is then compared.
    winners = expected[1].flatten(2).gather(2, argmax.unsqueeze(2)).squeeze(2)
    assert_close(winners, expected[0], tolerance)
    similarity = reference.similarity_map(
        other_inputs[0],
        None if offsets is None else other_inputs[1],
        other_inputs[-1],
        dilation=dilation,
        outside=outside,
    )
    other_scores = similarity.flatten(2).gather(2, argmax.unsqueeze(2)).squeeze(2)
    weights = torch.linspace(-1, 1, scores.numel(), dtype=scores.dtype).view(scores.shape)
    for ours, theirs in zip(
        torch.autograd.grad(scores, inputs, weights),
        torch.autograd.grad(other_scores, other_inputs, weights),
        strict=True,
    ):
        assert_close(ours, theirs, tolerance)


@pytest.mark.skipif(ops.backend() == "reference", reason=f"no compiled operator here: {ops.why()}")
def test_compiled_operator_equals_oracle_on_random_cases(monkeypatch):
    for seed in range(CASES):
        monkeypatch.setenv("DPP_SCREENING", ["never", "always"][seed % 2])
        try:
            compare(draw_case(seed))
        except Exception as error:
            raise AssertionError(f"random case {seed}: {error}") from error
