"""Training from a frozen trunk's features: the same as from the images, kept, resumed, verified."""

import json
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from tiny_data import write_cub

from dpp import data, runs
from dpp.backbones.backbone import make_backbone
from dpp.data import feature_store
from dpp.data.batches import batches, make_loader, make_splits
from dpp.data.disk_space import NoSpaceError
from dpp.data.feature_store import FeatureStore
from dpp.data.transforms import choose_view
from dpp.runs import ensembles, trunk_cache
from dpp.runs.ensembles import Ensemble
from dpp.runs.resumable import Stopped
from dpp.runs.trunk_cache import cache_splits, trunk_digest
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE, VIEWS = 64, 3


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    return write_cub(tmp_path_factory.mktemp("photo") / "birds", classes=3, train=6, test=3)


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A data root of this test's own."""
    monkeypatch.setenv("DPP_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def make_backbone_18(seed: int = 0, frozen_trunk: str = "layer2"):
    torch.manual_seed(seed)
    return make_backbone("resnet18", frozen_trunk=frozen_trunk)


def load_splits(birds, **options):
    options = {"views": VIEWS, "validation_fraction": 0.2} | options
    return make_splits(data.read_cub(birds), SIZE, **options)


def photo_experiment(birds, **changes):
    schedule = {"epochs": 3, "warm_epochs": 1, "second_warm_epochs": 1, "project_after": (3,)}
    small = {"kernel_size": 2, "per_class": 2, "batch_size": 5, "image_size": SIZE}
    chosen = {"backbone": "resnet18", "weights": "none", "data": str(birds)}
    frozen = {"frozen_trunk": "layer3", "views": 2, "offset_start": "he"}
    return make_experiment("paper", **(chosen | schedule | small | frozen | changes))


def the_store(root, kind: str):
    (folder,) = (root / "cache" / "trunk").glob(f"*-{kind}-*")
    return folder


# Views


def test_every_view_comes_once_in_a_turn_and_orders_differ():
    orders = []
    for image in range(20):
        turns = [[choose_view(0, e, image, 4) for e in range(t, t + 4)] for t in (0, 4, 8)]
        assert all(sorted(turn) == [1, 2, 3, 4] for turn in turns)
        orders += map(tuple, turns)
    assert len(set(orders)) > 15
    assert choose_view(0, 5, 7, 4) == choose_view(0, 5, 7, 4)


def test_views_of_an_image_do_not_depend_on_the_split(birds, root):
    one = load_splits(birds, validation_fraction=0.2).train
    other = load_splits(birds, validation_fraction=0.4).train
    shared = next(record for record in one.records[3:] if record in other.records)
    first, second = (dataset.show([(2, dataset.records.index(shared))]) for dataset in (one, other))
    assert first.equal(second)
    assert not first.equal(one.show([(3, one.records.index(shared))]))


# Features are those of the images


def test_batches_are_the_trunk_features_of_the_images(birds, root):
    splits, backbone = load_splits(birds), make_backbone_18()
    cached = cache_splits(splits, backbone, dtype="float32")
    for name in splits._fields:
        images, features = (make_loader(getattr(s, name), 4) for s in (splits, cached))
        for epoch in (1, 2):
            pairs = zip(batches(images, epoch), batches(features, epoch), strict=True)
            for image, feature in pairs:
                expected = backbone.trunk(image.images)
                torch.testing.assert_close(feature.images.maps, expected, rtol=1e-5, atol=1e-5)
                assert image.labels.equal(feature.labels) and image.indices.equal(feature.indices)


def test_half_precision_is_close(birds, root):
    splits, backbone = load_splits(birds), make_backbone_18()
    cached = cache_splits(splits, backbone)
    batch = next(batches(make_loader(cached.test, 4)))
    assert batch.images.maps.dtype == torch.float16
    expected = backbone.trunk(next(batches(make_loader(splits.test, 4))).images)
    assert (batch.images.maps - expected).norm() < 1e-3 * expected.norm()


def test_workers_get_the_same_features(birds, root):
    cached = cache_splits(load_splits(birds), make_backbone_18())
    here, there = (
        torch.cat([b.images.maps for b in batches(make_loader(cached.train, 4, workers=n), 2)])
        for n in (0, 2)
    )
    assert here.equal(there)
    assert len(pickle.dumps(cached.train)) < 50_000
    one = cached.train[0]
    assert one.images.maps.ndim == 3 and one.labels.ndim == 0


# Training


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_from_the_cache_equals_training_from_the_images(
    birds, root, monkeypatch, precision
):
    monkeypatch.setattr(runs.making, "choose_precision", lambda *_: precision)
    experiment = photo_experiment(birds)
    trained = {}
    for kind in ("images", "features"):
        if kind == "images":
            monkeypatch.setattr(runs.making, "cache_splits", lambda splits, *_, **__: splits)
        else:
            whole = lambda *a, **k: cache_splits(*a, **k, dtype="float32")  # noqa: E731
            monkeypatch.setattr(runs.making, "cache_splits", whole)
        trainer, _ = runs.make_trainer(experiment)
        records = list(trainer.run())
        trained[kind] = (trainer.model.state_dict(), records)
    (one, before), (other, after) = trained["images"], trained["features"]
    assert [name for name, value in one.items() if not value.equal(other[name])] == []
    for record in (*before, *after):
        del record["seconds"]
    assert before == after


@pytest.mark.parametrize("model", ["deformable", "cnn", "protopnet", "tesnet", "prototree"])
def test_finished_run_explains_images_and_has_the_accuracy_of_its_record(
    birds, root, tmp_path, model
):
    after = () if model == "cnn" else (3,)
    backbone = "resnet18" if model == "deformable" else "slim_resnet34"
    chosen = {"model": model, "backbone": backbone, "project_after": after}
    experiment = photo_experiment(birds, **chosen)
    run = runs.run(experiment, root=tmp_path / "runs", progress=False)
    accuracy = ensembles.test_accuracy(run.load_model(), experiment)
    assert accuracy == pytest.approx(run.manifest["results"]["test_accuracy"], abs=0.12)
    assert not any(p.requires_grad for p in run.load_model().backbone.layer3.parameters())


def test_runs_of_other_methods_and_seeds_share_what_they_can(birds, root, tmp_path):
    for changes in ({}, {"model": "cnn", "project_after": ()}, {"margin": 0.2}):
        runs.make_trainer(photo_experiment(birds, **changes))
    assert len(list((root / "cache" / "trunk").glob("resnet18-*"))) == 2
    backbone = make_backbone_18(0, "layer3")
    splits = load_splits(birds, seed=1, views=2, validation_fraction=0.4)
    cached = trunk_cache.cache_splits(splits, backbone)
    kinds = [path.name.split("-")[3] for path in (root / "cache" / "trunk").glob("resnet18-*")]
    assert sorted(kinds) == ["plain", "views"]
    # and have their own images in their own order
    images, features = (next(batches(make_loader(s.train, 4), 3)) for s in (splits, cached))
    expected = backbone.trunk(images.images)
    assert (features.images.maps - expected).norm() < 1e-3 * expected.norm()


def test_ensemble_of_cached_runs_is_tested_on_images(birds, root, tmp_path):
    plain = {"model": "cnn", "backbone": "slim_resnet34", "project_after": ()}
    members = tuple(photo_experiment(birds, **plain, margin=margin) for margin in (0.1, 0.2))
    run = ensembles.run(Ensemble(members), root=tmp_path / "runs", progress=False)
    assert 0 <= run.manifest["results"]["test_accuracy"] <= 1


def test_stopped_run_resumes_to_the_same_weights(birds, root, tmp_path, monkeypatch):
    experiment = photo_experiment(birds, backbone="slim_resnet34")
    whole = runs.run(experiment, root=tmp_path / "whole", progress=False)
    from dpp.runs import resumable

    steps, stop_if_signalled = [], resumable.stop_if_signalled

    def leave_at_the_fifth_step(received, trainer, folder):
        steps.append(trainer.step)
        stop_if_signalled([2] if len(steps) == 5 else received, trainer, folder)

    monkeypatch.setattr(resumable, "stop_if_signalled", leave_at_the_fifth_step)
    monkeypatch.setattr(resumable, "SAVE_EVERY", 0)
    with pytest.raises(Stopped):
        runs.run(experiment, root=tmp_path / "stopped", progress=False)
    resumed = runs.run(experiment, root=tmp_path / "stopped", progress=False)
    assert resumed.manifest["weights_sha256"] == whole.manifest["weights_sha256"]


# The store


def test_cache_is_computed_once(birds, root, monkeypatch):
    cache_splits(load_splits(birds), make_backbone_18())
    monkeypatch.setattr(FeatureStore, "build", None)
    cache_splits(load_splits(birds), make_backbone_18())


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"frozen_trunk": "layer1"}, {"pixels": 1}, {"dtype": "float32"}]
)
def test_another_store_is_made_when_anything_changes(birds, root, tmp_path, change):
    cache_splits(load_splits(birds), make_backbone_18())
    if change.pop("pixels", 0):
        birds = shutil.copytree(birds, tmp_path / "copy")
        images = sorted((birds / "images").rglob("*.jpg"))
        shutil.copy(images[0], images[1])
    options = {"dtype": change.pop("dtype")} if "dtype" in change else {}
    cache_splits(load_splits(birds), make_backbone_18(**change), **options)
    assert len(list((root / "cache" / "trunk").glob("resnet18-*"))) == 4


