"""Removes prototypes that are duplicates, or whose nearest training images are of other classes.

ProtoPNet (Chen et al., 2019) prunes by the second criterion; duplicates arise where projection
gives several prototypes of a class the same source. `dpp.runs.pruned` applies both to a run.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from dpp.extensions.searching_parts import PartSearch
from dpp.networks import losses
from dpp.networks.model import DeformableProtoPNet

COSTS_COUNT = 100  # times as much as vectors, in a comparison: they are about a hundredth of them
NEAREST, LEAST = 6, 3  # ProtoPNet's: of the 6 nearest training images, at least 3 of the class


@torch.no_grad()
def merge_duplicates(model: DeformableProtoPNet, tolerance: float = 1e-6) -> Tensor:
    """Removes prototypes that equal an earlier one of their class; no logit changes.

    The first of equal prototypes takes over the others' connections, since their scores are equal.

    Args:
        model: is changed.
        tolerance: how far the cosine of two prototypes may be from 1.

    Returns:
        (Q,), the numbers that the remaining prototypes had.
    """
    first = find_duplicates(compared(model), model.prototypes.classes, tolerance)
    weight = model.last_layer.weight
    merged = torch.zeros_like(weight).index_add_(1, first, weight)
    kept = first.unique()
    weight.copy_(merged)
    model.keep(kept)
    return kept


def compared(model: DeformableProtoPNet) -> Tensor:
    """(P, ...), all that scores depend on: the vectors, and what moving costs parts that search."""
    vectors = model.prototypes.normalised().flatten(1)
    if not isinstance(getattr(model, "offsets", None), PartSearch):
        return vectors
    return torch.cat([vectors, COSTS_COUNT * model.offsets.costs()], dim=1)


def find_duplicates(prototypes: Tensor, classes: Tensor, tolerance: float = 1e-6) -> Tensor:
    """Which prototype each one equals: (P,), the first such of its class, or itself.

    With a wide tolerance equality is not transitive: a prototype is compared only with those that
    equal no earlier one.

    Args:
        prototypes: (P, ...), as they are compared with features.
        classes: (P,), of the prototypes.
        tolerance: how far the cosine of two prototypes may be from 1.
    """
    rows = functional.normalize(prototypes.flatten(1), dim=1)
    alike = (rows @ rows.T > 1 - tolerance) & (classes[:, None] == classes)
    first = torch.arange(len(rows), device=rows.device)
    numbers = first.clone()
    for number, row in enumerate(alike):  # duplicates are not compared with later ones
        earlier = (row & (first == numbers))[:number].nonzero()
        if len(earlier):
            first[number] = earlier[0, 0]
    return first


def find_unused(
    scores: Tensor,
    labels: Tensor,
    prototype_classes: Tensor,
    *,
    nearest: int = NEAREST,
    least: int = LEAST,
) -> Tensor:
    """ProtoPNet's criterion: too few of a prototype's nearest training images are of its class.

    Args:
        scores: (N, P), of the training images.
        labels: (N,).
        prototype_classes: (P,).
        nearest: how many images to look at.
        least: how many of them must be of the prototype's class.

    Returns:
        (P,), whether the prototype is unused.
    """
    top = scores.topk(min(nearest, len(scores)), dim=0).indices  # (nearest, P)
    own = losses.own_class(labels, prototype_classes).gather(0, top)
    return own.sum(dim=0) < least


def prune(model: DeformableProtoPNet, unused: Tensor) -> Tensor:
    """Removes unused prototypes (P,); a class keeps at least its first one.

    Returns:
        (Q,), the numbers that the remaining prototypes had.
    """
    kept = ~unused
    for label in model.prototypes.classes.unique():
        of_class = (model.prototypes.classes == label).nonzero().flatten()
        if not kept[of_class].any():
            kept[of_class[0]] = True
    numbers = kept.nonzero().flatten()
    model.keep(numbers)
    return numbers


def keep_origins(origins: Sequence[dict], numbers: Tensor) -> list[dict]:
    """The origins of the prototypes that remain, with their new numbers."""
    kept = [origins[number] for number in numbers.tolist()]
    return [origin | {"prototype": place} for place, origin in enumerate(kept)]
