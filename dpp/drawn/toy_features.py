"""A feature map drawn by hand, for notebooks and examples: a bird as a backbone might see it."""

import torch
from torch import Tensor

BACKGROUND = 0.2  # the value of the background's channel


def draw_bird(places: Tensor, map_size: int, *, width: float = 1.0) -> Tensor:
    """A soft blob for each part in a channel of its own, and one channel for the background.

    `dpp.networks.prototypes.fix_length` makes of it what a prototype is compared with (equation 3).

    Args:
        places: (parts, 2) rows and columns of the parts, whole or fractional.
        map_size: rows and columns of the map.
        width: the squared distance, in cells, at which a blob has fallen to 1/e.

    Returns:
        (1, parts + 1, map_size, map_size)
    """
    grid = torch.stack(torch.meshgrid([torch.arange(map_size)] * 2, indexing="ij"))
    distance = (grid - places[:, :, None, None]).square().sum(1)  # (parts, map_size, map_size)
    blobs = torch.exp(-distance / width)
    return torch.cat([blobs, torch.full_like(blobs[:1], BACKGROUND)])[None]
