"""The README's status table, made from the same records as the notebooks' tables."""

import pandas as pd

from dpp.paper import grid, tables
from dpp.system import files, paths
from dpp.system.errors import UserError

README = paths.ROOT / "README.md"
BEGIN, END = "<!-- status: made by `make status` -->", "<!-- end of status -->"
FULL, DOGS = "CUB-200-2011 (f)", "Stanford Dogs"
HEADLINES = [  # table, row, column
    ("table1", "Baseline", "Res50"),
    ("table1", "ProtoPNet", "Res50"),
    ("table1", "Def. ProtoPNet (3x3)", "Res50"),
    ("table1", "Def. ProtoPNet (2x2)", "Res50"),
    ("table2", "Margin 0, Ortho Loss 0.1, Deformations Yes", "Accuracy"),
    ("table2", "Margin 0.1, Ortho Loss 0.1, Deformations No", "Accuracy"),
    ("table2", "Margin 0.1, Ortho Loss 0.1, Deformations Yes", "Accuracy"),
    ("table3", "TesNet*", FULL),
    ("table3", "ProtoTree**", FULL),
    ("table3", "Def. ProtoPNet** [2p,10pc]", FULL),
    ("table3", "ProtoPNet", DOGS),
    ("table3", "Def. ProtoPNet[3p,10pc]", DOGS),
]


def as_markdown(profile: str = "mini") -> str:
    """Some rows of the tables: what the paper reports, what came out here, and how."""
    frames = {name: tables.compare(name, grid.cells(name, profile)) for name in tables.TITLES}
    rows = [["table", "row", "paper", "regenerated", "mode"], ["---"] * 2 + ["---:"] * 2 + ["---"]]
    for table, row, column in HEADLINES:
        frame = frames[table]
        cell = frame[(frame.row == row) & (frame.column == column)].iloc[0]
        name = f"{row}, {column}".removesuffix(", Accuracy").replace("*", r"\*")
        number = table.removeprefix("table")
        rows.append([number, name, f"{cell.reported:.1f}", cell.regenerated, profile])
    cells = pd.concat(frames.values())
    wanted, ran = (cells.regenerated != tables.QUOTED).sum(), (cells.runs > 0).sum()
    rows.append(
        ["all", "cells that are not quoted from others", str(wanted), f"{ran} run", profile]
    )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def place(text: str, table: str) -> str:
    """The README's text with the table between its two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UserError(f"{README} has no {BEGIN} and {END}: put them where the table belongs")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def write() -> None:
    """Brings the README up to date."""
    text = files.read_file(README).decode()
    files.write_file(README, place(text, as_markdown()).encode())
