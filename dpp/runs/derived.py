"""What runs that are made from a finished one share: pruned (`dpp prune`), steered (`dpp steer`).

The new run has some of the old one's prototypes and a last layer that is fitted again. The old run
stays as it is; the manifest of the new one names it.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from dpp.runs import pruning, resumable
from dpp.runs.finished import Run, open_run
from dpp.runs.making import finish
from dpp.system import files
from dpp.system.errors import UserError
from dpp.training import last_layer
from dpp.training.experiments import Experiment
from dpp.training.trainer import Trainer

MODELS = ("deformable", "protopnet", "tesnet")  # prototypes of a class, and a last layer


def check_kind(run: Run, verb: str) -> None:
    """Raises a `UserError` for networks without prototypes of a class; the verb is a participle."""
    if run.experiment.model not in MODELS:
        raise UserError(
            f"{run.folder} is a {run.experiment.model}, which cannot be {verb}: choose a run of "
            f"{', '.join(MODELS)}"
        )


def find_same(folder: Path, entry: str, described: dict) -> Run | None:
    """The run in a folder, if it was made in the same way before; anything else there is refused.

    Args:
        folder: that the new run will have.
        entry: of the manifest: "pruned_from" or "steered_from".
        described: what this entry says if it was the same.
    """
    if not folder.exists() or folder.is_dir() and not any(folder.glob("[!.]*")):
        return None
    if (folder / "manifest.json").is_file():
        existing = open_run(folder)
        if existing.manifest.get(entry) == described:
            existing.verify()
            return existing
    raise UserError(
        f"{folder} exists and does not hold this {entry.removesuffix('_from')} run: remove it, or "
        "choose another folder with --out"
    )


def numbers_at_first(manifest: dict, kept: Sequence[int]) -> list[int]:
    """The numbers that kept prototypes have in the network of the experiment.

    Args:
        manifest: of the run that they are kept from, which may lack some already.
        kept: their numbers there.
    """
    return [manifest["kept"][number] for number in kept] if "kept" in manifest else list(kept)


def fit_last_layer(experiment: Experiment, trainer: Trainer, scores: Tensor, labels: Tensor):
    """Fits the last layer to convergence, whatever the experiment does; a row of `metrics.csv`.

    Args:
        experiment: whose penalty and tolerance are taken.
        trainer: of the network, which is changed.
        scores: (N, Q), of the training images and the prototypes that are left.
        labels: (N,).
    """
    begun = time.perf_counter()
    exact = replace(experiment, last_layer="converged")
    fit = last_layer.refit(exact, trainer.model, scores, labels)
    return record("last layer", trainer, begun, **fit)


def keep_origins(run: Run, trainer: Trainer, kept: Sequence[int]) -> None:
    """Gives the trainer the origins of the prototypes (Q,) that are kept, if they are known."""
    if run.projected:
        trainer.provenance = pruning.keep_origins(run.origins, torch.tensor(kept))


def write(
    run: Run, trainer: Trainer, folder: Path, rows: list[dict], kept: Sequence[int], **facts
) -> Run:
    """Writes the new run.

    Args:
        run: the old one.
        trainer: with the new network.
        folder: of the new run.
        rows: of `metrics.csv`, after those of the old run.
        kept: the prototypes' numbers in the old run.
        facts: further entries of the manifest.
    """
    manifest = run.manifest
    with files.locked(folder, wait=False):
        described = files.read_file(run.folder / "experiment.json")
        files.write_file(folder / "experiment.json", described)
        history = run.metrics.to_dict("records") + rows
        resumable.write_metrics(folder, history)
        facts |= {"kept": numbers_at_first(manifest, kept)}
        pretrained = manifest["pretrained"]
        finish(run.experiment, trainer, folder, history, run.source, pretrained, **facts)
    return open_run(folder)


def measure_before(trainer: Trainer) -> dict[str, float]:
    """The number of prototypes and the accuracies of the old network."""
    return {"prototypes": len(trainer.model.prototypes.classes)} | evaluate(trainer)


def evaluate(trainer: Trainer) -> dict[str, float]:
    return trainer.evaluate("validation") | trainer.evaluate("test")


def record(stage: str, trainer: Trainer, begun: float, **metrics) -> dict:
    """A row of `metrics.csv`, as the trainer writes them."""
    last = trainer.tasks[-1]
    named = {"stage": stage, "epoch": last.epoch, "phase": last.phase.name}
    metrics |= evaluate(trainer)
    return named | metrics | {"seconds": round(time.perf_counter() - begun, 3)}


def describe_change(manifest: dict, removed: str) -> str:
    """The number of prototypes and the accuracies, before and after.

    Args:
        manifest: of the new run.
        removed: what to say of the prototypes that are no longer there.
    """
    before, after = manifest["before"], manifest["results"]
    lines = [f"{'prototypes':20} {before['prototypes']:.0f} -> {len(manifest['kept'])} ({removed})"]
    for split in ("validation", "test"):
        name = f"{split}_accuracy"
        lines.append(f"{name:20} {before[name]:.4f} -> {after[name]:.4f}")
    return "\n".join(lines)
