"""What the records of training say: losses at turning points, accuracy by stage, what is left."""

from collections.abc import Mapping

import pandas as pd

from dpp.runs.records import RunRecord

LOSSES = ("cross_entropy", "cluster", "separation", "orthogonality")
PANELS = {  # of `figures.training_curves`
    "cross entropy of a batch": ["cross_entropy"],
    "cluster": ["cluster"],
    "separation": ["separation"],
    "orthogonality": ["orthogonality"],
    "accuracy": ["accuracy", "validation_accuracy"],
    "median offset, cells": ["validation_offset"],
}
STAGES = {"train": "stage 1", "project": "stage 2", "last layer": "stage 3"}


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


def accuracy_by_stage(stored: Mapping[str, Mapping[str, RunRecord]]) -> pd.DataFrame:
    """Test accuracies, a row for each backbone.

    Args:
        stored: records by backbone, of "deformable" networks, whose last epoch is followed through
            its stages, and of others, of which the result is given.
    """
    rows = {}
    for backbone, record in stored["deformable"].items():
        metrics = record.metrics
        final = metrics[metrics.epoch == metrics.epoch.max()].set_index("stage").test_accuracy
        others = {
            name: records[backbone].summary["test_accuracy"]
            for name, records in stored.items()
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
