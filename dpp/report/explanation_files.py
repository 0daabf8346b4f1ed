"""One picture explained on the command line: two files, and the sums as text."""

from collections.abc import Sequence
from pathlib import Path

from dpp import explanations, figures
from dpp.analysis import Network
from dpp.data.pictures import Picture
from dpp.explanations import ClassScore, Reasoning, TreePath
from dpp.figures.marked_pictures import number_text, shorten_name, verdict
from dpp.report import run_report
from dpp.system.errors import UserError

SHOWN = 2  # classes that are told if none are chosen


def find_picture(network: Network, image: str) -> Picture:
    """A picture by its file, or by its id in the data set of the network."""
    if Path(image).expanduser().is_file():
        return network.picture(image)
    record = network.records.get(image)
    if record is None:
        source = network.source
        some = ", ".join(list(network.records)[:3])
        raise UserError(
            f"there is no image {image}: no such file, and no image of {source.name} with that id, "
            f"which are like {some}"
        )
    return network.picture(record)


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
    """The sums behind the first classes, or the path through a tree.

    Args:
        explanation: of an image.
        names: of all classes.
        shown: how many classes.
    """
    lines = [f"image {explanation.image}: {verdict(explanation, names)}"]
    if isinstance(explanation, TreePath):
        return "\n".join([*lines, "", *_tell_path(explanation, names)])
    for one in explanation.classes[:shown]:
        lines += ["", *_tell_class(one)]
    return "\n".join(lines)


def _tell_class(one: ClassScore) -> list[str]:
    """A line for each of a class's own prototypes, all others in one, and the sum."""
    lines = [
        f"{shorten_name(one.name, 60)}, probability {number_text(one.probability)}",
        f"{'prototype':>12}{'similarity':>13}   {'connection':>10}   {'points':>8}",
    ]
    for match in one.matches:
        similarity, connection = number_text(match.similarity, 3), number_text(match.connection)
        points = number_text(match.points)
        lines.append(f"{match.prototype:>12}{similarity:>13} x {connection:>10} = {points:>8}")
    others, total = number_text(one.others), number_text(one.total)
    return [*lines, f"{'of other classes':<41}{others:>8}", f"{'score':<41}{total:>8}"]


def _tell_path(path: TreePath, names: Sequence[str]) -> list[str]:
    """A line for each node, and the leaf."""
    lines = [f"{'node':>6}{'similarity':>12}   {'branch':<12}{'probability':>11}"]
    for step in path.steps:
        has = "has it" if step.branch == "right" else "has it not"
        similarity, probability = number_text(step.similarity, 3), number_text(step.probability)
        lines.append(f"{step.node:>6}{similarity:>12}   {has:<12}{probability:>11}")
    best = max(range(len(path.distribution)), key=path.distribution.__getitem__)
    share = number_text(path.distribution[best])
    chance = number_text(path.probability)
    return [*lines, f"leaf {path.leaf} by {chance}: {shorten_name(names[best], 60)} {share}"]
