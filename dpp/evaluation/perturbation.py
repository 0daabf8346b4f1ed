"""Local perturbations (CaBRNet; Xu-Darme et al., 2024): what the hot pixels do to a similarity.

Of each image, the prototype that counts most for the predicted class. Where its heat is, or where
it is not, the image becomes darker, paler, greyer, of another hue, blurred, or wavy. A faithful
heat map loses much by the first and little by the second.

`original` reads the similarity after the change at the cell where it was highest before, as the
original script does; the value is of the similarity that the decision uses, wherever it is now.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as pictures

from dpp.analysis.network import Network
from dpp.data.batches import Splits
from dpp.data.transforms import normalise, to_pixels
from dpp.evaluation import heat
from dpp.evaluation.baselines import random_weights, some_classes
from dpp.evaluation.keypoints import pixels
from dpp.evaluation.scores import Progress, Score, from_values, mean, part_of
from dpp.evaluation.sightings import places_of, see, similarity_maps

MOST = 30  # images, spread over the data set
PERIODS, AMPLITUDE = 5, 7  # of waves: over the hot region's side; pixels of 224


def waves(images: Tensor, warm: Tensor) -> Tensor:
    """Rows and columns of pixels (n, 3, size, size) shifted by a sine, 5 periods over the heat."""
    size, wavy = images.shape[-1], images.clone()
    lines = torch.arange(size)
    for image, one in zip(wavy, warm, strict=True):
        hot = one >= 0.3 * one.max()
        sides = [int(hot.any(dim=side).sum()) for side in (0, 1)]
        wave = torch.sin(2 * math.pi * lines * PERIODS / max(*sides, 1))
        shift = (pixels(AMPLITUDE, size) * wave).trunc().long()
        across = (lines[None] - shift[:, None]) % size  # of each row
        image[:] = image.gather(2, across.expand(3, -1, -1))
        down = (lines[:, None] - shift[None]) % size  # of each column
        image[:] = image.gather(1, down.expand(3, -1, -1))
    return wavy


def blur(images: Tensor, warm: Tensor) -> Tensor:
    side = 2 * round(pixels(21, images.shape[-1]) / 2 - 0.5) + 1
    return pictures.gaussian_blur(images, [max(side, 3)] * 2, [pixels(2.0, images.shape[-1])] * 2)


PERTURBATIONS = {
    "brightness": lambda images, warm: pictures.adjust_brightness(images, 0.3),
    "contrast": lambda images, warm: pictures.adjust_contrast(images, 0.2),
    "saturation": lambda images, warm: pictures.adjust_saturation(images, 0.3),
    "hue": lambda images, warm: pictures.adjust_hue(images, 0.2),
    "blur": blur,
    "waves": waves,
}


@torch.no_grad()
def drops(network: Network, images: Tensor, warm: Tensor, numbers: Tensor):
    """What the similarities of prototypes (n,) lose by each perturbation, in percent.

    Args:
        network: with prototypes.
        images: (n, 3, size, size), normalised.
        warm: (n, size, size), from 0 to 1: where they change.
        numbers: (n,), the prototypes.

    Returns:
        Two of (6, n): of the similarity, and of that at the cell where it was.
    """
    rows, shown = torch.arange(len(images)), to_pixels(images)
    unique, where = numbers.unique(return_inverse=True)
    before = network.inspect(images)
    score, cells = (one[rows, numbers].cpu() for one in (before.scores, before.places))
    lost, lost_there = [], []
    for change in PERTURBATIONS.values():
        mask = warm[:, None]
        mixed = mask * change(shown, warm).float() + (1 - mask) * shown.float()
        output = network.inspect(normalise(mixed.round()))
        maps = similarity_maps(network, output, unique)[rows, where].flatten(1).cpu()
        after = output.scores[rows, numbers].cpu()
        lost.append(100 * (score - after) / score)
        lost_there.append(100 * (score - maps[rows, cells]) / score)
    return torch.stack(lost).double().numpy(), torch.stack(lost_there).double().numpy()


def measure(network: Network, splits: Splits, *, seed: int, progress: Progress) -> list[Score]:
    """The mean drop by six perturbations, where the heat is and where it is not."""
    few = some_classes(splits.test)
    (rows, images), (other_rows, other_images) = (
        heat.spread_images(dataset, MOST) for dataset in (splits.test, few)
    )
    other = random_weights(network, splits.projection, seed)
    seen = see(network, splits.test, part_of(progress, 0, 2))
    blind = see(other, few, part_of(progress, 1, 2))
    numbers, blank = torch.from_numpy(seen.shown[rows]), torch.from_numpy(blind.shown[other_rows])
    scores, places = [], places_of(network)
    for place, at in enumerate(places):
        warm = heat.shown_heat(network, seen, at, rows)
        cold = heat.shown_heat(other, blind, at, other_rows)
        for turn, side in enumerate(("inside", "outside")):
            one, drawn, none = (
                given if side == "inside" else 1 - given
                for given in (warm, heat.moved(warm, seed), cold)
            )
            lost, there = drops(network, images, one, numbers)
            each = zip(PERTURBATIONS, lost.mean(axis=1), strict=True)
            given = {
                "unit": "%",
                "better": "higher" if side == "inside" else "lower",
                "random_weights": mean(drops(other, other_images, none, blank)[0]),
                "random_places": mean(drops(network, images, drawn, numbers)[0]),
                "original": mean(there),
                "note": f"{len(rows)} images; " + ", ".join(f"{k} {v:.1f}" for k, v in each),
            }
            values = lost.mean(axis=0)
            scores.append(
                from_values(f"perturbation {side}", at, np.asarray(values), seed, **given)
            )
            progress(2 * place + turn + 1, 2 * len(places))
    return scores
