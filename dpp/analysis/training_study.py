"""What the records of training say: losses at turning points, accuracy by stage, what is left."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from dpp.runs import Run, records
from dpp.runs.records import RunRecord
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment

LOSSES = ("cross_entropy", "cluster", "separation", "orthogonality")
PANELS = {  # of `figures.training_curves`
    "cross entropy of a batch": ["cross_entropy"],
    "cluster": ["cluster"],
    "separation": ["separation"],
    "orthogonality": ["orthogonality"],
    "accuracy": ["accuracy", "validation_accuracy"],
    "median offset, cells": ["validation_offset"],
}
KINDS = {"deformable": {}, "rigid": {"deformable": False}, "plain CNN": {"model": "cnn"}}
Stored = Mapping[str, Mapping[str, RunRecord | None]]  # by kind and backbone
STAGES = {"train": "stage 1", "project": "stage 2", "last layer": "stage 3"}


def usual_backbones(profile: str) -> list[str]:
    """The two networks whose training is compared where none are chosen."""
    full = profile in ("photo", "paper")
    return ["resnet34", "vgg16"] if full else ["slim_resnet34", "slim_vgg16_bn"]


def records_by_kind(
    profile: str, *, backbones: Sequence[str], retrain: bool = False, **changes
) -> Stored:
    """Records of a deformable network, its rigid twin and a plain CNN on each backbone.

    Args:
        profile: whose experiments.
        backbones: by name.
        retrain: find or train the runs instead of reading the stored records.
        changes: of every experiment.
    """
    return {
        kind: {
            backbone: records.get(
                make_experiment(profile, backbone=backbone, **(changes | own)), retrain=retrain
            )
            for backbone in backbones
        }
        for kind, own in KINDS.items()
    }


def records_of(run: Run) -> Stored:
    """The same of one finished run; its twins are those that are stored, or None."""
    experiment = run.experiment
    if experiment.model != "deformable":
        raise UserError(
            f"{run.folder} is a {experiment.model}: give a run of the model deformable, whose "
            "training has all three stages"
        )
    shared = {name: getattr(experiment, name) for name in ("backbone", "data", "seed")}
    twins = {
        "rigid": replace(experiment, deformable=False),
        "plain CNN": make_experiment(experiment.profile, model="cnn", **shared),
    }
    stored = {"deformable": {experiment.backbone: records.of_run(run)}}
    return stored | {k: {experiment.backbone: records.stored(e)} for k, e in twins.items()}


def losses_at_turns(metrics: pd.DataFrame) -> pd.DataFrame:
    """The losses of the first epoch, of the one before the first projection and of the last, with
    the gap between cluster and separation: how much nearer an image is to its own class."""
    epochs = metrics[metrics.stage == "train"].set_index("epoch")
    projected = metrics.epoch[metrics.stage == "project"].min()
    turns = epochs.loc[[epochs.index.min(), projected, epochs.index.max()], list(LOSSES)]
    return turns.assign(gap=-turns.cluster - turns.separation)


def jump_at_projection(metrics: pd.DataFrame) -> pd.Series:
    """How the losses change from the epoch before the first projection to the one after it.

    NaN if the first projection is the last thing that was done.
    """
    epochs = metrics[metrics.stage == "train"].set_index("epoch")
    projected = metrics.epoch[metrics.stage == "project"].min()
    losses = epochs[list(LOSSES[1:])].astype(float)
    return losses.diff().reindex([projected + 1]).iloc[0]


def accuracy_by_stage(stored: Stored) -> pd.DataFrame:
    """Test accuracies, a row for each backbone.

    Args:
        stored: records by backbone, of "deformable" networks, whose last epoch is followed through
            its stages, and of others, of which the result is given: NaN without a record.
    """
    rows = {}
    for backbone, record in stored["deformable"].items():
        metrics = record.metrics
        final = metrics[metrics.epoch == metrics.epoch.max()].set_index("stage").test_accuracy
        others = {
            name: found[backbone].summary["test_accuracy"] if found[backbone] else float("nan")
            for name, found in stored.items()
            if name != "deformable"
        }
        rows[backbone] = final.rename(STAGES).to_dict() | others
    return pd.DataFrame(rows).T


def left_behind(record: RunRecord) -> dict[str, float]:
    """Of a finished network: prototypes, images that they come from, connections that are zero."""
    summary, metrics = record.summary, record.metrics
    return {
        "prototypes": summary["classes"] * summary["per_class"],
        "source images": metrics.source_images.dropna().iloc[-1],
        "zero connections": metrics.zero_connections.dropna().iloc[-1],
    }
