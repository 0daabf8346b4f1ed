"""What a run is made from: one frozen record, whose hash is the run's name.

    experiment = make_experiment("mini", backbone="slim_vgg16_bn", kernel_size=2)

`Experiment` alone has the paper's values; `make_experiment` replaces them by those of a profile and
model, which `presets.toml` lists.
"""

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from dpp.data import catalogue
from dpp.data.folder_digest import folder_digest
from dpp.networks import released
from dpp.system.errors import UserError
from dpp.system.files import known_sha256
from dpp.system.profiles import check_profile
from dpp.training.presets import PRESETS, preset

RECIPE = 1  # raised when the same fields no longer mean the same run
MODELS = ("deformable", "cnn", "protopnet", "tesnet", "prototree")
CHOICES = {
    "model": MODELS,
    "precision": ("float32", "bfloat16", "float16", "auto"),
    "last_layer": ("converged", "passes", "fixed", "sparse"),
    "offset_start": ("normal", "he"),
    "prototype_start": ("uniform", "features", "scaled"),
    "deformation": ("none", "predicted", "search"),
    "projection": ("nearest", "distinct"),
}
ONLY_FOR = {("projection", "distinct"): "deformable", ("last_layer", "sparse"): "deformable"}
ONLY_FOR |= {("prototype_start", "scaled"): "protopnet and prototree"}  # choices for some models
LONGEST_NAME = 100  # bytes of a data set in the name of a run: file systems allow 255 in all
AT_LEAST_ONE = {"epochs", "kernel_size", "per_class", "batch_size", "image_size", "decay_every"}


def _field(default, help: str, later: bool = False):
    """With its help; one that came `later` is in no name or record while it has its default."""
    return field(default=default, metadata={"help": help, "later": later})


