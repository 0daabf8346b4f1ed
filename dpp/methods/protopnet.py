"""ProtoPNet: prototypes of one cell, compared by squared distance.

Chen et al., "This Looks Like That: Deep Learning for Interpretable Image Recognition", NeurIPS
2019. Numbers of prototypes and channels, weights of the losses and rates are that paper's;
`dpp.methods.tesnet` builds upon it.

The nearest cell of a prototype is found as the operator finds everything else, by an inner product:

    |z - p|^2 = |p|^2 - 2 (z, |z|^2) . (p, -1/2)

so that projection (stage 2) is that of `dpp.training.projection`, and no map is kept for the
backward pass.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpp import ops
from dpp.backbones.backbone import Backbone
from dpp.data.batches import Batch, ImageDataset
from dpp.networks import losses
from dpp.networks.model import DeformableProtoPNet, find_cells, make_last_layer
from dpp.training import last_layer, projection, prototype_start
from dpp.training.experiments import Experiment
from dpp.training.projection import Origin
from dpp.training.trainer import Method, Phase, Schedule

EPSILON = 1e-4  # bounds the similarity of a cell that equals its prototype: log(1e4)


class Output(NamedTuple):
    """What the network saw in N images."""

    logits: Tensor  # (N, classes)
    scores: Tensor  # (N, P), each prototype's similarity to the image
    places: Tensor  # (N, P), where it was found, a flat index into H*W
    distances: Tensor  # (N, P), squared, to the nearest cell
    z: Tensor  # (N, C + 1, H, W), the add-on layers' features and their squared lengths


def similarity(distances: Tensor) -> Tensor:
    """log((d + 1) / (d + epsilon)) of squared distances d: falls from log(1 / epsilon) to 0."""
    return torch.log((distances + 1) / (distances + EPSILON))


def make_add_on(channels: int, embedding: int) -> nn.Sequential:
    """Two 1x1 convolutions, from the backbone's channels to the prototypes', within 0 and 1."""
    layers = nn.Sequential(
        nn.Conv2d(channels, embedding, 1), nn.ReLU(), nn.Conv2d(embedding, embedding, 1)
    )
    for convolution in (layers[0], layers[2]):
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(convolution.bias)
    return layers.append(nn.Sigmoid())


class CellPrototypes(nn.Module):
    """The prototypes of all classes, each one vector, in order of their classes.

    Args:
        channels: of the add-on layers' features.
        classes: how many.
        per_class: prototypes of a class.
    """

    geometry = {"dilation": 1, "outside": None}  # for the operator

    def __init__(self, channels: int, classes: int, per_class: int):
        super().__init__()
        self.vectors = nn.Parameter(torch.rand(classes * per_class, channels, 1, 1))
        self.register_buffer("classes", torch.arange(classes).repeat_interleave(per_class))

    def place_features(self, features: Tensor) -> Tensor:
        """Features (N, C, H, W), not negative, with their squared lengths: (N, C + 1, H, W)."""
        features = features.to(torch.promote_types(features.dtype, torch.float32))
        return torch.cat([features, features.square().sum(dim=1, keepdim=True)], dim=1)

    def normalised(self) -> Tensor:
        """The prototypes (P, C + 1, 1, 1) as the operator compares them with such features."""
        return functional.pad(self.vectors, (0, 0, 0, 0, 0, 1), value=-0.5)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The squared distance of each prototype to its nearest cell, and that cell.

        The search rounds as the expansion does; the distance itself is a sum of squares, which is
        exact where it is small.

        Args:
            z: (N, C + 1, H, W), from `place_features`.

        Returns:
            distances (N, P), and places (N, P), flat indices into H*W.
        """
        with torch.no_grad():
            _, places = ops.max_similarity(z, None, self.normalised(), **self.geometry)
        cells = ops.sample_parts(z, None, places, kernel_size=1, **self.geometry)
        return squared_distance(cells[:, :, :-1], self.vectors), places

    def distance_map(self, z: Tensor) -> Tensor:
        """The squared distance (N, P, H, W) of each prototype to every cell of `z`."""
        lengths = self.vectors.square().sum(dim=1)  # (P, 1, 1)
        products = ops.similarity_map(z, None, self.normalised(), **self.geometry)
        return (lengths - 2 * products).clamp_min(0)

    @torch.no_grad()
    def replace(self, prototype: Tensor, samples: Tensor) -> None:
        """Replaces prototypes (Q,) by cells (Q, C + 1, 1, 1)."""
        self.vectors[prototype] = samples[:, :-1]

    def rescale(self) -> None:
        """Nothing: distances depend on the vectors' lengths."""


def squared_distance(one: Tensor, other: Tensor) -> Tensor:
    """Between vectors (..., C, 1, 1)."""
    return (one - other).square().sum(dim=(-3, -2, -1))


