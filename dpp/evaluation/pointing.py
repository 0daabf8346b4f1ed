"""Whether explanations point at the object (as CaBRNet measures it; Xu-Darme et al., 2024), and
content heat and outside-inside ratio (Wang et al., ST-ProtoPNet, ICCV 2023).

Of each test image, the prototype that counts most for the predicted class: the share of its heat
that is on the object, and of the hottest 10 % of the pixels. Content heat is the mean heat on the
object of all prototypes of the image's true class; the ratio is of the mean heat off and on it.

The object is what its mask covers, which PoseBirds draws, and elsewhere what is in its box. A
network that looks anywhere scores what that covers of the image: `random places` says how much.
"""

import numpy as np
import torch
from torch import Tensor

from dpp.analysis.network import Network
from dpp.data.batches import ImageDataset, Splits
from dpp.evaluation import heat
from dpp.evaluation.baselines import random_weights, some_classes
from dpp.evaluation.scores import Progress, Score, from_values, mean, part_of
from dpp.evaluation.sightings import places_of, see

TOP = 0.1  # of the pixels
NAMES = {
    "energy": ("heat on the object", "%", "higher"),
    "pixels": ("hottest pixels on the object", "%", "higher"),
    "content": ("content heat (CH)", "%", "higher"),
    "ratio": ("outside-inside ratio (OIRR)", "%", "lower"),
}


def energy(warm: Tensor, masks: Tensor) -> Tensor:
    """The percentage of the heat (n, size, size) that is on masks of the same shape."""
    return 100 * (warm * masks).sum(dim=(1, 2)) / warm.sum(dim=(1, 2)).clamp_min(1e-12)


def hottest(warm: Tensor, masks: Tensor, share: float = TOP) -> Tensor:
    """The percentage of the hottest pixels that is on the masks; 0 if no pixel is hotter."""
    hot = warm > warm.flatten(1).quantile(1 - share, dim=1)[:, None, None]
    return 100 * (hot * masks).sum(dim=(1, 2)) / hot.sum(dim=(1, 2)).clamp_min(1)


def content_heat(warm: Tensor, masks: Tensor) -> Tensor:
    """The mean heat on the masks, in percent of the highest."""
    return 100 * (warm * masks).sum(dim=(1, 2)) / masks.sum(dim=(1, 2))


def outside_inside(warm: Tensor, masks: Tensor) -> Tensor:
    """The mean heat off the masks, in percent of that on them.

    NaN without an outside, and where there is no heat on the mask, which leaves no ratio.
    """
    off, on = content_heat(warm, 1 - masks), content_heat(warm, masks)
    return 100 * off / torch.where(on > 0, on, torch.nan)


def point(network: Network, dataset: ImageDataset, seen, at: str, shifted: int | None = None):
    """Values of every image, by measure; `shifted` is the seed of random places."""
    found: dict[str, list[Tensor]] = {name: [] for name in NAMES}
    for rows in np.array_split(np.arange(len(dataset)), len(dataset) // heat.CHUNK + 1):
        masks = heat.object_masks(network, dataset, rows)
        one, all_of = (
            heat.shown_heat(network, seen, at, rows),
            heat.class_heat(network, seen, at, rows),
        )
        if shifted is not None:
            one, all_of = (heat.moved(warm, shifted + int(rows[0])) for warm in (one, all_of))
        values = (
            energy(one, masks),
            hottest(one, masks),
            content_heat(all_of, masks),
            outside_inside(all_of, masks),
        )
        for name, value in zip(NAMES, values, strict=True):
            found[name].append(value)
    return {name: torch.cat(values).double().numpy() for name, values in found.items()}


def measure(network: Network, splits: Splits, *, seed: int, progress: Progress) -> list[Score]:
    """Four measures of where the heat is, each over the test images."""
    heat.object_masks(network, splits.test, np.arange(1))  # that there are some
    other = random_weights(network, splits.projection, seed)
    few = some_classes(splits.test)
    seen = see(network, splits.test, part_of(progress, 0, 2))
    blind = see(other, few, part_of(progress, 1, 2))
    note = "the object is its drawn mask" if heat.has_masks(network) else "the object is its box"
    scores = []
    for at in places_of(network):
        found, drawn = (point(network, splits.test, seen, at, shifted) for shifted in (None, seed))
        weights = point(other, few, blind, at)
        for key, (name, unit, better) in NAMES.items():
            given = {"unit": unit, "better": better, "note": note}
            cold = int(np.isnan(found[key]).sum())
            given["note"] += f"; {cold} images have no heat on it" if cold else ""
            given |= {"random_weights": mean(weights[key]), "random_places": mean(drawn[key])}
            scores.append(from_values(name, at, found[key], seed, **given))
    return scores
