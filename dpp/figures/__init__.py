"""Arrays in, matplotlib out. Nothing here computes anything that is not about drawing."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

PICTURE_DPI = 80

# Okabe and Ito's colours, which colour-blind people can tell apart, and a grey for the ninth part.
PART_COLOURS = (
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#CC79A7",
    "#0072B2",
    "#D55E00",
    "#F0E442",
    "#000000",
    "#999999",
)


def save(figure: Figure, path: Path, dpi: int = 100, colours: int | None = None) -> None:
    """Writes a PNG or PDF without the date and versions that would change its bytes each time.

    Args:
        figure: what to write.
        path: its ending says how.
        dpi: dots per inch.
        colours: how many a PNG keeps; all of them by default.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if colours and path.suffix == ".png":
        path.write_bytes(as_png(figure, dpi, colours))
        return
    undated = {"Software": None} if path.suffix == ".png" else {"CreationDate": None}
    figure.savefig(path, dpi=dpi, metadata=undated)


def as_png(figure: Figure, dpi: int = 100, colours: int = 256) -> bytes:
    """A PNG of few colours, a third as large: for notebooks with many pictures.

    Args:
        figure: what to draw.
        dpi: dots per inch.
        colours: how many, up to 256; those of parts, black and white are always among them.
    """
    drawn, kept = BytesIO(), BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi, metadata={"Software": None})
    fixed = [round(255 * share) for name in (*PART_COLOURS, "white") for share in to_rgb(name)]
    palette = Image.new("P", (1, 1))
    with Image.open(drawn) as image:
        picture = image.convert("RGB")
    own = picture.quantize(colours - len(fixed) // 3, dither=Image.Dither.NONE).getpalette()
    palette.putpalette(fixed + own)
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(
        kept, format="png", optimize=True
    )
    return kept.getvalue()


def draw_features(axes: Axes, features: np.ndarray, title: str = "") -> None:
    """Paints a toy map: channel i in the colour of part i, what is left in white.

    Args:
        features: (C, H, W), with at most as many channels as there are colours; values up to 1.
    """
    ink = np.array([to_rgb(colour) for colour in PART_COLOURS[: len(features)]])
    shares = features[..., None].clip(0, 1)  # (C, H, W, 1)
    picture = 1 - (shares * (1 - ink[:, None, None, :])).sum(axis=0)
    axes.imshow(picture.clip(0, 1))
    axes.set_title(title)
    axes.set_xticks([])
    axes.set_yticks([])


def draw_parts(axes: Axes, places: np.ndarray, centre: tuple[int, int]) -> None:
    """Outlines each part's cell in its colour and ties it to the prototype's centre.

    Args:
        places: (parts, 2), row and column of each part, in cells.
        centre: row and column at which the prototype is applied.
    """
    for (row, column), colour in zip(places, PART_COLOURS, strict=False):
        axes.plot([centre[1], column], [centre[0], row], color="0.35", linewidth=1, zorder=2)
        for width, edge in ((4, "black"), (2, colour)):
            corner = (column - 0.5, row - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, lw=width, ec=edge, zorder=3))
    axes.plot(centre[1], centre[0], marker="+", color="0.1", markersize=10, zorder=4)


def picture_grid(
    pictures: Sequence[np.ndarray],
    titles: Sequence[str] = (),
    columns: int = 6,
    side: float = 1.5,
    colours: int = 32,
) -> tuple[Figure, list[Axes]]:
    """Pictures in rows.

    Args:
        pictures: each (H, W, 3) uint8. Axes count pixels from the top left corner, as records do:
            the first pixel goes from 0 to 1.
        titles: one for each picture, or none.
        side: width of a picture in inches.
        colours: how many each picture keeps, so that a notebook full of them stays small.

    Returns:
        The figure, and one axes for each picture.
    """
    rows = -(-len(pictures) // columns)
    height = side + (0.2 if titles else 0)
    figure, grid = pyplot.subplots(
        rows,
        columns,
        figsize=(columns * side, rows * height),
        dpi=PICTURE_DPI,
        squeeze=False,
        layout="constrained",
    )
    for axes in grid.flat:
        axes.axis("off")
    used = list(grid.flat[: len(pictures)])
    for place, (axes, picture) in enumerate(zip(used, pictures, strict=True)):
        extent = (0, picture.shape[1], picture.shape[0], 0)
        shown = fewer_colours(picture, colours, int(side * PICTURE_DPI))
        axes.imshow(shown, extent=extent, interpolation="nearest")
        if titles:
            axes.set_title(titles[place], fontsize=8)
    return figure, used


def fewer_colours(picture: np.ndarray, colours: int, largest: int) -> np.ndarray:
    """A picture no larger than `largest` pixels a side, in so many colours."""
    image = Image.fromarray(picture)
    image.thumbnail((largest, largest))
    return np.asarray(image.quantize(colours, dither=Image.Dither.NONE).convert("RGB"))


def mark_parts(
    axes: Axes, places: np.ndarray, names: Sequence[str] = (), colour: str = PART_COLOURS[0]
) -> None:
    """Dots at (parts, 2) places x, y, with names beside them if given."""
    for place, (x, y) in enumerate(places):
        axes.plot(x, y, "o", color=colour, markersize=4, markeredgecolor="white")
        if names:
            style = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.5}
            axes.annotate(
                names[place], (x, y), (3, 3), textcoords="offset points", fontsize=6, bbox=style
            )


def mark_box(axes: Axes, box: Sequence[float], colour: str = "white") -> None:
    """Outlines left, top, right, bottom."""
    left, top, right, bottom = box
    shape = {"fill": False, "linewidth": 1.5, "edgecolor": colour}
    axes.add_patch(Rectangle((left, top), right - left, bottom - top, **shape))