@dataclass(frozen=True)
class Experiment:
    """Everything that a run's numbers depend on, besides the machine."""

    profile: str = _field("paper", "the preset that the other values come from")
    model: str = _field("deformable", f"one of {', '.join(MODELS)}")
    backbone: str = _field("resnet50", "a torchvision classifier, or a slim one: slim_resnet34")
    weights: str = _field(
        "imagenet", "imagenet, base (pretrained on drawn base classes), none, or a file"
    )
    data: str = _field("cub", f"one of {', '.join(catalogue.NAMES)}, or a folder of images")
    base_classes: bool = _field(False, "drawn data: the classes that backbones are pretrained on")
    classes: int = _field(10, "drawn data: how many classes")
    train_per_class: int = _field(30, "drawn data: training images of a class")
    test_per_class: int = _field(30, "drawn data: test images of a class")
    pose: float = _field(1.0, "drawn data: strength of the pose variation, 0 to 2")
    image_size: int = _field(224, "side of the images that the network sees")
    crop_to_box: bool = _field(False, "show the network the box around the animal alone")
    validation_fraction: float = _field(0.1, "share of the training images held out for validation")
    kernel_size: int = _field(3, "K: a prototype has K x K parts")
    per_class: int = _field(6, "prototypes of a class")
    deformable: bool = _field(True, "let the parts move")
    margin: float = _field(0.1, "phi of equation 12, in radians")
    separation: float = _field(0.01, "weight of equation 10")
    cluster: float = _field(0.1, "weight of equation 9")
    orthogonality: float = _field(0.1, "weight of equation 13")
    l1: float = _field(1e-3, "weight of the L1 term of equation 16")
    variant: str = _field("paper", "paper, released, or released:SWITCH,SWITCH")
    epochs: int = _field(30, "of stage 1 in all")
    warm_epochs: int = _field(5, "epochs that train the prototypes alone")
    second_warm_epochs: int = _field(5, "epochs after them that train the backbone too")
    project_after: tuple[int, ...] = _field((20, 30), "epochs that stages 2 and 3 follow")
    backbone_rate: float = _field(1e-4, "learning rate of the backbone")
    prototype_rate: float = _field(3e-3, "of the prototypes, or of a CNN's classifier")
    offset_rate: float = _field(5e-4, "of the offset branch")
    offset_deviation: float = _field(2e-5, "of the offset branch's weights when it is drawn")
    decay: float = _field(0.1, "what joint training's rates are multiplied by...")
    decay_every: int = _field(5, "...after so many epochs")
    weight_decay: float = _field(1e-3, "of the backbone")
    last_layer: str = _field("passes", "how stage 3 ends: converged, passes, fixed, sparse")
    last_layer_tolerance: float = _field(1e-3, "of the optimality conditions, for converged")
    last_layer_passes: int = _field(20, "over the scores, for passes")
    last_layer_rate: float = _field(1e-4, "learning rate, for passes")
    batch_size: int = _field(80, "images in a training batch")
    precision: str = _field(
        "float32", "of training: float32, bfloat16, float16, auto (bfloat16 if the device has it)"
    )
    compile: bool = _field(False, "torch.compile the backbone")
    seed: int = _field(0, "of weights, splits, order and augmentation")
    frozen_trunk: str = _field(
        "", "the backbone's last layer that is never trained (layer3); empty trains all", later=True
    )
    views: int = _field(
        0, "augmented views of a training image whose trunk features are kept; 0: no cache", True
    )
    offset_start: str = _field("normal", "of the offset branch, joint training: normal, he", True)
    prototype_start: str = _field("uniform", "of prototypes: uniform, features, scaled", later=True)
    deformation: str = _field(
        "predicted", "of parts: none, predicted (the paper), search (an extension)", later=True
    )
    cut_after: str = _field(
        "", "the backbone's last layer that is kept (layer3); empty keeps all", later=True
    )
    search_reach: int = _field(1, "how far parts that search may go, in cells", later=True)
    projection: str = _field(
        "nearest", "of prototypes: nearest (the paper), distinct (an extension)", later=True
    )

    def __post_init__(self):
        for entry in fields(self):
            value = _as(type(entry.default), entry.name, getattr(self, entry.name))
            object.__setattr__(self, entry.name, value)
        check_profile(self.profile)
        released.parse(self.variant)
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise UserError(f"{name}: {value!r} is not one of {', '.join(choices)}")
        for (name, value), models in ONLY_FOR.items():
            if getattr(self, name) == value and self.model not in models.split(" and "):
                raise UserError(f"{name} {value} is for {models}, not for {self.model}")
        if self.deformation == "none" or not self.deformable:  # two names of one experiment
            object.__setattr__(self, "deformable", False)
            object.__setattr__(self, "deformation", type(self).deformation)
        if self.deformation == "search" and self.variant != "paper":
            raise UserError("parts that search have no released variant: choose variant paper")
        if self.views and not self.frozen_trunk:
            raise UserError("views are of a frozen trunk: name its last layer as frozen_trunk")
        if self.margin >= math.pi:
            raise UserError(f"margin: expected an angle below pi, got {self.margin:g}")
        if self.warm_epochs + self.second_warm_epochs > self.epochs:
            raise UserError(
                f"{self.warm_epochs} + {self.second_warm_epochs} warm epochs do not fit into "
                f"{self.epochs} epochs: raise epochs or lower them"
            )
        if wrong := [epoch for epoch in self.project_after if not 1 <= epoch <= self.epochs]:
            raise UserError(f"project_after: there is no epoch {wrong[0]}, only 1 to {self.epochs}")
        if self.project_after and max(self.project_after) != self.epochs:
            raise UserError(
                f"project_after: the last must be the last epoch, {self.epochs}, or the "
                "final prototypes are not patches of training images; give none to skip projection"
            )

    @property
    def switches(self) -> released.ReleasedSwitches:
        return released.parse(self.variant)

    @property
    def stacked_branch(self) -> bool:
        """Whether the backbone has both of BBN's last blocks: a switch for that file alone."""
        file = self.weights not in ("imagenet", "base", "none")
        return self.switches.stacked_branch and file and self.backbone == "resnet50"

    @property
    def row(self) -> dict:
        """As one row of a table: epochs with spaces between, files and folders by their names."""
        values = self._named_values()
        values["project_after"] = " ".join(map(str, self.project_after))
        values |= {"weights": Path(self.weights).name, "data": short_name(self.data)}
        return values

    def _named_values(self) -> dict:
        """All fields, but for those that came later and have their default."""
        late = {entry.name for entry in fields(self) if entry.metadata["later"]}
        default = {name for name in late if getattr(self, name) == getattr(Experiment, name)}
        return {name: value for name, value in asdict(self).items() if name not in default}

    @property
    def identity(self) -> str:
        """A digest of all fields, but for those that came later and have their default.

        A weights file counts by its content, not by its path; a folder of images by the names and
        contents of its files.
        """
        values = self._named_values() | {"recipe": RECIPE}
        if self.data not in catalogue.NAMES:  # first: what else is wrong may follow from it
            values["data"] = folder_digest(catalogue.find_folder(self.data))
        if self.weights == "base":
            values["weights"] = base_experiment(self).identity
        elif self.weights not in ("none", "imagenet") and Path(self.weights).is_file():
            values["weights"] = known_sha256(Path(self.weights))
        text = json.dumps(values, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """The name of the run's folder: the main fields, then the digest."""
        data = short_name(self.data) + ("_base" if self.base_classes else "")
        return f"{self.model}-{self.backbone}-{data}-{self.seed}-{self.identity}"


def short_name(data: str) -> str:
    """What a data set is called in the names of runs: a folder without those above it."""
    return os.fsencode(Path(data).name)[:LONGEST_NAME].decode(errors="ignore")


def make_experiment(profile: str = "mini", **changes) -> Experiment:
    """A profile's experiment, with these fields changed."""
    check_profile(profile)
    known = {entry.name for entry in fields(Experiment)}
    if unknown := sorted(set(changes) - known):
        raise UserError(
            f"an experiment has no {unknown[0]!r}: choose of {', '.join(sorted(known))}"
        )
    values = preset(profile, changes)
    after, epochs = values.get("project_after", Experiment.project_after), changes.get("epochs")
    if after and isinstance(epochs, int):  # stages 2 and 3 follow the new last epoch
        values["project_after"] = (*(epoch for epoch in after if epoch < epochs), epochs)
    return Experiment(**(values | changes))


def example_experiment(profile: str = "mini", **changes) -> Experiment:
    """The network that is shown where none is chosen: of ten 2x2 prototypes, on a ResNet."""
    backbone = {"paper": "resnet50", "photo": "resnet34"}.get(profile, "slim_resnet50")
    own = changes.get("model", "deformable") == "deformable"
    shape = {"kernel_size": 2, "per_class": 10} if own else {}
    return make_experiment(profile, **({"backbone": backbone} | shape | changes))


def base_experiment(experiment: Experiment) -> Experiment:
    """The experiment that pretrains a slim backbone on base classes, for `weights="base"`."""
    based = [profile for profile, sections in PRESETS.items() if "base" in sections]
    if experiment.profile not in based or experiment.data not in catalogue.DRAWN:
        raise UserError(
            f"base weights are for drawn data in {' or '.join(based)}: for {experiment.data} in "
            f"{experiment.profile} choose imagenet, none or a file"
        )
    return Experiment(
        profile=experiment.profile,
        backbone=experiment.backbone,
        image_size=experiment.image_size,
        **PRESETS[experiment.profile]["base"],
    )


def _as(kind: type, name: str, value):
    """A field's value as the type of its default, so that 0 and 0.0 are the same experiment."""
    if kind is float and type(value) is int or kind is tuple and isinstance(value, list):
        value = kind(value)
    if type(value) is not kind:
        raise UserError(f"{name}: expected {kind.__name__}, got {value!r}")
    if kind is tuple and not all(type(item) is int for item in value):
        raise UserError(f"{name}: expected whole numbers, got {value!r}")
    least, most = (1 if name in AT_LEAST_ONE else 0), (2**31 if kind is int else float("inf"))
    if kind in (int, float) and not least <= value < most:
        raise UserError(f"{name}: expected a number from {least} to {most}, got {value!r}")
    return value
