"""The screening of places in bfloat16 (csrc/cpu/screening.h): the whole map's maximum."""

import os
from pathlib import Path

import pytest
import torch

from dpp import ops, reference

CPU = Path("/proc/cpuinfo")
sanitized = "asan" in os.environ.get("LD_PRELOAD", "")
pytestmark = pytest.mark.skipif(
    ops.backend() == "reference", reason=f"no compiled operator here: {ops.why()}"
)


@pytest.fixture
def screening(monkeypatch):
    """max_similarity with DPP_SCREENING set to something."""

    def run(choice, *inputs, **keywords):
        monkeypatch.setenv("DPP_SCREENING", choice)
        return ops.max_similarity(*inputs, **keywords)

    return run


def make_case(channels, kernel_size, count, images=2, size=6, seed=0, flatness=0.0):
    """Features as ReLU leaves them, offsets and prototypes; `flatness` 1 makes all places equal."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(shape, generator=generator)

    z = randn(images, channels, size, size).relu()
    z = torch.lerp(z, randn(images, channels, 1, 1).relu(), flatness)
    offsets = randn(images, 2 * kernel_size**2, size, size)
    prototypes = randn(count, channels, kernel_size, kernel_size).relu()
    return z, offsets, prototypes


def similarities(inputs, argmax, **keywords):
    """In float64: those of the given places, and the best."""
    exact = reference.similarity_map(*(t.double() for t in inputs), **keywords).flatten(2)
    return exact.gather(2, argmax.unsqueeze(2)).squeeze(2), exact.amax(dim=2)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("channels", "kernel_size", "count"),
    [(1, 1, 1), (5, 3, 33), (64, 2, 257), (519, 2, 32), (521, 1, 300), (1043, 3, 40)],
)
def test_screening_finds_the_maximum(screening, channels, kernel_size, count, threads):
    keywords = {"dilation": 2 - kernel_size % 2}
    inputs = make_case(channels, kernel_size, count)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    scores, argmax = screening("always", *inputs, **keywords)
    torch.set_num_threads(before)
    found, best = similarities(inputs, argmax, **keywords)
    scale = best.abs().max().item()
    assert (scores - best).abs().max().item() < 1e-6 * scale
    assert (found - best).abs().max().item() < 1e-6 * scale


def test_screening_gives_the_same_bits_with_any_number_of_threads(screening):
    inputs = make_case(300, 2, 300, images=5)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(screening("always", *inputs, dilation=2))
    torch.set_num_threads(before)
    for scores, argmax in results[1:]:
        assert torch.equal(scores, results[0][0]) and torch.equal(argmax, results[0][1])


CELL = 2.0**-8  # halfway from 1 to bfloat16's next number: less rounds down, more rounds up


def test_a_place_that_rounded_samples_would_miss_is_found(screening):
    z = torch.ones(1, 64, 1, 2)
    z[..., 0] += 0.9 * CELL
    z[:, ::2, :, 1] += 1.1 * CELL
    prototypes = torch.ones(1, 64, 1, 1)
    rounded = z.bfloat16().float().sum(dim=1).flatten()
    assert rounded.argmax() == 1 and z.sum(dim=1).argmax() == 0
    scores, argmax = screening("always", z, None, prototypes)
    assert argmax.item() == 0
    assert scores.item() == pytest.approx(64 * (1 + 0.9 * CELL), rel=1e-6)


@pytest.mark.parametrize("scale", [1.0, 2.0**-70])  # with the small one, squares underflow
def test_a_place_that_rounded_prototypes_would_miss_is_found(screening, scale):
    z = torch.zeros(1, 160, 1, 2)
    z[:, :80, :, 0] = z[:, 80:, :, 1] = 1
    prototypes = torch.ones(1, 160, 1, 1)
    prototypes[:, :80] += 0.9 * CELL
    prototypes[:, 80:144] += 1.1 * CELL
    prototypes *= scale
    first, second = prototypes.flatten().bfloat16().float().view(2, 80).sum(dim=1)
    assert second > first
    _, argmax = screening("always", z, None, prototypes)
    assert argmax.item() == 0


@pytest.mark.skipif(sanitized, reason="sums in sequence lose the same terms")
def test_a_place_whose_small_terms_the_map_would_lose_is_found(screening):
    z = torch.zeros(1, 520, 1, 2)
    z[..., 0] = 2.0**-25
    z[:, 0] = 1
    z[:, 1, :, 1] = 2.0**-19
    _, argmax = screening("always", z, None, torch.ones(1, 520, 1, 1))
    assert argmax.item() == 0


@pytest.mark.parametrize("last", [1.0, float("nan")])
def test_images_of_several_chunks_do_not_touch_each_other(screening, last):
    z, offsets, prototypes = make_case(33, 2, 64, images=211, size=7)  # 10339 centres, 4096 at once
    z[-1] *= last
    scores, argmax = screening("always", z, offsets, prototypes, dilation=2)
    for image in (0, 82, 83, 140, 210):
        row = slice(image, image + 1)
        choice = "always" if image < 140 or last == 1 else "never"  # the last chunk gives up
        alone = screening(choice, z[row], offsets[row], prototypes, dilation=2)
        assert torch.equal(argmax[row], alone[1])
        if image < 210 or last == 1:
            torch.testing.assert_close(scores[row], alone[0], rtol=1e-6, atol=0)
        else:
            assert scores[row].isnan().all()


def test_the_first_of_equal_places_wins(screening):
    _, offsets, prototypes = make_case(40, 1, 5)
    z = torch.rand(2, 40, 1, 1).expand(2, 40, 6, 6)
    scores, argmax = screening("always", z, None, prototypes)
    assert (argmax == 0).all()
    assert torch.allclose(scores, z[:, :, 0, 0] @ prototypes.flatten(1).t())
    z = torch.zeros(2, 40, 6, 6)
    scores, argmax = screening("always", z, offsets, prototypes, outside=0.0)
    assert (scores == 0).all() and (argmax == 0).all()


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("which", ["z", "prototypes"])
def test_what_no_bound_covers_is_left_to_the_whole_map(screening, odd, which):
    inputs = make_case(20, 2, 9)
    (inputs[0] if which == "z" else inputs[2])[1, 3] = odd
    expected = screening("never", *inputs, dilation=2)
    for ours, whole in zip(screening("always", *inputs, dilation=2), expected, strict=True):
        assert torch.equal(ours.nan_to_num(nan=-1), whole.nan_to_num(nan=-1))


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-12, 1e12, 1e16])
def test_screening_at_any_scale(screening, scale):
    z, offsets, prototypes = make_case(100, 2, 20)
    inputs = (z, offsets, prototypes * scale)
    scores, argmax = screening("always", *inputs, dilation=2, outside=0.0)
    found, best = similarities(inputs, argmax, dilation=2, outside=0.0)
    assert (found >= best * (1 - 1e-6)).all()
    torch.testing.assert_close(scores.double() / scale, best / scale, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(not CPU.exists(), reason="only Linux tells what the processor can do")
@pytest.mark.skipif(sanitized, reason="sanitized builds do without the instruction")
def test_it_screens_where_that_pays(screening):
    inputs = make_case(513, 2, 512, images=4, size=14)
    never, always = (screening(choice, *inputs, dilation=2) for choice in ("never", "always"))
    assert not torch.equal(never[0], always[0])  # another order of sums: one can tell them apart
    assert torch.equal(never[1], always[1])
    chosen = screening("", *inputs, dilation=2)
    assert torch.equal(chosen[0], (always if "avx512_bf16" in CPU.read_text() else never)[0])
    flat = make_case(513, 2, 512, images=4, size=14, flatness=0.999)
    chosen, never = screening("", *flat, dilation=2), screening("never", *flat, dilation=2)
    assert torch.equal(chosen[0], never[0]) and torch.equal(chosen[1], never[1])


def test_an_unknown_choice_is_refused(screening):
    with pytest.raises(RuntimeError, match="DPP_SCREENING: expected always or never, got maybe"):
        screening("maybe", *(t.double() for t in make_case(3, 1, 2)))
