"""From an experiment to a run: found if it is there, else trained; stopped and gone on with.

A run is a folder, named by its experiment, under `runs/` (or `DPP_RUNS`):

    experiment.json       what it is made from
    metrics.csv           a row for each epoch and each later stage
    state-*.pt            while it is not finished: where to go on from
    weights.safetensors   when it is finished: the network
    prototypes.json       where each prototype comes from
    manifest.json         written last: results, seconds, commit, versions, device, digests
"""

import fcntl
import itertools
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torchvision
from torch import nn

from dpp import checkpoints, data, ops, paths
from dpp.backbones import Backbone, make_backbone
from dpp.data.loading import Splits, make_splits
from dpp.data.records import Source
from dpp.errors import UserError
from dpp.experiments import Experiment, base_experiment
from dpp.methods import METHODS
from dpp.supervision import supervise
from dpp.training import Trainer


@dataclass(frozen=True)
class Run:
    """A finished run."""

    experiment: Experiment
    folder: Path

    @property
    def manifest(self) -> dict:
        return checkpoints.read_json(self.folder / "manifest.json")

    @property
    def metrics(self) -> pd.DataFrame:
        """A row for each epoch and each later stage."""
        return pd.read_csv(self.folder / "metrics.csv")

    @property
    def origins(self) -> list[dict]:
        """Where each prototype comes from (see `projection.Origin`)."""
        return checkpoints.read_json(self.folder / "prototypes.json")

    @property
    def source(self) -> Source:
        return load_source(self.experiment)

    def verify(self) -> None:
        """Raises a `UserError` if a file of the run is not what the run wrote."""
        manifest = self.manifest
        verify_manifest(manifest, self.folder)
        for name in ("experiment.json", "weights.safetensors"):
            known = manifest.get(f"{Path(name).stem}_sha256")
            if checkpoints.digest(self.folder / name) != known:
                raise UserError(f"{self.folder / name} is not the one that the run wrote")
        try:
            columns = set(self.metrics)
        except (OSError, ValueError) as error:
            raise UserError(f"{self.folder / 'metrics.csv'} cannot be read: {error}") from error
        if not {"stage", "epoch", "seconds"} <= columns:
            raise UserError(f"{self.folder / 'metrics.csv'} has no stage, epoch or seconds")

    def load_model(self, device: str = "cpu") -> nn.Module:
        """The network, ready to look at images."""
        manifest = self.manifest
        path = self.folder / "weights.safetensors"
        tensors = checkpoints.read_tensors(path, manifest["weights_sha256"])
        stacked = self.experiment.stacked_branch
        backbone = make_backbone(self.experiment.backbone, stacked_branch=stacked)
        model = METHODS[self.experiment.model].build(self.experiment, backbone, manifest["classes"])
        model.load_state_dict(tensors)
        return model.to(choose_device(device)).eval()


def find(experiment: Experiment, root: Path | None = None) -> Run | None:
    """The run of an experiment, if it is finished."""
    folder = Path(root or paths.runs_root()) / experiment.name
    return Run(experiment, folder) if (folder / "manifest.json").is_file() else None


def verify_manifest(manifest: dict, folder: Path) -> None:
    """A manifest has at least an accuracy and the seconds that it took."""
    try:
        whole = 0 <= manifest["results"]["test_accuracy"] <= 1 and manifest["seconds"] >= 0
    except (KeyError, TypeError):
        whole = False
    if not whole:
        raise UserError(f"{folder / 'manifest.json'} has no accuracy or no seconds")


def set_aside(folder: Path) -> Path:
    """Gives a run's folder a name by which nothing finds it."""
    numbers = itertools.count(1)
    aside = next(p for n in numbers if not (p := Path(f"{folder}.damaged-{n}")).exists())
    return folder.rename(aside)


def open_run(folder: Path) -> Run:
    """The finished run in a folder."""
    folder = Path(folder)
    if not (folder / "manifest.json").is_file():
        raise UserError(f"there is no finished run in {folder}: it has no manifest.json")
    described = folder / "experiment.json"
    known = checkpoints.read_json(folder / "manifest.json").get("experiment_sha256")
    if known != checkpoints.digest(described):
        raise UserError(f"{described} is not the one that the run was made from: it was changed")
    return Run(Experiment(**checkpoints.read_json(described)), folder)


def find_or_committed(experiment: Experiment, root: Path | None = None) -> Run | None:
    """The run of an experiment, if it is finished, or else is committed with the results."""
    committed = paths.RESULTS / experiment.profile / "networks"
    return find(experiment, root) or find(experiment, committed)


def get(experiment: Experiment, **options) -> Run:
    """A run to look at: one that is there, or is committed with the results, or else trained.

    Args:
        experiment: what it is a run of.
        options: of `run`, for one that is neither.
    """
    return find_or_committed(experiment, options.get("root")) or run(experiment, **options)


