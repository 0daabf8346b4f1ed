"""Self-contained HTML pages from templates: names are escaped, pictures are in the page itself.

Every picture is in a page once, however often it is shown; outlines are vectors above it. What is
enlarged is a second picture, of that part alone, where the first has too few pixels.
"""

import base64
import io
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from PIL import Image

from dpp.figures import PART_COLOURS
from dpp.figures.marked_pictures import Marked, part_style, tie_ends, view_of

LARGEST = 360  # pixels a side, of a picture in a page
SMALL = 128  # pixels a side, up to which a picture keeps its pixels


@dataclass(frozen=True)
class Embedded:
    """A picture in a page, shown by reference; lengths are in pixels of the original.

    Args:
        left, top: where it lies in the original.
        width, height: how much of the original it shows.
        pixelated: whether it is enlarged without blur.
        uri: its content.
    """

    left: int
    top: int
    width: int
    height: int
    pixelated: bool
    uri: str


@dataclass(frozen=True)
class Shot:
    """An embedded picture with parts outlined; all lengths in its pixels.

    Args:
        picture: the index of the embedded picture.
        label: the text alternative.
        view: left, top, width and height of what is shown.
        boxes: left, top, width and height of each part.
        ties: x1, y1, x2, y2 of lines from the prototype's centre to its parts.
    """

    picture: int
    label: str
    view: tuple[float, ...]
    boxes: tuple[tuple[float, ...], ...]
    ties: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Look:
    """A prototype on a picture: the whole with the parts outlined, and the parts enlarged."""

    whole: Shot
    zoom: Shot


@dataclass(frozen=True)
class Chart:
    """A figure as an image in a page."""

    label: str
    width: int
    uri: str


class Pictures:
    """The pictures of one page, each embedded once."""

    def __init__(self):
        self.embedded: dict[str, Embedded] = {}  # by the pictures' names
        self.numbers: dict[str, int] = {}

    def show(self, name: str, marked: Marked, label: str) -> Shot:
        """A picture with its parts.

        Args:
            name: of the picture; equal names are equal pictures.
            marked: the picture and its parts.
            label: the text alternative.
        """
        self._embed(name, marked.picture)
        return self._shot(name, marked, label, view_of(marked))

    def look(self, name: str, marked: Marked, label: str) -> Look:
        """The same, and its parts enlarged."""
        whole, near = self.show(name, marked, label), zoom_of(marked)
        source, (height, width) = name, marked.picture.shape[:2]
        if max(height, width) > LARGEST:
            left, top = max(int(near.x0), 0), max(int(near.y0), 0)
            right, bottom = min(ceil(near.x1), width), min(ceil(near.y1), height)
            if right > left and bottom > top:
                source = f"{name} {left} {top} {right} {bottom}"
                self._embed(source, marked.picture[top:bottom, left:right], (left, top))
        return Look(whole, self._shot(source, marked, f"{label}, enlarged", near))

    def _embed(self, name: str, picture: np.ndarray, place: tuple | None = None) -> None:
        if name not in self.embedded:
            self.numbers[name] = len(self.embedded)
            self.embedded[name] = embed(picture, place)

    def _shot(self, name: str, marked: Marked, label: str, view: Bbox) -> Shot:
        boxes = [
            (left, top, right - left, bottom - top) for left, top, right, bottom in marked.boxes
        ]
        return Shot(
            picture=self.numbers[name],
            label=label,
            view=_rounded((view.x0, view.y0, view.width, view.height)),
            boxes=tuple(map(_rounded, boxes)),
            ties=tuple(map(_rounded, tie_ends(marked))),
        )


def zoom_of(marked: Marked) -> Bbox:
    """A square around all parts, half a part wider on each side, within what is shown at all."""
    shown = view_of(marked)
    inside = [Bbox.intersection(Bbox.from_extents(*box), shown) for box in marked.boxes]
    around = Bbox.union([box for box in inside if box is not None] or [shown])
    margin = max(around.width, around.height) if len(marked.boxes) < 2 else _part_side(marked)
    side = max(around.width, around.height) + margin
    left = _within((around.x0 + around.x1 - side) / 2, side, shown.x0, shown.x1)
    top = _within((around.y0 + around.y1 - side) / 2, side, shown.y0, shown.y1)
    return Bbox.from_bounds(left, top, side, side)


def _part_side(marked: Marked) -> float:
    left, top, right, bottom = marked.boxes[0]
    return max(right - left, bottom - top)


def _within(start: float, length: float, low: float, high: float) -> float:
    """Where an interval starts if it is moved between two limits; in their middle if too long."""
    if length >= high - low:
        return (low + high - length) / 2
    return min(max(start, low), high - length)


def _rounded(lengths) -> tuple[float, ...]:
    return tuple(round(float(length), 2) for length in lengths)


def embed(picture: np.ndarray, place: tuple[int, int] | None = None) -> Embedded:
    """A picture (H, W, 3) as a data URI: a small one as it is, a large one smaller and as JPEG.

    Args:
        picture: what to embed.
        place: left and top, if it was cut out of another.
    """
    image, content = Image.fromarray(picture), io.BytesIO()
    width, height = image.size
    small = place is None and max(image.size) <= SMALL
    if small:
        image.save(content, "PNG", optimize=True)
    else:
        image.thumbnail((LARGEST, LARGEST))
        image.save(content, "JPEG", quality=80)
    kind = "image/png" if small else "image/jpeg"
    return Embedded(*(place or (0, 0)), width, height, small, data_uri(kind, content.getvalue()))


def chart(figure: Figure, label: str) -> Chart:
    """A figure as an image in a page; `label` is the text alternative."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130, metadata={"Software": None})
    width = round(100 * figure.get_figwidth())
    return Chart(label, width, data_uri("image/png", content.getvalue()))


def data_uri(kind: str, content: bytes) -> str:
    """Bytes of a MIME type as a URI."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def write(path: Path, template: str, pictures: Pictures, **content) -> None:
    """Writes a page.

    Args:
        path: of the page, in a folder that exists.
        template: its name in `dpp/report/templates`.
        pictures: that the content refers to.
        content: the template's variables; all text is escaped.
    """
    loader = PackageLoader("dpp.report")
    options = {"trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    page = Environment(loader=loader, autoescape=True, **options).get_template(template)
    styles = [part_style(place) for place in range(len(PART_COLOURS))]
    text = page.render(content, pictures=pictures.embedded.values(), part_styles=styles)
    path.write_text(text + "\n", encoding="utf-8")
