"""Charts of numbers: bars, curves, dot plots of tables."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dpp.figures.style import PART_COLOURS

STRIP = 20  # points, of the strip above a panel that holds two lines with the names of phases


def class_balance(
    counts: Mapping[str, np.ndarray], class_names: Sequence[str], title: str = ""
) -> Figure:
    """How many images each class has, as bars, a colour for each split.

    Args:
        counts: (classes,) for each split, by its name.
    """
    figure, axes = pyplot.subplots(
        figsize=(6.5, 0.7 + 0.22 * len(class_names)), layout="constrained"
    )
    left = np.zeros(len(class_names))
    for (split, numbers), colour in zip(counts.items(), PART_COLOURS[1:], strict=False):
        axes.barh(class_names, numbers, left=left, color=colour, label=split)
        left += numbers
    axes.invert_yaxis()
    axes.set_xlabel("images")
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def lines(
    across: Sequence[float], curves: Mapping[str, Sequence[float]], labels: tuple[str, str]
) -> Figure:
    """One line for each curve, named at its right end; labels of the two axes."""
    figure, axes = pyplot.subplots(figsize=(5.5, 3), layout="constrained")
    for (name, heights), colour in zip(curves.items(), PART_COLOURS, strict=False):
        axes.plot(across, heights, marker="o", color=colour)
        axes.annotate(
            name, (across[-1], heights[-1]), (6, -3), textcoords="offset points", color=colour
        )
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def growth_curves(points: pd.DataFrame, axis: str) -> Figure:
    """Seconds and megabytes of tasks by a size, both axes logarithmic; dashed: in proportion.

    Args:
        points: rows with `task`, `size`, `seconds` and `bytes`.
        axis: what the size is of.
    """
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    costs = {"seconds": points.seconds, "megabytes": points.bytes / 1e6}
    for panel, (label, values) in zip(panels, costs.items(), strict=True):
        curves = points.assign(cost=values).groupby("task", sort=False)
        for (task, curve), colour in zip(curves, PART_COLOURS, strict=False):
            panel.plot(
                curve["size"], curve.cost, marker="o", markersize=4, color=colour, label=task
            )
        ends = np.array([points["size"].min(), points["size"].max()], float)
        panel.plot(ends, values.min() * ends / ends[0], "--", color="grey", linewidth=1)
        panel.set(xscale="log", yscale="log", xlabel=axis, ylabel=label)
        panel.xaxis.set_major_formatter("{x:,.0f}")  # matplotlib's own has mathematics in it
        panel.yaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        panel.spines[["top", "right"]].set_visible(False)
    panels[1].legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def grouped_bars(table: pd.DataFrame, label: str) -> Figure:
    """A group of bars for each row of a table, a colour for each column, values above the bars."""
    figure, axes = pyplot.subplots(figsize=(1.5 + 2.4 * len(table), 3), layout="constrained")
    width = 0.8 / len(table.columns)
    for place, (name, heights) in enumerate(table.items()):
        across = np.arange(len(table)) + (place + 0.5) * width - 0.4
        bars = axes.bar(across, heights, 0.9 * width, color=PART_COLOURS[place], label=name)
        axes.bar_label(bars, fmt="%.1f", fontsize=8)
    axes.set_xticks(range(len(table)), table.index)
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def training_curves(
    metrics: pd.DataFrame, panels: Mapping[str, Sequence[str]], across: int = 3
) -> Figure:
    """Small panels over the epochs of a run, the phases named in a strip above each.

    Args:
        metrics: of a run; dashed lines mark the epochs of its projections.
        panels: columns to draw in each panel, by the panel's title.
        across: panels side by side.
    """
    epochs = metrics[metrics.stage == "train"]
    rows = -(-len(panels) // across)
    size = (3 * across, 2.5 * rows)
    figure, grid = pyplot.subplots(
        rows, across, figsize=size, sharex=True, squeeze=False, layout="constrained"
    )
    for axes, (title, names) in zip(grid.flat, panels.items(), strict=False):
        _name_phases(axes, epochs)
        for name, colour in zip(names, (PART_COLOURS[4], PART_COLOURS[5]), strict=False):
            axes.plot(epochs.epoch, epochs[name], color=colour, label=name.replace("_", " "))
        for epoch in metrics.epoch[metrics.stage == "project"]:
            axes.axvline(epoch, color="0.3", linewidth=0.8, linestyle="--")
        if len(names) > 1:
            axes.legend(frameon=False, fontsize=8)
        axes.set_title(title, fontsize=10, pad=STRIP + 4)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel("epoch")
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    return figure


def _name_phases(axes: Axes, epochs: pd.DataFrame) -> None:
    """Every other phase on grey; names in two lines above, a short one's from its start."""
    top = axes.get_xaxis_transform()  # x in epochs, y in fractions of the axes
    for place, (phase, group) in enumerate(epochs.groupby("phase", sort=False)):
        first, last = group.epoch.min() - 0.5, group.epoch.max() + 0.5
        if place % 2 == 0:
            axes.axvspan(first, last, color="0.94", zorder=0)
        text = {"textcoords": "offset points", "va": "center", "fontsize": 7, "color": "0.35"}
        line, short = STRIP * (0.25 if place % 2 else 0.75), 4 * len(group) < len(epochs)
        middle, side = (first, "left") if short else ((first + last) / 2, "center")
        axes.annotate(phase, (middle, 1), (0, line), xycoords=top, ha=side, **text)


