"""The figure of one decision: this patch looks like that patch, part by part, and the score."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpp.browser.drawings import draw_patch
from dpp.browser.scenes import Source
from dpp.data.pictures import Picture
from dpp.explanations import ClassScore, Match
from dpp.figures import PART_COLOURS
from dpp.figures.marked_pictures import (
    SMALL,
    TEXT,
    draw_marked,
    mark,
    number_text,
    part_style,
    row_height,
    shorten_image,
    shorten_name,
)
from dpp.figures.score_sheets import score_sheet

OWN, OTHERS, TOTAL = PART_COLOURS[4], PART_COLOURS[5], "0.25"
WIDTH, LEFT, GAP = 7.2, 4.5, 0.1  # inches: of the figure, of its left part, between pictures
TITLE, BAR = 0.24, 0.2  # inches
MOST = 5  # pairs of patches in a row


def patch_pairs(picture: Picture, match: Match, source: Source | None, sheet: ClassScore) -> Figure:
    """A prototype on an image and on its source, its patches in pairs, and the class's score.

    Args:
        picture: the image.
        match: the prototype on it.
        source: the prototype on its source image; None if it was not projected.
        sheet: the score of the prototype's class.
    """
    sides = [(picture.pixels, match, f"this image, {shorten_image(picture.name, 22)}")]
    if source:
        seen, there = source
        name = f"prototype {match.prototype}, image {shorten_image(seen.image, 16)}"
        sides.append((there.pixels, seen, name))
    side = (LEFT - GAP) / 2
    high = row_height([pixels for pixels, _, _ in sides], side)
    columns = min(len(match.parts), MOST)
    rows = -(-len(match.parts) // columns)
    cell = (LEFT + GAP) / max(columns, 4)  # with its gap
    patch = (cell - GAP) / 2
    height = max(TITLE + high + GAP + rows * (patch + BAR + GAP), 0.2 * len(sheet.matches) + 1)
    figure = Figure(figsize=(WIDTH, height + TITLE), dpi=100)

    def add(left: float, top: float, width: float, tall: float) -> Axes:
        """Axes at a place in inches, from the top left corner."""
        whole = height + TITLE
        place = left / WIDTH, 1 - (top + tall) / whole, width / WIDTH, tall / whole
        return figure.add_axes(place, anchor="N")

    for place, (pixels, seen, title) in enumerate(sides):
        axes = add(0.05 + place * (side + GAP), TITLE, side, high)
        draw_marked(axes, mark(pixels, seen))
        axes.set_title(title, fontsize=TEXT, pad=3)
    shares = [part.contribution or 0 for part in match.parts]
    most = max(map(abs, shares)) or 1
    for place, share in enumerate(shares):
        row, column = divmod(place, columns)
        left, top = 0.05 + column * cell, TITLE + high + GAP + row * (patch + BAR + GAP)
        colour, dashes, _ = part_style(place)
        for shift, (pixels, seen, _) in enumerate(sides):
            axes = add(left + shift * patch, top, patch, patch)
            draw_patch(axes, pixels, seen.parts[place].box, colour, dashes)
            axes.set_aspect("auto")
        _draw_share(add(left, top + patch + 0.03, cell - GAP, BAR - 0.03), share, most, colour)
    sums = add(LEFT + 0.95, TITLE, WIDTH - LEFT - 1.0, height - TITLE)
    _draw_sheet(sums, sheet, match.prototype)
    sums.set_title(
        f"score of {shorten_name(sheet.name)}", fontsize=TEXT, fontweight="bold", pad=3, loc="right"
    )
    return figure


def _draw_share(axes: Axes, share: float, most: float, colour: str) -> None:
    """A part's contribution: a bar on a pale one, and its number."""
    axes.barh(0, 1, color="0.9", height=0.5)
    axes.barh(0, abs(share) / most, color=colour, height=0.5)
    axes.text(1.06, 0, number_text(share, 3), fontsize=SMALL, va="center")
    axes.set(xlim=(0, 1.5), ylim=(-0.5, 0.5))
    axes.axis("off")


def _draw_sheet(axes: Axes, one: ClassScore, chosen: int) -> None:
    """Bars that add up: each begins where the one above it ends."""
    sheet = score_sheet(one)
    points = [match.points for match in one.matches]
    ends = np.cumsum([0, *points, one.others])
    lefts, widths = [*ends[:-1], 0], [*points, one.others, one.score]
    labels = [f"prototype {row.prototype}" for row in sheet.rows] + ["other classes", "score"]
    texts = [row.points for row in sheet.rows] + [sheet.others, sheet.score]
    colours = [*[OWN] * len(points), OTHERS, TOTAL]
    places = np.arange(len(widths))
    axes.barh(places, widths, left=lefts, color=colours, height=0.6)
    axes.set_yticks(places, labels, fontsize=SMALL)
    low, high = min(0, ends.min(), one.score), max(0, ends.max(), one.score)
    span = (high - low) or 1
    for place, text in enumerate(texts):
        axes.text(high + 0.3 * span, place, text, fontsize=SMALL, va="center", ha="right")
    for tick, row in zip(axes.get_yticklabels(), sheet.rows, strict=False):
        tick.set_fontweight("bold" if row.prototype == chosen else "normal")
    axes.set(xlim=(low, high + 0.3 * span), ylim=(len(widths) - 0.4, -0.6), xticks=[])
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
