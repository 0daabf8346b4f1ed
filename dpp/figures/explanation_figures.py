"""Figures of explanations: explanations and pictures in, figures out."""

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
    LINE,
    PAGE,
    SMALL,
    TEXT,
    WARNING,
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
    warning_lines,
)
from dpp.figures.score_sheets import ScoreRow, ScoreSheet, score_sheet
from dpp.figures.style import PART_COLOURS

EXPLAINED = (PART_COLOURS[4], PART_COLOURS[5])  # of the two explained classes


def reasoning(
    explanation: Reasoning,
    picture: np.ndarray,
    sources: Mapping[int, Marked],
    names: Sequence[str],
    *,
    top: int = 3,
) -> Figure:
    """Figure 5: why an image was given its class, and why not another.

    Bars show the scores of up to five classes, highest first. The first two classes of the
    explanation are explained, in the colours of their bars: for each, the `top` of its own
    prototypes that give most points, their parts on the image and on the prototype's source,
    similarity x connection = points; then the points of all others, and the score.

    Args:
        explanation: the two classes to explain come first.
        picture: the image, (H, W, 3) uint8.
        sources: every shown prototype on its source image; it may lack some.
        names: of all classes.
        top: prototypes of a class.
    """
    shown = explanation.classes[:2]
    best = [one.matches[:top] for one in shown]
    rows = [row for row in zip_longest(*best) if row]
    heights = [row_height([picture, *_source_pictures(row, sources)], 1.15) for row in rows]
    above, below = 1.6 + LINE * len(warning_lines(explanation)), 0.55
    figure = new_figure(PAGE, above + 0.55 + sum(heights) + below)
    head, body = figure.subfigures(2, 1, height_ratios=[above, 0.55 + sum(heights) + below])
    _draw_scores(head, picture, explanation, names)
    halves = np.atleast_1d(body.subfigures(1, len(shown), wspace=0.03))
    for half, one, matches, colour in zip(halves, shown, best, EXPLAINED, strict=False):
        title = question(explanation, one)
        half.suptitle(title, fontsize=TEXT + 2, fontweight="bold", color=colour)
        sheet = score_sheet(one, top)
        grid = half.add_gridspec(len(heights) + 1, 3, height_ratios=[*heights, below])
        for row, (match, numbers) in enumerate(zip(matches, sheet.rows, strict=True)):
            line = [half.add_subplot(grid[row, column]) for column in range(3)]
            _draw_match(line, mark(picture, match), sources.get(match.prototype), row == 0)
            _draw_product(line[2], numbers)
        _draw_sum(half.add_subplot(grid[-1, :]), sheet)
    return figure


def question(explanation: Reasoning, one: ClassScore, width: int = 26) -> str:
    """What a score sheet answers: why the predicted class, why not another one.

    Args:
        explanation: of an image.
        one: the class.
        width: of its name, in characters.
    """
    word = "Why" if one.label == explanation.predicted else "Why not"
    return f"{word} {shorten_name(one.name, width)}?"


def _source_pictures(matches: Sequence[Match | None], sources: Mapping[int, Marked]) -> list:
    numbers = [match.prototype for match in matches if match]
    return [sources[number].picture for number in numbers if number in sources]


def _draw_scores(figure: SubFigure, picture, explanation: Reasoning, names, bars: int = 5) -> None:
    """The image as it is, and the scores of some classes: predicted, true and explained ones."""
    left, right = figure.subplots(1, 2, width_ratios=[1, 2.6])
    draw_picture(left, picture)
    ordered = sorted(explanation.classes[:bars], key=lambda one: -one.score)
    explained = [one.label for one in explanation.classes[:2]]
    colours = dict(zip(explained, EXPLAINED, strict=False))
    shades = [colours.get(one.label, "0.7") for one in ordered]
    right.barh(range(len(ordered)), [one.score for one in ordered], color=shades, height=0.7)
    right.set_yticks(range(len(ordered)), [shorten_name(one.name) for one in ordered])
    right.tick_params(length=0, labelsize=TEXT)
    for row, (one, shade) in enumerate(zip(ordered, shades, strict=True)):
        end, style = (max(one.score, 0), row), {"textcoords": "offset points", "va": "center"}
        number = right.annotate(number_text(one.score), end, (3, 0), fontsize=TEXT, **style)
        roles = ("predicted", explanation.predicted), ("true", explanation.label)
        words = [word for word, label in roles if label == one.label]
        words += ["explained"] * (one.label in explained)
        style |= {"color": shade, "fontsize": SMALL, "xycoords": number, "in_layout": False}
        right.annotate(", ".join(words), (1, 0.5), (5, 0), **style)
    right.set_ylim(max(len(ordered), 3) - 0.5, -0.5)
    low, high = min(0, ordered[-1].score), max(0, ordered[0].score)
    right.set_xlim(low, high + 1.15 * ((high - low) or 1))  # room for the number and the words
    right.axvline(0, color="0.3", linewidth=0.8)
    right.set_xticks([])
    right.spines[:].set_visible(False)
    figure.suptitle(headline(explanation, names), fontsize=TEXT + 1)
    if lines := warning_lines(explanation):
        figure.supxlabel("\n".join(lines), fontsize=TEXT, color=WARNING)


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


