"""Feature extractors: torchvision's classifiers without heads, and slim ones for small images.

A full network gives a map of one cell for 16 pixels: 14x14 at 224. A VGG (or AlexNet)
loses its last max pooling; the map of any other is upsampled bilinearly, 7x7 to 14x14.

A slim network (`slim_resnet34`, ...) has the layers of the full one with fewer channels, for images
of 64 pixels: one cell for 8 pixels, 8x8. A slim VGG loses its last two poolings; a slim ResNet or
DenseNet has a 3x3 stem without stride, and its 4x4 map is upsampled.

The state dict of a full network has torchvision's own keys, but for the head's.
"""

import copy
from collections import OrderedDict
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision import models
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet
from torchvision.models.vgg import cfgs as vgg_layers
from torchvision.models.vgg import make_layers

from dpp.backbones.pretrained import HEADS, load_imagenet, load_weights
from dpp.backbones.trunks import TrunkAndHead, TrunkFeatures
from dpp.system.errors import UserError

# Torchvision's classifiers whose last map comes out of a ReLU.
FAMILIES = (
    *("vgg", "resnet", "resnext", "wide_resnet", "densenet"),
    *("mobilenet_v2", "mnasnet", "regnet", "shufflenet_v2", "squeezenet", "alexnet"),
)
FINAL_RELU = "relu"  # of a DenseNet
SHORTCUTS = ("downsample", "proj", "branch1")  # and what runs beside the layers of a block

# The families of Table 1. Slim, a training step takes 0.1 to 0.3 s on one core.
SLIM_VGGS = {"vgg16": "D", "vgg16_bn": "D", "vgg19": "E", "vgg19_bn": "E"}  # torchvision's letters
SLIM_VGG_CHANNELS = {64: 8, 128: 16, 256: 48, 512: 96}  # of a layer, by the full VGG's
SLIM_RESNETS = {  # block, how many in each stage, channels of the first stage
    "resnet34": (BasicBlock, (3, 4, 6, 3), 16),
    "resnet50": (Bottleneck, (3, 4, 6, 3), 8),
    "resnet152": (Bottleneck, (3, 8, 36, 3), 8),
}
SLIM_DENSENETS = {  # layers in each block, growth, channels of the stem
    "densenet121": ((6, 12, 24, 16), 4, 8),
    "densenet161": ((6, 12, 36, 24), 4, 8),
}

TABLE_1 = (*SLIM_VGGS, *SLIM_RESNETS, *SLIM_DENSENETS)
SLIM = tuple(f"slim_{name}" for name in TABLE_1)
FULL = tuple(name for name in models.list_models(module=models) if name.startswith(FAMILIES))
FIRST_RESNET50 = "resnet50_v1"  # as published: a stage's stride is on its first 1x1 convolution
NAMES = (*FULL, FIRST_RESNET50, *SLIM)


