"""Prototypes that begin as patches of their own class's images."""

import pytest
import torch
from tiny_data import write_cub

from dpp import ops, runs
from dpp.training.experiments import make_experiment
from dpp.training.prototype_start import choose_images, draw_centres

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    return write_cub(tmp_path_factory.mktemp("start") / "birds", classes=3, train=6, test=3)


def make_trainer(birds, **changes):
    small = {"per_class": 2, "batch_size": 4, "image_size": 64, "epochs": 2, "warm_epochs": 1}
    schedule = {"second_warm_epochs": 0, "project_after": (2,), "prototype_start": "features"}
    chosen = {"backbone": "resnet18", "weights": "none", "data": str(birds)}
    return runs.make_trainer(make_experiment("paper", **(chosen | small | schedule | changes)))[0]


def test_images_are_of_the_class_and_none_comes_twice_before_all_were_taken():
    labels, classes = torch.tensor([0, 1, 0, 1, 0, 1, 1]), torch.tensor([0] * 3 + [1] * 9)
    chosen = choose_images(labels, classes)
    assert labels[chosen].equal(classes)
    assert sorted(chosen[:3].tolist()) == [0, 2, 4]
    assert sorted(chosen[3:7].tolist()) == [1, 3, 5, 6] == sorted(chosen[7:11].tolist())


def test_centres_keep_from_the_border_and_follow_the_weights():
    weights = torch.zeros(1000, 5, 6)
    weights[:, 0, 0] = 100.0  # too near the border
    weights[:, 2, 3], weights[:, 3, 1] = 3.0, 1.0
    centres = draw_centres(weights, 1).flatten()
    assert set(centres.tolist()) == {2 * 6 + 3, 3 * 6 + 1}
    assert (centres == 15).float().mean().item() == pytest.approx(0.75, abs=0.06)
    assert draw_centres(torch.zeros(50, 3, 3), 1).unique().tolist() == [4]  # nothing to go by


@pytest.mark.parametrize("kernel_size", [2, 3])
def test_prototypes_are_patches_of_their_class(birds, kernel_size):
    trainer = make_trainer(birds, kernel_size=kernel_size)
    record = next(trainer.run())
    assert (record["stage"], record["epoch"], record["source_images"]) == ("start", 0, 6)
    prototypes = trainer.model.prototypes
    assert prototypes.vectors.norm(dim=1).allclose(torch.tensor(1.0))
    best = torch.zeros(len(prototypes.classes), 3)  # by class of the image
    with torch.no_grad():
        for batch in trainer.loaders["projection"]:
            z, _ = trainer.model.locate(batch.images)
            scores, _ = ops.max_similarity(z, None, prototypes.normalised(), **prototypes.geometry)
            for score, label in zip(scores, batch.labels, strict=True):
                best[:, label] = torch.maximum(best[:, label], score)
    own = best.gather(1, prototypes.classes[:, None]).flatten()
    assert own.allclose(torch.tensor(1.0), atol=1e-5)


@pytest.mark.parametrize("model", ["protopnet", "tesnet"])
def test_cells_of_other_methods_start_from_their_own_features(birds, model):
    trainer = make_trainer(birds, model=model)
    next(trainer.run())
    vectors = trainer.model.prototypes.vectors.flatten(1)
    cells = []
    with torch.no_grad():
        for batch in trainer.loaders["projection"]:
            z = trainer.model.add_on(trainer.model.backbone(batch.images))
            cells.append(z.flatten(2).transpose(1, 2).flatten(0, 1))
    cells = torch.cat(cells)
    if model == "tesnet":
        cells = torch.nn.functional.normalize(cells, dim=1)
    exact = {"compute_mode": "donot_use_mm_for_euclid_dist"}
    assert torch.cdist(vectors, cells, **exact).min(dim=1).values.max() < 1e-4


def test_a_run_that_stops_after_the_start_resumes_to_the_same_weights(birds):
    whole = make_trainer(birds)
    list(whole.run())
    stopped = make_trainer(birds)  # after the other: both draw from torch's own generator
    next(stopped.run())
    state = stopped.state()
    resumed = make_trainer(birds)
    torch.manual_seed(99)
    resumed.restore(state)
    list(resumed.run())
    for name, value in whole.model.state_dict().items():
        assert value.equal(resumed.model.state_dict()[name]), name


def test_uniform_start_has_no_stage_before_the_first_epoch(birds):
    trainer = make_trainer(birds, prototype_start="uniform")
    assert trainer.tasks[0].stage == "train" and trainer.tasks[0].epoch == 1


def test_centres_are_on_a_map_that_is_smaller_than_a_prototype():
    centres = draw_centres(torch.ones(50, 2, 2), reach=1)
    assert centres.shape == (50, 1) and set(centres.flatten().tolist()) <= {0, 1, 2, 3}
    middle = draw_centres(torch.ones(50, 3, 3), reach=1)
    assert set(middle.flatten().tolist()) == {4}
