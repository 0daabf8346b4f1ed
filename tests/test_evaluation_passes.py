"""Passes that cost less: features that a training kept, and random weights on some classes."""

import numpy as np
import pytest
import torch
from test_evaluation import quiet
from tiny_data import write_cub

from dpp import data
from dpp.analysis import Network
from dpp.backbones.backbone import make_backbone
from dpp.data.batches import make_splits
from dpp.evaluation import baselines, consistency, sightings
from dpp.networks.model import DeformableProtoPNet
from dpp.runs import trunk_cache

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = 64


@pytest.fixture
def splits(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_DATA", str(tmp_path / "data"))
    source = data.read_cub(write_cub(tmp_path / "birds", classes=3, train=5, test=3))
    return source, make_splits(source, SIZE, views=1, validation_fraction=0.2)


def make_network(source, trunk: str = "layer2", seed: int = 0) -> Network:
    torch.manual_seed(seed)
    backbone = make_backbone("resnet18", frozen_trunk=trunk)
    model = DeformableProtoPNet(backbone, 3, per_class=2, kernel_size=2)
    model.offsets.reset_parameters(0.05)
    return Network(model, "frozen", source, SIZE)


@pytest.mark.parametrize("noise", [None, 3])
def test_kept_features_give_the_same_pass_as_the_images(splits, noise):
    source, splits = splits
    from_images = sightings.see(make_network(source), splits.test, quiet, noise)
    network = make_network(source)
    assert sightings.kept_features(network, splits.test, quiet, noise) is None
    trunk_cache.cache_splits(splits, network.model.backbone)
    kept = sightings.kept_features(network, splits.test, quiet, noise)
    assert isinstance(kept, trunk_cache.CachedDataset)
    found = sightings.see(network, splits.test, quiet, noise)
    assert found.image.tolist() == from_images.image.tolist()
    assert np.abs(found.class_map - from_images.class_map).max() < 1e-3  # half precision
    moved = np.abs(found.parts - from_images.parts).max(axis=(1, 2))
    assert np.median(moved) < 0.1  # pixels; a near tie may fall otherwise


def test_noisy_features_are_computed_once_for_all_networks_on_a_trunk(splits, monkeypatch):
    source, splits = splits
    network = make_network(source)
    trunk_cache.cache_splits(splits, network.model.backbone)
    first = sightings.kept_features(network, splits.test, quiet, 3).batch([(0, 4)])
    images = splits.test.batch([(0, 4)])
    noisy = sightings.add_noise(images.images, images.indices, 3)
    wanted = network.model.backbone.trunk(noisy)
    assert (first.images.maps - wanted).norm() < 1e-3 * wanted.norm()
    monkeypatch.setattr(sightings, "add_noise", lambda images, indices, seed: images * np.nan)
    other = make_network(source)
    with torch.no_grad():
        other.model.prototypes.vectors.normal_()
    again = sightings.kept_features(other, splits.test, quiet, 3).batch([(0, 4)])
    assert again.images.maps.equal(first.images.maps)


def test_random_weights_and_whole_networks_see_images(splits):
    source, splits = splits
    network = make_network(source)
    trunk_cache.cache_splits(splits, network.model.backbone)
    other = baselines.random_weights(network, splits.projection, 0)
    for one in (other, make_network(source, trunk="")):
        assert sightings.kept_features(one, splits.test, quiet, None) is None
        assert sightings.kept_features(one, splits.test, quiet, 3) is None


def test_random_weights_are_measured_on_all_images_of_some_classes(splits, monkeypatch):
    source, splits = splits
    network, test = make_network(source), splits.test
    assert baselines.some_classes(test) is test  # no more than 20
    monkeypatch.setattr(baselines, "MOST_CLASSES", 2)
    few = baselines.some_classes(test)
    assert few is baselines.some_classes(test)  # so that its pass is made once
    assert few.labels.tolist() == [0, 0, 0, 2, 2, 2]
    assert few.records == tuple(record for record in test.records if record.label != 1)
    (score,) = (
        one
        for one in consistency.measure_consistency(network, splits, seed=0, progress=quiet)
        if one.at == "centre"
    )
    other = baselines.random_weights(network, splits.projection, 0)
    whole = consistency.box(other, test, quiet)
    hits, count = whole.hits("centre"), len(network.labels)
    share = consistency.share_of_hits(hits, whole.visible, whole.seen.prototype, count)
    wanted = 100 * consistency.is_consistent(share)[[0, 1, 4, 5]].mean()
    assert score.random_weights == pytest.approx(wanted)