class Backbone(TrunkAndHead):
    """Layers from images (N, 3, S, S) to a non-negative map (N, channels, S/stride, S/stride).

    Made by `make_backbone`. Weights and map are in channels-last memory format. It also takes, as
    `TrunkFeatures`, what its frozen trunk made of images.
    """

    def __init__(self, name: str, layers: OrderedDict[str, nn.Module], stride: int):
        super().__init__(layers)
        self.name, self.stride = name, stride
        self.channels, cells = self._native_map(224)
        if self._walk(224)[0] != cells:
            raise ValueError(f"{name}: a layer that changes the map's size is of an unknown kind")

    def forward(self, images: Tensor | TrunkFeatures) -> Tensor:
        if isinstance(images, TrunkFeatures):
            features, sides = self.head(images.maps), [images.image_size] * 2
        else:
            features, sides = super().forward(images), images.shape[2:]
        size = [side // self.stride for side in sides]
        if list(features.shape[2:]) == size:
            return features
        return functional.interpolate(features, size, mode="bilinear", align_corners=False)

    def cut(self, last: str) -> None:
        """Drops all layers after one. The map is then that layer's own, and is not upsampled.

        Args:
            last: its name, such as layer3 or features.22; empty to drop none. Of a VGG also that
                of its last max pooling, which other networks on a VGG have, and which then stays.
                A DenseNet keeps the ReLU at its end: its layers end with convolutions.
        """
        if not last:
            return
        if self.name.startswith("vgg") and last == f"features.{len(self.features)}":
            self.features.append(nn.MaxPool2d(2, 2))
        for name in self.step_names()[self.count_steps(last, "cut_after") :]:
            if name == FINAL_RELU and self.name.removeprefix("slim_").startswith("densenet"):
                continue
            parent, _, leaf = name.rpartition(".")
            del self.get_submodule(parent)._modules[leaf]
        if not isinstance(self.steps()[-1][1], nn.ReLU | nn.MaxPool2d | BasicBlock | Bottleneck):
            raise UserError(
                f"cut_after: the map of {self.name} after {last} may be negative, which prototypes "
                "do not allow: choose a layer that ends with a ReLU"
            )
        training = self.training
        self.eval()  # a real pass must not change the batch-norm statistics
        self.channels, _ = self._native_map(224)
        self.train(training)
        self.stride = self._walk(224)[1]

    def cell_centres(self, size: int) -> tuple[float, ...]:
        """Where the cells of each row, or column, look on images of this size: the middle of it.

        Output i of a layer with kernel k, padding p and stride s is centred at its input
        s i + (k - 1)/2 - p. So through all layers native cell i is centred at pixel J i + o, J
        being the product of the strides, and o the sum of (k - 1)/2 - p, each times the strides
        before it. Of N cells on top of n native ones, bilinear upsampling puts cell j at native
        cell (j + 1/2) n/N - 1/2, or at the outermost if that is nearer.

        Where J n is the size, and but for the first and last, a cell looks (o + 1/2 - J/2)/stride
        cells off its own middle: none in a VGG, 0.09 up and left in a DenseNet, 0.97 in a ResNet,
        which pads where a VGG pools; slim ones 0.06 and 0.94. Training can move that by a fraction
        of a cell: the gradients of a ResNet-50 trained on birds lie some 0.3 down and right of it.

        Returns:
            size/stride places, in pixels from the image's corner: the first one's centre is 0.5.
        """
        native, jump, offset = self._walk(size)
        cells = size // self.stride
        places = ((cell + 0.5) * native / cells - 0.5 for cell in range(cells))
        within = (min(max(place, 0.0), native - 1.0) for place in places)
        return tuple(jump * place + offset + 0.5 for place in within)

    def _walk(self, size: int) -> tuple[int, int, float]:
        """Through all layers: side of the native map, J and o of `cell_centres`."""
        jump, offset = 1, 0.0
        for name, layer in self.named_modules():
            if not isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
                continue
            if not set(SHORTCUTS).isdisjoint(name.split(".")):
                continue
            kernel, stride, padding = map(_one, (layer.kernel_size, layer.stride, layer.padding))
            reach = (kernel - 1) * _one(getattr(layer, "dilation", 1))
            offset += jump * (reach / 2 - padding)
            last = size + 2 * padding - reach - 1  # where the last kernel may begin
            if getattr(layer, "ceil_mode", False):
                last += stride - 1
            size = last // stride + 1
            jump *= stride
        return size, jump, offset

    @torch.no_grad()
    def _native_map(self, size: int) -> tuple[int, int]:
        """Channels and side of the map before it is upsampled, by a real pass."""
        device = next(self.parameters()).device
        return tuple(super().forward(torch.empty(1, 3, size, size, device=device)).shape[1:3])


def _one(value: int | tuple[int, int]) -> int:
    """Of a pair for height and width, which are equal in all these networks."""
    return value[0] if isinstance(value, tuple) else value


def make_backbone(
    name: str,
    weights: str | Path = "none",
    *,
    stacked_branch: bool = False,
    frozen_trunk: str = "",
    cut_after: str = "",
) -> Backbone:
    """A feature extractor.

    Args:
        name: one of `NAMES`.
        weights: "none" for random ones, drawn from torch's global generator; "imagenet" for those
            under `DPP_WEIGHTS`, or else that torchvision downloads; or a file, see `load_weights`.
        stacked_branch: as the paper's released code does, a ResNet-50 with both last blocks of a
            BBN file, one after the other, rather than the first of them.
        frozen_trunk: the last layer that is never trained; empty to train all.
        cut_after: the last layer that is kept, see `Backbone.cut`; empty to keep all.

    Returns:
        The network, in training mode on the default device.
    """
    if name not in NAMES:
        raise UserError(_why_not(name))
    if stacked_branch and name != "resnet50":
        raise UserError(f"{name} has no stacked branch: only resnet50 has one, from a BBN file")
    if stacked_branch and weights == "imagenet":
        raise UserError("a stacked branch has no ImageNet weights: give the path of a BBN file")
    if name in SLIM and weights == "imagenet":
        raise UserError(f"{name} has no ImageNet weights: choose none, or the path of a file")

    backbone = copy.deepcopy(_without_memory(name, stacked_branch, torch.get_default_dtype()))
    backbone.to_empty(device=torch.get_default_device()).to(memory_format=torch.channels_last)
    _initialise(backbone)
    if weights == "imagenet":
        load_imagenet(backbone)
    elif weights != "none":
        load_weights(backbone, weights)
    backbone.cut(cut_after)
    backbone.freeze_trunk(frozen_trunk)
    return backbone


@cache
def _without_memory(name: str, stacked_branch: bool, dtype: torch.dtype) -> Backbone:
    """A backbone on the meta device. It is made once, since its real pass takes a while.

    Nothing but the layers that stay ever gets memory: VGG's head would take half a gigabyte.
    RegNets compute their widths with tensors, so they cannot be built on the meta device; what they
    draw there is not taken from the generator.

    Args:
        dtype: the default dtype, as a key of the cache.
    """
    place = torch.device("cpu" if name.startswith("regnet") else "meta")
    with place, torch.random.fork_rng(devices=[]):
        network = _slim_network(name) if name in SLIM else _full_network(name)
        if stacked_branch:
            network.layer4.append(Bottleneck(2048, 512))
    layers = _without_head(network.to("meta"))
    return Backbone(name, layers, stride=8 if name in SLIM else 16)


def _full_network(name: str) -> nn.Module:
    network = models.get_model(name.removesuffix("_v1"))
    if name == FIRST_RESNET50:
        for stage in (network.layer2, network.layer3, network.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return network


def _without_head(network: nn.Module) -> OrderedDict[str, nn.Module]:
    """The layers up to the last map, under torchvision's names."""
    layers = OrderedDict(
        (name, layer) for name, layer in network.named_children() if name not in HEADS
    )
    if isinstance(network, models.DenseNet):
        layers[FINAL_RELU] = nn.ReLU(inplace=True)  # torchvision has it in its forward
    if isinstance(network, models.VGG | models.AlexNet):
        layers["features"] = layers["features"][:-1]  # the last max pooling
    return layers


def _initialise(backbone: Backbone) -> None:
    """As torchvision initialises its ResNets and VGGs; slim residual branches begin at zero.

    Slim networks are trained from nothing, and deep ones then learn sooner (Goyal et al., 2017).
    """
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in backbone.modules() if backbone.name in SLIM else ():
        if isinstance(module, BasicBlock | Bottleneck):
            last = module.bn2 if isinstance(module, BasicBlock) else module.bn3
            nn.init.zeros_(last.weight)


def _slim_network(slim_name: str) -> nn.Module:
    name = slim_name.removeprefix("slim_")
    if name in SLIM_VGGS:
        return _slim_vgg(vgg_layers[SLIM_VGGS[name]], batch_norm=name.endswith("_bn"))
    if name in SLIM_RESNETS:
        return SlimResNet(*SLIM_RESNETS[name])
    layers, growth, stem = SLIM_DENSENETS[name]
    network = models.DenseNet(growth, layers, stem)
    network.features.conv0 = nn.Conv2d(3, stem, kernel_size=3, padding=1, bias=False)
    return network


def _slim_vgg(layers: list[str | int], *, batch_norm: bool) -> models.VGG:
    poolings = [place for place, layer in enumerate(layers) if layer == "M"]
    slim = [SLIM_VGG_CHANNELS.get(layer, layer) for layer in layers]
    del slim[poolings[-2]]  # the last goes with the head
    return models.VGG(make_layers(slim, batch_norm))


class SlimResNet(ResNet):
    """A ResNet with fewer channels and a stem that keeps small things apart."""

    def __init__(self, block: type[nn.Module], blocks: tuple[int, ...], channels: int):
        super().__init__(block, blocks)
        self.inplanes = channels
        self.conv1 = nn.Conv2d(3, channels, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        for stage, count in enumerate(blocks):
            layer = self._make_layer(block, channels << stage, count, stride=2 if stage else 1)
            setattr(self, f"layer{stage + 1}", layer)


def _why_not(name: str) -> str:
    choices = f"choose {', '.join(TABLE_1 + SLIM)} or another of dpp.backbones.backbone.NAMES"
    if name in ("googlenet", "inception_v3"):
        return f"{name} expects images normalised in its own way: {choices}"
    if name in models.list_models(module=models):
        return f"the last map of {name} may be negative, which prototypes do not allow: {choices}"
    return f"there is no backbone {name}: {choices}"
