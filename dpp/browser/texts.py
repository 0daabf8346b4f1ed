"""What the prototype browser says in words: lines of text, and HTML with all names escaped."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from dpp.analysis.figure_data import Application
from dpp.browser.workbench import Changes
from dpp.data.pictures import Picture
from dpp.explanations import ClassScore
from dpp.figures import explanation_figures
from dpp.figures.marked_pictures import number_text, part_style, shorten_name


def verdict_text(picture: Picture, scores: np.ndarray, names: Sequence[str]) -> str:
    """What an image is taken for, and what it is, in HTML."""
    predicted = int(scores.argmax())
    chance = np.exp(scores - scores.max())
    share = chance[predicted] / chance.sum()
    taken = f"taken for {shorten_name(names[predicted])} ({share:.0%})"
    truth = "" if picture.label is None else f"; it is {shorten_name(names[picture.label])}"
    if picture.label == predicted:
        truth = ", rightly"
    return f"{escape(shorten_name(picture.name, 60))}: <b>{escape(taken)}</b>{escape(truth)}"


def sheet_rows(sheet: ClassScore) -> list[tuple[str, int]]:
    """A line of text for each prototype of a class, and its number."""
    rows = []
    for match in sheet.matches:
        numbers = number_text(match.similarity, 3), number_text(match.connection)
        text = f"{match.prototype:>5}  {numbers[0]:>6} × {numbers[1]:>5} = "
        text += f"{number_text(match.points):>6}"
        rows.append((text.replace(" ", "\N{NO-BREAK SPACE}"), match.prototype))
    return rows


def sheet_sum(sheet: ClassScore) -> str:
    """How the points of a sheet come to its score, in HTML."""
    points = sum(round(match.points, 2) for match in sheet.matches)
    rest = explanation_figures.remainder(sheet, sheet.matches)
    return (
        f"<table><tr><td>these {len(sheet.matches)} prototypes</td><td>{number_text(points)}</td>"
        f"</tr><tr><td>all others</td><td>{number_text(rest)}</td></tr>"
        f"<tr><th>score of {escape(shorten_name(sheet.name))}</th>"
        f"<th>{number_text(sheet.score)}</th></tr></table>"
    )


def describe_changes(changes: Changes, names: Sequence[str]) -> list[str]:
    """What is tried out, a line for each."""
    said = ["all offsets are zero"] if changes.rigid else []
    said += [f"prototype {number} is switched off" for number in sorted(changes.off)]
    for (label, prototype), value in changes.connections.items():
        name = shorten_name(names[label])
        said.append(f"prototype {prototype} is connected to {name} by {value:g}")
    return said


def part_rows(shares: Mapping[str, float]) -> str:
    """HTML rows of parts, each with a swatch of its colour."""
    rows = []
    for place, (name, share) in enumerate(shares.items()):
        swatch = f'<span class="dpp-swatch" style="background:{part_style(place)[0]}"></span>'
        rows.append(f"<tr><td>{swatch}{name}</td><td>{number_text(share, 3)}</td></tr>")
    return "".join(rows)


def centre_text(found: Application) -> str:
    """How similar a prototype is at its centre, part by part, in HTML."""
    match, most = found.match, float(found.similarities.max())
    shares = {f"part {place + 1}": part.contribution for place, part in enumerate(match.parts)}
    total = number_text(match.similarity, 3)
    return (
        f"<b>Similarity {total}</b> at row {match.centre[0]}, column {match.centre[1]}; the most "
        f"is {number_text(most, 3)}.<table>{part_rows(shares)}"
        f"<tr><th>sum</th><th>{total}</th></tr></table>"
    )


def changes_text(listed: Sequence[str], was: str, now: str) -> str:
    """What is tried out, and what comes of it, in HTML."""
    items = "".join(f"<li>{escape(one)}</li>" for one in listed or ["nothing is changed"])
    was, now = shorten_name(was), shorten_name(now)
    verdict = f"still taken for {now}" if was == now else f"taken for {now}, no longer for {was}"
    return f"<b>{escape(verdict)}</b><ul>{items}</ul>"


def run_text(
    run: str, picture: Picture, scores: np.ndarray, names: Sequence[str], labels: Sequence[int]
) -> str:
    """What a run takes an image for, and its scores of some classes: a cell of an HTML table."""
    lines = "".join(
        f"<tr><td>{escape(shorten_name(names[label]))}</td><td>{number_text(scores[label])}</td>"
        "</tr>"
        for label in labels
    )
    verdict = verdict_text(picture, scores, names)
    return f'<td class="dpp-run"><b>{escape(run)}</b><br>{verdict}<table>{lines}</table></td>'
