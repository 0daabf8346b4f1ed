"""What notebooks 00 to 03 compute and draw: toy prototypes, gradients, data, tables."""

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_analysis import ask, make_data, make_model

from dpp import runs
from dpp.analysis import data_study, gradient_study, offset_effect, training_study
from dpp.analysis import toy_prototype as toy
from dpp.figures import lesson_charts, lesson_figures
from dpp.figures.notebook_tables import Table
from dpp.runs import records
from dpp.runs.records import RunRecord
from dpp.system.errors import UserError
from dpp.training.experiments import example_experiment


def test_table_is_the_same_on_every_execution():
    frame = pd.DataFrame({"a": [1.234, None], "b": ["x", "y"]}, index=[0.5, 1.0])
    first, second = (
        Table(frame, {"a": "{:.1f}"}, caption="c")._repr_mimebundle_() for _ in range(2)
    )
    assert first == second
    assert "0.5  1.2  x" in first["text/plain"] and "1  –  y" in first["text/plain"]
    assert "<caption>c</caption>" in first["text/html"]


def test_individual_changes_nothing_but_its_pose():
    still, bent, again = lesson_figures.draw_individual(1, 7, [0.3, 1.6, 0.3], image_size=64)
    assert (still.pixels == again.pixels).all() and still.parts == again.parts
    assert (still.pixels[:8, :8] == bent.pixels[:8, :8]).all()  # the backdrop
    assert still.parts["beak"] != bent.parts["beak"]


def test_rigid_arrangement_is_shifted_as_a_whole():
    source, target = np.array([[0.0, 0], [10, 0]]), np.array([[5.0, 5], [25, 5]])
    shifted = lesson_figures.keep_arrangement(source, target)
    assert np.allclose(shifted - shifted[0], source - source[0])
    assert np.allclose(shifted.mean(axis=0), target.mean(axis=0))
    assert lesson_figures.is_hit(shifted, target, side=10).tolist() == [True, True]
    assert lesson_figures.is_hit(shifted, target, side=9).tolist() == [False, False]


def test_toy_prototype_follows_written_offsets():
    centre, moves = (6, 6), torch.tensor([[-2, 0], [0, 2], [0, -2], [2, 2]])
    rest = toy.rest_at(centre)
    first, second = toy.bird_map(rest, 13), toy.bird_map(rest + moves, 13)
    prototype = toy.take_prototype(first, centre)
    offsets = toy.offsets_at_centre(moves, centre, 13)
    assert toy.best_match(first, prototype).similarity == pytest.approx(1, abs=1e-6)
    assert toy.best_match(second, prototype).similarity < 0.7
    match = toy.best_match(second, prototype, offsets)
    assert match.similarity == pytest.approx(1, abs=1e-3) and match.centre == centre
    assert np.allclose(match.parts, rest + moves)


def test_reaching_offsets_lead_each_part_to_its_target():
    targets = toy.rest_at((6, 6)) + torch.tensor([[-0.4, 0.6], [0.3, 0.5], [0.7, -0.5], [0.6, 0.4]])
    field = toy.reaching_offsets(targets, 13)[0, :, 6, 6].reshape(4, 2)
    assert torch.allclose(toy.rest_at((6, 6)) + field, targets)


def test_parts_keep_their_length_off_the_map():
    features = toy.bird_map(toy.rest_at((6, 6)), 13)
    far = torch.tensor([0.0, 0.4, 100.0, float("inf"), float("nan")])
    lengths = toy.lengths_under_parts(features, (6, 6), far)
    assert lengths.shape == (5, 4)
    assert torch.allclose(lengths, torch.full_like(lengths, toy.LENGTH))


def test_squares_keep_the_length_between_corners_and_the_mean_does_not():
    bilinear, squares = gradient_study.interpolate_corners(torch.eye(4), torch.tensor([0, 0.5, 1]))
    assert torch.allclose(bilinear.norm(dim=1), torch.tensor([1, 0.5, 1]))
    assert torch.allclose(squares.norm(dim=1), torch.ones(3))


def test_operator_agrees_with_central_differences():
    assert max(gradient_study.deviation_from_differences().values()) < 1e-6


def test_slope_near_a_whole_cell_is_bounded():
    true, bounded = gradient_study.slopes_near_zero(torch.tensor([1e-12, 0.01]).double())
    assert true.tolist() == pytest.approx([5e5, 5]) and bounded.tolist() == pytest.approx([5e3, 5])


def test_released_offset_gradient_is_the_one_that_is_wrong():
    slopes = gradient_study.offset_slopes(200)
    errors = slopes.sub(slopes["finite difference"], axis=0).abs().mean()
    assert errors["supplement"] < 1e-6 < 0.1 < errors["released"]
    ratio, cosine = gradient_study.released_prototype_gradient(200)
    assert ratio < 0.9 < cosine


def test_classes_of_posebirds_differ_in_three_attributes_at_least():
    attributes = data_study.attributes_of_classes([str(number) for number in range(10)])
    differ = data_study.differing_attributes(attributes)
    assert attributes.shape == (10, 8) and len(differ) == 45 and differ.min() == 3


