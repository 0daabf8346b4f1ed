"""Figures that only the prototype browser draws, and the rendering of all its figures."""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from dpp.analysis.figure_data import Application
from dpp.explanations import Sighting
from dpp.figures import PART_COLOURS
from dpp.figures.marked_pictures import (
    PAGE,
    SMALL,
    TEXT,
    draw_marked,
    mark,
    new_figure,
    number_text,
    part_style,
    row_height,
    shorten_name,
)

DPI = 140  # a page of 7.2 inches is 1008 pixels wide
WIDE = 7.2  # inches
BEFORE, AFTER = "0.7", PART_COLOURS[4]


def render(figure: Figure, dpi: int = DPI) -> bytes:
    """PNG bytes of a figure."""
    page = io.BytesIO()
    fast = {"compress_level": 1}
    figure.savefig(page, format="png", dpi=dpi, metadata={"Software": None}, pil_kwargs=fast)
    return page.getvalue()


def prototype_card(
    seen: Sighting | None,
    picture: np.ndarray | None,
    connections: np.ndarray,
    own: int,
    names: Sequence[str],
    bars: int = 6,
) -> Figure:
    """A prototype on its source image, the patch under each part, and its connections.

    Args:
        seen: the prototype on its source image; None if it was not projected.
        picture: that image, (H, W, 3) uint8.
        connections: (classes,).
        own: the prototype's class.
        names: of all classes.
        bars: how many connections are drawn: to its own class, then the strongest.
    """
    figure = new_figure(PAGE, 2.5 if picture is None else row_height([picture], 2.4) + 0.3)
    left, middle, right = figure.subfigures(1, 3, width_ratios=[1, 1, 1])
    if seen is None:
        left.text(0.5, 0.5, "not projected:\nno source image", ha="center", fontsize=TEXT)
    else:
        axes = left.subplots()
        draw_marked(axes, mark(picture, seen))
        axes.set_title(f"source: {shorten_name(seen.image, 34)}", fontsize=TEXT)
        _draw_patches(middle, seen, picture)
    order = np.argsort(-np.abs(connections), kind="stable")
    shown = [own, *[label for label in order.tolist() if label != own]][:bars]
    colours = [AFTER, *[BEFORE] * (len(shown) - 1)]
    _draw_bars(right.subplots(), connections[shown], [names[one] for one in shown], colours)
    right.suptitle("connections", fontsize=TEXT)
    return figure


