"""From an experiment to a run: found if it is finished, else trained; stopped runs are resumed.

A run is a folder, named by its experiment, under `runs/` (or `DPP_RUNS`):

    experiment.json       what it is made from
    metrics.csv           a row for each epoch and each later stage
    state-*.pt            while it is not finished: resume states
    weights.safetensors   when it is finished: the network
    prototypes.json       where each prototype comes from
    familiarity.json      how similar test images are to the prototypes
    manifest.json         written last: results, seconds, commit, versions, device, digests
"""

import platform
import subprocess
import warnings
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torchvision
from torch import nn

from dpp import ops
from dpp.backbones.backbone import Backbone, make_backbone
from dpp.backbones.pretrained import find_file, find_local
from dpp.data.batches import Splits, batches
from dpp.data.image_records import Source
from dpp.runs import checkpoints, familiarity, limits, run_files, several_processes
from dpp.runs.finished import (
    Run,
    choose_device,
    find,
    find_or_committed,
    load_source,
    load_splits,
    open_run,
)
from dpp.runs.method_of import method_of
from dpp.runs.precision import bfloat16_pays, choose_precision
from dpp.runs.resumable import train_resumably
from dpp.runs.trunk_cache import cache_splits
from dpp.system import files, paths, processes
from dpp.system.errors import UserError
from dpp.system.processes import from_first
from dpp.training.experiments import Experiment, base_experiment
from dpp.training.trainer import Method, Trainer


