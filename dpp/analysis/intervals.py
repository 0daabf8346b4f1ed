"""Means with their intervals: over seeds, images or classes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats


class Interval(NamedTuple):
    """A mean over some units, and the 95 % interval of Student's t around it."""

    mean: float
    low: float  # NaN with fewer than two units, as high
    high: float
    count: int

    def __str__(self) -> str:
        """As a difference, with signs."""
        return self.text(1, "+")

    def text(self, digits: int, sign: str = "") -> str:
        """With so many digits, and signs if `sign` is a plus."""
        if not self.count:
            return "not run"
        mean, low, high = (f"{value:{sign}.{digits}f}" for value in self[:3])
        return f"{mean} [{low}, {high}]" if self.count > 1 else f"{mean} (one run)"

    @property
    def sign(self) -> int:
        """1 or -1 if the whole interval is above or below zero, else 0."""
        return int(self.low > 0) - int(self.high < 0)

    def named(self, name: str) -> dict[str, float]:
        """As columns of a row: `name`, `name low` and `name high`."""
        return {name: self.mean, f"{name} low": self.low, f"{name} high": self.high}


def interval(values: Sequence[float], share: float = 0.95) -> Interval:
    """The mean of values, NaN left out, and its interval by Student's t.

    Args:
        values: one for each unit; for a paired comparison, the differences.
        share: of repeated samples whose interval would hold the true mean.
    """
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    if len(known) < 2:
        return Interval(float(known.mean()) if len(known) else np.nan, np.nan, np.nan, len(known))
    error = known.std(ddof=1) / len(known) ** 0.5
    half = stats.t.ppf((1 + share) / 2, len(known) - 1) * error
    mean = float(known.mean())
    return Interval(mean, mean - half, mean + half, len(known))
