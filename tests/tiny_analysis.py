"""Networks to be asked about tiny images, and one that sees nothing but brightness."""

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tiny_data import write_cub
from tiny_network import TinyBackbone, look_below
from torch import Tensor, nn
from torch.nn import functional

from dpp.analysis import Network
from dpp.backbones.backbone import Backbone
from dpp.data import read_cub
from dpp.data.batches import Splits, batches, make_loader, make_splits
from dpp.data.image_records import Source
from dpp.methods.protopnet import ProtoPNet
from dpp.methods.tesnet import TesNet
from dpp.networks import released
from dpp.networks.model import DeformableProtoPNet
from dpp.training.projection import project

RELEASED = released.parse("released:damped_cosine,clipped_cosine,zero_outside,two_channels")
KINDS = {
    "deformable": {"kernel_size": 3},
    "dilated": {"kernel_size": 2},
    "rigid": {"kernel_size": 3, "deformable": False},
    "released": {"kernel_size": 2, "switches": RELEASED},
    "protopnet": ProtoPNet,
    "tesnet": TesNet,
}


def make_model(kind: str, classes: int = 3, moving: float = 0.6) -> nn.Module:
    """A small network of some kind, single precision, with a last layer that is nowhere zero."""
    torch.manual_seed(0)
    options = KINDS[kind]
    if isinstance(options, dict):
        model = DeformableProtoPNet(TinyBackbone(), classes, per_class=2, **options)
    else:
        model = options(TinyBackbone(), classes, per_class=2)
    with torch.no_grad():
        if getattr(model, "offsets", None) is not None:
            model.offsets.reset_parameters(0.5)
            model.offsets[2].bias.normal_(std=moving)
        model.prototypes.vectors.sub_(0.3)  # some similarities are negative
        model.last_layer.weight.normal_()
    return model.eval()


@dataclass(frozen=True)
class TinyData:
    source: Source
    splits: Splits


def make_data(folder: Path, **options) -> TinyData:
    """CUB's layout, images of 40 by 30, shown as 16 by 16: maps of 4 by 4."""
    source = read_cub(write_cub(folder, **({"classes": 3, "train": 6, "test": 2} | options)))
    return TinyData(source, make_splits(source, 16, keep="memory", validation_fraction=0.2))


def ask(model: nn.Module, data: TinyData, **options) -> Network:
    return Network(model, "tiny", data.source, 16, **options)


def ask_projected(data: TinyData, kind: str = "deformable") -> Network:
    """A network with prototypes that come from images."""
    model, images = make_model(kind), data.splits.projection
    origins = project(model, batches(make_loader(images, 4)), images)
    return ask(model, data, origins={origin.prototype: origin for origin in origins})


class Brightness(nn.Module):
    """Two channels for each square of some pixels: how bright it is, and how dark."""

    channels = 2

    def __init__(self, stride: int):
        super().__init__()
        self.stride = stride

    def forward(self, images: Tensor) -> Tensor:
        bright = functional.avg_pool2d(images.mean(dim=1, keepdim=True), self.stride)
        bright = ((bright + 2.1) / 4.6).clamp(0, 1)
        return torch.cat([bright, 1 - bright], dim=1)

    def cell_centres(self, size: int) -> tuple[float, ...]:
        return look_below(size, self.stride)


@torch.no_grad()
def displaced_brightness() -> Backbone:
    """The same with a ResNet's padding: a map of 7x7, upsampled, whose cells look up and left."""
    mix = nn.Conv2d(3, 2, kernel_size=1)
    mix.weight.copy_(torch.tensor([1, -1]).view(2, 1, 1, 1) / 3 / 4.6)
    mix.bias.copy_(torch.tensor([2.1 / 4.6, 1 - 2.1 / 4.6]))
    padded = {"padding": 16, "count_include_pad": False}
    layers = {"mix": mix, "blur": nn.AvgPool2d(33, 1, **padded)}
    layers |= {"pool": nn.AvgPool2d(33, 32, **padded), "relu": nn.ReLU()}
    return Backbone("displaced", OrderedDict(layers), stride=16)


def seek_light(
    source: Source,
    kernel_size: int = 1,
    moved: tuple[float, float] | None = None,
    backbone: nn.Module | None = None,
):
    """A network for 224 pixels whose first prototype looks for light, the second for darkness.

    Args:
        moved: how far the parts always lie from where they would rest; None for rigid ones.
        backbone: instead of one whose cells look at what is under them.
    """
    shape = {"per_class": 1, "kernel_size": kernel_size, "deformable": moved is not None}
    model = DeformableProtoPNet(backbone or Brightness(16), 2, **shape)
    with torch.no_grad():
        model.prototypes.vectors.copy_(
            torch.eye(2)[:, :, None, None].expand_as(model.prototypes.vectors)
        )
        if moved:
            model.offsets[2].bias.copy_(torch.tensor(moved).repeat(kernel_size**2))
    return Network(model, "light", source, 224)


def paint_spot(
    size: tuple[int, int], spot: tuple[int, int], reach: tuple[int, int] = (5, 5)
) -> Image.Image:
    """A black picture of a width and height with a bright rectangle around the point (x, y)."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    (x, y), (across, down) = spot, reach
    pixels[y - down : y + down + 1, x - across : x + across + 1] = 255
    return Image.fromarray(pixels)
