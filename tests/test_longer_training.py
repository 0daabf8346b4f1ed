"""The control with a longer budget: what it trains, and how the gap is computed."""

import pandas as pd
import pytest

from dpp.paper import longer_training
from dpp.runs import records
from dpp.training.experiments import example_experiment


def test_designs_differ_from_the_tables_networks_in_their_budget_alone():
    for deformable in (False, True):
        long = longer_training.design(deformable, 1)
        usual = example_experiment("mini", deformable=deformable, seed=1)
        assert long.epochs == 2 * usual.epochs and long.project_after == (40, 60)
        changed = {name for name, value in long.row.items() if usual.row[name] != value}
        assert changed == set(longer_training.BUDGET)


def test_gap_is_paired_by_seed_and_leaves_lone_runs_out():
    rows = [(0, False, 0.5), (0, True, 0.7), (1, False, 0.6), (1, True, 0.7), (2, True, 0.1)]
    table = pd.DataFrame(rows, columns=["seed", "deformable", "test_accuracy"]).assign(pose=1.0)
    found = longer_training.gained(table)
    assert found.mean == pytest.approx(15) and found.count == 2
    assert longer_training.gained(table[:0]).count == 0


def test_stored_rows_are_those_of_the_seeds(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path))
    names = [
        longer_training.design(deformable, seed).name
        for seed in (0, 1)
        for deformable in (False, True)
    ]
    records.replace_rows(tmp_path / "mini" / longer_training.FILE, pd.DataFrame({"run": names}))
    assert set(longer_training.collect((1,)).run) == set(names[2:])


def test_committed_rows_are_complete():
    table = longer_training.collect()
    assert len(table) == 2 * len(longer_training.SEEDS)
    assert longer_training.gained(table).count == len(longer_training.SEEDS)
