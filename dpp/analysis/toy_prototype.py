"""A prototype of four parts on feature maps drawn by hand: small enough to look at."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpp import ops
from dpp.drawn.toy_features import draw_bird
from dpp.networks.prototypes import fix_length
from dpp.reference import resting_places

PARTS = 4
KERNEL, DILATION = 2, 2  # parts rest at (-1, -1), (-1, 1), (1, -1), (1, 1)
LENGTH = 1 / KERNEL  # r = 1/sqrt(parts)
CERTAIN = 0.6  # above this share a written offset reaches the whole way to its part
REACH = 32.0  # squared cells over which the written offsets fade


@dataclass(frozen=True, eq=False)
class ToyMatch:
    """Where a prototype fits a toy map best.

    Args:
        features: (1, 6, H, W), what it was compared with.
        similarity: at the best centre (equation 8).
        centre: row and column.
        parts: (4, 2), row and column of each part, whole or fractional.
    """

    features: Tensor
    similarity: float
    centre: tuple[int, int]
    parts: np.ndarray


def rest_at(centre: tuple[int, int]) -> Tensor:
    """Where the four parts rest around a centre, (4, 2)."""
    return torch.tensor(resting_places(KERNEL, DILATION)).float() + torch.tensor(centre)


def bird_map(places: Tensor, map_size: int, *, width: float = 1.0) -> Tensor:
    """A toy bird's features on the hypersphere (equation 3): (1, 6, map_size, map_size)."""
    return fix_length(draw_bird(places, map_size, width=width), LENGTH)


def take_prototype(features: Tensor, centre: tuple[int, int]) -> Tensor:
    """The features under four parts at rest, as projection takes them: (1, 6, 2, 2)."""
    place = torch.tensor([[centre[0] * features.shape[3] + centre[1]]])
    return ops.sample_parts(features, None, place, kernel_size=KERNEL, dilation=DILATION)[:, 0]


def offsets_at_centre(moves: Tensor, centre: tuple[int, int], map_size: int) -> Tensor:
    """Offsets (1, 8, map_size, map_size) that are zero but at one centre; moves (4, 2)."""
    offsets = torch.zeros(1, 2 * PARTS, map_size, map_size)
    offsets[0, :, centre[0], centre[1]] = moves.flatten().float()
    return offsets


def reaching_offsets(targets: Tensor, map_size: int) -> Tensor:
    """An offset field written by hand: near a target a part reaches it, far away it stays.

    Args:
        targets: (4, 2), where the parts of the bird are.

    Returns:
        (1, 8, map_size, map_size)
    """
    grid = torch.stack(torch.meshgrid([torch.arange(map_size)] * 2, indexing="ij")).float()
    gap = (targets - rest_at((0, 0)))[:, :, None, None] - grid  # (4, 2, H, W)
    share = torch.exp(-gap.square().sum(1, keepdim=True) / REACH)
    return torch.where(share > CERTAIN, gap, gap * share).reshape(1, 2 * PARTS, map_size, map_size)


def best_match(features: Tensor, prototype: Tensor, offsets: Tensor | None = None) -> ToyMatch:
    """Where one prototype fits best, rigid unless there are offsets."""
    score, place = ops.max_similarity(features, offsets, prototype, dilation=DILATION)
    centre = divmod(place.item(), features.shape[3])
    parts = rest_at(centre)
    if offsets is not None:
        parts = parts + offsets[0, :, centre[0], centre[1]].reshape(PARTS, 2)
    return ToyMatch(features, score.item(), centre, parts.double().numpy())


def lengths_under_parts(features: Tensor, centre: tuple[int, int], moves: Tensor) -> Tensor:
    """The lengths of samples whose parts moved down so far (moves,): (moves, 4)."""
    count, size = len(moves), features.shape[3]
    field = torch.zeros(count, 2 * PARTS, *features.shape[2:])
    field[:, 0::2] = moves[:, None, None, None]
    centres = torch.full((count, 1), centre[0] * size + centre[1])
    maps = features.expand(count, -1, -1, -1)
    samples = ops.sample_parts(maps, field, centres, kernel_size=KERNEL, dilation=DILATION)
    return samples.norm(dim=2).flatten(1)
