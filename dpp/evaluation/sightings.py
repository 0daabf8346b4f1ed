"""What a network sees in all images of a data set: one pass that most measures share.

Places are rows and columns in pixels of the network's input: pixel 0 covers 0 to 1. A prototype is
followed on the images of its own class; of a tree's, that is the likeliest class where it is
present. All that a pass keeps is small, so that no measure needs another one.
"""

import weakref
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dpp.analysis.network import Network
from dpp.data.batches import ImageDataset, batches, make_loader
from dpp.data.image_records import Box
from dpp.data.transforms import Geometry
from dpp.evaluation.scores import Progress, part_of
from dpp.networks.model import DeformableProtoPNet
from dpp.runs.trunk_cache import CachedDataset, find_plain, keep_changed

BATCH = 50  # images that are inspected at a time
NEAREST = 10  # images that are kept of each prototype
NOISE, MOST_NOISE = 0.2, 0.25  # deviation, and where it is cut off, in normalised units


@dataclass(frozen=True, eq=False)
class Sightings:
    """What was seen on N images, and for M pairs of an image and a prototype of its class.

    Args:
        predicted: (N,), the class.
        image, prototype: (M,), of the pairs; images are indices into the data set's records.
        peaks: (M, 2), the pixel at which the upsampled similarity map is highest, whole numbers.
        parts: (M, parts, 2), where the prototype's parts look.
        nearest: (NEAREST, P), the most similar images of each prototype, of whatever class; -1
            where there are fewer.
        nearest_cells: (NEAREST, P, 2), the cell that the prototype is centred at there.
        nearest_parts: (NEAREST, P, parts, 2), where its parts look there.
        cells: rows and columns of the map.
        shown: (N,), the prototype that counts most for the predicted class.
        shown_map: (N, H, W), its similarity map.
        shown_parts: (N, parts, 2), where its parts look; and `shown_shares` (N, parts), what they
            add to its score.
        class_map: (N, H, W), the mean similarity map of the prototypes of the image's class.
    """

    predicted: np.ndarray
    image: np.ndarray
    prototype: np.ndarray
    peaks: np.ndarray
    parts: np.ndarray
    nearest: np.ndarray
    nearest_cells: np.ndarray
    nearest_parts: np.ndarray
    cells: tuple[int, int]
    shown: np.ndarray
    shown_map: np.ndarray
    shown_parts: np.ndarray
    shown_shares: np.ndarray
    class_map: np.ndarray


_KEPT: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # passes, by network


def see(
    network: Network, dataset: ImageDataset, progress: Progress, noise: int | None = None
) -> Sightings:
    """One pass over a data set; the same again costs nothing.

    Args:
        network: with prototypes.
        dataset: un-augmented.
        progress: called with the number of images done and the total.
        noise: a seed, to add noise to the images.
    """
    kept = _KEPT.setdefault(network, {})
    key = (dataset, noise)
    if key not in kept:
        kept[key] = _see(network, dataset, progress, noise)
    return kept[key]


