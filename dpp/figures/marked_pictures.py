"""Pictures with parts of prototypes outlined on them, and the words of all explanation figures.

A part has the same colour on the explained image and on the prototype's source image. Figures are
made without pyplot, so that none stays open: a notebook shows one by `display(figure)`.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import Normal, Stroke
from matplotlib.transforms import Bbox, TransformedBbox

from dpp.explanations import Match, Reasoning, Sighting, TreePath
from dpp.figures.style import PART_COLOURS

STROKE = 1.3  # points, of a part's outline, which lies within its box
HALO = 0.5  # points, of the contrasting line inside the outline
THICKEST = 0.14  # of a box's shorter side: outline and line inside, at one of its edges
ROOM = 0.2  # how far off its picture a part is still shown, of the picture's side
SOLID = {"dash_offset": 0, "dash_list": None}
PAGE = 7.2  # inches, the width of a page's text
SMALL, TEXT = 7, 8  # points
WARNING = "#b34a00"  # the colour of a warning
LINE = 0.17  # inches, of a line of text
LONGEST = 95  # characters, of a line as wide as a page


@dataclass(frozen=True)
class Marked:
    """A picture and the parts outlined on it.

    Args:
        picture: (H, W, 3) uint8, in its own proportions.
        boxes: left, top, right, bottom of each part, in pixels, in the order of the parts.
        centre: x and y of the prototype's centre, in pixels; None draws no lines from it.
    """

    picture: np.ndarray
    boxes: tuple[tuple[float, float, float, float], ...] = ()
    centre: tuple[float, float] | None = None


def mark(picture: np.ndarray, seen: Match | Sighting) -> Marked:
    """A picture with the parts of a prototype on it.

    The centre in pixels is computed from the part nearest to it, as a box is as large as a cell.
    That is exact except near a map's edge, where the cells of some networks are closer together.
    """
    boxes = tuple(tuple(part.box) for part in seen.parts)
    if len(boxes) < 2:
        return Marked(picture, boxes)
    places = np.array([part.place for part in seen.parts]) - seen.centre  # from the centre
    row, column = np.abs(places).argmin(axis=0)
    left, _, right, _ = boxes[column]
    _, top, _, bottom = boxes[row]
    x = (left + right) / 2 - places[column, 1] * (right - left)
    y = (top + bottom) / 2 - places[row, 0] * (bottom - top)
    return Marked(picture, boxes, (float(x), float(y)))


def part_style(place: int) -> tuple[str, str | tuple, str]:
    """A part's colour, its line's dashes, and the colour of the line within.

    The ninth is dashed, because its grey resembles the fourth's purple to colour-blind people.
    """
    colour = PART_COLOURS[place % len(PART_COLOURS)]
    dashes = (0, (1.2, 0.6)) if place >= 8 else "solid"
    brightness = np.dot(to_rgb(colour), (0.299, 0.587, 0.114))
    return colour, dashes, "black" if brightness > 0.3 else "white"


def draw_picture(axes: Axes, picture: np.ndarray) -> None:
    """A picture whose axes count pixels from its corner; a small one is enlarged without blur."""
    height, width = picture.shape[:2]
    axes.imshow(picture, extent=(0, width, height, 0), interpolation="auto")
    axes.axis("off")


def view_of(marked: Marked) -> Bbox:
    """The area to show: the picture, and parts that have moved a little off it."""
    height, width = marked.picture.shape[:2]
    whole = Bbox.from_extents(0, 0, width, height)
    boxes = [Bbox.from_extents(*box) for box in marked.boxes]
    room = whole.expanded(1 + 2 * ROOM, 1 + 2 * ROOM)
    return Bbox.intersection(Bbox.union([whole, *boxes]), room)


def draw_marked(axes: Axes, marked: Marked, stroke: float = STROKE) -> None:
    """A picture with the box of each part in its colour, tied to the prototype's centre.

    Outlines lie within their boxes, so that neighbours do not hide one another. If parts have moved
    off the picture, the view grows.
    """
    draw_picture(axes, marked.picture)
    view = view_of(marked)
    axes.set(xlim=(view.x0, view.x1), ylim=(view.y1, view.y0))
    draw_ties(axes, marked, stroke)
    for place, (left, top, right, bottom) in enumerate(marked.boxes):
        box = Outline((left, top), right - left, bottom - top, place, stroke)
        axes.add_patch(box)
        inside = Bbox.intersection(Bbox.from_extents(left, top, right, bottom), view)
        box.set_visible(inside is not None)
        if inside is not None:
            box.set_clip_box(TransformedBbox(inside, axes.transData))


class Outline(Rectangle):
    """The outline of a part's box: thinner where the box is small, so that the part can be seen.

    How large a box is on the page is known when the figure is drawn, after its layout.
    """

    def __init__(self, corner, width: float, height: float, place: int, stroke: float):
        colour, dashes, self.within = part_style(place)
        super().__init__(corner, width, height, fill=False, ec=colour, zorder=3)
        self.set(linestyle=dashes, joinstyle="miter")
        self.stroke = stroke
        self.set_thickness(1.0)

    def set_thickness(self, factor: float) -> None:
        """Draws with a share of the usual thickness."""
        thickness = 2 * factor * (self.stroke + HALO)  # half of a line lies outside the box
        self.set_linewidth(2 * factor * self.stroke)
        inner = Stroke(linewidth=thickness, foreground=self.within, dashes=SOLID)
        self.set_path_effects([inner, Normal()])

    def draw(self, renderer) -> None:
        extent = self.get_window_extent(renderer)
        side = min(extent.width, extent.height) / renderer.points_to_pixels(1)
        self.set_thickness(min(1.0, THICKEST * side / (self.stroke + HALO)))
        super().draw(renderer)


def draw_ties(axes: Axes, marked: Marked, stroke: float) -> None:
    """Thin lines from the prototype's centre to its parts."""
    for left, top, right, bottom in tie_ends(marked):
        for width, colour in ((1.0, "black"), (0.5, "white")):
            style = {"color": colour, "linewidth": width * stroke, "zorder": 2}
            axes.plot([left, right], [top, bottom], **style)
    if marked.centre:
        dot = {"markeredgecolor": "black", "markeredgewidth": 0.4 * stroke, "zorder": 4}
        axes.plot(*marked.centre, "o", color="white", markersize=2.2 * stroke, **dot)


