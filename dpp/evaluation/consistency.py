"""Consistency and stability (Huang et al., "Evaluation and Improvement of Interpretability for
Self-Explainable Part-Prototype Networks", ICCV 2023).

On each test image of its class a prototype corresponds to the marked parts of the animal in a box
of 36 pixels of 224 to each side of where its upsampled similarity map is highest. It is consistent
if one part is in the box on at least 80 % of the images that show it, and stable on an image if
noise does not change which parts are. Left and right of a pair count as two parts, as published.

At `parts`, the box is around where each part looks, and each part is judged by itself.

A prototype whose box never holds a part is perfectly stable. So the share of such images is given
beside it, and the stability of those where the box held a part before or after.
"""

from typing import NamedTuple

import numpy as np

from dpp.analysis.network import Network
from dpp.data.batches import ImageDataset, Splits
from dpp.evaluation.baselines import random_places, random_weights, some_classes
from dpp.evaluation.keypoints import check_marks, find_hits, find_marks, pixels, sums_by
from dpp.evaluation.scores import Progress, Score, from_values, mean, part_of
from dpp.evaluation.sightings import Sightings, places_of, see

HALF = 36  # pixels of 224
SHARE = 0.8  # of the images that show a part


def share_of_hits(
    hits: np.ndarray, visible: np.ndarray, prototype: np.ndarray, count: int
) -> np.ndarray:
    """How often each prototype's box holds each marked part, of the images that show it.

    Args:
        hits: (M, marked), or (M, parts, marked), of pairs of an image and a prototype.
        visible: (M, marked).
        prototype: (M,), its number.
        count: of all prototypes.

    Returns:
        (count, marked), or (count, parts, marked); 0 where nothing is shown, NaN for prototypes
        without an image.
    """
    shown = sums_by(prototype, visible, count)
    shown = shown if hits.ndim == 2 else shown[:, None]
    share = sums_by(prototype, hits, count) / np.maximum(shown, 1)
    share[np.bincount(prototype, minlength=count) == 0] = np.nan
    return share


def is_consistent(share: np.ndarray, least: float = SHARE) -> np.ndarray:
    """Whether one marked part is held often enough, of `share_of_hits`: 0, 1, or NaN."""
    best = share.max(axis=-1)
    return np.where(np.isnan(best), np.nan, best >= least - 1e-9)


def is_stable(before: np.ndarray, after: np.ndarray, prototype: np.ndarray, count: int):
    """How often hits (M, ..., marked) stay, and how often there is none: two of (count, ...).

    Also how often they stay where there is one before or after; NaN where there never is.
    """
    same = (before == after).all(axis=-1)
    none, either = ~before.any(axis=-1), (before | after).any(axis=-1)
    images = np.bincount(prototype, minlength=count).astype(float)
    images = images.reshape(-1, *[1] * (same.ndim - 1))
    with np.errstate(invalid="ignore"):
        stays = sums_by(prototype, same, count) / images
        empty = sums_by(prototype, none, count) / images
        held = sums_by(prototype, same & either, count) / sums_by(prototype, either, count)
    return stays, empty, held


class Boxed(NamedTuple):
    """The pairs of a pass, with the marks of their images."""

    seen: Sightings
    marks: np.ndarray  # (M, marked, 2)
    half: float
    size: int

    def places(self, at: str) -> np.ndarray:
        return self.seen.peaks + 0.5 if at == "centre" else self.seen.parts

    def hits(self, at: str) -> np.ndarray:
        return find_hits(self.places(at), self.marks, self.half, self.size)

    def random_hits(self, at: str, seed: int) -> np.ndarray:
        drawn = random_places(self.places(at).shape[:-1], self.size, seed)
        return find_hits(drawn, self.marks, self.half, self.size)

    def original_hits(self) -> np.ndarray:
        """As the original script: whole pixels, of the peak and of the marks."""
        return find_hits(self.seen.peaks, np.floor(self.marks), self.half, self.size)

    @property
    def visible(self) -> np.ndarray:
        return ~np.isnan(self.marks[..., 0])


def box(
    network: Network, dataset: ImageDataset, progress: Progress, noise: int | None = None
) -> Boxed:
    """A pass over images, and their marks."""
    seen = see(network, dataset, progress, noise)
    marks = find_marks(network, dataset)[seen.image]
    return Boxed(seen, marks, pixels(HALF, network.size), network.size)


def measure_consistency(
    network: Network, splits: Splits, *, seed: int, progress: Progress
) -> list[Score]:
    """Consistency, in percent of the prototypes, or of their parts."""
    check_marks(network, splits.test)
    boxed = box(network, splits.test, part_of(progress, 0, 2))
    other = random_weights(network, splits.projection, seed)
    blind = box(other, some_classes(splits.test), part_of(progress, 1, 2))

    def judge(boxed: Boxed, hits: np.ndarray) -> np.ndarray:
        given = (boxed.visible, boxed.seen.prototype, len(network.labels))
        return 100 * is_consistent(share_of_hits(hits, *given))

    middle = np.full_like(boxed.places("centre"), boxed.size / 2, dtype=float)
    unseeing = mean(judge(boxed, find_hits(middle, boxed.marks, boxed.half, boxed.size)))
    note = f"box of {2 * boxed.half:.3g} pixels of {boxed.size}; the middle of every image: "
    return [
        from_values(
            "consistency",
            at,
            judge(boxed, boxed.hits(at)),
            seed,
            unit="%",
            better="higher",
            random_weights=mean(judge(blind, blind.hits(at))),
            random_places=mean(judge(boxed, boxed.random_hits(at, seed))),
            original=mean(judge(boxed, boxed.original_hits())) if at == "centre" else np.nan,
            note=f"{note}{unseeing:.3g} %",
        )
        for at in places_of(network)
    ]


def measure_stability(
    network: Network, splits: Splits, *, seed: int, progress: Progress
) -> list[Score]:
    """Stability under noise, the share of images with nothing to be stable, and without those."""
    check_marks(network, splits.test)
    other = random_weights(network, splits.projection, seed)
    few = some_classes(splits.test)
    tasks = [
        (network, splits.test, None),
        (network, splits.test, seed),
        (other, few, None),
        (other, few, seed),
    ]
    clean, noisy, blind, blind_noisy = (
        box(one, dataset, part_of(progress, place, len(tasks)), noise)
        for place, (one, dataset, noise) in enumerate(tasks)
    )
    count, scores = len(network.labels), []

    def judge(before: np.ndarray, after: np.ndarray, boxed: Boxed = clean) -> list[np.ndarray]:
        found = is_stable(before, after, boxed.seen.prototype, count)
        return [100 * one for one in found]

    for at in places_of(network):
        found = judge(clean.hits(at), noisy.hits(at))
        weights = judge(blind.hits(at), blind_noisy.hits(at), blind)
        # places that have nothing to do with the image: they are drawn anew for the noisy one
        places = judge(clean.random_hits(at, seed), clean.random_hits(at, seed + 1))
        originals = 3 * [None]
        if at == "centre":
            originals = judge(clean.original_hits(), noisy.original_hits())
        names = ("stability", "stability: no part hit", "stability where hit")
        for name, values, blank, drawn, old in zip(
            names, found, weights, places, originals, strict=True
        ):
            given = {"better": "" if "no part" in name else "higher", "unit": "%"}
            given |= {"random_weights": mean(blank), "random_places": mean(drawn)}
            given["original"] = np.nan if old is None or "where" in name else mean(old)
            scores.append(from_values(name, at, values, seed, **given))
    return scores
