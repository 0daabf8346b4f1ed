"""Whether parts follow the animal, against loops over images, parts and marks."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from test_runs import tiny
from tiny_analysis import ask, make_data, make_model
from tiny_network import TinyBackbone

from dpp import runs
from dpp.analysis import Network, following_study, joint_study, part_following
from dpp.data import read_cub
from dpp.drawn import posebirds
from dpp.drawn.species import kinds
from dpp.drawn.studio import generator
from dpp.networks.model import DeformableProtoPNet
from dpp.system.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def data(tmp_path):
    return make_data(tmp_path / "cub", test=4)


def slow_places(network, record) -> dict[tuple[int, int], np.ndarray]:
    """Where each part of each prototype of the image's class is, by `find_parts` on it alone."""
    output = network.inspect(network.picture(record).tensor[None])
    own = [n for n, label in enumerate(network.labels) if label == record.label]
    places, _ = network.model.find_parts(output, 0, torch.tensor(own))
    return {
        (number, part): places[row, part].numpy()
        for row, number in enumerate(own)
        for part in range(places.shape[1])
    }


def slow_marks(network, record, groups) -> dict[int, list[np.ndarray]]:
    """The visible marks of each true part of an image, on the map."""
    found = {}
    for part, group in zip(record.parts, groups, strict=True):
        if part.visible:
            view = network.geometry(record)[0]
            found.setdefault(group, []).append(view.image_to_cell((part.y, part.x), (4, 4)))
    return found


def nearest(place, marks) -> float:
    return min(float(np.hypot(*(place - mark))) for mark in marks)


def slow_follow(network, reference, dataset, groups, within):
    """{(prototype, part): (true part, share, elsewhere, distance)}, image by image."""
    found = {}
    seen = {
        id(split): [
            (one.label, slow_places(network, one), slow_marks(network, one, groups))
            for one in split.records
        ]
        for split in (reference, dataset)
    }
    for label in range(3):
        before, after = (
            [(places, marks) for own, places, marks in seen[id(split)] if own == label]
            for split in (reference, dataset)
        )
        for key in before[0][0]:
            shares = {}
            for group in set(groups):
                shown = [(p[key], m[group]) for p, m in before if group in m]
                if len(shown) >= len(before) / 2:
                    shares[group] = np.mean([nearest(*one) <= within for one in shown])
            own = max(shares, key=lambda group: (shares[group], -group))
            here = [nearest(p[key], m[own]) for p, m in after if own in m]
            there = [
                nearest(after[one][0][key], after[other][1][own])
                for one in range(len(after))
                for other in range(len(after))
                if one != other and own in after[other][1]
            ]
            share, elsewhere = (np.mean(np.array(x) <= within) for x in (here, there))
            found[key] = own, share, elsewhere, np.median(here), np.median(there)
    return found


@pytest.mark.parametrize("kind", ["dilated", "deformable"])
@pytest.mark.parametrize("within", [0.7, 1.6])
def test_following_is_that_of_loops(data, kind, within):
    network = ask(make_model(kind).double(), data)
    names, groups = part_following.true_parts(data.source.part_names)
    assert names == ["beak", "wing", "tail"]
    splits = data.splits.projection, data.splits.test
    found = part_following.follow(network, *splits, within=within)
    for state, one in (("moved", network), ("at rest", network.exchange(offsets=None))):
        expected = slow_follow(one, *splits, groups, within)
        rows = found[found.kind == state]
        assert len(rows) == len(expected)
        for row in rows.to_dict("records"):
            values = expected[row["prototype"], row["part"]]
            assert row["true part"] == names[values[0]]
            columns = ("share", "elsewhere", "distance", "elsewhere distance")
            assert [row[name] for name in columns] == pytest.approx(list(values[1:]))
    assert part_following.summarise(found).index.tolist() == ["moved", "at rest"]
    moved, held = (found[found.kind == state] for state in ("moved", "at rest"))
    assert not np.allclose(moved.distance, held.distance)


def test_either_of_a_pair_is_the_same_true_part():
    names, groups = part_following.true_parts(("left eye", "beak", "right eye"))
    assert names == ["eye", "beak"] and groups == [0, 1, 0]
    marks = np.array([[[0.0, 0.0], [9.0, 9.0], [np.nan, np.nan]], [[5.0, 5.0], [9.0, 9.0], [1, 1]]])
    apart = part_following.distances(np.zeros((2, 1, 1, 2)), marks, groups)
    assert apart[:, 0, 0, 0] == pytest.approx([0, 2**0.5])


def test_true_part_that_few_images_show_is_nobodys():
    apart = np.full((5, 1, 1, 2), np.inf)
    apart[:2, ..., 0] = 0.1  # always hit, but shown on two images of five
    apart[:, ..., 1] = [[[0.1]], [[9]], [[9]], [[9]], [[9]]]
    assert part_following.own_true_parts(apart).tolist() == [[1]]
    apart[2, ..., 0] = 0.1
    assert part_following.own_true_parts(apart).tolist() == [[0]]


def test_gain_is_the_mean_over_own_and_other_prototypes(data):
    network = ask(make_model("dilated").double(), data)
    found = part_following.gain_by_moving(network, data.splits.test)
    held = network.exchange(offsets=None)
    for row, record in enumerate(data.splits.test.records):
        image = network.picture(record).tensor[None]
        scores = [one.inspect(image).scores[0] for one in (network, held)]
        gains = {True: [], False: []}
        for number, label in enumerate(network.labels):
            gains[label == record.label].append(float(scores[0][number] - scores[1][number]))
        assert found.own[row] == pytest.approx(np.mean(gains[True]), abs=1e-9)
        assert found.others[row] == pytest.approx(np.mean(gains[False]), abs=1e-9)
    assert found.own.abs().max() > 1e-3


