"""What is kept of runs in `results/`: two tables that a person can open in a spreadsheet.

`runs.csv` has a row for each run: its experiment, results, seconds, commit, versions and device;
`epochs.csv` has a row for each epoch and later stage of each run. Notebooks read them, so that a
reader sees real numbers and nothing is trained twice; whoever wants to train asks for it.
"""

import io
from typing import NamedTuple

import pandas as pd

from dpp import checkpoints, ensembles, paths, runs
from dpp.ensembles import Ensemble, EnsembleRun
from dpp.experiments import Experiment

RUNS, EPOCHS = "runs.csv", "epochs.csv"


class Record(NamedTuple):
    """What is known of a run without its weights."""

    summary: dict  # its row of `runs.csv`
    metrics: pd.DataFrame  # its rows of `epochs.csv`


def get(experiment: Experiment | Ensemble, *, retrain: bool = False, **options) -> Record:
    """The record of an experiment: the stored one, or else that of its run, which is then stored.

    Args:
        retrain: look at no stored record, but find or train the run.
        options: of `runs.run`.
    """
    found = None if retrain else stored(experiment)
    if found is None:
        run = (ensembles if isinstance(experiment, Ensemble) else runs).run(experiment, **options)
        store(run)
        found = stored(run.experiment)
    return found


def stored(experiment: Experiment | Ensemble) -> Record | None:
    """The record of an experiment in `results/`, if there is one."""
    summaries, epochs = (_read(experiment.profile, name) for name in (RUNS, EPOCHS))
    mine = summaries[summaries.run == experiment.name]
    if mine.empty:
        return None
    metrics = epochs[epochs.run == experiment.name].dropna(axis="columns", how="all")
    return Record(mine.iloc[0].to_dict(), metrics.drop(columns="run").reset_index(drop=True))


def store(run: runs.Run | EnsembleRun) -> None:
    """Puts a run's record into `results/`, in place of an older one of the same experiment."""
    experiment, manifest = run.experiment, run.manifest
    figures = {k: v for k, v in manifest.items() if not isinstance(v, dict)}
    summary = {"run": experiment.name} | experiment.row | manifest["results"] | figures
    _replace(experiment, RUNS, pd.DataFrame([summary]))
    metrics = run.metrics
    metrics.insert(0, "run", experiment.name)
    _replace(experiment, EPOCHS, metrics)


def _read(profile: str, name: str) -> pd.DataFrame:
    path = paths.RESULTS / profile / name
    return pd.read_csv(path) if path.is_file() else pd.DataFrame({"run": []})


def _replace(experiment: Experiment | Ensemble, name: str, rows: pd.DataFrame) -> None:
    """Rows of one run in a table: the table stays in the order of the runs' names."""
    table = _read(experiment.profile, name)
    table = pd.concat([table[table.run != experiment.name], rows], ignore_index=True)
    table = table.sort_values("run", kind="stable")
    buffer = io.StringIO()
    table.to_csv(buffer, index=False, float_format="%.6g", lineterminator="\n")
    checkpoints.write_file(paths.RESULTS / experiment.profile / name, buffer.getvalue().encode())
