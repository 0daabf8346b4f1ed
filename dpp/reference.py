"""The deformable prototype in plain PyTorch: the oracle, and the fallback if nothing is compiled.

Section 3 of the paper and its supplement, "Backpropagation through a Deformable Prototype", one
part of the prototypes at a time, so that memory is bounded by one part's samples. Every corner of
an interpolation is found here rather than by `grid_sample`, whose change of coordinates would move
whole positions off the grid. The compiled operator (`csrc/`) follows this file; `dpp.ops` chooses.
"""

import math

import torch
from torch import Tensor

# The derivative of sqrt(zeta) is singular where zeta = 0, and with ReLU features and small offsets
# that is where most channels are: the offset gradient would be infinite. Offsets therefore see
# 1 / (2 max(sqrt(zeta), ROOT_FLOOR)). Features have length r <= 1 over hundreds of channels, so an
# active one is about 1e-2, and the floor a hundredth of that: it changes the gradient only of
# channels that are off at the nearest cell, within about 1e-4 of a cell from a whole position, and
# bounds each such term by z^2 / (2 ROOT_FLOOR). The gradient to z is bounded without it.
ROOT_FLOOR = 1e-4

MOST_PLACES = 2**31 - 1
MOST_PARTS_ACROSS = 1024
WIDEST_PROTOTYPE = 2**30


