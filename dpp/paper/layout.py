"""The paper's tables as on the page: its rows and columns, and beside its numbers those of runs.

Every function takes frames of `tables.compare`, one for each profile: the columns of the page have
a column each for the paper and for every profile, and with one profile one for their difference
where the runs are comparable.
"""

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from pandas.io.formats.style import Styler

from dpp.figures.notebook_tables import FACE
from dpp.paper import photo
from dpp.paper.tables import ONE_RUN, QUOTED, TITLES
from dpp.system import files
from dpp.system.profiles import PROFILES

HEADINGS = {  # of the columns that name a row; the first is that of its group, if there are any
    "table1": ("Model",),
    "table2": ("Half", "Margin", "Ortho Loss", "Deformations"),
    "table3": ("Interpretability", "Model"),
    "dogs_backbones": ("Method",),
    "dogs_models": ("Interpretability", "Model"),
}
ABBREVIATIONS = {
    "table1": "nd: no deformations. *: retrained by the paper's authors on full images.",
    "table3": "bb: bounding boxes. f: full images. nd: no deformations. 2p, 3p: 2x2, 3x3 "
    "prototypes. pc: prototypes of a class. *: 3 models ensembled. **: 5 models ensembled.",
    "dogs_backbones": "nd: no deformations.",
    "dogs_models": "nd: no deformations.",
}
READING = (
    "Accuracy in percent. Paper: as printed. {profiles}: one run, or the mean ± the standard "
    "deviation over seeds. Bold: as the paper prints it, and the best of those that were run in a "
    "group and column."
)
COMPARABLE = "The difference is regenerated less reported, in percentage points."
DRAWN = "Drawn images are not the paper's photographs: compare rows, not absolute numbers."


class Entry(NamedTuple):
    """What stands in one place of the page."""

    text: str = ""
    bold: bool = False
    muted: bool = False  # where there is no number


def arrange(*frames: pd.DataFrame) -> pd.DataFrame:
    """The page as a frame of `Entry`.

    Args:
        frames: of `tables.compare`, of the same table, one for each profile.

    Returns:
        Rows have the levels block (counted from 0; a rule is between two), group and row, columns
        the levels column and source: "paper", each profile, and with one profile "<profile> -
        paper" where runs are comparable. Empty where the paper prints nothing.
    """
    page = frames[0]
    block = (page.group != page.group.shift()).cumsum() - 1  # groups that follow one another
    rows = list(zip(block, page.group, page.row, strict=True))
    sources = {"paper": [Entry(_printed(cell), cell.bold) for cell in page.itertuples()]}
    for frame in frames:
        cells, name = list(frame.itertuples()), profile_of(frame)
        sources[name] = [Entry(short_text(cell), cell.best, not cell.runs) for cell in cells]
        if len(frames) == 1 and frame.difference.notna().any():
            sources[f"{name} - paper"] = [_difference(cell) for cell in cells]
    columns = [(column, source) for column in page.column.unique() for source in sources]
    index = pd.MultiIndex.from_tuples(dict.fromkeys(rows), names=["block", "group", "row"])
    arranged = pd.DataFrame(
        [[Entry()] * len(columns) for _ in index],
        index,
        pd.MultiIndex.from_tuples(columns, names=["column", "source"]),
        dtype=object,
    )
    for source, entries in sources.items():
        for row, column, entry in zip(rows, page.column, entries, strict=True):
            arranged.at[row, (column, source)] = entry
    return arranged


def profile_of(frame: pd.DataFrame) -> str:
    """The profile of the runs of a frame, for headings; "paper" alone is what is printed."""
    name = ", ".join(filter(None, frame.profile.unique())) or "regenerated"
    return "paper profile" if name == "paper" else name


def short_text(cell) -> str:
    """An accuracy as it stands in a table: without n, unless runs are missing."""
    if not cell.runs:
        return cell.regenerated
    spread = f" ± {cell.deviation:.1f}" if cell.runs > 1 else ""
    missing = f" ({cell.runs} of {cell.planned})" if cell.runs < cell.planned else ""
    return f"{cell.mean:.1f}{spread}{missing}"


def _printed(cell) -> str:
    """As the paper has it; (bb) and (f) are columns here."""
    return f"{cell.reported:.1f}{'' if cell.mark.startswith('(') else cell.mark}"


