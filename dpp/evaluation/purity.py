"""Purity (Nauta et al., "PIP-Net: Patch-Based Intuitive Prototypes", CVPR 2023).

Of a prototype's 10 most similar images, a patch of 32 pixels of 224 at its place: how often it
holds one and the same marked part of the animal, of the images that show that part; of the part
that it holds most often. Left and right of a pair count as one.

The original script lays the patches of a map's cells side by side, from the first pixel to the
last, and compares patches of cropped images with parts in the whole image. Here a patch lies where
the cell looks, and the parts are moved with the crop; `original` has both as they were.
"""

import numpy as np

from dpp.analysis.network import Network
from dpp.analysis.part_following import true_parts
from dpp.data.batches import ImageDataset, Splits
from dpp.data.image_records import Box
from dpp.data.transforms import Geometry
from dpp.evaluation.baselines import random_places, random_weights, some_classes
from dpp.evaluation.keypoints import check_marks, find_hits, find_marks, pixels
from dpp.evaluation.scores import Progress, Score, from_values, mean, part_of
from dpp.evaluation.sightings import Sightings, places_of, see

SIDE = 32  # pixels of 224


def merge_sides(hits: np.ndarray, visible: np.ndarray, groups: list[int]):
    """Hits and visible (..., marked) with left and right as one: (..., M) each."""
    count = max(groups) + 1
    merged = [np.zeros((*one.shape[:-1], count), bool) for one in (hits, visible)]
    for mark, group in enumerate(groups):
        for one, whole in zip((hits, visible), merged, strict=True):
            whole[..., group] |= one[..., mark]
    return merged


def purity(hits: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """The share of hits of the part that is hit most often where it is visible.

    Args:
        hits: (images, P, M), or (images, P, parts, M).
        visible: the same, or to be broadcast.

    Returns:
        (P,), or (P, parts).
    """
    shown = np.broadcast_to(visible, hits.shape).sum(axis=0)
    return (hits.sum(axis=0) / np.maximum(shown, 1)).max(axis=-1)


def tiled_centres(cells: np.ndarray, count: int, size: int, side: float) -> np.ndarray:
    """The middles of the original script's patches of cells (..., 2), of a map of `count` rows.

    They begin at a whole number of pixels times the cell's number, and so may end before the image
    does.
    """
    step = round((size - side) / max(count - 1, 1))
    return cells * step + side / 2


class _Patches:
    """The patches of all prototypes on their nearest images of a data set."""

    def __init__(self, network: Network, dataset: ImageDataset, seen: Sightings):
        shown = np.isin(network.labels, dataset.labels.numpy())  # of classes that are there
        used = network.prototypes.numpy()
        used = used[shown[used]] if shown[used].any() else used
        nearest = seen.nearest[:, used]  # (images, P)
        self.rows = nearest[(nearest >= 0).all(axis=1)]  # fewer images than 10: fewer rows
        self.cells = seen.nearest_cells[: len(self.rows), used]
        self.parts = seen.nearest_parts[: len(self.rows), used]
        self.grid, self.size = seen.cells, network.size
        self.half = pixels(SIDE, network.size) / 2
        self.look = Geometry(Box(0, 0, 1, 1), network.size, network.cell_centres)
        self.groups = true_parts(network.source.part_names)[1]
        self.marks = find_marks(network, dataset)[self.rows]  # (images, P, marked, 2)
        self.whole = find_marks(network, dataset, cropped=False)[self.rows]

    def places(self, at: str) -> np.ndarray:
        if at == "parts":
            return self.parts
        return self.look.cell_to_tensor(self.cells, self.grid)

    def purity(self, places: np.ndarray, marks: np.ndarray) -> np.ndarray:
        """(P,) or (P, parts), in percent."""
        shape = places.shape[:-1]
        marks = marks.reshape(-1, *marks.shape[2:])
        hits = find_hits(places.reshape(len(marks), *places.shape[2:]), marks, self.half, self.size)
        visible = ~np.isnan(marks[..., 0])
        visible = visible.reshape(*self.rows.shape, *[1] * (len(shape) - 2), -1)
        hits, visible = merge_sides(hits.reshape(*shape, -1), visible, self.groups)
        return 100 * purity(hits, visible)

    def original(self) -> np.ndarray:
        """By the original script's patches and parts."""
        centres = tiled_centres(self.cells, self.grid[0], self.size, 2 * self.half)
        return self.purity(centres, self.whole)


def variants(network: Network, dataset: ImageDataset, seed: int) -> dict[str, float]:
    """Mean purity at the centre: as measured, with one quirk, with both, and by chance."""
    patches = _Patches(network, dataset, see(network, dataset, lambda done, total: None))
    places = patches.places("centre")
    drawn = random_places(places.shape[:-1], network.size, seed)
    return {
        "parts moved": mean(patches.purity(places, patches.marks)),
        "parts not moved": mean(patches.purity(places, patches.whole)),
        "original": mean(patches.original()),
        "random places": mean(patches.purity(drawn, patches.marks)),
    }


def measure(network: Network, splits: Splits, *, seed: int, progress: Progress) -> list[Score]:
    """Purity on training and on test images, in percent."""
    check_marks(network, splits.test)
    other = random_weights(network, splits.projection, seed)
    scores = []
    for place, (name, dataset) in enumerate(
        (("training images", splits.projection), ("test images", splits.test))
    ):
        passes = ((network, dataset), (other, some_classes(dataset)))
        patches, blind = (
            _Patches(one, images, see(one, images, part_of(progress, 2 * place + turn, 4)))
            for turn, (one, images) in enumerate(passes)
        )
        for at in places_of(network):
            drawn = random_places(patches.places(at).shape[:-1], network.size, seed)
            given = {
                "unit": "%",
                "better": "higher",
                "random_weights": mean(blind.purity(blind.places(at), blind.marks)),
                "random_places": mean(patches.purity(drawn, patches.marks)),
                "original": mean(patches.original()) if at == "centre" else np.nan,
                "note": f"{len(patches.rows)} images, {2 * patches.half:.3g} pixels a side",
            }
            values = patches.purity(patches.places(at), patches.marks)
            scores.append(from_values(f"purity, {name}", at, values, seed, **given))
    return scores
