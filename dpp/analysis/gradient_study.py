"""Interpolation and its gradients, beside what plain bilinear sampling and the released code do."""

from functools import partial

import pandas as pd
import torch
from torch import Tensor

from dpp import ops

STEP = 1e-6  # of central differences, in float64
SHAPES = {"features": (1, 5, 4, 4), "offsets": (1, 8, 4, 4), "prototypes": (3, 5, 2, 2)}
CHANNELS = 64  # of the random features that gradients are compared on


def interpolate_corners(corners: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Both ways to interpolate on the way from the first corner to the last, alpha = beta.

    Args:
        corners: (4, C), z1 to z4 of Theorem 3.1.
        share: (S,), from 0 to 1.

    Returns:
        (S, C) by bilinear interpolation, and (S, C) by that of the squares.
    """
    rest = 1 - share
    weights = torch.stack([rest * rest, rest * share, share * rest, share * share]).T
    return weights @ corners, (weights @ corners.square()).sqrt()


def deviation_from_differences(seed: int = 0) -> dict[str, float]:
    """The operator's gradients against central differences, in float64.

    Returns:
        By input (features, offsets, prototypes): the largest deviation, relative to the largest
        gradient.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = {name: torch.rand(shape, generator=generator) for name, shape in SHAPES.items()}
    inputs = {name: tensor.double().requires_grad_() for name, tensor in inputs.items()}
    grads = torch.autograd.grad(_sum_of_similarities(inputs), list(inputs.values()))
    inputs = {name: tensor.detach() for name, tensor in inputs.items()}
    deviations = {}
    for name, grad in zip(inputs, grads, strict=True):
        slope = _differences(partial(_with, inputs, name), inputs[name]).view_as(grad)
        deviations[name] = ((slope - grad).abs().max() / slope.abs().max()).item()
    return deviations


def _sum_of_similarities(inputs: dict[str, Tensor]) -> Tensor:
    return ops.similarity_map(*inputs.values(), dilation=2).sum()


def _with(inputs: dict[str, Tensor], name: str, tensor: Tensor) -> Tensor:
    return _sum_of_similarities(inputs | {name: tensor})


def _differences(function, tensor: Tensor) -> Tensor:
    """Central differences, one element at a time."""
    steps = STEP * torch.eye(tensor.numel(), dtype=tensor.dtype).view(-1, *tensor.shape)
    ends = [function(tensor + step) - function(tensor - step) for step in steps]
    return torch.stack(ends) / (2 * STEP)


def slopes_near_zero(offsets: Tensor) -> tuple[Tensor, Tensor]:
    """The offset gradient where a channel is off in this cell and on in the next.

    Args:
        offsets: (S,), float64, above 0.

    Returns:
        The true one, 1/(2 sqrt(offset)), and the operator's, (S,) each.
    """
    pair = torch.zeros(len(offsets), 2, 1, 2).double()
    pair[:, 0, 0, 1] = pair[:, 1, 0, 0] = 1  # channel 0 is on in the next cell only
    field = torch.zeros(len(offsets), 2, 1, 2).double()
    field[:, 1] = offsets[:, None, None]
    field.requires_grad_()
    part = torch.tensor([1.0, 0.0]).double().view(1, 2, 1, 1)
    ops.similarity_map(pair, field, part)[:, 0, 0, 0].sum().backward()
    return 0.5 / offsets.sqrt(), field.grad[:, 1, 0, 0]


def random_corners(draws: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Random ReLU features at the corners of cells, and parts: z (4, draws, C), part (draws, C),
    and the fractions of a cell (2, draws, 1)."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(4, draws, CHANNELS, generator=generator).double().relu()
    part = torch.randn(draws, CHANNELS, generator=generator).double().relu()
    shares = 0.05 + 0.9 * torch.rand(2, draws, 1, generator=generator).double()
    return z / z.norm(dim=2, keepdim=True), part / part.norm(dim=1, keepdim=True), shares


def offset_slopes(draws: int, seed: int = 0) -> pd.DataFrame:
    """The derivative of a part's similarity with respect to its first offset, three ways.

    Returns:
        A row for each draw: `finite difference`, `supplement` (with the squares of z, as derived)
        and `released` (with z itself, as in the authors' code).
    """
    z, part, (alpha, beta) = random_corners(draws, seed)
    root = _mix(z**2, alpha, beta).sqrt().clamp(min=1e-12)  # all four corners may be off
    ends = [(part * _mix(z**2, alpha + s, beta).sqrt()).sum(1) for s in (STEP, -STEP)]
    ways = {"supplement": z**2, "released": z}
    slopes = {"finite difference": (ends[0] - ends[1]) / (2 * STEP)}
    for name, values in ways.items():
        rise = _mix(values, 1, beta) - _mix(values, 0, beta)
        slopes[name] = (part * rise / (2 * root)).sum(1)
    return pd.DataFrame(slopes)


def released_prototype_gradient(draws: int, seed: int = 0) -> tuple[float, float]:
    """The released gradient with respect to a part, beside the true one: its mean relative length
    and mean cosine."""
    z, _, (alpha, beta) = random_corners(draws, seed)
    true, plain = _mix(z**2, alpha, beta).sqrt(), _mix(z, alpha, beta)
    ratio = (plain.norm(dim=1) / true.norm(dim=1)).mean()
    return ratio.item(), torch.cosine_similarity(plain, true).mean().item()


def _mix(z: Tensor, alpha: Tensor | float, beta: Tensor) -> Tensor:
    """Bilinear interpolation of four corners: the supplement's zeta, if these are squares."""
    upper, lower = (1 - beta) * z[0] + beta * z[1], (1 - beta) * z[2] + beta * z[3]
    return (1 - alpha) * upper + alpha * lower
