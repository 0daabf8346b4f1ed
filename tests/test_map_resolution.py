"""The study of the map's resolution: its part of CUB, its experiments, its paired comparisons."""

import os
from dataclasses import asdict
from types import SimpleNamespace

import pandas as pd
import pytest
from tiny_data import write_cub

from dpp.analysis.intervals import interval
from dpp.data import catalogue
from dpp.data.class_subset import class_subset
from dpp.data.cub import read_cub
from dpp.data.folder_digest import folder_digest
from dpp.paper import map_resolution, moving_parts
from dpp.system import paths
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment


@pytest.fixture
def whole(tmp_path, monkeypatch):
    """A data set in CUB's layout with 21 classes, under the data root."""
    monkeypatch.setenv("DPP_DATA", str(tmp_path))
    return write_cub(tmp_path / "CUB_200_2011", classes=21)


def test_every_so_many_classes_keep_their_images_numbers_and_split(whole, tmp_path):
    source, part = read_cub(whole), class_subset(whole, tmp_path / "part", every=10)
    assert part.name == "part"
    assert part.class_names == tuple(source.class_names[label] for label in (0, 10, 20))
    for kept, all_of_them in ((part.train, source.train), (part.test, source.test)):
        expected = [one for one in all_of_them if one.label % 10 == 0]
        assert [one.id for one in kept] == [one.id for one in expected]
        assert [10 * one.label for one in kept] == [one.label for one in expected]
        for here, there in zip(kept, expected, strict=True):
            assert (here.box, here.parts) == (there.box, there.parts)
            assert os.path.samefile(here.path, there.path)
    assert part.part_names == source.part_names


def test_part_of_a_data_set_is_the_same_wherever_it_is_written(whole, tmp_path):
    places = [tmp_path / "one", tmp_path / "deeper" / "two"]
    sources = [class_subset(whole, place, every=7) for place in places]
    assert len({folder_digest(one.root) for one in sources}) == 1
    assert folder_digest(sources[0].root) != folder_digest(
        class_subset(whole, tmp_path / "three", every=5).root
    )


def test_part_that_is_there_is_read_and_not_written_again(whole, tmp_path):
    class_subset(whole, tmp_path / "part", every=10)
    (tmp_path / "part" / "classes.txt").write_text("1 001.Bird_1\n11 011.Bird_11\n")
    with pytest.raises(UserError, match="class 21 is not in classes.txt"):
        class_subset(whole, tmp_path / "part", every=10)


def test_data_without_boxes_and_parts_has_a_part_without_them(whole, tmp_path):
    for name in ("bounding_boxes.txt", "parts/part_locs.txt", "parts/parts.txt"):
        (whole / name).unlink()
    part = class_subset(whole, tmp_path / "part", every=10)
    assert part.part_names == () and {one.box for one in part.records} == {None}


def test_study_trains_every_tenth_class_as_photo_trains_all(whole):
    one = map_resolution.design("VGG-16", "predicted", 2)
    usual = make_experiment("photo", backbone="vgg16", seed=2, data=one.data, batch_size=8)
    assert one == usual and (one.kernel_size, one.per_class) == (3, 6)
    assert len(catalogue.load(one.data).class_names) == 3
    assert one.row["data"] == "CUB_every_10th"
    assert not map_resolution.design("VGG-16", "rigid", 2).deformable
    local = map_resolution.design("local ResNet-34", "search", 0)
    assert (local.cut_after, local.deformation) == ("layer3.0", "search")
    for name in map_resolution.NETWORKS:
        made = map_resolution.design(name, "rigid", 0)
        assert map_resolution.network_of(asdict(made)) == name
    assert map_resolution.network_of(asdict(make_experiment("photo", epochs=9))) == "resnet34"


def test_study_without_cub_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_DATA", str(tmp_path))
    with pytest.raises(UserError, match="dpp data cub"):
        map_resolution.design("VGG-16", "rigid", 0)


def run_of(network: str, kind: str, seed: int):
    """What `store_decisions` looks at of a run."""
    fields = map_resolution.NETWORKS[network] | map_resolution.KINDS[kind]
    return SimpleNamespace(experiment=make_experiment("photo", seed=seed, **fields))


