"""Spatial misalignment (Sacha et al., "Interpretability Benchmark for Evaluating Spatial
Misalignment of Prototypical Parts Explanations", AAAI 2024).

A prototype that looks where its map is high should not change if other pixels do. Pixels outside
the box of its highest 5 % (and 10 pixels of 224 more) are attacked, within 0.4 in normalised units,
to lower the similarity of the image's most similar prototype:

- location change (PLC): 100 (1 - IoU) of the highest 10 % of the map's pixels, before and after;
- activation change (PAC): the percentage of the similarity that is lost;
- rank change (PRC): how many more prototypes of other classes are more similar than it;
- accuracy change (AC): percentage points of accuracy lost.

The released attack gives a library's attack a single logit, whose cross entropy is 0 whatever the
logit is, and so is its gradient: no step moves a pixel, and what is left is where that attack
starts, uniform noise within the same bounds. `original` is that; the value is of the attack meant.

Forty steps through the whole network are dear: as many images are attacked as there are classes,
but 30 to 60, spread evenly over the data set; for random weights and random places always 30.

For prototypes of several parts, `parts` protects a box around every part, where it looks, in place
of the one of the map's highest pixels.
"""

import copy
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpp.analysis.network import Network
from dpp.data.batches import ImageDataset, Splits
from dpp.data.image_records import Box
from dpp.data.transforms import Geometry
from dpp.evaluation.baselines import random_places, random_weights
from dpp.evaluation.heat import spread
from dpp.evaluation.keypoints import pixels
from dpp.evaluation.scores import Progress, Score, from_values, mean, part_of
from dpp.evaluation.sightings import part_places, places_of, similarity_maps, upsample
from dpp.networks.model import DeformableProtoPNet

EPSILON, STEP, STEPS = 0.4, 0.01, 40
BORDER = 10  # pixels of 224 around the box
QUANTILE, TOP = 0.95, 0.9
LEAST, MOST = 30, 60  # images that are attacked; between them, as many as there are classes
BATCH = 20


class Change(NamedTuple):
    """What an attack did to each of n images."""

    location: np.ndarray
    activation: np.ndarray
    rank: np.ndarray
    accuracy: np.ndarray  # 100, 0 or -100: correct no longer, as before, only now


def box_mask(maps: Tensor, border: float) -> Tensor:
    """(n, size, size), 1 in the box around a map's (n, size, size) highest pixels, and its border.

    As the original: from the first to the last row and column with a pixel of at least the 95th
    percentile.
    """
    threshold = maps.flatten(1).quantile(QUANTILE, dim=1)[:, None, None]
    high, masks = maps >= threshold, torch.zeros_like(maps)
    border, size = round(border), maps.shape[-1]
    for mask, one in zip(masks, high, strict=True):
        rows, columns = (one.any(dim=side).nonzero().flatten() for side in (1, 0))
        top, bottom = int(rows[0]) - border, int(rows[-1]) + 1 + border
        left, right = int(columns[0]) - border, int(columns[-1]) + 1 + border
        mask[max(top, 0) : min(bottom, size), max(left, 0) : min(right, size)] = 1
    return masks


def squares_mask(centres: np.ndarray, half: float, size: int) -> Tensor:
    """(n, size, size), 1 in squares around centres (n, parts, 2)."""
    middles = np.arange(size) + 0.5
    inside = np.abs(centres[..., None] - middles) <= half  # (n, parts, 2, size)
    both = inside[:, :, 0, :, None] & inside[:, :, 1, None, :]
    return torch.from_numpy(both.any(axis=1)).float()


def move(mask: Tensor, by: np.ndarray) -> Tensor:
    """A mask (size, size) shifted down and to the right; what leaves comes in on the other side."""
    return mask.roll(tuple(int(one) for one in by), (0, 1))


def released_loss(activation: Tensor) -> Tensor:
    """What the released attack raises: the cross entropy of a single logit, which is always 0."""
    target = torch.zeros(len(activation), dtype=torch.long, device=activation.device)
    return functional.cross_entropy(activation[:, None], target, reduction="sum")


def attack(
    network: Network,
    images: Tensor,
    protected: Tensor,
    numbers: Tensor,
    released: int | None = None,
) -> Tensor:
    """Changes images outside of what is protected, to lower the similarity of a prototype.

    Args:
        network: with prototypes.
        images: (n, 3, size, size).
        protected: (n, size, size), 1 where no pixel may change.
        numbers: (n,), the prototype of each image.
        released: the seed of the released attack's start, to do as it does.

    Returns:
        (n, 3, size, size).
    """
    free, rows = 1 - protected[:, None].to(images), torch.arange(len(images))
    change = torch.zeros_like(images)
    if released is not None:
        draw = torch.Generator().manual_seed(released)
        change = EPSILON * (2 * torch.rand(images.shape, generator=draw).to(images) - 1) * free
    model, columns = without_others(network, numbers)
    for _ in range(STEPS):
        tried = (images + change).requires_grad_()
        with torch.enable_grad():
            activation = model.inspect(tried).scores[rows, columns]
            raised = -activation.sum() if released is None else released_loss(activation)
        (gradient,) = torch.autograd.grad(raised, tried)
        change = (change + STEP * gradient.sign() * free).clamp(-EPSILON, EPSILON)
        if released is not None and not gradient.any():
            break  # so will all further steps: they change nothing
    return images + change


