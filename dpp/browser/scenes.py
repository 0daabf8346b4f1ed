"""What the page draws, as JSON: a prototype on two pictures, a score sheet, bars; no pixels.

The page draws it with its own colours, so that every figure follows the theme, and lights a part
on both pictures without asking the kernel. Places are in pixels of the original pictures.
"""

from collections.abc import Sequence

import numpy as np

from dpp.analysis.figure_data import Application
from dpp.data.pictures import Picture
from dpp.explanations import ClassScore, Match, Sighting
from dpp.figures.marked_pictures import Marked, mark, number_text, part_style, view_of
from dpp.figures.score_sheets import score_sheet

Source = tuple[Sighting, Picture]


def pair_scene(
    picture: Picture,
    match: Match | Sighting,
    source: Source | None,
    *,
    titles: tuple[str, str],
    caption: str,
    cell: tuple[int, int] | None = None,
) -> dict:
    """A prototype on an image and on its source image, part by part.

    Args:
        picture: the image.
        match: the prototype on it.
        source: the prototype on its source image; None if it was not projected.
        titles: above the two pictures.
        caption: below them.
        cell: row and column of the centre if it can be dragged.
    """
    here = mark(picture.pixels, match)
    there = mark(source[1].pixels, source[0]) if source else None
    shares = [getattr(part, "contribution", None) for part in match.parts]
    most = max([abs(share) for share in shares if share is not None], default=0) or 1
    parts = []
    for place, share in enumerate(shares):
        colour, dashes, halo = part_style(place)
        parts.append(
            {
                "name": f"part {place + 1}",
                "colour": colour,
                "halo": halo,
                "dashed": dashes != "solid",
                "here": rounded(here.boxes[place]),
                "there": rounded(there.boxes[place]) if there else None,
                "text": "" if share is None else number_text(share, 3),
                "share": 0 if share is None else round(share / most, 4),
            }
        )
    return {
        "here": frame(here, titles[0]),
        "there": frame(there, titles[1]) if there else None,
        "parts": parts,
        "total": number_text(match.similarity, 3),
        "caption": caption,
        "cell": cell,
    }


def frame(marked: Marked, title: str) -> dict:
    """A picture's size, the area to show of it, its title, and the prototype's centre on it."""
    height, width = marked.picture.shape[:2]
    view = view_of(marked)
    return {
        "size": [width, height],
        "view": rounded((view.x0, view.y0, view.width, view.height)),
        "title": title,
        "centre": rounded(marked.centre) if marked.centre else None,
    }


def rounded(numbers: Sequence[float]) -> list[float]:
    """Short numbers for JSON: hundredths of a pixel."""
    return [round(float(number), 2) for number in numbers]


def heat_scene(applied: Application, picture: Picture) -> dict:
    """The similarity map on the image: the cells' boxes and their values from 0 to 1."""
    height, width = cells = applied.similarities.shape
    places = np.stack(np.mgrid[:height, :width], axis=-1)
    boxes = picture.geometry.cell_boxes(places, cells).reshape(-1, 4)
    least, most = applied.similarities.min(), applied.similarities.max()
    values = (applied.similarities - least) / ((most - least) or 1)
    return {
        "cells": [height, width],
        "boxes": [rounded(box) for box in boxes.tolist()],
        "values": np.round(values, 3).ravel().tolist(),
        "ends": [number_text(float(end), 3) for end in (least, most)],
    }


def sheet_scene(one: ClassScore, run: str, others: int) -> dict:
    """A score sheet whose bars add up: each begins where the one above it ends.

    Args:
        one: the class and its score.
        run: the run's name, for the prototypes' thumbnails.
        others: the number of prototypes of other classes.
    """
    sheet = score_sheet(one)
    ends = np.cumsum([0, *[match.points for match in one.matches], one.others])
    low, high = min(0, ends.min(), one.score), max(0, ends.max(), one.score)
    span = (high - low) or 1

    def share(value: float) -> float:
        return round(float((value - low) / span), 4)

    rows = [
        {
            "prototype": row.prototype,
            "picture": ["prototype", run, row.prototype],
            "product": f"{row.similarity} × {row.connection}",
            "points": row.points,
            "bar": [share(ends[place]), share(ends[place + 1])],
        }
        for place, row in enumerate(sheet.rows)
    ]
    return {
        "rows": rows,
        "zero": share(0),
        "own": {"words": f"its own {len(rows)} prototypes", "points": sheet.points},
        "others": {
            "words": f"{others} of other classes",
            "points": sheet.others,
            "bar": [share(ends[-2]), share(ends[-1])],
        },
        "score": {"words": "score", "points": sheet.score, "bar": [share(0), share(one.score)]},
    }
