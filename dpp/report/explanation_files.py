"""One picture explained on the command line: a figure, a JSON file, and the score sheet as text."""

import os
from collections.abc import Sequence
from pathlib import Path

from dpp import explanations, figures
from dpp.analysis import Network
from dpp.data.pictures import Picture
from dpp.explanations import ClassScore, Reasoning, TreePath
from dpp.figures.marked_pictures import shorten_name, verdict
from dpp.figures.score_sheets import PathSheet, path_sheet, score_rows, score_sheet
from dpp.report import run_report
from dpp.system.errors import UserError

SHOWN = 2  # classes that are printed if none are chosen


def find_picture(network: Network, image: str) -> Picture:
    """A picture by its file, or by its id in the data set of the network."""
    if Path(image).expanduser().is_file():
        return network.picture(image)
    record = network.records.get(image)
    if record is None:
        source = network.source
        some = ", ".join(list(network.records)[:3])
        raise UserError(
            f"there is no image {image}: neither a file nor the id of an image of {source.name}, "
            f"whose ids look like {some}"
        )
    return network.picture(record)


def check_folder(folder: Path) -> None:
    """Raises a `UserError` if files cannot be written to a folder, which need not exist yet."""
    wanted = Path(folder).absolute()
    there = next(one for one in (wanted, *wanted.parents) if one.exists())
    if not there.is_dir():
        raise UserError(f"{folder} cannot be written to: {there} is a file")
    if not os.access(there, os.W_OK):
        raise UserError(f"{folder} cannot be written to: permission denied")


def write(
    network: Network, picture: Picture, explanation: Reasoning | TreePath, folder: Path
) -> tuple[Path, Path]:
    """Writes the figure and the data, `NAME.reasoning.png` and `.json`; returns their paths."""
    stem = Path(picture.name).stem
    drawing, data = (Path(folder) / f"{stem}.reasoning.{ending}" for ending in ("png", "json"))
    try:
        figures.save(run_report.draw(network, explanation, picture.pixels), drawing, dpi=200)
    except OSError as error:
        raise UserError(f"{drawing} cannot be written: {error.strerror or error}") from error
    explanations.write(data, explanation)
    return drawing, data


def as_text(explanation: Reasoning | TreePath, names: Sequence[str], shown: int = SHOWN) -> str:
    """The score sheets of the first classes, or the path through a tree.

    Args:
        explanation: of an image.
        names: of all classes.
        shown: how many classes.
    """
    lines = [f"image {explanation.image}: {verdict(explanation, names)}"]
    lines += [f"warning: {explanation.warning}"] if explanation.warning else []
    if isinstance(explanation, TreePath):
        return "\n".join([*lines, "", *_path_lines(path_sheet(explanation, names))])
    for one in explanation.classes[:shown]:
        lines += ["", *_class_lines(one, names)]
    return "\n".join(lines)


def _class_lines(one: ClassScore, names: Sequence[str]) -> list[str]:
    """A line for each of a class's own prototypes, those of other classes, and the score."""
    sheet = score_sheet(one)
    lines = [
        f"{shorten_name(sheet.name, 60)}, probability {sheet.probability}",
        f"{'prototype':>12}{'similarity':>13}   {'connection':>10}   {'points':>8}",
    ]
    for row in sheet.rows:
        product = f"{row.similarity:>13} x {row.connection:>10} = {row.points:>8}"
        lines.append(f"{row.prototype:>12}{product}")
    lines.append(f"{'prototypes of other classes':<41}{sheet.others:>8}")
    for match, row in zip(one.largest_others, score_rows(one.largest_others), strict=True):
        other = f"prototype {row.prototype} of {shorten_name(names[match.label])}"
        lines.append(f"{'':12}{row.points:>8}  {other} ({row.similarity} x {row.connection})")
    return [*lines, f"{'score':<41}{sheet.score:>8}"]


def _path_lines(sheet: PathSheet) -> list[str]:
    """A line for each node, and the leaf."""
    lines = [f"{'node':>6}{'similarity':>12}   {'prototype':<10}{'branch':<8}{'probability':>11}"]
    for row in sheet.rows:
        taken = f"{row.answer:<10}{row.branch:<8}{row.probability:>11}"
        lines.append(f"{row.node:>6}{row.similarity:>12}   {taken}")
    leaf = f"leaf {sheet.leaf}, path probability {sheet.probability}"
    return [*lines, f"{leaf}: {shorten_name(sheet.name, 60)} {sheet.share}"]
