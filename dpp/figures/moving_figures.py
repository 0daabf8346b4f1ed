"""A prototype on its source, at rest and moved, with the true parts of the bird: one picture."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import Normal, Stroke

from dpp.figures.marked_pictures import (
    PAGE,
    TEXT,
    Marked,
    draw_marked,
    new_figure,
    part_style,
    row_height,
)

CROSS = {"marker": "x", "linestyle": "", "color": "white", "markersize": 7, "markeredgewidth": 1.7}


class Panel(NamedTuple):
    """One image with the parts of a prototype.

    Args:
        marked: the picture and the parts' boxes.
        true_places: (parts, 2), row and column of each part's true part, in pixels; NaN if hidden.
        on: whether each part lies on its true part.
    """

    marked: Marked
    true_places: np.ndarray
    on: tuple[bool, ...]


def moving_parts(panels: Mapping[str, Panel], names: Sequence[str]) -> Figure:
    """Images side by side, with the box of each part, and a cross where each true part is.

    Args:
        panels: by title.
        names: of the parts' true parts, for the legend.
    """
    side = PAGE / len(panels) - 0.1
    pictures = [panel.marked.picture for panel in panels.values()]
    figure = new_figure(PAGE, row_height(pictures, side) + 0.8)
    figure.get_layout_engine().set(h_pad=0.1)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, panel) in zip(grid, panels.items(), strict=True):
        draw_marked(axes, panel.marked, stroke=2)
        axes.set_title(f"{title}\n{sum(panel.on)} of {len(panel.on)} on their part", fontsize=TEXT)
        for row, column in panel.true_places:
            (cross,) = axes.plot(column, row, **CROSS, zorder=5, clip_on=False)
            cross.set_path_effects([Stroke(linewidth=3.5, foreground="black"), Normal()])
    boxes = [_handle(part_style(place)[0]) for place in range(len(names))]
    words = [f"part {place + 1}: {name}" for place, name in enumerate(names)]
    style = {"loc": "outside lower center", "ncols": len(names) + 1, "frameon": False}
    cross = Line2D([], [], **(CROSS | {"color": "black"}))
    figure.legend([*boxes, cross], [*words, "where these are"], fontsize=TEXT, **style)
    return figure


def _handle(colour: str) -> Line2D:
    """An open square for the legend."""
    style = {"linestyle": "", "marker": "s", "markersize": 8, "markeredgewidth": 2}
    return Line2D([], [], markerfacecolor="none", markeredgecolor=colour, **style)
