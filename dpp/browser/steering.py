"""Prototypes that someone marks to be kept or forgotten, with reasons, and the run without them.

Nothing is changed in a run: `refit` makes a new one (`dpp.runs.steered`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dpp.runs import Run
from dpp.runs.steered import steer
from dpp.system.errors import UserError

KEEP, FORGET = "keep", "forget"
REASONS = (
    "it lies on the background",
    "it lies on a watermark or a frame",
    "its parts lie on one another",
    "it looks like other classes",
)


class Mark(NamedTuple):
    """What someone decided about a prototype, and why."""

    kind: str
    reason: str


class Marks:
    """The marks on a run's prototypes, and what they were before each change."""

    def __init__(self):
        self.by_prototype: dict[int, Mark] = {}
        self._before: list[dict[int, Mark]] = []

    def set(self, prototypes: Iterable[int], kind: str, reason: str = "") -> None:
        """Marks equal prototypes, instead of their marks before.

        Raises:
            UserError: they are to be forgotten without a reason.
        """
        reason = reason.strip()
        if kind == FORGET and not reason:
            raise UserError("give a reason why this prototype is to be forgotten")
        self._before.append(dict(self.by_prototype))
        self.by_prototype |= dict.fromkeys(prototypes, Mark(kind, reason))

    @property
    def undoable(self) -> bool:
        return bool(self._before)

    def undo(self) -> None:
        """Takes back the last change."""
        if self._before:
            self.by_prototype = self._before.pop()

    @property
    def forgotten(self) -> dict[int, str]:
        """Why each prototype is to be forgotten, by its number."""
        marks = sorted(self.by_prototype.items())
        return {number: mark.reason for number, mark in marks if mark.kind == FORGET}


@dataclass(frozen=True)
class Refit:
    """A run without some prototypes, beside the one that it was made from.

    Args:
        run: the new one's name in the browser.
        before: the name of the run that it was made from.
        forgotten: reasons by the numbers that the prototypes had there.
        accuracies: shares of test images that are correct, before and after.
        folder: of the new run.
    """

    run: str
    before: str
    forgotten: dict[int, str]
    accuracies: tuple[float, float]
    folder: str


def refit(run: object, marks: Marks, who: str = "", fine_tune: int = 0) -> Run:
    """A new run without the prototypes that are marked to be forgotten.

    Raises:
        UserError: none is marked, or what is shown is not a run in a folder.
    """
    if not isinstance(run, Run):
        raise UserError("this network is not stored as a run: only a finished run can be refitted")
    if not marks.forgotten:
        raise UserError("no prototype is marked: mark at least one as forget, with a reason")
    return steer(run, marks.forgotten, who=who, fine_tune=fine_tune)


def accuracy(run: Run) -> float:
    """The share of test images that a run classifies correctly, from its manifest."""
    return run.manifest["results"]["test_accuracy"]
