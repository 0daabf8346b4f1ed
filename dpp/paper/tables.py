"""The paper's tables beside what was run: reported, regenerated, and the difference.

    cells = {("Def. ProtoPNet (2x2)", "Res34"): [make_experiment("mini", seed=s) for s in range(3)]}
    frame = compare("table1", cells)
    write(frame, paths.RESULTS / "mini" / "tables", "table1")

Reported numbers are in `results/paper/`, one row for each cell, in percent as printed. Regenerated
ones come from the records of runs, which this module reads and never makes: a cell without any
reads "not run".
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

import pandas as pd

from dpp.runs import records
from dpp.runs.ensembles import Ensemble
from dpp.system import files, paths
from dpp.system.errors import UserError
from dpp.system.profiles import PROFILES
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
ABBREVIATIONS = {
    "table1": "nd: no deformations. *: retrained by the paper's authors on full images.",
    "table3": "bb: bounding boxes. f: full images. nd: no deformations. 2p, 3p: 2x2, 3x3 "
    "prototypes. pc: prototypes of a class. *: 3 models ensembled. **: 5 models ensembled.",
    "dogs_backbones": "nd: no deformations.",
    "dogs_models": "nd: no deformations.",
}
READING = (
    "Accuracy in percent. Regenerated: the mean ± the standard deviation over n runs. "
    "Difference: regenerated less reported, in percentage points. "
    "Bold: as the paper prints it, and the best of those that were run in a group and column. "
    "Quoted: a number that the paper took from another, of a method that is not trained here."
)
REGENERATED = ["row", "column", "profile", "mean", "deviation", "runs", "planned"]


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
    """What the stored records of runs say of some cells.

    Args:
        cells: for each row and column, experiments that differ in their seeds alone.

    Returns:
        Columns row, column, profile, mean and deviation (in percent, sample standard deviation),
        runs (how many are stored) and planned (how many were asked for). Without a run the mean
        is missing, and with fewer than two the deviation is.
    """
    rows = [_regenerate(place, experiments) for place, experiments in cells.items()]
    return pd.DataFrame(rows, columns=REGENERATED)


def _regenerate(place: tuple[str, str], experiments: Sequence[Experiment | Ensemble]) -> tuple:
    profiles = sorted({experiment.profile for experiment in experiments})
    if len(profiles) > 1:
        raise UserError(f"{place}: runs of {' and '.join(profiles)} have no mean: choose one")
    if len({experiment.name for experiment in experiments}) < len(experiments):
        raise UserError(f"{place}: an experiment is there twice: give each a seed of its own")
    found = filter(None, map(records.stored, experiments))
    shares = [100 * record.summary["test_accuracy"] for record in found]
    mean = fmean(shares) if shares else None
    deviation = stdev(shares) if len(shares) > 1 else None
    return *place, "".join(profiles), mean, deviation, len(shares), len(experiments)


def compare(table: str, cells: Cells) -> pd.DataFrame:
    """A table of the paper beside what was run, a row for each cell in the paper's order.

    Args:
        table: one of `TITLES`.
        cells: of `regenerated`. Rows that a table prints twice, as Table 2 does, get the same
            runs; cells that are not given are "not run".

    Returns:
        The columns of `reported`, whose value is now called reported, and of `regenerated`; and
        regenerated (mean, deviation and n as text, or "not run"), difference (mean less reported)
        and best (whether no other mean of its group and column prints higher).
    """
    printed = reported(table).rename(columns={"value": "reported"})
    places = dict.fromkeys(zip(printed.row, printed.column, strict=True))
    if unknown := [place for place in cells if place not in places]:
        near = [place for place in places if set(place) & set(unknown[0])] or list(places)
        raise UserError(f"{table} has no cell {unknown[0]}: choose of {near}")
    ran = regenerated({place: cells.get(place, ()) for place in places})
    frame = printed.merge(ran.astype({"mean": float, "deviation": float}), on=["row", "column"])
    frame["regenerated"] = [_regenerated_text(cell) for cell in frame.itertuples()]
    frame["difference"] = frame["mean"] - frame.reported
    shown = frame["mean"].round(1)
    frame["best"] = shown == shown.groupby([frame.group, frame.column]).transform("max")
    return frame


def gain(frame: pd.DataFrame, before: str, after: str) -> float:
    """By how much one row's reported numbers are above another's, on average over the columns."""
    by_row = frame.drop_duplicates(["row", "column"]).set_index(["row", "column"]).reported
    return float((by_row[after] - by_row[before]).mean())


def in_paper_shape(frame: pd.DataFrame, what: str = "regenerated") -> pd.DataFrame:
    """One column of `compare` laid out as on the page, missing where the paper prints nothing."""
    wide = frame.pivot(index=["group", "row"], columns="column", values=what)
    index = pd.MultiIndex.from_frame(frame[["group", "row"]].drop_duplicates())
    return wide.reindex(index=index, columns=frame.column.unique())


def as_text(frame: pd.DataFrame) -> str:
    """For a terminal: in the paper's shape, what is reported and what came out in each cell."""
    ran = frame.regenerated.str.replace(r" \(n = .*", "", regex=True)
    printed = pd.Series([_reported_text(cell) for cell in frame.itertuples()], frame.index)
    both = frame.assign(both=printed + " | " + ran)
    blocks = [TITLES[frame.table[0]], "reported | regenerated"]
    for group, cells in both.groupby("group", sort=False):
        wide = (
            in_paper_shape(cells, "both").droplevel("group").rename_axis(index=None, columns=None)
        )
        blocks += [f"({group})"] * bool(group) + [wide.to_string(na_rep="")]
    return "\n".join(blocks)


