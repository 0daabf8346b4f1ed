"""Several networks as one: their logits summed, as the paper's Table 3 has it.

    ensemble = Ensemble(tuple(make_experiment("mini", seed=seed) for seed in range(5)))
    run = ensembles.run(ensemble)

Members are runs like any other, found or trained; any mixture of models and backbones will do.
"""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

import pandas as pd
import torch
from torch import Tensor, nn

from dpp import runs
from dpp.data.batches import batches, make_loader, to_device
from dpp.runs import run_files
from dpp.system import files, paths
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment, short_name

SAME = ("profile", "data", "base_classes", "classes", "test_per_class", "pose", "image_size")
SAME += ("crop_to_box",)  # what decides which images are tested, and how they are shown


@dataclass(frozen=True)
class Ensemble:
    """An experiment that is made of others, which are tested on the same images."""

    members: tuple[Experiment, ...]

    def __post_init__(self):
        if not self.members:
            raise UserError("an ensemble needs at least one member")
        for name in SAME:
            values = sorted({str(getattr(member, name)) for member in self.members})
            if len(values) > 1:
                raise UserError(
                    f"the members of an ensemble differ in {name} ({', '.join(values)}): their "
                    "logits are not about the same images and classes"
                )

    @property
    def profile(self) -> str:
        return self.members[0].profile

    @property
    def name(self) -> str:
        """The run's folder; the order of the members does not matter."""
        names = "\n".join(sorted(member.name for member in self.members))
        digest = hashlib.sha256(names.encode()).hexdigest()[:12]
        return f"ensemble-{len(self.members)}-{short_name(self.members[0].data)}-{digest}"

    @property
    def row(self) -> dict:
        """As one row of a table: what all members have in common, and how many they are."""
        rows = [member.row for member in self.members]
        common = {k: v for k, v in rows[0].items() if all(row[k] == v for row in rows)}
        return common | {"model": "ensemble", "members": len(rows)}


class SummedLogits(nn.Module):
    """The sum of the members' logits."""

    def __init__(self, members: Sequence[nn.Module]):
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 3, H, W)."""
        return torch.stack([member(images) for member in self.members]).sum(dim=0)


@dataclass(frozen=True)
class EnsembleRun:
    """A tested ensemble."""

    experiment: Ensemble
    folder: Path
    members: tuple[runs.Run, ...]

    @property
    def manifest(self) -> dict:
        return run_files.read_manifest(self.folder)

    @property
    def metrics(self) -> pd.DataFrame:
        """One row: nothing was trained here."""
        row = {"stage": "test", "epoch": 0, "phase": "none"}
        return pd.DataFrame([row | self.manifest["results"] | {"seconds": 0.0}])

    def verify(self) -> None:
        """Raises a `UserError` if the manifest has no valid results, or a file was changed."""
        runs.verify_manifest(self.manifest, self.folder)
        if "files" in self.manifest:  # those of earlier versions have no hashes
            run_files.verify(self.folder)

    def load_model(self, device: str = "cpu") -> SummedLogits:
        return SummedLogits([member.load_model(device) for member in self.members]).eval()


def module_of(plan: Experiment | Ensemble) -> ModuleType:
    """The module with `find` and `run` for a plan: this one, or `dpp.runs`."""
    return sys.modules[__name__] if isinstance(plan, Ensemble) else runs


def find(ensemble: Ensemble, root: Path | None = None) -> EnsembleRun | None:
    """The run of an ensemble, if it and its members are finished."""
    root = Path(root or paths.runs_root())
    members = tuple(runs.find(member, root) for member in ensemble.members)
    tested = (root / ensemble.name / "manifest.json").is_file()
    return EnsembleRun(ensemble, root / ensemble.name, members) if tested and all(members) else None


def run(ensemble: Ensemble, *, root: Path | None = None, **options) -> EnsembleRun:
    """Finds or trains the members, then tests their sum.

    Args:
        ensemble: what to test.
        root: where runs live, instead of `runs/` or `DPP_RUNS`.
        options: of `runs.run`.
    """
    members = tuple(runs.run(member, root=root, **options) for member in ensemble.members)
    if tested := find(ensemble, root):
        return tested
    folder = (Path(root) if root else paths.runs_root()) / ensemble.name
    made = EnsembleRun(ensemble, folder, members)
    device = runs.choose_device(options.get("device", "auto"))
    described = {"members": [asdict(member) for member in ensemble.members]}
    files.write_json(folder / "experiment.json", described)
    accuracy = test_accuracy(made.load_model(device), ensemble.members[0], device)
    seconds = sum(member.manifest["seconds"] for member in members)
    run_files.write_manifest(
        folder,
        {
            "run": ensemble.name,
            "results": {"test_accuracy": accuracy},
            "seconds": round(seconds, 1),
            **runs.surroundings(torch.device(device)),
        },
    )
    return made


@torch.inference_mode()
def test_accuracy(model: nn.Module, experiment: Experiment, device: str = "cpu") -> float:
    """The share of an experiment's test images that a network classifies correctly."""
    images = runs.load_splits(experiment, runs.load_source(experiment)).test
    correct = 0
    for batch in batches(make_loader(images, experiment.batch_size)):
        logits = model(to_device(batch.images, device))
        correct += int((logits.argmax(dim=1).cpu() == batch.labels).sum())
    return correct / len(images)
