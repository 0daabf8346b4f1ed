"""Figures 1 to 4 of the paper, from arrays of a real network (`dpp.analysis.figure_data`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, ConnectionPatch, Rectangle
from matplotlib.patheffects import Normal, Stroke

from dpp.figures.blocks import draw_arrow, draw_block, draw_prototypes
from dpp.figures.marked_pictures import (
    PAGE,
    SMALL,
    SOLID,
    TEXT,
    Marked,
    draw_marked,
    draw_picture,
    mark,
    new_figure,
    number_text,
    part_style,
    row_height,
    shorten_name,
)
from dpp.figures.style import PART_COLOURS

CLASS_COLOURS = (PART_COLOURS[4], PART_COLOURS[5], PART_COLOURS[2])
ARROWS = 12  # at most, along a side of all offset fields together
MARKERS = ("o", "^", "s")

if TYPE_CHECKING:  # analysis loads runs and networks, which drawing does not need
    from dpp.analysis.figure_data import Application, Block, LatentSpace


def comparison(pairs: Mapping[str, tuple[Marked, Marked, float]]) -> Figure:
    """Figure 1: an image compared with a rigid and with a deformable prototype.

    Args:
        pairs: by title, the prototype on the image, the prototype on its source, and their
            similarity. Lines join equal parts.
    """
    side = PAGE / (2 * len(pairs)) - 0.1
    pictures = [marked.picture for pair in pairs.values() for marked in pair[:2]]
    figure = new_figure(PAGE, row_height(pictures, side) + 0.5)
    halves = np.atleast_1d(figure.subfigures(1, len(pairs), wspace=0.04))
    for half, (title, (image, source, similarity)) in zip(halves, pairs.items(), strict=True):
        text = f"{title}: similarity {number_text(similarity, 3)}"
        half.suptitle(text, fontsize=TEXT + 1, fontweight="bold")
        left, right = half.subplots(1, 2)
        for axes, marked, name in ((left, image, "image"), (right, source, "prototype")):
            draw_marked(axes, marked)
            axes.set_title(name, fontsize=TEXT)
            axes.set_anchor("N")
        for place, (here, there) in enumerate(zip(image.boxes, source.boxes, strict=True)):
            ends = (here[2], (here[1] + here[3]) / 2), (there[0], (there[1] + there[3]) / 2)
            style = {"color": part_style(place)[0], "linewidth": 0.9, "in_layout": False}
            joined = {"axesA": left, "axesB": right, "coordsA": "data", "coordsB": "data"}
            half.add_artist(ConnectionPatch(*ends, **joined, **style))
    return figure


def application(applied: Application, picture: np.ndarray) -> Figure:
    """Figure 2: how a deformable prototype is applied to an image.

    Args:
        applied: from `figure_data.apply_prototype`.
        picture: the image, (H, W, 3) uint8.
    """
    figure = new_figure(PAGE, row_height([picture], PAGE / 5) + 0.45)
    parts = figure.subfigures(1, 5)
    titles = ("(a) image", "(b) features", "(c) offsets", "(d) moved parts", "(e) similarity")
    for part, title in zip(parts, titles, strict=True):
        part.suptitle(title, fontsize=TEXT)
    image, features, moved, similarities = (parts[place].subplots() for place in (0, 1, 3, 4))
    shape = picture.shape[0] / picture.shape[1] * np.divide(*applied.similarities.shape[::-1])
    draw_picture(image, picture)
    features.imshow(principal_colours(applied.features), aspect=shape)
    magnified = _draw_fields(parts[2], applied, shape)
    draw_marked(moved, mark(picture, applied.match))
    _draw_rest(moved, applied)
    similarities.imshow(applied.similarities, cmap="cividis", aspect=shape)
    row, column = applied.match.centre
    for colour, width in (("white", 2.2), ("black", 1)):
        style = {"mfc": "none", "mec": colour, "mew": width, "markersize": 7}
        similarities.plot(column, row, "o", **style)
    moves = np.linalg.norm(applied.offsets, axis=1).max()
    least = number_text(applied.similarities.min())
    notes = (
        f"{picture.shape[1]} × {picture.shape[0]} pixels",
        f"{' × '.join(map(str, applied.features.shape))}, 3 PCs",
        f"up to {number_text(moves)} cells (drawn × {magnified:.2g})",
        f"{len(applied.rest)} parts; dotted: at rest",
        f"{least} to {number_text(applied.match.similarity, 3)}",
    )
    for part, note in zip(parts, notes, strict=True):
        part.supxlabel(note, fontsize=SMALL - 0.5)
    for axes in (features, similarities):
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    return figure


def principal_colours(features: np.ndarray) -> np.ndarray:
    """Features (C, H, W) as colours (H, W, 3): their first three principal components."""
    rows = features.reshape(len(features), -1).T
    left, values, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    components = np.zeros((len(rows), 3))
    components[:, : values.size][:, :3] = (left * values)[:, :3]
    components *= np.where(-components.min(axis=0) > components.max(axis=0), -1, 1)  # of two signs
    spread = np.ptp(components, axis=0)
    scaled = (components - components.min(axis=0)) / np.where(spread > 0, spread, 1)
    return scaled.reshape(*features.shape[1:], 3)


def _draw_fields(figure, applied: Application, aspect: float) -> float:
    """The offset field of each part, at its position in the prototype; returns its magnification.

    Arrows of the longest offset are as long as the distance between arrows.
    """
    parts, _, height, width = applied.offsets.shape
    side = round(parts**0.5)
    step = -(-max(height, width) * side // ARROWS)  # cells from one arrow to the next
    few = np.s_[step // 2 :: step, step // 2 :: step]
    grid = figure.subplots(side, side, squeeze=False)
    rows, columns = (cells[few] for cells in np.mgrid[:height, :width])
    longest = np.linalg.norm(applied.offsets, axis=1).max()
    magnified = step / longest if longest else 1
    for place, (axes, (down, right)) in enumerate(zip(grid.flat, applied.offsets, strict=True)):
        colour, _, halo = part_style(place)
        style = {"angles": "xy", "scale_units": "xy", "scale": 1 / magnified, "pivot": "mid"}
        style |= {"units": "inches", "width": 0.018, "headwidth": 3.5, "headlength": 3.5}
        style |= {"headaxislength": 3, "minshaft": 1.6, "minlength": 0.3}
        style |= {"facecolor": colour, "edgecolor": halo, "linewidth": 0.4, "clip_on": False}
        axes.quiver(columns, rows, right[few], down[few], in_layout=False, **style)
        axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), xticks=[], yticks=[])
        axes.set_aspect(aspect)
        row = place // side
        axes.set_anchor("S" if row == 0 else "N" if row == side - 1 else "C")  # close together
        axes.spines[:].set_color("0.8")
    return magnified


def _draw_rest(axes: Axes, applied: Application) -> None:
    """The parts before they move, dotted."""
    for left, top, right, bottom in applied.rest_boxes:
        corner, wide, high = (left, top), right - left, bottom - top
        style = {"linewidth": 0.8, "linestyle": ":", "edgecolor": "white", "zorder": 2}
        effects = [Stroke(linewidth=1.4, foreground="0.2", dashes=SOLID, alpha=0.4), Normal()]
        axes.add_patch(Rectangle(corner, wide, high, fill=False, path_effects=effects, **style))


ROW = ("image", "features", "z", "similarities", "scores", "logits")
LABELS = {
    "image": "image x",
    "features": "features z",
    "z": "on the sphere, ẑ",
    "offsets": "offsets Δ",
    "prototypes": "prototypes p̂",
    "similarities": "similarity maps",
    "scores": "similarities g",
    "logits": "class scores",
}
OPERATIONS = {
    "features": "backbone\nf",
    "z": "ε channel,\nlength r",
    "offsets": "branch δ",
    "similarities": "",
    "scores": "max",
    "logits": "last layer\nh",
}
OF_PATCHES = {"z": "patches"}, {"z": "add-on\nlayers", "scores": "", "logits": ""}  # baselines'


def architecture(blocks: Sequence[Block], title: str = "") -> Figure:
    """Figure 3: the network, every block with its real shape.

    Args:
        blocks: from `figure_data.architecture_of`.
        title: above the figure.
    """
    shapes = {block.name: block.shape for block in blocks}
    row = [name for name in ROW if name in shapes]
    labels, operations = dict(LABELS), dict(OPERATIONS)
    if "similarities" not in shapes:
        labels |= OF_PATCHES[0]
        operations |= OF_PATCHES[1]
    figure = Figure(figsize=(PAGE, 2.65), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, PAGE), ylim=(0, 2.65))
    axes.axis("off")
    axes.text(PAGE / 2, 2.5, title, ha="center", va="center", fontsize=TEXT, fontweight="bold")
    level, low, step = 1.8, 0.56, PAGE / len(row)
    x = {name: (place + 0.5) * step for place, name in enumerate(row)}
    halves = {name: draw_block(axes, shapes[name], labels[name], x[name], level) for name in row}
    after = row[row.index("z") + 1]
    node = x[after] - 0.5 * step
    for name, following in zip(row, row[1:], strict=False):
        ends = x[name] + halves[name] + 0.05, x[following] - halves[following] - 0.05
        if following != after:
            draw_arrow(axes, (ends[0], level), (ends[1], level), operations[following])
            continue
        draw_arrow(axes, (ends[0], level), (node - 0.08, level))
        draw_arrow(axes, (node + 0.08, level), (ends[1], level))
    axes.add_patch(Circle((node, level), 0.08, facecolor="white", edgecolor="black", linewidth=0.9))
    style = {"ha": "center", "va": "bottom", "fontsize": SMALL, "color": "0.25"}
    axes.text(node, level + 0.12, "compare", **style)
    if "offsets" in shapes:
        half = draw_block(axes, shapes["offsets"], labels["offsets"], x["z"], low)
        draw_arrow(axes, (x["z"], 1.17), (x["z"], 0.93))
        style = {"ha": "right", "va": "center", "fontsize": SMALL, "color": "0.25"}
        axes.text(x["z"] - 0.06, 1.05, operations["offsets"], **style)
        draw_arrow(axes, (x["z"] + half + 0.05, low), (node - 0.03, level - 0.09))
    draw_prototypes(axes, shapes["prototypes"], labels["prototypes"], node + 0.95, low)
    draw_arrow(axes, (node + 0.4, low + 0.05), (node + 0.03, level - 0.09))
    return figure


def latent_space(space: LatentSpace, names: Sequence[str]) -> Figure:
    """Figure 4: prototypes and the features around them on the hypersphere.

    On the left, an azimuthal map around the first class's prototype: the distance from the middle
    is the true angle to it, the direction is that in the first two principal components of the
    orthogonal rest. A line shows the margin that training subtracts for images of other classes
    (equation 12). On the right, parts of the prototypes and the features under them, projected on
    the first three principal directions; the title gives the share of squared length kept.

    Args:
        space: from `figure_data.latent_space_of`.
        names: of all classes.
    """
    figure = new_figure(PAGE, 3.95)
    left = figure.add_subplot(1, 2, 1, projection="polar")
    right = figure.add_subplot(1, 2, 2, projection="3d")
    _draw_angles(left, space)
    _draw_sphere(right, space)
    handles = [
        left.plot([], [], marker, color=colour, markersize=4)[0]
        for marker, colour, _ in zip(MARKERS, CLASS_COLOURS, space.labels, strict=False)
    ]
    handles.append(left.plot([], [], "k*", markersize=8)[0])
    texts = [shorten_name(names[label]) for label in space.labels]
    style = {"loc": "outside lower center", "frameon": False, "fontsize": TEXT}
    figure.legend(handles, [*texts, "prototypes"], ncols=len(handles), **style)
    return figure


def angles_around(centre: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Polar coordinates of unit vectors (N, D) around a unit vector (D,).

    Returns:
        directions (N,), in the plane of the first two principal components orthogonal to the
        centre, and angles (N,) to the centre, in radians.
    """
    cosines = vectors @ centre
    across = vectors - cosines[:, None] * centre
    angles = np.arctan2(np.linalg.norm(across, axis=1), cosines)
    _, _, axes = np.linalg.svd(across, full_matrices=False)
    first, second = (across @ axes[:2].T).T
    return np.arctan2(second, first), angles