def test_copied_images_have_the_same_store(birds, root, tmp_path):
    cache_splits(load_splits(birds), make_backbone_18())
    copy = shutil.copytree(birds, tmp_path / "copy", copy_function=shutil.copy)
    cache_splits(load_splits(copy), make_backbone_18())
    assert len(list((root / "cache" / "trunk").glob("resnet18-*"))) == 2


def test_trained_head_leaves_the_digest_of_the_trunk():
    backbone = make_backbone_18()
    before = trunk_digest(backbone)
    with torch.no_grad():
        backbone.layer4[0].conv1.weight += 1
        assert trunk_digest(backbone) == before
        backbone.bn1.running_mean += 1
    assert trunk_digest(backbone) != before


def test_killed_build_resumes_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_store, "CHUNK", 4)
    script = (
        "import os, sys, numpy as np\nfrom dpp.data import feature_store\n"
        "feature_store.CHUNK = 4\n"
        "def compute(rows):\n    if rows.start == 12: os.kill(os.getpid(), 9)\n"
        "    return np.full((len(rows), 5), rows.start, np.float32)\n"
        "store = feature_store.FeatureStore(sys.argv[1], 'x', {}, 18, (5,), 'float32')\n"
        "store.build(compute)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)])
    store = FeatureStore(tmp_path, "x", {}, 18, (5,), "float32")
    assert store.open() == "it is not there"
    asked = []

    def compute(rows):
        asked.append(rows.start)
        return np.full((len(rows), 5), rows.start, np.float32)

    store.build(compute)
    assert asked == [12, 16]
    assert store.get([0, 5, 17])[:, 0].tolist() == [0, 4, 16]
    (store.folder / ".about.json.0123abcd.tmp").write_text("half")  # killed while it was verified
    assert FeatureStore(tmp_path, "x", {}, 18, (5,), "float32").open() == ""
    assert sorted(path.name for path in store.folder.iterdir()) == ["about.json", "features.bin"]


@pytest.mark.parametrize("damage", ["truncate", "first chunk", "about", "other key"])
def test_damaged_store_is_named_and_computed_again(birds, root, damage, capsys):
    before = cache_splits(load_splits(birds), make_backbone_18()).test[0].images.maps
    folder = the_store(root, "plain")
    about = json.loads((folder / "about.json").read_text())
    path = folder / "features.bin"
    if damage == "truncate":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "first chunk":
        path.write_bytes(b"\x01\x02\x03" + path.read_bytes()[3:])
    elif damage == "about":
        (folder / "about.json").write_text("{")
    else:
        about["key"]["weights"] = "0" * 64
        (folder / "about.json").write_text(json.dumps(about))
    after = cache_splits(load_splits(birds), make_backbone_18()).test[0].images.maps
    assert after.equal(before)
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and "plain" in said[0] and "damaged" in said[0]
    assert feature_store.reopen(folder).verify() == []


def test_damage_in_the_middle_is_found_when_a_store_is_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_store, "CHUNK", 10)
    store = FeatureStore(tmp_path, "some", {}, 50, (2,), "float32")
    store.build(lambda rows: np.array([[row, -row] for row in rows]))
    assert store.open() == ""
    path = store.folder / "features.bin"
    content = bytearray(path.read_bytes())
    content[25 * 8] ^= 1
    path.write_bytes(content)
    again = FeatureStore(tmp_path, "some", {}, 50, (2,), "float32")
    assert again.open() == "chunk 2 does not match its hash"
    again.build(lambda rows: np.array([[row, -row] for row in rows]))
    assert again.get([25]).tolist() == [[25, -25]]


