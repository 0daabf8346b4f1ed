"""The numbers in `results/paper/`, cell by cell, against the paper's LaTeX where it is here."""

import os
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from dpp.paper import tables
from dpp.system import paths

CELLS = {"table1": 42, "table2": 8, "table3": 32, "dogs_backbones": 12, "dogs_models": 5}
FIELDS = ["group", "row", "column", "value", "mark", "bold", "row_mark", "row_bold"]
LABELS = {
    "table1": "tab:architecture_comparison",
    "table2": "tab:resnet50_ablation_def",
    "table3": "tab:state-of-the-art",
    "dogs_backbones": "tab:dogs_numerical",
    "dogs_models": "tab:supp:state-of-the-art",
}
SHARED = paths.ROOT.parent / "shared" / "paper" / "deformable-protopnet.tex"
BOLD, END, LINE = "\x01", "\x02", "\x03"  # stand for \textbf{, its } and a line break in a cell
VALUE = re.compile(r"(\d+\.\d+)[\x01\x02]*\s*(\(bb\)|\(f\)|\*)?")


@pytest.fixture(scope="module")
def paper() -> str:
    path = Path(os.environ.get("DPP_PAPER") or SHARED)
    if not path.is_file():
        pytest.skip(f"the paper's LaTeX source is not at {path}: set DPP_PAPER to its place")
    return re.sub(r"(?<!\\)%.*", "", path.read_text())


def tabular(paper: str, table: str) -> str:
    """What stands between a table's first `\\begin{tabular}{...}` and its last `\\end{tabular}`."""
    floats = re.findall(r"\\begin\{table\*?\}(.*?)\\end\{table\*?\}", paper, re.DOTALL)
    (found,) = (text for text in floats if rf"\label{{{LABELS[table]}}}" in text)
    inside = found.partition(r"\begin{tabular}")[2].rpartition(r"\end{tabular}")[0]
    return inside.partition("\n")[2]


def mark_bold(text: str) -> str:
    """Braces of `\\textbf` as one character each, so that a place's depth can be counted."""
    closing, marked = [], ""
    for piece in re.split(r"(\\textbf\{|[{}])", text):
        if piece in (r"\textbf{", "{"):
            closing.append("}" if piece == "{" else END)
            marked += piece if piece == "{" else BOLD
        else:
            marked += closing.pop() if piece == "}" else piece
    return marked


def is_bold(text: str, place: int) -> bool:
    return text.count(BOLD, 0, place) > text.count(END, 0, place)


def words(text: str) -> str:
    """Text without commands, line breaks and the colon before numbers."""
    text = re.sub(r"\x03|\\hline", " ", re.sub(r"[\x01\x02]", "", text))
    return " ".join(text.split()).rstrip(":")


def parse(paper: str, table: str) -> list[dict]:
    """The cells of a table as printed, in the order of the page."""
    text = re.sub(r"~?\\cite\{.*?\}", "", tabular(paper, table))
    text = re.sub(r"\$(\d) \\times (\d)\$", r"\1x\2", text)
    inner = r"\\begin\{tabular\}\[c\]\{@\{\}l@\{\}\}(.*?)\\end\{tabular\}"
    text = re.sub(inner, lambda found: found[1].replace(r"\\", LINE), text, flags=re.DOTALL)
    lines = mark_bold(text).split(r"\\")
    heading, *lines = ([cell.strip() for cell in line.split("&")] for line in lines)
    heading, cells, half = [words(cell) for cell in heading], [], 0
    for line in lines:
        if len(line) == 1:  # the rules after the last line
            continue
        rules, line[0] = line[0].count(r"\hline"), words(line[0])
        if heading[0] == "Interpretability":
            if line[0] == "Interpretability":
                heading = [words(cell) for cell in line]
                continue
            column = heading[1].removeprefix("Model: ").removeprefix("accuracy on ")
            for entry in line[1].split(LINE):
                cells += read_values(entry, line[0], None, column)
        elif heading[0] == "Margin":
            half += rules == 2  # a double rule is above each half
            names = zip(heading[:3], map(words, line[:3]), strict=True)
            row = ", ".join(f"{name} {setting}" for name, setting in names)
            cells += read_values(line[3], {1: "top", 2: "bottom"}[half], row, heading[3])
        else:
            for column, entry in zip(heading[1:], line[1:], strict=True):
                cells += read_values(entry, "", line[0], column)
    return [{"table": table} | cell for cell in cells]