class ProtoPNet(nn.Module):
    """Backbone, add-on layers, prototypes and last layer.

    Args:
        backbone: where the features come from.
        classes: how many.
        per_class: prototypes of a class.
    """

    channels = 128  # of a prototype
    make_prototypes = CellPrototypes

    def __init__(self, backbone: Backbone, classes: int, per_class: int = 10):
        super().__init__()
        self.backbone = backbone
        self.add_on = make_add_on(backbone.channels, self.channels)
        self.prototypes = self.make_prototypes(self.channels, classes, per_class)
        self.last_layer = make_last_layer(classes, self.prototypes.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 3, H, W)."""
        return self.inspect(images).logits

    def inspect(self, images: Tensor) -> Output:
        """The logits of images (N, 3, H, W), and every intermediate result."""
        z, _ = self.locate(images)
        distances, places = self.prototypes(z)
        scores = similarity(distances)
        return Output(self.last_layer(scores), scores, places, distances, z)

    def locate(self, images: Tensor) -> tuple[Tensor, None]:
        """The features that prototypes are compared with, and None: there are no offsets."""
        return self.prototypes.place_features(self.add_on(self.backbone(images))), None

    def similarity_map(self, z: Tensor) -> Tensor:
        """The similarity (N, P, H, W) of each prototype to every cell; its maximum is the score."""
        return similarity(self.prototypes.distance_map(z))

    def measure(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """`accuracy` (N,), 0 or 1, of each image."""
        return {"accuracy": (self(images).argmax(dim=1) == labels).float()}

    find_parts = find_cells
    keep = DeformableProtoPNet.keep


def patch_terms(
    logits: Tensor, closeness: Tensor, labels: Tensor, prototype_classes: Tensor
) -> dict[str, Tensor]:
    """The paper's loss, term by term, each averaged over images.

    Args:
        logits: (N, classes).
        closeness: (N, P), of each prototype's nearest cell: minus its squared distance, so that
            `cluster` is the least distance to a prototype of the image's class, and `separation`
            minus the least to one of another class.
        labels: (N,).
        prototype_classes: (P,).
    """
    return {
        "cross_entropy": functional.cross_entropy(logits, labels),
        "cluster": losses.cluster(closeness, labels, prototype_classes),
        "separation": losses.separation(closeness, labels, prototype_classes),
    }


def weighed(
    terms: dict[str, Tensor], logits: Tensor, labels: Tensor, phase: Phase
) -> dict[str, Tensor]:
    """Terms with their sum as the phase weighs them, and the accuracy."""
    correct = (logits.argmax(dim=1) == labels).float()
    return terms | {"loss": losses.total(terms, phase.weights), "accuracy": correct.mean()}


def objective(model: ProtoPNet, images: Tensor, labels: Tensor, phase: Phase) -> dict[str, Tensor]:
    """Stage 1: cross entropy + 0.8 cluster + 0.08 separation, as the phase weighs them."""
    output = model.inspect(images)
    terms = patch_terms(output.logits, -output.distances, labels, model.prototypes.classes)
    return weighed(terms, output.logits, labels, phase)


def make_schedule(experiment: Experiment, more: Mapping[str, float] | None = None) -> Schedule:
    """Add-on layers and prototypes; the backbone too; stages 2 and 3 on the way.

    Args:
        experiment: whose rates, epochs and weights are taken.
        more: weights of further terms of the loss.
    """
    weights = {"cluster": experiment.cluster, "separation": experiment.separation} | (more or {})
    warm = {"add_on": experiment.prototype_rate, "prototypes": experiment.prototype_rate}
    joint = warm | {"backbone": experiment.backbone_rate}
    epochs = experiment.epochs - experiment.warm_epochs
    decay = {"decay": experiment.decay, "decay_every": experiment.decay_every}
    return Schedule(
        phases=(
            Phase("warm", experiment.warm_epochs, warm, weights),
            Phase("joint", epochs, joint, weights, **decay),
        ),
        before=() if experiment.prototype_start == "uniform" else ("start",),
        stages=("project",) if experiment.last_layer == "fixed" else ("project", "last layer"),
        after=experiment.project_after,
        weight_decay=dict.fromkeys(("backbone", "add_on"), experiment.weight_decay),
    )


@torch.no_grad()
def project(model: ProtoPNet, images: Iterable[Batch], dataset: ImageDataset) -> list[Origin]:
    """Makes every prototype the nearest cell of an image of its class, in one pass.

    Args:
        model: whose prototypes are replaced.
        images: un-augmented.
        dataset: what they are batches of.

    Returns:
        An origin for each prototype, its one part the cell.
    """
    before = model.prototypes.vectors.clone()
    origins = projection.project(model, images, dataset)
    scores = similarity(squared_distance(before, model.prototypes.vectors)).tolist()
    return [replace(origin, similarity=scores[origin.prototype]) for origin in origins]


METHOD = Method(
    build=lambda experiment, backbone, classes: ProtoPNet(backbone, classes, experiment.per_class),
    objective=lambda experiment: objective,
    schedule=make_schedule,
    stages=lambda experiment: {
        "start": prototype_start.stage,
        "project": partial(projection.stage, project=project),
        "last layer": last_layer.stage(experiment),
    },
)