def provenance(cells: Cells) -> str:
    """Where the numbers of some cells come from, in a line."""
    experiments = {plan.name: plan for planned in cells.values() for plan in planned}
    found = [r.summary for r in map(records.stored, experiments.values()) if r]
    if not found:
        return "No run is stored."

    def all_of(name: str) -> str:
        return ", ".join(sorted({str(summary.get(name, "unknown")) for summary in found}))

    seconds = sum(summary["seconds"] for summary in found if summary["model"] != "ensemble")
    days = sorted(str(summary.get("finished", "unknown"))[:10] for summary in found)
    return (
        f"{len(found)} of {len(experiments)} runs, made {days[0]} to {days[-1]} "
        f"at commit {all_of('commit')} with torch {all_of('torch')} and the {all_of('operator')} "
        f"operator on {all_of('device')}, threads of each: {all_of('threads')}; "
        f"{seconds:,.0f} s of training. Each is a row of {records.RUNS}, which names its folder."
    )


def write(frame: pd.DataFrame, folder: Path, name: str) -> None:
    """Writes what `compare` returned as CSV, as Markdown, and as LaTeX that compiles by itself."""
    for suffix, make in {"csv": as_csv, "md": as_markdown, "tex": as_latex}.items():
        files.write_file(Path(folder) / f"{name}.{suffix}", make(frame).encode())


def as_csv(frame: pd.DataFrame) -> str:
    """The columns of `compare` that hold one thing each; words where there is no number."""
    shown = frame.round(4).astype({"mean": object, "deviation": object, "difference": object})
    shown.loc[shown.runs == 1, "deviation"] = ONE_RUN
    for column in ("mean", "deviation", "difference"):
        shown[column] = shown[column].where(shown.runs > 0, shown.regenerated)
    shown["profile"] = shown.profile.where(shown.planned > 0, shown.regenerated)
    return shown.drop(columns="regenerated").to_csv(index=False, lineterminator="\n")


