"""Does it help? Differences between pairs of runs that differ in one thing, with their error."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from dpp.paper.grid import Plan
from dpp.runs import records

AS_REPORTED = "as in the paper"
FEWEST = 3  # pairs: two may agree by luck, and their error is then next to nothing


class Contrast(NamedTuple):
    """By how much the second of two runs is better than the first, over pairs of runs."""

    mean: float  # percentage points
    error: float  # standard error of the mean; NaN with fewer than two pairs
    pairs: int

    @property
    def verdict(self) -> str:
        """Whether it is more than twice its standard error, in words."""
        if self.pairs < FEWEST:
            return "too few pairs to tell"
        if abs(self.mean) <= 2 * self.error:
            return "no difference that these runs can show"
        return "better" if self.mean > 0 else "worse"

    def beside(self, reported: float) -> str:
        """How it compares with a reported difference, in words."""
        if self.pairs < FEWEST:
            return "too few pairs to compare"
        if abs(self.mean - reported) <= 2 * self.error:
            return f"{AS_REPORTED}, within twice the error"
        if abs(self.mean) <= 2 * self.error:
            return "where the paper has one, these runs show none"
        if abs(reported) < 0.05:  # as printed, in tenths
            return "where the paper has none"
        if self.mean * reported < 0:
            return "the opposite of the paper's"
        return f"{'more' if abs(self.mean) > abs(reported) else 'less'} than in the paper"

    def __str__(self) -> str:
        spread = f" ± {self.error:.1f}" if self.pairs >= FEWEST else ""
        noun = "pair" if self.pairs == 1 else "pairs"
        return f"{self.mean:+.1f}{spread} points over {self.pairs} {noun}: {self.verdict}"


def contrast(pairs: Iterable[tuple[Plan, Plan]]) -> Contrast:
    """Compares runs, pair by pair, by their stored accuracies; pairs that lack one are left out."""
    stored = [[records.stored(plan) for plan in pair] for pair in pairs]
    gains = [
        100 * (after.summary["test_accuracy"] - before.summary["test_accuracy"])
        for before, after in stored
        if before and after
    ]
    mean = fmean(gains) if gains else math.nan
    error = stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
    return Contrast(mean, error, len(gains))


def pairs(
    cells: dict, before: Sequence[str], after: Sequence[str], columns: Sequence[str]
) -> list[tuple[Plan, Plan]]:
    """Runs of rows `before` and of rows `after` that have the same column and seed."""
    return [
        pair
        for first, second in zip(before, after, strict=True)
        for column in columns
        for pair in zip(cells[first, column], cells[second, column], strict=False)
    ]
