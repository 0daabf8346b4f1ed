"""Angles and cosines against what they are by hand; neighbours counted by hand."""

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_analysis import ask, ask_projected, make_data, make_model

from dpp import runs
from dpp.analysis import audit, latent_space
from dpp.analysis.global_analysis import chance_share, own_shares, select
from dpp.analysis.latent_space import Angles
from dpp.data.batches import ImageDataset
from dpp.data.image_records import ImageRecord
from dpp.explanations import GlobalAnalysis, Neighbours, Share, Sighting
from dpp.figures import latent_figures
from dpp.networks import losses
from dpp.runs import records
from dpp.system import files, paths
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def data(tmp_path):
    return make_data(tmp_path / "cub")


@pytest.mark.parametrize("kind", ["deformable", "released"])
def test_angles_are_those_of_the_nearest_prototypes_of_both_kinds(data, kind):
    network = ask(make_model(kind), data)
    found = latent_space.measure_angles(network, data.splits.test, batch_size=4)
    assert len(found.own) == len(data.splits.test)
    for index, one in enumerate(data.splits.test):
        output = network.inspect(one.images[None])
        cosines, label = output.cosines[0].tolist(), int(one.labels)
        own = [c for c, mine in zip(cosines, network.labels, strict=True) if mine == label]
        other = [c for c, mine in zip(cosines, network.labels, strict=True) if mine != label]
        assert found.own[index] == pytest.approx(np.arccos(max(own)), abs=1e-4)
        assert found.other[index] == pytest.approx(np.arccos(max(other)), abs=1e-4)
        assert found.correct[index] == (int(output.logits.argmax()) == label)


def test_angles_of_a_network_without_deformable_prototypes_are_refused(data):
    with pytest.raises(UserError, match="no deformable prototypes"):
        latent_space.measure_angles(ask(make_model("protopnet"), data), data.splits.test)


def test_margin_brings_other_classes_nearer_but_not_beyond_zero():
    angles = Angles(np.array([0.1, 0.3, 0.2]), np.array([0.15, 0.9, 0.05]), np.ones(3, bool))
    assert angles.inflated(0.1) == pytest.approx([0.05, 0.8, 0])
    assert angles.ahead() == pytest.approx(2 / 3)
    assert angles.ahead(0.1) == pytest.approx(1 / 3)


def test_margin_is_the_one_that_training_subtracts():
    cosines = torch.tensor([[0.2, 0.999]], dtype=torch.float64)
    angles = Angles(np.zeros(2), cosines[0].arccos().numpy(), np.ones(2, bool))
    trained = losses.subtractive_margin(cosines, torch.tensor([0]), torch.tensor([1, 1]), 0.1)
    assert np.cos(angles.inflated(0.1)) == pytest.approx(trained[0].numpy())


def set_parts(network, rows) -> None:
    """Puts unit vectors in place of the parts of all prototypes, by class, prototype and part."""
    vectors = network.model.prototypes.vectors
    with torch.no_grad():
        vectors.zero_()
        for prototype, part in np.ndindex(len(rows), len(rows[0])):
            vectors[prototype, rows[prototype][part]].view(-1)[part] = 1


def test_part_cosines_tell_equal_parts_of_a_prototype_from_equal_prototypes(data):
    network = ask(make_model("dilated"), data)  # 3 classes of 2 prototypes of 4 parts
    set_parts(network, [[0, 1, 2, 3]] * 6)
    assert latent_space.part_cosines(network) == pytest.approx((4 / 28, 0), abs=1e-6)
    set_parts(network, [[0, 0, 0, 0], [1, 1, 1, 1]] * 3)
    assert latent_space.part_cosines(network) == pytest.approx((12 / 28, 1), abs=1e-6)


def test_stage_one_state_inverts_the_losses(data):
    model = make_model("dilated")
    layer, experiment = model.prototypes, make_experiment("mini", kernel_size=2, per_class=2)
    normalised = layer.normalised().detach()
    row = {"stage": "train", "epoch": 7, "cluster": -0.8, "separation": 0.5}
    row["orthogonality"] = float(losses.orthogonality(normalised, layer.classes, layer.length))
    later = row | {"stage": "project", "cluster": 0.0}
    found = latent_space.stage_one_state(pd.DataFrame([row, later]), experiment, 3, 7)
    assert found["own"] == pytest.approx(np.arccos(0.8))
    assert found["gap"] == pytest.approx(np.arccos(0.5) - np.arccos(0.8))
    parts = normalised.flatten(2).mT.unflatten(0, (3, 2)).flatten(1, 2) / layer.length
    cosines = torch.bmm(parts, parts.mT)[:, ~torch.eye(8, dtype=torch.bool)]
    assert found["cosine"] == pytest.approx(float(cosines.square().mean().sqrt()), rel=1e-4)