def get(experiment: Experiment, **options) -> Run:
    """The run of an experiment: finished, or committed with the results, or else trained now.

    Args:
        experiment: what it is a run of.
        options: of `run`.
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
    """Finds the finished run of an experiment, or trains it, resuming where it was stopped.

    Args:
        experiment: what to train.
        root: where runs live, instead of `runs/` or `DPP_RUNS`.
        device: "auto" for a GPU if there is one.
        workers: processes that prepare batches.
        progress: show a bar.
        tensorboard: write its events to the run's folder too.
    """
    root = Path(root) if root else paths.runs_root()
    device = choose_device(device)
    from_first(lambda: limits.check_workers(workers))
    from_first(lambda: limits.check_epochs(experiment))
    if finished := from_first(lambda: find_and_check(experiment, root)):
        return finished
    if processes.count() > 1:
        several_processes.check(experiment)
    pretrained = None
    if experiment.weights == "base":
        given = {"root": root, "device": device, "workers": workers, "progress": progress}
        pretrained = run(base_experiment(experiment), **given)
    folder = root / experiment.name
    progress = progress and processes.is_first()
    trainer, source = processes.in_turn(
        lambda: make_trainer(experiment, pretrained, device, workers, progress)
    )
    if processes.count() > 1:
        several_processes.share_work(trainer, experiment)
    with ExitStack() as stack:
        from_first(lambda: stack.enter_context(files.locked(folder, wait=False)))
        # perhaps trained by the process that held the lock
        if finished := from_first(lambda: find(experiment, root)):
            return finished
        from_first(lambda: files.write_json(folder / "experiment.json", asdict(experiment)))
        title = f"{experiment.model} {experiment.backbone}" if progress else None
        identity = experiment.identity
        if local := experiment.weights == "imagenet" and find_local(experiment.backbone):
            identity += f" of {local.name} {files.known_sha256(local)[:12]}"
        if experiment.precision == "auto":  # what another machine began may be of another one
            identity += f" in {trainer.precision}"
        history = train_resumably(trainer, folder, identity, title=title, tensorboard=tensorboard)
        name = pretrained.experiment.name if pretrained else experiment.weights
        from_first(lambda: finish(experiment, trainer, folder, history, source, name))
    return Run(experiment, folder)


def find_and_check(experiment: Experiment, root: Path) -> Run | None:
    """The run of an experiment, if it is finished; see `refuse_other_weights`."""
    if finished := find(experiment, root):
        refuse_other_weights(finished)
    return finished


def make_trainer(
    experiment: Experiment,
    pretrained: Run | None = None,
    device: str = "cpu",
    workers: int = 0,
    progress: bool = False,
) -> tuple[Trainer, Source]:
    """What trains an experiment from its beginning, and the data that it trains on.

    All images are decoded here, and with `views` the trunk's features of them computed, unless
    they are cached already.
    """
    source = load_source(experiment)
    if len(source.class_names) < 2:
        raise UserError(
            f"{source.name} under {source.root} has one class: training needs at least two"
        )
    torch.manual_seed(experiment.seed)
    backbone = load_backbone(experiment, pretrained)
    limits.check_memory(experiment, backbone.channels, len(source.class_names))
    limits.check_reach(experiment, experiment.image_size // backbone.stride)
    build = method_of(experiment).build
    model = build(experiment, backbone, len(source.class_names)).to(device)
    if experiment.compile:
        backbone.compile()
    return trainer_of(experiment, model, source, workers, progress), source


def prepare(experiment: Experiment, *, progress: bool = True) -> None:
    """Decodes an experiment's images, and computes its trunk's features, unless they are cached."""
    splits = load_splits(experiment, load_source(experiment))
    if experiment.views:
        torch.manual_seed(experiment.seed)  # of a trunk that has random weights
        device = choose_device("auto")
        precision = choose_precision(experiment.precision, device)
        backbone = load_backbone(experiment, None).to(device)
        cache_splits(splits, backbone, precision=precision, progress=progress)


def trainer_of(
    experiment: Experiment,
    model: nn.Module,
    source: Source,
    workers: int = 0,
    progress: bool = False,
    method: Method | None = None,
) -> Trainer:
    """The trainer of an experiment for a network that is built already, on its device.

    Args:
        method: to train by, instead of the experiment's.
    """
    method = method or method_of(experiment)
    device = next(model.parameters()).device
    pays, why = bfloat16_pays(device)
    if experiment.precision == "bfloat16" and not pays:
        warnings.warn(f"precision bfloat16 will be slow: {why}", stacklevel=2)
    precision = choose_precision(experiment.precision, device)
    splits = load_splits(experiment, source)
    if experiment.views:
        splits = cache_splits(splits, model.backbone, precision=precision, progress=progress)
    return Trainer(
        model,
        method.schedule(experiment),
        splits,
        method.objective(experiment),
        method.stages(experiment),
        batch_size=experiment.batch_size,
        seed=experiment.seed,
        workers=workers,
        precision=precision,
    )


def load_backbone(experiment: Experiment, pretrained: Run | None) -> Backbone:
    weights = "none" if pretrained else experiment.weights
    backbone = make_backbone(
        experiment.backbone,
        weights,
        stacked_branch=experiment.stacked_branch,
        frozen_trunk=experiment.frozen_trunk,
        cut_after=experiment.cut_after,
    )
    if pretrained:
        state, kept = pretrained.load_model().backbone.state_dict(), backbone.state_dict()
        backbone.load_state_dict({name: state[name] for name in kept})
    return backbone


def describe_weights(experiment: Experiment) -> dict:
    """The file that a backbone began from and its hash, for the manifest; empty without one."""
    if experiment.weights in ("none", "base"):
        return {}
    path = find_file(experiment.backbone, experiment.weights)
    return (
        {"pretrained_file": path.name, "pretrained_sha256": files.known_sha256(path)}
        if path
        else {}
    )


def refuse_other_weights(run: Run) -> None:
    """Raises a `UserError` if a run began from other ImageNet weights than it would begin from now.

    Runs are named by their fields, so that "imagenet" is found on a machine that has no weights;
    which file they were is in the manifest.
    """
    known = run.manifest.get("pretrained_sha256")
    if not known or run.experiment.weights != "imagenet":
        return
    path = find_file(run.experiment.backbone, "imagenet")
    if path and files.known_sha256(path) != known:
        raise UserError(
            f"{run.folder} was trained from {run.manifest['pretrained_file']} (SHA-256 "
            f"{known[:12]}...) and not from {path}: give that file as weights for a run of its "
            "own, or set DPP_WEIGHTS to where the other one is"
        )


def finish(
    experiment: Experiment,
    trainer: Trainer,
    folder: Path,
    history: list[dict],
    source: Source,
    pretrained: str,
    **facts,
) -> None:
    """Writes the files of a finished run, the manifest last, and removes its resume states.

    Args:
        experiment: what the run is of.
        trainer: at its end.
        folder: of the run.
        history: a record for each task.
        source: the data.
        pretrained: where the backbone's weights come from, by name.
        facts: further entries of the manifest.
    """
    digest = checkpoints.write_tensors(
        folder / "weights.safetensors", trainer.model.state_dict(), {"run": experiment.identity}
    )
    if trainer.provenance is not None:
        files.write_json(folder / "prototypes.json", trainer.provenance)
    familiarity.write(folder, trainer.model, batches(trainer.loaders["test"]), digest)
    last = history[-1]
    results = {name: value for name, value in last.items() if name.startswith(("test", "valid"))}
    run_files.write_manifest(
        folder,
        {
            "run": folder.name,
            "results": results,
            "seconds": round(sum(record["seconds"] for record in history), 1),
            "classes": len(source.class_names),
            "images": dict(zip(Splits._fields, map(len, trainer.splits), strict=True)),
            "pretrained": pretrained,
            **describe_weights(experiment),
            **({"precision_used": trainer.precision} if experiment.precision == "auto" else {}),
            "weights_sha256": digest,
            "experiment_sha256": files.sha256(folder / "experiment.json"),
            **facts,
            **surroundings(trainer.device),
        },
    )
    for path in checkpoints.find_states(folder):
        path.unlink()


def surroundings(device: torch.device) -> dict:
    """What results may depend on besides the experiment: commit, device and versions."""
    cuda, count = device.type == "cuda", processes.count()
    return {
        "commit": commit(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(device) if cuda else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        **({"processes": count} if count > 1 else {}),
        "operator": ops.backend(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "numpy": np.__version__,
    }


def commit() -> str:
    """The commit of the code, with a plus if files have changed since, other than results."""
    git = partial(subprocess.run, cwd=paths.ROOT, capture_output=True, text=True, timeout=20)
    try:
        described = git(["git", "describe", "--always", "--abbrev=12"]).stdout.strip()
        changed = git(["git", "diff", "--quiet", "HEAD", "--", ".", ":!results"]).returncode
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return described + ("+" if changed else "") if described else "unknown"
