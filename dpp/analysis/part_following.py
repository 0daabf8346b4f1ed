"""Do parts follow the animal? Where they land beside where its true parts are, image by image.

Every measure compares the network as it is, `moved`, with the same network whose parts do not move,
`at rest`, and whose prototypes are still centred where they fit best. True parts are those that the
data set marks; left and right of a pair count as one, since an animal that faces left shows the
other. Places and distances are in cells of the map.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from dpp.analysis.figure_data import check_deformable
from dpp.analysis.network import Network
from dpp.data.batches import ImageDataset, batches, make_loader
from dpp.networks.losses import own_class
from dpp.networks.model import Output
from dpp.networks.prototypes import OffsetBranch
from dpp.system.errors import UserError

BATCH = 50  # images that are inspected at a time
WITHIN = 1.0  # cells: a part lands on a true part that is no farther from it
LEAST_SHOWN = 0.5  # of a class's images must show a true part, or it is nobody's


class Landing(NamedTuple):
    """Where parts and true parts are on the N images of one class."""

    prototypes: np.ndarray  # (Q,), the class's, by their numbers
    places: np.ndarray  # (N, Q, parts, 2)
    marks: np.ndarray  # (N, marked parts, 2), NaN where hidden


def true_parts(part_names: tuple[str, ...]) -> tuple[list[str], list[int]]:
    """The names of M true parts, and to which of them each marked part of a data set belongs."""
    plain = [name.removeprefix("left ").removeprefix("right ") for name in part_names]
    names = list(dict.fromkeys(plain))
    return names, [names.index(name) for name in plain]


def held_at_rest(network: Network) -> Network:
    """The same network with parts that do not move."""
    return network.exchange(offsets=None)


class SameOffsets(nn.Module):
    """In place of an offset branch: each part (parts, 2) moves as far on every image and centre."""

    def __init__(self, moved: Tensor):
        super().__init__()
        self.register_buffer("moved", moved)

    def forward(self, z: Tensor) -> Tensor:
        field = self.moved.to(z).view(1, -1, 1, 1)
        return field.expand(len(z), -1, *z.shape[2:]).contiguous()


@torch.no_grad()
def held_at_mean(network: Network, dataset: ImageDataset) -> Network:
    """The same network with parts that all move as far on every image: the control of following.

    Each part lies by a constant off its rest: the mean of its offsets on these images, at the
    centres of the prototypes of the image's own class. What such parts do as well as moved ones is
    a better arrangement of the parts, and not an answer to the pose.
    """
    model = check_deformable(network)
    if not isinstance(model.offsets, OffsetBranch):
        raise UserError(
            f"{network.name} predicts no offsets: choose a run with deformation predicted"
        )
    total, count = torch.zeros(model.prototypes.kernel_size**2, 2, dtype=torch.double), 0
    for batch in batches(make_loader(dataset, BATCH)):
        output = network.inspect(batch.images)
        own = own_class(batch.labels.to(output.scores.device), model.prototypes.classes)
        moved = model.displacements(output, torch.arange(own.shape[1]))[own]
        total, count = total + moved.double().sum(dim=0).cpu(), count + len(moved)
    return network.exchange(offsets=SameOffsets((total / count).float()))


@torch.no_grad()
def see(network: Network, images) -> dict[str, Output]:
    """What a network sees in images `moved`, and `at rest`; features are computed once for both."""
    features = network.model.backbone(network.prepare(images))
    given = network.exchange(backbone=nn.Identity())
    pair = {"moved": given, "at rest": held_at_rest(given)}
    return {kind: one.model.inspect(features) for kind, one in pair.items()}


@torch.no_grad()
def land(network: Network, dataset: ImageDataset) -> dict[str, dict[int, Landing]]:
    """Where the parts of each class's prototypes lie on the images of that class.

    Args:
        network: a Deformable ProtoPNet.
        dataset: un-augmented, with marked parts of the animal.

    Returns:
        `moved` and `at rest`, by class.
    """
    model = check_deformable(network)
    if not any(record.parts for record in dataset.records):
        raise UserError(
            f"{network.source.name} has no annotated parts of the animal: choose data with parts, "
            "such as posebirds or cub"
        )
    owners = torch.tensor(network.labels)
    found: dict[str, dict[int, list[Landing]]] = {}
    for batch in batches(make_loader(dataset, BATCH)):
        for kind, output in see(network, batch.images).items():
            cells = tuple(output.z.shape[2:])
            for label in batch.labels.unique().tolist():
                rows = (batch.labels == label).nonzero().flatten()
                numbers = (owners == label).nonzero().flatten()
                places = model.part_places(output.of_images(rows), numbers).cpu().numpy()
                records = [dataset.records[index] for index in batch.indices[rows].tolist()]
                marks = np.stack([marks_of(network, record, cells) for record in records])
                pieces = found.setdefault(kind, {}).setdefault(label, [])
                pieces.append(Landing(numbers.numpy(), places, marks))
    return {
        kind: {label: _join(pieces) for label, pieces in sorted(by_class.items())}
        for kind, by_class in found.items()
    }


def _join(pieces: list[Landing]) -> Landing:
    """One class's landings of several batches as one."""
    _, places, marks = (np.concatenate(one) for one in zip(*pieces, strict=True))
    return Landing(pieces[0].prototypes, places, marks)


def marks_of(network: Network, record, cells: tuple[int, int]) -> np.ndarray:
    """(marked parts, 2): where they are on the map; NaN if they are hidden."""
    seen = np.array([(p.y, p.x) if p.visible else (np.nan, np.nan) for p in record.parts])
    return network.geometry(record)[0].image_to_cell(seen, cells)