def test_store_that_was_compared_is_not_read_whole_again(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_store, "CHUNK", 10)
    store = FeatureStore(tmp_path, "some", {}, 50, (2,), "float32")
    store.build(lambda rows: np.zeros((len(rows), 2)))
    assert store.open() == ""
    read, digest = [], feature_store.chunk_digest
    monkeypatch.setattr(
        feature_store, "chunk_digest", lambda *given: read.append(given[2]) or digest(*given)
    )
    assert store.open() == "" and read == [0, 4]


def test_only_damaged_chunks_are_computed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_store, "CHUNK", 4)
    store = FeatureStore(tmp_path, "x", {}, 12, (5,), "float32")
    store.build(lambda rows: np.full((len(rows), 5), rows.start, np.float32))
    path = store.folder / "features.bin"
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    content[90] ^= 1  # in the second chunk, which only a full check reads
    path.write_bytes(content)
    assert store.verify() == [0, 1]
    asked = []

    def compute(rows):
        asked.append(rows.start)
        return np.full((len(rows), 5), rows.start, np.float32)

    again = FeatureStore(tmp_path, "x", {}, 12, (5,), "float32")
    assert "chunk 0 does not match its hash" in again.open()
    again.build(compute)
    assert asked == [0, 4] and again.verify() == []


