"""The decisions of a report: images with the sums, or the tree paths, that gave them a class."""

from collections.abc import Sequence

import numpy as np
from tqdm import tqdm

from dpp import analysis
from dpp.analysis import Network
from dpp.data.image_records import ImageRecord
from dpp.data.pictures import Picture
from dpp.explanations import ClassScore, Match, Reasoning, TreePath
from dpp.figures import explanation_figures
from dpp.figures.marked_pictures import Marked, mark, number_text, shorten_name
from dpp.figures.score_sheets import path_sheet, remainder, score_rows
from dpp.report.html_page import Pictures
from dpp.report.prototype_cards import place_groups
from dpp.report.source_images import SourceImage, find_sources, show_source

LONG = 60  # characters of a class's name
HALF = 0.005  # points, of the last digit that is printed
TOP = 3  # places of a class whose prototypes are shown


def choose_examples(logits: np.ndarray, labels: np.ndarray, count: int) -> dict[str, list[int]]:
    """The most confident incorrect decisions, and correct ones spread over the images.

    Args:
        logits: (N, classes).
        labels: (N,).
        count: of each kind, at most.

    Returns:
        Indices of images, of "incorrect" and "correct" decisions.
    """
    predicted, ordered = logits.argmax(axis=1), np.sort(logits, axis=1)
    lead = ordered[:, -1] - ordered[:, -2]
    incorrect = np.flatnonzero(predicted != labels)
    incorrect = incorrect[np.argsort(-lead[incorrect], kind="stable")][:count]
    correct = np.flatnonzero(predicted == labels)
    spread = np.linspace(0, len(correct) - 1, min(count, len(correct))).round().astype(int)
    return {"incorrect": incorrect.tolist(), "correct": correct[spread].tolist()}


def decisions(
    pictures: Pictures,
    network: Network,
    records: Sequence[ImageRecord],
    logits: np.ndarray,
    count: int,
) -> dict[str, list[dict]]:
    """Examples of incorrect and of correct decisions.

    Args:
        pictures: of the page.
        network: that decided.
        records: N test images.
        logits: (N, classes), of these.
        count: of each kind, at most.
    """
    labels = np.array([record.label for record in records])
    chosen = choose_examples(logits, labels, count)
    total = sum(map(len, chosen.values()))
    with tqdm(total=total, desc="decisions", unit="image", disable=None) as bar:
        shown: dict[str, list[dict]] = {}
        for kind, indices in chosen.items():
            shown[kind] = []
            for index in indices:
                shown[kind].append(decision(pictures, network, records[index]))
                bar.update()
    return shown


def decision(pictures: Pictures, network: Network, record: ImageRecord) -> dict:
    """One image, and the score sheets of its first two classes or its path through a tree."""
    picture, names = network.picture(record), network.source.class_names
    explanation = analysis.explain(network, picture)
    right, true = explanation.predicted == explanation.label, explanation.label
    judged = "correct" if right else f"incorrect, true class {shorten_name(names[true], LONG)}"
    content = {
        "image": pictures.show(record.id, Marked(picture.pixels), f"image {record.id}"),
        "name": record.id,
        "predicted": f"Predicted {shorten_name(names[explanation.predicted], LONG)}",
        "judged": judged,
        "correct": right,
        "warning": explanation.warning,
        "bars": [],
        "sheets": [],
        "path": None,
    }
    if isinstance(explanation, TreePath):
        return content | {"path": _path(pictures, network, picture, explanation)}
    sheets = [
        _sheet(pictures, network, picture, explanation, one) for one in explanation.classes[:2]
    ]
    return content | {"bars": probability_bars(explanation), "sheets": sheets}


def probability_bars(explanation: Reasoning) -> list[dict]:
    """The explained classes with their probabilities, highest first."""
    ordered = sorted(explanation.classes, key=lambda one: -one.score)
    return [
        {
            "name": shorten_name(one.name, LONG),
            "share": one.probability,
            "text": f"{one.probability:.1%}",
            "true": one.label == explanation.label,
        }
        for one in ordered
    ]


