"""TesNet: ProtoPNet whose prototypes span a subspace for each class.

Wang et al., "Interpretable Image Recognition by Constructing Transparent Embedding Space", ICCV
2021. A prototype, there a basis concept, is a unit vector. The score of an image is the longest
projection of a cell on it, in which the cell's own length counts; cells are grouped by the cosine.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from dpp import ops
from dpp.methods.protopnet import CellPrototypes, ProtoPNet, make_schedule, patch_terms, weighed
from dpp.networks import losses
from dpp.training import last_layer, projection, prototype_start
from dpp.training.trainer import Method, Phase

SUBSPACE_WEIGHT = 1e-7  # of the distances between classes' subspaces


class Output(NamedTuple):
    """What the network saw in N images."""

    logits: Tensor  # (N, classes)
    scores: Tensor  # (N, P), the longest projection on each prototype
    places: Tensor  # (N, P), where it was found, a flat index into H*W
    cosines: Tensor  # (N, P), the highest over all places, which may lie elsewhere
    z: Tensor  # (N, C, H, W), the add-on layers' features


class BasisConcepts(CellPrototypes):
    """Prototypes of unit length. Arguments are those of `CellPrototypes`."""

    def __init__(self, channels: int, classes: int, per_class: int):
        super().__init__(channels, classes, per_class)
        self.rescale()

    def place_features(self, features: Tensor) -> Tensor:
        """Features (N, C, H, W), not negative, as they are, in single precision at least."""
        return features.to(torch.promote_types(features.dtype, torch.float32))

    def normalised(self) -> Tensor:
        """The prototypes (P, C, 1, 1) with unit length."""
        return functional.normalize(self.vectors, dim=1)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The longest projection of a cell on each prototype, and that cell.

        Args:
            z: (N, C, H, W), not negative.

        Returns:
            projections (N, P), and places (N, P), flat indices into H*W.
        """
        return ops.max_similarity(z, None, self.normalised(), **self.geometry)

    def distance_map(self, z: Tensor) -> Tensor:
        """One minus the cosine (N, P, H, W) of each prototype to every cell of `z`."""
        unit = functional.normalize(z, dim=1)
        return 1 - ops.similarity_map(unit, None, self.normalised(), **self.geometry)

    @torch.no_grad()
    def replace(self, prototype: Tensor, samples: Tensor) -> None:
        """Gives prototypes (Q,) the directions of the cells (Q, C, 1, 1) found for them."""
        self.vectors[prototype] = functional.normalize(samples, dim=1)

    @torch.no_grad()
    def rescale(self) -> None:
        """Brings the vectors back to unit length, which a step of the optimiser leaves."""
        self.vectors.copy_(self.normalised())


class TesNet(ProtoPNet):
    """Backbone, add-on layers, basis concepts and last layer; arguments as for ProtoPNet."""

    channels = 64
    make_prototypes = BasisConcepts

    def inspect(self, images: Tensor) -> Output:
        """The logits of images (N, 3, H, W), and every intermediate result."""
        z, _ = self.locate(images)
        scores, places = self.prototypes(z)
        cosines, _ = self.prototypes(functional.normalize(z, dim=1))
        return Output(self.last_layer(scores), scores, places, cosines, z)

    def similarity_map(self, z: Tensor) -> Tensor:
        """The projection (N, P, H, W) of every cell on each prototype; its maximum is the score."""
        prototypes = self.prototypes
        return ops.similarity_map(z, None, prototypes.normalised(), **prototypes.geometry)


def subspace_distances(prototypes: Tensor, prototype_classes: Tensor) -> Tensor:
    """How far apart the classes' subspaces lie on the Grassmann manifold, summed over pairs.

    The projection metric |A'A - B'B|_F / sqrt(2) of two classes with prototypes in the rows of A
    and B. Since <A'A, B'B> = |AB'|_F^2, sums of squared products of prototypes are all it takes.

    Args:
        prototypes: (P, C, 1, 1), of unit length.
        prototype_classes: (P,).
    """
    rows = prototypes.flatten(1)
    member = functional.one_hot(prototype_classes).to(rows)  # (P, classes)
    inner = member.T @ (rows @ rows.T).square() @ member  # (classes, classes)
    own = inner.diagonal()
    one, other = torch.triu_indices(len(own), len(own), offset=1, device=own.device)
    squares = own[one] + own[other] - 2 * inner[one, other]
    # equal subspaces have distance 0, where a root has no derivative
    return squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt().sum() / math.sqrt(2)


def objective(model: TesNet, images: Tensor, labels: Tensor, phase: Phase) -> dict[str, Tensor]:
    """Stage 1: ProtoPNet's terms on cosines, orthonormal classes, and subspaces far apart.

    Cross entropy + 0.8 compactness + 0.08 separation + 1e-4 sum |P_c P_c' - I|_F^2
    - 1e-7 sum |P_c'P_c - P_d'P_d|_F / sqrt(2), as the phase weighs them.
    """
    model.prototypes.rescale()
    output, classes = model.inspect(images), model.prototypes.classes
    unit = model.prototypes.normalised()
    terms = patch_terms(output.logits, output.cosines, labels, classes) | {
        "orthogonality": losses.orthogonality(unit, classes, 1.0),
        "subspace": -subspace_distances(unit, classes),
    }
    return weighed(terms, output.logits, labels, phase)


METHOD = Method(
    build=lambda experiment, backbone, classes: TesNet(backbone, classes, experiment.per_class),
    objective=lambda experiment: objective,
    schedule=lambda experiment: make_schedule(
        experiment, {"orthogonality": experiment.orthogonality, "subspace": SUBSPACE_WEIGHT}
    ),
    stages=lambda experiment: {
        "start": prototype_start.stage,
        "project": projection.stage,
        "last layer": last_layer.stage(experiment),
    },
)
