"""Why a network gives an image its class (sections 3.4 and 3.5)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dpp.analysis.network import Network, check_origin
from dpp.data.image_records import Box
from dpp.data.pictures import Picture
from dpp.data.transforms import Geometry
from dpp.explanations import (
    ClassScore,
    LocalAnalysis,
    Match,
    Part,
    Reasoning,
    Sighting,
    Step,
    TreePath,
)
from dpp.networks.model import centre_cells
from dpp.system.errors import UserError

EXPLAINED = 5  # classes, if none are named
OTHERS = 5  # prototypes of other classes that are named in a class's score


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
        raise UserError(f"{network.name} is a tree, which has no score sheet: use follow_tree")
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
    numbers = own.nonzero().flatten()
    numbers = numbers[points[numbers].argsort(descending=True, stable=True)]
    amounts = points.abs().masked_fill(own, 0)
    largest = amounts.argsort(descending=True, stable=True)[:OTHERS]
    largest = largest[amounts[largest] > 0]
    return ClassScore(
        label=label,
        name=network.source.class_names[label],
        score=float(output.logits[0, label]),
        probability=float(output.logits[0].double().softmax(dim=0)[label]),
        matches=find_matches(network, output, picture, numbers, connections[numbers]),
        others=float(points[~own].sum()),
        largest_others=(
            find_matches(network, output, picture, largest, connections[largest])
            if len(largest)
            else ()
        ),
    )


def local_analysis(network: Network, picture: Picture, count: int = 2) -> LocalAnalysis:
    """The prototypes most similar to an image, over all classes (supplement)."""
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
    del about["predicted"], about["warning"]
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
    """A prototype on its source image, onto which it was projected.

    Raises:
        UserError: it was not projected, or the image is missing or has changed.
    """
    origin = network.origins.get(prototype)
    if origin is None:
        raise UserError(
            f"prototype {prototype} of {network.name} has no source image: "
            f"{len(network.origins)} of its {len(network.labels)} prototypes were projected"
        )
    record = check_origin(network, origin)
    geometry, size = network.geometry(record)
    (parts,) = make_parts(geometry, origin.cells, [origin.parts])
    seen = (origin.similarity, size, origin.cells, origin.centre, parts)
    return Sighting(prototype, origin.image, record.label, *seen)


def follow_tree(network: Network, picture: Picture, leaf: int | None = None) -> TreePath:
    """The path of an image through a ProtoTree: the greedy one, or that to a given leaf."""
    if not network.is_tree:
        raise UserError(f"{network.name} is not a tree: use reason")
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
    """Why an image was given its class: a score sheet, or the path through a tree.

    Args:
        network: with prototypes.
        picture: from `Network.picture`.
        classes: numbers or names; by default the `EXPLAINED` best, with the true one second if the
            prediction is incorrect.
    """
    if network.is_tree and classes:
        raise UserError(f"{network.name} is a tree, whose path has no chosen classes: give none")
    if network.is_tree:
        return follow_tree(network, picture)
    best = reason(network, picture, classes or None, count=EXPLAINED)
    if classes or best.label in (None, best.predicted):
        return best
    order = dict.fromkeys([best.predicted, best.label, *(one.label for one in best.classes)])
    return reason(network, picture, list(order)[:EXPLAINED])


def _about(network: Network, output, picture: Picture) -> dict:
    """The fields that all explanations of an image have."""
    return {
        "image": picture.name,
        "size": picture.size,
        "cells": tuple(output.z.shape[2:]),
        "run": network.name,
        "predicted": int(output.logits[0].argmax()),
        "label": picture.label,
        "warning": network.warning(output),
    }
