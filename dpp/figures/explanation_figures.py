"""What a network's explanations look like: explanations and pictures in, figures out."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from dpp.explanations import (
    Audit,
    ClassScore,
    LocalAnalysis,
    Match,
    Neighbours,
    Reasoning,
    Share,
    Sighting,
)
from dpp.figures.marked_pictures import (
    PAGE,
    SMALL,
    TEXT,
    Marked,
    draw_marked,
    draw_picture,
    headline,
    mark,
    new_figure,
    number_text,
    row_height,
    shorten_image,
    shorten_name,
)
from dpp.figures.style import PART_COLOURS


def reasoning(
    explanation: Reasoning,
    picture: np.ndarray,
    sources: Mapping[int, Marked],
    names: Sequence[str],
    *,
    top: int = 3,
) -> Figure:
    """Figure 5: why an image is of a class, and why not of the next.

    For each of the first two classes, the `top` prototypes of its own that give most points: their
    parts on the image and on the prototype's source, similarity x connection = points; then what
    all others give, and the sum. What the others give is printed so that the column adds up.

    Args:
        explanation: its classes best first; the scores of up to five are drawn as bars.
        picture: the image, (H, W, 3) uint8.
        sources: every shown prototype where it comes from; it may lack some.
        names: of all classes.
        top: prototypes of a class.
    """
    shown = explanation.classes[:2]
    best = [one.matches[:top] for one in shown]
    rows = [row for row in zip_longest(*best) if row]
    heights = [row_height([picture, *_source_pictures(row, sources)], 1.15) for row in rows]
    above, below = 1.6, 0.55
    figure = new_figure(PAGE, above + 0.55 + sum(heights) + below)
    head, body = figure.subfigures(2, 1, height_ratios=[above, 0.55 + sum(heights) + below])
    _draw_scores(head, picture, explanation, names)
    halves = np.atleast_1d(body.subfigures(1, len(shown), wspace=0.03))
    words = ("Why", "Why not")
    for half, one, found, word in zip(halves, shown, best, words, strict=False):
        half.suptitle(f"{word} {shorten_name(one.name)}?", fontsize=TEXT + 2, fontweight="bold")
        grid = half.add_gridspec(len(heights) + 1, 3, height_ratios=[*heights, below])
        for row, match in enumerate(found):
            there = [half.add_subplot(grid[row, column]) for column in range(3)]
            _draw_match(there, mark(picture, match), sources.get(match.prototype), row == 0)
            _draw_product(there[2], match)
        _draw_sum(half.add_subplot(grid[-1, :]), one, found)
    return figure


def _source_pictures(matches: Sequence[Match | None], sources: Mapping[int, Marked]) -> list:
    numbers = [match.prototype for match in matches if match]
    return [sources[number].picture for number in numbers if number in sources]


def _draw_scores(figure: SubFigure, picture, explanation: Reasoning, names, bars: int = 5) -> None:
    """The image as it is, and the scores of the first classes."""
    left, right = figure.subplots(1, 2, width_ratios=[1, 2.6])
    draw_picture(left, picture)
    best = explanation.classes[:bars]
    colours = [PART_COLOURS[4], *["0.7"] * (len(best) - 1)]
    right.barh(range(len(best)), [one.score for one in best], color=colours, height=0.7)
    right.set_yticks(range(len(best)), [shorten_name(one.name) for one in best], fontsize=TEXT)
    for place, one in enumerate(best):
        side = (3, "left") if one.score >= 0 else (-3, "right")
        style = {"textcoords": "offset points", "fontsize": TEXT, "va": "center", "ha": side[1]}
        right.annotate(number_text(one.score), (one.score, place), (side[0], 0), **style)
    right.set_ylim(max(len(best), 3) - 0.5, -0.5)
    right.margins(x=0.15)
    right.axvline(0, color="0.3", linewidth=0.8)
    right.set_xticks([])
    right.tick_params(length=0)
    right.spines[:].set_visible(False)
    figure.suptitle(headline(explanation, names), fontsize=TEXT + 1)


def _draw_match(row: Sequence[Axes], here: Marked, source: Marked | None, first: bool) -> None:
    """A prototype on the image and on its source."""
    draw_marked(row[0], here)
    if source is not None:
        draw_marked(row[1], source)
    else:
        row[1].axis("off")
        row[1].text(0.5, 0.5, "not projected", ha="center", va="center", fontsize=SMALL)
    for axes, title in zip(row, ("this image", "looks like this one"), strict=False):
        axes.set_anchor("N")
        if first:
            axes.set_title(title, fontsize=TEXT)


def _draw_product(axes: Axes, match: Match) -> None:
    """similarity x connection = points."""
    axes.axis("off")
    lines = (
        (-5, f"prototype {match.prototype}", ""),
        (-19, "similarity", number_text(match.similarity, 3)),
        (-31, "× connection", number_text(match.connection)),
        (-46, "= points", number_text(match.points)),
    )
    for down, label, value in lines:  # points below the top
        style = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "center"}
        style["fontweight"] = "bold" if label.startswith("=") else "normal"
        style["color"] = "black" if value else "0.35"
        axes.annotate(label, (0, 1), (0, down), fontsize=SMALL, **style)
        axes.annotate(value, (1, 1), (0, down), fontsize=TEXT, ha="right", **style)


def _draw_sum(axes: Axes, one: ClassScore, found: Sequence[Match]) -> None:
    """What the prototypes that are not shown give, and the score."""
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    rest = remainder(one, found)
    for height, label, number, weight in (
        (0.75, "all other prototypes", ("+ " if rest >= 0 else "") + number_text(rest), "normal"),
        (0.2, f"score of {shorten_name(one.name)}", number_text(one.score), "bold"),
    ):
        style = {"va": "center", "fontsize": TEXT, "fontweight": weight}
        axes.text(1.0, height, number, ha="right", **style)
        axes.text(0.8, height, label, ha="right", **style)
    axes.plot([0.82, 1], [0.48, 0.48], color="black", linewidth=0.8)


def remainder(one: ClassScore, shown: Sequence[Match]) -> float:
    """What all prototypes but the shown ones give, so that numbers of two digits add up."""
    return round(round(one.score, 2) - sum(round(match.points, 2) for match in shown), 2)


def local_analysis(
    explanation: LocalAnalysis,
    picture: np.ndarray,
    sources: Mapping[int, Marked],
    names: Sequence[str],
) -> Figure:
    """The prototypes most similar to an image: above on their sources, below on the image.

    Args:
        explanation: of the image.
        picture: the image, (H, W, 3) uint8.
        sources: every prototype of it where it comes from.
        names: of all classes.
    """
    matches = explanation.matches
    side = PAGE / (len(matches) + 1)
    pictures = [sources[match.prototype].picture for match in matches]
    heights = [row_height(pictures, side) + 0.2, row_height([picture], side) + 0.2]
    figure = new_figure(PAGE, sum(heights) + 0.1)
    grid = figure.add_gridspec(2, len(matches) + 1, height_ratios=heights)
    whole = figure.add_subplot(grid[:, 0])
    draw_picture(whole, picture)
    whole.set_title(f"image {shorten_image(explanation.image, 20)}", fontsize=TEXT)
    for column, match in enumerate(matches, start=1):
        above, below = (figure.add_subplot(grid[row, column]) for row in (0, 1))
        draw_marked(above, sources[match.prototype])
        draw_marked(below, mark(picture, match))
        name = shorten_name(names[match.label], 20)
        above.set_title(f"prototype {match.prototype}, {name}", fontsize=TEXT)
        below.set_title(f"similarity {number_text(match.similarity, 3)}", fontsize=TEXT)
    return figure


def global_analysis(
    neighbours: Neighbours,
    source: Marked,
    pictures: Mapping[str, np.ndarray],
    names: Sequence[str],
) -> Figure:
    """A prototype on its source, and the training and test images that it resembles most.

    Args:
        neighbours: of the prototype.
        source: where it comes from.
        pictures: (H, W, 3) uint8, of the neighbours' images by name.
        names: of all classes.
    """
    heading = f"prototype {neighbours.prototype}"
    groups = {heading: [(f"{shorten_name(names[neighbours.label], 20)}\n", source)]}
    for title, found in (("training images", neighbours.train), ("test images", neighbours.test)):
        groups[title] = [
            (_caption(seen, names), mark(pictures[seen.image], seen)) for seen in found
        ]
    groups = {title: content for title, content in groups.items() if content}
    widths = [len(content) for content in groups.values()]
    side = min(1.8, PAGE / sum(widths))
    every = [marked.picture for content in groups.values() for _, marked in content]
    figure = new_figure(side * sum(widths), row_height(every, side) + 0.6)
    parts = np.atleast_1d(figure.subfigures(1, len(widths), width_ratios=widths))
    for part, (title, content) in zip(parts, groups.items(), strict=True):
        part.suptitle(title, fontsize=TEXT, fontweight="bold")
        row = np.atleast_1d(part.subplots(1, len(content)))
        for axes, (caption, marked) in zip(row, content, strict=True):
            draw_marked(axes, marked)
            axes.set_title(caption, fontsize=SMALL)
            axes.set_anchor("N")
    return figure


def _caption(seen: Sighting, names: Sequence[str]) -> str:
    name = shorten_name(names[seen.label], 20)
    return f"{name}\nsimilarity {number_text(seen.similarity, 3)}"


def confusion(matrix: np.ndarray, names: Sequence[str]) -> Figure:
    """How many images of each class, in rows, were taken for each, in columns.

    Args:
        matrix: (classes, classes), counts.
        names: of all classes.
    """
    count = len(names)
    side = min(0.32, 6.5 / count) if count > 12 else 0.38
    figure = new_figure(2.1 + side * count, 2.1 + side * count)
    axes = figure.add_subplot()
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    size = min(TEXT, max(3, 60 * side * 0.4))
    if count <= 40:
        for row, column in np.argwhere(matrix):
            colour = "white" if shares[row, column] > 0.5 else "black"
            text = {"ha": "center", "va": "center", "fontsize": size, "color": colour}
            axes.text(column, row, f"{matrix[row, column]:g}", **text)
    labels = [shorten_name(name) for name in names]
    axes.set_xticks(range(count), labels, rotation=90, fontsize=size)
    axes.set_yticks(range(count), labels, fontsize=size)
    axes.set_xlabel("taken for", fontsize=TEXT)
    axes.set_ylabel("is", fontsize=TEXT)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def audit(found: Audit) -> Figure:
    """An audit at a glance: shares as bars, with what chance would give as a line.

    Args:
        found: of a run.
    """
    rows = audit_shares(found)
    figure = new_figure(PAGE, 0.5 + 0.3 * len(rows))
    axes = figure.add_subplot()
    for place, (_, share, chance) in enumerate(rows):
        value = share.value
        axes.barh(place, value or 0, color=PART_COLOURS[1], height=0.6)
        text = f"{value:.1%} ({share.count} of {share.of})" if share.of else "nothing is known"
        if chance is not None and chance.of:
            axes.plot([chance.value] * 2, [place - 0.4, place + 0.4], color="black", linewidth=1.5)
            text += f", by chance {chance.value:.1%}"
        right = max(value or 0, chance.value if chance is not None and chance.of else 0)
        style = {"textcoords": "offset points", "va": "center", "fontsize": TEXT}
        axes.annotate(text, (right, place), (4, 0), **style)
    axes.set_yticks(range(len(rows)), [title for title, *_ in rows], fontsize=TEXT)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.6)
    axes.set_xticks([0, 0.5, 1], ["0%", "50%", "100%"], fontsize=SMALL)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def audit_shares(found: Audit) -> list[tuple[str, Share, Share | None]]:
    """Each share of an audit with its name, and what chance would give if that is known."""
    equal = sum(len(group) - 1 for group in found.duplicates)
    return [
        ("parts near a part of the animal", found.parts.near, found.parts.chance),
        ("parts on the background", found.on_background, None),
        ("parts off the image", found.off_image, None),
        ("prototypes equal to an earlier one", Share(equal, found.prototypes), None),
    ]
