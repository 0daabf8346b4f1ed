"""The plain-PyTorch operator against the equations, and both implementations against the paper."""

import loop_oracle
import pytest
import torch
from torch.nn.functional import conv2d, pad

from dpp import ops, reference

SHAPES = [(3, 1), (2, 2), (3, 2), (1, 1)]  # kernel size, dilation


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=["served", "reference"])
def operator(request):
    """What `dpp.ops` serves, and the plain-PyTorch operator."""
    return ops if request.param == "served" else reference


def make_case(kernel_size, *, images=2, channels=4, height=4, width=5, count=3, reach=1.5, seed=0):
    """Positive features of length r, offsets up to `reach` cells, prototypes; float64."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    z = rand(images, channels, height, width) + 0.1
    z = z / z.norm(dim=1, keepdim=True) / kernel_size
    offsets = (2 * rand(images, 2 * kernel_size**2, height, width) - 1) * reach
    prototypes = rand(count, channels, kernel_size, kernel_size)
    return z, offsets, prototypes


@pytest.mark.parametrize("kernel_size, dilation", SHAPES)
@pytest.mark.parametrize("outside", [None, 0.0, 0.7])
@pytest.mark.parametrize("moves", [True, False])
def test_equation_5_similarity_map_equals_nested_loops(
    operator, kernel_size, dilation, outside, moves
):
    z, offsets, prototypes = make_case(kernel_size)
    offsets = offsets if moves else None
    found = operator.similarity_map(z, offsets, prototypes, dilation=dilation, outside=outside)
    beyond = 1 / kernel_size if outside is None else outside
    expected = loop_oracle.similarity_map(z, offsets, prototypes, dilation, beyond)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel_size, dilation", SHAPES)
def test_equation_8_max_similarity_equals_maximum_of_nested_loops(operator, kernel_size, dilation):
    z, offsets, prototypes = make_case(kernel_size, seed=1)
    scores, argmax = operator.max_similarity(z, offsets, prototypes, dilation=dilation)
    loops = loop_oracle.similarity_map(z, offsets, prototypes, dilation, 1 / kernel_size)
    best, where = loops.flatten(2).max(dim=2)
    torch.testing.assert_close(scores, best, rtol=0, atol=1e-12)
    assert torch.equal(argmax, where)


@pytest.mark.parametrize("kernel_size, dilation", SHAPES)
def test_sample_parts_equals_nested_loops(operator, kernel_size, dilation):
    z, offsets, _ = make_case(kernel_size, seed=2)
    centres = torch.tensor([[0, 7, 7, 19], [3, 0, 12, 5]])
    found = operator.sample_parts(z, offsets, centres, kernel_size=kernel_size, dilation=dilation)
    assert found.shape == (2, 4, 4, kernel_size, kernel_size)
    for image, row in enumerate(centres.tolist()):
        for q, centre in enumerate(row):
            expected = loop_oracle.sample(
                z, offsets, image, *divmod(centre, 5), kernel_size, dilation, 1 / kernel_size
            )
            torch.testing.assert_close(found[image, q], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel_size, dilation", SHAPES)
def test_equation_4_similarity_map_equals_conv2d_at_zero_offsets(
    operator, kernel_size, dilation, dtype
):
    z, offsets, prototypes = (t.to(dtype) for t in make_case(kernel_size, height=14, width=14))
    reach = (kernel_size - 1) * dilation // 2
    padded = pad(z, [reach] * 4)
    padded[:, -1] = 1 / kernel_size
    padded[:, -1, reach : reach + 14, reach : reach + 14] = z[:, -1]
    expected = conv2d(padded, prototypes, dilation=dilation)
    for moved in (offsets * 0, None):
        found = operator.similarity_map(z, moved, prototypes, dilation=dilation)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("moved", [-1, 1, 2, -3])
def test_samples_at_whole_offsets_are_the_features_themselves(operator, moved):
    z, offsets, _ = make_case(1, height=6, width=7)
    centres = torch.arange(42).expand(2, -1)
    offsets = torch.full_like(offsets, moved)
    found = operator.sample_parts(z, offsets, centres, kernel_size=1)[..., 0, 0]
    found = found.transpose(1, 2).view_as(z)
    ours = slice(max(0, -moved), 6 - max(0, moved)), slice(max(0, -moved), 7 - max(0, moved))
    theirs = slice(max(0, moved), 6 + min(0, moved)), slice(max(0, moved), 7 + min(0, moved))
    # Served roots are exact; torch's of doubles are a last bit off on some processors.
    last_bit = 0 if operator is ops else torch.finfo(z.dtype).eps
    torch.testing.assert_close(found[:, :, *ours], z[:, :, *theirs], rtol=last_bit, atol=0)


def everywhere(z):
    return torch.arange(z.shape[2] * z.shape[3]).expand(z.shape[0], -1)


@pytest.mark.parametrize("kernel_size, dilation", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equation_6_samples_have_length_r_at_any_offset(operator, kernel_size, dilation, dtype):
    """Equation 6."""
    for reach in (0.0, 0.3, 2.0, 30.0, 1e6, 1e30):
        z, offsets, _ = (t.to(dtype) for t in make_case(kernel_size, reach=reach))
        samples = operator.sample_parts(
            z, offsets, everywhere(z), kernel_size=kernel_size, dilation=dilation
        )
        lengths = samples.norm(dim=2)
        torch.testing.assert_close(
            lengths, torch.full_like(lengths, 1 / kernel_size), rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("value", [1e6, -1e6, float("inf"), -float("inf"), float("nan"), 1e38])
@pytest.mark.parametrize("which", ["down", "right", "both"])
def test_parts_far_outside_are_the_outside_vector_without_gradient(operator, value, which):
    z, offsets, prototypes = make_case(3, reach=0.3)
    chosen = {"down": slice(0, None, 2), "right": slice(1, None, 2), "both": slice(None)}[which]
    offsets[:, chosen] = value
    inputs = [t.requires_grad_() for t in (z, offsets, prototypes)]
    samples = operator.sample_parts(z, offsets, everywhere(z), kernel_size=3)
    expected = torch.zeros_like(samples)
    expected[:, :, -1] = 1 / 3
    torch.testing.assert_close(samples, expected, rtol=0, atol=1e-15)
    scores, _ = operator.max_similarity(*inputs)
    similarity = operator.similarity_map(*inputs)
    for loss in (samples.sum(), scores.sum(), similarity.sum()):
        z_grad, offsets_grad = torch.autograd.grad(loss, inputs[:2])
        assert not z_grad.any() and not offsets_grad.any()


def supplement_case():
    z, offsets, prototypes = make_case(3, images=1, height=4, width=4, count=2, reach=2.5, seed=4)
    return [t.requires_grad_() for t in (z, offsets, prototypes)]


def gradients_at(operator, inputs, p, a, b):
    """What the operator says of g_{a,b}, in the form of `loop_oracle.gradients`."""
    similarity = operator.similarity_map(*inputs)[0, p, a, b]
    z_grad, offsets_grad, prototypes_grad = torch.autograd.grad(similarity, inputs)
    return z_grad[0], offsets_grad[0, :, a, b], prototypes_grad[p]


@pytest.mark.parametrize("a, b", [(0, 0), (1, 2), (3, 3)])
@pytest.mark.parametrize("p", [0, 1])
def test_gradients_are_the_supplements_term_by_term(operator, p, a, b):
    inputs = supplement_case()
    found = gradients_at(operator, inputs, p, a, b)
    with torch.no_grad():
        expected = loop_oracle.gradients(*inputs, 0, p, a, b, 1, 1 / 3)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("row, index", [(8, 2), (9, 1)], ids=["row 8", "row 9"])
def test_gradients_of_the_released_code_fail_the_supplements(operator, row, index):
    """The released code's slips: the prototype's gradient, and the offsets'."""
    inputs = supplement_case()
    found = gradients_at(operator, inputs, 0, 1, 2)[index]
    with torch.no_grad():
        released = loop_oracle.released_gradients(*inputs, 0, 0, 1, 2, 1, 1 / 3)[index]
    error = (released - found).abs().max() / found.abs().max()
    assert error > 0.1
    with pytest.raises(AssertionError):
        torch.testing.assert_close(released, found, rtol=0, atol=1e-12)


