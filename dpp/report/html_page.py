"""Self-contained HTML: text that is escaped, pictures that are in the page, parts drawn over them.

Every picture is in a page once, however often it is shown; outlines are vectors above it.
"""

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from dpp.figures import PART_COLOURS
from dpp.figures.marked_pictures import Marked, part_style, tie_ends, view_of

LARGEST = 320  # pixels a side, of a picture in a page
SMALL = 128  # pixels a side, up to which a picture keeps its pixels

CSS = """
:root { color-scheme: light dark; --text: #1a1a1a; --soft: #5c5c5c; --page: #fff; --card: #f4f4f2;
  --line: #d8d8d4; --right: #00704f; --wrong: #b34a00; }
@media (prefers-color-scheme: dark) { :root { --text: #e8e8e6; --soft: #a5a5a0; --page: #161618;
  --card: #222225; --line: #3a3a3e; --right: #4cc9a0; --wrong: #ff9a57; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 72rem; background: var(--page);
  color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; } h2 { font-size: 1.25rem;
  margin: 2.5rem 0 .8rem; border-bottom: 1px solid var(--line); } h3 { font-size: 1rem;
  margin: 1.4rem 0 .5rem; } p { margin: .4rem 0; max-width: 46rem; }
nav a { margin-right: 1rem; } a { color: inherit; }
.soft, figcaption, th { color: var(--soft); } .right { color: var(--right); }
.wrong { color: var(--wrong); } .label { background: var(--card); border: 1px solid var(--line);
  border-radius: .3rem; padding: .1rem .5rem; }
table { border-collapse: collapse; } th, td { padding: .15rem .9rem .15rem 0; text-align: left;
  vertical-align: top; font-weight: normal; } td.number { text-align: right;
  font-variant-numeric: tabular-nums; } .total td { border-top: 1px solid var(--text);
  font-weight: bold; }
.row { display: flex; flex-wrap: wrap; gap: .9rem; align-items: flex-start; }
.card { background: var(--card); border-radius: .5rem; padding: .9rem; margin: 0 0 1rem; }
figure { margin: 0; } figcaption { font-size: .8rem; line-height: 1.3; }
.shot { display: block; width: 9.5rem; height: auto; } .row .wide { flex: 1 1 24rem; }
.card .row { flex-wrap: nowrap; gap: .5rem; } .card > .row { flex-wrap: wrap; gap: 1.2rem; }
.card .shot { width: 6.6rem; } .card td { font-size: .9rem; padding: .2rem .6rem .2rem 0; }
.card figure { max-width: 11rem; } .card > .row > figure .shot { width: 11rem; }
.chart { max-width: 100%; height: auto; background: #fff; padding: .5rem; border-radius: .5rem; }
.scroll { overflow-x: auto; } details summary { cursor: pointer; color: var(--soft); }
.shot rect, .shot line { fill: none; vector-effect: non-scaling-stroke; }
.shot .halo { stroke-width: 3.2px; } .shot .part { stroke-width: 1.8px; }
.shot .tie { stroke: #fff; stroke-width: 1px; } .shot .under { stroke: #000; stroke-width: 2px; }
"""