def _draw_product(axes: Axes, row: ScoreRow) -> None:
    """similarity x connection = points."""
    axes.axis("off")
    lines = (
        (-5, f"prototype {row.prototype}", ""),
        (-19, "similarity", row.similarity),
        (-31, "× connection", row.connection),
        (-46, "= points", row.points),
    )
    for down, label, value in lines:  # points below the top
        style = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "center"}
        style["fontweight"] = "bold" if label.startswith("=") else "normal"
        style["color"] = "black" if value else "0.35"
        axes.annotate(label, (0, 1), (0, down), fontsize=SMALL, **style)
        axes.annotate(value, (1, 1), (0, down), fontsize=TEXT, ha="right", **style)


def _draw_sum(axes: Axes, sheet: ScoreSheet) -> None:
    """The points of the prototypes that are not shown, and the score."""
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    sign = "" if sheet.others.startswith("−") else "+ "
    for height, label, number, weight in (
        (0.75, "all other prototypes", sign + sheet.others, "normal"),
        (0.2, f"score of {shorten_name(sheet.name)}", sheet.score, "bold"),
    ):
        style = {"va": "center", "fontsize": TEXT, "fontweight": weight}
        axes.text(1.0, height, number, ha="right", **style)
        axes.text(0.8, height, label, ha="right", **style)
    axes.plot([0.82, 1], [0.48, 0.48], color="black", linewidth=0.8)


def local_analysis(
    explanation: LocalAnalysis,
    picture: np.ndarray,
    sources: Mapping[int, Marked],
    names: Sequence[str],
) -> Figure:
    """The prototypes most similar to an image: on their source images above, on the image below.

    Args:
        explanation: of the image.
        picture: the image, (H, W, 3) uint8.
        sources: every prototype on its source image.
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
    """A prototype on its source image, and the training and test images most similar to it.

    Args:
        neighbours: of the prototype.
        source: the prototype on its source image.
        pictures: (H, W, 3) uint8, of the neighbours' images by name.
        names: of all classes.
    """
    heading = f"prototype {neighbours.prototype}"
    groups = {heading: [(f"{shorten_name(names[neighbours.label], 20)}\n", source)]}
    for title, split in (("training images", neighbours.train), ("test images", neighbours.test)):
        groups[title] = [
            (_caption(seen, names), mark(pictures[seen.image], seen)) for seen in split
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
    """How many images of each true class, in rows, were predicted as each class, in columns.

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
    axes.set_xlabel("predicted class", fontsize=TEXT)
    axes.set_ylabel("true class", fontsize=TEXT)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def audit(audited: Audit) -> Figure:
    """The shares of an audit as bars, with the share expected by chance as a line.

    Args:
        audited: the audit of a run.
    """
    rows = audit_shares(audited)
    figure = new_figure(PAGE, 0.5 + 0.3 * len(rows))
    axes = figure.add_subplot()
    for place, (_, share, chance) in enumerate(rows):
        value = share.value
        axes.barh(place, value or 0, color=PART_COLOURS[1], height=0.6)
        text = f"{value:.1%} ({share.count} of {share.of})" if share.of else "no data"
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


def audit_shares(audited: Audit) -> list[tuple[str, Share, Share | None]]:
    """Each share of an audit with its name, and the share expected by chance if it is known."""
    equal = sum(len(group) - 1 for group in audited.duplicates)
    return [
        ("parts near a part of the animal", audited.parts.near, audited.parts.chance),
        ("parts on the background", audited.on_background, None),
        ("parts off the image", audited.off_image, None),
        ("prototypes equal to an earlier one", Share(equal, audited.prototypes), None),
    ]
