"""The texts of the prototype browser: lines of text, and HTML with all names escaped."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import PurePath

import numpy as np

from dpp.analysis.figure_data import Application
from dpp.browser.steering import Mark, Refit
from dpp.browser.workbench import Changes
from dpp.data.pictures import Picture
from dpp.explanations import ClassScore
from dpp.figures.marked_pictures import number_text, shorten_name, verdict_words
from dpp.figures.score_sheets import score_sheet


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


def sheet_text(one: ClassScore, others: int) -> str:
    """How the points of a class's own prototypes and of the others add up, as a sentence."""
    sheet, name = score_sheet(one), shorten_name(one.name)
    if not others:
        return f"The bars add up: {sheet.points} points are the score of {name}."
    return (
        f"The bars add up: {sheet.points} from its own {len(sheet.rows)} prototypes and "
        f"{sheet.others} from the {others} of other classes make {sheet.score}, the score of "
        f"{name}."
    )


def place_text(applied: Application) -> str:
    """How similar a prototype is at its centre, and at its best place."""
    match, most = applied.match, float(applied.similarities.max())
    here, best = number_text(match.similarity, 3), number_text(most, 3)
    text = f"Similarity {here} at row {match.centre[0]}, column {match.centre[1]}"
    at_best = applied.similarities[match.centre] >= most
    return f"{text}, its best place" if at_best else f"{text}; at best {best}"


def describe_changes(changes: Changes, names: Sequence[str]) -> list[str]:
    """The changes that are tried out, a line for each."""
    lines = ["all offsets are zero"] if changes.rigid else []
    lines += [f"prototype {number} is switched off" for number in sorted(changes.off)]
    for (label, prototype), value in changes.connections.items():
        name = shorten_name(names[label])
        lines.append(f"the connection of prototype {prototype} to {name} is {value:g}")
    return lines


def changes_text(listed: Sequence[str], was: str, now: str) -> str:
    """The changes that are tried out, and the prediction before and after them, in HTML."""
    items = "".join(f"<li>{escape(one)}</li>" for one in listed or ["no changes"])
    was, now = shorten_name(was), shorten_name(now)
    after = f"still {now}" if was == now else f"{now} instead of {was}"
    return f"<b>predicted: {escape(after)}</b><ul>{items}</ul>"


def chart(rows: Sequence[tuple[str, Mapping[str, float]]], digits: int = 2) -> str:
    """Bars from zero to the right or left, in HTML: by label, a bar for each kind ("" or "before").

    Every bar has its number at its right.
    """
    every = [value for _, bars in rows for value in bars.values()]
    low, high = min([0.0, *every]), max([0.0, *every])
    span = (high - low) or 1
    cells = []
    for label, bars in rows:
        for place, (kind, value) in enumerate(bars.items()):
            left, width = (min(0.0, value) - low) / span, abs(value) / span
            style = f"left:{left:.2%};width:{width:.2%}"
            bar = f'<span class="dpp-bar dpp-{kind}" style="{style}"></span>'
            cells += [
                f"<span>{escape(shorten_name(label, 34)) if place == 0 else ''}</span>",
                f'<span class="dpp-track">{bar}</span>',
                f'<span class="dpp-right">{number_text(value, digits)} {escape(kind)}</span>',
            ]
    return f'<div class="dpp-chart">{"".join(cells)}</div>'


def prototype_text(prototype: int, name: str, source: str | None, equal: Sequence[int]) -> str:
    """Which prototype it is, where it comes from, and which others equal it, in HTML."""
    place = f"from image {PurePath(source).name}" if source else "not projected: no source image"
    text = f"<b>Prototype {prototype} of {escape(shorten_name(name))}</b>, {escape(place)}"
    same = [str(number) for number in equal if number != prototype]
    return f"{text}; equal to {' and '.join(same)}" if same else text


def run_text(
    run: str,
    prototype: str,
    picture: Picture,
    scores: np.ndarray,
    names: Sequence[str],
    warning: str = "",
) -> str:
    """A run's prediction for an image and its best prototype there: a cell of an HTML table."""
    verdict = verdict_text(picture, scores, names, warning)
    return f'<td width="50%"><b>{escape(run)}</b>: {escape(prototype)}<br>{verdict}</td>'


def marks_text(
    marks: Mapping[int, Mark], labels: Sequence[int], names: Sequence[str], done: Refit | None
) -> str:
    """The marks on prototypes and what refitting without the forgotten ones did, in HTML."""
    text = refit_text(done) if done else ""
    if not marks:
        hint = "mark prototypes as keep or forget in the view Prototype, then refit here"
        return f"{text}<p>No prototype of this run is marked: {hint}.</p>"
    rows = "".join(
        f"<tr><td>{number}</td><td>{escape(shorten_name(names[labels[number]]))}</td>"
        f"<td><b>{mark.kind}</b></td><td>{escape(mark.reason)}</td></tr>"
        for number, mark in sorted(marks.items())
    )
    head = "<tr><th>prototype</th><th>class</th><th>mark</th><th>reason</th></tr>"
    return f"{text}<table>{head}{rows}</table>"


def refit_text(done: Refit) -> str:
    """The accuracy before and after some prototypes were forgotten, in HTML."""
    before, after = done.accuracies
    many = len(done.forgotten)
    what = f"{many} prototype{'s' if many > 1 else ''} of {escape(done.before)}"
    return (
        f'<p><span class="dpp-big">{before:.1%} → {after:.1%}</span> of test images correct, '
        f"before and after {what} {'were' if many > 1 else 'was'} forgotten. The new run is "
        f"<b>{escape(done.run)}</b>, in {escape(done.folder)}; choose {escape(done.before)} again "
        "to go back.</p>"
    )
