"""Prototypes whose parts each look for their best place: the operator, in plain PyTorch.

With d over the whole cells of a square window, and costs s_i that are never negative,

    g(z)_{a,b} = sum_i max_d ( p_i . z_{a+m+d1, b+n+d2} - s_i |d|^2 ).

The products p_i . z of all parts with all cells are what a rigid prototype computes anyway. The
window costs 2 (2 reach + 1) comparisons for each of them, since a quadratic cost is the sum of one
for rows and one for columns. Features at whole cells have length r already.
"""

import math

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from dpp.reference import resting_places

AT_ONCE = 2**24  # products of parts and cells that are in memory at a time


def max_searched_similarity(
    z: Tensor,
    prototypes: Tensor,
    costs: Tensor,
    reach: int,
    *,
    dilation: int = 1,
    outside: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The highest similarity over all centres of prototypes whose parts search.

    Args:
        z, prototypes, dilation, outside: as for `dpp.ops.max_similarity`.
        costs: (P, K*K), of a part that moves by one cell.
        reach: of the window, in cells.

    Returns:
        scores (N, P); argmax (N, P), a flat index into H*W; and displacements (N, P, K*K, 2), whole
        cells down and to the right. Of equals the first centre, and the shortest way.
    """
    outside = 1 / prototypes.shape[-1] if outside is None else outside
    with torch.autocast(z.device.type, enabled=False):
        z, prototypes, costs = (x.to(z.dtype) for x in (z, prototypes, costs))
        return _MaxSearched.apply(z, prototypes, costs, reach, dilation, outside)


class _MaxSearched(torch.autograd.Function):
    """Gradients are sparse: one place for each image, prototype and part carries any."""

    @staticmethod
    def forward(ctx, z, prototypes, costs, reach, dilation, outside):
        few = max(1, AT_ONCE // max(1, costs.shape[1] * z[:, 0].numel()))
        found = [
            search_all(z, *pair, reach, dilation, outside)
            for pair in zip(prototypes.split(few), costs.split(few), strict=True)
        ]
        scores, centres, moved = (torch.cat(one, dim=1) for one in zip(*found, strict=True))
        ctx.save_for_backward(z, prototypes, centres, moved)
        ctx.dilation, ctx.outside = dilation, outside
        ctx.mark_non_differentiable(centres, moved)
        return scores, centres, moved

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, *_):
        z, prototypes, centres, moved = ctx.saved_tensors
        rows = rows_of(z, ctx.outside)
        count, parts = len(prototypes), moved.shape[2]
        landed = landing_rows(z, centres, moved, prototypes.shape[-1], ctx.dilation)
        weights = grad[:, :, None].expand(-1, -1, parts)  # (N, P, parts)
        by_part = {"per_sample_weights": weights.permute(1, 2, 0).flatten(0, 1), "mode": "sum"}
        index = landed.permute(1, 2, 0).flatten(0, 1)  # (P * parts, N)
        prototypes_grad = functional.embedding_bag(index, rows, **by_part)
        prototypes_grad = prototypes_grad.view(count, *prototypes.shape[2:], -1)
        vectors = prototypes.permute(0, 2, 3, 1).flatten(0, 2)  # (P * parts, C)
        order = landed.flatten().argsort()
        starts = torch.searchsorted(
            landed.flatten()[order], torch.arange(len(rows), device=z.device)
        )
        rows_grad = functional.embedding_bag(
            order % len(vectors),
            vectors.contiguous(),
            starts,
            per_sample_weights=weights.flatten()[order],
            mode="sum",
        )
        z_grad = rows_grad.view(len(z), -1, z.shape[1])[:, :-1].mT.reshape(z.shape)
        squares = moved.square().sum(dim=3).to(grad)
        costs_grad = -torch.einsum("np,npk->pk", grad, squares)
        return z_grad, prototypes_grad.permute(0, 3, 1, 2), costs_grad, None, None, None


def search_all(
    z: Tensor, prototypes: Tensor, costs: Tensor, reach: int, dilation: int, outside: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`max_searched_similarity` of so few prototypes that all products fit into memory."""
    similarities, products = search_map(z, prototypes, costs, reach, dilation, outside)
    centres = similarities.flatten(2).argmax(dim=2)  # (N, Q)
    size = tuple(z.shape[2:])
    moved, values = displacements_at(products, centres, costs, reach, dilation, size)
    return values.sum(dim=2), centres, moved


def search_map(
    z: Tensor, prototypes: Tensor, costs: Tensor, reach: int, dilation: int, outside: float
) -> tuple[Tensor, Tensor]:
    """The similarities (N, Q, H, W) of prototypes at all centres, and their `padded_products`."""
    height, width = z.shape[2:]
    margin = margin_of(prototypes.shape[-1], dilation, reach)
    products = best = padded_products(z, prototypes, margin, outside)
    for axis in (1, 2):
        best = _best_along(best, axis, costs, reach)
    inner = margin - reach  # what is left of the margin: how far the parts rest from the centre
    total = 0
    for part, (down, right) in enumerate(resting_places(prototypes.shape[-1], dilation)):
        rows = slice(inner + down, inner + down + height)
        columns = slice(inner + right, inner + right + width)
        total = total + best[:, rows, columns, :, part]
    return total.permute(0, 3, 1, 2), products


def padded_products(z: Tensor, prototypes: Tensor, margin: int, outside: float) -> Tensor:
    """(N, H + 2 margin, W + 2 margin, Q, parts): parts times cells, also those off the map."""
    vectors = prototypes.permute(0, 2, 3, 1).flatten(1, 2)  # (Q, parts, C)
    count, channels, height, width = z.shape
    beyond = outside * vectors[..., -1]  # (Q, parts)
    shape = (count, height + 2 * margin, width + 2 * margin, *beyond.shape)
    products = beyond.expand(shape).clone()
    cells = z.permute(0, 2, 3, 1).reshape(-1, channels) @ vectors.flatten(0, 1).T
    inner = products[:, margin : margin + height, margin : margin + width]
    inner.copy_(cells.view(count, height, width, *beyond.shape))
    return products


def _best_along(values: Tensor, axis: int, costs: Tensor, reach: int) -> Tensor:
    """The best of a window along one axis, which becomes shorter by twice the reach."""
    length = values.shape[axis] - 2 * reach
    best = values.narrow(axis, reach, length).clone()
    for step in range(1, reach + 1):
        cost = step**2 * costs
        for start in (reach - step, reach + step):
            torch.maximum(best, values.narrow(axis, start, length) - cost, out=best)
    return best


def displacements_at(
    products: Tensor,
    centres: Tensor,
    costs: Tensor,
    reach: int,
    dilation: int,
    size: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """Where the parts of prototypes at given centres go.

    Args:
        products: of `padded_products`.
        centres: (N, Q), flat indices into H*W.
        costs: (Q, parts).
        reach, dilation: as for `max_searched_similarity`.
        size: H and W.

    Returns:
        displacements (N, Q, parts, 2), and (N, Q, parts), what each part adds to the score.
    """
    kernel_size, device = math.isqrt(costs.shape[1]), products.device
    margin = margin_of(kernel_size, dilation, reach)
    rest = torch.tensor(resting_places(kernel_size, dilation), device=device)  # (parts, 2)
    window = torch.tensor(_window(reach), device=device)  # (steps, 2)
    row, column = centres // size[1] + margin, centres % size[1] + margin
    rows = row[:, :, None, None] + rest[:, None, 0] + window[:, 0]  # (N, Q, parts, steps)
    columns = column[:, :, None, None] + rest[:, None, 1] + window[:, 1]
    image, number, part = (
        torch.arange(count, device=device).view(shape)
        for count, shape in (
            (len(products), (-1, 1, 1, 1)),
            (costs.shape[0], (-1, 1, 1)),
            (costs.shape[1], (-1, 1)),
        )
    )
    there = products[image, rows, columns, number, part]
    there = there - costs[:, :, None] * window.square().sum(dim=1)
    values, step = there.max(dim=3)
    return window[step], values


def _window(reach: int) -> list[tuple[int, int]]:
    """All steps of a window, the shortest first."""
    steps = range(-reach, reach + 1)
    square = [(down, right) for down in steps for right in steps]
    return sorted(square, key=lambda step: step[0] ** 2 + step[1] ** 2)


def margin_of(kernel_size: int, dilation: int, reach: int) -> int:
    """How far from its centre a part can lie, in cells, along an axis."""
    return (kernel_size - 1) * dilation // 2 + reach


def rows_of(z: Tensor, outside: float) -> Tensor:
    """(N * (H*W + 1), C): the map's vectors, and after each map's that of its outside."""
    beyond = z.new_zeros(z.shape[1])
    beyond[-1] = outside
    cells = z.flatten(2).mT
    return torch.cat([cells, beyond.expand(len(z), 1, -1)], dim=1).flatten(0, 1)


def landing_rows(
    z: Tensor, centres: Tensor, moved: Tensor, kernel_size: int, dilation: int
) -> Tensor:
    """(N, Q, parts): which of `rows_of` each part lies on."""
    height, width = z.shape[2:]
    rest = torch.tensor(resting_places(kernel_size, dilation), device=z.device)
    row = (centres // width)[:, :, None] + rest[:, 0] + moved[..., 0]
    column = (centres % width)[:, :, None] + rest[:, 1] + moved[..., 1]
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    flat = torch.where(inside, row * width + column, height * width)
    first = torch.arange(len(z), device=z.device) * (height * width + 1)
    return flat + first[:, None, None]
