"""Distributions of angles on the hypersphere: arrays in, figures out."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpp.figures.marked_pictures import PAGE, SMALL, TEXT, new_figure
from dpp.figures.style import PART_COLOURS

OWN, OTHER = PART_COLOURS[4], PART_COLOURS[5]
BINS = 60

if TYPE_CHECKING:  # analysis loads runs and networks, which drawing does not need
    from dpp.analysis.latent_space import Angles


def angles(measured: Mapping[str, Angles], margin: float) -> Figure:
    """Angles of images to their own class and to the nearest other, a row for each network.

    Args:
        measured: by the networks' names.
        margin: phi of equation 12; a dashed outline shows the angles to other classes less phi.
    """
    figure = new_figure(PAGE, 0.75 + 0.85 * len(measured))
    grid = figure.subplots(len(measured), 1, sharex=True, squeeze=False)[:, 0]
    most = max(max(one.own.max(), one.other.max()) for one in measured.values())
    edges = np.linspace(0, 1.03 * most, BINS + 1)
    for axes, (name, one) in zip(grid, measured.items(), strict=True):
        _draw_angles(axes, one, margin, edges)
        label = {"rotation": 0, "ha": "right", "va": "center", "fontsize": TEXT}
        axes.set_ylabel(fill(name, 12), **label)
    grid[-1].set_xlabel("angle to the nearest prototype, radians", fontsize=TEXT)
    handles, texts = grid[0].get_legend_handles_labels()
    style = {"loc": "outside upper center", "frameon": False, "fontsize": TEXT}
    figure.legend(handles, texts, ncols=len(texts), **style)
    return figure


def _draw_angles(axes: Axes, one: Angles, margin: float, edges: np.ndarray) -> None:
    axes.hist(one.own, edges, color=OWN, alpha=0.75, label="own class")
    axes.hist(one.other, edges, color=OTHER, alpha=0.6, label="nearest other class")
    dashed = {"histtype": "step", "color": "black", "linewidth": 0.9, "linestyle": "--"}
    axes.hist(one.inflated(margin), edges, label=f"other class less φ = {margin:g}", **dashed)
    top = axes.get_ylim()[1]
    for values, colour in ((one.own, OWN), (one.other, OTHER)):
        axes.plot(values.mean(), top, "v", color=colour, markersize=5, clip_on=False)
    axes.set_ylim(0, top)
    axes.set_yticks([])
    axes.tick_params(labelsize=SMALL)
    axes.spines[["top", "right", "left"]].set_visible(False)
