"""Explanations as rows of text: computed here once for figures, reports, browser and terminal."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpp.explanations import ClassScore, Match, TreePath
from dpp.figures.marked_pictures import number_text


@dataclass(frozen=True)
class ScoreRow:
    """similarity x connection = points of one prototype, as printed."""

    prototype: int
    similarity: str
    connection: str
    points: str


@dataclass(frozen=True)
class ScoreSheet:
    """How points add up to the score of a class, as printed: the rounded numbers add up, too.

    Args:
        name: of the class.
        probability: of the class.
        rows: of the class's prototypes, most points first.
        points: the sum of the rows.
        others: the points of all prototypes without a row.
        score: points + others.
    """

    name: str
    probability: str
    rows: tuple[ScoreRow, ...]
    points: str
    others: str
    score: str


def score_sheet(one: ClassScore, top: int | None = None) -> ScoreSheet:
    """The rows of a class score.

    Args:
        one: the class and its score.
        top: how many prototypes get a row; by default all of the class.
    """
    matches = one.matches[:top]
    points = sum(round(match.points, 2) for match in matches)
    others = remainder(one, matches)
    totals = (number_text(value) for value in (points, others, one.score))
    return ScoreSheet(one.name, number_text(one.probability), score_rows(matches), *totals)


def score_rows(matches: Sequence[Match]) -> tuple[ScoreRow, ...]:
    """The row of each prototype."""
    return tuple(
        ScoreRow(
            match.prototype,
            number_text(match.similarity, 3),
            number_text(match.connection),
            number_text(match.points),
        )
        for match in matches
    )


def remainder(one: ClassScore, shown: Sequence[Match]) -> float:
    """The points of all prototypes but the shown ones, so that numbers of two digits add up."""
    return round(round(one.score, 2) - sum(round(match.points, 2) for match in shown), 2)


@dataclass(frozen=True)
class StepRow:
    """One node of a tree path, as printed.

    Args:
        node: its number.
        similarity: of the image's nearest patch to the node's prototype.
        answer: whether the prototype is "present" or "absent" in the image.
        branch: "right" if it is present, else "left".
        probability: of that branch.
        opposite: the other answer.
        opposite_probability: of the other branch.
    """

    node: int
    similarity: str
    answer: str
    branch: str
    probability: str
    opposite: str
    opposite_probability: str


@dataclass(frozen=True)
class PathSheet:
    """The decisions on a tree path, and the class of its leaf, as printed.

    Args:
        rows: from the root.
        leaf: where they end.
        probability: of the path.
        name: of the leaf's likeliest class.
        share: of that class in the leaf's distribution.
    """

    rows: tuple[StepRow, ...]
    leaf: int
    probability: str
    name: str
    share: str


def path_sheet(path: TreePath, names: Sequence[str]) -> PathSheet:
    """The rows of a tree path; `names` are those of all classes."""
    rows = []
    for step in path.steps:
        answers = ("present", "absent") if step.branch == "right" else ("absent", "present")
        taken = answers[0], step.branch, number_text(step.probability)
        opposite = answers[1], number_text(1 - step.probability)
        rows.append(StepRow(step.node, number_text(step.similarity, 3), *taken, *opposite))
    best = max(range(len(path.distribution)), key=path.distribution.__getitem__)
    end = number_text(path.probability), names[best], number_text(path.distribution[best])
    return PathSheet(tuple(rows), path.leaf, *end)