def max_similarity(
    z: Tensor,
    offsets: Tensor | None,
    prototypes: Tensor,
    *,
    dilation: int = 1,
    outside: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The highest similarity over all places, and where it is (equation 8).

    Arguments and result are those of `dpp.ops.max_similarity`.
    """
    scores, argmax = _similarity(z, offsets, prototypes, dilation, outside).max(dim=1)
    return scores, argmax


def similarity_map(
    z: Tensor,
    offsets: Tensor | None,
    prototypes: Tensor,
    *,
    dilation: int = 1,
    outside: float | None = None,
) -> Tensor:
    """The similarity of each prototype at each place, g(z)_{a,b} (equation 5).

    Arguments and result are those of `dpp.ops.similarity_map`.
    """
    similarity = _similarity(z, offsets, prototypes, dilation, outside)
    return similarity.transpose(1, 2).unflatten(2, z.shape[2:])


def sample_parts(
    z: Tensor,
    offsets: Tensor | None,
    centres: Tensor,
    *,
    kernel_size: int,
    dilation: int = 1,
    outside: float | None = None,
) -> Tensor:
    """The interpolated features under every part of prototypes at given centres (Theorem 3.1).

    Arguments and result are those of `dpp.ops.sample_parts`.
    """
    outside = 1 / max(kernel_size, 1) if outside is None else outside
    check_common(z, offsets, kernel_size, dilation, outside)
    check_centres(z, centres)
    rows = _rows_of(z, outside)
    samples = []
    for part, (down, right) in enumerate(resting_places(kernel_size, dilation)):
        row, column = centres // z.shape[3] + down, centres % z.shape[3] + right
        moved = _offsets_of(z, offsets, part)
        moved = moved.gather(2, centres.unsqueeze(1).expand(-1, 2, -1))
        samples.append(_PartSamples.apply(rows, moved, row, column, *z.shape[2:]))
    return torch.stack(samples, dim=3).unflatten(3, (kernel_size, kernel_size))


def resting_places(kernel_size: int, dilation: int) -> list[tuple[int, int]]:
    """Where the parts rest relative to the centre, rows first, in the order of their channels."""
    steps = [(2 * i - (kernel_size - 1)) * dilation // 2 for i in range(kernel_size)]
    return [(down, right) for down in steps for right in steps]


def _similarity(z, offsets, prototypes, dilation, outside) -> Tensor:
    """(N, H*W, P): the sum over parts of equation 5."""
    check_prototypes(z, prototypes)
    kernel_size = prototypes.shape[3]
    outside = 1 / kernel_size if outside is None else outside
    check_common(z, offsets, kernel_size, dilation, outside)
    height, width = z.shape[2:]
    rows = _rows_of(z, outside)
    places = torch.arange(height * width, device=z.device)
    total = z.new_zeros(z.shape[0], height * width, prototypes.shape[0])
    for part, (down, right) in enumerate(resting_places(kernel_size, dilation)):
        weights = prototypes[:, :, part // kernel_size, part % kernel_size]
        row, column = places // width + down, places % width + right
        moved = _offsets_of(z, offsets, part)
        total = total + _PartSimilarity.apply(rows, moved, weights, row, column, height, width)
    return total


def _rows_of(z: Tensor, outside: float) -> Tensor:
    """(N, H*W + 1, C): the map's vectors, and after them the vector that stands for its outside."""
    beyond = torch.zeros(z.shape[1], dtype=z.dtype, device=z.device)
    beyond[-1] = outside
    return torch.cat([z.flatten(2).transpose(1, 2), beyond.expand(z.shape[0], 1, -1)], dim=1)


def _offsets_of(z: Tensor, offsets: Tensor | None, part: int) -> Tensor:
    """(N, 2, H*W): how far one part moves."""
    if offsets is None:
        return z.new_zeros(z.shape[0], 2, z.shape[2] * z.shape[3])
    return offsets[:, 2 * part : 2 * part + 2].flatten(2)


class _Landing:
    """The four cells around each landing place, z1 to z4 of the supplement, and their weights.

    Args:
        moved: (N, 2, L) offsets down and to the right.
        row, column: (L) or (N, L), int64, where the part rests.
    """

    def __init__(self, moved: Tensor, row: Tensor, column: Tensor, height: int, width: int):
        whole = moved.floor()
        # 2^31 lies beyond every map; NaN fails every comparison.
        sane = (whole.abs() <= 2.0**31).all(dim=1)  # (N, L)
        steps = torch.where(sane.unsqueeze(1), whole, 0).long()
        top, left = row + steps[:, 0], column + steps[:, 1]
        touches = sane & (top >= -1) & (top < height) & (left >= -1) & (left < width)
        fraction = torch.where(touches.unsqueeze(1), moved - whole, 0)
        self.alpha, self.beta = fraction[:, 0, :, None], fraction[:, 1, :, None]  # (N, L, 1)
        self.weights = (
            (1 - self.alpha) * (1 - self.beta),
            (1 - self.alpha) * self.beta,
            self.alpha * (1 - self.beta),
            self.alpha * self.beta,
        )
        beyond = height * width
        first_row = torch.arange(moved.shape[0], device=moved.device)[:, None] * (beyond + 1)
        self.cells = []  # flat indices into (N * (H*W + 1)) rows
        for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
            y, x = top + down, left + right
            inside = touches & (y >= 0) & (y < height) & (x >= 0) & (x < width)
            self.cells.append((torch.where(inside, y * width + x, beyond) + first_row).flatten())

    def corners(self, rows: Tensor) -> list[Tensor]:
        """z1 to z4, each (N, L, C)."""
        shape = (*self.alpha.shape[:2], rows.shape[2])
        return [rows.flatten(0, 1).index_select(0, cells).view(shape) for cells in self.cells]


def _interpolate(landing: _Landing, corners: list[Tensor]) -> Tensor:
    """sqrt(zeta), Theorem 3.1."""
    zeta = landing.weights[0] * corners[0].square()
    for weight, corner in zip(landing.weights[1:], corners[1:], strict=True):
        zeta = zeta + weight * corner.square()
    return zeta.sqrt()


def _interpolate_backward(
    landing: _Landing, rows: Tensor, corners: list[Tensor], root: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of rows (N, H*W + 1, C) and offsets (N, 2, L) from that of the samples."""
    shared = torch.where(root > 0, grad / root, 0)
    rows_grad = torch.zeros_like(rows).flatten(0, 1)
    for weight, corner, cells in zip(landing.weights, corners, landing.cells, strict=True):
        rows_grad.index_add_(0, cells, (weight * corner * shared).flatten(0, 1))
    z1, z2, z3, z4 = corners
    alpha, beta = landing.alpha, landing.beta
    # Between whole positions zeta is linear; at one, this is its derivative to the right. There
    # the supplement's cases leave out the cell at distance 1: a choice at a kink, of measure zero.
    slope_down = (1 - beta) * ((z3 - z1) * (z3 + z1)) + beta * ((z4 - z2) * (z4 + z2))
    slope_right = (1 - alpha) * ((z2 - z1) * (z2 + z1)) + alpha * ((z4 - z3) * (z4 + z3))
    lift = grad * 0.5 / root.clamp(min=ROOT_FLOOR)
    moved_grad = torch.stack([(lift * slope_down).sum(2), (lift * slope_right).sum(2)], dim=1)
    return rows_grad.view_as(rows), moved_grad


class _PartSamples(torch.autograd.Function):
    """One part's samples (N, L, C). Keeps its inputs only, and samples again in backward."""

    @staticmethod
    def forward(ctx, rows, moved, row, column, height, width):
        ctx.save_for_backward(rows, moved, row, column)
        ctx.size = height, width
        landing = _Landing(moved, row, column, height, width)
        return _interpolate(landing, landing.corners(rows))

    @staticmethod
    def backward(ctx, grad):
        grads = _PartSamplesBackward.run(grad, *ctx.saved_tensors, *ctx.size)
        return *grads, None, None, None, None


class _PartSimilarity(torch.autograd.Function):
    """One part's share of the similarity (equation 7), (N, L, P), with weights (P, C)."""

    @staticmethod
    def forward(ctx, rows, moved, weights, row, column, height, width):
        ctx.save_for_backward(rows, moved, weights, row, column)
        ctx.size = height, width
        landing = _Landing(moved, row, column, height, width)
        return _interpolate(landing, landing.corners(rows)) @ weights.t()

    @staticmethod
    def backward(ctx, grad):
        grads = _PartSimilarityBackward.run(grad, *ctx.saved_tensors, *ctx.size)
        return *grads, None, None, None, None


class _Once(torch.autograd.Function):
    """A backward that raises when it is itself differentiated."""

    @classmethod
    def run(cls, *arguments):
        # The compiler cannot nest functions, and refuses second derivatives by itself.
        if torch.compiler.is_compiling():
            return cls.forward(None, *arguments)
        return cls.apply(*arguments)

    @staticmethod
    def backward(ctx, *grads):
        refuse_second_backward(ctx, *grads)


class _PartSamplesBackward(_Once):
    @staticmethod
    def forward(ctx, grad, rows, moved, row, column, height, width):
        landing = _Landing(moved, row, column, height, width)
        corners = landing.corners(rows)
        root = _interpolate(landing, corners)
        return _interpolate_backward(landing, rows, corners, root, grad)


class _PartSimilarityBackward(_Once):
    @staticmethod
    def forward(ctx, grad, rows, moved, weights, row, column, height, width):
        landing = _Landing(moved, row, column, height, width)
        corners = landing.corners(rows)
        root = _interpolate(landing, corners)
        weights_grad = grad.flatten(0, 1).t() @ root.flatten(0, 1)
        grads = _interpolate_backward(landing, rows, corners, root, grad @ weights)
        return *grads, weights_grad


def refuse_second_backward(ctx, *grads):
    """Raises: the gradient of a gradient is not defined here."""
    raise RuntimeError(
        "the deformable prototype is differentiable once: its gradient has no gradient"
    )


def check_common(z, offsets, kernel_size, dilation, outside) -> None:
    """Raises the RuntimeErrors of csrc/prototype_ops.cpp, in its words."""
    if z.dim() != 4:
        raise RuntimeError(f"z: expected shape (N, C, H, W), got {list(z.shape)}")
    if z.dtype not in (torch.float32, torch.float64):
        raise RuntimeError(f"z: expected dtype float32 or float64, got {_name(z.dtype)}")
    if min(z.shape[1:]) < 1:
        raise RuntimeError(f"z: expected at least one channel, row and column, got {list(z.shape)}")
    if z.shape[2] * z.shape[3] > MOST_PLACES:
        raise RuntimeError(
            f"z: expected a map of at most {MOST_PLACES} places, got {list(z.shape)}"
        )
    if kernel_size < 1:
        raise RuntimeError(f"kernel_size: expected at least 1, got {kernel_size}")
    if kernel_size > MOST_PARTS_ACROSS:
        raise RuntimeError(f"kernel_size: expected at most {MOST_PARTS_ACROSS}, got {kernel_size}")
    if dilation < 1:
        raise RuntimeError(f"dilation: expected at least 1, got {dilation}")
    if kernel_size % 2 == 0 and dilation % 2 == 1:
        raise RuntimeError(
            f"dilation: expected an even number, since {kernel_size}x{kernel_size} prototypes have "
            f"no part at their centre, got {dilation}"
        )
    if dilation > WIDEST_PROTOTYPE // kernel_size:
        raise RuntimeError(
            f"dilation: expected at most {WIDEST_PROTOTYPE // kernel_size}, got {dilation}"
        )
    if offsets is not None:
        expected = [z.shape[0], 2 * kernel_size * kernel_size, *z.shape[2:]]
        if list(offsets.shape) != expected:
            raise RuntimeError(f"offsets: expected shape {expected}, got {list(offsets.shape)}")
        _check_like("offsets", offsets, z)
    if not abs(outside) < math.inf:  # nor is NaN
        raise RuntimeError(f"outside: expected a finite number, got {outside}")


def check_prototypes(z: Tensor, prototypes: Tensor) -> None:
    if z.dim() != 4:
        raise RuntimeError(f"z: expected shape (N, C, H, W), got {list(z.shape)}")
    shape = prototypes.shape
    if len(shape) != 4 or shape[1] != z.shape[1] or shape[2] != shape[3] or shape[2] < 1:
        raise RuntimeError(f"prototypes: expected shape (P, {z.shape[1]}, K, K), got {list(shape)}")
    _check_like("prototypes", prototypes, z)


def check_centres(z: Tensor, centres: Tensor) -> None:
    if centres.dim() != 2 or centres.shape[0] != z.shape[0]:
        raise RuntimeError(f"centres: expected shape ({z.shape[0]}, Q), got {list(centres.shape)}")
    _check_device("centres", centres, z)
    if centres.dtype != torch.int64:
        raise RuntimeError(f"centres: expected dtype int64, got {_name(centres.dtype)}")
    # Values can be read only where they are known, and cheaply only on the CPU.
    if torch.compiler.is_compiling() or type(centres) is not Tensor:
        return
    places = z.shape[2] * z.shape[3]
    if centres.device.type == "cpu" and centres.numel():
        low, high = (int(value) for value in centres.aminmax())
        if low < 0 or high >= places:
            raise RuntimeError(
                f"centres: expected values in [0, {places}), flat indices into the map, got values "
                f"from {low} to {high}"
            )


def _check_device(name: str, tensor: Tensor, z: Tensor) -> None:
    if tensor.device != z.device:
        raise RuntimeError(f"{name}: expected device {z.device}, as z has, got {tensor.device}")


def _check_like(name: str, tensor: Tensor, z: Tensor) -> None:
    _check_device(name, tensor, z)
    if tensor.dtype != z.dtype:
        raise RuntimeError(
            f"{name}: expected dtype {_name(z.dtype)}, as z has, got {_name(tensor.dtype)}"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