def test_features_that_are_not_finite_are_refused(tmp_path):
    store = FeatureStore(tmp_path, "x", {}, 2, (5,))
    with np.errstate(over="ignore"), pytest.raises(UserError, match="NaN or too large for float16"):
        store.build(lambda rows: np.full((len(rows), 5), 1e6))


def test_cache_that_does_not_fit_says_so_first(birds, root, monkeypatch):
    splits = load_splits(birds)
    usage = shutil.disk_usage(".")._replace(free=10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(NoSpaceError, match="trunk features needs .* GB free.*fewer views"):
        cache_splits(splits, make_backbone_18())
    assert not list((root / "cache" / "trunk").glob("resnet18*"))


def test_size_place_and_time_are_said_before_anything_is_written(birds, root, capsys):
    cache_splits(load_splits(birds), make_backbone_18(), progress=True)
    said = capsys.readouterr().err
    assert said.startswith("trunk features: 81 maps of 128 x 8 x 8, ")
    assert "about 1 minute" in said.splitlines()[0] and str(root) in said.splitlines()[0]


def test_truncated_photograph_is_named_before_anything_is_computed(birds, root, tmp_path):
    copy = shutil.copytree(birds, tmp_path / "copy")
    broken = sorted((copy / "images").rglob("*.jpg"))[5]
    broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
    with pytest.raises(UserError, match=f"image {broken} cannot be decoded"):
        runs.run(photo_experiment(copy), root=tmp_path / "runs", progress=False)
    assert not (root / "cache" / "trunk").exists()