def _draw_angles(axes: Axes, space: LatentSpace) -> None:
    everything = np.concatenate([space.features, space.prototypes[1:]])
    directions, angles = (values for values in angles_around(space.prototypes[0], everything))
    count = len(space.features)
    for label, marker, colour in zip(space.labels, MARKERS, CLASS_COLOURS, strict=False):
        images = np.flatnonzero(space.image_labels == label)
        if label != space.labels[0]:
            nearer = np.maximum(angles[images] - space.margin, 0)
            lines = [directions[images], directions[images]], [angles[images], nearer]
            axes.plot(*lines, color=colour, linewidth=0.7, alpha=0.8)
        axes.plot(directions[images], angles[images], marker, color=colour, markersize=3)
    stars = {"marker": "*", "markersize": 11, "markeredgecolor": "black", "linestyle": "none"}
    axes.plot(0, 0, color=CLASS_COLOURS[0], **stars)
    for place, colour in enumerate(CLASS_COLOURS[1 : len(space.labels)]):
        axes.plot(directions[count + place], angles[count + place], color=colour, **stars)
    axes.set_xticks([])
    axes.set_rlim(0, 1.08 * angles.max())
    axes.tick_params(labelsize=SMALL - 1)
    axes.grid(color="0.85")
    title = f"angle to one prototype, in radians\nlines: the margin φ = {space.margin:g}"
    axes.set_title(title, fontsize=TEXT)


