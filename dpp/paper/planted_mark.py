"""A coloured disc on the background of drawn birds: something that a class has by accident."""

import random
import shutil
from collections.abc import Collection
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from dpp.data import catalogue
from dpp.data.image_records import ImageRecord, Source
from dpp.system import files

COLOUR = (225, 30, 200)  # of no bird and no scenery
RADIUS = 0.1  # of the disc, in sides of the image
PLACES = 12  # along each side, where it may be
MARKS = "marks.json"  # centres of the discs, by the images' ids


def plant(
    source: Source, folder: Path, labels: Collection[int], split: str = "train", seed: int = 0
) -> Source:
    """A copy of a data set in CUB's layout, with a disc on the images of some classes of a split.

    The disc lies outside the bird's box where the image has room for it, else where it covers the
    least of it. A folder that is there already is taken to be this copy.

    Args:
        source: drawn, read by `read_cub`.
        folder: for the copy.
        labels: of the classes.
        split: train or test.
        seed: of the places.
    """
    if not folder.exists():
        with files.folder_built_beside(folder) as unfinished:
            shutil.copytree(source.root, unfinished, dirs_exist_ok=True)
            marks = {}
            for record in getattr(source, split):
                if record.label in labels:
                    path = unfinished / record.path.relative_to(source.root)
                    marks[record.id] = mark_image(
                        path, record, random.Random(f"{seed}/{record.id}")
                    )
            files.write_json(unfinished / MARKS, marks)
    return catalogue.load(str(folder))


def mark_image(path: Path, record: ImageRecord, rng: random.Random) -> tuple[float, float]:
    """Draws a disc on an image file; returns its centre, x and y in pixels."""
    image = Image.open(path).convert("RGB")
    centre = choose_place(image.size, record.box, rng)
    radius = RADIUS * min(image.size)
    x, y = centre
    ImageDraw.Draw(image).ellipse((x - radius, y - radius, x + radius, y + radius), fill=COLOUR)
    image.save(path)
    return centre


def choose_place(
    size: tuple[int, int], box: tuple[float, float, float, float], rng: random.Random
) -> tuple[float, float]:
    """The centre of a disc that covers as little of a box as it can, drawn from such places."""
    radius = RADIUS * min(size)
    columns, rows = (np.linspace(radius, side - radius, PLACES) for side in size)
    places = [(float(x), float(y)) for x in columns for y in rows]
    left, top, right, bottom = box
    covered = [
        max(0.0, min(x + radius, right) - max(x - radius, left))
        * max(0.0, min(y + radius, bottom) - max(y - radius, top))
        for x, y in places
    ]
    least = min(covered)
    return rng.choice([place for place, area in zip(places, covered, strict=True) if area == least])