def reported_and_regenerated(*frames: pd.DataFrame) -> Figure:
    """Accuracies as reported beside those regenerated: a panel for each column of a table.

    All panels have the same x axis, so that columns can be compared.

    Args:
        frames: of `tables.compare`, of the same table, one for each profile. A bar spans one
            standard deviation over seeds to each side.
    """
    page = frames[0].drop_duplicates(["row", "column"])
    columns, rows = list(page.column.unique()), list(page.row.unique())
    figure, grid = pyplot.subplots(
        1,
        len(columns),
        figsize=(2.6 + 1.5 * max(len(columns), 2), 1.2 + (0.2 + 0.06 * len(frames)) * len(rows)),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axes, column in zip(grid[0], columns, strict=True):
        _draw_reported(axes, page[page.column == column], rows)
        for place, frame in enumerate(frames):
            cells = frame[frame.column == column].drop_duplicates("row")
            _draw_regenerated(axes, cells, rows, place, profile=_profiles(frame))
        axes.set_title(column, fontsize=10)
        axes.grid(color="0.92", zorder=0)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].margins(x=0.08)
    grid[0, 0].xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    grid[0, 0].set_yticks(range(len(rows)), rows, fontsize=9)
    grid[0, 0].set_ylim(len(rows) - 0.5, -0.5)
    figure.supxlabel("accuracy, %", fontsize=10)
    handles, labels = grid[0, -1].get_legend_handles_labels()
    style = {"loc": "outside upper center", "ncols": len(handles), "frameon": False}
    figure.legend(handles, labels, fontsize=9, **style)
    return figure


def _profiles(frame: pd.DataFrame) -> str:
    return ", ".join(["regenerated", *filter(None, frame.profile.unique())])


def _draw_reported(axes: Axes, cells: pd.DataFrame, rows: Sequence[str]) -> None:
    down = pd.Categorical(cells.row, categories=rows).codes - 0.12
    style = {"s": 36, "marker": "D", "color": "0.45", "edgecolor": "white", "linewidth": 0.5}
    axes.scatter(cells.reported, down, label="reported", zorder=2, **style)


def _draw_regenerated(
    axes: Axes, cells: pd.DataFrame, rows: Sequence[str], place: int, profile: str
) -> None:
    """The means of one profile's runs; each profile has its marker, colour and height."""
    down = pd.Categorical(cells.row, categories=rows).codes + 0.12 + 0.2 * place
    colour, marker = PART_COLOURS[4 + place], "os"[place % 2]
    style = {"s": 36, "marker": marker, "color": colour, "edgecolor": "white", "linewidth": 0.5}
    axes.scatter(cells["mean"], down, label=profile, zorder=3, **style)
    spread = cells.deviation.fillna(0)
    axes.errorbar(cells["mean"], down, xerr=spread, fmt="none", ecolor=colour, elinewidth=1.2)
