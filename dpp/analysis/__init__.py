"""What a network sees in one image, and where its prototypes come from (sections 3.4 and 3.5).

    network = Network.of(runs.open_run(folder))
    reasoning = reason(network, network.picture("bird.jpg"))

A part at latent place (row, column), whole or fractional, is the rectangle of the original image
with the sides of a cell (gamma, in an image of the network's own size) around what that place looks
at. The paper draws it at gamma times the place; what a cell looks at is half a cell further down
and right in a VGG, and about half a cell further up and left in a ResNet, whose padded strides
displace it (`dpp.backbones.Backbone.looks`). Boxes are drawn where cells look.

The results are in `dpp.analysis.explanations`; nothing here draws. One code path serves all
networks that have prototypes: each can `inspect` images and `find_parts` of prototypes on them.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dpp.analysis.explanations import (
    ClassScore,
    LocalAnalysis,
    Match,
    Part,
    Reasoning,
    Sighting,
    Step,
    TreePath,
)
from dpp.baselines.prototree import ProtoTree, labels_to_the_right
from dpp.data.images import image_size
from dpp.data.loading import to_device
from dpp.data.pictures import Picture, load_picture
from dpp.data.records import Box, Record, Source
from dpp.data.transforms import Geometry
from dpp.errors import UserError
from dpp.model import centre_cells
from dpp.projection import Origin, file_digest
from dpp.runs import Run

EXPLAINED = 5  # classes, if none are named


@dataclass(frozen=True, eq=False)
class Network:
    """A network that can be asked, and what its numbers stand for.

    Args:
        model: with prototypes, trained or not, pruned or not.
        name: of its run.
        source: the data that its classes and origins are of.
        size: side of the images that it sees.
        crop_to_box: whether it sees what is in their boxes.
        origins: where its prototypes come from, by their numbers.
    """

    model: nn.Module
    name: str
    source: Source
    size: int
    crop_to_box: bool = False
    origins: Mapping[int, Origin] = field(default_factory=dict)

    def __post_init__(self):
        if not hasattr(self.model, "find_parts"):
            raise UserError(
                f"{self.name} is a {type(self.model).__name__}, which has no prototypes to explain "
                "anything by: choose a run of deformable, protopnet, tesnet or prototree"
            )
        self.model.eval()

    @classmethod
    def of(cls, run: Run, device: str = "cpu") -> "Network":
        """The network of a run."""
        experiment, model = run.experiment, run.load_model(device)
        there = (run.folder / "prototypes.json").is_file()
        origins = read_origins(run.origins) if there else {}
        shown = {"size": experiment.image_size, "crop_to_box": experiment.crop_to_box}
        return cls(model, run.folder.name, run.source, **shown, origins=origins)

    @property
    def is_tree(self) -> bool:
        return isinstance(self.model, ProtoTree)

    @cached_property
    def labels(self) -> list[int]:
        """The class of every prototype; in a tree, the likeliest one where it is present."""
        if self.is_tree:
            return labels_to_the_right(self.model.leaves)
        return self.model.prototypes.classes.tolist()

    @property
    def prototypes(self) -> Tensor:
        """The numbers of the prototypes: all, but for a tree's nodes that are pruned."""
        used = self.model.forks if self.is_tree else torch.ones(len(self.labels), dtype=torch.bool)
        return used.nonzero().flatten()

    @cached_property
    def records(self) -> dict[str, Record]:
        return {record.id: record for record in self.source.records}

    def picture(self, source: str | Path | Record) -> Picture:
        """Loads a record or a file as the network was shown images."""
        return load_picture(source, self.size, crop_to_box=self.crop_to_box, looks=self.looks)

    @cached_property
    def looks(self) -> tuple[float, ...]:
        """Where the cells of its map look, in pixels of what it sees."""
        return self.model.backbone.looks(self.size)

    def geometry(self, record: Record) -> tuple[Geometry, tuple[int, int]]:
        """How the network's view lies in a record's image, and that image's width and height."""
        size = image_size(record)
        return Geometry.of(record, size, self.size, self.crop_to_box, self.looks), size

    def exchange(self, **children: nn.Module | None) -> "Network":
        """The same but for some children of its model; this one stays as it is."""
        model = copy.copy(self.model)
        model._modules = self.model._modules | children
        return replace(self, model=model)

    @torch.no_grad()
    def inspect(self, images: Tensor):
        """What the model sees in images (N, 3, size, size)."""
        parameter = next(self.model.parameters())
        return self.model.inspect(to_device(images, parameter.device).to(parameter.dtype))

    def label_of(self, wanted: int | str) -> int:
        """A class by its number or name."""
        names = self.source.class_names
        if isinstance(wanted, str):
            if wanted in names:
                return names.index(wanted)
            near = get_close_matches(wanted, names, n=3, cutoff=0.4) or names[:3]
            raise UserError(
                f"{self.source.name} has no class {wanted!r}: did you mean {', '.join(near)}?"
            )
        if not 0 <= wanted < len(names):
            raise UserError(f"{self.source.name} has classes 0 to {len(names) - 1}, not {wanted}")
        return wanted


