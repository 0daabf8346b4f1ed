"""Exponents of costs that are known, and the benchmark that measures them."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from dpp.paper import growth

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "bench_scaling.py"


def made_up(seconds, size_of=10.0) -> pd.DataFrame:
    """Points of one task whose cost is a function of the four sizes."""
    base = {"images": 80, "classes": 10, "prototypes": 100, "channels": 64}
    rows = []
    for axis in growth.AXES:
        for factor in (1, 10, 100):
            sizes = base | {axis: base[axis] * factor}
            cost = {"seconds": seconds(**sizes), "bytes": size_of * sizes["channels"]}
            rows.append({"task": "made up", "axis": axis, "size": sizes[axis]} | sizes | cost)
    return pd.DataFrame(rows)


def law(images, classes, prototypes, channels) -> float:
    return 1e-9 * images * prototypes**2 * channels**0.5


def test_exponents_of_a_power_law():
    found = growth.exponents(made_up(law)).set_index("axis")
    expected = {"images": 1, "classes": 0, "prototypes": 2, "channels": 0.5}
    assert found.seconds.to_dict() == pytest.approx(expected)
    assert found.bytes.to_dict() == pytest.approx(dict.fromkeys(growth.AXES, 0) | {"channels": 1})


def test_fixed_costs_weigh_little():
    found = growth.exponents(made_up(lambda **sizes: 1e-4 + law(**sizes))).set_index("axis")
    assert 0.9 < found.seconds["images"] < 1.0


def test_extrapolation_follows_the_law():
    sizes = {"images": 10**6, "classes": 10**4, "prototypes": 10**5, "channels": 2048}
    found = growth.extrapolate(made_up(law), "made up", sizes)
    assert found["seconds"] == pytest.approx(law(**sizes))
    assert found["bytes"] == pytest.approx(10 * 2048)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["step", "sparse last layer"])
def test_a_point_is_measured(task):
    sizes = {"images": 100, "classes": 10, "prototypes": 100, "channels": 16}
    words = [sys.executable, BENCHMARK, "--point", json.dumps([task, sizes])]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["seconds"] > 0 and found["bytes"] > 0


@pytest.mark.slow
def test_a_matrix_that_is_too_large_is_left_out():
    sizes = {"images": 80, "classes": 10_000, "prototypes": 100_000, "channels": 16}
    words = [sys.executable, BENCHMARK, "--point", json.dumps(["last layer", sizes])]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) is None
