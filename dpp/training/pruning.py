"""Fewer prototypes: those that say the same, and those that say nothing about their class.

ProtoPNet (Chen et al., 2019) takes out prototypes whose nearest training patches are mostly of
other classes; projection also leaves prototypes with one and the same source.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from dpp.networks import losses
from dpp.networks.model import DeformableProtoPNet


@torch.no_grad()
def merge_duplicates(model: DeformableProtoPNet, tolerance: float = 1e-6) -> Tensor:
    """Takes out prototypes that equal an earlier one of their class; no logit changes.

    The first of equal prototypes takes over the others' connections, since their scores are equal.

    Args:
        model: is changed.
        tolerance: how far the cosine of two prototypes may be from 1.

    Returns:
        (Q,), the numbers that the remaining prototypes had.
    """
    first = find_duplicates(model.prototypes.normalised(), model.prototypes.classes, tolerance)
    weight = model.last_layer.weight
    merged = torch.zeros_like(weight).index_add_(1, first, weight)
    kept = first.unique()
    weight.copy_(merged)
    model.keep(kept)
    return kept


def find_duplicates(prototypes: Tensor, classes: Tensor, tolerance: float = 1e-6) -> Tensor:
    """Which prototype each one equals: (P,), the first of its class that does, perhaps itself.

    Args:
        prototypes: (P, ...), as they are compared with features.
        classes: (P,), of the prototypes.
        tolerance: how far the cosine of two prototypes may be from 1.
    """
    rows = functional.normalize(prototypes.flatten(1), dim=1)
    alike = (rows @ rows.T > 1 - tolerance) & (classes[:, None] == classes)
    return alike.int().argmax(dim=1)


def find_unused(
    scores: Tensor,
    labels: Tensor,
    prototype_classes: Tensor,
    *,
    nearest: int = 6,
    least: int = 3,
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
    """Takes out prototypes (P,) that are unused, and gives the numbers that the others had.

    A class keeps at least its first prototype: without any it could not be found.
    """
    kept = ~unused
    for label in model.prototypes.classes.unique():
        mine = (model.prototypes.classes == label).nonzero().flatten()
        if not kept[mine].any():
            kept[mine[0]] = True
    numbers = kept.nonzero().flatten()
    model.keep(numbers)
    return numbers


def keep_origins(origins: Sequence[dict], numbers: Tensor) -> list[dict]:
    """The origins of the prototypes that remain, with their new numbers."""
    kept = [origins[number] for number in numbers.tolist()]
    return [origin | {"prototype": place} for place, origin in enumerate(kept)]