class Page:
    """A page that is being written.

    Args:
        title: of the page.
    """

    def __init__(self, title: str):
        self.title = title
        self.sections: list[tuple[str, str]] = []  # title and content
        self.pictures: dict[str, str] = {}  # elements by the pictures' names

    def add(self, title: str, *content: str) -> None:
        """Adds a section of HTML."""
        self.sections.append((title, "\n".join(content)))

    def show(self, name: str, marked: Marked, label: str) -> str:
        """A picture with its parts.

        Args:
            name: of the picture; equal names are equal pictures.
            marked: the picture and its parts.
            label: what it shows, for those who cannot see it.
        """
        number = self._keep(name, marked.picture)
        view = view_of(marked)
        shapes = [*_ties(marked), *_boxes(marked)]
        return (
            f'<svg class="shot" role="img" aria-label="{escape(label)}" viewBox="'
            f'{view.x0:g} {view.y0:g} {view.width:g} {view.height:g}">'
            f'<use href="#picture-{number}"/>{"".join(shapes)}</svg>'
        )

    def _keep(self, name: str, picture: np.ndarray) -> int:
        if name not in self.pictures:
            height, width = picture.shape[:2]
            style = ' style="image-rendering:pixelated"' if max(width, height) <= SMALL else ""
            self.pictures[name] = (
                f'<image id="picture-{len(self.pictures)}" width="{width}" height="{height}"'
                f'{style} href="{picture_uri(picture)}"/>'
            )
        return list(self.pictures).index(name)

    def text(self) -> str:
        """The whole page."""
        links = [f'<a href="#{_anchor(title)}">{escape(title)}</a>' for title, _ in self.sections]
        sections = [
            f'<section id="{_anchor(title)}"><h2>{escape(title)}</h2>\n{content}</section>'
            for title, content in self.sections
        ]
        return "\n".join(
            [
                '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                f"<title>{escape(self.title)}</title>\n<style>{CSS}{_part_rules()}</style></head>",
                f"<body><h1>{escape(self.title)}</h1>\n<nav>{''.join(links)}</nav>",
                '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>',
                *self.pictures.values(),
                "</defs></svg>",
                *sections,
                "</body></html>\n",
            ]
        )


def picture_uri(picture: np.ndarray) -> str:
    """A picture as a data URI: a small one as it is, a large one smaller and as JPEG."""
    image, file = Image.fromarray(picture), io.BytesIO()
    if max(image.size) <= SMALL:
        image.save(file, "PNG", optimize=True)
        return data_uri("image/png", file.getvalue())
    image.thumbnail((LARGEST, LARGEST))
    image.save(file, "JPEG", quality=80)
    return data_uri("image/jpeg", file.getvalue())


def chart(figure: Figure, label: str) -> str:
    """A figure as an image in the page."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=130, metadata={"Software": None})
    width = round(100 * figure.get_figwidth())
    uri = data_uri("image/png", file.getvalue())
    return f'<img class="chart" width="{width}" alt="{escape(label)}" src="{uri}">'


def data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def table(rows: Iterable[Sequence], header: Sequence[str] = ()) -> str:
    """Rows of a name and values; under a header, numbers are set to the right."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = [f"<tr>{head}</tr>"] if header else []
    for name, *values in rows:
        cells = "".join(_cell(value, bool(header)) for value in values)
        lines.append(f"<tr><th>{escape(str(name))}</th>{cells}</tr>")
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _cell(value, in_column: bool) -> str:
    kind = ' class="number"' if in_column and isinstance(value, int | float) else ""
    return f"<td{kind}>{escape(str(value))}</td>"


def figure(content: str, caption: str) -> str:
    """Something with a caption below, which may have several lines."""
    lines = "<br>".join(escape(line) for line in caption.splitlines())
    return f"<figure>{content}<figcaption>{lines}</figcaption></figure>"


def _anchor(title: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in title.lower())


def _boxes(marked: Marked) -> list[str]:
    shapes = []
    for place, (left, top, right, bottom) in enumerate(marked.boxes):
        where = f'x="{left:.2f}" y="{top:.2f}" width="{right - left:.2f}"'
        where += f' height="{bottom - top:.2f}"'
        shapes.append(f'<rect class="halo h{place}" {where}/>')
        shapes.append(f'<rect class="part p{place}" {where}><title>part {place + 1}</title></rect>')
    return shapes


def _ties(marked: Marked) -> list[str]:
    lines = []
    for x1, y1, x2, y2 in tie_ends(marked):
        where = f'x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"'
        lines += [f'<line class="under" {where}/>', f'<line class="tie" {where}/>']
    return lines


def _part_rules() -> str:
    """The colours of parts, as the figures have them."""
    rules = []
    for place in range(len(PART_COLOURS)):
        colour, dashes, halo = part_style(place)
        dashed = "" if dashes == "solid" else " stroke-dasharray: 3px 1.5px;"
        rules.append(f".p{place} {{ stroke: {colour};{dashed} }} .h{place} {{ stroke: {halo}; }}")
    return "\n".join(rules)
