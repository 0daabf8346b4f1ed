"""The shapes of Figure 3: maps as cuboids, vectors as columns, prototypes as grids, arrows."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Polygon, Rectangle

from dpp.figures.marked_pictures import SMALL, TEXT, part_style


def draw_block(axes: Axes, shape, label: str, x: float, y: float) -> float:
    """A cuboid for a map, a column for a vector, its shape below; returns half its width."""
    draw = _draw_cuboid if len(shape) == 3 else _draw_column
    bottom, half = draw(axes, shape, x, y)
    _write_shape(axes, shape, label, x, bottom)
    return half


def _write_shape(axes: Axes, shape, label: str, x: float, bottom: float) -> None:
    style = {"ha": "center", "va": "center"}
    axes.text(x, bottom - 0.1, label, fontsize=SMALL, **style)
    text = " × ".join(map(str, shape))
    axes.text(x, bottom - 0.23, text, fontsize=SMALL - 0.5, color="0.35", **style)


def _draw_cuboid(axes: Axes, shape, x: float, y: float) -> tuple[float, float]:
    """Sides grow with the logarithm of the map's side and channels."""
    side = 0.075 * np.log2(max(shape[1], 2)) + 0.05
    deep = 0.022 * np.log2(max(shape[0], 2)) + 0.03
    left, bottom = x - (side + deep) / 2, y - (side + deep) / 2
    corners = np.array([[0, 0], [side, 0], [side, side], [0, side]]) + (left, bottom)
    faces = (
        (corners, "#CFE3F1"),
        (np.array([corners[3], corners[2], corners[2] + deep, corners[3] + deep]), "#E4F0F8"),
        (np.array([corners[1], corners[2], corners[2] + deep, corners[1] + deep]), "#A5C9E1"),
    )
    for face, colour in faces:
        axes.add_patch(Polygon(face, facecolor=colour, edgecolor="black", linewidth=0.7))
    return bottom, (side + deep) / 2


def _draw_column(axes: Axes, shape, x: float, y: float) -> tuple[float, float]:
    tall = 0.08 * np.log2(max(shape[0], 2)) + 0.1
    style = {"facecolor": "#F6D9A8", "edgecolor": "black", "linewidth": 0.7}
    axes.add_patch(Rectangle((x - 0.06, y - tall / 2), 0.12, tall, **style))
    return y - tall / 2, 0.06


def draw_prototypes(axes: Axes, shape, label: str, x: float, y: float) -> None:
    """Three prototypes, their parts in their colours."""
    side = shape[-1] if len(shape) == 4 else 1
    cell = 0.26 / side
    for number in range(3):
        for place in range(side * side):
            row, column = divmod(place, side)
            corner = (x - 0.5 + 0.34 * number + column * cell, y + 0.18 - (row + 1) * cell)
            style = {"facecolor": part_style(place)[0], "edgecolor": "white", "linewidth": 0.5}
            axes.add_patch(Rectangle(corner, cell, cell, **style))
    axes.text(x + 0.54, y + 0.05, "…", ha="center", va="center", fontsize=TEXT)
    _write_shape(axes, shape, label, x, y - 0.08)


def draw_arrow(axes: Axes, start, end, text: str = "") -> None:
    style = {"arrowstyle": "-|>", "linewidth": 0.9, "color": "0.25", "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=style)
    above = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 0.05
    axes.text(*above, text, ha="center", va="bottom", fontsize=SMALL, color="0.25")
