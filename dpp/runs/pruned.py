"""A finished run with fewer prototypes, as a new run beside it; `dpp prune RUN`.

Duplicates of a class become one prototype, unused prototypes are removed, and the last layer is
fitted again (`dpp.runs.pruning` has the criteria). The original run stays as it is.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dpp.runs import pruning, resumable
from dpp.runs.finished import Run, choose_device, open_run
from dpp.runs.making import finish, trainer_of
from dpp.system import files
from dpp.system.errors import UserError
from dpp.training import last_layer
from dpp.training.trainer import Trainer

MODELS = ("deformable", "protopnet", "tesnet")  # prototypes of a class, and a last layer
TOLERANCE = 1e-6  # of the cosine of two prototypes that count as equal
UNUSED = (
    f"unused: fewer than {pruning.LEAST} of the {pruning.NEAREST} nearest training images are of "
    "its class"
)


class Selection(NamedTuple):
    """Which prototypes a pruned network keeps, by their numbers before."""

    kept: list[int]
    removed: list[dict]  # {"prototype": number, "reason": text}


def prune(
    run: Run,
    *,
    tolerance: float = TOLERANCE,
    keep_unused: bool = False,
    out: Path | None = None,
    device: str = "cpu",
) -> Run:
    """Prunes a finished run into a new one, or finds it if the same was done before.

    Args:
        run: of one of `MODELS`, not pruned itself.
        tolerance: how far the cosine of duplicates may be from 1.
        keep_unused: merge duplicates only.
        out: the new run's folder; by default the old one's name with "-pruned".
        device: see `choose_device`.

    Raises:
        UserError: the run cannot be pruned, or the folder holds something else.
    """
    folder = Path(out).expanduser() if out else run.folder.with_name(f"{run.folder.name}-pruned")
    manifest = check(run, tolerance)
    source_run = {
        "run": run.folder.name,
        "weights_sha256": manifest["weights_sha256"],
        "tolerance": tolerance,
        "keep_unused": keep_unused,
    }
    if existing := find_same(folder, source_run):
        return existing

    model, source = run.load_model(choose_device(device)), run.source
    trainer = trainer_of(run.experiment, model, source)
    before = {"prototypes": len(model.prototypes.classes)} | evaluate(trainer)
    scores, labels = last_layer.cache_scores(trainer)
    begun = time.perf_counter()
    selection = remove(model, scores, labels, tolerance, keep_unused)
    rows = [record("prune", trainer, begun, prototypes=len(selection.kept))]
    begun = time.perf_counter()
    exact = replace(run.experiment, last_layer="converged")
    kept = torch.tensor(selection.kept, device=scores.device)
    fit = last_layer.refit(exact, model, scores[:, kept], labels)
    rows.append(record("last layer", trainer, begun, **fit))
    if run.projected:
        trainer.provenance = pruning.keep_origins(run.origins, kept)

    with files.locked(folder, wait=False):
        described = files.read_file(run.folder / "experiment.json")
        files.write_file(folder / "experiment.json", described)
        history = run.metrics.to_dict("records") + rows
        resumable.write_metrics(folder, history)
        facts = {"pruned_from": source_run, "before": before, **selection._asdict()}
        finish(run.experiment, trainer, folder, history, source, manifest["pretrained"], **facts)
    return open_run(folder)


def check(run: Run, tolerance: float) -> dict:
    """The manifest of a run that can be pruned, verified; a `UserError` for any other."""
    if not 0 <= tolerance < 1:
        raise UserError(f"tolerance: expected a number from 0 to below 1, got {tolerance:g}")
    if run.experiment.model not in MODELS:
        raise UserError(
            f"{run.folder} is a {run.experiment.model}, which cannot be pruned: choose a run of "
            f"{', '.join(MODELS)}"
        )
    manifest = run.manifest
    if "pruned_from" in manifest:
        raise UserError(
            f"{run.folder} is pruned already: prune the original, "
            f"{manifest['pruned_from']['run']}, with other options instead"
        )
    run.verify()
    return manifest


def find_same(folder: Path, source_run: dict) -> Run | None:
    """The run that the same pruning wrote before, if any; anything else there is refused."""
    if not folder.exists() or folder.is_dir() and not any(folder.glob("[!.]*")):
        return None
    if (folder / "manifest.json").is_file():
        existing = open_run(folder)
        if existing.manifest.get("pruned_from") == source_run:
            existing.verify()
            return existing
    raise UserError(
        f"{folder} exists and does not hold this pruned run: remove it, or choose another folder "
        "with --out"
    )


def remove(
    model: nn.Module, scores: Tensor, labels: Tensor, tolerance: float, keep_unused: bool
) -> Selection:
    """Removes duplicates, then unused prototypes, from a network.

    Args:
        model: is changed.
        scores: (N, P), of the training images.
        labels: (N,).
        tolerance: see `pruning.find_duplicates`.
        keep_unused: stop after the duplicates.
    """
    layer = model.prototypes
    first = pruning.find_duplicates(pruning.compared(model), layer.classes, tolerance).tolist()
    reasons = {
        number: f"duplicate of {other}" for number, other in enumerate(first) if other != number
    }
    kept = pruning.merge_duplicates(model, tolerance)
    if not keep_unused:
        unused = pruning.find_unused(scores[:, kept], labels, layer.classes)
        remaining = kept[pruning.prune(model, unused)]
        reasons |= dict.fromkeys(set(kept.tolist()) - set(remaining.tolist()), UNUSED)
        kept = remaining
    removed = [{"prototype": number, "reason": reasons[number]} for number in sorted(reasons)]
    return Selection(kept.tolist(), removed)


def evaluate(trainer: Trainer) -> dict[str, float]:
    return trainer.evaluate("validation") | trainer.evaluate("test")


def record(stage: str, trainer: Trainer, begun: float, **metrics) -> dict:
    """A row of `metrics.csv`, as the trainer writes them."""
    last = trainer.tasks[-1]
    named = {"stage": stage, "epoch": last.epoch, "phase": last.phase.name}
    metrics |= evaluate(trainer)
    return named | metrics | {"seconds": round(time.perf_counter() - begun, 3)}


def as_text(pruned: Run) -> str:
    """The number of prototypes and the accuracies before and after, and where the run is."""
    manifest = pruned.manifest
    before, after = manifest["before"], manifest["results"]
    duplicates = sum(one["reason"].startswith("duplicate") for one in manifest["removed"])
    unused = len(manifest["removed"]) - duplicates
    lines = [
        f"{'prototypes':20} {before['prototypes']} -> {len(manifest['kept'])} "
        f"(duplicates merged: {duplicates}, unused removed: {unused})"
    ]
    for split in ("validation", "test"):
        name = f"{split}_accuracy"
        lines.append(f"{name:20} {before[name]:.4f} -> {after[name]:.4f}")
    return "\n".join([*lines, str(pruned.folder)])
