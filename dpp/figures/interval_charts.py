"""Curves of means with their intervals, in small panels side by side."""

from collections.abc import Collection, Mapping

import pandas as pd
from matplotlib import pyplot
from matplotlib.figure import Figure

from dpp.figures.style import PART_COLOURS

COLOURS = [PART_COLOURS[place] for place in (4, 5, 2, 3, 0, 1)]


def interval_curves(
    panels: Mapping[str, Mapping[str, pd.DataFrame]],
    across: str,
    logarithmic: Collection[str] = (),
) -> Figure:
    """A panel for each measure, in it a curve for each name, with bars where intervals are known.

    Args:
        panels: by the panel's title, then by the curve's name: a frame with a column `mean`, and
            if known `low` and `high`, indexed by what lies across. A name has one colour in all
            panels.
        across: the label of the x axis.
        logarithmic: titles of panels whose y axis is.
    """
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    colours = dict(zip(names, COLOURS, strict=False))
    width = 3.1 * len(panels) + 0.3
    figure, grid = pyplot.subplots(
        1, len(panels), figsize=(width, 3.1), squeeze=False, layout="constrained"
    )
    shift = 0.004 * len(panels)  # of the x axis, so that bars do not hide one another
    for axes, (title, curves) in zip(grid[0], panels.items(), strict=True):
        for place, (name, frame) in enumerate(curves.items()):
            wide = float(frame.index.max() - frame.index.min()) if len(frame) else 0.0
            barred = "low" in frame and frame.low.notna().any()
            x = frame.index.to_numpy(float)
            x = x + barred * shift * wide * (place - (len(curves) - 1) / 2)
            style = {"color": colours[name], "marker": "o", "markersize": 3.5, "linewidth": 1.3}
            axes.plot(x, frame["mean"], label=name, **style)
            if barred:
                ends = [frame["mean"] - frame.low, frame.high - frame["mean"]]
                axes.errorbar(x, frame["mean"], ends, fmt="none", ecolor=colours[name], capsize=2)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(across)
        if title in logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")  # its own would be a formula
        axes.spines[["top", "right"]].set_visible(False)
    handles = {}
    for axes in grid[0]:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if handles:
        style = {"loc": "outside upper center", "ncols": len(handles), "frameon": False}
        figure.legend(handles.values(), handles.keys(), fontsize=9, **style)
    return figure
