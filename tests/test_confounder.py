"""The planted mark: where it is, where it is not, and the measures that look for it."""

import random

import numpy as np
import pytest
from PIL import Image
from tiny_data import write_cub

from dpp.data import read_cub
from dpp.paper import confounder, planted_mark
from dpp.system import files


def changed(birds, planted) -> set[str]:
    """The images whose files differ; all else about them must be the same."""
    found = set()
    for before, after in zip(birds.records, planted.records, strict=True):
        assert (before.id, before.label, before.box) == (after.id, after.label, after.box)
        if before.path.read_bytes() != after.path.read_bytes():
            found.add(after.id)
    return found


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    """Three classes of five images."""
    root = write_cub(tmp_path_factory.mktemp("data") / "birds", classes=3, train=3, test=2)
    return read_cub(root, "birds")


def test_mark_is_on_the_training_images_of_one_class_alone(birds, tmp_path):
    planted = planted_mark.plant(birds, tmp_path / "marked", {1})
    marked = {record.id for record in birds.train if record.label == 1}
    assert changed(birds, planted) == marked
    marks = files.read_json(tmp_path / "marked" / planted_mark.MARKS)
    assert set(marks) == marked
    for record in planted.train:
        if record.id in marks:
            x, y = map(int, marks[record.id])
            pixel = np.asarray(Image.open(record.path))[y, x].astype(int)
            assert np.abs(pixel - planted_mark.COLOUR).max() < 40  # JPEG mixes colours a little


def test_mark_on_test_images_of_the_others(birds, tmp_path):
    planted = planted_mark.plant(birds, tmp_path / "lure", {0, 2}, "test")
    assert changed(birds, planted) == {record.id for record in birds.test if record.label != 1}


def test_place_is_outside_the_box_and_on_the_image():
    box = (20.0, 10.0, 50.0, 64.0)
    radius = planted_mark.RADIUS * 64
    places = {planted_mark.choose_place((64, 64), box, random.Random(seed)) for seed in range(50)}
    assert len(places) > 5
    for x, y in places:
        assert radius <= x <= 64 - radius and radius <= y <= 64 - radius
        assert x + radius <= 20 or x - radius >= 50 or y + radius <= 10


def test_place_covers_least_of_a_box_that_fills_the_image():
    x, y = planted_mark.choose_place((64, 64), (0, 0, 60, 60), random.Random(0))
    assert (x, y) == pytest.approx((57.6, 57.6))  # the corner


@pytest.mark.slow
def test_study_has_its_rows(tmp_path, monkeypatch, one_thread):
    for name in ("DATA", "RUNS", "RESULTS"):
        monkeypatch.setenv(f"DPP_{name}", str(tmp_path / name))
    birds = confounder.make_birds("smoke", 1)
    rows = confounder.collect(birds, "smoke", [0], epochs=1)
    assert set(rows.step) <= set(confounder.STEPS) and {"never marked", "marked"} <= set(rows.step)
    assert rows[["accuracy", "of_class", "lured"]].stack().between(0, 1).all()
    again = confounder.collect(birds, "smoke", [0], epochs=1)
    assert again.equals(rows)
