"""Marked parts of the animal in the pixels of a network's input, and which of them a box holds."""

import weakref

import numpy as np

from dpp.analysis.network import Network
from dpp.data.batches import ImageDataset
from dpp.data.image_records import Box
from dpp.data.transforms import Geometry
from dpp.evaluation.scores import NotApplicable

_KEPT: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # marks, by data set
PUBLISHED_SIZE = 224  # of the images that the measures' lengths in pixels were chosen for


def pixels(length: float, size: int) -> float:
    """A published length in pixels of 224, for an input of another side."""
    return length * size / PUBLISHED_SIZE


def check_marks(network: Network, dataset: ImageDataset) -> None:
    """Raises `NotApplicable` if no image has a marked part of the animal."""
    if not any(record.parts for record in dataset.records):
        raise NotApplicable(f"{network.source.name} has no marked parts of the animal")


def find_marks(network: Network, dataset: ImageDataset, cropped: bool = True) -> np.ndarray:
    """(N, marked parts, 2), rows and columns in pixels of the input; NaN where hidden.

    Args:
        network: of which the input is.
        dataset: with marked parts.
        cropped: as the input is, if it is; if not, as if it were the whole image.
    """
    kept = _KEPT.setdefault(dataset, {})
    key = (dataset.records, network.size, network.crop_to_box and cropped)
    if key not in kept:
        kept[key] = _find_marks(network, dataset, cropped)
    return kept[key]


def _find_marks(network: Network, dataset: ImageDataset, cropped: bool) -> np.ndarray:
    found = np.full((len(dataset), len(network.source.part_names), 2), np.nan)
    for row, record in enumerate(dataset.records):
        view, (width, height) = network.geometry(record)
        if not cropped:
            view = Geometry(Box(0, 0, width, height), network.size)
        for place, part in enumerate(record.parts or ()):
            if part.visible:
                found[row, place] = view.image_to_tensor((part.y, part.x))
    return found


def find_hits(places: np.ndarray, marks: np.ndarray, half: float, size: int) -> np.ndarray:
    """Which marks are in boxes around places, borders included.

    Args:
        places: (M, 2), or (M, parts, 2).
        marks: (M, marked, 2), NaN where hidden.
        half: of a box's side; boxes end where the image does.
        size: of the image.

    Returns:
        (M, marked), or (M, parts, marked).
    """
    low = (places - half).clip(0, size)[..., None, :]
    high = (places + half).clip(0, size)[..., None, :]
    marks = marks if places.ndim == 2 else marks[:, None]
    return ((marks >= low) & (marks <= high)).all(axis=-1)


def sums_by(groups: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """(count, ...): the sums of values (M, ...) over the members of each group (M,)."""
    sums = np.zeros((count, *values.shape[1:]))
    np.add.at(sums, groups, values)
    return sums