def _difference(cell) -> Entry:
    if pd.isna(cell.difference):
        return Entry(cell.regenerated, muted=True)
    return Entry(f"{cell.difference:+.1f}")


def row_names(table: str, group: str, row: str) -> list[str]:
    """A row's name in as many texts as `HEADINGS` has; Table 2 prints its settings in columns."""
    names = [part.rpartition(" ")[2] for part in row.split(", ")] if table == "table2" else [row]
    return [group, *names] if len(HEADINGS[table]) > len(names) else names


def caption(*frames: pd.DataFrame) -> str:
    """How to read a table, and what its profiles are."""
    table = frames[0].table[0]
    profiles = dict.fromkeys(name for frame in frames for name in frame.profile.unique() if name)
    texts = [READING.format(profiles=", ".join(profiles).capitalize() or "Regenerated")]
    if any((frame.regenerated == QUOTED).any() for frame in frames):
        texts.append("Quoted: the paper took the number from others; not trained here.")
    texts += [
        ABBREVIATIONS.get(table),
        *(f"The {name} profile is {PROFILES[name]}." for name in profiles),
        photo.NOTES.get(table) if "photo" in profiles else "",
    ]
    texts.append(COMPARABLE if len(frames) == 1 and frames[0].difference.notna().any() else "")
    texts.append(DRAWN if any((f.runs.gt(0) & ~f.comparable).any() for f in frames) else "")
    return " ".join(filter(None, texts))


# ---- On a screen


def as_text(*frames: pd.DataFrame) -> str:
    """For a terminal: the texts of a column's sources between bars."""
    page, table = arrange(*frames), frames[0].table[0]
    joined = page.map(lambda entry: entry.text).T.groupby(level="column", sort=False)
    joined = joined.agg(lambda texts: " | ".join(texts) if any(texts) else "").T
    blocks = [TITLES[table], " | ".join(page.columns.unique("source"))]
    for (_, group), rows in joined.groupby(level=["block", "group"], sort=False):
        rows = rows.droplevel(["block", "group"]).rename_axis(index=None, columns=None)
        rows = rows.loc[:, (rows != "").any()]  # a half of Table 3 has columns of its own
        blocks += [f"({group})"] * bool(group) + [rows.to_string()]
    return "\n".join(blocks)


def as_styler(*frames: pd.DataFrame) -> Styler:
    """For a notebook; colours are the page's own, so that it is readable on light and on dark."""
    page, table = arrange(*frames), frames[0].table[0]
    names = [(block, *row_names(table, group, row)) for block, group, row in page.index]
    shown = page.map(_as_html)
    shown.index = pd.MultiIndex.from_tuples(names, names=["block", *HEADINGS[table]])
    shown.columns.names = [None, None]
    styler = Styler(shown, uuid=table, cell_ids=False, caption=caption(*frames))
    first = ~page.index.get_level_values("block").duplicated()
    rules = [
        {"selector": f"tbody tr:nth-child({line + 1}) > *", "props": "border-top: 1px solid"}
        for line in first.nonzero()[0]
    ]
    return styler.hide(axis="index", level="block").set_table_styles(FACE + rules)


def _as_html(entry: Entry) -> str:
    text = html.escape(entry.text)
    if entry.muted:
        return f'<span style="opacity: 0.5">{text}</span>'
    return f"<b>{text}</b>" if entry.bold else text


# ---- In files


def write(folder: Path, name: str, *frames: pd.DataFrame) -> list[str]:
    """Writes a table as CSV, Markdown and LaTeX in the paper's shape, and as CSV by cell.

    Returns:
        The names of the files.
    """
    made = {f"{name}.csv": as_csv, f"{name}_cells.csv": as_long_csv}
    made |= {f"{name}.md": as_markdown, f"{name}.tex": as_latex}
    for file, make in made.items():
        files.write_file(Path(folder) / file, make(*frames).encode())
    return list(made)


def as_csv(*frames: pd.DataFrame) -> str:
    """As on the page, a number in each place: what the paper prints, and the means of the runs."""
    page, table = arrange(*frames), frames[0].table[0]
    numbers = page.map(lambda entry: re.split(r" ±|\*| \(", entry.text)[0])
    numbers.columns = [f"{column}: {source}" for column, source in page.columns]
    names = [row_names(table, group, row) for _, group, row in page.index]
    named = pd.DataFrame(names, numbers.index, HEADINGS[table])
    return pd.concat([named, numbers], axis=1).to_csv(index=False, lineterminator="\n")


