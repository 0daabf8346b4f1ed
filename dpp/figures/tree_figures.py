"""The path of an image through a ProtoTree, as a figure."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpp.explanations import TreePath
from dpp.figures.marked_pictures import (
    LINE,
    PAGE,
    SMALL,
    TEXT,
    WARNING,
    Marked,
    draw_marked,
    headline,
    number_text,
    row_height,
    shorten_name,
    warning_lines,
)
from dpp.figures.score_sheets import StepRow, path_sheet
from dpp.figures.style import PART_COLOURS


def tree_path(
    explanation: TreePath,
    picture: np.ndarray,
    sources: Mapping[int, Marked],
    names: Sequence[str],
    *,
    side: float = 0.95,
) -> Figure:
    """The path of an image through a ProtoTree: right where a node's prototype is present.

    Args:
        explanation: the path; each node shows its prototype on its source, and the image.
        picture: the image, (H, W, 3) uint8.
        sources: the prototypes of the nodes on their source images.
        names: of all classes.
        side: inches, of a picture's width.
    """
    steps = explanation.steps
    turns = [1 if step.branch == "right" else -1 for step in steps]
    height = row_height([picture, *(marked.picture for marked in sources.values())], side)
    shift = min(0.7, (PAGE - 2 * side - 1.3) / max(1, np.ptp(np.cumsum([0, *turns]))))
    across = np.cumsum([0, *turns]) * shift
    across += PAGE / 2 - (across.min() + across.max()) / 2
    pitch = height + 0.55
    lines = warning_lines(explanation)
    above = 0.5 + LINE * len(lines)  # inches above the first node
    tall = above + len(steps) * pitch + 0.85
    figure = Figure(figsize=(PAGE, tall), dpi=100)
    canvas = figure.add_axes((0, 0, 1, 1))
    canvas.set(xlim=(0, PAGE), ylim=(tall, 0))
    canvas.axis("off")
    title = headline(explanation, names)
    canvas.text(PAGE / 2, 0.15, title, ha="center", va="center", fontsize=TEXT + 1)
    style = {"ha": "center", "va": "top", "fontsize": TEXT, "color": WARNING}
    canvas.text(PAGE / 2, 0.3, "\n".join(lines), **style)
    rows = path_sheet(explanation, names).rows
    for place, (step, row) in enumerate(zip(steps, rows, strict=True)):
        top = above + place * pitch
        pair = sources.get(step.node), Marked(picture, (tuple(step.box),))
        for marked, left in zip(pair, (across[place] - side, across[place] + 0.04), strict=True):
            axes = figure.add_axes(
                (left / PAGE, 1 - (top + height) / tall, side / PAGE, height / tall)
            )
            axes.axis("off")
            axes.set_anchor("S")
            if marked is not None:
                draw_marked(axes, marked)
        _draw_branch(
            canvas, row, (across[place], top + height), (across[place + 1], top + pitch - 0.14)
        )
        captions = f"node {row.node}: prototype", f"similarity {row.similarity}"
        middles = across[place] - side / 2, across[place] + 0.04 + side / 2
        for x, caption in zip(middles, captions, strict=True):
            canvas.text(x, top - 0.08, caption, ha="center", va="center", fontsize=SMALL)
    _draw_leaf(figure, canvas, explanation, names, across[-1], tall)
    return figure


def _draw_branch(canvas: Axes, row: StepRow, start, end) -> None:
    """The branch that was taken, with its probability, and a stub of the other."""
    arrow = {"arrowstyle": "-|>", "color": "black", "linewidth": 1.2, "shrinkA": 1, "shrinkB": 0}
    canvas.annotate("", end, start, arrowprops=arrow)
    stub = start[0] - 0.6 * (end[0] - start[0]), start[1] + 0.6 * (end[1] - start[1])
    canvas.plot([start[0], stub[0]], [start[1], stub[1]], color="0.6", linewidth=0.8, ls="--")
    middle = (start[1] + end[1]) / 2
    sides = (("left", 0.12, end[0]), ("right", -0.12, stub[0]))
    if row.branch == "left":
        sides = (("right", -0.12, end[0]), ("left", 0.12, stub[0]))
    texts = (
        f"{row.answer}: {row.probability}",
        f"{row.opposite}: {row.opposite_probability}",
    )
    for (align, gap, x), text, colour in zip(sides, texts, ("black", "0.5"), strict=True):
        canvas.text(x + gap, middle, text, ha=align, va="center", fontsize=SMALL, color=colour)


def _draw_leaf(figure: Figure, canvas: Axes, explanation: TreePath, names, x, tall) -> None:
    """The classes of the leaf, likeliest first."""
    best = np.argsort(explanation.distribution)[::-1][:3]
    left = min(max(x - 0.6, 1.6), PAGE - 2.0)
    axes = figure.add_axes((left / PAGE, 0.12 / tall, 1.5 / PAGE, 0.5 / tall))
    shares = [explanation.distribution[label] for label in best]
    axes.barh(range(len(best)), shares, color=[PART_COLOURS[4], "0.7", "0.7"][: len(best)])
    axes.set_yticks(
        range(len(best)), [shorten_name(names[label], 20) for label in best], fontsize=SMALL
    )
    for place, share in enumerate(shares):
        axes.annotate(
            number_text(share),
            (share, place),
            (3, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL,
        )
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    caption = f"leaf {explanation.leaf}, path probability {number_text(explanation.probability)}"
    axes.set_title(caption, fontsize=SMALL, fontweight="bold")
