"""How cost grows with images, classes, prototypes and channels, from `bench_scaling.py`'s points.

A row of points has a task, the axis along which it is one of several, its size on that axis and all
four sizes, and what it took: processor seconds of one thread, and bytes beyond the inputs.
"""

import math
from collections.abc import Mapping

import pandas as pd

from dpp.system import paths

FILE = "scaling_benchmark.csv"
AXES = ("images", "classes", "prototypes", "channels")
COSTS = ("seconds", "bytes")


def load(profile: str = "mini") -> pd.DataFrame:
    """The stored points: those measured here, or those of the repository."""
    return pd.read_csv(paths.stored_file(profile, FILE))


def exponents(points: pd.DataFrame) -> pd.DataFrame:
    """The slopes of time and memory between the two largest sizes of each task and axis.

    There fixed costs weigh least: an exponent of 1 is a cost in proportion.
    """
    rows = []
    for (task, axis), group in points.groupby(["task", "axis"], sort=False):
        if len(group) < 2:
            continue
        small, large = (row for _, row in group.sort_values("size").tail(2).iterrows())
        ratio = math.log(large["size"] / small["size"])
        slopes = {name: math.log(large[name] / small[name]) / ratio for name in COSTS}
        rows.append(
            {"task": task, "axis": axis, "from": small["size"], "to": large["size"]} | slopes
        )
    return pd.DataFrame(rows)


def extrapolate(points: pd.DataFrame, task: str, sizes: Mapping[str, int]) -> dict[str, float]:
    """What a task would take at other sizes: the exponents beyond the largest measured point.

    The point has the most prototypes, and their classes. Along images and channels it goes by the
    exponents, in time and memory; nothing of it is measured there.
    """
    own = points[points.task == task]
    along = own[own.axis == "prototypes"]
    start = along.loc[along["size"].idxmax()]
    slopes = exponents(own).set_index("axis")
    cost = {name: float(start[name]) for name in COSTS}
    for axis in ("images", "prototypes", "channels"):
        for name in COSTS:
            cost[name] *= (sizes[axis] / start[axis]) ** slopes.loc[axis, name]
    return cost