def _draw_sphere(axes, space: LatentSpace) -> None:
    count, rho, channels = space.patches.shape
    rows = np.concatenate([space.parts.reshape(-1, channels), space.patches.reshape(-1, channels)])
    _, _, directions = np.linalg.svd(rows, full_matrices=False)
    projected = rows @ directions[:3].T
    kept = (projected**2).sum() / (rows**2).sum()
    projected /= np.linalg.norm(projected, axis=1, keepdims=True)
    turn, height = np.mgrid[0 : 2 * np.pi : 25j, 0 : np.pi : 13j]
    sphere = np.cos(turn) * np.sin(height), np.sin(turn) * np.sin(height), np.cos(height)
    axes.plot_wireframe(*sphere, color="0.85", linewidth=0.4)
    owners = np.concatenate([np.repeat(space.labels, rho), np.repeat(space.image_labels, rho)])
    is_part = np.arange(len(rows)) < len(space.labels) * rho
    for label, marker, colour in zip(space.labels, MARKERS, CLASS_COLOURS, strict=False):
        patches, parts = (projected[(owners == label) & kind].T for kind in (~is_part, is_part))
        axes.scatter(*patches, marker=marker, s=5, color=colour, alpha=0.5, linewidth=0)
        axes.scatter(*parts, marker="*", s=60, color=colour, edgecolor="black", lw=0.6)
    middle = projected.mean(axis=0)
    turned = np.degrees(np.arctan2(middle[1], middle[0]))
    raised = np.degrees(np.arcsin(middle[2] / np.linalg.norm(middle)))
    axes.view_init(elev=raised, azim=turned)
    axes.set_box_aspect((1, 1, 1), zoom=1.5)
    axes.axis("off")
    axes.set_title(f"parts, in three principal directions\n({kept:.0%} of length²)", fontsize=TEXT)
