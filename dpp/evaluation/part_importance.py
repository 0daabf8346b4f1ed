"""How important each part of a bird is in a network's own explanation of a class.

An explanation is a set of boxes with weights. Prototypes of the class lie at boxes as large as a
cell, as figures show them: at the prototype's centre, with its points (similarity times
connection); or at the place of each of its parts, with the part's share of the points. A tree has
no points: of its path to the leaf that counts most for the class, each node that is found present
lies where it was found, with its similarity; what a path finds absent lies nowhere. A box's weight
is spread evenly over its area, and a part's importance is what lies on the part.

FunnyBirds' own wrapper of ProtoPNet has larger boxes, around the highest 5 % of the upsampled map,
and calls a part important by how much of it any box covers. Here all explanations are treated as
that framework treats attribution maps: by the part's share of the total.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpp.analysis.network import Network
from dpp.data.transforms import Geometry
from dpp.networks.model import centre_cells

BATCH = 50  # images that are inspected at a time


class Boxes(NamedTuple):
    """An explanation of a class on one image."""

    corners: np.ndarray  # (boxes, 4), left, top, right and bottom in pixels of the original image
    weights: np.ndarray  # (boxes,)


def part_importances(boxes: Boxes, masks: np.ndarray) -> np.ndarray:
    """What lies on each part when each box's weight is spread evenly over its area.

    Args:
        boxes: which may stick out of the image.
        masks: (parts, height, width), the share of each pixel that a part covers.

    Returns:
        (parts,).
    """
    corners = boxes.corners
    (across, down), (right, bottom) = corners[:, :2].T, corners[:, 2:].T
    _, height, width = masks.shape
    rows = _overlaps(down, bottom, height)  # (boxes, height)
    columns = _overlaps(across, right, width)
    inside = np.tensordot(rows, masks, axes=(1, 1))  # (boxes, parts, width)
    areas = (right - across) * (bottom - down)
    shares = (inside * columns[:, None]).sum(axis=2) / areas[:, None]
    return boxes.weights @ shares


def _overlaps(start: np.ndarray, end: np.ndarray, count: int) -> np.ndarray:
    """(boxes, count): how much of each unit interval [i, i + 1] lies between start and end."""
    first = np.arange(count)
    return np.clip(np.minimum(end[:, None], first + 1) - np.maximum(start[:, None], first), 0, None)


def scatter(boxes: Boxes, region, random: np.random.Generator) -> Boxes:
    """The same boxes with their middles anywhere in a region, uniformly."""
    corners = boxes.corners
    half = (corners[:, 2:] - corners[:, :2]) / 2
    middles = random.uniform(region[:2], region[2:], (len(corners), 2))
    return boxes._replace(corners=np.concatenate([middles - half, middles + half], axis=1))


class Explainer:
    """A network's explanations of N images.

    Args:
        network: with prototypes.
        images: (N, 3, size, size).
        geometries: how each lies in its original image.
        masks: N of (parts, height, width), see `part_importances`.
    """

    def __init__(self, network: Network, images: Tensor, geometries: list[Geometry], masks: list):
        self.network, self.geometries, self.masks = network, geometries, masks
        self.outputs = [network.inspect(some) for some in images.split(BATCH)]

    def at(self, place: str, seed: int | None = None) -> Callable:
        """A function from a class for each image (N,) to importances (N, parts) and totals (N,).

        Args:
            place: one of `sightings.places_of`.
            seed: scatters the boxes at random.
        """

        def explain(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            importances, totals = [], []
            for image, label in enumerate(labels.tolist()):
                boxes = self.boxes(image, label, place)
                if seed is not None:
                    random = np.random.default_rng((seed, image, label))
                    boxes = scatter(boxes, self.geometries[image].region, random)
                importances.append(part_importances(boxes, self.masks[image]))
                totals.append(boxes.weights.sum())
            return np.stack(importances), np.array(totals)

        return explain

    def boxes(self, image: int, label: int, place: str) -> Boxes:
        """The explanation of a class on one image."""
        batch, row = divmod(image, BATCH)
        output = self.outputs[batch]
        if self.network.is_tree:
            places, weights = follow_path(self.network, output, row, label)
        else:
            places, weights = place_points(self.network, output, row, label, place)
        places, weights = (one.double().cpu().numpy() for one in (places, weights))
        corners = self.geometries[image].cell_boxes(places, tuple(output.z.shape[2:]))
        return Boxes(corners, weights)


@torch.no_grad()
def place_points(
    network: Network, output, row: int, label: int, place: str
) -> tuple[Tensor, Tensor]:
    """Where the prototypes of a class lie on an image, and their points for that class.

    Returns:
        places (Q, 2) and points (Q,), Q prototypes or parts; places are rows and columns of cells.
    """
    owners = torch.tensor(network.labels, device=output.scores.device)
    numbers = (owners == label).nonzero().flatten()
    connections = network.model.last_layer.weight[label, numbers]
    if place == "centre":
        return centre_cells(output, row, numbers), output.scores[row, numbers] * connections
    places, shares = network.model.find_parts(output, row, numbers)
    return places.flatten(0, 1), (shares * connections[:, None]).flatten()


@torch.no_grad()
def follow_path(network: Network, output, row: int, label: int) -> tuple[Tensor, Tensor]:
    """Where a tree finds what is present on its path to the leaf that counts most for a class.

    Returns:
        places (Q, 2), rows and columns of cells, and similarities (Q,), of the path's nodes where
        it goes right.
    """
    model = network.model
    leaf = int((output.paths[row] + model.leaves()[:, label]).argmax())
    node, present = len(model.forks) + leaf, []
    while node:
        node, side = divmod(node - 1, 2)
        if side and model.forks[node]:
            present.append(node)
    numbers = torch.tensor(present, dtype=torch.long, device=output.scores.device)
    return centre_cells(output, row, numbers), output.scores[row, numbers]
