"""The values of the photo profile: photographs, full backbones, no GPU.

All blocks of the backbone but the last keep their ImageNet weights, and what they make of a few
views of each image is computed once (`dpp.training.trunk_cache`). The schedule is the paper's three
stages, shorter.
"""

from dpp.networks.trunks import usual_trunk

PRESET = {
    "backbone": "resnet34",
    "frozen_trunk": "layer3",
    "views": 4,
    "offset_start": "he",
    "last_layer": "converged",
    "batch_size": 48,
    "epochs": 12,
    "warm_epochs": 2,
    "second_warm_epochs": 2,
    "project_after": (12,),
}
PATCHES = {"warm_epochs": 2, "project_after": (12,), "batch_size": 48}
OF_MODEL = {
    "deformable": {"warm_epochs": 2},
    "cnn": {"warm_epochs": 2},
    "protopnet": PATCHES,
    "tesnet": PATCHES,
    "prototree": PATCHES
    | {"epochs": 24, "second_warm_epochs": 10, "project_after": (24,), "backbone_rate": 1e-4},
}


def implied_trunk(given: dict) -> dict:
    """The frozen layers of a backbone; one of which they are not known is trained whole."""
    trunk = usual_trunk(given["backbone"])
    return {"frozen_trunk": trunk, "views": given["views"] if trunk else 0}
