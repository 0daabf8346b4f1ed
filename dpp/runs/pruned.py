"""A finished run with fewer prototypes, as a new run beside it; `dpp prune RUN`.

Duplicates of a class become one prototype, unused prototypes are removed, and the last layer is
fitted again (`dpp.runs.pruning` has the criteria). The original run stays as it is.
"""

import time
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from dpp.runs import derived, pruning
from dpp.runs.finished import Run, choose_device
from dpp.runs.making import trainer_of
from dpp.system.errors import UserError
from dpp.training import last_layer

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
        run: of one of `derived.MODELS`, not pruned itself.
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
    if existing := derived.find_same(folder, "pruned_from", source_run):
        return existing

    model = run.load_model(choose_device(device))
    trainer = trainer_of(run.experiment, model, run.source)
    before = derived.measure_before(trainer)
    scores, labels = last_layer.cache_scores(trainer)
    begun = time.perf_counter()
    selection = remove(model, scores, labels, tolerance, keep_unused)
    kept = selection.kept
    rows = [derived.record("prune", trainer, begun, prototypes=len(kept))]
    rows.append(derived.fit_last_layer(run.experiment, trainer, scores[:, kept], labels))
    derived.keep_origins(run, trainer, kept)
    facts = {"pruned_from": source_run, "before": before, "removed": selection.removed}
    return derived.write(run, trainer, folder, rows, kept, **facts)


def check(run: Run, tolerance: float) -> dict:
    """The manifest of a run that can be pruned, verified; a `UserError` for any other."""
    if not 0 <= tolerance < 1:
        raise UserError(f"tolerance: expected a number from 0 to below 1, got {tolerance:g}")
    derived.check_kind(run, "pruned")
    manifest = run.manifest
    if "pruned_from" in manifest:
        raise UserError(
            f"{run.folder} is pruned already: prune the original, "
            f"{manifest['pruned_from']['run']}, with other options instead"
        )
    run.verify()
    return manifest


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


def as_text(pruned: Run) -> str:
    """The number of prototypes and the accuracies before and after, and where the run is."""
    removed = pruned.manifest["removed"]
    duplicates = sum(one["reason"].startswith("duplicate") for one in removed)
    counts = f"duplicates merged: {duplicates}, unused removed: {len(removed) - duplicates}"
    return f"{derived.describe_change(pruned.manifest, counts)}\n{pruned.folder}"
