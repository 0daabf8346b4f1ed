"""Arrays in, matplotlib out. Nothing here computes anything that is not about drawing."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

# Okabe and Ito's colours, which colour-blind people can tell apart, and a grey for the ninth part.
PART_COLOURS = (
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#CC79A7",
    "#0072B2",
    "#D55E00",
    "#F0E442",
    "#000000",
    "#999999",
)


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
        for width, edge in ((5, "white"), (2.5, colour)):
            corner = (column - 0.5, row - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, lw=width, ec=edge, zorder=3))
    axes.plot(centre[1], centre[0], marker="+", color="0.1", markersize=10, zorder=4)