@torch.no_grad()
def _see(network: Network, dataset, progress: Progress, noise: int | None) -> Sightings:
    owners, looking = torch.tensor(network.labels), _geometry(network)
    used = torch.zeros(len(owners), dtype=torch.bool)
    used[network.prototypes] = True
    pairs, images, nearest = [], [], None
    kept = kept_features(network, dataset, progress, noise)
    for batch in batches(make_loader(kept or dataset, BATCH)):
        inputs = batch.images
        if noise is not None and kept is None:
            inputs = add_noise(inputs, batch.indices, noise)
        output = network.inspect(inputs)
        cells = tuple(output.z.shape[2:])
        everywhere = part_places(network, output, torch.arange(len(owners)))  # (B, P, parts, 2)
        nearest = _keep_nearest(nearest, output, batch.indices, everywhere)
        chosen = most_important(network, output).cpu()
        wanted = used & torch.isin(owners, batch.labels)
        wanted[chosen] = True
        numbers = wanted.nonzero().flatten()
        maps = similarity_maps(network, output, numbers).float().cpu()  # (B, Q, H, W)
        class_maps = torch.zeros(len(inputs), *cells)
        for label in batch.labels.unique().tolist():
            rows = (batch.labels == label).nonzero().flatten()
            own = ((owners[numbers] == label) & used[numbers]).nonzero().flatten()
            if not len(own):
                continue
            of_class, who = maps[rows][:, own], numbers[own]
            class_maps[rows] = of_class.mean(dim=1)
            where = batch.indices[rows][:, None].expand(-1, len(own))
            places = everywhere[rows][:, who]
            who = who.expand(len(rows), -1)
            pairs.append([where, who, peaks_of(of_class, network.size), places])
        row = torch.arange(len(inputs))
        shown = maps[row, torch.searchsorted(numbers, chosen)], everywhere[row, chosen]
        shares = shares_of(network, output, chosen)
        images.append([output.logits.argmax(dim=1).cpu(), chosen, *shown, shares, class_maps])
        progress(int(batch.indices[-1]) + 1, len(dataset))
    image, prototype, peaks, parts = (
        torch.cat([one[k].flatten(0, 1) for one in pairs]).numpy() for k in range(4)
    )
    predicted, shown, maps, places, shares, class_map = (
        torch.cat(column).numpy() for column in zip(*images, strict=True)
    )
    indices, centres, nearest_parts = (one.numpy() for one in nearest[1:])
    look = looking.cell_to_tensor
    return Sightings(
        predicted,
        image,
        prototype,
        peaks,
        look(parts, cells),
        indices,
        np.stack(np.divmod(centres, cells[1]), axis=-1),
        look(nearest_parts, cells),
        cells,
        shown,
        maps,
        look(places, cells),
        shares,
        class_map,
    )


def kept_features(
    network: Network, dataset: ImageDataset, progress: Progress, noise: int | None
) -> CachedDataset | None:
    """What the network's frozen trunk made of the images, where its training kept that.

    Then also what it makes of them with noise: computed once for all networks on the same trunk.
    """
    backbone = network.model.backbone
    kept = find_plain(dataset, backbone)
    if kept is None or noise is None:
        return kept
    about = {"noise": NOISE, "most": MOST_NOISE, "seed": noise}
    change = partial(add_noise, seed=noise)
    return keep_changed(dataset, backbone, change, about, report=part_of(progress, 0, 2))


def _geometry(network: Network) -> Geometry:
    """Where cells look, in pixels of the input."""
    return Geometry(Box(0, 0, 1, 1), network.size, network.cell_centres)


def add_noise(images: Tensor, indices: Tensor, seed: int) -> Tensor:
    """Images plus clipped Gaussian noise, which depends on the seed and an image's index alone."""
    noisy = images.clone()
    for row, index in enumerate(indices.tolist()):
        draw = torch.Generator().manual_seed(1_000_003 * seed + index)
        noise = NOISE * torch.randn(images.shape[1:], generator=draw)
        noisy[row] += noise.clamp(-MOST_NOISE, MOST_NOISE)
    return noisy


def similarity_maps(network: Network, output, prototypes: Tensor) -> Tensor:
    """The similarity (N, Q, H, W) of prototypes (Q,) at every cell, for all kinds of networks.

    Args:
        network: with prototypes.
        output: of its model, for N images.
        prototypes: (Q,).
    """
    model, z = network.model, output.z
    if network.is_tree:
        cells = z.flatten(2).transpose(1, 2)  # (N, H*W, C)
        vectors = model.prototypes.vectors[prototypes]
        distances = torch.cdist(cells, vectors.expand(len(z), -1, -1))  # (N, H*W, Q)
        return (-distances).exp().transpose(1, 2).unflatten(2, z.shape[2:])
    if isinstance(model, DeformableProtoPNet):
        return model.activate(model.similarity_map(z, output.offsets, prototypes))
    return model.similarity_map(z)[:, prototypes]


