"""Pictures that explain the idea, in notebooks 00 to 02: drawn birds and toy maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch, Rectangle
from matplotlib.patheffects import Normal, Stroke

from dpp.data.image_records import ImageRecord, Source
from dpp.data.images import clip_box, open_image
from dpp.data.transforms import Geometry
from dpp.drawn import posebirds, studio
from dpp.drawn.species import kinds
from dpp.drawn.studio import Drawing
from dpp.figures.marked_pictures import shorten_name
from dpp.figures.pictures import draw_features, draw_parts, mark_box, mark_parts, picture_grid
from dpp.figures.style import PART_COLOURS

if TYPE_CHECKING:  # figures draw what they are given: nothing of analysis is loaded
    from dpp.analysis.toy_prototype import ToyMatch

COLOURS = 64  # of each picture, so that a notebook stays small


def draw_individual(kind: int, index: int, poses: Sequence[float], image_size: int = 192):
    """One bird of PoseBirds in several strengths of pose; all but its pose stays the same.

    Args:
        kind: which of the target classes, from 0.
        index: which individual among the class's test images, from 0.
        poses: strengths, 0 to 2.
        image_size: in pixels.

    Returns:
        A `Drawing` for each strength: its pixels, its box and the places of its visible parts.
    """
    word = kinds(kind + 1, base=False)[kind]
    generators = [studio.generator("posebirds", 0, "test", word, index) for _ in poses]
    pairs = zip(generators, poses, strict=True)
    return [posebirds.draw_image(word, rng, image_size, pose) for rng, pose in pairs]


def part_places(drawing: Drawing, parts: Sequence[str]) -> np.ndarray:
    """The places x, y of some visible parts of a drawing, (parts, 2)."""
    return np.array([drawing.parts[part] for part in parts])


def keep_arrangement(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """An arrangement of parts (parts, 2), shifted as a whole to lie as near as it can to another.

    The shift with the smallest squared distances is that of the means.
    """
    return source + (target - source).mean(axis=0)


def is_hit(places: np.ndarray, target: np.ndarray, side: float) -> np.ndarray:
    """Whether the square around each place contains its part, (parts,)."""
    return (np.abs(places - target) <= side / 2).all(axis=1)


def boxes_on_birds(
    panels: Mapping[str, tuple[np.ndarray, np.ndarray]], side: float, names: Sequence[str] = ()
) -> Figure:
    """Pictures in a row, each with a square around each part of a prototype.

    Args:
        panels: by title, a picture (H, W, 3) and the places x, y of the parts, (parts, 2).
        side: of the squares, in pixels.
        names: of the parts; written beside the squares of the first picture.
    """
    pictures = [picture for picture, _ in panels.values()]
    figure, grid = picture_grid(pictures, list(panels), len(panels), 2.9, COLOURS)
    for axes, (_, places) in zip(grid, panels.values(), strict=True):
        _draw_boxes(axes, places, side)
        axes.title.set_fontsize(9)
    for (x, y), name in zip(panels[next(iter(panels))][1], names, strict=False):
        style = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1}
        below = (x, y + side / 2 + 2)
        grid[0].text(*below, name, ha="center", va="top", fontsize=8, bbox=style, zorder=4)
    pyplot.close(figure)  # a notebook would show it again at the end of its cell
    return figure


def _draw_boxes(axes: Axes, places: np.ndarray, side: float) -> None:
    middle = places.mean(axis=0)
    for (x, y), colour in zip(places, PART_COLOURS, strict=False):
        line = {"color": "white", "linewidth": 1, "path_effects": _halo(2)}
        axes.plot([middle[0], x], [middle[1], y], **line)
        _outline(axes, (x, y), side, colour)
    axes.plot(*middle, "+", color="white", markersize=9, path_effects=_halo(3))


def _outline(axes: Axes, place: Sequence[float], side: float, colour: str) -> None:
    corner = (place[0] - side / 2, place[1] - side / 2)
    style = {"fill": False, "linewidth": 2, "edgecolor": colour, "path_effects": _halo(3.5)}
    axes.add_patch(Rectangle(corner, side, side, **style, zorder=3))


def _halo(width: float) -> list:
    return [Stroke(linewidth=width, foreground="black"), Normal()]


def this_looks_like_that(
    image: tuple[np.ndarray, Sequence[float]],
    cases: Mapping[str, tuple[np.ndarray, Sequence[float]]],
    side: float,
) -> Figure:
    """One patch of a new image, joined to the patches of known images that it is compared with.

    Args:
        image: the new picture (H, W, 3), and x, y of its patch.
        cases: by title, known pictures with their patches.
        side: of the patches, in pixels.
    """
    pictures = [image[0], *(picture for picture, _ in cases.values())]
    places = [image[1], *(place for _, place in cases.values())]
    titles = ["this: a new image", *cases]
    figure, grid = picture_grid(pictures, titles, len(pictures), 2.9, COLOURS)
    for axes, place in zip(grid, places, strict=True):
        axes.title.set_fontsize(9)
        _outline(axes, place, side, PART_COLOURS[0])
    for number, (axes, place) in enumerate(zip(grid[1:], places[1:], strict=True)):
        ends = (places[0][0], places[0][1] - side / 2), (place[0], place[1] - side / 2)
        bend = {"connectionstyle": f"arc3,rad={-0.12 - 0.03 * number}", "arrowstyle": "->"}
        style = {"color": "white", "linewidth": 1.6, "path_effects": _halo(3)}
        joined = {"axesA": grid[0], "axesB": axes, "coordsA": "data", "coordsB": "data"}
        figure.add_artist(ConnectionPatch(*ends, **joined, **bend, **style, in_layout=False))
    pyplot.close(figure)
    return figure


def toy_matches(panels: Mapping[str, ToyMatch]) -> Figure:
    """Toy maps in a row, each with a prototype's parts where it fits best.

    Args:
        panels: matches by title; the similarity is added to the title.
    """
    figure, grid = pyplot.subplots(1, len(panels), figsize=(3 * len(panels), 3.3))
    figure.set_layout_engine("constrained")
    for axes, (title, match) in zip(np.atleast_1d(grid), panels.items(), strict=True):
        shares = match.features[0, : len(match.parts)] / match.features[0].norm(dim=0)
        draw_features(axes, shares.numpy(), f"{title}: {match.similarity:.2f}")
        draw_parts(axes, match.parts, match.centre)
    return figure


def steps_of_a_match(match: ToyMatch, offsets: np.ndarray, similarity: np.ndarray) -> Figure:
    """Figure 2 of the paper on a toy map: features, offsets, moved parts, similarity map.

    Args:
        match: where the prototype fits best.
        offsets: (2 * parts, H, W); those of the first part are drawn, at every other cell.
        similarity: (H, W), with the prototype centred at each cell.
    """
    figure, grid = pyplot.subplots(1, 4, figsize=(12, 3.3), layout="constrained")
    titles = ("(a) features", "(b) offsets of one part", "(c) moved parts")
    shares = match.features[0, : len(match.parts)] / match.features[0].norm(dim=0)
    for axes, title in zip(grid, titles, strict=False):
        draw_features(axes, shares.numpy(), title)
    down, right = offsets[:2, ::2, ::2]
    cells = np.arange(0, offsets.shape[-1], 2)
    style = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.007}
    grid[1].quiver(cells, cells, right, down, **style)
    draw_parts(grid[2], match.parts, match.centre)
    image = grid[3].imshow(similarity, cmap="cividis")
    grid[3].set(title="(d) similarity map", xticks=[], yticks=[])
    figure.colorbar(image, ax=grid[3], shrink=0.8)
    return figure


def picture_records(
    source: Source,
    records: Sequence[ImageRecord],
    columns: int = 5,
    side: float = 1.5,
    *,
    boxes: bool = False,
    parts: bool = False,
) -> Figure:
    """Images of a data set in rows, with their classes, and their boxes and visible parts.

    Args:
        source: that the records are of.
        records: to show.
        columns: pictures in a row.
        side: width of a picture in inches.
        boxes: outline the annotated boxes.
        parts: mark and name the visible parts.
    """
    pictures = [np.asarray(open_image(record.path)) for record in records]
    titles = [shorten_name(source.class_name(record)) for record in records]
    figure, grid = picture_grid(pictures, titles, columns, side)
    for axes, record, picture in zip(grid, records, pictures, strict=True):
        if boxes:
            mark_box(axes, clip_box(record.box, picture.shape[1], picture.shape[0]))
        if parts:
            pairs = zip(source.part_names, record.parts, strict=True)
            seen = {name: (part.x, part.y) for name, part in pairs if part.visible}
            mark_parts(axes, list(seen.values()), list(seen))
    return figure


def cell_on_views(
    record: ImageRecord,
    place: Sequence[float],
    views: Mapping[str, Geometry],
    cells: tuple[int, int],
) -> Figure:
    """A place of an image, and the cell of a feature map that it falls into, for several views.

    Args:
        record: of the image.
        place: x and y, in its pixels.
        views: by title; white outlines what the network sees, red the cell.
        cells: rows and columns of the map.
    """
    picture = np.asarray(open_image(record.path))
    figure, grid = picture_grid([picture] * len(views), list(views), len(views), 2.5)
    for axes, view in zip(grid, views.values(), strict=True):
        cell = view.image_to_cell([place[1], place[0]], cells).round()
        mark_box(axes, view.region)
        mark_box(axes, view.cell_box(cell, cells), PART_COLOURS[5])
        mark_parts(axes, [place])
    return figure
