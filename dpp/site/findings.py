"""What notebook 13 measured, as the demo page tells it: computed from the committed records."""

from typing import NamedTuple

import pandas as pd

from dpp.analysis.intervals import Interval, interval
from dpp.paper import moving_parts
from dpp.paper.tables import NOT_RUN
from dpp.system.errors import UserError

POSE, SEEDS = 2.0, range(5)  # notebook 13's
PHOTO = "resnet34"


class Findings(NamedTuple):
    """Means over the study's networks, in percent, by `moving_parts.STATES`."""

    networks: int
    shares: dict[str, float]  # of parts that land on their own part of the bird
    accuracies: dict[str, float]
    followed: Interval  # points of share, moved over at mean
    slope: Interval  # of the answer to one turned joint, moved over at rest
    photo: dict[str, str]  # accuracies on photographs
    seen: float  # pixels across that a cell depends on for nine tenths


def findings() -> Findings:
    """Reads them.

    Raises:
        UserError: the records of the study are missing.
    """
    wanted = [moving_parts.design("predicted", POSE, seed) for seed in SEEDS]
    rows = moving_parts.collect(wanted)
    if rows.empty:
        raise UserError("results/mini/following.csv has no rows of notebook 13's study")
    photo = moving_parts.photo_rows([PHOTO]).loc[(PHOTO, "deformable")]

    def means(measure: str) -> dict[str, float]:
        states = moving_parts.STATES
        return {
            state: interval(100 * moving_parts.state_column(rows, measure, state)).mean
            for state in states
        }

    def percent(share: float | None) -> str:
        return NOT_RUN if pd.isna(share) else f"{100 * share:.1f} %"

    names = {"moved": "accuracy", "at mean": "accuracy at mean", "at rest": "accuracy at rest"}
    return Findings(
        networks=len(rows),
        shares=means("share"),
        accuracies=means("accuracy"),
        followed=moving_parts.gap(rows, "share", "at mean"),
        slope=moving_parts.gap(rows, "slope", scale=1),
        photo={state: percent(photo.get(name)) for state, name in names.items()},
        seen=float(rows["most"].mean()),
    )