def read_origins(origins: Sequence[Mapping]) -> dict[int, Origin]:
    """Origins by prototype, from what a run keeps of them (`Run.origins`)."""
    found = {}
    for kept in origins:
        pairs = {name: tuple(kept[name]) for name in ("cells", "centre")}
        parts = tuple(tuple(place) for place in kept["parts"])
        found[kept["prototype"]] = Origin(**(dict(kept) | pairs | {"parts": parts}))
    return found


def reason(
    network: Network,
    picture: Picture,
    classes: Sequence[int | str] | None = None,
    *,
    count: int = 2,
) -> Reasoning:
    """Why an image has the scores of some classes.

    Args:
        network: of prototypes and a last layer.
        picture: from `Network.picture`.
        classes: numbers or names; by default the predicted one and the next.
        count: how many, if none are named.
    """
    if network.is_tree:
        raise UserError(f"{network.name} has no class scores that add up: see its path instead")
    output = network.inspect(picture.tensor[None])
    logits = output.logits[0].double()
    if classes is None:
        wanted = logits.topk(min(count, len(logits))).indices.tolist()
    else:
        wanted = [network.label_of(one) for one in classes]
    scores = tuple(_score_class(network, output, picture, label) for label in wanted)
    return Reasoning(**_about(network, output, picture), classes=scores)


def _score_class(network: Network, output, picture: Picture, label: int) -> ClassScore:
    connections = network.model.last_layer.weight[label].detach()
    points = output.scores[0].double() * connections.double()
    own = torch.tensor(network.labels, device=points.device) == label
    mine = own.nonzero().flatten()
    mine = mine[points[mine].argsort(descending=True, stable=True)]
    return ClassScore(
        label=label,
        name=network.source.class_names[label],
        score=float(output.logits[0, label]),
        probability=float(output.logits[0].double().softmax(dim=0)[label]),
        matches=find_matches(network, output, picture, mine, connections[mine]),
        others=float(points[~own].sum()),
    )


def local_analysis(network: Network, picture: Picture, count: int = 2) -> LocalAnalysis:
    """The prototypes most similar to an image, whatever their class (the supplement's section)."""
    output = network.inspect(picture.tensor[None])
    used = network.prototypes.to(output.scores.device)
    order = output.scores[0, used].argsort(descending=True, stable=True)
    nearest = used[order[:count]]
    if network.is_tree:
        connections = torch.zeros_like(output.scores[0, nearest])
    else:
        labels = torch.tensor(network.labels, device=nearest.device)[nearest]
        connections = network.model.last_layer.weight[labels, nearest].detach()
    matches = find_matches(network, output, picture, nearest, connections)
    origins = [find_origin(network, match.prototype) for match in matches if network.origins]
    about = _about(network, output, picture)
    del about["predicted"]
    return LocalAnalysis(**about, matches=matches, origins=tuple(origins))


def find_matches(
    network: Network, output, picture: Picture, prototypes: Tensor, connections: Tensor
) -> tuple[Match, ...]:
    """Prototypes (Q,) on the one image of an output, with their connections (Q,) to a class."""
    places, shares = network.model.find_parts(output, 0, prototypes)
    cells = tuple(output.z.shape[2:])
    parts = make_parts(picture.geometry, cells, places, shares)
    similarities = output.scores[0, prototypes]
    columns = {
        "prototype": prototypes.tolist(),
        "label": [network.labels[number] for number in prototypes.tolist()],
        "centre": map(tuple, centre_cells(output, 0, prototypes).tolist()),
        "similarity": similarities.tolist(),
        "connection": connections.tolist(),
        "points": (similarities.double() * connections.double()).tolist(),
        "parts": parts,
    }
    rows = zip(*columns.values(), strict=True)
    return tuple(Match(**dict(zip(columns, row, strict=True))) for row in rows)