def choose(folder: str | Path, experiment: Experiment, **options) -> Run:
    """The run in a folder, if one is given; else that of an experiment, see `get`."""
    return open_run(Path(folder).expanduser()) if folder else get(experiment, **options)


def run(
    experiment: Experiment,
    *,
    root: Path | None = None,
    device: str = "auto",
    workers: int = 0,
    progress: bool = True,
    tensorboard: bool = False,
) -> Run:
    """Finds the run of an experiment or trains it, going on from where it was stopped.

    Args:
        experiment: what to train.
        root: where runs live, instead of `runs/` or `DPP_RUNS`.
        device: "auto" for a GPU if there is one.
        workers: processes that prepare batches.
        progress: show a bar.
        tensorboard: write its events to the run's folder too.
    """
    root = Path(root) if root else paths.runs_root()
    if found := find(experiment, root):
        return found
    device = choose_device(device)
    pretrained = None
    if experiment.weights == "base":
        given = {"root": root, "device": device, "workers": workers, "progress": progress}
        pretrained = run(base_experiment(experiment), **given)
    folder = root / experiment.name
    trainer, source = make_trainer(experiment, pretrained, device, workers)
    with locked(folder):
        if found := find(experiment, root):  # by a process that held the lock
            return found
        checkpoints.write_json(folder / "experiment.json", asdict(experiment))
        title = f"{experiment.model} {experiment.backbone}" if progress else None
        history = supervise(
            trainer, folder, experiment.identity, title=title, tensorboard=tensorboard
        )
        finish(experiment, trainer, folder, history, source, pretrained)
    return Run(experiment, folder)


def make_trainer(
    experiment: Experiment, pretrained: Run | None = None, device: str = "cpu", workers: int = 0
) -> tuple[Trainer, Source]:
    """What trains an experiment from its beginning, and the data that it trains on."""
    method = METHODS[experiment.model]
    source = load_source(experiment)
    if len(source.class_names) < 2:
        raise UserError(f"{source.name} under {source.root} has one class: there is none to tell")
    torch.manual_seed(experiment.seed)
    backbone = load_backbone(experiment, pretrained)
    model = method.build(experiment, backbone, len(source.class_names)).to(device)
    if experiment.compile:
        backbone.compile()
    trainer = Trainer(
        model,
        method.schedule(experiment),
        load_splits(experiment, source),
        method.objective(experiment),
        method.stages(experiment),
        batch_size=experiment.batch_size,
        seed=experiment.seed,
        workers=workers,
        precision=experiment.precision,
    )
    return trainer, source


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
    )


def load_backbone(experiment: Experiment, pretrained: Run | None) -> Backbone:
    weights = "none" if pretrained else experiment.weights
    stacked = experiment.stacked_branch
    backbone = make_backbone(experiment.backbone, weights, stacked_branch=stacked)
    if pretrained:
        backbone.load_state_dict(pretrained.load_model().backbone.state_dict())
    return backbone


def finish(
    experiment: Experiment,
    trainer: Trainer,
    folder: Path,
    history: list[dict],
    source: Source,
    pretrained: Run | None,
) -> None:
    """Writes what a finished run is, the manifest last, and removes the states."""
    digest = checkpoints.write_tensors(
        folder / "weights.safetensors", trainer.model.state_dict(), {"run": experiment.identity}
    )
    if trainer.provenance is not None:
        checkpoints.write_json(folder / "prototypes.json", trainer.provenance)
    last = history[-1]
    results = {name: value for name, value in last.items() if name.startswith(("test", "valid"))}
    checkpoints.write_json(
        folder / "manifest.json",
        {
            "run": experiment.name,
            "results": results,
            "seconds": round(sum(record["seconds"] for record in history), 1),
            "classes": len(source.class_names),
            "images": dict(zip(Splits._fields, map(len, trainer.splits), strict=True)),
            "pretrained": pretrained.experiment.name if pretrained else experiment.weights,
            "weights_sha256": digest,
            "experiment_sha256": checkpoints.digest(folder / "experiment.json"),
            **surroundings(trainer.device),
        },
    )
    for path in checkpoints.find_states(folder):
        path.unlink()


def surroundings(device: torch.device) -> dict:
    """What a number may depend on that is not in the experiment."""
    cuda = device.type == "cuda"
    return {
        "commit": commit(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(device) if cuda else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "operator": ops.backend(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "numpy": np.__version__,
    }


def commit() -> str:
    """The commit that the code is of, with a plus if files have changed since."""
    command = ["git", "-C", str(paths.ROOT), "describe", "--always", "--abbrev=12", "--dirty=+"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return found.stdout.strip() or "unknown"


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


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes off a run's folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("a")
    except OSError as error:
        raise UserError(f"{folder} cannot be written to: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another process is training {folder}: wait for it") from error
        yield