def class_balance(
    counts: Mapping[str, np.ndarray], class_names: Sequence[str], title: str = ""
) -> Figure:
    """How many images each class has, as bars, a colour for each split.

    Args:
        counts: (classes,) for each split, by its name.
    """
    figure, axes = pyplot.subplots(
        figsize=(6.5, 0.7 + 0.22 * len(class_names)), layout="constrained"
    )
    left = np.zeros(len(class_names))
    for (split, numbers), colour in zip(counts.items(), PART_COLOURS[1:], strict=False):
        axes.barh(class_names, numbers, left=left, color=colour, label=split)
        left += numbers
    axes.invert_yaxis()
    axes.set_xlabel("images")
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def lines(
    across: Sequence[float], curves: Mapping[str, Sequence[float]], labels: tuple[str, str]
) -> Figure:
    """One line for each curve, named at its right end; labels of the two axes."""
    figure, axes = pyplot.subplots(figsize=(5.5, 3), layout="constrained")
    for (name, heights), colour in zip(curves.items(), PART_COLOURS, strict=False):
        axes.plot(across, heights, marker="o", color=colour)
        axes.annotate(
            name, (across[-1], heights[-1]), (6, -3), textcoords="offset points", color=colour
        )
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def grouped_bars(table: pd.DataFrame, label: str) -> Figure:
    """A group of bars for each row of a table, a colour for each column, values above the bars."""
    figure, axes = pyplot.subplots(figsize=(1.5 + 2.4 * len(table), 3), layout="constrained")
    width = 0.8 / len(table.columns)
    for place, (name, heights) in enumerate(table.items()):
        across = np.arange(len(table)) + (place + 0.5) * width - 0.4
        bars = axes.bar(across, heights, 0.9 * width, color=PART_COLOURS[place], label=name)
        axes.bar_label(bars, fmt="%.1f", fontsize=8)
    axes.set_xticks(range(len(table)), table.index)
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def training_curves(metrics: pd.DataFrame, panels: Mapping[str, Sequence[str]]) -> Figure:
    """Small panels over the epochs of a run, with its phases in the background.

    Args:
        metrics: of a run; rows of later stages are marked by dashed lines at their epochs.
        panels: columns to draw in each panel, by the panel's title.
    """
    epochs = metrics[metrics.stage == "train"]
    columns = 3
    rows = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(9, 2.3 * rows), sharex=True, squeeze=False, layout="constrained"
    )
    for axes, (title, names) in zip(grid.flat, panels.items(), strict=False):
        _shade_phases(axes, epochs)
        for name, colour in zip(names, (PART_COLOURS[4], PART_COLOURS[5]), strict=False):
            axes.plot(epochs.epoch, epochs[name], color=colour, label=name.replace("_", " "))
        for epoch in metrics.epoch[metrics.stage == "project"]:
            axes.axvline(epoch, color="0.3", linewidth=0.8, linestyle="--")
        if len(names) > 1:
            axes.legend(frameon=False, fontsize=8)
        axes.set_title(title, fontsize=10)
        axes.margins(y=0.2)  # room for the names of the phases
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel("epoch")
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    return figure


def _shade_phases(axes: Axes, epochs: pd.DataFrame) -> None:
    """Every other phase on grey, the names of all at the top."""
    for place, (phase, mine) in enumerate(epochs.groupby("phase", sort=False)):
        first, last = mine.epoch.min() - 0.5, mine.epoch.max() + 0.5
        if place % 2 == 0:
            axes.axvspan(first, last, color="0.94", zorder=0)
        axes.text(
            (first + last) / 2,
            0.98,
            phase.replace(" ", "\n"),
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=7,
            color="0.4",
        )


def reported_and_regenerated(frame: pd.DataFrame) -> Figure:
    """What a table reports against what was run: a panel for each of its columns.

    Args:
        frame: of `tables.compare`. A bar spans one standard deviation over seeds to each side.
    """
    cells = frame.drop_duplicates(["row", "column"])
    columns, rows = cells.column.unique(), list(cells.row.unique())
    ran = ", ".join(["regenerated", *filter(None, cells.profile.unique())])
    figure, grid = pyplot.subplots(
        1,
        len(columns),
        figsize=(2.6 + 1.6 * max(len(columns), 2), 0.9 + 0.24 * len(rows)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axes, (column, mine) in zip(grid[0], cells.groupby("column", sort=False), strict=True):
        down = pd.Categorical(mine.row, categories=rows).codes
        long = pd.DataFrame(
            {
                "accuracy, %": [*mine.reported, *mine["mean"]],
                "down": [*(down - 0.12), *(down + 0.12)],
                "of": ["reported"] * len(mine) + [ran] * len(mine),
            }
        )
        seaborn.scatterplot(
            long,
            x="accuracy, %",
            y="down",
            hue="of",
            style="of",
            markers={"reported": "D", ran: "o"},
            palette={"reported": "0.45", ran: PART_COLOURS[4]},
            legend=axes is grid[0, -1],
            ax=axes,
        )
        axes.errorbar(
            mine["mean"],
            down + 0.12,
            xerr=mine.deviation.fillna(0),
            fmt="none",
            ecolor=PART_COLOURS[4],
            elinewidth=1.2,
        )
        axes.set_title(column, fontsize=9)
        axes.margins(x=0.12)
        axes.set_ylabel("")
        axes.grid(axis="y", color="0.93", zorder=0)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].set_yticks(range(len(rows)), rows, fontsize=8)
    grid[0, 0].set_ylim(len(rows) - 0.5, -0.5)
    seaborn.move_legend(
        grid[0, -1], "center left", bbox_to_anchor=(1, 0.5), frameon=False, title=None
    )
    return figure