def record_of_training(after: tuple[int, ...]) -> RunRecord:
    """A record of three epochs, projected after some of them."""
    rows = []
    for epoch in (1, 2, 3):
        losses = {"cross_entropy": 9.0 / epoch, "cluster": -0.1 * epoch, "separation": 0.1}
        rows.append({"stage": "train", "epoch": epoch, **losses, "orthogonality": 5.0 * epoch})
        if epoch in after:
            rows.append({"stage": "project", "epoch": epoch, "source_images": 4.0})
            rows.append({"stage": "last layer", "epoch": epoch, "zero_connections": 0.5})
    metrics = pd.DataFrame(rows).assign(test_accuracy=0.9)
    return RunRecord({"classes": 2, "per_class": 3, "test_accuracy": 0.8}, metrics)


def test_losses_are_read_at_the_turns_of_training():
    metrics = record_of_training(after=(2, 3)).metrics
    turns = training_study.losses_at_turns(metrics)
    assert turns.index.tolist() == [1, 2, 3]
    assert turns.gap.tolist() == pytest.approx([0, 0.1, 0.2])
    assert training_study.jump_at_projection(metrics)["orthogonality"] == pytest.approx(5)


def test_jump_is_missing_when_nothing_follows_the_projection():
    metrics = record_of_training(after=(3,)).metrics
    assert training_study.jump_at_projection(metrics).isna().all()


def test_accuracies_follow_the_last_epoch_through_its_stages():
    record = record_of_training(after=(2, 3))
    table = training_study.accuracy_by_stage({"deformable": {"a": record}, "rigid": {"a": record}})
    assert table.columns.tolist() == ["stage 1", "stage 2", "stage 3", "rigid"]
    assert table.loc["a"].tolist() == [0.9, 0.9, 0.9, 0.8]
    left = training_study.left_behind(record)
    assert left == {"prototypes": 6, "source images": 4, "zero connections": 0.5}


def test_records_of_a_run_come_with_those_of_its_twins(monkeypatch):
    run = runs.find_or_committed(example_experiment("mini"))
    stored = training_study.records_of(run)
    accuracy = training_study.accuracy_by_stage(stored).loc[run.experiment.backbone]
    assert list(accuracy.index) == ["stage 1", "stage 2", "stage 3", "rigid", "plain CNN"]
    assert accuracy.notna().all()
    assert accuracy["stage 3"] == pytest.approx(run.manifest["results"]["test_accuracy"], abs=1e-5)
    monkeypatch.setattr(records, "stored", lambda experiment: None)  # twins were not run
    missing = training_study.accuracy_by_stage(training_study.records_of(run))
    assert missing[["rigid", "plain CNN"]].isna().all(axis=None)
    tree = runs.find_or_committed(example_experiment("mini", model="prototree"))
    with pytest.raises(UserError, match="is a prototree: give a run of the model deformable"):
        training_study.records_of(tree)


def test_charts_draw_what_they_are_given():
    share = np.linspace(0, 1, 5)
    effect = pd.DataFrame({"moved": [0.9, 0.8], "at_rest": [0.85, 0.8], "searched": [0.95, 0.9]})
    slopes = pd.DataFrame({"truth": [0.0, 1], "supplement": [0.0, 1], "released": [0.0, 4]})
    drawn = [
        lesson_charts.interpolation(share, share, share),
        lesson_charts.singular_slope(share + 1, share + 1, share + 1, 1e-4),
        lesson_charts.slopes_against_truth(slopes, "truth"),
        lesson_charts.moved_against_rest(effect),
    ]
    assert [len(figure.axes) for figure in drawn] == [2, 1, 1, 2]
    lesson_charts.pyplot.close("all")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("cub"))


@pytest.mark.parametrize("kind", ["deformable", "dilated"])
def test_offsets_of_zero_are_worth_nothing(kind, tiny):
    network = ask(make_model(kind), tiny)
    for parameter in network.model.offsets.parameters():
        parameter.data.zero_()
    effect = offset_effect.effect_of_offsets(network, tiny.splits.test)
    assert len(effect) == len(tiny.splits.test) and (effect.distance == 0).all()
    assert np.allclose(effect.moved, effect.at_rest)
    assert (effect.searched >= effect.at_rest - 1e-6).all()
    assert np.allclose(offset_effect.offset_spread(network, tiny.splits.test), 0)


def test_search_within_no_reach_finds_the_parts_at_rest(tiny):
    network = ask(make_model("deformable"), tiny)
    held = ask(make_model("deformable"), tiny)
    for parameter in held.model.offsets.parameters():
        parameter.data.zero_()
    effect = offset_effect.effect_of_offsets(held, tiny.splits.test, reach=0)
    inside = effect.searched <= effect.at_rest + 1e-6  # the search keeps its parts on the map
    assert inside.all()
    assert (offset_effect.effect_of_offsets(network, tiny.splits.test).distance > 0).all()


def test_constant_offsets_are_common_to_all_images(tiny):
    network = ask(make_model("dilated"), tiny)
    for parameter in network.model.offsets.parameters():
        parameter.data.zero_()
    network.model.offsets[2].bias.data[:2] = torch.tensor([3.0, 4.0])
    spread = offset_effect.offset_spread(network, tiny.splits.test)
    assert spread.common.tolist() == pytest.approx([5, 0, 0, 0])
    assert np.allclose(spread[["with_place", "with_image"]], 0)


def test_cells_of_a_network_are_compared_by_distance(tiny):
    network = ask(make_model("deformable"), tiny)
    alike = offset_effect.similarity_by_distance(network, tiny.splits.test, farthest=2)
    assert alike.index.tolist() == [1, 2] and alike.between(-1, 1 + 1e-6).all()