def read_values(entry: str, group: str, row: str | None, column: str) -> list[dict]:
    """The numbers of one entry, whose row's name stands before them if none is given."""
    found = list(VALUE.finditer(entry))
    before = entry[: found[0].start()]
    name = words(before) if row is None else row
    stars = re.search(r"\*+", name)
    cells = []
    for number in found:
        mark = number[2] or ""
        bold = is_bold(entry, number.start())
        assert not mark or is_bold(entry, number.start(2)) == bold, entry
        cells.append(
            {
                "group": group,
                "row": name,
                "column": f"{column} {mark}" if mark.startswith("(") else column,
                "value": float(number[1]),
                "mark": mark,
                "bold": bold,
                "row_mark": stars[0] if stars else "",
                "row_bold": row is None and is_bold(entry, re.search(r"\w", entry).start()),
            }
        )
    return cells


def difference(paper: str, table: str) -> list[str]:
    """Where the stored numbers of a table are not the paper's; nothing if they all are."""
    printed, stored = parse(paper, table), tables.reported(table).to_dict("records")
    if len(printed) != len(stored):
        return [f"{len(printed)} cells are printed and {len(stored)} stored"]
    pairs = zip(printed, stored, strict=True)
    return [f"printed {ours}, stored {theirs}" for ours, theirs in pairs if ours != theirs]


@pytest.mark.parametrize("table", CELLS)
def test_every_cell_is_as_printed(paper, table):
    assert difference(paper, table) == []


@pytest.mark.parametrize("table", CELLS)
def test_no_accuracy_in_the_source_is_left_out(paper, table):
    """Two digits, a point and one digit: no other number in these tables looks so."""
    in_source = re.findall(r"\d\d\.\d", tabular(paper, table))
    assert [float(number) for number in in_source] == list(tables.reported(table).value)


@pytest.mark.parametrize("table", CELLS)
def test_table_has_as_many_cells_as_counted_on_the_page(table):
    frame = tables.reported(table)
    assert len(frame) == CELLS[table]
    assert not frame.duplicated(["group", "row", "column"]).any()


def test_there_are_no_other_tables():
    stored = {path.stem for path in (paths.RESULTS / "paper").glob("*.csv")}
    assert stored == set(CELLS) == set(tables.TITLES)


@pytest.mark.parametrize("table", CELLS)
@pytest.mark.parametrize("field", FIELDS)
def test_one_altered_cell_is_noticed(paper, table, field, tmp_path, monkeypatch):
    shutil.copytree(paths.RESULTS / "paper", tmp_path / "paper")
    path = tmp_path / "paper" / f"{table}.csv"
    frame = tables.reported(table)
    old = frame.loc[3, field]
    new = old + 0.1 if field == "value" else not old if "bold" in field else f"{old}*"
    frame.loc[3, field] = new
    frame.to_csv(path, index=False)
    monkeypatch.setattr(paths, "RESULTS", tmp_path)
    assert len(difference(paper, table)) == 1
    pd.concat([frame, frame[:1]]).to_csv(path, index=False)
    assert "cells are printed" in difference(paper, table)[0]


def test_one_altered_number_in_the_source_is_noticed(paper):
    assert paper.count("& 86.1 &") == 1
    assert len(difference(paper.replace("& 86.1 &", "& 86.2 &"), "table1")) == 1
    assert len(difference(paper.replace(r"\textbf{81.2}", "81.2"), "table1")) == 1
    assert len(difference(paper.replace("ProtoTree**", "ProtoTree*"), "table3")) == 1


def test_tables_agree_with_one_another():
    """The ResNet-50 of Table 1 is in Tables 2 and 3, and the best dogs in both of theirs."""

    def value(table: str, row: str, column: str) -> float:
        frame = tables.reported(table)
        (found,) = set(frame[(frame.row == row) & (frame.column == column)].value)
        return found

    for mine, theirs in {
        "(3x3,nd)": "[nd,3p,6pc]",
        "(3x3)": "[3p,6pc]",
        "(2x2,nd)": "[nd,2p,10pc]",
        "(2x2)": "[2p,10pc]",
    }.items():
        single = value("table1", f"Def. ProtoPNet {mine}", "Res50")
        assert single == value("table3", f"Def. ProtoPNet {theirs}", "CUB-200-2011 (f)")
    for deformations, mine in {"No": "(2x2,nd)", "Yes": "(2x2)"}.items():
        row = f"Margin 0.1, Ortho Loss 0.1, Deformations {deformations}"
        single = value("table1", f"Def. ProtoPNet {mine}", "Res50")
        assert single == value("table2", row, "Accuracy")
    for mine, theirs in {"Def. ProtoPNet (nd)": "(nd)", "Def. ProtoPNet": ""}.items():
        best = value("dogs_backbones", mine, "ResNet-152")
        assert best == value("dogs_models", f"Def. ProtoPNet{theirs}", "accuracy")