def true_places(network: Network, record, name: str) -> np.ndarray:
    """(marks, 2), row and column of a true part in an image's pixels: two of a pair, or none."""
    names, groups = true_parts(network.source.part_names)
    found = [
        (mark.y, mark.x)
        for mark, group in zip(record.parts, groups, strict=True)
        if names[group] == name and mark.visible
    ]
    return np.array(found, dtype=float).reshape(-1, 2)


def distances(places: np.ndarray, marks: np.ndarray, groups: list[int]) -> np.ndarray:
    """How far parts are from true parts.

    Args:
        places: (N, Q, parts, 2).
        marks: (N, marked, 2), NaN where hidden.
        groups: to which of M true parts each marked one belongs.

    Returns:
        (N, Q, parts, M): to the nearer of a pair; infinite where none is shown.
    """
    apart = np.linalg.norm(places[:, :, :, None] - marks[:, None, None], axis=-1)
    apart = np.where(np.isnan(apart), np.inf, apart)
    grouped = np.full((*apart.shape[:3], max(groups) + 1), np.inf)
    for mark, group in enumerate(groups):
        grouped[..., group] = np.minimum(grouped[..., group], apart[..., mark])
    return grouped


def own_true_parts(apart: np.ndarray, within: float = WITHIN) -> np.ndarray:
    """(Q, parts), the true part that each part lands on most often, of `distances`.

    As a share of the images that show it; a true part that fewer than half of the images show is
    not considered.
    """
    shown = np.isfinite(apart[:, 0, 0])  # (N, M)
    share = (apart <= within).sum(axis=0) / np.maximum(shown.sum(axis=0), 1)
    share[..., shown.mean(axis=0) < LEAST_SHOWN] = -1
    return share.argmax(axis=2)


def follow(
    network: Network, reference: ImageDataset, dataset: ImageDataset, within: float = WITHIN
) -> pd.DataFrame:
    """Whether each part of each prototype lands on the same true part on all images of its class.

    Which true part is a part's own is decided on the reference images: the one that it lands on
    most often there. `elsewhere` is the control: the same places among the true parts of all other
    images of the class. Animals are in the middle of their images, so it is high.

    Args:
        network: a Deformable ProtoPNet.
        reference: un-augmented training images.
        dataset: un-augmented test images.
        within: how far a part may be from a true part that it lands on, in cells.

    Returns:
        A row for each part, `moved` and `at rest` as `kind`: `label`, `prototype`, `part`,
        `true part`; `share` of the images that show its true part, on which it lands on it, and
        `elsewhere`; `distance` to it, the median over those images, and `elsewhere distance`.
    """
    names, groups = true_parts(network.source.part_names)
    before, after = land(network, reference), land(network, dataset)
    rows = []
    for kind, landings in after.items():
        for label, landing in landings.items():
            own = own_true_parts(distances(*before[kind][label][1:], groups), within)
            about = {"kind": kind, "label": label}
            rows += [about | row for row in _rows_of(landing, groups, own, names, within)]
    return pd.DataFrame(rows)


def _rows_of(landing: Landing, groups, own: np.ndarray, names, within: float) -> Iterator[dict]:
    """A row of `follow` for each part of one class."""
    count = len(landing.places)
    apart = distances(landing.places, landing.marks, groups)
    # (N - 1, N, Q, parts, M): the places of each image among the marks of every other one
    crossed = np.stack(
        [
            distances(landing.places, np.roll(landing.marks, step, axis=0), groups)
            for step in range(1, count)
        ]
        or [np.full_like(apart, np.inf)]
    )
    for number, part in np.ndindex(own.shape):
        mark = own[number, part]
        here, there = apart[:, number, part, mark], crossed[:, :, number, part, mark].ravel()
        here, there = here[np.isfinite(here)], there[np.isfinite(there)]
        yield {
            "prototype": int(landing.prototypes[number]),
            "part": part,
            "true part": names[mark],
            "share": _mean(here <= within),
            "elsewhere": _mean(there <= within),
            "distance": float(np.median(here)) if len(here) else np.nan,
            "elsewhere distance": float(np.median(there)) if len(there) else np.nan,
        }


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else np.nan


def summarise(followed: pd.DataFrame) -> pd.DataFrame:
    """The means of `follow` over all parts, a row for `moved` and for `at rest`."""
    columns = ["share", "elsewhere", "distance", "elsewhere distance"]
    return followed.groupby("kind")[columns].mean().loc[["moved", "at rest"]]


@torch.no_grad()
def gain_by_moving(network: Network, dataset: ImageDataset) -> pd.DataFrame:
    """By how much moving the parts raises similarities, and what it does to the decisions.

    Args:
        network: a Deformable ProtoPNet.
        dataset: un-augmented.

    Returns:
        A row for each image: `own` and `others`, the mean over the prototypes of its own class and
        of all others of similarity moved minus similarity at rest; `correct moved` and
        `correct at rest`.
    """
    classes = check_deformable(network).prototypes.classes
    rows = []
    for batch in batches(make_loader(dataset, BATCH)):
        labels = batch.labels.to(classes.device)
        moved, held = see(network, batch.images).values()
        gain = (moved.scores - held.scores).double()
        own = own_class(labels, classes).double()
        columns = {
            "own": (gain * own).sum(dim=1) / own.sum(dim=1),
            "others": (gain * (1 - own)).sum(dim=1) / (1 - own).sum(dim=1),
            "correct moved": moved.logits.argmax(dim=1) == labels,
            "correct at rest": held.logits.argmax(dim=1) == labels,
        }
        rows.append(pd.DataFrame({name: one.cpu().numpy() for name, one in columns.items()}))
    return pd.concat(rows, ignore_index=True)
