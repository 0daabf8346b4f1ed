"""How local the cells of a feature map are: what a part can say about a place of the image."""

import pandas as pd
import torch

from dpp.analysis.network import Network
from dpp.data.batches import ImageDataset, batches, make_loader

BATCH = 80  # images that are inspected at a time


@torch.no_grad()
def cell_cosines(network: Network, dataset: ImageDataset, most: int = 4) -> pd.Series:
    """How alike the cells of a map are, and the same cell on two images.

    Args:
        network: a Deformable ProtoPNet, trained or not.
        dataset: un-augmented.
        most: cells apart, at most.

    Returns:
        The mean cosine of two cells of an image that lie 1, 2, ... cells apart in a row or a
        column; then, as `another image`, of one cell on two images, over all pairs of them.
    """
    maps = [network.inspect(batch.images).z.cpu() for batch in batches(make_loader(dataset, BATCH))]
    z = torch.nn.functional.normalize(torch.cat(maps), dim=1)  # (N, C + 1, H, W)
    cosines = {}
    for apart in range(1, min(most, *(side - 1 for side in z.shape[2:])) + 1):
        across = (z[..., apart:] * z[..., :-apart]).sum(dim=1).mean()
        down = (z[..., apart:, :] * z[..., :-apart, :]).sum(dim=1).mean()
        cosines[f"{apart} cell{'s' * (apart > 1)} apart"] = float(across + down) / 2
    count, length = len(z), z.double().mean(dim=0).square().sum(dim=0)  # squared, of the mean
    others = (count * length - 1) / (count - 1)  # the mean over pairs without an image with itself
    return pd.Series(cosines | {"another image": float(others.mean())}, name="cosine")


def pixel_reach(network: Network, dataset: ImageDataset, images: int = 20) -> pd.Series:
    """Which pixels the features of a cell in the middle of the map depend on.

    Args:
        network: with a backbone.
        dataset: un-augmented.
        images: how many to average over.

    Returns:
        The share of the gradient of the features' length, in absolute value, that lies in squares
        of 1, 3 and 5 cells' sides around what the cell looks at, by name; and, as `any pixel`, the
        share of pixels whose gradient is not zero.
    """
    count = min(images, len(dataset))
    parameter = next(network.model.parameters())
    inputs = dataset.batch([(0, index) for index in range(count)]).images.to(parameter)
    inputs.requires_grad_()
    features = network.model.backbone(inputs)
    middle = features.shape[2] // 2
    (gradient,) = torch.autograd.grad(features[..., middle, middle].norm(dim=1).sum(), inputs)
    weight = gradient.abs().sum(dim=1).cpu()  # (N, size, size)
    centre, cell = network.cell_centres[middle], network.size / features.shape[2]
    away = (torch.arange(network.size) + 0.5 - centre).abs()
    away = torch.maximum(away[:, None], away)  # of the square on whose edge a pixel lies
    shares = {}
    for side in (1, 3, 5):
        inside = weight[:, away <= side * cell / 2].sum() / weight.sum()
        shares[f"{side} x {side} cells"] = float(inside)
    return pd.Series(shares | {"any pixel": float((weight > 0).float().mean())}, name="share")
