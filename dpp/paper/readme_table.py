"""The README's status table, made from the same records as the notebooks' tables."""

import pandas as pd

from dpp.paper import grid, tables
from dpp.system import files, paths
from dpp.system.errors import UserError

README = paths.ROOT / "README.md"
BEGIN, END = "<!-- status: made by `make status` -->", "<!-- end of status -->"
FULL, DOGS = "CUB-200-2011 (f)", "Stanford Dogs"
PROFILES = ("photo", "mini")
HEADLINES = [  # table, row, column
    ("table1", "Baseline", "VGG16"),
    ("table1", "Def. ProtoPNet (2x2)", "VGG16"),
    ("table1", "Baseline", "Res34"),
    ("table1", "ProtoPNet", "Res34"),
    ("table1", "Def. ProtoPNet (3x3)", "Res34"),
    ("table1", "Def. ProtoPNet (2x2)", "Res34"),
    ("table1", "Baseline", "Res50"),
    ("table1", "Def. ProtoPNet (2x2)", "Res50"),
    ("table2", "Margin 0, Ortho Loss 0.1, Deformations Yes", "Accuracy"),
    ("table2", "Margin 0.1, Ortho Loss 0, Deformations Yes", "Accuracy"),
    ("table2", "Margin 0.1, Ortho Loss 0.1, Deformations No", "Accuracy"),
    ("table2", "Margin 0.1, Ortho Loss 0.1, Deformations Yes", "Accuracy"),
    ("table3", "TesNet*", FULL),
    ("table3", "ProtoTree", FULL),
    ("table3", "ProtoTree**", FULL),
    ("table3", "Def. ProtoPNet** [2p,10pc]", FULL),
    ("table3", "ProtoPNet", DOGS),
    ("table3", "Def. ProtoPNet[3p,10pc]", DOGS),
    ("dogs_backbones", "Baseline", "VGG-19"),
    ("dogs_backbones", "Def. ProtoPNet", "VGG-19"),
]


def as_markdown() -> str:
    """Some rows of the tables: what the paper reports, and what came out in each profile."""
    frames = {
        (name, profile): tables.compare(name, grid.cells(name, profile))
        for name in tables.TITLES
        for profile in PROFILES
    }
    rows = [["table", "row", "paper", *PROFILES], ["---"] * 2 + ["---:"] * (1 + len(PROFILES))]
    for table, row, column in HEADLINES:
        found = [
            frame[(frame.row == row) & (frame.column == column)].iloc[0]
            for frame in (frames[table, profile] for profile in PROFILES)
        ]
        name = f"{row}, {column}".removesuffix(", Accuracy").replace("*", r"\*")
        number = table.removeprefix("table") if table.startswith("table") else "suppl."
        numbers = [f"{found[0].reported:.1f}", *(cell.regenerated for cell in found)]
        rows.append([number, name, *numbers])
    every = {one: pd.concat([frames[name, one] for name in tables.TITLES]) for one in PROFILES}
    wanted = (every["mini"].regenerated != tables.QUOTED).sum()
    counted = [f"{(cells.runs > 0).sum()} run" for cells in every.values()]
    rows.append(["all", "cells not quoted from others (some share runs)", str(wanted), *counted])
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