def tie_ends(marked: Marked) -> list[tuple[float, float, float, float]]:
    """Lines from the prototype's centre to the edges of the boxes that it does not lie in."""
    if not marked.centre:
        return []
    x, y = marked.centre
    lines = []
    for left, top, right, bottom in marked.boxes:
        across, down = (left + right) / 2 - x, (top + bottom) / 2 - y
        halves = (right - left) / 2, (bottom - top) / 2
        pairs = zip(halves, (abs(across), abs(down)), strict=True)
        outside = 1 - min(half / length if length else np.inf for half, length in pairs)
        if outside > 0:
            lines.append((x, y, x + outside * across, y + outside * down))
    return lines


def new_figure(width: float, height: float) -> Figure:
    """A figure that is not registered with pyplot."""
    figure = Figure(figsize=(width, height), layout="constrained", dpi=100)
    figure.get_layout_engine().set(w_pad=0.04, h_pad=0.04, wspace=0.02, hspace=0.02)
    return figure


def row_height(pictures: Sequence[np.ndarray], width: float) -> float:
    """The height in inches of the tallest picture if all have this width, within limits."""
    tallest = max(picture.shape[0] / picture.shape[1] for picture in pictures)
    return width * min(max(tallest, 0.6), 1.2)


def shorten_name(name: str, width: int = 26) -> str:
    """A class name that fits beside a picture: no number in front, no underscores."""
    head, dot, tail = name.partition(".")
    spoken = (tail if dot and head.isdigit() else name).replace("_", " ")
    return spoken if len(spoken) <= width else spoken[: width - 1].rstrip() + "…"


def shorten_image(name: str, width: int = 28) -> str:
    """An image's name without its folders, cut in the middle."""
    name, half = PurePath(name).name, width // 2
    return name if len(name) <= width else f"{name[: half - 1]}…{name[-half:]}"


def number_text(number: float, digits: int = 2) -> str:
    """A number with a true minus sign, and none before zero."""
    return f"{round(number, digits) + 0.0:.{digits}f}".replace("-", "−")


def headline(explanation: Reasoning | TreePath, names: Sequence[str]) -> str:
    """The image's name and the verdict on it, in two lines if one would be too long."""
    text = f"Image {shorten_image(explanation.image)}: {verdict(explanation, names)}"
    return text if len(text) <= LONGEST else text.replace(", true class", ",\ntrue class")


def warning_lines(explanation: Reasoning | TreePath) -> list[str]:
    """The warning of an explanation, in lines that fit a figure; none if there is none."""
    text = f"Warning: {explanation.warning}"
    return textwrap.wrap(text, LONGEST) if explanation.warning else []


def verdict(explanation: Reasoning | TreePath, names: Sequence[str]) -> str:
    """The predicted class, whether that is correct, and the true class if it is not."""
    predicted, *judged = verdict_words(explanation.predicted, explanation.label, names)
    return ", ".join([predicted, *judged])


def verdict_words(predicted: int, label: int | None, names: Sequence[str]) -> list[str]:
    """A prediction in words, and if the true class is known, whether it is correct."""
    words = [f"predicted {shorten_name(names[predicted])}"]
    if label is None:
        return words
    if label == predicted:
        return [*words, "correct"]
    return [*words, "incorrect", f"true class {shorten_name(names[label])}"]
