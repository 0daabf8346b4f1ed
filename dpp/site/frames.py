"""Every bird of the demo in every pose of a grid, in few bytes.

A bird's frames are an array over the positions of head, wing and tail. Where one joint moves, the
pixels that another moves stay as they are, so the differences along all three joints, one after the
other, are zero nearly everywhere. They are whole numbers modulo 256: sums give back every pixel.
"""

import base64
import itertools
import zlib
from typing import NamedTuple

import numpy as np

from dpp.drawn import posebirds
from dpp.drawn.species import Word
from dpp.drawn.studio import generator

SPLIT = "demo"  # whose individuals are in no data set
NOD = 0.4  # how far the head turns on its neck for a degree of the neck


class Grid(NamedTuple):
    """The positions of the three joints."""

    head: tuple[float, ...]  # degrees, up
    wing: tuple[float, ...]  # 0 folded, 1 raised
    tail: tuple[float, ...]  # degrees, up

    @property
    def shape(self) -> tuple[int, int, int]:
        return tuple(map(len, self))


GRID = Grid(
    head=tuple(range(-50, 51, 10)),
    wing=(0, 0.25, 0.5, 0.75, 1),
    tail=tuple(range(-48, 49, 16)),
)


def draw_frames(kind: Word, grid: Grid, size: int, index: int = 0) -> np.ndarray:
    """One individual of a class in all poses of a grid.

    Args:
        kind: the class.
        grid: of the poses.
        size: side of the pictures.
        index: of the individual.

    Returns:
        (heads, wings, tails, size, size, 3) uint8.
    """
    frames = [
        draw_frame(kind, head, wing, tail, size, index)
        for head, wing, tail in itertools.product(*grid)
    ]
    return np.stack(frames).reshape(*grid.shape, size, size, 3)


def draw_frame(kind: Word, head: float, wing: float, tail: float, size: int, index: int = 0):
    """One pose of an individual, from the pose that all birds have without pose variation."""
    rng = generator("posebirds", 0, SPLIT, kind, index)
    turned = {"neck": head, "head": NOD * head, "wing": wing, "tail": tail}
    return posebirds.draw_image(kind, rng, size, 0.0, turned).pixels


def differences(frames: np.ndarray, axes: int = 3) -> np.ndarray:
    """Differences along the first axes, modulo 256; the first of each axis stays as it is."""
    changes = frames.copy()
    for axis in range(axes):
        along = np.moveaxis(changes, axis, 0)
        along[1:] = along[1:] - along[:-1]
    return changes


def pack(values: np.ndarray) -> str:
    """An array's bytes as `page/unpack.js` reads them: compressed by zlib, in base64."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values).tobytes(), 9)).decode()
