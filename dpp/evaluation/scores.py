"""A measure's value and interval, beside what chance and the original script give."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpp.system.errors import UserError

NAN = float("nan")
RESAMPLES = 1000
Progress = Callable[[int, int], None]  # called with how much is done, and of how much


class NotApplicable(UserError):
    """The data or the network lack what a measure needs; other measures can be had."""


class Score(NamedTuple):
    """One measure of a network's explanations.

    `low` and `high` bound 95 % of its bootstrap values over prototypes, or over images where a
    measure has a value for each image; NaN stands for whatever does not apply.
    """

    measure: str  # such as "consistency"
    at: str = ""  # "centre" of a prototype, its "parts" at their moved places, or ""
    value: float = NAN
    low: float = NAN
    high: float = NAN
    unit: str = ""  # "%", or "" for a plain number
    better: str = ""  # "higher", "lower", or ""
    random_weights: float = NAN  # of a network that has learned nothing
    random_places: float = NAN  # of the network, with its prototypes placed at random
    original: float = NAN  # by the original script's behaviour, where that differs
    note: str = ""


def not_measured(measure: str, why: str, at: str = "") -> Score:
    """A score without a value, which says why there is none."""
    return Score(measure, at, note=why)


def bootstrap(
    values: np.ndarray,
    seed: int,
    statistic: Callable[[np.ndarray], np.ndarray] | None = None,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """The 95 % interval of a statistic over values that are drawn again with replacement.

    Args:
        values: (n,) or (n, columns), one row for each prototype or image; rows with NaN are left
            out.
        seed: of the draws.
        statistic: from (resamples, n) or (resamples, n, columns) to (resamples,); by default the
            mean.
        resamples: how often.

    Returns:
        Its 2.5 and 97.5 percentiles; NaN for fewer than two values.
    """
    values = np.asarray(values, dtype=float)
    values = values[~np.isnan(values.reshape(len(values), -1)).any(axis=1)]
    if len(values) < 2:
        return NAN, NAN
    statistic = statistic or (lambda drawn: drawn.mean(axis=1))
    random = np.random.default_rng(seed)
    few = max(1, 2_000_000 // values.size)  # draws at a time, for bounded memory
    found = []
    for first in range(0, resamples, few):
        count = min(few, resamples - first)
        found.append(statistic(values[random.integers(len(values), size=(count, len(values)))]))
    low, high = np.nanpercentile(np.concatenate(found), (2.5, 97.5))
    return float(low), float(high)


def mean(values: np.ndarray) -> float:
    """The mean of what is not NaN; NaN of nothing."""
    values = np.asarray(values, dtype=float)
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else NAN


def part_of(progress: Progress, place: int, of: int) -> Progress:
    """The progress of one of several tasks of about the same length."""
    return lambda done, total: progress(place * total + done, of * total)


def from_values(measure: str, at: str, values: np.ndarray, seed: int, **given) -> Score:
    """A score from a value for each prototype or image: their mean, and its interval.

    Args:
        measure: its name.
        at: see `Score`.
        values: (n,), or (n, parts), which are averaged for each prototype; NaN where there is none.
        seed: of the bootstrap.
        given: other fields of `Score`.
    """
    values = np.asarray(values, dtype=float)
    each = values.reshape(len(values), -1).mean(axis=1)
    return Score(measure, at, mean(each), *bootstrap(each, seed), **given)