def as_markdown(frame: pd.DataFrame) -> str:
    """A heading, the table, and how to read it."""

    def escape(text: str) -> str:
        return re.sub(r"([\\|*_`])", r"\\\1", text)

    heading, *lines = _lines(frame, escape, bold=lambda text: f"**{text}**")
    rule = ["---", "---", "---:", "---:", "---:"]
    padded = (line + [""] * (5 - len(line)) for line in [heading, rule, *lines])
    table = "\n".join(f"| {' | '.join(line)} |" for line in padded)
    return f"# {TITLES[frame.table[0]]}\n\n{table}\n\n{escape(_caption(frame))}\n"


def as_latex(frame: pd.DataFrame) -> str:
    """A document of its own: a heading, the table over as many pages as it needs, the caption."""
    heading, *lines = _lines(frame, _latex, bold=r"\textbf{{{}}}".format)
    group = r"\multicolumn{{5}}{{l}}{{{}}}".format
    rows = (group(*line) if len(line) == 1 else " & ".join(line) for line in lines)
    body = "\n".join(f"{row} \\\\" for row in rows)
    return rf"""\documentclass{{article}}
\usepackage[margin=1.5cm]{{geometry}}
\usepackage{{longtable}}
\DeclareTextFontCommand{{\textbf}}{{\bfseries\boldmath}} % signs in bold numbers are bold too
\renewcommand{{\arraystretch}}{{1.15}} % capitals would touch the rules
\begin{{document}}
\section*{{\boldmath {_latex(TITLES[frame.table[0]])}}}
\small
\begin{{longtable}}{{llrrr}}
\hline
{" & ".join(heading)} \\
\hline
\endhead
{body}
\hline
\end{{longtable}}
\noindent {_latex(_caption(frame))}
\end{{document}}
"""


LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}
LATEX |= {"±": r"$\pm$", "[": "{[}", "*": "{*}"}  # the last two mean something after \\


def _latex(text: str) -> str:
    if re.fullmatch(r"[+-]\d+\.\d", text):
        return f"${text}$"  # a minus, not a hyphen
    text = text.translate(str.maketrans(LATEX))
    return re.sub(r"\b(\d)x(\d)\b", r"$\1 \\times \2$", text)


def _lines(frame: pd.DataFrame, escape: Callable, bold: Callable) -> Iterator[list[str]]:
    """The heading and each cell in five texts, and above each group its name alone."""
    profiles = ", ".join(profile for profile in frame.profile.unique() if profile)
    names = ["row", "column", "reported", "regenerated", "difference"]
    names[3] += f" ({profiles})" if profiles else ""
    yield [escape(name) for name in names]
    group = ""
    for cell in frame.itertuples():
        if cell.group != group:
            group = cell.group
            yield [escape(f"({group})")]
        printed = escape(_reported_text(cell))
        ran = escape(cell.regenerated)
        yield [
            escape(cell.row),
            escape(cell.column),
            bold(printed) if cell.bold else printed,
            bold(ran) if cell.best else ran,
            escape(f"{cell.difference:+.1f}" if cell.runs else cell.regenerated),
        ]


def _reported_text(cell) -> str:
    return f"{cell.reported:.1f}{' ' if cell.mark.startswith('(') else ''}{cell.mark}"


def _regenerated_text(cell) -> str:
    if not cell.runs:
        return QUOTED if cell.row in ELSEWHERE else NOT_RUN
    spread = f" ± {cell.deviation:.1f}" if cell.runs > 1 else ""
    missing = f" of {cell.planned}" if cell.runs < cell.planned else ""
    return f"{cell.mean:.1f}{spread} (n = {cell.runs}{missing})"


def _caption(frame: pd.DataFrame) -> str:
    """How to read a table, and what the profiles in it are."""
    profiles = [profile for profile in frame.profile.unique() if profile]
    said = [f"Profile {profile}: {PROFILES[profile]}." for profile in profiles]
    if set(profiles) - {"paper", "photo"}:
        said.append("Only the paper profile has the data and backbones of the reported numbers.")
    return " ".join(filter(None, [READING, ABBREVIATIONS.get(frame.table[0]), *said]))
