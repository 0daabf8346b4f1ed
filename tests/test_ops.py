"""The served operator: against the oracle, through autograd and the compiler, and when misused."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch.library import opcheck

from dpp import ops, reference
from dpp.reference import ROOT_FLOOR

compiled = pytest.mark.skipif(
    ops.backend() == "reference", reason=f"no compiled operator here: {ops.why()}"
)
SHAPES = [(3, 1), (2, 2), (3, 2), (1, 1)]  # kernel size, dilation
REACHES = {"inside": 0.4, "across the border": 3.0, "far outside": 1e6}


pytestmark = pytest.mark.usefixtures("one_thread")


def make_case(
    kernel_size=3,
    *,
    images=1,
    channels=3,
    height=3,
    width=4,
    count=2,
    reach=0.4,
    dtype=torch.float64,
    seed=0,
):
    """Positive features, prototypes, and offsets that stay clear of whole numbers, where the
    derivative has a kink."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    z = rand(images, channels, height, width) + 0.2
    whole = (2 * rand(images, 2 * kernel_size**2, height, width) - 1).mul(reach).floor()
    offsets = whole + 0.1 + 0.8 * rand(*whole.shape)
    prototypes = rand(count, channels, kernel_size, kernel_size)
    return [t.to(dtype).requires_grad_() for t in (z, offsets, prototypes)]


def centres_for(z, count=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    places = z.shape[2] * z.shape[3]
    centres = torch.randint(places, (z.shape[0], count), generator=generator)
    centres[:, 1:2] = centres[:, :1]  # the same centre twice
    return centres


def outputs_and_gradients(module, z, offsets, prototypes, dilation, outside=None):
    """All of an implementation's outputs and gradients, in one flat list."""
    kernel_size = prototypes.shape[2]
    inputs = [t.detach().requires_grad_() for t in (z, offsets, prototypes) if t is not None]
    a = (inputs[0], None if offsets is None else inputs[1], inputs[-1])
    keywords = {"dilation": dilation, "outside": outside}
    scores, argmax = module.max_similarity(*a, **keywords)
    similarity = module.similarity_map(*a, **keywords)
    samples = module.sample_parts(*a[:2], centres_for(z), kernel_size=kernel_size, **keywords)
    results = [scores, argmax, similarity, samples]
    for output in (scores, similarity, samples):
        generator = torch.Generator().manual_seed(1)
        weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        used = inputs[:-1] if output is samples else inputs
        results += torch.autograd.grad(output, used, weights.to(output.dtype))
    return results


def assert_same(found, expected, tolerance):
    """Equal within `tolerance` of the largest value of each tensor."""
    for ours, theirs in zip(found, expected, strict=True):
        scale = theirs.abs().max().item() if theirs.numel() else 1
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * max(scale, 1e-30))


# Gradients


@pytest.mark.parametrize("reach", REACHES.values(), ids=REACHES)
@pytest.mark.parametrize("kernel_size, dilation", SHAPES)
@pytest.mark.parametrize("height, width", [(3, 3), (2, 4)])
def test_gradcheck_in_float64(kernel_size, dilation, height, width, reach):
    z, offsets, prototypes = make_case(kernel_size, height=height, width=width, reach=reach)
    centres = centres_for(z)

    def scores(*inputs):
        return ops.max_similarity(*inputs, dilation=dilation)[0]

    def similarity(*inputs):
        return ops.similarity_map(*inputs, dilation=dilation)

    def samples(*inputs):
        return ops.sample_parts(*inputs, centres, kernel_size=kernel_size, dilation=dilation)

    assert torch.autograd.gradcheck(scores, (z, offsets, prototypes))
    assert torch.autograd.gradcheck(similarity, (z, offsets, prototypes), fast_mode=True)
    assert torch.autograd.gradcheck(samples, (z, offsets), fast_mode=True)


def test_gradcheck_of_rigid_prototypes():
    z, _, prototypes = make_case(2)

    def scores(z, prototypes):
        return ops.max_similarity(z, None, prototypes, dilation=2)[0]

    assert torch.autograd.gradcheck(scores, (z, prototypes))