def test_stage_one_table_leaves_out_rigid_prototypes_and_what_was_not_run(monkeypatch):
    made = make_experiment("mini", kernel_size=2)
    rigid, missing = (
        make_experiment("mini", kernel_size=2, **changed)
        for changed in ({"deformable": False}, {"seed": 1})
    )
    epochs = {"stage": "train", "epoch": [20, 30], "cluster": -0.5, "separation": 0.2}
    record = SimpleNamespace(
        summary={"classes": 10}, metrics=pd.DataFrame(epochs | {"orthogonality": 1.0})
    )
    there = {made.name: record, rigid.name: record}
    monkeypatch.setattr(records, "stored", lambda experiment: there.get(experiment.name))
    table = latent_space.stage_one_table({"a": [made, missing], "b": [rigid]})
    assert table.epoch.tolist() == [20, 30] and set(table.seed) == {0}
    assert latent_space.stage_one_table({"a": [missing]}).empty


@pytest.mark.parametrize("where", ["beside", "committed", "nowhere"])
def test_twin_is_found_beside_a_run_or_committed_and_never_trained(tmp_path, monkeypatch, where):
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    run = runs.Run(make_experiment("mini"), tmp_path / "runs" / "example")
    twin = make_experiment("mini", margin=0.0)
    committed = tmp_path / "results" / "mini" / "networks"
    root = {"beside": run.folder.parent, "committed": committed, "nowhere": tmp_path}[where]
    files.write_json(root / twin.name / "experiment.json", asdict(twin))
    files.write_json(root / twin.name / "manifest.json", {})
    found = latent_space.find_twin(run, margin=0.0)
    assert (found and found.folder) == (None if where == "nowhere" else root / twin.name)


def test_untrained_networks_of_one_seed_are_the_same(data):
    experiment = make_experiment("mini", kernel_size=2)
    first, again = (latent_space.untrained(experiment, data.source) for _ in range(2))
    for one, other in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert set(first.labels) == set(range(len(data.source.class_names)))


def test_angle_figure_has_a_row_for_each_network(data):
    angles = latent_space.measure_angles(ask_projected(data), data.splits.test)
    figure = latent_figures.angles({"one": angles, "another network": angles}, 0.1)
    assert [axes.get_ylabel() for axes in figure.axes] == ["one", "another\nnetwork"]
    counts = sum(bar.get_height() for bar in figure.axes[0].containers[0])
    assert counts == len(angles.own)


def neighbours(number: int, label: int, *labels: int) -> Neighbours:
    seen = tuple(
        Sighting(number, str(i), at, 0.5, (9, 9), (4, 4), (0, 0), ()) for i, at in enumerate(labels)
    )
    return Neighbours(number, label, seen, seen[::-1])


FOUND = GlobalAnalysis("run", 2, (neighbours(0, 0, 0, 1), neighbours(3, 1, 1, 1)))


def test_own_shares_count_the_first_then_the_first_two():
    assert own_shares(FOUND, "train") == [Share(2, 2), Share(3, 4)]
    assert own_shares(FOUND) == [Share(1, 2), Share(3, 4)]


def test_chance_share_weighs_classes_by_their_prototypes():
    records = [ImageRecord(str(i), Path(), label) for i, label in enumerate((0, 0, 0, 1, 2))]
    images = ImageDataset(records, store=None)
    assert chance_share(FOUND, images) == Share(3 + 1, 10)


def test_selected_prototypes_keep_their_first_neighbours_in_the_given_order():
    chosen = select(FOUND, [3, 0], 1)
    assert [one.prototype for one in chosen.prototypes] == [3, 0] and chosen.count == 1
    assert all(len(one.train) == len(one.test) == 1 for one in chosen.prototypes)


def test_close_parts_count_prototypes_and_not_parts():
    places = {0: ((0, 0), (0, 0.4), (0, 0.2)), 1: ((0, 0), (0, 0.6), (2, 0)), 2: ((1, 1),)}
    origins = {number: SimpleNamespace(parts=parts) for number, parts in places.items()}
    network = SimpleNamespace(origins=origins)
    assert audit.close_parts(network) == Share(1, 3)
    assert audit.close_parts(network, 1.0) == Share(2, 3)