def as_long_csv(*frames: pd.DataFrame) -> str:
    """The columns of `tables.compare`, a line for each cell; words where there is no number."""
    shown = pd.concat(frames).round(4)
    shown = shown.astype({"mean": object, "deviation": object, "difference": object})
    shown.loc[shown.runs == 1, "deviation"] = ONE_RUN
    for column in ("mean", "deviation", "difference"):
        shown[column] = shown[column].where(shown.runs > 0, shown.regenerated)
    shown["profile"] = shown.profile.where(shown.planned > 0, shown.regenerated)
    dropped = ["regenerated", "comparable"] + ["difference"] * (not shown.comparable.any())
    return shown.drop(columns=dropped).to_csv(index=False, lineterminator="\n")


def as_markdown(*frames: pd.DataFrame) -> str:
    """A heading, the table, and how to read it."""

    def escape(text: str) -> str:
        return re.sub(r"([\\|*_`])", r"\\\1", text)

    page, table = arrange(*frames), frames[0].table[0]
    heading = [*HEADINGS[table], *(f"{column}: {source}" for column, source in page.columns)]
    rule = ["---"] * len(HEADINGS[table]) + ["---:"] * len(page.columns)
    lines = [[escape(name) for name in heading], rule]
    lines += _lines(page, table, escape, bold=lambda text: f"**{text}**")
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"# {TITLES[table]}\n\n{body}\n\n{escape(caption(*frames))}\n"


def as_latex(*frames: pd.DataFrame) -> str:
    """A document of its own: a heading, the table, no wider than the page, and the caption."""
    page, table = arrange(*frames), frames[0].table[0]
    names, sources = len(HEADINGS[table]), len(page.columns.unique("source"))
    over = [rf"\multicolumn{{{sources}}}{{c}}{{{_latex(c)}}}" for c in page.columns.unique(0)]
    under = [*HEADINGS[table], *(_latex(source) for _, source in page.columns)]
    first = ~page.index.get_level_values("block").duplicated()
    lines = _lines(page, table, _latex, bold=r"\textbf{{{}}}".format)
    rows = [" & ".join(line) + r" \\" for line in lines]
    rules = ["\\hline\n" if new else "" for new in first]
    body = "\n".join(rule + row for rule, row in zip(rules, rows, strict=True))
    return rf"""\documentclass{{article}}
\usepackage[landscape,margin=1.5cm]{{geometry}}
\usepackage{{graphicx}}
\DeclareTextFontCommand{{\textbf}}{{\bfseries\boldmath}} % signs in bold numbers are bold too
\renewcommand{{\arraystretch}}{{1.15}} % capitals would touch the rules
\setlength{{\parindent}}{{0pt}}
\pagestyle{{empty}}
\begin{{document}}
\section*{{\boldmath {_latex(TITLES[table])}}}
\resizebox{{\ifdim\width>\linewidth \linewidth\else\width\fi}}{{!}}{{%
\begin{{tabular}}{{{"l" * names}{("|" + "r" * sources) * (len(page.columns) // sources)}}}
\hline
{" & " * names}{" & ".join(over)} \\
{" & ".join(under)} \\
{body}
\hline
\end{{tabular}}}}

\medskip
{_latex(caption(*frames))}
\end{{document}}
"""


def _lines(page: pd.DataFrame, table: str, escape: Callable, bold: Callable) -> list[list[str]]:
    """The page's rows as texts; a group is named in its first row alone."""
    lines, block_above = [], None
    for (block, group, row), entries in zip(page.index, page.to_numpy(), strict=True):
        names = [escape(name) for name in row_names(table, group, row)]
        if len(names) > 1 and block == block_above:
            names[0] = ""
        block_above = block
        texts = [bold(escape(e.text)) if e.bold and e.text else escape(e.text) for e in entries]
        lines.append(names + texts)
    return lines


LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}
LATEX |= {"±": r"$\pm$", "[": "{[}", "*": "{*}"}  # the last two mean something after \\


def _latex(text: str) -> str:
    if re.fullmatch(r"[+-]\d+\.\d", text):
        return f"${text}$"  # a minus, not a hyphen
    text = text.translate(str.maketrans(LATEX))
    return re.sub(r"\b(\d)x(\d)\b", r"$\1 \\times \2$", text)
