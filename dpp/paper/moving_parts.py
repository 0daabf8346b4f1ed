"""The study of notebook 13: do parts follow the pose? Its experiments, records and intervals.

The study needs a network in which a part means something: `LOCAL` cuts a slim ResNet-34 after the
first block of its third stage, so that a cell sees a part of the bird and not all of it, and keeps
the layers before that stage as they were pretrained, whose features are computed once, as in photo.
Everything else is mini's. Each run becomes one row of `following.csv` under `results/`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from dpp import runs
from dpp.analysis import following_study
from dpp.networks import released
from dpp.runs import records
from dpp.system import paths
from dpp.training.experiments import Experiment, make_experiment

FOLLOWING, FOLLOWING_EPOCHS = "following.csv", "following_epochs.csv"
LOCAL = {
    "kernel_size": 2,
    "cut_after": "layer3.0",
    "frozen_trunk": "layer2",
    "views": 4,
    "prototype_start": "features",
    "offset_start": "he",
}
KINDS = {
    "rigid": {"deformation": "none", "offset_start": "normal"},
    "predicted": {"deformation": "predicted"},
    "search": {"deformation": "search", "search_reach": 2, "offset_start": "normal"},
}
STARTS = {  # of the offset branch
    "He, zero": {},
    "normal, 2e-5": {"offset_start": "normal", "offset_deviation": 2e-5},
    "normal, 0.01": {"offset_start": "normal", "offset_deviation": 0.01},
    "He, zero; a tenth of the rate": {"offset_rate": 5e-4},
    "He, zero; input times 64": {"variant": "released:large_features"},
}
EVERY_SWITCH = "all"
CHART_POSE = 1.5  # of everything that is not drawn along the pose


def design(kind: str, pose: float, seed: int, **changes) -> Experiment:
    """An experiment of the study: `rigid`, `predicted` or `search` on birds of some pose."""
    fields = LOCAL | KINDS[kind] | {"pose": pose, "seed": seed} | changes
    return make_experiment("mini", **fields)


def switched(switch: str, pose: float, seed: int) -> Experiment:
    """An experiment with one departure of the released code, or all, or (empty) none."""
    variant = {"": "paper", EVERY_SWITCH: "released"}.get(switch, f"released:{switch}")
    return design("predicted", pose, seed, variant=variant)


def switches() -> list[str]:
    """The departures that change these networks: all but one that needs a file of weights."""
    return [name for name in released.NAMES if name != "stacked_branch"]


def collect(
    experiments: Iterable[Experiment],
    *,
    recompute: bool = False,
    study: Callable[[runs.Run], dict[str, float]] = following_study.study,
    **options,
) -> pd.DataFrame:
    """A row of measures for each experiment; what is not stored is left out, or computed.

    Args:
        experiments: of the study.
        recompute: train or find the runs that have no row, measure and store them.
        study: what measures a run.
        options: of `runs.run`.

    Returns:
        The rows of `following.csv` of these experiments, in their order, with `kind`.
    """
    found = []
    for experiment in experiments:
        rows = stored(experiment, FOLLOWING)
        if rows.empty and recompute:
            store(runs.run(experiment, **options), study)
            rows = stored(experiment, FOLLOWING)
        found.append(rows.assign(kind=kind_of(experiment)))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame({"run": []})


def kind_of(experiment: Experiment) -> str:
    """`rigid`, `predicted` or `search`."""
    return experiment.deformation if experiment.deformable else "rigid"


def stored(experiment: Experiment, name: str) -> pd.DataFrame:
    """The rows of a run in one of the study's tables."""
    path = paths.results(experiment.profile) / name
    table = records.read(path if path.is_file() else paths.RESULTS / experiment.profile / name)
    return table[table.run == experiment.name]


def store(run: runs.Run, study: Callable[[runs.Run], dict[str, float]]) -> None:
    """Measures a run and puts its row, and its epochs, into the study's tables."""
    folder = paths.results(run.experiment.profile)
    row = records.of_run(run).summary | study(run)
    records.replace_rows(folder / FOLLOWING, pd.DataFrame([row]))
    names = [*("stage", "epoch", "phase"), *EPOCH_COLUMNS]
    epochs = run.metrics.reindex(columns=names).assign(run=run.experiment.name)
    records.replace_rows(folder / FOLLOWING_EPOCHS, epochs)


EPOCH_COLUMNS = ("validation_offset", "validation_active", "offset_gradient")


class Interval(NamedTuple):
    """A mean over seeds, and the 95 % interval of Student's t around it."""

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        if self.count < 2:
            return f"{self.mean:.1f} (one run)" if self.count else "not run"
        return f"{self.mean:.1f} [{self.low:.1f}, {self.high:.1f}]"

    @property
    def sign(self) -> int:
        """1 or -1 if the whole interval is above or below zero, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def interval(values: Sequence[float], share: float = 0.95) -> Interval:
    """The mean of some values, one for each seed, and its interval by Student's t."""
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    if len(known) < 2:
        mean = float(known.mean()) if len(known) else np.nan
        return Interval(mean, np.nan, np.nan, len(known))
    error = known.std(ddof=1) / len(known) ** 0.5
    half = stats.t.ppf((1 + share) / 2, len(known) - 1) * error
    return Interval(
        float(known.mean()), float(known.mean() - half), float(known.mean() + half), len(known)
    )


def paired(
    table: pd.DataFrame, column: str, before: str, after: str, scale: float = 100
) -> Interval:
    """By how much a measure of kind `after` exceeds that of kind `before`, seed by seed."""
    by_seed = table.pivot_table(index=["pose", "seed"], columns="kind", values=column)
    gaps = by_seed.reindex(columns=[before, after]).dropna()
    return interval(scale * (gaps[after] - gaps[before]))


def along_pose(table: pd.DataFrame, column: str, scale: float = 100) -> pd.DataFrame:
    """A measure by `kind` and `pose`: `mean`, `low` and `high`."""
    groups = table.groupby(["kind", "pose"])[column]
    rows = {key: interval(scale * values)._asdict() for key, values in groups}
    found = pd.DataFrame.from_dict(rows, orient="index")
    found.index = pd.MultiIndex.from_tuples(found.index, names=["kind", "pose"])
    return found
