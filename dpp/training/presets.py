"""What a profile gives a model, from `presets.toml`, and the supplement's few rules beside it."""

import tomllib
from pathlib import Path

from dpp.backbones.trunks import local_cut, usual_trunk

PRESETS: dict[str, dict[str, dict]] = tomllib.loads(
    Path(__file__).with_name("presets.toml").read_text()
)


def preset(profile: str, changes: dict) -> dict:
    """The fields of a profile's experiment that differ from the defaults of `Experiment`.

    Besides the section of `presets.toml`, three rules of the supplement and the released code:
    2x2 prototypes, and Stanford Dogs, have 10 prototypes for each class; VGG and DenseNet have 7
    warm epochs on CUB (not in photo, whose schedule is its own); the backbone rate of ResNet-152 on
    Stanford Dogs is 1e-5. Photo freezes the backbone's usual trunk; mini a pretrained one of a
    backbone that ends early. A backbone without a trunk is trained whole, from images.

    Args:
        profile: one of `PRESETS`.
        changes: fields that the user gives; the rules look at these first.
    """
    values = {"profile": profile} | PRESETS[profile].get(changes.get("model", "deformable"), {})
    given = {"model": "deformable", "data": "cub", "backbone": "", "kernel_size": 3}
    given |= values | changes
    deformable = given["model"] == "deformable"
    if given["kernel_size"] == 2 or given["data"] == "dogs":
        values["per_class"] = 10
    published = profile != "photo" and deformable and given["data"] == "cub"
    if published and given["backbone"].startswith(("vgg", "densenet")):
        values["warm_epochs"] = 7
    baseline_of_mini = profile == "mini" and not deformable  # which keeps its own rate
    if given["data"] == "dogs" and given["backbone"] == "resnet152" and not baseline_of_mini:
        values["backbone_rate"] = 1e-5
    trunk, kept = local_cut(given["backbone"]) if "base" in PRESETS[profile] else ("", "")
    trunk = usual_trunk(given["backbone"]) if profile == "photo" else trunk
    trunk = "" if kept and given.get("weights") == "none" else trunk  # random layers: not frozen
    if not changes.get("frozen_trunk", trunk):
        values.pop("views", None)
    return values | {"frozen_trunk": trunk, "cut_after": kept}