def _draw_patches(figure, seen: Sighting, picture: np.ndarray) -> None:
    """The patch under each part, in a frame of its colour, at its position in the prototype."""
    side = round(len(seen.parts) ** 0.5)
    grid = figure.subplots(side, -(-len(seen.parts) // side), squeeze=False)
    figure.suptitle("under each part", fontsize=TEXT)
    for place, (axes, part) in enumerate(zip(grid.flat, seen.parts, strict=True)):
        colour, dashes, _ = part_style(place)
        draw_patch(axes, picture, part.box, colour, dashes)


def draw_patch(axes: Axes, pixels: np.ndarray, box, colour, dashes) -> None:
    """What lies under a part, in a frame of its colour."""
    height, width = pixels.shape[:2]
    left, top, right, bottom = box
    axes.set_facecolor("0.85")
    axes.imshow(pixels, extent=(0, width, height, 0), interpolation="auto")
    axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[])
    axes.spines[:].set(color=colour, linewidth=2.5, linestyle=dashes)
    if right <= 0 or bottom <= 0 or left >= width or top >= height:
        off = {"ha": "center", "va": "center", "transform": axes.transAxes}
        axes.text(0.5, 0.5, "off the\nimage", fontsize=SMALL, **off)


def _draw_bars(axes: Axes, values: Sequence[float], labels: Sequence[str], colours) -> None:
    """Bars to the right or left, each with its number at its end."""
    places = range(len(values))
    axes.barh(places, values, color=colours, height=0.65)
    axes.set_yticks(places, [shorten_name(label, 22) for label in labels], fontsize=SMALL)
    for place, value in enumerate(values):
        style = {"textcoords": "offset points", "fontsize": SMALL, "va": "center"}
        axes.annotate(number_text(value, 3), (max(value, 0), place), (3, 0), **style)
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.set_xlim(min(0, *values), 1.4 * max(1e-6, *values) + 0.3 * max(0, *-np.asarray(values)))
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def placement(applied: Application, picture: np.ndarray, title: str = "") -> Figure:
    """A prototype centred at a cell: its parts, their contributions, and the similarity map.

    Args:
        applied: the prototype at that cell.
        picture: the image, (H, W, 3) uint8.
        title: above the image.
    """
    figure = Figure(figsize=(WIDE, 2.75), dpi=100)
    for place in ((0.01, 0.02, 0.35, 0.87), (0.38, 0.02, 0.35, 0.87), (0.8, 0.12, 0.19, 0.77)):
        figure.add_axes(place, anchor="N", xticks=[], yticks=[])
    image, cells, bars = figure.axes
    draw_marked(image, mark(picture, applied.match))
    image.set_title(title, fontsize=TEXT)
    _draw_cells(cells, applied, picture.shape[0] / picture.shape[1])
    _draw_shares(bars, [part.contribution for part in applied.match.parts])
    total = number_text(applied.match.similarity, 3)
    bars.set_title(f"contributions, sum {total}", fontsize=TEXT)
    return figure


def _draw_shares(axes: Axes, shares: Sequence[float]) -> None:
    """A bar for each part, in its colour."""
    axes.axis("off")
    colours = [part_style(place)[0] for place in range(len(shares))]
    places = range(len(shares))
    axes.barh(places, shares, color=colours, height=0.75)
    reach = max(map(abs, shares)) or 1
    axes.set(xlim=(min(0, *shares) - 0.3 * reach, 1.4 * reach), ylim=(len(shares) - 0.4, -0.6))
    for place, share in enumerate(shares):
        text = {"fontsize": SMALL, "va": "center"}
        axes.text(min(0, share) - 0.05 * reach, place, f"{place + 1}", ha="right", **text)
        axes.text(max(0, share) + 0.05 * reach, place, number_text(share, 3), **text)


def _draw_cells(axes: Axes, applied: Application, shape: float) -> None:
    """The similarity map, and on it the parts, with lines from where they rest."""
    axes.axis("off")
    height, width = applied.similarities.shape
    axes.imshow(applied.similarities, cmap="cividis", aspect=shape * width / height)
    centre = np.array(applied.match.centre)
    styles = [part_style(place) for place in range(len(applied.rest))]
    colours, halos = [style[0] for style in styles], [style[2] for style in styles]
    ends = np.array([part.place for part in applied.match.parts])
    moved = np.stack([centre + applied.rest, ends], axis=1)[:, :, ::-1]  # (parts, 2, 2), x and y
    for style, wide in ((halos, 1.9), (colours, 1)):
        axes.add_collection(LineCollection(moved, colors=style, linewidths=wide))
    axes.scatter(*moved[:, 1].T, c=colours, marker="s", s=26, ec=halos, lw=0.8, zorder=3)
    for colour, wide in (("black", 2.6), ("white", 1.2)):
        axes.plot(centre[1], centre[0], "o", mfc="none", mec=colour, mew=wide, markersize=10)
    best = np.unravel_index(applied.similarities.argmax(), (height, width))
    axes.plot(best[1], best[0], "x", color="black", markersize=7, mew=1.2)
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    least, most = (number_text(end(applied.similarities), 3) for end in (np.min, np.max))
    axes.set_title(f"similarity map: {least} to {most}, at ×", fontsize=TEXT)


def score_change(
    before: np.ndarray, after: np.ndarray, names: Sequence[str], bars: int = 5
) -> Figure:
    """Class scores before and after changes, of the classes that are best before or after.

    Args:
        before: (classes,).
        after: (classes,).
        names: of all classes.
        bars: how many classes are best.
    """
    shown = sorted({*best(before, bars), *best(after, bars)}, key=lambda label: -before[label])
    figure = new_figure(PAGE, 0.5 + 0.36 * len(shown))
    axes = figure.add_subplot()
    for scores, colour, shift, word in (
        (before, BEFORE, -0.19, "before"),
        (after, AFTER, 0.19, "after"),
    ):
        places = np.arange(len(shown)) + shift
        axes.barh(places, scores[shown], color=colour, height=0.36, label=word)
        for place, value in zip(places, scores[shown], strict=True):
            across, side = (3, "left") if value >= 0 else (-3, "right")
            style = {"textcoords": "offset points", "fontsize": SMALL, "va": "center", "ha": side}
            axes.annotate(number_text(value), (value, place), (across, 0), **style)
    labels = [shorten_name(names[label]) for label in shown]
    axes.set_yticks(range(len(shown)), labels, fontsize=TEXT)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.margins(x=0.12)
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    style = {"loc": "outside upper right", "ncols": 2, "frameon": False, "fontsize": TEXT}
    figure.legend(**style)
    return figure


def best(scores: np.ndarray, count: int) -> list[int]:
    """The classes with the highest scores, best first."""
    return np.argsort(-scores, kind="stable")[:count].tolist()