@pytest.mark.parametrize("images, count", [(0, 2), (2, 0), (0, 0)])
def test_empty_batch_or_no_prototypes_gives_empty_outputs_and_zero_gradients(images, count):
    inputs = make_case(images=images, count=count)
    scores, argmax = ops.max_similarity(*inputs)
    similarity = ops.similarity_map(*inputs)
    assert scores.shape == argmax.shape == (images, count)
    assert similarity.shape == (images, count, 3, 4)
    for output in (scores, similarity):
        for grad, of in zip(torch.autograd.grad(output.sum(), inputs), inputs, strict=True):
            assert grad.shape == of.shape and not grad.any()


def test_sample_parts_of_no_centres_is_empty():
    z, offsets, _ = make_case(images=2)
    samples = ops.sample_parts(z, offsets, torch.empty(2, 0, dtype=torch.int64), kernel_size=3)
    assert samples.shape == (2, 0, 3, 3, 3)
    assert not torch.autograd.grad(samples.sum(), z)[0].any()


def test_gradients_of_repeated_centres_add_up():
    z, offsets, _ = make_case()
    once = ops.sample_parts(z, offsets, torch.tensor([[5]]), kernel_size=3)
    thrice = ops.sample_parts(z, offsets, torch.tensor([[5, 5, 5]]), kernel_size=3)
    for one, three in zip(
        torch.autograd.grad(once.sum(), (z, offsets)),
        torch.autograd.grad(thrice.sum(), (z, offsets)),
        strict=True,
    ):
        torch.testing.assert_close(three, 3 * one)


def test_argmax_has_no_gradient():
    scores, argmax = ops.max_similarity(*make_case())
    assert scores.requires_grad and not argmax.requires_grad


# Equality with the oracle


@compiled
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("kernel_size, dilation", SHAPES)
@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("channels, outside", [(5, None), (129, 0.0), (600, 0.3)])
def test_compiled_operator_equals_oracle(
    kernel_size, dilation, dtype, tolerance, moves, channels, outside
):
    z, offsets, prototypes = make_case(
        kernel_size, images=3, channels=channels, height=5, width=6, count=7, reach=2, dtype=dtype
    )
    arguments = (z, offsets if moves else None, prototypes, dilation, outside)
    found = outputs_and_gradients(ops, *arguments)
    assert_same(found, outputs_and_gradients(reference, *arguments), tolerance)


@compiled
def test_compiled_operator_equals_oracle_when_a_batch_takes_several_chunks():
    torch.set_num_threads(2)
    z, offsets, prototypes = make_case(3, images=23, height=14, width=14, channels=35, count=5)
    found = outputs_and_gradients(ops, z, offsets, prototypes, 1)
    assert_same(found, outputs_and_gradients(reference, z, offsets, prototypes, 1), 1e-12)


@pytest.mark.parametrize("layout", ["channels last", "transposed", "sliced", "expanded"])
def test_layout_of_the_inputs_does_not_matter(layout):
    z, offsets, prototypes = make_case(images=2, channels=20, height=4, width=4, count=6)
    rearrange = {
        "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
        "transposed": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
        "sliced": lambda t: t.repeat(1, 2, 1, 2)[:, : t.shape[1], :, : t.shape[3]],
        "expanded": lambda t: t[:1].expand_as(t),
    }[layout]
    if layout == "expanded":
        z, offsets, prototypes = (t[:1].repeat(len(t), 1, 1, 1) for t in (z, offsets, prototypes))
    expected = outputs_and_gradients(ops, z, offsets, prototypes, 1)
    with torch.no_grad():
        rearranged = [rearrange(t) for t in (z, offsets, prototypes)]
    assert_same(outputs_and_gradients(ops, *rearranged, 1), expected, 1e-12)


