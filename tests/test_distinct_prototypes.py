"""The table of prototypes that differ."""

from types import SimpleNamespace

import pytest

from dpp.paper import distinct_prototypes as study


def origin(number: int, label: int, image: str, centre: tuple[int, int]) -> dict:
    return {
        "prototype": number,
        "label": label,
        "image": image,
        "sha256": "0" * 64,
        "centre": list(centre),
        "cells": [7, 7],
        "parts": [[float(centre[0]), float(centre[1])]] * 4,
        "similarity": 1.0,
    }


def make_run(tmp_path, name: str, accuracy: float):
    origins = [
        origin(0, 0, "a", (3, 3)),
        origin(1, 0, "a", (3, 4)),  # a part of 2x2 is two cells wide
        origin(2, 0, "a", (3, 5)),
        origin(3, 1, "b", (0, 0)),
        origin(4, 1, "c", (0, 0)),
    ]
    results = {"test_accuracy": accuracy, "validation_accuracy": 0.5}
    return SimpleNamespace(folder=tmp_path / name, origins=origins, manifest={"results": results})


def test_row_counts_places_of_each_class(tmp_path):
    row = study.row_of("distinct", make_run(tmp_path, "one", 0.75))
    assert (row["prototypes"], row["places"], row["fewest"], row["images"]) == (5, 4, 2, 3)
    assert row["a class"] == 2 and row["accuracy"] == 0.75


def test_table_is_kept_in_order(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path / "results"))
    kinds = [study.KINDS[1], study.KINDS[0]]
    rows = [study.row_of(one, make_run(tmp_path, f"run {one}", 0.5)) for one in kinds]
    study.store("mini", rows)
    study.store("mini", rows[:1])
    table = study.stored("mini")
    assert list(table.index) == list(study.KINDS[:2]) and table.places.tolist() == [4, 4]


@pytest.mark.parametrize("profile", ["mini", "photo"])
def test_committed_tables_have_the_papers_projection_first(profile):
    table = study.stored(profile)
    assert table.index[0] == study.KINDS[0] and len(table) >= 3
    assert (table.places <= table.prototypes).all() and (table.fewest <= table["a class"]).all()
