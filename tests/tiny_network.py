"""A network small enough for loops: a backbone of one convolution, and data to go with it."""

from pathlib import Path

import torch
from tiny_data import write_cub
from torch import Tensor, nn

from dpp.data import read_cub
from dpp.data.batches import Splits, make_splits
from dpp.networks.model import DeformableProtoPNet


class TinyBackbone(nn.Module):
    """Images (N, 3, S, S) to (N, 6, S/4, S/4), with batch norm, which has statistics to freeze."""

    channels, stride = 6, 4

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, self.channels, 4, stride=4), nn.BatchNorm2d(self.channels), nn.ReLU()
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)

    def cell_centres(self, size: int) -> tuple[float, ...]:
        return look_below(size, self.stride)


def look_below(size: int, stride: int) -> tuple[float, ...]:
    """Cells that look at what is under them."""
    return tuple((cell + 0.5) * stride for cell in range(size // stride))


def make_network(seed: int = 0, moving: float = 0.3, classes: int = 3, **options):
    """A network whose parts move by about `moving` cells; float64, in evaluation mode."""
    torch.manual_seed(seed)
    options = {"per_class": 2, "kernel_size": 2} | options
    network = DeformableProtoPNet(TinyBackbone(), classes, **options).double().eval()
    if network.offsets is not None and moving:
        network.offsets.reset_parameters(0.5)
        with torch.no_grad():
            network.offsets[2].bias.normal_(std=moving)
    return network


class Enough(Exception):
    """Ends a training from within."""


def stop_after(steps: int):
    """What a trainer calls after each step, to end it after so many."""
    done = 0

    def count(trainer) -> None:
        nonlocal done
        done += 1
        if done == steps:
            raise Enough

    return count


def make_tiny_splits(folder: Path, classes: int = 3, train: int = 6, size: int = 16) -> Splits:
    source = read_cub(write_cub(folder, classes=classes, train=train, test=2))
    return make_splits(source, size, keep="memory", validation_fraction=0.2)
