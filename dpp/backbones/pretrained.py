"""Pretrained weights: files with torchvision's keys, under `DPP_WEIGHTS`, or downloaded.

`weights="imagenet"` takes the first that there is of

- torchvision's own file in the folder `DPP_WEIGHTS`, such as `resnet34-b627a593.pth`, whose name
  has the beginning of its hash;
- `<backbone>-imagenet.pth`, `.safetensors` or `-fp16.pth` there, from anywhere;
- torchvision's download.

A run is named by its fields, and so "imagenet" whichever it was. Its manifest has the name and the
hash of the file, and a run of other weights is never taken for it: see `dpp.runs.making`.
"""

import re
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision import models

from dpp.system import files, paths
from dpp.system.errors import UserError

HEADS = ("avgpool", "classifier", "fc")  # what torchvision calls that which follows the last map
ENDINGS = ("-imagenet.pth", "-imagenet.safetensors", "-imagenet-fp16.pth")
# A published conversion of the first ResNet-50 has this name. Its tensors have the shapes of
# torchvision's ResNet-50, whose strides lie elsewhere: nothing else tells them apart.
FIRST_RESNET50_FILE = "resnet50-imagenet-fp16.pth"


def find_file(name: str, weights: str) -> Path | None:
    """The file that a backbone's weights come from, if they come from one and it is here.

    Args:
        name: of the backbone.
        weights: "imagenet", or the path of a file.
    """
    if weights != "imagenet":
        path = Path(weights)
        return path if path.is_file() else None
    if local := find_local(name):
        return local
    published = _published(name)
    path = Path(torch.hub.get_dir(), "checkpoints", Path(published.url).name) if published else None
    return path if path and path.is_file() else None


def find_local(name: str) -> Path | None:
    """ImageNet weights of a backbone in the folder `DPP_WEIGHTS`, or None."""
    folder = paths.weights_root()
    if folder is None:
        return None
    if not folder.is_dir():
        raise UserError(f"DPP_WEIGHTS is {folder}, which is no folder: set it to one, or unset it")
    published = _published(name)
    candidates = [Path(published.url).name] if published else []
    candidates += [f"{name}{ending}" for ending in ENDINGS]
    if name == "resnet50_v1":
        candidates.append(FIRST_RESNET50_FILE)
    elif name == "resnet50":
        candidates.remove(FIRST_RESNET50_FILE)
    return next((folder / file for file in candidates if (folder / file).is_file()), None)


def load_imagenet(backbone: nn.Module) -> None:
    """Fills a backbone with ImageNet weights; see the top of this module."""
    published = _published(backbone.name)
    if local := find_local(backbone.name):
        hashed = re.fullmatch(r".+-([0-9a-f]{8})\.pth", local.name)
        if hashed and not files.known_sha256(local).startswith(hashed[1]):
            raise UserError(f"{local} does not match the hash in its name: copy it again")
        load_weights(backbone, local)
    else:
        origin = f"torchvision's file of {backbone.name}"
        _load_state(backbone, _download(backbone.name, published), origin)


def load_weights(backbone: nn.Module, path: str | Path) -> None:
    """Fills a backbone from a file; half precision is converted, a classifier is ignored.

    Args:
        backbone: from `make_backbone`.
        path: a state dict with torchvision's keys, as safetensors or as saved by torch (which is
            loaded without unpickling anything but tensors); or, for a ResNet-50, the file of BBN
            trained on iNaturalist.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f'no weights at {path}: choose "none", "imagenet" or a file')
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise nearly anything
        raise UserError(
            f"{path} is damaged or holds more than tensors ({type(error).__name__}): give a plain "
            "state dict, written by safetensors or by torch.save(network.state_dict(), path)"
        ) from error
    _load_state(backbone, state, str(path))


def _load_state(backbone: nn.Module, state: dict[str, Tensor], origin: str) -> None:
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()
    ):
        raise UserError(f"{origin} is not a state dict: give names with tensors, nothing else")
    expected = backbone.state_dict()
    state = _with_torchvision_keys(state, backbone, origin)
    # Older files lack the counters, which only a BatchNorm without momentum would use.
    missing = [k for k in expected if k not in state and not k.endswith("num_batches_tracked")]
    unexpected = [key for key in state if key not in expected]
    misshaped = [k for k, v in state.items() if k in expected and v.shape != expected[k].shape]
    complaints = {"lacks": missing, "has": unexpected, "has another shape of": misshaped}
    for complaint, keys in complaints.items():
        if keys:
            named = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
            raise UserError(f"{origin} does not fit {backbone.name}: it {complaint} {named}")
    backbone.load_state_dict(state, strict=False)


def _with_torchvision_keys(
    state: dict[str, Tensor], backbone: nn.Module, origin: str
) -> dict[str, Tensor]:
    """A state dict without heads, and with the keys that torchvision uses today."""
    if any(key.startswith("module.backbone.") for key in state):
        if backbone.name != "resnet50":
            raise UserError(f"{origin} is BBN's, a resnet50: it does not fit {backbone.name}")
        state = _from_bbn(state, stacked_branch=len(backbone.layer4) == 4)
    old_densenet = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)")
    return {
        old_densenet.sub(r"\1\2", key): value
        for key, value in state.items()
        if not key.startswith(tuple(f"{head}." for head in HEADS))
    }


def _from_bbn(state: dict[str, Tensor], *, stacked_branch: bool) -> dict[str, Tensor]:
    """BBN has two last blocks side by side; the conventional one (`cb_block`) comes first here."""
    prefix = "module.backbone."
    state = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    if not stacked_branch:
        state = {key: value for key, value in state.items() if not key.startswith("rb_block.")}
    places = {"cb_block": "layer4.2", "rb_block": "layer4.3"}
    return {re.sub("^[cr]b_block", lambda m: places[m[0]], k): v for k, v in state.items()}


def _published(name: str) -> models.WeightsEnum | None:
    """Torchvision's first ImageNet weights of a network."""
    if name not in models.list_models(module=models):
        return None
    return getattr(models.get_model_weights(name), "IMAGENET1K_V1", None)


def _download(name: str, weights: models.WeightsEnum | None) -> dict[str, Tensor]:
    folder = paths.weights_root()
    if weights is None:
        first = f": put {FIRST_RESNET50_FILE} into the folder DPP_WEIGHTS, or give a file's path"
        advice = first if name == "resnet50_v1" else ": give a file's path"
        raise UserError(f"torchvision has no ImageNet-1k weights of {name}{advice}")
    try:
        return weights.get_state_dict(progress=True, check_hash=True, weights_only=True)
    except Exception as error:  # no network, a wrong hash, a damaged copy in torch's cache
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        other = ""
        if name == "resnet50" and folder and (folder / FIRST_RESNET50_FILE).is_file():
            other = f". {folder / FIRST_RESNET50_FILE} is of the backbone resnet50_v1"
        raise UserError(
            f"the weights of {name} could not be had from {weights.url} ({reason}): fetch that "
            "file in another way and put it into the folder DPP_WEIGHTS, or give its path instead "
            f"of imagenet{other}"
        ) from error
