"""A network in two pieces: a trunk that is never trained, and a head that may be.

What a frozen trunk makes of an image never changes, so it can be computed once
(`dpp.runs.trunk_cache`). A network takes images or, as `TrunkFeatures`, what its trunk made of
them; either way it has all its layers, and one state dict.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpp.system.errors import UserError

# The layers before the last block, after which a map has one cell for 16 pixels: for the photo
# profile. A DenseNet's transition also pools.
USUAL_TRUNKS = {
    "vgg16": "features.23",
    "vgg16_bn": "features.33",
    "vgg19": "features.27",
    "vgg19_bn": "features.39",
    "densenet": "features.transition3",
    "resnet": "layer3",
    "resnext": "layer3",
    "wide_resnet": "layer3",
}

# Of slim networks: the last frozen layer, and the last that is kept, so that a cell sees a part of
# a drawn animal and not all of it: one convolution or block after the last stride. For mini.
LOCAL_CUTS = {
    "slim_vgg16": ("features.16", "features.18"),
    "slim_vgg16_bn": ("features.23", "features.26"),
    "slim_vgg19": ("features.18", "features.20"),
    "slim_vgg19_bn": ("features.26", "features.29"),
    "slim_densenet": ("features.transition1", "features.transition2"),
    "slim_resnet": ("layer2", "layer3.0"),
}


@dataclass(frozen=True)
class TrunkFeatures:
    """What a frozen trunk made of N images: a network takes it in their place.

    Args:
        maps: (N, C, H, W), of any floating point type.
        image_size: side of the images.
    """

    maps: Tensor
    image_size: int

    def to(self, device: torch.device | str, **options) -> "TrunkFeatures":
        """In single precision at least, on a device; see `dpp.data.batches.to_device`."""
        dtype = torch.promote_types(self.maps.dtype, torch.float32)
        return TrunkFeatures(self.maps.to(device, dtype, **options), self.image_size)

    def pin_memory(self) -> "TrunkFeatures":
        return TrunkFeatures(self.maps.pin_memory(), self.image_size)

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, images) -> "TrunkFeatures":
        return TrunkFeatures(self.maps[images], self.image_size)


class TrunkAndHead(nn.Sequential):
    """Layers, the first of which may be frozen: never trained, always in evaluation mode.

    `train` and `requires_grad_` leave the trunk as it is. No trunk is frozen at first.
    """

    frozen_trunk = ""  # the name of the last frozen layer
    frozen_steps = 0  # of `steps`

    def steps(self) -> list[tuple[str, nn.Module]]:
        """The layers one after the other, with dotted names; what is a sequence is taken apart."""
        return list(_steps(self))

    def layer_names(self) -> list[str]:
        """The names that `freeze_trunk` takes, without those of the layers inside a block."""
        names = [name.split(".") for name, _ in self.steps()]
        short = (".".join(parts[: 2 if parts[0] == "features" else 1]) for parts in names)
        return list(dict.fromkeys(short))

    def step_names(self) -> list[str]:
        return [name for name, _ in self.steps()]

    def count_steps(self, last: str, option: str) -> int:
        """How many steps there are up to and with a layer.

        Args:
            last: its name, such as layer3, or layer3.0 for a block.
            option: which option named it, for the message if there is no such layer.
        """
        within = [f"{name}.".startswith(f"{last}.") for name in self.step_names()]
        if not any(within):
            raise UserError(
                f"{option}: {getattr(self, 'name', 'the network')} has no layer {last!r}: "
                f"choose one of {', '.join(self.layer_names())}"
            )
        return len(within) - within[::-1].index(True)

    def freeze_trunk(self, last: str) -> None:
        """Freezes all layers up to one.

        Args:
            last: its name, such as layer3, or layer3.0 for a block; empty to freeze none.
        """
        self.frozen_steps = self.count_steps(last, "frozen_trunk") if last else 0
        self.frozen_trunk = last
        self.train(self.training)
        self.requires_grad_()

    def forward(self, images: Tensor) -> Tensor:
        if not self.frozen_steps:
            return super().forward(images)
        return self.head(self.trunk(images))

    def trunk(self, images: Tensor) -> Tensor:
        """What the frozen layers make of images (N, 3, S, S), in single precision at least."""
        features = images
        for _, layer in self.steps()[: self.frozen_steps]:
            features = layer(features)
        return features.to(images.dtype)  # as it is kept; autocast made it half

    def head(self, features: Tensor) -> Tensor:
        """What the other layers make of the trunk's features."""
        for _, layer in self.steps()[self.frozen_steps :]:
            features = layer(features)
        return features

    def trained_parameters(self) -> list[nn.Parameter]:
        """Those of the head."""
        layers = self.steps()[self.frozen_steps :]
        return [parameter for _, layer in layers for parameter in layer.parameters()]

    def train(self, mode: bool = True) -> "TrunkAndHead":
        super().train(mode)
        for _, layer in self.steps()[: self.frozen_steps]:
            layer.train(False)
        return self

    def requires_grad_(self, requires_grad: bool = True) -> "TrunkAndHead":
        super().requires_grad_(requires_grad)
        for _, layer in self.steps()[: self.frozen_steps]:
            layer.requires_grad_(False)
        return self


def _steps(layers: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    for name, layer in layers.named_children():
        if type(layer).forward is nn.Sequential.forward:
            yield from _steps(layer, f"{prefix}{name}.")
        else:
            yield prefix + name, layer


def usual_trunk(backbone: str) -> str:
    """The trunk that the photo profile freezes: all blocks but the last; none if not known."""
    return _of_kind(USUAL_TRUNKS, backbone, "")


def local_cut(backbone: str) -> tuple[str, str]:
    """The last frozen and the last kept layer in the mini profile; none if not known."""
    return _of_kind(LOCAL_CUTS, backbone, ("", ""))


def _of_kind(table: dict, backbone: str, unknown):
    kinds = sorted(table, key=len, reverse=True)  # vgg16_bn before vgg16
    return next((table[kind] for kind in kinds if backbone.startswith(kind)), unknown)
