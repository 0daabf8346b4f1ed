"""Charts that explain interpolation, gradients and offsets, in notebooks 01 to 03."""

import numpy as np
import pandas as pd
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Arc

from dpp.figures.style import PART_COLOURS

OURS, OTHER = PART_COLOURS[4], PART_COLOURS[5]  # the paper's way, and what it is compared with
BARS = (4, 2, 1, 5)


def interpolation(share: np.ndarray, bilinear: np.ndarray, squares: np.ndarray) -> Figure:
    """Theorem 3.1: on the left between two vectors, on the right the lengths between four.

    Args:
        share: (S,), fractions of a cell.
        bilinear: (S,), lengths by plain bilinear interpolation, as shares of r.
        squares: (S,), lengths by interpolation of the squares.
    """
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(8.4, 3.2), width_ratios=(1, 1.6), layout="constrained"
    )
    _draw_quarter(left)
    right.plot(share, squares, color=OURS, label="root of interpolated squares")
    right.plot(share, bilinear, "--", color=OTHER, label="bilinear")
    right.set(xlabel="α = β, fraction of a cell", ylabel="length / r", ylim=(0, 1.1))
    right.legend(frameon=False, loc="lower left")
    right.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_quarter(axes: Axes) -> None:
    """Half way between two orthogonal vectors: on the chord, and on the arc."""
    axes.add_patch(Arc((0, 0), 2, 2, theta1=0, theta2=90, color=OURS, linewidth=1.6))
    axes.plot([0, 1], [1, 0], "--", color=OTHER, linewidth=1.2)
    root = 0.5**0.5
    arrows = ((0, 1, "0.3", "ẑ₁"), (1, 0, "0.3", "ẑ₂"))
    arrows += ((root, root, OURS, "root of the\nmean square"), (0.5, 0.5, OTHER, "mean"))
    for x, y, colour, name in arrows:
        style = {"arrowstyle": "-|>", "color": colour, "shrinkA": 0, "shrinkB": 0, "lw": 1.6}
        axes.annotate("", (x, y), (0, 0), arrowprops=style)
        away = (-14, -2) if name == "mean" else (4, 3)
        aligned = "right" if name == "mean" else "left"
        axes.annotate(
            name, (x, y), away, textcoords="offset points", color=colour, fontsize=8, ha=aligned
        )
    axes.set(xlim=(-0.05, 1.35), ylim=(-0.05, 1.2), xticks=[], yticks=[], aspect="equal")
    axes.set_title("half way between two vectors", fontsize=10)
    axes.spines[:].set_visible(False)


def singular_slope(
    offsets: np.ndarray, true: np.ndarray, bounded: np.ndarray, floor: float
) -> Figure:
    """The offset gradient near a whole cell, without and with a floor; all (S,)."""
    figure, axes = pyplot.subplots(figsize=(6, 2.6), layout="constrained")
    axes.loglog(offsets, true, "--", color=OTHER, label="true: 1/(2√Δ)")
    axes.loglog(offsets, bounded, color=OURS, label=f"the operator's, floor {floor:g}")
    for axis in (axes.xaxis, axes.yaxis):  # the usual labels are formulas, which are not parsed
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    axes.set(xlabel="offset Δ, in cells", ylabel="∂similarity / ∂Δ")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def slopes_against_truth(slopes: pd.DataFrame, truth: str) -> Figure:
    """Every column of a table against one of them, as dots."""
    figure, axes = pyplot.subplots(figsize=(4.4, 4), layout="constrained")
    ways = slopes.columns.drop(truth)[::-1]
    for name, colour in zip(ways, (OTHER, OURS), strict=False):
        axes.scatter(slopes[truth], slopes[name], s=3, color=colour, label=name)
    axes.set(xlabel=truth, ylabel="offset gradient")
    axes.legend(frameon=False, markerscale=4)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def relative_times(relative: pd.DataFrame) -> Figure:
    """Times relative to a bound, a group of bars for each case; 1 is the bound."""
    figure, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
    relative.plot.bar(ax=axes, logy=True, color=[PART_COLOURS[place] for place in BARS], rot=0)
    axes.axhline(1, color="0.3", linewidth=1, linestyle="--")
    axes.set(xlabel="case", ylabel="time / three bare products")
    axes.legend(frameon=False, title=None)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def moved_against_rest(effect: pd.DataFrame) -> Figure:
    """What moving the parts is worth: similarities image by image, and the gains as curves.

    Args:
        effect: of `dpp.analysis.offset_effect.effect_of_offsets`.
    """
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    ends = [effect[["moved", "at_rest"]].min().min(), 1]
    left.plot(ends, ends, color="0.6", linewidth=1)
    left.scatter(effect.at_rest, effect.moved, s=6, color=OURS)
    left.set(xlabel="similarity, parts at rest", ylabel="similarity, parts moved")
    shares = np.arange(1, len(effect) + 1) / len(effect)
    for name, colour in (("moved", OURS), ("searched", OTHER)):
        gains = np.sort(effect[name] - effect.at_rest)
        label = {"moved": "as the network moves them", "searched": "best cell in reach"}[name]
        right.plot(gains, shares, color=colour, label=label)
    right.axvline(0, color="0.6", linewidth=1)
    right.set(xlabel="similarity gained over parts at rest", ylabel="share of images")
    right.legend(frameon=False, loc="upper left")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure
