"""Heat maps of explanations at the size of the network's input, and where the object is."""

from functools import lru_cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dpp.analysis.network import Network
from dpp.data.batches import ImageDataset
from dpp.data.images import region_of
from dpp.drawn.individuals import Individual, is_drawn, masks, of_record
from dpp.evaluation.scores import NotApplicable
from dpp.evaluation.sightings import Sightings, upsample

CHUNK = 100  # images at a time


def has_masks(network: Network) -> bool:
    """Whether the network's data are PoseBirds, whose birds can be drawn again with a mask."""
    return is_drawn(network.source.root)


def _drawn_mask(network: Network, dataset: ImageDataset, row: int) -> np.ndarray:
    """(size, size): how much of each pixel of the input is the bird."""
    record = dataset.records[row]
    bird = of_record(network.source.root, record.path, record.label)
    region = region_of(record, bird.size, bird.size, network.crop_to_box)
    mask = Image.fromarray(_bird_mask(bird)).crop(tuple(region))
    return np.asarray(mask.resize((network.size,) * 2, Image.Resampling.BILINEAR))


@lru_cache(maxsize=4096)
def _bird_mask(bird: Individual) -> np.ndarray:
    """(size, size), of the bird's own picture; all networks are shown the same birds."""
    return masks(bird)["bird"]


def spread(dataset: ImageDataset, most: int) -> np.ndarray:
    """At most so many indices, evenly over a data set."""
    count = min(most, len(dataset))
    return np.unique(np.linspace(0, len(dataset) - 1, count).round().astype(int))


def spread_images(dataset: ImageDataset, most: int) -> tuple[np.ndarray, Tensor]:
    """The indices of `spread`, and the images."""
    rows = spread(dataset, most)
    return rows, dataset.batch([(0, int(index)) for index in rows]).images


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
    """(n, size, size): what of each pixel is the object; 1 in its box where there is no mask.

    Raises:
        NotApplicable: the data have neither masks nor boxes, or no masks and the input is what is
            in the boxes.
    """
    if has_masks(network):
        return torch.from_numpy(np.stack([_drawn_mask(network, dataset, row) for row in rows]))
    if any(record.box is None for record in dataset.records):
        raise NotApplicable(f"{network.source.name} has no boxes around its objects")
    if network.crop_to_box:
        raise NotApplicable("does not apply: the input is cropped to the object's box")
    boxes = torch.zeros(len(rows), network.size, network.size)
    middles = np.arange(network.size) + 0.5
    for mask, row in zip(boxes, rows, strict=True):
        record = dataset.records[row]
        view = network.geometry(record)[0]
        left, top, right, bottom = record.box
        (top, left), (bottom, right) = view.image_to_tensor(((top, left), (bottom, right)))
        inside = [(middles >= top) & (middles <= bottom), (middles >= left) & (middles <= right)]
        mask[:] = torch.from_numpy(inside[0][:, None] & inside[1]).float()
    return boxes
