"""Self-contained HTML pages from templates: names are escaped, pictures are in the page itself.

Every picture is in a page once, however often it is shown; outlines are vectors above it.
"""

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure
from PIL import Image

from dpp.figures import PART_COLOURS
from dpp.figures.marked_pictures import Marked, part_style, tie_ends, view_of

LARGEST = 320  # pixels a side, of a picture in a page
SMALL = 128  # pixels a side, up to which a picture keeps its pixels


@dataclass(frozen=True)
class Embedded:
    """A picture in a page, shown by reference."""

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
class Chart:
    """A figure as an image in a page."""

    label: str
    width: int
    uri: str


class Pictures:
    """The pictures of one page, each embedded once."""

    def __init__(self):
        self.embedded: dict[str, Embedded] = {}  # by the pictures' names

    def show(self, name: str, marked: Marked, label: str) -> Shot:
        """A picture with its parts.

        Args:
            name: of the picture; equal names are equal pictures.
            marked: the picture and its parts.
            label: the text alternative.
        """
        if name not in self.embedded:
            self.embedded[name] = embed(marked.picture)
        view = view_of(marked)
        boxes = [
            (left, top, right - left, bottom - top) for left, top, right, bottom in marked.boxes
        ]
        return Shot(
            picture=list(self.embedded).index(name),
            label=label,
            view=_rounded((view.x0, view.y0, view.width, view.height)),
            boxes=tuple(map(_rounded, boxes)),
            ties=tuple(map(_rounded, tie_ends(marked))),
        )


def _rounded(lengths) -> tuple[float, ...]:
    return tuple(round(float(length), 2) for length in lengths)


def embed(picture: np.ndarray) -> Embedded:
    """A picture (H, W, 3) as a data URI: a small one as it is, a large one smaller and as JPEG."""
    image, content = Image.fromarray(picture), io.BytesIO()
    width, height = image.size
    small = max(image.size) <= SMALL
    if small:
        image.save(content, "PNG", optimize=True)
    else:
        image.thumbnail((LARGEST, LARGEST))
        image.save(content, "JPEG", quality=80)
    kind = "image/png" if small else "image/jpeg"
    return Embedded(width, height, small, data_uri(kind, content.getvalue()))


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
        path: of the page; missing folders are made.
        template: its name in `dpp/report/templates`.
        pictures: that the content refers to.
        content: the template's variables; all text is escaped.
    """
    loader = PackageLoader("dpp.report")
    options = {"trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    page = Environment(loader=loader, autoescape=True, **options).get_template(template)
    styles = [part_style(place) for place in range(len(PART_COLOURS))]
    text = page.render(content, pictures=pictures.embedded.values(), part_styles=styles)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
