"""Heat maps of explanations at the size of the network's input, and where the object is."""

import numpy as np
import torch
from torch import Tensor

from dpp.analysis.network import Network
from dpp.data.batches import ImageDataset
from dpp.evaluation.sightings import Sightings, upsample
from dpp.system.errors import UserError

CHUNK = 100  # images at a time


def spread(dataset: ImageDataset, most: int) -> np.ndarray:
    """At most so many indices, evenly over a data set."""
    count = min(most, len(dataset))
    return np.unique(np.linspace(0, len(dataset) - 1, count).round().astype(int))


def from_maps(maps: np.ndarray, size: int) -> Tensor:
    """Maps (n, H, W) upsampled and scaled from 0 to 1; 0 where a map is the same everywhere."""
    big = upsample(torch.from_numpy(maps), size)
    low, high = big.flatten(1).aminmax(dim=1)
    return (big - low[:, None, None]) / (high - low).clamp_min(1e-12)[:, None, None]


def from_places(places: np.ndarray, shares: np.ndarray, size: int, reach: float) -> Tensor:
    """Tents around places, as high as what they add: (n, size, size), the highest point 1.

    A tent falls to 0 within one cell, as the map of a single cell does between it and the next.

    Args:
        places: (n, parts, 2), in pixels.
        shares: (n, parts); negative ones count as none.
        size: of the input.
        reach: of a cell, in pixels.
    """
    middles = np.arange(size) + 0.5
    sides = (1 - np.abs(places[..., None] - middles) / reach).clip(0)  # (n, parts, 2, size)
    heat = np.einsum("np,npr,npc->nrc", shares.clip(0), sides[:, :, 0], sides[:, :, 1])
    top = heat.reshape(len(heat), -1).max(axis=1)[:, None, None]
    return torch.from_numpy(heat / np.maximum(top, 1e-12)).float()


def shown_heat(network: Network, seen: Sightings, at: str, rows: np.ndarray) -> Tensor:
    """The heat (n, size, size) of the prototype that counts most on some images."""
    if at == "centre":
        return from_maps(seen.shown_map[rows], network.size)
    given = (seen.shown_parts[rows], seen.shown_shares[rows])
    return from_places(*given, network.size, network.size / seen.cells[0])


def class_heat(network: Network, seen: Sightings, at: str, rows: np.ndarray) -> Tensor:
    """The heat (n, size, size) of all prototypes of an image's class."""
    if at == "centre":
        return from_maps(seen.class_map[rows], network.size)
    heat = []
    for row in rows:
        places = seen.parts[seen.image == row].reshape(1, -1, 2)
        shares = np.ones(places.shape[:2])
        heat.append(from_places(places, shares, network.size, network.size / seen.cells[0]))
    return torch.cat(heat)


def moved(heat: Tensor, seed: int) -> Tensor:
    """Each heat map (size, size) shifted by a random distance; what leaves comes in again."""
    random = np.random.default_rng(seed)
    shifts = random.integers(heat.shape[-1], size=(len(heat), 2)).tolist()
    return torch.stack([one.roll(by, (0, 1)) for one, by in zip(heat, shifts, strict=True)])


def object_masks(network: Network, dataset: ImageDataset, rows: np.ndarray) -> Tensor:
    """(n, size, size), 1 in the object's box.

    Raises:
        UserError: the data have no boxes, or the input is what is in them.
    """
    if any(record.box is None for record in dataset.records):
        raise UserError(f"{network.source.name} has no boxes around its objects")
    if network.crop_to_box:
        raise UserError("does not apply: the input is cropped to the object's box")
    masks = torch.zeros(len(rows), network.size, network.size)
    middles = np.arange(network.size) + 0.5
    for mask, row in zip(masks, rows, strict=True):
        record = dataset.records[row]
        view = network.geometry(record)[0]
        left, top, right, bottom = record.box
        (top, left), (bottom, right) = view.image_to_tensor(((top, left), (bottom, right)))
        inside = [(middles >= top) & (middles <= bottom), (middles >= left) & (middles <= right)]
        mask[:] = torch.from_numpy(inside[0][:, None] & inside[1]).float()
    return masks
