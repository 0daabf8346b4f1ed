"""The texts of the prototype browser: lines of text, and HTML with all names escaped."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from dpp.analysis.figure_data import Application
from dpp.browser.workbench import Changes
from dpp.data.pictures import Picture
from dpp.figures.marked_pictures import number_text, part_style, shorten_name, verdict_words
from dpp.figures.score_sheets import ScoreSheet


def verdict_text(
    picture: Picture, scores: np.ndarray, names: Sequence[str], warning: str = ""
) -> str:
    """The predicted class, its probability, whether it is correct, and a warning, in HTML."""
    label = int(scores.argmax())
    shares = np.exp(scores - scores.max())
    predicted, *judged = verdict_words(label, picture.label, names)
    predicted += f" ({shares[label] / shares.sum():.0%})"
    rest = "".join(f", {escape(word)}" for word in judged)
    text = f"{escape(shorten_name(picture.name, 60))}: <b>{escape(predicted)}</b>{rest}"
    return f'{text}<div class="dpp-warning">Warning: {escape(warning)}.</div>' if warning else text


def sheet_rows(sheet: ScoreSheet) -> list[tuple[str, int]]:
    """A line of text for each prototype of a class, and its number."""
    lines = []
    for row in sheet.rows:
        text = f"{row.prototype:>5}  {row.similarity:>6} × {row.connection:>5} = {row.points:>6}"
        lines.append((text.replace(" ", "\N{NO-BREAK SPACE}"), row.prototype))
    return lines


def sheet_sum(sheet: ScoreSheet) -> str:
    """How the points of a sheet add up to its score, in HTML."""
    return (
        f"<table><tr><td>these {len(sheet.rows)} prototypes</td><td>{sheet.points}</td></tr>"
        f"<tr><td>all other prototypes</td><td>{sheet.others}</td></tr>"
        f"<tr><th>score of {escape(shorten_name(sheet.name))}</th><th>{sheet.score}</th></tr>"
        "</table>"
    )


def describe_changes(changes: Changes, names: Sequence[str]) -> list[str]:
    """The changes that are tried out, a line for each."""
    lines = ["all offsets are zero"] if changes.rigid else []
    lines += [f"prototype {number} is switched off" for number in sorted(changes.off)]
    for (label, prototype), value in changes.connections.items():
        name = shorten_name(names[label])
        lines.append(f"the connection of prototype {prototype} to {name} is {value:g}")
    return lines


def part_rows(shares: Mapping[str, float]) -> str:
    """HTML rows of parts, each with a swatch of its colour."""
    rows = []
    for place, (name, share) in enumerate(shares.items()):
        swatch = f'<span class="dpp-swatch" style="background:{part_style(place)[0]}"></span>'
        rows.append(f"<tr><td>{swatch}{name}</td><td>{number_text(share, 3)}</td></tr>")
    return "".join(rows)


def centre_text(applied: Application) -> str:
    """How similar a prototype is at its centre, part by part, in HTML."""
    match, most = applied.match, float(applied.similarities.max())
    shares = {f"part {place + 1}": part.contribution for place, part in enumerate(match.parts)}
    total = number_text(match.similarity, 3)
    return (
        f"<b>Similarity {total}</b> at row {match.centre[0]}, column {match.centre[1]}; the "
        f"maximum over the map is {number_text(most, 3)}.<table>{part_rows(shares)}"
        f"<tr><th>sum</th><th>{total}</th></tr></table>"
    )


def changes_text(listed: Sequence[str], was: str, now: str) -> str:
    """The changes that are tried out, and the prediction before and after them, in HTML."""
    items = "".join(f"<li>{escape(one)}</li>" for one in listed or ["no changes"])
    was, now = shorten_name(was), shorten_name(now)
    after = f"still {now}" if was == now else f"{now} instead of {was}"
    return f"<b>predicted: {escape(after)}</b><ul>{items}</ul>"


def run_text(
    run: str,
    picture: Picture,
    scores: np.ndarray,
    names: Sequence[str],
    labels: Sequence[int],
    warning: str = "",
) -> str:
    """A run's prediction for an image and its scores of some classes: a cell of an HTML table."""
    lines = "".join(
        f"<tr><td>{escape(shorten_name(names[label]))}</td><td>{number_text(scores[label])}</td>"
        "</tr>"
        for label in labels
    )
    verdict = verdict_text(picture, scores, names, warning)
    return f'<td class="dpp-run"><b>{escape(run)}</b><br>{verdict}<table>{lines}</table></td>'