@pytest.fixture
def decided(tmp_path, monkeypatch):
    """Four images, decided by two seeds of VGG-16 and one of ResNet-34."""
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path))
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "committed")  # nothing
    correct = {
        ("VGG-16", "rigid", 0): [0, 0, 1, 1],
        ("VGG-16", "predicted", 0): [1, 0, 1, 0],
        ("VGG-16", "rigid", 1): [0, 0, 0, 1],
        ("VGG-16", "predicted", 1): [1, 1, 1, 1],
        ("VGG-16", "predicted", 2): [0, 0, 0, 0],  # without a twin of its seed
        ("ResNet-34", "rigid", 0): [1, 1, 1, 1],
        ("ResNet-34", "predicted", 0): [1, 1, 1, 0],
        ("ResNet-34", "search", 0): [0, 0, 1, 1],
        ("local ResNet-34", "search", 0): [1, 1, 1, 0],
    }
    for key, values in correct.items():
        map_resolution.store_decisions(run_of(*key), ["5", "10", "7", "12"], values)
    return correct


def test_kinds_are_compared_image_by_image_by_the_means_over_seeds(decided):
    gains = map_resolution.gain_by_image("VGG-16")
    expected = {"image 10": 100 / 3, "image 12": -200 / 3, "image 5": 200 / 3, "image 7": 50 / 3}
    assert dict(gains) == pytest.approx(expected)
    searched = map_resolution.gain_by_image("ResNet-34", "predicted", "search")
    assert dict(searched) == {"image 10": -100, "image 12": 100, "image 5": -100, "image 7": 0}
    assert map_resolution.gain_by_image("local ResNet-34").empty
    expected = interval([100 / 3, -200 / 3 + 100, 200 / 3, 50 / 3])
    assert map_resolution.compare_gains() == pytest.approx(expected)


def test_decisions_of_a_run_replace_its_older_ones(decided):
    before = map_resolution.decisions()
    assert before["VGG-16 rigid 0"]["image 7"] == 1
    map_resolution.store_decisions(
        run_of("VGG-16", "rigid", 0), ["5", "10", "7", "12"], [True, False, False, True]
    )
    after = map_resolution.decisions()
    assert list(after["VGG-16 rigid 0"][["image 5", "image 10", "image 7", "image 12"]]) == [
        1,
        0,
        0,
        1,
    ]
    others = before.columns.drop("VGG-16 rigid 0")
    pd.testing.assert_frame_equal(after[others], before[others])


def test_rows_of_the_study_are_apart_from_those_of_all_classes(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path))
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "committed")  # nothing
    rows = [
        ("a", "cub", True, None, 0, 0.7),
        ("b", "CUB_every_10th", False, None, 0, 0.5),
        ("c", "CUB_every_10th", True, None, 0, 0.6),
        ("d", "CUB_every_10th", True, "search", 0, 0.4),
        ("e", "CUB_every_10th", False, None, 1, 0.5),
        ("f", "CUB_every_10th", True, None, 1, 0.55),
    ]
    names = ["run", "data", "deformable", "deformation", "seed", "accuracy"]
    gained = {"share gained": 0.02, "share gained low": -0.01, "share gained high": 0.05}
    table = pd.DataFrame(rows, columns=names).assign(backbone="vgg16", epochs=7, **gained)
    moving_parts.records.replace_rows(tmp_path / "photo" / "following.csv", table)
    found = map_resolution.stored_rows()
    assert found.run.tolist() == ["c", "f", "b", "e", "d"]
    assert found.kind.tolist() == ["predicted", "predicted", "rigid", "rigid", "search"]
    means = map_resolution.summarise(found)
    assert means.accuracy["VGG-16"].tolist() == pytest.approx([0.5, 0.575, 0.4])
    assert means.runs.tolist() == [2, 2, 1, *12 * [0]] and means.accuracy["ResNet-34"].isna().all()
    assert map_resolution.gain_by_seed("VGG-16") == pytest.approx(interval([10, 5]))
    assert map_resolution.gain_by_seed("VGG-16", "predicted", "search").count == 1
    told = " ".join(map_resolution.describe("VGG-16"))
    assert "points: not run over the test images, +7.5 [-24.3, +39.3] over seeds" in told
    assert "seed by seed, +2.0 [-1.0, +5.0], +2.0 [-1.0, +5.0]; moved over at mean not run" in told
    told = " ".join(map_resolution.describe("VGG-16", "search"))
    assert (
        "VGG-16, search, accuracy over rigid, points: not run over the test images, -10.0" in told
    )
    assert moving_parts.photo_rows(["vgg16"]).accuracy["vgg16", "deformable"] == 0.7
