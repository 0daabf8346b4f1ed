"""What is kept of runs in `results/`: two tables that a person can open in a spreadsheet.

`runs.csv` has a row for each run: its experiment, results, seconds, commit, versions and device;
`epochs.csv` has a row for each epoch and later stage of each run. Notebooks read them, so that a
reader sees real numbers and nothing is trained twice; whoever wants to train asks for it.
"""

import functools
import io
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from dpp import runs
from dpp.runs import ensembles
from dpp.runs.ensembles import Ensemble, EnsembleRun
from dpp.system import files, paths
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment

RUNS, EPOCHS = "runs.csv", "epochs.csv"
MEND = "restore it, or make it anew with make reproduce"


class RunRecord(NamedTuple):
    """What is known of a run without its weights."""

    summary: dict  # its row of `runs.csv`
    metrics: pd.DataFrame  # its rows of `epochs.csv`


def get(experiment: Experiment | Ensemble, *, retrain: bool = False, **options) -> RunRecord:
    """The record of an experiment: the stored one, or else that of its run, which is then stored.

    Args:
        retrain: look at no stored record, but find or train the run.
        options: of `runs.run`.
    """
    found = None if retrain else stored(experiment)
    if found is None:
        run = ensembles.module_of(experiment).run(experiment, **options)
        store(run)
        found = stored(run.experiment)
    return found


def stored(experiment: Experiment | Ensemble) -> RunRecord | None:
    """The record of an experiment in `results/`, if there is one."""
    summaries, epochs = (read(paths.results(experiment.profile) / name) for name in (RUNS, EPOCHS))
    mine = summaries[summaries.run == experiment.name]
    if mine.empty:
        return None
    metrics = epochs[epochs.run == experiment.name].dropna(axis="columns", how="all")
    return RunRecord(mine.iloc[0].to_dict(), metrics.drop(columns="run").reset_index(drop=True))


def store(*finished: runs.Run | EnsembleRun) -> None:
    """Puts the records of runs into `results/`, in place of older ones of the same experiments."""
    for profile in {run.experiment.profile for run in finished}:
        mine = [run for run in finished if run.experiment.profile == profile]
        metrics = [run.metrics.assign(run=run.experiment.name) for run in mine]
        _replace(paths.results(profile) / RUNS, pd.DataFrame([_summary(run) for run in mine]))
        _replace(paths.results(profile) / EPOCHS, pd.concat(metrics))


def _summary(run: runs.Run | EnsembleRun) -> dict:
    experiment, manifest = run.experiment, run.manifest
    figures = {k: v for k, v in manifest.items() if not isinstance(v, dict)}
    return {"run": experiment.name} | experiment.row | manifest["results"] | figures


def read(path: Path) -> pd.DataFrame:
    """A table of records, to be read only; an empty one if there is none."""
    if not path.is_file():
        return pd.DataFrame({"run": []})
    status = path.stat()
    return _parse(path, status.st_mtime_ns, status.st_ino)


@functools.lru_cache(maxsize=8)
def _parse(path: Path, *version: int) -> pd.DataFrame:
    """A table as it was in one version of its file: tables of the paper read it for each cell."""
    try:
        table = pd.read_csv(path)
        accuracy = table.get("test_accuracy", pd.Series(dtype=float)).astype(float)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}): {MEND}") from error
    if "run" not in table:
        raise UserError(f"{path} is damaged (it has no column run): {MEND}")
    wrong = accuracy.index[accuracy.notna() & ~accuracy.between(0, 1)]
    if len(wrong):
        raise UserError(f"{path} has an accuracy that is none, of {table.run[wrong[0]]}: {MEND}")
    return table


def set_aside_damaged(profile: str) -> list[str]:
    """Renames tables of records that cannot be read; their runs' folders have all that was there.

    Returns:
        What was done, a line for each.
    """
    said = []
    for path in (paths.results(profile) / name for name in (RUNS, EPOCHS)):
        try:
            read(path)
        except UserError as error:
            aside = path.rename(path.with_suffix(".damaged.csv"))
            said.append(f"{error}. Set aside as {aside.name}, and made anew from the runs")
    return said


def differences(profile: str) -> pd.DataFrame:
    """How accuracies now differ from those that are committed, in percentage points.

    Returns:
        For each run that is in both: run, committed, now, difference.
    """
    columns = ["run", "test_accuracy"]
    there, here = (
        read(folder / RUNS).reindex(columns=columns)
        for folder in (paths.RESULTS / profile, paths.results(profile))
    )
    both = there.merge(here, on="run", suffixes=("_committed", "_now")).dropna()
    both = both.rename(columns=lambda name: name.removeprefix("test_accuracy_"))
    both[["committed", "now"]] *= 100
    return both.assign(difference=both.now - both.committed)


def _replace(path: Path, rows: pd.DataFrame) -> None:
    """Rows of some runs in a table: the table stays in the order of the runs' names."""
    with files.locked(path.parent):  # notebooks store records side by side
        table = read(path)
        table = pd.concat([table[~table.run.isin(rows.run)], rows], ignore_index=True)
        table = table[["run", *table.columns.drop("run")]].sort_values("run", kind="stable")
        buffer = io.StringIO()
        table.to_csv(buffer, index=False, float_format="%.6g", lineterminator="\n")
        files.write_file(path, buffer.getvalue().encode())
