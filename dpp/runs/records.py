"""What is kept of runs in `results/`: two tables that a person can open in a spreadsheet.

`runs.csv` has a row for each run: its experiment, results, seconds, commit, versions and device;
`epochs.csv` has a row for each epoch and later stage of each run. Notebooks read them, so that a
reader sees real numbers and nothing is trained twice; `retrain` trains all the same.
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
from dpp.system.errors import UserError, one_line
from dpp.training.experiments import Experiment

RUNS, EPOCHS = "runs.csv", "epochs.csv"
NUMBERS = {"validation_accuracy", "seconds", "seed", "epoch", "loss", "accuracy", "kernel_size"}
REMEDY = "restore it, or make it again with make reproduce"


class RunRecord(NamedTuple):
    """What is known of a run without its weights."""

    summary: dict  # its row of `runs.csv`
    metrics: pd.DataFrame  # its rows of `epochs.csv`


def get(experiment: Experiment | Ensemble, *, retrain: bool = False, **options) -> RunRecord:
    """The record of an experiment: the stored one, or else that of its run, which is then stored.

    Args:
        retrain: ignore stored records; find or train the run.
        options: of `runs.run`.
    """
    record = None if retrain else stored(experiment)
    if record is None:
        run = ensembles.module_of(experiment).run(experiment, **options)
        store(run)
        record = stored(run.experiment)
    return record


def stored(experiment: Experiment | Ensemble) -> RunRecord | None:
    """The record of an experiment in `results/`, if there is one; see `folder`."""
    summaries, epochs = (read(folder(experiment.profile) / name) for name in (RUNS, EPOCHS))
    rows = summaries[summaries.run == experiment.name]
    if rows.empty:
        return None
    metrics = epochs[epochs.run == experiment.name].drop(columns="run")
    if metrics.empty:
        path = folder(experiment.profile) / EPOCHS
        raise UserError(f"{path} has no rows of {experiment.name}, which {RUNS} has: {REMEDY}")
    metrics = metrics.dropna(axis="columns", how="all").reset_index(drop=True)
    return RunRecord(rows.iloc[0].to_dict(), metrics)


def of_run(run: runs.Run | EnsembleRun) -> RunRecord:
    """The record of a finished run, which need not be stored."""
    return RunRecord(_summary(run), run.metrics)


def folder(profile: str) -> Path:
    """Where records of a profile are read: under `DPP_RESULTS`, or if there are none, committed.

    So a profile that is being reproduced can be shown beside another that is not; `begin` keeps the
    committed records of the first one out.
    """
    own = paths.results(profile)
    return own if (own / RUNS).is_file() else paths.RESULTS / profile


def begin(profile: str) -> None:
    """Makes an empty table of records under `DPP_RESULTS`, unless there is one."""
    path = paths.results(profile) / RUNS
    if not path.is_file():
        replace_rows(path, pd.DataFrame({"run": []}))


def store(*finished: runs.Run | EnsembleRun) -> None:
    """Puts the records of runs into `results/`, in place of older ones of the same experiments."""
    for profile in {run.experiment.profile for run in finished}:
        of_profile = [run for run in finished if run.experiment.profile == profile]
        metrics = [run.metrics.assign(run=run.experiment.name) for run in of_profile]
        replace_rows(paths.results(profile) / RUNS, pd.DataFrame(map(_summary, of_profile)))
        replace_rows(paths.results(profile) / EPOCHS, pd.concat(metrics))


def _summary(run: runs.Run | EnsembleRun) -> dict:
    experiment, manifest = run.experiment, run.manifest
    facts = {k: v for k, v in manifest.items() if not isinstance(v, dict)}
    return {"run": experiment.name} | experiment.row | manifest["results"] | facts


def read(path: Path) -> pd.DataFrame:
    """A table of records, to be read only; an empty one if there is none."""
    if not path.is_file():
        return pd.DataFrame({"run": []})
    status = path.stat()
    return _parse(path, status.st_mtime_ns, status.st_ino)


@functools.lru_cache(maxsize=8)
def _parse(path: Path, *version: int) -> pd.DataFrame:
    """The table in one version of its file, cached: the paper's tables read it for each cell."""
    try:
        content = path.read_bytes()
        table = pd.read_csv(io.BytesIO(content))
        accuracy = table.get("test_accuracy", pd.Series(dtype=float)).astype(float)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({one_line(error)}): {REMEDY}") from error
    if not content.endswith(b"\n"):
        raise UserError(f"{path} is damaged (it ends within a line): {REMEDY}")
    needed = {"run", "test_accuracy", "seconds"} if path.name == RUNS and len(table) else {"run"}
    if lacking := sorted(needed - set(table)):
        raise UserError(f"{path} is damaged (it has no column {lacking[0]}): {REMEDY}")
    for name in NUMBERS.intersection(table):
        if len(table) and not pd.api.types.is_numeric_dtype(table[name]):
            raise UserError(f"{path} is damaged (column {name} has other than numbers): {REMEDY}")
    wrong = accuracy.index[accuracy.notna() & ~accuracy.between(0, 1)]
    if len(wrong):
        raise UserError(
            f"{path} has an accuracy outside 0 to 1 for {table.run[wrong[0]]}: {REMEDY}"
        )
    return table


def set_aside_damaged(profile: str) -> list[str]:
    """Renames tables of records that cannot be read; they can be made again from the runs.

    Returns:
        A message for each.
    """
    messages = []
    for path in (paths.results(profile) / name for name in (RUNS, EPOCHS)):
        try:
            read(path)
        except UserError as error:
            aside = path.rename(path.with_suffix(".damaged.csv"))
            messages.append(f"{error}. Set aside as {aside.name}, and made again from the runs")
    return messages


def differences(profile: str) -> pd.DataFrame:
    """Differences of the current accuracies from the committed ones, in percentage points.

    Returns:
        For each run that is in both: run, committed, now, difference.
    """
    columns = ["run", "test_accuracy"]
    committed, current = (
        read(folder / RUNS).reindex(columns=columns)
        for folder in (paths.RESULTS / profile, paths.results(profile))
    )
    both = committed.merge(current, on="run", suffixes=("_committed", "_now")).dropna()
    both = both.rename(columns=lambda name: name.removeprefix("test_accuracy_"))
    both[["committed", "now"]] *= 100
    return both.assign(difference=both.now - both.committed)


def replace_rows(path: Path, rows: pd.DataFrame) -> None:
    """Replaces the rows of some runs in a table, which is sorted by the runs' names."""
    with files.locked(path.parent):  # notebooks store records side by side
        table = read(path)
        table = pd.concat([table[~table.run.isin(rows.run)], rows], ignore_index=True)
        table = table[["run", *table.columns.drop("run")]].sort_values("run", kind="stable")
        buffer = io.StringIO()
        table.to_csv(buffer, index=False, float_format="%.6g", lineterminator="\n")
        files.write_file(path, buffer.getvalue().encode())