def make_parts(
    geometry: Geometry, cells: tuple[int, int], places, contributions=None
) -> list[tuple[Part, ...]]:
    """The parts of Q prototypes on one image.

    Args:
        geometry: of the image.
        cells: rows and columns of the map.
        places: (Q, parts, 2).
        contributions: (Q, parts), if they are known.
    """
    places = np.asarray(torch.as_tensor(places).cpu(), dtype=float)
    boxes = geometry.cell_boxes(places, cells).tolist()
    unknown = np.full(places.shape[:2], None)
    shares = (unknown if contributions is None else contributions).tolist()
    return [
        tuple(Part(tuple(place), Box(*box), share) for place, box, share in zip(*one, strict=True))
        for one in zip(places.tolist(), boxes, shares, strict=True)
    ]


def find_origin(network: Network, prototype: int) -> Sighting:
    """Where a prototype comes from, on the image that it was projected on.

    Raises:
        UserError: it comes from nowhere, or the image is gone or is no longer the same file.
    """
    origin = network.origins.get(prototype)
    if origin is None:
        raise UserError(
            f"prototype {prototype} of {network.name} comes from no image: it has origins for "
            f"{len(network.origins)} prototypes"
        )
    record = check_origin(network, origin)
    geometry, size = network.geometry(record)
    (parts,) = make_parts(geometry, origin.cells, [origin.parts])
    seen = (origin.similarity, size, origin.cells, origin.centre, parts)
    return Sighting(prototype, origin.image, record.label, *seen)


def check_origin(network: Network, origin: Origin) -> Record:
    """The record that a prototype comes from, if its file is still the same."""
    record, source = network.records.get(origin.image), network.source
    if record is None:
        raise UserError(
            f"prototype {origin.prototype} of {network.name} comes from image {origin.image}, "
            f"which {source.name} under {source.root} does not have"
        )
    if file_digest(record) != origin.sha256:
        raise UserError(
            f"image {record.path}, from which prototype {origin.prototype} of {network.name} "
            "comes, has changed since: put the original back, or train the run again"
        )
    return record


def follow_tree(network: Network, picture: Picture, leaf: int | None = None) -> TreePath:
    """The path of an image through a ProtoTree: the greedy one, or that to a given leaf."""
    if not network.is_tree:
        raise UserError(f"{network.name} is no tree: its reasoning adds up points")
    model, output = network.model, network.inspect(picture.tensor[None])
    leaves = model.leaves().exp()
    leaf = int(output.leaves[0]) if leaf is None else leaf
    if not 0 <= leaf < len(leaves):
        raise UserError(f"{network.name} has leaves 0 to {len(leaves) - 1}, not {leaf}")
    forks, about = model.forks, _about(network, output, picture)
    steps, node = [], len(forks) + leaf
    while node:  # from the leaf up to the root
        node, side = divmod(node - 1, 2)
        if forks[node]:
            place = divmod(int(output.places[0, node]), about["cells"][1])
            box = picture.geometry.cell_box(place, about["cells"])
            branch = ("left", "right")[side], float(output.branches[0, node, side].exp())
            steps.append(Step(node, float(output.scores[0, node]), place, box, *branch))
    probability, distribution = float(output.paths[0, leaf].exp()), tuple(leaves[leaf].tolist())
    return TreePath(
        **about,
        steps=tuple(reversed(steps)),
        leaf=leaf,
        probability=probability,
        distribution=distribution,
    )


def explain(
    network: Network,
    picture: Picture,
    classes: Sequence[int | str] = (),
) -> Reasoning | TreePath:
    """Why an image was given its class, in whatever way the network came to it.

    Args:
        network: with prototypes.
        picture: from `Network.picture`.
        classes: numbers or names; by default the `EXPLAINED` best, the true one second if the
            network is wrong.
    """
    if network.is_tree and classes:
        raise UserError(f"{network.name} is a tree, whose path is not about chosen classes")
    if network.is_tree:
        return follow_tree(network, picture)
    found = reason(network, picture, classes or None, count=EXPLAINED)
    if classes or found.label in (None, found.predicted):
        return found
    order = dict.fromkeys([found.predicted, found.label, *(one.label for one in found.classes)])
    return reason(network, picture, list(order)[:EXPLAINED])


def _about(network: Network, output, picture: Picture) -> dict:
    """What all explanations of an image say."""
    return {
        "image": picture.name,
        "size": picture.size,
        "cells": tuple(output.z.shape[2:]),
        "run": network.name,
        "predicted": int(output.logits[0].argmax()),
        "label": picture.label,
    }