def test_data_without_marks_are_refused(data):
    data.splits.test.records = tuple(replace(r, parts=None) for r in data.splits.test.records)
    with pytest.raises(UserError, match="no annotated parts"):
        part_following.land(ask(make_model("dilated"), data), data.splits.test)


def test_features_are_computed_once_and_seen_as_the_network_and_at_rest(data):
    network = ask(make_model("dilated"), data)
    images = data.splits.test.batch([(0, 0), (0, 3)]).images
    found = part_following.see(network, images)
    assert found["moved"].scores.equal(network.inspect(images).scores)
    held = network.exchange(offsets=None).inspect(images)
    assert found["at rest"].scores.equal(held.scores) and found["at rest"].offsets is None


def test_turning_the_neck_moves_the_head_and_nothing_else():
    kind = kinds(3, base=False)[2]
    turned = joint_study.turn_joint(kind, 1, 96, 1.0, "neck", 30.0)
    went = {name: np.abs(place[1] - place[0]).max() for name, place in turned.parts.items()}
    assert {name for name, far in went.items() if far > 0.5} <= {
        *("beak", "crown", "forehead", "nape", "throat", "left eye", "right eye")
    }
    assert max(went.values()) > 3 and went["tail"] == went["belly"] == 0
    assert not turned.images[0].equal(turned.images[1])
    plain = posebirds.draw_image(kind, generator("posebirds", 0, "joints", kind, 1), 96, 1.0)
    assert all(plain.parts[name] == tuple(turned.parts[name][0, ::-1]) for name in turned.parts)


@pytest.fixture
def birds(tmp_path):
    folder = posebirds.make(tmp_path, classes=2, train_per_class=2, test_per_class=1, image_size=32)
    torch.manual_seed(1)
    model = DeformableProtoPNet(TinyBackbone(), 2, per_class=3, kernel_size=2).eval()
    model.offsets.reset_parameters(0.5)
    return Network(model, "birds", read_cub(folder), 32)


def test_answers_to_joints_are_those_of_single_birds(birds):
    found = joint_study.answer_to_joints(birds, birds=2, within=2.0)
    assert set(found.joint) == set(joint_study.JOINTS) and len(found) > 10
    for row in found.sample(10, random_state=0).to_dict("records"):
        kind = kinds(2, base=False)[row["label"]]
        turned = joint_study.turn_joint(kind, row["bird"], 32, 1.0, row["joint"], row["angle"])
        number, ends = torch.tensor([row["prototype"]]), []
        for image in turned.images:
            output = birds.inspect(image[None])
            ends.append(birds.model.find_parts(output, 0, number)[0][0, row["part"]].numpy())
        assert [row["down"], row["right"]] == pytest.approx(list(ends[1] - ends[0]), abs=1e-4)
        marks = {name: place / 4 - 0.5 for name, place in turned.parts.items()}
        near = {name: np.hypot(*(mark[0] - ends[0])) for name, mark in marks.items()}
        assert row["true part"] == min(near, key=near.get) and min(near.values()) <= 2
        went = marks[row["true part"]][1] - marks[row["true part"]][0]
        assert [row["true down"], row["true right"]] == pytest.approx(list(went), abs=1e-6)


def test_joints_of_other_data_cannot_be_turned(data):
    with pytest.raises(UserError, match="not PoseBirds"):
        joint_study.answer_to_joints(ask(make_model("dilated"), data))


def test_slope_of_parts_that_go_half_the_way_is_a_half():
    true = np.random.default_rng(0).normal(size=(50, 2))
    columns = ["true down", "true right", "down", "right"]
    half = pd.DataFrame(np.concatenate([true, true / 2], axis=1), columns=columns)
    found = joint_study.slope_of(half)
    assert found["slope"] == pytest.approx(0.5) and found["R2"] == pytest.approx(1)
    assert found["own"] == pytest.approx(found["true"] / 2) and found["count"] == 50
    noise = half.assign(down=np.random.default_rng(1).normal(size=50))
    assert joint_study.slope_of(noise)["R2"] < 0.5
    assert joint_study.slope_of(half.assign(down=0.0, right=0.0))["slope"] == 0
    assert np.isnan(joint_study.slope_of(pd.DataFrame([]))["slope"])  # no part lay on a true part


@pytest.mark.parametrize("deformation", ["predicted", "search"])
def test_study_has_the_measures_of_a_run(tmp_path, deformation):
    short = {"epochs": 1, "warm_epochs": 0, "second_warm_epochs": 0, "project_after": (1,)}
    experiment = tiny(**short, kernel_size=2, deformation=deformation, cut_after="layer2")
    run = runs.run(experiment, root=tmp_path, device="cpu", progress=False)
    found = following_study.study(run, birds=1, images=1)
    network, splits = Network.of(run), runs.load_splits(experiment, run.source)
    assert found["cell"] == 4 and len(network.cell_centres) == 8
    within = 1.0  # cells: an eighth of the image
    means = part_following.follow(network, splits.projection, splits.test, within)
    means = means.groupby("kind")[["share", "distance"]].mean()
    assert found["share moved"] == pytest.approx(means.share["moved"])
    assert found["distance at rest"] == pytest.approx(4 * means.distance["at rest"])
    assert found["accuracy"] == pytest.approx(run.manifest["results"]["test_accuracy"])
    assert {"slope moved", "R2 at rest", "gain others", "half"} <= found.keys()
