"""What the authors' checkpoints hold: their tensors, and the network that the shapes describe.

Nothing of a file is executed: only plain tensors are read. `dpp.sharing.imported` makes runs of it.
"""

import pickle
import re
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dpp.backbones.backbone import make_backbone
from dpp.methods.protopnet import ProtoPNet
from dpp.methods.tesnet import TesNet
from dpp.runs import derived
from dpp.system.errors import UserError

CHANNELS = {"protopnet": ProtoPNet.channels, "tesnet": TesNet.channels}
BACKBONES = (
    *(f"resnet{depth}" for depth in (18, 34, 50, 101, 152)),
    *(f"densenet{depth}" for depth in (121, 161, 169, 201)),
    *(f"vgg{depth}{bn}" for depth in (11, 13, 16, 19) for bn in ("", "_bn")),
)
UNUSED = "num_batches_tracked"  # which older files lack
CONVERT = (
    "open it with the authors' code, where you trust it, and save its tensors alone: "
    "torch.save(model.state_dict(), 'tensors.pth')"
)


class Layout(NamedTuple):
    """What the shapes of a checkpoint say."""

    model: str
    backbone: str
    stacked: bool  # the ResNet-50 of the released code, with a further last block
    classes: int
    per_class: int
    kernel_size: int


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint, by the authors' names; nothing is executed."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise nearly anything
        pickled = isinstance(error, pickle.UnpicklingError)
        if pickled and re.search(r"Unsupported (global|class)", str(error)):
            raise UserError(
                f"{path} is a whole pickled network and is not opened, since it could run any "
                f"code: {CONVERT}"
            ) from error
        raise UserError(f"{path} is damaged, or was not saved by torch") from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not state:
        raise UserError(f"{path} holds no state dict: {CONVERT}")
    if wrong := [key for key, value in state.items() if not isinstance(value, Tensor)]:
        raise UserError(f"{path} is not a state dict: its {wrong[0]!r} is not a tensor")
    state = {str(key).removeprefix("module."): value for key, value in state.items()}
    for key, value in state.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise UserError(f"{path}: {key} has values that are NaN or infinite")
    return state


def read_layout(
    state: dict[str, Tensor], origin: str, model: str = "", backbone: str = ""
) -> Layout:
    """What kind of network a state dict is of, and its sizes.

    Args:
        state: from `read_state`.
        origin: the file, for messages.
        model, backbone: as for `import_checkpoint`.
    """
    for key, sides in {"prototype_vectors": 4, "last_layer.weight": 2}.items():
        if key not in state or state[key].dim() != sides:
            raise UserError(
                f"{origin} has no {key} of {sides} dimensions: it is no checkpoint of Deformable "
                "ProtoPNet, ProtoPNet or TesNet"
            )
    count, channels, kernel_size, width = state["prototype_vectors"].shape
    classes = len(state["last_layer.weight"])
    model = model or guess_model(state, channels, origin)
    if model not in derived.MODELS:
        raise UserError(f"there is no model {model!r} to import: choose {derived.MODELS}")
    if kernel_size != width or kernel_size != (2 if model == "deformable" else 1):
        wanted = "2x2, the one kind that its released code computes" * (model == "deformable")
        raise UserError(
            f"{origin} has prototypes of {kernel_size}x{width} parts; dpp imports {model} with "
            f"{wanted or '1x1'}"
        )
    if model in CHANNELS and channels != CHANNELS[model]:
        raise UserError(
            f"{origin} has prototypes of {channels} channels; dpp builds {model} with "
            f"{CHANNELS[model]}"
        )
    check_order(state["last_layer.weight"], count, origin)
    name, stacked = find_backbone(state, origin, backbone)
    if model == "deformable" and name.startswith("vgg"):
        raise UserError(
            f"{origin} has a VGG: Deformable ProtoPNet's released code gives it a map of 28x28 "
            "cells, which dpp does not have; import a ResNet or DenseNet"
        )
    return Layout(model, name, stacked, classes, count // classes, kernel_size)


def guess_model(state: dict[str, Tensor], channels: int, origin: str) -> str:
    """Which of the three it is, by its layers and its prototypes' channels."""
    if any(key.startswith("conv_offset.") for key in state):
        return "deformable"
    for name, known in CHANNELS.items():
        if channels == known:
            return name
    raise UserError(
        f"{origin} has prototypes of {channels} channels: dpp builds ProtoPNet with "
        f"{CHANNELS['protopnet']} and TesNet with {CHANNELS['tesnet']}"
    )


def check_order(connections: Tensor, count: int, origin: str) -> None:
    """Raises a `UserError` unless the prototypes lie in order of their classes, equally many.

    The class of a prototype is not stored; its strongest connection is nearly always to it.
    """
    classes = len(connections)
    if connections.shape[1] != count or count % classes:
        raise UserError(
            f"{origin} has {count} prototypes and connections from {connections.shape[1]} to "
            f"{classes} classes: expected equally many of each class; was it pruned?"
        )
    expected = torch.arange(classes).repeat_interleave(count // classes)
    if (connections.argmax(dim=0) == expected).float().mean() < 0.5:
        raise UserError(
            f"{origin}: most prototypes are connected to another class than their number says; was "
            "it pruned? Import the checkpoint before that"
        )


def find_backbone(state: dict[str, Tensor], origin: str, name: str = "") -> tuple[str, bool]:
    """The backbone whose tensors have these names and shapes, and whether it is stacked.

    Args:
        state: from `read_state`.
        origin: the file, for messages.
        name: the only one to try.
    """
    wanted = shapes_of(backbone_state(state))
    if name and name not in BACKBONES:
        raise UserError(f"there is no backbone {name!r} to import: choose {', '.join(BACKBONES)}")
    for candidate in (name,) if name else BACKBONES:
        for stacked in (False, True) if candidate == "resnet50" else (False,):
            with torch.device("meta"):
                built = make_backbone(candidate, stacked_branch=stacked)
            if shapes_of(built.state_dict()) == wanted:
                return candidate, stacked
    what = name or f"any of {', '.join(BACKBONES)}"
    raise UserError(f"{origin}: its {len(wanted)} tensors under features are not those of {what}")


def backbone_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The backbone's tensors, under torchvision's names."""
    prefix = "features."
    return {key.removeprefix(prefix): v for key, v in state.items() if key.startswith(prefix)}


def shapes_of(state: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(v.shape) for key, v in state.items() if not key.endswith(UNUSED)}