# Zeros, ties, threads


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1.0, -2.0, 1e-5, 1e-30, "random"])
@pytest.mark.parametrize("zeros", ["half of all", "a channel", "everything", "tiny"])
def test_nothing_is_nan_or_infinite_where_features_are_zero(zeros, offset, dtype):
    z, offsets, prototypes = make_case(images=2, channels=40, height=5, width=5, dtype=dtype)
    with torch.no_grad():
        if zeros == "half of all":
            z *= torch.rand(z.shape, generator=torch.Generator().manual_seed(0)) < 0.5
        elif zeros == "a channel":
            z[:, ::3] = 0
        else:
            z *= 0 if zeros == "everything" else 1e-22
        if offset != "random":
            offsets.fill_(offset)
    for result in outputs_and_gradients(ops, z, offsets, prototypes, 1):
        assert torch.isfinite(result).all()


def test_first_of_equal_places_wins():
    z = torch.ones(2, 3, 4, 5)
    prototypes = torch.ones(6, 3, 1, 1)
    scores, argmax = ops.max_similarity(z, None, prototypes)
    assert torch.equal(scores, torch.full((2, 6), 3.0)) and not argmax.any()
    z[:, :, 1, 2:] = 2
    assert (ops.max_similarity(z, None, prototypes)[1] == 7).all()


def test_nan_features_win_as_in_torch_max():
    z, offsets, prototypes = (t.detach() for t in make_case(1))
    z[0, 0, 1, 1] = float("nan")
    similarity = ops.similarity_map(z, offsets, prototypes)
    scores, argmax = ops.max_similarity(z, offsets, prototypes)
    assert scores.isnan().all()
    assert torch.equal(argmax, similarity.flatten(2).max(dim=2).indices)


@compiled
@pytest.mark.parametrize("channels, count", [(33, 30), (129, 30), (700, 30), (33, 9000)])
def test_backward_is_the_same_for_any_number_of_threads(channels, count):
    shape = {"images": 3, "channels": channels, "height": 6, "width": 6, "count": count}
    z, offsets, prototypes = (t.detach() for t in make_case(**shape, reach=2, dtype=torch.float32))
    _, argmax = ops.max_similarity(z, offsets, prototypes)
    grad = torch.randn(argmax.shape, generator=torch.Generator().manual_seed(0))
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(
            torch.ops.dpp.max_similarity_backward(
                grad, argmax, z, offsets, prototypes, 1, 1 / 3, ROOT_FLOOR
            )
        )
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


# torch.library, the compiler, autocast


def raw_calls(moves: bool):
    """Every operator with arguments it accepts."""
    z, offsets, prototypes = make_case(2, images=2, channels=5, count=3, reach=2)
    offsets = offsets if moves else None
    centres = centres_for(z)
    op = torch.ops.dpp
    forward = (z, offsets, prototypes, 2, 0.5)
    sampling = (z, offsets, centres, 2, 2, 0.5)
    scores, argmax = op.max_similarity(*forward)
    constant = [t if t is None or not torch.is_tensor(t) else t.detach() for t in forward]
    constant_sampling = [*constant[:2], *sampling[2:]]
    return [
        (op.max_similarity, forward),
        (op.similarity_map, forward),
        (op.sample_parts, sampling),
        (
            op.max_similarity_backward,
            (torch.rand_like(scores).detach(), argmax, *constant, ROOT_FLOOR),
        ),
        (
            op.similarity_map_backward,
            (torch.rand_like(op.similarity_map(*constant)), *constant, ROOT_FLOOR),
        ),
        (
            op.sample_parts_backward,
            (torch.rand_like(op.sample_parts(*constant_sampling)), *constant_sampling, ROOT_FLOOR),
        ),
    ]


@compiled
@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("index", range(6))
def test_opcheck(index, moves):
    operator, arguments = raw_calls(moves)[index]
    opcheck(operator.default, arguments)


def scores_and_map(z, offsets, prototypes):
    scores, argmax = ops.max_similarity(z, offsets, prototypes)
    return scores * 2, argmax, ops.similarity_map(z, offsets, prototypes) + 1


@pytest.mark.parametrize(
    "compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
)
def test_compile_without_graph_breaks_for_any_batch(compiler):
    torch._dynamo.reset()
    function = torch.compile(scores_and_map, fullgraph=True, backend=compiler)
    for images in (2, 5):
        inputs = make_case(images=images, dtype=torch.float32)
        for tensor in inputs[:2]:
            torch._dynamo.mark_dynamic(tensor, 0)
        expected = scores_and_map(*inputs)
        found = function(*inputs)
        assert_same(found, expected, 1e-6)
        assert_same(
            torch.autograd.grad(found[0].sum() + found[2].sum(), inputs),
            torch.autograd.grad(expected[0].sum() + expected[2].sum(), inputs),
            1e-5,
        )


