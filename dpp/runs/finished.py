"""Finished runs: found by experiment or folder, verified, loaded."""

import itertools
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from dpp import data
from dpp.backbones.backbone import make_backbone
from dpp.data.batches import Splits, make_splits
from dpp.data.image_records import Source
from dpp.runs import checkpoints, run_files
from dpp.runs.method_of import method_of
from dpp.system import paths
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment


@dataclass(frozen=True)
class Run:
    """A finished run."""

    experiment: Experiment
    folder: Path

    @property
    def manifest(self) -> dict:
        return run_files.read_manifest(self.folder)

    @property
    def metrics(self) -> pd.DataFrame:
        """A row for each epoch and each later stage."""
        return run_files.read_metrics(self.folder)

    @property
    def projected(self) -> bool:
        """Whether it is known where its prototypes come from.

        Raises:
            UserError: it should be, and the file is missing.
        """
        manifest, name = self.manifest, "prototypes.json"
        expected = name in run_files.covered(manifest)
        if "files" not in manifest:  # of an earlier version, which did not list them
            expected = bool(self.experiment.project_after) and self.experiment.model != "cnn"
        if expected and not (self.folder / name).is_file():
            raise UserError(f"{self.folder / name} is missing: {run_files.REMEDY}")
        return (self.folder / name).is_file()

    @property
    def origins(self) -> list[dict]:
        """Where each prototype comes from (see `projection.Origin`)."""
        return run_files.read_origins(self.folder)

    @property
    def source(self) -> Source:
        return load_source(self.experiment)

    def verify(self) -> None:
        """Raises a `UserError` if a file of the run is missing, damaged or was changed."""
        verify_manifest(self.manifest, self.folder)
        run_files.verify(self.folder)
        run_files.read_metrics(self.folder)
        if self.projected:
            run_files.read_origins(self.folder)

    def load_model(self, device: str = "cpu") -> nn.Module:
        """The trained network, in evaluation mode."""
        manifest = self.manifest
        path = self.folder / "weights.safetensors"
        tensors = checkpoints.read_tensors(path, manifest["weights_sha256"])
        backbone = make_backbone(
            self.experiment.backbone,
            stacked_branch=self.experiment.stacked_branch,
            frozen_trunk=self.experiment.frozen_trunk,
            cut_after=self.experiment.cut_after,
        )
        model = method_of(self.experiment).build(self.experiment, backbone, manifest["classes"])
        if "kept" in manifest:  # it was pruned
            model.keep(torch.tensor(manifest["kept"]))
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            raise UserError(
                f"{path} does not fit the network that experiment.json describes: "
                f"{str(error).splitlines()[-1].strip()}"
            ) from error
        return model.to(choose_device(device)).eval()


def find(experiment: Experiment, root: Path | None = None) -> Run | None:
    """The run of an experiment, if it is finished."""
    folder = Path(root or paths.runs_root()) / experiment.name
    return Run(experiment, folder) if (folder / "manifest.json").is_file() else None


def verify_manifest(manifest: dict, folder: Path) -> None:
    """Raises a `UserError` unless a manifest has an accuracy from 0 to 1 and its seconds."""
    try:
        valid = 0 <= manifest["results"]["test_accuracy"] <= 1 and manifest["seconds"] >= 0
    except (KeyError, TypeError):
        valid = False
    if not valid:
        raise UserError(
            f"{folder / 'manifest.json'} has no test accuracy from 0 to 1 or no seconds"
        )


def set_aside(folder: Path) -> Path:
    """Renames the folder of a damaged run, so that it is not found again."""
    numbers = itertools.count(1)
    aside = next(p for n in numbers if not (p := Path(f"{folder}.damaged-{n}")).exists())
    return folder.rename(aside)


def open_run(folder: Path) -> Run:
    """The finished run in a folder."""
    folder = Path(folder)
    if not (folder / "manifest.json").is_file():
        raise UserError(f"there is no finished run in {folder}: it has no manifest.json")
    return Run(run_files.read_experiment(folder), folder)


def find_or_committed(experiment: Experiment, root: Path | None = None) -> Run | None:
    """The finished run of an experiment, or the one committed with the results."""
    committed = paths.RESULTS / experiment.profile / "networks"
    return find(experiment, root) or find(experiment, committed)


def load_source(experiment: Experiment) -> Source:
    if experiment.data not in data.catalogue.DRAWN:
        return data.load(experiment.data)
    return data.load(
        experiment.data,
        base=experiment.base_classes,
        classes=experiment.classes,
        train_per_class=experiment.train_per_class,
        test_per_class=experiment.test_per_class,
        image_size=experiment.image_size,
        pose=experiment.pose,
    )


def load_splits(experiment: Experiment, source: Source) -> Splits:
    return make_splits(
        source,
        experiment.image_size,
        crop_to_box=experiment.crop_to_box,
        validation_fraction=experiment.validation_fraction,
        seed=experiment.seed,
        views=experiment.views,
    )


def choose_device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise UserError(f"there is no device {name!r}: choose auto, cpu, cuda or cuda:1")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return name
