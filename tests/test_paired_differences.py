"""Pairs of runs: what they say, and when they say nothing."""

import math

import pytest

from dpp.paper import grid, paired_differences
from dpp.paper.paired_differences import Contrast, contrast
from dpp.runs import records

CELLS = grid.cells("table2", "smoke", seeds=(0, 1, 2))
WITHOUT, WITH = grid.ablation(0, 0.1, True), grid.ablation(0.1, 0.1, True)


@pytest.fixture
def accuracies(monkeypatch):
    """Stored accuracies by the name of the run."""
    known = {}

    def stored(plan):
        accuracy = known.get(plan.name)
        return None if accuracy is None else records.RunRecord({"test_accuracy": accuracy}, None)

    monkeypatch.setattr(records, "stored", stored)
    return known


def give(known, row, values):
    known.update(zip((plan.name for plan in CELLS[row, "Accuracy"]), values, strict=True))


def test_contrast_pairs_runs_of_the_same_seed(accuracies):
    give(accuracies, WITHOUT, [0.5, 0.6, 0.7])
    give(accuracies, WITH, [0.53, 0.64, 0.75])
    found = contrast(paired_differences.pairs(CELLS, [WITHOUT], [WITH], ["Accuracy"]))
    assert found.mean == pytest.approx(4) and found.pairs == 3
    assert found.error == pytest.approx(1 / math.sqrt(3))
    assert found.verdict == "better" and str(found) == "+4.0 ± 0.6 points over 3 pairs: better"


def test_pairs_without_a_record_are_left_out(accuracies):
    give(accuracies, WITHOUT, [0.5, 0.6, None])
    give(accuracies, WITH, [0.4, None, 0.7])
    found = contrast(paired_differences.pairs(CELLS, [WITHOUT], [WITH], ["Accuracy"]))
    assert found.pairs == 1 and found.mean == pytest.approx(-10)
    assert str(found) == "-10.0 points over 1 pair: too few pairs to tell"


@pytest.mark.parametrize(
    ("mean", "error", "verdict"),
    [(1.0, 0.6, "no difference"), (-1.0, 0.6, "no difference"), (-1.3, 0.6, "worse")],
)
def test_difference_counts_beyond_twice_its_error(mean, error, verdict):
    assert Contrast(mean, error, 5).verdict.startswith(verdict)


def test_two_pairs_that_agree_by_luck_say_nothing():
    found = Contrast(-0.4, 0.01, 2)
    assert str(found) == "-0.4 points over 2 pairs: too few pairs to tell"
    assert found.beside(0.1) == "too few pairs to compare"


def test_no_pairs_say_nothing(accuracies):
    assert contrast([]).verdict == "too few pairs to tell"


@pytest.mark.parametrize(
    ("mean", "error", "reported", "said"),
    [
        (1.0, 0.5, 1.9, "as in the paper, within"),
        (0.5, 0.5, 3.0, "where the paper has one, these runs show none"),
        (3.0, 0.5, 1.0, "more than in the paper"),
        (3.0, 0.5, 5.0, "less than in the paper"),
        (-3.0, 0.5, 1.0, "the opposite of the paper's"),
        (2.0, 0.5, 0.04, "where the paper has none"),
    ],
)
def test_difference_is_compared_with_the_reported_one(mean, error, reported, said):
    assert Contrast(mean, error, 3).beside(reported).startswith(said)
    assert Contrast(mean, math.nan, 1).beside(reported) == "too few pairs to compare"