def test_export_for_any_batch():
    class Scores(torch.nn.Module):
        def forward(self, z, offsets, prototypes):
            return scores_and_map(z, offsets, prototypes)

    batch = torch.export.Dim("batch")
    inputs = tuple(t.detach() for t in make_case(images=3))
    program = torch.export.export(Scores(), inputs, dynamic_shapes=({0: batch}, {0: batch}, None))
    other = tuple(t.detach() for t in make_case(images=7, seed=1))
    assert_same(program.module()(*other), scores_and_map(*other), 1e-12)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_float32(half):
    z, offsets, prototypes = make_case(dtype=torch.float32)
    inputs = [t.detach().to(half).requires_grad_() for t in (z, offsets, prototypes)]
    exact = [t.detach().float() for t in inputs]
    with torch.autocast("cpu", dtype=half):
        scores, _ = ops.max_similarity(*inputs)
        similarity = ops.similarity_map(*inputs)
        samples = ops.sample_parts(*inputs[:2], centres_for(z), kernel_size=3)
    assert scores.dtype == similarity.dtype == samples.dtype == torch.float32
    torch.testing.assert_close(scores, ops.max_similarity(*exact)[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(similarity, ops.similarity_map(*exact), rtol=0, atol=1e-6)
    grads = torch.autograd.grad(scores.sum(), inputs)
    assert all(grad.dtype == half for grad in grads)


# Misuse

Z, OFFSETS, PROTOTYPES = (2, 3, 4, 5), (2, 18, 4, 5), (6, 3, 3, 3)


def zeros(*shape, dtype=torch.float32, device="cpu"):
    return torch.zeros(shape, dtype=dtype, device=device)


# changed arguments -> the error
BAD_ARGUMENTS = {
    "z of 3 dimensions": (
        {"z": zeros(3, 4, 5)},
        r"z: expected shape \(N, C, H, W\), got \[3, 4, 5\]",
    ),
    "z of halves": (
        {
            "z": zeros(*Z, dtype=torch.float16),
            "offsets": None,
            "prototypes": zeros(*PROTOTYPES, dtype=torch.float16),
        },
        "z: expected dtype float32 or float64, got float16",
    ),
    "z of whole numbers": (
        {
            "z": zeros(*Z, dtype=torch.int64),
            "offsets": None,
            "prototypes": zeros(*PROTOTYPES, dtype=torch.int64),
        },
        "z: expected dtype float32 or float64, got int64",
    ),
    "an empty map": (
        {"z": zeros(2, 3, 0, 5), "offsets": None},
        r"z: expected at least one channel, row and column, got \[2, 3, 0, 5\]",
    ),
    "no channels": (
        {"z": zeros(2, 0, 4, 5), "prototypes": zeros(6, 0, 3, 3)},
        r"z: expected at least one channel, row and column, got \[2, 0, 4, 5\]",
    ),
    "too large a map": (
        {
            "z": zeros(1, 1, 1, 1).expand(0, 1, 2**16, 2**15),
            "offsets": None,
            "prototypes": zeros(6, 1, 3, 3),
        },
        r"z: expected a map of at most 2147483647 places, got \[0, 1, 65536, 32768\]",
    ),
    "offsets of another batch": (
        {"offsets": zeros(1, 18, 4, 5)},
        r"offsets: expected shape \[2, 18, 4, 5\], got \[1, 18, 4, 5\]",
    ),
    "offsets for other parts": (
        {"offsets": zeros(2, 8, 4, 5)},
        r"offsets: expected shape \[2, 18, 4, 5\], got \[2, 8, 4, 5\]",
    ),
    "offsets of another map": (
        {"offsets": zeros(2, 18, 5, 4)},
        r"offsets: expected shape \[2, 18, 4, 5\], got \[2, 18, 5, 4\]",
    ),
    "offsets in float64": (
        {"offsets": zeros(*OFFSETS, dtype=torch.float64)},
        "offsets: expected dtype float32, as z has, got float64",
    ),
    "offsets on another device": (
        {"offsets": zeros(*OFFSETS, device="meta")},
        "offsets: expected device cpu, as z has, got meta",
    ),
    "prototypes of other channels": (
        {"prototypes": zeros(6, 4, 3, 3)},
        r"prototypes: expected shape \(P, 3, K, K\), got \[6, 4, 3, 3\]",
    ),
    "prototypes that are not square": (
        {"prototypes": zeros(6, 3, 3, 2)},
        r"prototypes: expected shape \(P, 3, K, K\), got \[6, 3, 3, 2\]",
    ),
    "prototypes of 3 dimensions": (
        {"prototypes": zeros(6, 3, 3)},
        r"prototypes: expected shape \(P, 3, K, K\), got \[6, 3, 3\]",
    ),
    "prototypes without parts": (
        {"prototypes": zeros(6, 3, 0, 0)},
        r"prototypes: expected shape \(P, 3, K, K\), got \[6, 3, 0, 0\]",
    ),
    "prototypes in float64": (
        {"prototypes": zeros(*PROTOTYPES, dtype=torch.float64)},
        "prototypes: expected dtype float32, as z has, got float64",
    ),
    "no dilation": ({"dilation": 0}, "dilation: expected at least 1, got 0"),
    "a negative dilation": ({"dilation": -2}, "dilation: expected at least 1, got -2"),
    "a huge dilation": (
        {"dilation": 2**40},
        "dilation: expected at most 357913941, got 1099511627776",
    ),
    "an odd dilation of an even prototype": (
        {"prototypes": zeros(6, 3, 2, 2), "offsets": None, "dilation": 3},
        "dilation: expected an even number, since 2x2 prototypes have no part at their centre",
    ),
    "an infinite outside": (
        {"outside": float("inf")},
        "outside: expected a finite number, got inf",
    ),
}
BAD_SAMPLING = {
    "centres of another batch": (
        {"centres": zeros(3, 4, dtype=torch.int64)},
        r"centres: expected shape \(2, Q\), got \[3, 4\]",
    ),
    "centres of 1 dimension": (
        {"centres": zeros(2, dtype=torch.int64)},
        r"centres: expected shape \(2, Q\), got \[2\]",
    ),
    "centres that are not whole": (
        {"centres": zeros(2, 4)},
        "centres: expected dtype int64, got float32",
    ),
    "centres beyond the map": (
        {"centres": torch.tensor([[0], [20]])},
        r"centres: expected values in \[0, 20\), .* got values from 0 to 20",
    ),
    "centres before the map": (
        {"centres": torch.tensor([[0], [-1]])},
        r"centres: expected values in \[0, 20\), .* got values from -1 to 0",
    ),
    "no parts": ({"kernel_size": 0}, "kernel_size: expected at least 1, got 0"),
    "too many parts": ({"kernel_size": 10**6}, "kernel_size: expected at most 1024, got 1000000"),
}


def raw(name):
    """The bare operator, called with the keywords of `dpp.ops`."""

    def call(**keywords):
        keywords.setdefault("outside", 1 / 3)
        return getattr(torch.ops.dpp, name)(**keywords)

    return call


CALLERS = {
    "ops": lambda name: getattr(ops, name),
    "reference": lambda name: getattr(reference, name),
    "raw": raw,
}


@pytest.fixture(params=CALLERS)
def caller(request):
    if request.param == "raw" and ops.backend() == "reference":
        pytest.skip(f"no compiled operator here: {ops.why()}")
    return CALLERS[request.param]


@pytest.mark.parametrize("name", ["max_similarity", "similarity_map"])
@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_are_named(caller, name, case):
    changed, message = BAD_ARGUMENTS[case]
    good = {
        "z": zeros(*Z),
        "offsets": zeros(*OFFSETS),
        "prototypes": zeros(*PROTOTYPES),
        "dilation": 1,
    }
    with pytest.raises(RuntimeError, match=message):
        caller(name)(**good | changed)


@pytest.mark.parametrize("case", BAD_SAMPLING)
def test_bad_arguments_of_sample_parts_are_named(caller, case):
    changed, message = BAD_SAMPLING[case]
    good = {
        "z": zeros(*Z),
        "offsets": zeros(*OFFSETS),
        "kernel_size": 3,
        "dilation": 1,
        "centres": torch.tensor([[0, 1], [2, 19]]),
    }
    if "kernel_size" in changed:
        good["offsets"] = None
    with pytest.raises(RuntimeError, match=message):
        caller("sample_parts")(**good | changed)


BAD_BACKWARD = {
    "grad of another shape": (
        {"grad": zeros(2, 5)},
        r"grad: expected shape \[2, 6\], got \[2, 5\]",
    ),
    "grad in float64": (
        {"grad": zeros(2, 6, dtype=torch.float64)},
        "grad: expected dtype float32, as z has, got float64",
    ),
    "argmax of another shape": (
        {"argmax": zeros(2, 7, dtype=torch.int64)},
        r"argmax: expected shape \[2, 6\], got \[2, 7\]",
    ),
    "argmax of int32": (
        {"argmax": zeros(2, 6, dtype=torch.int32)},
        "argmax: expected dtype int64, got int32",
    ),
    "argmax beyond the map": (
        {"argmax": torch.full((2, 6), 20)},
        r"argmax: expected values in \[0, 20\), .* got values from 20 to 20",
    ),
    "argmax before the map": (
        {"argmax": torch.full((2, 6), -(2**40))},
        r"argmax: expected values in \[0, 20\)",
    ),
    "no floor": ({"floor": 0.0}, "floor: expected a positive number, got 0"),
    "a floor that is no number": (
        {"floor": float("nan")},
        "floor: expected a positive number, got nan",
    ),
    "z of another batch": ({"z": zeros(3, 3, 4, 5)}, r"offsets: expected shape \[3, 18, 4, 5\]"),
}


@compiled
@pytest.mark.parametrize("case", BAD_BACKWARD)
def test_bad_arguments_of_backward_are_named(case):
    changed, message = BAD_BACKWARD[case]
    good = {
        "grad": zeros(2, 6),
        "argmax": zeros(2, 6, dtype=torch.int64),
        "z": zeros(*Z),
        "offsets": zeros(*OFFSETS),
        "prototypes": zeros(*PROTOTYPES),
        "dilation": 1,
        "outside": 1 / 3,
        "floor": ROOT_FLOOR,
    }
    with pytest.raises(RuntimeError, match=message):
        torch.ops.dpp.max_similarity_backward(**good | changed)


@compiled
def test_bad_gradients_of_the_dense_operators_are_named():
    op = torch.ops.dpp
    z, offsets, prototypes = zeros(*Z), zeros(*OFFSETS), zeros(*PROTOTYPES)
    with pytest.raises(RuntimeError, match=r"grad: expected shape \[2, 6, 4, 5\], got \[2, 6\]"):
        op.similarity_map_backward(zeros(2, 6), z, offsets, prototypes, 1, 0.3, ROOT_FLOOR)
    centres = torch.tensor([[0], [20]])
    with pytest.raises(RuntimeError, match=r"centres: expected values in \[0, 20\)"):
        grad = zeros(2, 1, 3, 3, 3)
        op.sample_parts_backward(grad, z, offsets, centres, 3, 1, 0.3, ROOT_FLOOR)
    with pytest.raises(RuntimeError, match=r"grad: expected shape \[2, 1, 3, 3, 3\], got \[2\]"):
        op.sample_parts_backward(zeros(2), z, offsets, centres * 0, 3, 1, 0.3, ROOT_FLOOR)


# Which implementation serves


def ask(backend, code):
    """Runs `code` in a fresh interpreter with DPP_BACKEND set."""
    environment = os.environ | {"DPP_BACKEND": backend}
    command = [sys.executable, "-c", f"from dpp import ops; {code}"]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_backend_reference_is_forced_by_the_environment():
    answer = ask("reference", "print(ops.backend(), ops.backend('cuda'), ops.why())")
    assert answer.stdout.split(maxsplit=2) == ["reference", "reference", "DPP_BACKEND=reference\n"]


def test_backend_of_an_unknown_name_is_an_error():
    answer = ask("fastest", "ops.backend()")
    assert "DPP_BACKEND=fastest: expected auto (the default), reference or extension" in (
        answer.stderr
    )


def test_backend_extension_without_one_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(ops, "EXTENSION", tmp_path / "_C.so")
    monkeypatch.setattr(ops, "BUILD_REPORT", tmp_path / "_build.json")
    ops.BUILD_REPORT.write_text(json.dumps({"built": False, "reason": "no compiler"}))
    assert ops._choose("auto") == (frozenset(), "extension not built: no compiler")
    with pytest.raises(RuntimeError, match="DPP_BACKEND=extension, but extension not built: no c"):
        ops._choose("extension")


def test_backend_of_a_broken_extension_is_the_reference(tmp_path, monkeypatch):
    monkeypatch.setattr(ops, "EXTENSION", tmp_path / "_C.so")
    ops.EXTENSION.write_text("not a library")
    served, reason = ops._choose("auto")
    assert not served and "extension built for another torch or Python" in reason


@compiled
def test_devices_that_the_extension_does_not_serve_use_the_reference():
    assert ops.backend("mps") == ops.backend("meta") == "reference"
    scores, argmax = ops.max_similarity(*(t.detach().to("meta") for t in make_case()))
    assert scores.shape == argmax.shape == (1, 2) and scores.device.type == "meta"


@compiled
@pytest.mark.parametrize("name", ["max_similarity", "similarity_map"])
def test_forward_mode_is_refused(name):
    z, offsets, prototypes = make_case()
    operator = getattr(ops, name)
    with pytest.raises(RuntimeError, match="no forward-mode derivative"):
        torch.func.jvp(lambda x: operator(x, offsets, prototypes), (z,), (torch.ones_like(z),))


def test_prototype_without_dimensions_is_named():
    z, offsets, _ = make_case()
    with pytest.raises(RuntimeError, match="prototypes: expected shape"):
        ops.max_similarity(z, offsets, torch.tensor(1.0, dtype=z.dtype))


@pytest.mark.parametrize("count", [2048, 2049, 8193])
def test_more_prototypes_than_are_held_at_once(count):
    generator = torch.Generator().manual_seed(count)
    z = torch.rand(2, 4, 3, 3, generator=generator, requires_grad=True)
    offsets = torch.randn(2, 8, 3, 3, generator=generator, requires_grad=True)
    prototypes = torch.rand(count, 4, 2, 2, generator=generator, requires_grad=True)
    found, places = ops.max_similarity(z, offsets, prototypes, dilation=2)
    expected, best = reference.max_similarity(z, offsets, prototypes, dilation=2)
    torch.testing.assert_close(found, expected)
    assert (places == best).float().mean() > 0.999  # of equal ones, rounding chooses
    weights = torch.rand(found.shape, generator=generator)
    inputs = [z, offsets, prototypes]
    grads = torch.autograd.grad((weights * found).sum(), inputs)
    others = torch.autograd.grad((weights * expected).sum(), inputs)
    torch.testing.assert_close(grads, others, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("moved", [True, False])
def test_gradients_of_many_prototypes_are_sums_of_those_of_slices(moved):
    z, offsets, prototypes = make_case(images=3, channels=40, height=4, width=4, count=9000)
    offsets = offsets if moved else None
    inputs = [z, prototypes, *([offsets] if moved else [])]
    scores, _ = ops.max_similarity(z, offsets, prototypes)
    factors = torch.randn(scores.shape, dtype=z.dtype, generator=torch.Generator().manual_seed(0))
    whole = torch.autograd.grad((factors * scores).sum(), inputs)
    parts = []
    for some, factor in zip(prototypes.split(3000), factors.split(3000, dim=1), strict=True):
        score, _ = ops.max_similarity(z, offsets, some)
        parts.append(torch.autograd.grad((factor * score).sum(), inputs))
    for one, several in zip(whole, zip(*parts, strict=True), strict=True):
        torch.testing.assert_close(one, sum(several))