def test_offset_gradient_between_two_cells_uses_squares(operator):
    """Halfway between features of 0.5 and 4: the released slope, of features, is far too small."""
    z = torch.tensor([[[[0.5, 4.0]]]], dtype=torch.float64)
    offsets = torch.zeros(1, 2, 1, 2, dtype=torch.float64)
    offsets[0, 1, 0, 0] = 0.5
    offsets.requires_grad_()
    prototypes = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    similarity = operator.similarity_map(z, offsets, prototypes)[0, 0, 0, 0]
    (grad,) = torch.autograd.grad(similarity, offsets)
    zeta = (0.5**2 + 4.0**2) / 2
    true, released = (4.0**2 - 0.5**2) / (2 * zeta**0.5), (4.0 - 0.5) / (2 * zeta**0.5)
    assert grad[0, 1, 0, 0].item() == pytest.approx(true, abs=1e-12)
    assert abs(grad[0, 1, 0, 0].item() - released) > 1


def test_offset_derivative_at_whole_offsets_is_the_right_hand_one(operator):
    z, offsets, prototypes = make_case(3, images=1, height=5, width=5)
    offsets = torch.zeros_like(offsets).requires_grad_()
    step = 1e-7
    weights = torch.rand(1, 3, 5, 5, generator=torch.Generator().manual_seed(1)).double()
    at_zero = (operator.similarity_map(z, offsets, prototypes) * weights).sum()
    (grad,) = torch.autograd.grad(at_zero, offsets)
    for channel in (0, 1, 8, 17):
        moved = offsets.detach().clone()
        moved[0, channel, 2, 2] += step
        ahead = (operator.similarity_map(z, moved, prototypes) * weights).sum()
        slope = (ahead - at_zero).item() / step
        assert grad[0, channel, 2, 2].item() == pytest.approx(slope, rel=1e-4, abs=1e-5)


