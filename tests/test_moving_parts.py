"""The study of moving parts: its controls, intervals, records, and what figures begin with."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from test_runs import tiny
from tiny_analysis import ask, make_data, make_model

from dpp import runs
from dpp.analysis import Network, following_study, offset_effect, part_following
from dpp.analysis.intervals import interval
from dpp.data.image_records import Box
from dpp.explanations import Part, Sighting
from dpp.figures.interval_charts import interval_curves
from dpp.figures.moving_figures import moving_parts as draw_moving_parts
from dpp.networks import released
from dpp.paper import box_placements, followed_part, grid, moving_parts, needed_move
from dpp.runs import records
from dpp.system.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def data(tmp_path):
    return make_data(tmp_path / "cub", test=4)


def test_parts_at_their_mean_move_as_far_on_every_image(data):
    network, images = ask(make_model("dilated"), data), data.splits.test
    moved = []  # one image, one prototype of its class at a time
    for record in images.records:
        output = network.inspect(network.picture(record).tensor[None])
        for number, label in enumerate(network.labels):
            if label == record.label:
                row, column = divmod(int(output.places[0, number]), 4)
                moved.append(output.offsets[0, :, row, column].view(4, 2).numpy())
    same = part_following.held_at_mean(network, images)
    output = same.inspect(images.batch([(0, 0), (0, 5)]).images)
    expected = np.mean(moved, axis=0).ravel()
    assert output.offsets.shape == (2, 8, 4, 4)
    assert output.offsets.permute(0, 2, 3, 1).flatten(0, 2).numpy() == pytest.approx(
        np.tile(expected, (32, 1)), abs=1e-5
    )
    assert network.model.offsets is not same.model.offsets


def test_rigid_network_has_no_mean_offset(data):
    with pytest.raises(UserError, match="predicts no offsets"):
        part_following.held_at_mean(ask(make_model("rigid"), data), data.splits.test)


def test_images_that_need_moving_parts_come_first(data):
    network, images = ask(make_model("dilated"), data), data.splits.test
    held, lost = network.exchange(offsets=None), {}
    for record in images.records:
        image = network.picture(record).tensor[None]
        own = [number for number, label in enumerate(network.labels) if label == record.label]
        best = [one.inspect(image).scores[0, own].max() for one in (network, held)]
        lost[record.id] = float(best[0] - best[1])
    found = offset_effect.by_need_of_moving(network, images)
    values = [lost[record.id] for record in found]
    assert len(values) == len(images) and max(values) > min(values) + 1e-3
    assert values == pytest.approx(sorted(values, reverse=True), abs=1e-5)
    few = offset_effect.by_need_of_moving(network, images, most=3)
    assert {one.id for one in few} == {images.records[place].id for place in (0, 5, 11)}


def test_images_keep_their_order_where_nothing_moves(data):
    images = data.splits.test
    found = offset_effect.by_need_of_moving(ask(make_model("rigid"), data), images)
    assert found == list(images.records)


def test_first_images_of_each_class(data):
    images = data.splits.test
    few = following_study.first_of_classes(images, 2)
    assert few.labels.tolist() == [0, 0, 1, 1, 2, 2] and len(few) == 6
    assert [one.label for one in few.records] == few.labels.tolist()
    assert few.batch([(0, 2)]).images.equal(images.batch([(0, 4)]).images)
    assert following_study.first_of_classes(images, 0) is images and len(images) == 12


def test_share_gained_is_paired_by_class():
    rows = [(0, "moved", 0.8), (0, "moved", 0.6), (0, "at rest", 0.5)]
    rows += [(1, "moved", 0.3), (1, "at rest", 0.2)]
    found = following_study.share_gained(pd.DataFrame(rows, columns=["label", "kind", "share"]))
    assert found.mean == pytest.approx(0.15) and found.count == 2


def test_interval_is_students():
    found = interval([1.0, 2.0, 3.0, np.nan])
    assert found.mean == 2 and found.count == 3
    assert found.high - 2 == pytest.approx(4.302653 / 3**0.5)  # t of two degrees of freedom
    assert found.sign == 0 and interval([5.0, 5.1]).sign == 1 and interval([-5, -5.1]).sign == -1
    assert str(interval([])) == "not run" and str(interval([1.0])) == "+1.0 (one run)"
    assert found.named("x") == {"x": 2.0, "x low": found.low, "x high": found.high}


def test_interval_holds_the_mean_in_nineteen_of_twenty_samples():
    samples = np.random.default_rng(0).normal(3, 2, size=(2000, 5))
    held = [one.low <= 3 <= one.high for one in map(interval, samples)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)


def test_paired_differences_are_seed_by_seed():
    rows = [("rigid", 1, 0, 0.5), ("rigid", 1, 1, 0.6), ("predicted", 1, 0, 0.7)]
    rows += [("predicted", 1, 1, 0.9), ("predicted", 1, 2, 0.1)]  # has no twin
    table = pd.DataFrame(rows, columns=["kind", "pose", "seed", "accuracy"])
    found = moving_parts.paired(table, "accuracy", "rigid", "predicted")
    assert found == pytest.approx(interval([20, 30]))
    levels = moving_parts.along(table[table.kind == "rigid"], "accuracy")
    assert levels.loc[1, "mean"] == pytest.approx(55) and levels.loc[1, "count"] == 2
    assert moving_parts.along(table[:0], "accuracy").empty


def test_states_of_one_network_are_paired_run_by_run():
    rows = pd.DataFrame({"accuracy": [0.9, 0.8], "accuracy at rest": [0.7, 0.7]})
    assert moving_parts.gap(rows, "accuracy") == pytest.approx(interval([20, 10]))
    assert moving_parts.gap(rows, "accuracy", "at mean").count == 0
    table = moving_parts.by_state(rows, {"accuracy": 100})
    assert table.accuracy["moved"].startswith("85.0 [") and table.accuracy["at mean"] == "not run"


def test_departures_are_compared_with_networks_without_any_seed_by_seed():
    columns = ["run", "accuracy", "offset", "share moved", "share at rest"]
    names = [moving_parts.switched(one, 2.0, 0).name for one in ("", "zero_outside", "all")]
    rows = [(names[0], 0.9, 1, 0.5, 0.3), (names[1], 0.8, 2, 0.4, 0.3)]
    found = moving_parts.departures(pd.DataFrame(rows, columns=columns), 2.0, [0, 1])
    assert found["accuracy gained"]["zero_outside"].mean == pytest.approx(-10)
    assert found.offset["zero_outside"] == 2 and found.runs["zero_outside"] == 1
    assert found["accuracy gained"]["as the paper"].mean == 0
    assert found.runs["all"] == 0 and np.isnan(found.offset["all"])


def test_designs_differ_in_one_thing():
    three = [moving_parts.design(kind, 2.0, 3) for kind in moving_parts.KINDS]
    assert [moving_parts.kind_of(one) for one in three] == list(moving_parts.KINDS)
    assert {one.pose for one in three} == {2.0}
    assert set(moving_parts.switches()) == set(released.NAMES) - {"stacked_branch"}
    assert moving_parts.switched("", 1.5, 0) == moving_parts.design("predicted", 1.5, 0)
    assert moving_parts.switched("all", 1.5, 0).switches == released.EVERY
    assert moving_parts.switched("zero_outside", 1.5, 0).switches.zero_outside
    for start in moving_parts.STARTS.values():
        moving_parts.design("predicted", 2.0, 0, **start)


def test_rows_are_stored_once_and_read_again(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path / "results"))
    short = {"epochs": 1, "warm_epochs": 0, "second_warm_epochs": 0, "project_after": (1,)}
    experiment, measured = tiny(**short), []

    def study(run: runs.Run) -> dict[str, float]:
        measured.append(run)
        return {"share moved": 0.25}

    options = {"study": study, "root": tmp_path / "runs", "device": "cpu", "progress": False}
    assert moving_parts.collect([experiment], **options).empty and not measured
    for _ in range(2):
        found = moving_parts.collect([experiment], recompute=True, **options)
        assert len(measured) == 1 and found.run.tolist() == [experiment.name]
    assert found["share moved"].tolist() == [0.25] and found.kind.tolist() == ["predicted"]
    epochs = moving_parts.stored(experiment, moving_parts.FOLLOWING_EPOCHS)
    assert {"validation_offset", "validation_active", "offset_gradient"} <= set(epochs)
    assert len(epochs) == len(measured[0].metrics)


def test_photo_rows_that_are_not_stored_are_empty(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path))
    rows = {"run": ["a", "b"], "backbone": "resnet34", "deformable": [True, False]}
    moving_parts.records.replace_rows(
        tmp_path / "photo" / "following.csv", pd.DataFrame(rows | {"share moved": [0.5, 0.4]})
    )
    found = moving_parts.photo_rows(["resnet34", "vgg16"])["share moved"]
    assert found["resnet34"].tolist() == [0.5, 0.4] and found["vgg16"].isna().all()


def test_photo_rows_that_were_not_followed_have_the_record_of_their_run(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path))
    names = ["run", "backbone", "deformable", "margin", "test_accuracy", "test_offset", "seconds"]
    rows = [("a", "vgg16", True, 0.0, 0.3, 0.1, 1), ("b", "vgg16", True, 0.1, 0.6, 0.3, 1)]
    rows += [("c", "resnet34", True, 0.1, 0.2, 0.9, 1)]
    about = {"model": "deformable", "data": "cub", "variant": "paper", "kernel_size": 3}
    recorded = pd.DataFrame(rows, columns=names).assign(**about)
    moving_parts.records.replace_rows(tmp_path / "photo" / "runs.csv", recorded)
    followed = {"run": ["c"], "backbone": "resnet34", "deformable": True, "accuracy": 0.7}
    moving_parts.records.replace_rows(
        tmp_path / "photo" / "following.csv", pd.DataFrame(followed | {"share moved": 0.5})
    )
    found = moving_parts.photo_rows(["resnet34", "vgg16"])
    assert found.accuracy["resnet34", "deformable"] == 0.7
    assert found.loc[("vgg16", "deformable"), ["accuracy", "offset"]].tolist() == [0.6, 0.3]
    assert found["share moved"].notna().tolist() == [True, False, False, False]


def test_comparison_with_a_twin_is_paired_by_image():
    gain, twin = (pd.DataFrame({"correct moved": one}) for one in ([1, 1, 0, 1], [1, 0, 1, 0]))
    found = moving_parts.compare_with_rigid(gain.astype(bool), twin.astype(bool))
    assert found == pytest.approx(interval([0, 100, -100, 100]).named("over rigid"))


@pytest.mark.slow
def test_photo_runs_are_measured_beside_their_twins(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path / "results"))
    short = {"epochs": 1, "warm_epochs": 0, "second_warm_epochs": 0, "project_after": (1,)}
    given = {"root": tmp_path, "device": "cpu", "progress": False}
    pair = [runs.run(tiny(**short, deformable=one), **given) for one in (True, False)]
    moving_parts.measure_photo(*(str(one.folder) for one in pair), per_class=2)
    table = moving_parts.stored_table("smoke", moving_parts.FOLLOWING).set_index("run")
    rows = table.loc[[one.experiment.name for one in pair]]
    assert rows["over rigid"].notna().tolist() == [True, False]
    assert rows["share at mean"].notna().tolist() == [True, False]


def test_curves_have_one_colour_for_a_name_and_bars_where_intervals_are_known():
    known = pd.DataFrame({"mean": [1.0, 2], "low": [0.5, 1], "high": [2.0, 3]}, index=[0.0, 2.0])
    bare = pd.DataFrame({"mean": [3.0, 1]}, index=[0.0, 2.0])
    panels = {"a": {"rigid": known, "moved": bare}, "b": {"moved": bare}}
    figure = interval_curves(panels, "pose", logarithmic=["b"])
    first, second = figure.axes
    assert (first.get_yscale(), second.get_yscale()) == ("linear", "log")
    assert first.get_title() == "a" and second.get_xlabel() == "pose"
    assert len(first.collections) == 1 and not second.collections  # the bars of one curve
    named = {line.get_label(): line.get_color() for line in first.lines}
    assert named["moved"] == second.lines[0].get_color() and len(set(named.values())) > 1
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["rigid", "moved"]


def test_part_that_gains_most_is_shown_where_it_lies(tmp_path):
    short = {"epochs": 1, "warm_epochs": 0, "second_warm_epochs": 0, "project_after": (1,)}
    run = runs.run(tiny(**short, offset_start="he"), root=tmp_path, device="cpu", progress=False)
    found = followed_part.find(run, count=2)
    network = Network.of(run)
    assert len(found.records) == 2 and len({one.label for one in found.records}) == 1
    for place, record in enumerate(found.records):
        picture = network.picture(record)
        number = torch.tensor([found.prototype])
        output = network.inspect(picture.tensor[None])
        cells = tuple(output.z.shape[2:])
        there = network.model.find_parts(output, 0, number)[0][0, found.part].numpy()
        expected = picture.geometry.cell_to_image(there, cells)
        assert found.places["moved"][place] == pytest.approx(expected, abs=0.1)
        marks = [(one.y, one.x) for one in record.parts if one.visible]
        assert np.isnan(found.places["true part"][place]).all() or any(
            np.allclose(found.places["true part"][place], mark) for mark in marks
        )
    assert len(followed_part.draw(found, network).axes) == 3


def test_prototype_is_shown_where_moving_matters_most(tmp_path):
    short = {"epochs": 1, "warm_epochs": 0, "second_warm_epochs": 0, "project_after": (1,)}
    run = runs.run(tiny(**short, offset_start="he"), root=tmp_path, device="cpu", progress=False)
    network, test = Network.of(run), runs.load_splits(run.experiment, run.source).test
    found = needed_move.find(run)
    assert found.image == offset_effect.by_need_of_moving(network, test, len(test))[0]
    assert network.labels[found.prototype] == found.image.label
    image = network.picture(found.image).tensor[None]
    held = part_following.held_at_rest(network)
    moved, rest = (one.inspect(image).scores[0] for one in (network, held))
    own = [number for number, label in enumerate(network.labels) if label == found.image.label]
    assert moved[found.prototype] == moved[own].max()
    assert found.lost == pytest.approx(float((moved - rest)[found.prototype]), abs=1e-5)
    parts = run.experiment.kernel_size**2
    assert [len(panel.on) for panel in found.panels.values()] == [parts] * 3
    figure = draw_moving_parts(found.panels, found.true_parts)
    for axes, panel in zip(figure.axes, found.panels.values(), strict=True):
        assert f"{sum(panel.on)} of {parts} on their part" in axes.get_title()


def test_part_is_on_its_true_part_within_reach_and_never_on_a_hidden_one(data):
    network = ask(make_model("deformable"), data)
    record = next(one for one in data.splits.test.records if any(p.visible for p in one.parts))
    names, groups = part_following.true_parts(network.source.part_names)
    shown = {names[g] for p, g in zip(record.parts, groups, strict=True) if p.visible}
    name = sorted(shown)[0]
    cells = (len(network.cell_centres),) * 2
    (mark, *_) = part_following.true_places(network, record, name)
    there = network.geometry(record)[0].image_to_cell(mark, cells)
    places = [tuple(there), tuple(there + [0.0, 0.9]), tuple(there + [20.0, 20.0])]
    parts = tuple(Part(place, Box(0, 0, 1, 1)) for place in places)
    seen = Sighting(0, record.id, record.label, 1.0, (40, 30), cells, (0, 0), parts)
    panel = needed_move.panel_of(network, record, seen, (name,) * 3, within=1.0)
    assert panel.on == (True, True, False)
    hidden = replace(record, parts=tuple(one._replace(visible=False) for one in record.parts))
    panel = needed_move.panel_of(network, hidden, seen, (name,) * 3, within=1.0)
    assert panel.on == (False,) * 3 and np.isnan(panel.true_places).all()


def test_best_placement_is_the_nearest_or_the_one_with_most_near():
    rows = [("a", "distance", 0.1, 0.5, 0.2), ("a", "near", 0.6, 0.7, 0.5)]
    rows += [("b", "background", 0.3, 0.2, 0.1)]
    names = ["network", "measure", "receptive field", "paper", "cell"]
    table = pd.DataFrame(rows, columns=names).set_index(names[:2])
    assert box_placements.best(table).tolist() == ["receptive field", "paper", "cell"]


def test_box_placements_of_a_run_are_stored_by_measure(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path / "results"))
    assert box_placements.stored("photo").columns.tolist() == ["receptive field", "paper", "cell"]
    errors = pd.Series({"receptive field": 0.1, "paper": 0.2, "cell": 0.3})
    for _ in range(2):
        box_placements.store("mini", [box_placements._rows("vgg", {"distance": errors})])
    assert box_placements.stored("mini").to_dict("index") == {("vgg", "distance"): dict(errors)}


def test_gain_by_backbone_is_of_the_records_of_table_1(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path))
    cells = grid.cells("table1", "mini")
    rows = []
    for number, column in enumerate(grid.BACKBONES):
        for row, accuracy in (("2x2,nd", 0.5), ("2x2", 0.5 + number / 100), ("3x3", 0.9)):
            plans = cells[f"Def. ProtoPNet ({row})", column]
            given = {"test_accuracy": accuracy, "validation_accuracy": 0.5, "seconds": 1.0}
            rows += [{"run": one.name} | given for one in plans]
    records.replace_rows(tmp_path / "mini" / records.RUNS, pd.DataFrame(rows))
    fields = [
        {"run": f"{grid.slim(column)}, {end}", "half": 1.0, "most": 10.0 - number}
        for number, column in enumerate(grid.BACKBONES)
        for end in moving_parts.ENDS
    ]
    records.replace_rows(tmp_path / "mini" / moving_parts.FIELDS, pd.DataFrame(fields))
    found = moving_parts.gain_by_backbone()
    assert list(found.index) == list(grid.BACKBONES)[::-1]  # the most local first
    assert found["2x2 gained"].tolist() == pytest.approx([6, 5, 4, 3, 2, 1, 0])
    assert found["3x3 gained"].isna().all() and (found["3x3 deformable"] == 90).all()
    assert moving_parts.locality(found)[0] == pytest.approx(-1)


def test_fields_are_of_all_of_the_tables_backbones():
    found = moving_parts.stored_fields()
    assert len(found) == 14 and found["most"].notna().all()
    own, whole = (
        found[found.index.str.endswith(end)]["most"].to_numpy() for end in moving_parts.ENDS
    )
    assert (own < whole).all()
