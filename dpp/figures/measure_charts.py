"""Charts of measures: each system's value beside what chance gives it."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import pyplot
from matplotlib.figure import Figure

from dpp.figures.style import PART_COLOURS


def measures(frame: pd.DataFrame, panels: Sequence[tuple[str, str]]) -> Figure:
    """A panel for each measure: dots with intervals, rings for random weights, crosses for places.

    Args:
        frame: a row for each system and measure, with the columns `system`, `measure`, `at`,
            `value`, `low`, `high`, `unit`, `random_weights` and `random_places`.
        panels: the measure and place of each.
    """
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(3.1 * columns, 2.2 * rows), layout="constrained", squeeze=False
    )
    for axes, (measure, at) in zip(grid.flat, panels, strict=False):
        own = frame[(frame.measure == measure) & (frame["at"] == at)].dropna(subset="value")
        down = np.arange(len(own))
        known = own.low.notna().to_numpy()
        axes.hlines(down[known], own.low[known], own.high[known], color=PART_COLOURS[4], lw=2)
        axes.plot(own.value, down, "o", color=PART_COLOURS[4], label="measured, 95 % interval")
        given = {"linestyle": "none", "color": PART_COLOURS[5], "markerfacecolor": "none"}
        axes.plot(own.random_weights, down, marker="o", label="random weights", **given)
        axes.plot(own.random_places, down, marker="x", label="random places", **given)
        axes.set_yticks(down, own.system)
        axes.invert_yaxis()
        axes.margins(y=0.15)
        unit = f", {own.unit.iloc[0]}" if len(own) and own.unit.iloc[0] else ""
        axes.set_title(f"{measure}{unit}" + (" at parts" if at == "parts" else ""), fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    handles, names = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    return figure
