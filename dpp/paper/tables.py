"""The numbers of the paper's tables beside those of stored runs, one row for each cell.

    cells = {("Def. ProtoPNet (2x2)", "Res34"): [make_experiment("mini", seed=s) for s in range(3)]}
    frame = compare("table1", cells)

Reported numbers are in `results/paper/`, in percent as printed. Regenerated ones come from the
records of runs, which this module reads and never makes: a cell without any reads "not run".
`dpp.paper.layout` arranges such a frame as on the page.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

import pandas as pd

from dpp.runs import records
from dpp.runs.ensembles import Ensemble
from dpp.system import paths
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment

Cells = Mapping[tuple[str, str], Sequence[Experiment | Ensemble]]  # runs by row and column

NOT_RUN, ONE_RUN, QUOTED = "not run", "one run", "quoted"
ELSEWHERE = (
    "B-CNN",
    "CAM",
    "CSG",
    "PA-CNN",
    "MG-CNN",
    "MA-CNN",
    "RA-CNN",
    "TASN",
    "Region",
    "FCAN",
)
TITLES = {
    "table1": "Table 1: accuracy by backbone, CUB-200-2011",
    "table2": "Table 2: ablations with 2x2 prototypes, ResNet-50, CUB-200-2011",
    "table3": "Table 3: accuracy and interpretability, CUB-200-2011 and Stanford Dogs",
    "dogs_backbones": "Supplement: accuracy by backbone, Stanford Dogs",
    "dogs_models": "Supplement: accuracy and interpretability, Stanford Dogs",
}
PHOTOGRAPHS = {"cub": 5794, "dogs": 8580}  # test images of the paper's data sets
REGENERATED = ["row", "column", "profile", "mean", "deviation", "runs", "planned", "comparable"]


def reported(table: str) -> pd.DataFrame:
    """A table of the paper as printed, a row for each cell.

    Args:
        table: one of `TITLES`.

    Returns:
        Columns table, group (of rows, "" if there is one only), row, column, value (in percent),
        mark (what is printed after it: *, (bb) or (f)), bold, and row_mark and row_bold of the
        row's name.
    """
    if table not in TITLES:
        raise UserError(f"there is no table {table!r}: choose one of {', '.join(TITLES)}")
    # A group is called "None", which is no missing value.
    return pd.read_csv(paths.RESULTS / "paper" / f"{table}.csv", keep_default_na=False)


def regenerated(cells: Cells) -> pd.DataFrame:
    """The stored accuracies of the runs of some cells.

    Args:
        cells: for each row and column, experiments that differ in their seeds alone.

    Returns:
        Columns row, column, profile, mean and deviation (in percent, sample standard deviation),
        runs (how many are stored), planned (how many were asked for) and comparable (whether they
        are tested on the images of the paper). Without a run the mean is missing, and with fewer
        than two the deviation is.
    """
    rows = [_regenerate(key, experiments) for key, experiments in cells.items()]
    return pd.DataFrame(rows, columns=REGENERATED)


def _regenerate(key: tuple[str, str], experiments: Sequence[Experiment | Ensemble]) -> tuple:
    profiles = sorted({experiment.profile for experiment in experiments})
    if len(profiles) > 1:
        raise UserError(f"{key}: cannot average runs of {' and '.join(profiles)}: choose one")
    if len({experiment.name for experiment in experiments}) < len(experiments):
        raise UserError(f"{key}: the same experiment is listed twice: give each its own seed")
    stored = filter(None, map(records.stored, experiments))
    shares = [100 * record.summary["test_accuracy"] for record in stored]
    mean = fmean(shares) if shares else None
    deviation = stdev(shares) if len(shares) > 1 else None
    comparable = bool(experiments) and all(_data(plan) in PHOTOGRAPHS for plan in experiments)
    return *key, "".join(profiles), mean, deviation, len(shares), len(experiments), comparable


def _data(plan: Experiment | Ensemble) -> str:
    return plan.members[0].data if isinstance(plan, Ensemble) else plan.data


def compare(table: str, cells: Cells) -> pd.DataFrame:
    """A table of the paper beside what was run, a row for each cell in the paper's order.

    Args:
        table: one of `TITLES`.
        cells: of `regenerated`. Rows that a table prints twice, as Table 2 does, get the same
            runs; cells that are not given are "not run".

    Returns:
        The columns of `reported`, whose value is now called reported, and of `regenerated`; and
        regenerated (mean, deviation and n as text, or "not run"), difference (mean less reported,
        missing unless the runs are comparable: drawn birds are not CUB) and best (whether no other
        mean of its group and column prints higher).
    """
    printed = reported(table).rename(columns={"value": "reported"})
    keys = dict.fromkeys(zip(printed.row, printed.column, strict=True))
    if unknown := [key for key in cells if key not in keys]:
        near = [key for key in keys if set(key) & set(unknown[0])] or list(keys)
        raise UserError(f"{table} has no cell {unknown[0]}: choose one of {near}")
    ran = regenerated({key: cells.get(key, ()) for key in keys})
    frame = printed.merge(ran.astype({"mean": float, "deviation": float}), on=["row", "column"])
    frame["regenerated"] = [_regenerated_text(cell) for cell in frame.itertuples()]
    frame["difference"] = (frame["mean"] - frame.reported).where(frame.comparable)
    shown = frame["mean"].round(1)
    frame["best"] = shown == shown.groupby([frame.group, frame.column]).transform("max")
    return frame


def _regenerated_text(cell) -> str:
    if not cell.runs:
        return QUOTED if cell.row in ELSEWHERE else NOT_RUN
    spread = f" ± {cell.deviation:.1f}" if cell.runs > 1 else ""
    missing = f" of {cell.planned}" if cell.runs < cell.planned else ""
    return f"{cell.mean:.1f}{spread} (n = {cell.runs}{missing})"


def gain(frame: pd.DataFrame, before: str, after: str, columns: Sequence[str] = ()) -> float:
    """By how much one row's reported numbers are above another's, on average over the columns."""
    by_row = frame.drop_duplicates(["row", "column"]).set_index(["row", "column"]).reported
    gains = by_row[after] - by_row[before]
    return float((gains[list(columns)] if columns else gains).mean())


def by_stage(cells: Cells, rows: Sequence[str], column: str) -> pd.DataFrame:
    """Accuracies along a run, in percent, on average over the stored runs of each cell.

    Args:
        cells: of single networks.
        rows, column: of the cells.

    Returns:
        A line for each row with a run: how many `runs`; which share of the `training` images was
        right in the last epoch; and of test images when `trained`, `projected`, and `fitted`, with
        the last layer. `sources`: from how many images prototypes were projected.
    """
    lines = {}
    for row in rows:
        stored = filter(None, map(records.stored, cells[row, column]))
        ends = [one.metrics.groupby("stage").last() for one in stored]
        if ends:
            shares = 100 * sum(one[["accuracy", "test_accuracy"]] for one in ends) / len(ends)
            lines[row] = {"runs": len(ends), "training": shares.accuracy["train"]}
            stages = {"trained": "train", "projected": "project", "fitted": "last layer"}
            lines[row] |= {name: shares.test_accuracy[end] for name, end in stages.items()}
            lines[row]["sources"] = fmean(one.source_images["project"] for one in ends)
    return pd.DataFrame.from_dict(lines, orient="index")


def provenance(cells: Cells) -> str:
    """Where the numbers of some cells come from, in a line."""
    experiments = {plan.name: plan for planned in cells.values() for plan in planned}
    summaries = [r.summary for r in map(records.stored, experiments.values()) if r]
    if not summaries:
        return "No run is stored."

    def all_of(name: str) -> str:
        return ", ".join(sorted({str(summary.get(name, "unknown")) for summary in summaries}))

    seconds = sum(summary["seconds"] for summary in summaries if summary["model"] != "ensemble")
    days = sorted(str(summary.get("finished", "unknown"))[:10] for summary in summaries)
    return (
        f"{len(summaries)} of {len(experiments)} runs, finished {days[0]} to {days[-1]} "
        f"at commit {all_of('commit')} with torch {all_of('torch')} and the {all_of('operator')} "
        f"operator on {all_of('device')}, {all_of('threads')} thread each, "
        f"{seconds:,.0f} s of training. Each is a row of `{records.RUNS}`, "
        "which has its experiment, versions and run folder."
    )
