"""Drawings in named layers: each can be left out, and it is known which pixels each one covers.

A plain `Canvas` takes no notice of layers. All that is drawn in a layer which is left out is still
worked out, random numbers included, so that all other layers stay as they are.
"""

import functools
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import numpy as np
from PIL import Image, ImageDraw

from dpp.drawn.drawing import SUPERSAMPLE, Canvas


def in_layer(name: str):
    """Decorates a function whose first argument is a canvas: all that it draws is in a layer."""

    def decorate(draw):
        @functools.wraps(draw)
        def drawn_in_layer(canvas: Canvas, *arguments, **options):
            with canvas.layer(name):
                return draw(canvas, *arguments, **options)

        return drawn_in_layer

    return decorate


class LayeredCanvas(Canvas):
    """A canvas that leaves some layers out and knows the topmost layer of each of its pixels.

    Layers nest: what is drawn belongs to the innermost one, and is left out with any of them.

    Args:
        size, backdrop: as of a `Canvas`.
        without: names of layers to leave out.
    """

    def __init__(self, size: int, backdrop: Image.Image, without: Collection[str] = ()):
        super().__init__(size, backdrop)
        self._without, self._open = frozenset(without), []
        self._numbers: dict[str, int] = {}  # of the layers, from 1; 0 is the backdrop
        self._owner = Image.new("L", (self.side, self.side), 0)
        self._draw_owner = ImageDraw.Draw(self._owner)

    @contextmanager
    def layer(self, name: str) -> Iterator[None]:
        self._open.append(name)
        try:
            yield
        finally:
            self._open.pop()

    @property
    def _left_out(self) -> bool:
        return not self._without.isdisjoint(self._open)

    def polygon(self, points, colour, height=None) -> None:
        if self._left_out:
            return
        points = list(points)
        super().polygon(points, colour, height)
        if self._open:
            number = self._numbers.setdefault(self._open[-1], len(self._numbers) + 1)
            corners = [(round(x * self.side), round(y * self.side)) for x, y in points]
            self._draw_owner.polygon(corners, number)

    def note_part(self, name, place) -> None:
        if not self._left_out:
            super().note_part(name, place)

    def masks(self) -> dict[str, np.ndarray]:
        """Of each layer that was drawn, the share of each pixel where it is on top.

        Returns:
            (size, size) float32, from 0 to 1, by the layers' names.
        """
        owner, size = np.asarray(self._owner), self.size
        shares = {}
        for name, number in self._numbers.items():
            rows = (owner == number).reshape(size, SUPERSAMPLE, -1).sum(axis=1, dtype=np.uint8)
            counts = rows.reshape(size, size, SUPERSAMPLE).sum(axis=2, dtype=np.float32)
            shares[name] = counts / SUPERSAMPLE**2
        return shares