def without_others(network: Network, numbers: Tensor) -> tuple[nn.Module, Tensor]:
    """A copy of the model that computes no more than prototypes (n,), and their numbers in it.

    Its weights have no gradients. Networks that cannot do without their other prototypes keep them.
    """
    model = copy.deepcopy(network.model).requires_grad_(False)
    if not isinstance(model, DeformableProtoPNet):
        return model, numbers
    unique, columns = numbers.unique(return_inverse=True)
    model.keep(unique)
    return model.requires_grad_(False), columns


@torch.no_grad()
def compare(
    network: Network, images: Tensor, attacked: Tensor, numbers: Tensor, labels: Tensor
) -> Change:
    """How the prototype's map, similarity and rank, and the decision, differ."""
    rows, owners = torch.arange(len(images)), torch.tensor(network.labels)
    used = torch.zeros(len(owners), dtype=torch.bool)
    used[network.prototypes] = True
    tops, scores, correct = [], [], []
    for shown in (images, attacked):
        output = network.inspect(shown)
        unique, where = numbers.unique(return_inverse=True)
        maps = similarity_maps(network, output, unique)[rows, where].float().cpu()
        big = functional.interpolate(maps[:, None], size=(network.size,) * 2, mode="bilinear")[:, 0]
        tops.append(big > big.flatten(1).quantile(TOP, dim=1)[:, None, None])
        scores.append(output.scores.float().cpu())
        correct.append(output.logits.argmax(dim=1).cpu() == labels)
    both = (tops[0] & tops[1]).flatten(1).sum(dim=1)
    either = (tops[0] | tops[1]).flatten(1).sum(dim=1)
    overlap = torch.where(either > 0, both / either.clamp_min(1), 1.0)
    own = [score[rows, numbers] for score in scores]
    others = (owners[None] != labels[:, None]) & used
    above = [
        ((score > one[:, None]) & others).sum(dim=1) for score, one in zip(scores, own, strict=True)
    ]
    changes = (
        100 * (1 - overlap),
        100 * (1 - own[1].clamp_min(0) / own[0]),
        above[1] - above[0],
        100 * (correct[0].int() - correct[1].int()),
    )
    return Change(*(one.double().numpy() for one in changes))


def attack_all(
    network: Network, dataset: ImageDataset, kinds, seed: int, progress: Progress, most: int = LEAST
):
    """The changes by each kind of attack: centre, parts, random places, and released."""
    chosen, found = spread(dataset, most).tolist(), {kind: [] for kind in kinds}
    looking = Geometry(Box(0, 0, 1, 1), network.size, network.cell_centres)
    border, half_cell = pixels(BORDER, network.size), network.size / len(network.cell_centres) / 2
    for first in range(0, len(chosen), BATCH):
        few = chosen[first : first + BATCH]
        batch = dataset.batch([(0, index) for index in few])
        images, rows = network.prepare(batch.images), torch.arange(len(few))
        with torch.no_grad():
            output = network.model.inspect(images)
            numbers = network.prototypes[output.scores[:, network.prototypes].argmax(dim=1)]
            unique, where = numbers.unique(return_inverse=True)
            maps = similarity_maps(network, output, unique)[rows, where].float().cpu()
            places = part_places(network, output, numbers)[rows, rows].numpy()
        cells = tuple(maps.shape[1:])
        boxes = box_mask(upsample(maps, network.size), border)
        drawn = random_places((len(few),), network.size, seed + first)
        masks = {
            "centre": boxes,
            "released": boxes,
            "parts": squares_mask(
                looking.cell_to_tensor(places, cells), half_cell + border, network.size
            ),
            "random places": torch.stack(list(map(move, boxes, drawn))),
        }
        for place, kind in enumerate(kinds):
            released = seed + first if kind == "released" else None
            other = attack(network, images, masks[kind], numbers, released)
            found[kind].append(compare(network, images, other, numbers, batch.labels))
            done = first + len(few) * (place + 1) / len(kinds)
            progress(round(done), len(chosen))
    return {
        kind: Change(*map(np.concatenate, zip(*changes, strict=True)))
        for kind, changes in found.items()
    }


NAMES = {
    "location": ("location change (PLC)", "%"),
    "activation": ("activation change (PAC)", "%"),
    "rank": ("rank change (PRC)", ""),
    "accuracy": ("accuracy change (AC)", "%"),
}


def measure(network: Network, splits: Splits, *, seed: int, progress: Progress) -> list[Score]:
    """The four changes, with the box of the map's highest pixels and with those of the parts."""
    places = places_of(network)
    given, classes = (splits.test, [*places, "released"], seed), len(splits.test.labels.unique())
    count = min(max(classes, LEAST), MOST)
    found = attack_all(network, *given, part_of(progress, 0, 3), count)
    given = (splits.test, ["random places"], seed)
    found |= attack_all(network, *given, part_of(progress, 1, 3))
    other = random_weights(network, splits.projection, seed)
    blind = attack_all(other, splits.test, places, seed, part_of(progress, 2, 3))
    scores = []
    for at in places:
        for field, (name, unit) in NAMES.items():
            values = getattr(found[at], field)
            given = {"unit": unit, "better": "lower"}
            given["random_weights"] = mean(getattr(blind[at], field))
            if at == "centre":
                given["random_places"] = mean(getattr(found["random places"], field))
                given["original"] = mean(getattr(found["released"], field))
            note = f"{len(values)} images of {classes} classes"
            scores.append(from_values(name, at, values, seed, note=note, **given))
    return scores
