"""Ensembles: the sum of their members' logits, and what cannot be summed."""

import pytest
import torch

from dpp import runs
from dpp.runs import ensembles, making, records
from dpp.runs.ensembles import Ensemble
from dpp.system import paths
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment

TINY = {"weights": "none", "image_size": 32, "epochs": 2, "warm_epochs": 1, "per_class": 1}


@pytest.fixture(scope="module")
def members():
    cnn = {**TINY, "model": "cnn", "backbone": "slim_vgg16_bn"}
    deformable = {**TINY, "second_warm_epochs": 0, "project_after": (2,)}
    return (
        make_experiment("smoke", **cnn),
        make_experiment("smoke", **cnn, seed=1),
        make_experiment("smoke", **deformable, backbone="slim_resnet50"),
    )


def test_ensemble_of_3_scores_what_summing_by_hand_gives(members, tmp_path, one_thread):
    run = ensembles.run(Ensemble(members), root=tmp_path, progress=False)
    images = runs.load_splits(members[0], runs.load_source(members[0])).test
    hits = 0
    networks = [runs.find(member, tmp_path).load_model() for member in members]
    for index in range(len(images)):
        picture = images[index].images[None]
        with torch.no_grad():
            logits = sum(network(picture)[0] for network in networks)
        hits += int(logits.argmax() == images[index].labels)
    assert run.manifest["results"]["test_accuracy"] == pytest.approx(hits / len(images))
    batch = images.batch([(0, index) for index in range(5)]).images
    with torch.no_grad():
        torch.testing.assert_close(
            run.load_model()(batch), sum(network(batch) for network in networks)
        )


def test_members_and_ensemble_are_found_again(members, tmp_path, monkeypatch, one_thread):
    first = ensembles.run(Ensemble(members), root=tmp_path, progress=False)
    monkeypatch.setattr(making, "make_trainer", None)
    monkeypatch.setattr(ensembles, "test_accuracy", None)
    turned = Ensemble(members[::-1])
    assert ensembles.run(turned, root=tmp_path, progress=False).folder == first.folder


def test_ensemble_is_recorded_like_any_experiment(members, tmp_path, monkeypatch, one_thread):
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    record = records.get(Ensemble(members), root=tmp_path, progress=False)
    assert record.summary["model"] == "ensemble" and record.summary["members"] == 3
    assert record.summary["data"] == "posebirds"
    assert record.metrics.test_accuracy.iloc[0] == record.summary["test_accuracy"]


def test_ensembles_that_cannot_be_are_refused(members):
    with pytest.raises(UserError, match="at least one member"):
        Ensemble(())
    with pytest.raises(UserError, match="differ in classes"):
        Ensemble((members[0], make_experiment("smoke", **TINY, model="cnn", classes=2)))
    with pytest.raises(UserError, match="differ in data"):
        Ensemble((members[0], make_experiment("smoke", **TINY, model="cnn", data="posedogs")))
