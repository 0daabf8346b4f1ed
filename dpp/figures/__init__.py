"""Data in, matplotlib figures out; nothing here runs a network or loads a run."""

from dpp.figures.charts import (
    class_balance,
    grouped_bars,
    growth_curves,
    lines,
    reported_and_regenerated,
    training_curves,
)
from dpp.figures.pictures import draw_features, draw_parts, mark_box, mark_parts, picture_grid
from dpp.figures.style import PART_COLOURS, as_png, fewer_colours, save

__all__ = [
    "PART_COLOURS",
    "as_png",
    "class_balance",
    "draw_features",
    "draw_parts",
    "fewer_colours",
    "grouped_bars",
    "growth_curves",
    "lines",
    "mark_box",
    "mark_parts",
    "picture_grid",
    "reported_and_regenerated",
    "save",
    "training_curves",
]
