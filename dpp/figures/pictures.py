"""Pictures in rows, with parts and boxes drawn over them; toy feature maps."""

from collections.abc import Sequence

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dpp.figures.style import PART_COLOURS, PICTURE_DPI, fewer_colours


def draw_features(axes: Axes, features: np.ndarray, title: str = "") -> None:
    """Paints a toy map: channel i in the colour of part i, what is left in white.

    Args:
        features: (C, H, W), with at most as many channels as there are colours; values up to 1.
    """
    ink = np.array([to_rgb(colour) for colour in PART_COLOURS[: len(features)]])
    shares = features[..., None].clip(0, 1)  # (C, H, W, 1)
    picture = 1 - (shares * (1 - ink[:, None, None, :])).sum(axis=0)
    axes.imshow(picture.clip(0, 1))
    axes.set_title(title)
    axes.set_xticks([])
    axes.set_yticks([])


def draw_parts(axes: Axes, places: np.ndarray, centre: tuple[int, int]) -> None:
    """Outlines each part's cell in its colour and ties it to the prototype's centre.

    Args:
        places: (parts, 2), row and column of each part, in cells.
        centre: row and column at which the prototype is applied.
    """
    for (row, column), colour in zip(places, PART_COLOURS, strict=False):
        axes.plot([centre[1], column], [centre[0], row], color="0.35", linewidth=1, zorder=2)
        for width, edge in ((4, "black"), (2, colour)):
            corner = (column - 0.5, row - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, lw=width, ec=edge, zorder=3))
    axes.plot(centre[1], centre[0], marker="+", color="0.1", markersize=10, zorder=4)


def picture_grid(
    pictures: Sequence[np.ndarray],
    titles: Sequence[str] = (),
    columns: int = 6,
    side: float = 1.5,
    colours: int = 32,
) -> tuple[Figure, list[Axes]]:
    """Pictures in rows.

    Args:
        pictures: each (H, W, 3) uint8. Axes count pixels from the top left corner, as records do:
            the first pixel goes from 0 to 1.
        titles: one for each picture, or none.
        side: width of a picture in inches.
        colours: how many each picture keeps, so that a notebook full of them stays small.

    Returns:
        The figure, and one axes for each picture.
    """
    rows = -(-len(pictures) // columns)
    height = side + (0.2 if titles else 0)
    figure, grid = pyplot.subplots(
        rows,
        columns,
        figsize=(columns * side, rows * height),
        dpi=PICTURE_DPI,
        squeeze=False,
        layout="constrained",
    )
    for axes in grid.flat:
        axes.axis("off")
    used = list(grid.flat[: len(pictures)])
    for place, (axes, picture) in enumerate(zip(used, pictures, strict=True)):
        extent = (0, picture.shape[1], picture.shape[0], 0)
        shown = fewer_colours(picture, colours, int(side * PICTURE_DPI))
        axes.imshow(shown, extent=extent, interpolation="nearest")
        if titles:
            axes.set_title(titles[place], fontsize=8)
    return figure, used


def mark_parts(
    axes: Axes, places: np.ndarray, names: Sequence[str] = (), colour: str = PART_COLOURS[0]
) -> None:
    """Dots at (parts, 2) places x, y, with names beside them if given."""
    for place, (x, y) in enumerate(places):
        axes.plot(x, y, "o", color=colour, markersize=4, markeredgecolor="white")
        if names:
            style = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.5}
            axes.annotate(
                names[place], (x, y), (3, 3), textcoords="offset points", fontsize=6, bbox=style
            )


def mark_box(axes: Axes, box: Sequence[float], colour: str = "white") -> None:
    """Outlines left, top, right, bottom."""
    left, top, right, bottom = box
    shape = {"fill": False, "linewidth": 1.5, "edgecolor": colour}
    axes.add_patch(Rectangle((left, top), right - left, bottom - top, **shape))
