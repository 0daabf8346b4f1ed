"""The pictures of the data notebook: what is drawn is where the arrays say."""

import itertools
from io import BytesIO

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from PIL import Image

from dpp import figures

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    pyplot.close("all")


def test_picture_grid_has_axes_in_pixels_from_the_corner():
    picture = np.zeros((30, 400, 3), dtype=np.uint8)
    figure, used = figures.picture_grid([picture] * 5, list("abcde"), columns=3)
    assert len(used) == 5 and len(figure.axes) == 6
    assert used[0].get_xlim() == (0, 400) and used[0].get_ylim() == (30, 0)
    assert [axes.get_title() for axes in used] == list("abcde")


def test_pictures_keep_few_colours_and_no_more_pixels_than_asked():
    picture = np.random.default_rng(0).integers(0, 256, (90, 200, 3), dtype=np.uint8)
    small = figures.fewer_colours(picture, 16, 100)
    assert small.shape == (45, 100, 3)
    assert len(np.unique(small.reshape(-1, 3), axis=0)) <= 16


def test_marks_are_where_they_are_asked_for():
    _, (axes,) = figures.picture_grid([np.zeros((50, 50, 3), dtype=np.uint8)], columns=1)
    figures.mark_box(axes, (5, 6, 15, 30))
    figures.mark_parts(axes, np.array([[7, 8], [9, 10]]), ["beak", "tail"])
    assert axes.patches[0].get_bbox().extents.tolist() == [5, 6, 15, 30]
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[7, 8]], [[9, 10]]]
    assert [text.get_text() for text in axes.texts] == ["beak", "tail"]


def test_class_balance_stacks_the_splits():
    counts = {"training": np.array([3, 4]), "test": np.array([1, 2])}
    (axes,) = figures.class_balance(counts, ["a", "b"]).axes
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [
        (0, 3),
        (0, 4),
        (3, 1),
        (4, 2),
    ]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["training", "test"]


def test_lines_are_named_at_their_ends():
    (axes,) = figures.lines(
        [0, 1], {"tail": [0.1, 0.3], "beak": [0.2, 0.2]}, ("pose", "spread")
    ).axes
    assert [text.xy for text in axes.texts] == [(1, 0.3), (1, 0.2)]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("pose", "spread")


def test_figure_of_few_colours_is_smaller_and_has_the_same_bytes_each_time(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    figure, _ = figures.picture_grid([noise] * 6, colours=256)
    figures.save(figure, tmp_path / "all.png")
    figures.save(figure, tmp_path / "few.png", colours=64)
    assert (tmp_path / "few.png").read_bytes() == figures.as_png(figure, colours=64)
    few, every = ((tmp_path / name).stat().st_size for name in ("few.png", "all.png"))
    assert few < 0.5 * every
    with Image.open(tmp_path / "few.png") as image:
        assert len(image.convert("RGB").getcolors(1 << 24)) <= 64


def test_colours_of_parts_survive_where_there_are_few(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    figure, (axes,) = figures.picture_grid([noise], columns=1, colours=256)
    axes.axhspan(20, 40, color=figures.PART_COLOURS[3])
    with Image.open(BytesIO(figures.as_png(figure, colours=16))) as image:
        seen = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    assert (0xCC, 0x79, 0xA7) in seen


def test_panels_of_a_table_share_one_x_axis():
    cells = [("a", "x", 70.0, 60.0), ("b", "x", 75.0, 90.0), ("a", "y", 80.0, 81.0)]
    frame = pd.DataFrame(cells, columns=["row", "column", "reported", "mean"])
    figure = figures.reported_and_regenerated(frame.assign(deviation=1.0, profile="mini"))
    limits = {axes.get_xlim() for axes in figure.axes}
    assert len(figure.axes) == 2 and len(limits) == 1
    ((low, high),) = limits
    assert low < 59 and high > 91


@pytest.mark.parametrize("lengths", [(1, 1, 2), (1, 2, 27), (5, 5, 20)])
def test_phases_are_named_above_the_curves_and_apart(lengths):
    names = ["warm", "second warm", "joint"]
    phases = [name for name, length in zip(names, lengths, strict=True) for _ in range(length)]
    epochs = range(1, len(phases) + 1)
    columns = {"stage": "train", "epoch": epochs, "phase": phases, "loss": [*epochs]}
    figure = figures.training_curves(pd.DataFrame(columns), {"loss": ["loss"]})
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == names
    boxes = [text.get_window_extent() for text in axes.texts]
    assert all(box.y0 >= axes.bbox.y1 for box in boxes)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
