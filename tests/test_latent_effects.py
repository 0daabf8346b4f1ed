"""Effects in pairs of runs, by hand."""

import pandas as pd
import pytest

from dpp.analysis import latent_effects


def make_table(rows):
    columns = ["margin", "orthogonality", "seed", "epoch", "gap"]
    return pd.DataFrame(rows, columns=columns)


def test_effects_are_differences_of_pairs_with_the_same_seed():
    table = make_table(
        [(0.0, 0.0, 0, 7, 1.0), (0.1, 0.0, 0, 7, 1.5), (0.0, 0.0, 1, 7, 2.0), (0.1, 0.0, 1, 7, 1.9)]
        + [(0.1, 0.0, 2, 7, 9.0)]  # without a partner
    )
    (row,) = latent_effects.paired_effects(table, "margin", "gap").itertuples()
    assert row.Index == 7 and row.pairs == 2
    assert row.change == pytest.approx(0.2) and row[2] == 1
    (text,) = latent_effects.describe(
        latent_effects.paired_effects(table, "margin", "gap"), "The margin", "the gap", "rad"
    )
    assert "+0.20 rad" in text and "1 of 2 pairs" in text


def test_effects_of_a_setting_that_never_changes_are_none():
    table = make_table([(0.1, 0.0, 0, 7, 1.0), (0.1, 0.0, 1, 7, 1.5)])
    assert latent_effects.paired_effects(table, "margin", "gap").empty
