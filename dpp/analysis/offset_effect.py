"""What the offsets of a trained network do: how far parts move, and what that is worth."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dpp.analysis.figure_data import check_deformable
from dpp.analysis.network import Network
from dpp.analysis.part_following import see
from dpp.data.batches import Batch, ImageDataset, batches, make_loader
from dpp.data.image_records import ImageRecord
from dpp.networks.losses import own_class
from dpp.networks.model import DeformableProtoPNet
from dpp.networks.prototypes import OffsetBranch
from dpp.reference import resting_places
from dpp.system.errors import UserError

BATCH = 50  # images that are inspected at a time
LOOKED_AT = 100  # images among which those are looked for that need moving parts


@torch.no_grad()
def effect_of_offsets(network: Network, dataset: ImageDataset, reach: float = 2.0) -> pd.DataFrame:
    """What moving the parts is worth, image by image.

    Of each image, the most similar prototype of its own class is looked at, where it fits best:
    with the offsets that the network predicts, and with all offsets held at zero; and the first of
    them also with each part at the best whole cell within reach of its rest, found by trying all.

    Args:
        network: a Deformable ProtoPNet that has offsets.
        dataset: un-augmented.
        reach: how far from its rest a part is looked for, in cells.

    Returns:
        A row for each image: similarities `moved`, `at_rest` and `searched`; whether the image is
        classified correctly, `correct_moved` and `correct_at_rest`; `distance`, the mean over the
        parts of how far they moved, in cells.
    """
    check_moving(network)
    rows = [_compare(network, batch, reach) for batch in batches(make_loader(dataset, BATCH))]
    return pd.concat(rows, ignore_index=True)


def _compare(network: Network, batch: Batch, reach: float) -> pd.DataFrame:
    layer = network.model.prototypes
    moved, held = (one.inspect(batch.images) for one in (network, network.exchange(offsets=None)))
    others = ~own_class(batch.labels, layer.classes)
    similarity, best = moved.scores.masked_fill(others, -1).max(dim=1)
    at_rest = held.scores.masked_fill(others, -1).amax(dim=1)
    rows = torch.arange(len(best), device=best.device)
    offsets = network.model.displacements(moved, best)[rows, rows].to(similarity)  # (N, parts, 2)
    searched = _search(moved.z, layer.normalised(), layer.geometry["dilation"], best, reach)
    return pd.DataFrame(
        {
            "moved": similarity,
            "at_rest": at_rest,
            "searched": searched,
            "correct_moved": moved.logits.argmax(dim=1) == batch.labels,
            "correct_at_rest": held.logits.argmax(dim=1) == batch.labels,
            "distance": offsets.norm(dim=2).mean(dim=1),
        }
    )


def check_moving(network: Network) -> DeformableProtoPNet:
    model = check_deformable(network)
    if model.offsets is None:
        raise UserError(f"{network.name} has parts that do not move: choose a deformable run")
    return model


def _search(z: Tensor, prototypes: Tensor, dilation: int, chosen: Tensor, reach: float) -> Tensor:
    """The similarity (N,) of one prototype to each image, each part at its best cell in reach."""
    height, width = z.shape[2:]
    vectors = prototypes[chosen].flatten(2)  # (N, C, parts)
    by_cell = torch.einsum("ncp,nchw->nphw", vectors, z)
    cells = torch.cartesian_prod(torch.arange(height), torch.arange(width))  # (cells, 2)
    total = torch.zeros(len(z), height * width)
    for part, rest in enumerate(resting_places(prototypes.shape[-1], dilation)):
        gap = cells[None] - cells[:, None] - torch.tensor(rest)  # (centres, cells, 2)
        near = gap.float().norm(dim=2) <= reach
        within = by_cell[:, part].flatten(1)[:, None].masked_fill(~near, -torch.inf)
        total += within.max(dim=2).values
    return total.max(dim=1).values


@torch.no_grad()
def by_need_of_moving(
    network: Network, dataset: ImageDataset, most: int = LOOKED_AT
) -> list[ImageRecord]:
    """Images in the order in which moving the parts matters, those first that need it most.

    The rule by which figures and the browser choose where to begin: by how much the similarity of
    the most similar prototype of the image's own class falls when parts are held at rest. Of
    equals the first; in a rigid network all are equal.

    Args:
        network: a Deformable ProtoPNet.
        dataset: un-augmented.
        most: images that are looked at, evenly spread over the data set.
    """
    classes = check_deformable(network).prototypes.classes.cpu()
    indices = np.unique(np.linspace(0, len(dataset) - 1, min(most, len(dataset))).astype(int))
    lost = []
    for few in np.array_split(indices, -(-len(indices) // BATCH)):
        batch = dataset.batch([(0, index) for index in few.tolist()])
        others = ~own_class(batch.labels, classes)
        moved, held = (
            output.scores.cpu().masked_fill(others, -torch.inf).amax(dim=1)
            for output in see(network, batch.images).values()
        )
        lost += (moved - held).tolist()
    order = np.argsort(-np.array(lost), kind="stable")
    return [dataset.records[indices[place]] for place in order]


@torch.no_grad()
def offset_spread(network: Network, dataset: ImageDataset) -> pd.DataFrame:
    """How much of the offsets is the same on all images, and how much depends on the image.

    Returns:
        A row for each part: `common`, the length of its mean offset over all images and centres;
        `with_place`, the standard deviation of what depends on the centre alone, and `with_image`,
        that of the rest, both in cells.
    """
    if not isinstance(check_moving(network).offsets, OffsetBranch):
        raise UserError(
            f"{network.name} predicts no offsets: choose a run with deformation predicted"
        )
    loader = batches(make_loader(dataset, BATCH))
    field = torch.cat([network.inspect(batch.images).offsets for batch in loader])
    field = field.unflatten(1, (-1, 2)).double()  # (N, parts, 2, H, W)
    by_place = field.mean(dim=0)  # (parts, 2, H, W)
    common = by_place.mean(dim=(2, 3))  # (parts, 2)
    places = by_place - common[:, :, None, None]
    images = field - by_place
    spreads = {
        "common": common.norm(dim=1),
        "with_place": places.square().sum(dim=1).mean(dim=(1, 2)).sqrt(),
        "with_image": images.square().sum(dim=2).mean(dim=(0, 2, 3)).sqrt(),
    }
    index = pd.RangeIndex(1, len(common) + 1, name="part")
    return pd.DataFrame({name: np.asarray(values) for name, values in spreads.items()}, index=index)


@torch.no_grad()
def similarity_by_distance(network: Network, dataset: ImageDataset, farthest: int) -> pd.Series:
    """How alike the features of cells are that lie 1, 2, ... cells apart, in a row or a column.

    Returns:
        The mean cosine by distance, over all images and pairs of cells.
    """
    length = check_deformable(network).prototypes.length
    loader = batches(make_loader(dataset, BATCH))
    z = torch.cat([network.inspect(batch.images).z for batch in loader]) / length
    means = {}
    for step in range(1, farthest + 1):
        along = (z[..., step:] * z[..., :-step]).sum(dim=1)
        down = (z[..., step:, :] * z[..., :-step, :]).sum(dim=1)
        means[step] = torch.cat([along.flatten(), down.flatten()]).double().mean().item()
    return pd.Series(means, name="cosine").rename_axis("cells apart")