def test_offset_gradient_is_bounded_by_the_floor(operator):
    """sqrt(zeta) = sqrt(offset) * neighbour: 1/(2 sqrt(zeta)) would be 5e5 times the slope here."""
    neighbour = 0.01
    for offset in (0.0, 1e-12, 1e-8):
        z = torch.tensor([[[[0.0, neighbour]]]], dtype=torch.float64)
        offsets = torch.zeros(1, 2, 1, 2, dtype=torch.float64)
        offsets[0, 1, 0, 0] = offset
        offsets.requires_grad_()
        prototypes = torch.ones(1, 1, 1, 1, dtype=torch.float64)
        similarity = operator.similarity_map(z, offsets, prototypes)[0, 0, 0, 0]
        (grad,) = torch.autograd.grad(similarity, offsets)
        expected = neighbour**2 / (2 * reference.ROOT_FLOOR)
        assert grad[0, 1, 0, 0].item() == pytest.approx(expected, rel=1e-9)


def test_second_backward_raises(operator):
    inputs = supplement_case()
    samples = operator.sample_parts(*inputs[:2], everywhere(inputs[0]), kernel_size=3)
    for output in (
        operator.max_similarity(*inputs)[0],
        operator.similarity_map(*inputs),
        samples,
    ):
        (grad,) = torch.autograd.grad(output.sum(), inputs[:1], create_graph=True)
        with pytest.raises(RuntimeError, match="differentiable once"):
            torch.autograd.grad(grad.sum(), inputs[:1])
