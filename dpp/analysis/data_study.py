"""What a data set is like: its sizes, how alike its classes are, how far its parts move."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from dpp import data
from dpp.data.image_records import ImageRecord, Source, images_per_class, relative_places
from dpp.drawn.bird_anatomy import ATTRIBUTES
from dpp.drawn.species import kinds

SMALL = {"classes": 5, "train_per_class": 20, "test_per_class": 1, "image_size": 64}


def first_of_each_class(records: Sequence[ImageRecord]) -> list[ImageRecord]:
    """The first record of every class, in the order of the classes."""
    firsts = {}
    for record in records:
        firsts.setdefault(record.label, record)
    return [firsts[label] for label in sorted(firsts)]


def describe(sources: Sequence[Source]) -> pd.DataFrame:
    """A row for each split of each source: classes, parts, images, fewest in a class."""
    rows = []
    for source in sources:
        classes, parts = len(source.class_names), len(source.part_names)
        for split, records in (("train", source.train), ("test", source.test)):
            fewest = images_per_class(records, classes).min()
            rows.append((source.name, split, classes, parts, len(records), fewest))
    columns = ["data_set", "split", "classes", "parts", "images", "fewest_in_a_class"]
    return pd.DataFrame(rows, columns=columns)


def attributes_of_classes(names: Sequence[str]) -> pd.DataFrame:
    """A row for each of the first target classes of PoseBirds, a column for each attribute."""
    words = kinds(len(names), base=False)
    rows = [
        [values[value] for values, value in zip(ATTRIBUTES.values(), word, strict=True)]
        for word in words
    ]
    return pd.DataFrame(rows, index=pd.Index(names, name="class"), columns=list(ATTRIBUTES))


def differing_attributes(attributes: pd.DataFrame) -> np.ndarray:
    """In how many attributes two classes differ, of every pair: (pairs,)."""
    values = attributes.to_numpy()
    differ = (values[:, None] != values[None]).sum(axis=2)
    return differ[np.triu_indices(len(values), k=1)]


def part_spread(source: Source, parts: Sequence[str], *, mirror: bool = True) -> dict[str, float]:
    """How far parts stray from where they are on average, as seen from the breast.

    Args:
        source: with part locations, its images all of one size.
        parts: names.
        mirror: count left and right alike, as if all birds looked the same way.

    Returns:
        By part, the mean of the two coordinates' standard deviations, in pixels.
    """
    spread = {}
    for part in parts:
        places = relative_places(source, part, "breast")
        places = np.abs(places) if mirror else places
        spread[part] = float(places.std(axis=0).mean())
    return spread


def spread_by_pose(poses: Sequence[float], parts: Sequence[str], seed: int = 0) -> pd.DataFrame:
    """`part_spread` of small drawn data sets as a share of the image's side: a row for each pose
    strength, a column for each part."""
    side = SMALL["image_size"]
    drawn = [data.load("posebirds", pose=pose, seed=seed, **SMALL) for pose in poses]
    rows = [part_spread(source, parts) for source in drawn]
    return pd.DataFrame(rows, index=pd.Index(poses, name="pose strength")) / side