def _sheet(
    pictures: Pictures,
    network: Network,
    picture: Picture,
    explanation: Reasoning,
    one: ClassScore,
) -> dict:
    """How the points of a class add up to its score; rounded numbers add up, too."""
    groups = group_matches(one.matches, place_groups(network, one.label))
    top = groups[:TOP]
    matches = [match for group in top for match in group]
    shown = [*matches, *one.largest_others]
    sources = find_sources(network, [match.prototype for match in shown])
    further = [match for group in groups[TOP:] for match in group]
    labels = {match.label for match in one.largest_others}
    every = [group for label in sorted(labels) for group in place_groups(network, label)]
    others = [
        {
            "name": shorten_name(network.source.class_names[group[0].label], LONG),
            "source": _source(pictures, sources, group[0].prototype),
            "rows": score_rows(group),
            "points": _points(group),
        }
        for group in group_matches(one.largest_others, every)
    ]
    rest = remainder(one, [*one.matches, *one.largest_others])
    return {
        "question": explanation_figures.question(explanation, one, LONG),
        "name": shorten_name(one.name, LONG),
        "probability": f"{one.probability:.1%}",
        "groups": [_group(pictures, picture, sources, group) for group in top],
        "further": len(further),
        "further_points": _points(further),
        "others": others,
        "rest": number_text(rest),
        "rest_name": rest_name(one, rest),
        "score": number_text(one.score),
    }


def rest_name(one: ClassScore, rest: float) -> str:
    """What the last points of a sheet are of: prototypes that have no row, or rounding alone."""
    unnamed = one.others - sum(match.points for match in one.largest_others)
    if rest and abs(unnamed) < HALF:
        return "rounding"
    return f"all {'other ' * bool(one.largest_others)}prototypes of other classes"


def group_matches(matches: Sequence[Match], groups: Sequence[Sequence[int]]) -> list[list[Match]]:
    """Matches by the place of their prototypes, the largest amount of points together first."""
    place = {number: index for index, group in enumerate(groups) for number in group}
    together: dict[int, list[Match]] = {}
    for match in matches:  # most points first
        together.setdefault(place[match.prototype], []).append(match)
    return sorted(together.values(), key=lambda group: -abs(sum(match.points for match in group)))


def _group(
    pictures: Pictures, picture: Picture, sources: dict[int, SourceImage], group: list[Match]
) -> dict:
    first = group[0]
    return {
        "image": pictures.look(picture.name, mark(picture.pixels, first), "parts on the image"),
        "source": _source(pictures, sources, first.prototype),
        "rows": score_rows(group),
        "points": _points(group),
    }


def _points(matches: Sequence[Match]) -> str:
    """The points of some prototypes together; rounded first, as they are added on the page."""
    return number_text(sum(round(match.points, 2) for match in matches))


def _path(pictures: Pictures, network: Network, picture: Picture, explanation: TreePath) -> dict:
    """The nodes that an image passed, and its leaf."""
    sheet = path_sheet(explanation, network.source.class_names)
    sources = find_sources(network, [step.node for step in explanation.steps])
    rows = []
    for step, numbers in zip(explanation.steps, sheet.rows, strict=True):
        marked = Marked(picture.pixels, (tuple(step.box),))
        rows.append(
            {
                "image": pictures.look(picture.name, marked, "nearest patch"),
                "source": _source(pictures, sources, step.node),
                "numbers": numbers,
                "probability": f"{step.probability:.1%}",
            }
        )
    return {
        "rows": rows,
        "leaf": sheet.leaf,
        "name": shorten_name(sheet.name, LONG),
        "share": f"{max(explanation.distribution):.1%}",
        "probability": f"{explanation.probability:.1%}",
    }


def _source(pictures: Pictures, sources: dict[int, SourceImage], number: int):
    return show_source(pictures, sources, number, f"prototype {number} on its source image")