def part_places(network: Network, output, prototypes: Tensor) -> Tensor:
    """(N, Q, parts, 2): where the parts of prototypes (Q,) lie on N images, in cells."""
    if isinstance(network.model, DeformableProtoPNet):
        return network.model.part_places(output, prototypes).float().cpu()
    place, width = output.places[:, prototypes].cpu(), output.z.shape[3]
    return torch.stack([place // width, place % width], dim=2)[:, :, None].float()


def places_of(network: Network) -> tuple[str, ...]:
    """What explanations are measured at: prototypes of one part have their centres alone."""
    model = network.model
    several = isinstance(model, DeformableProtoPNet) and model.prototypes.kernel_size > 1
    return ("centre", "parts") if several else ("centre",)


@lru_cache(maxsize=8)
def _upsampling(cells: int, size: int) -> Tensor:
    """(size, cells): the matrix that upsamples one side of a map by bicubic interpolation."""
    sides = {"size": (size, cells), "mode": "bicubic", "align_corners": False}
    return functional.interpolate(torch.eye(cells)[None, None], **sides)[0, 0]


def upsample(maps: Tensor, size: int) -> Tensor:
    """Maps (..., H, W) at the size of the network's input, by bicubic interpolation."""
    down, across = (_upsampling(side, size) for side in maps.shape[-2:])
    return down @ maps @ across.T


def peaks_of(maps: Tensor, size: int) -> Tensor:
    """(..., 2): the first pixel at which upsampled maps (..., H, W) are highest."""
    flat = torch.stack([upsample(some, size).flatten(-2).argmax(dim=-1) for some in maps])
    return torch.stack([flat // size, flat % size], dim=-1)


def _keep_nearest(kept, output, indices: Tensor, places: Tensor):
    """Scores, images, cells and part places (NEAREST, P, ...) of the most similar images so far."""
    scores, cells = output.scores.float().cpu(), output.places.cpu()
    found = (scores, indices[:, None].expand_as(cells), cells, places)
    if kept is None:
        empty = torch.full((NEAREST, scores.shape[1]), -torch.inf)
        none = torch.full(empty.shape, -1)
        kept = (empty, none, none.clamp_min(0), torch.zeros(NEAREST, *places.shape[1:]))
    joined = [torch.cat(pair) for pair in zip(kept, found, strict=True)]
    # equal scores: the earlier image, as in a stable sort
    order = joined[0].argsort(dim=0, descending=True, stable=True)[:NEAREST]
    wide = order[:, :, None, None].expand(-1, -1, *places.shape[2:])
    return *(one.gather(0, order) for one in joined[:3]), joined[3].gather(0, wide)


def shares_of(network: Network, output, chosen: Tensor) -> Tensor:
    """(N, parts): what each part adds to the score of one prototype (N,) of each of N images."""
    if not isinstance(network.model, DeformableProtoPNet):
        return output.scores.float().cpu()[torch.arange(len(chosen)), chosen][:, None]
    found = [
        network.model.find_parts(output, row, number[None])[1] for row, number in enumerate(chosen)
    ]
    return torch.cat(found).float().cpu()


def most_important(network: Network, output) -> Tensor:
    """(N,): the prototype that adds most to the predicted class's score.

    In a tree, the most similar one of those on the greedy path.
    """
    if not network.is_tree:
        weight = network.model.last_layer.weight[output.logits.argmax(dim=1)]  # (N, P)
        return (output.scores * weight).argmax(dim=1)
    on_path = torch.zeros_like(output.scores, dtype=torch.bool)
    node = output.leaves + output.scores.shape[1]
    while (node > 0).any():
        node = (node - 1).div(2, rounding_mode="floor")
        on_path.scatter_(1, node[:, None], True)
    on_path &= network.model.forks
    return output.scores.masked_fill(~on_path, -torch.inf).argmax(dim=1)
