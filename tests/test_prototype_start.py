"""Prototypes that begin as patches of their own class's images."""

import pytest
import torch
from tiny_data import write_cub

from dpp import ops, runs
from dpp.extensions.scaled_add_on import SPREAD, TREE_SPREAD, scale_add_on
from dpp.methods.protopnet import make_add_on
from dpp.system.errors import UserError
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


def test_scaled_add_on_layers_have_the_stated_mean_and_spread_before_the_sigmoid():
    torch.manual_seed(0)
    layers, features = make_add_on(7, 5), 3 + 2 * torch.randn(6, 7, 4, 4)
    before = layers[0](features)
    assert scale_add_on(layers, features, SPREAD).equal(layers(features))
    inner = layers[0](features)
    assert inner.mean(dim=(0, 2, 3)).allclose(torch.zeros(5), atol=1e-5)
    assert inner.std(dim=(0, 2, 3)).allclose(torch.ones(5), atol=1e-5)
    outer = layers[2](inner.relu())
    assert outer.mean(dim=(0, 2, 3)).allclose(torch.zeros(5), atol=1e-5)
    assert outer.std(dim=(0, 2, 3)).allclose(torch.full((5,), SPREAD), atol=1e-5)
    # each channel is still the same one, scaled and moved
    assert torch.corrcoef(torch.stack([before[:, 0].flatten(), inner[:, 0].flatten()]))[0, 1] > 0.99
    scale_add_on(layers, torch.zeros(2, 7, 3, 3), SPREAD)  # features without any spread
    assert all(one.isfinite().all() for one in layers.parameters())


def test_scaled_protopnet_begins_with_cells_whose_distances_tell_them_apart(birds):
    trainer = make_trainer(birds, model="protopnet", prototype_start="scaled")
    assert next(trainer.run())["source_images"] == 6
    with torch.no_grad():
        seen = [trainer.model.inspect(one.images) for one in trainer.loaders["projection"]]
    distances = torch.cat([one.distances for one in seen])  # (N, P), to the nearest cell
    assert distances.min(dim=0).values.max() < 1e-6  # the cell that the prototype was taken from
    # a sigmoid's slope is 1/4 in the middle: what two cells drawn at random are apart
    apart = 2 * trainer.model.channels * (SPREAD / 4) ** 2
    assert 0.001 * apart < distances.mean() < apart


def test_scaled_tree_begins_with_even_chances_at_every_node(birds):
    trees = {}
    for start in ("uniform", "scaled"):
        trainer = make_trainer(birds, model="prototree", prototype_start=start, warm_epochs=2)
        if start == "scaled":
            assert next(trainer.run())["source_images"] == len(trainer.splits.projection)
        tree = trees[start] = trainer.model.eval()
        with torch.no_grad():
            seen = [tree.inspect(one.images) for one in trainer.loaders["projection"]]
        trees[start] = torch.cat([one.scores for one in seen])  # (N, nodes), p(right)
        inner = [tree.add_on[0](tree.backbone(one.images)) for one in trainer.loaders["projection"]]
    deviations = torch.cat(inner).std(dim=(0, 2, 3))
    assert deviations.allclose(torch.tensor(TREE_SPREAD), atol=1e-4)
    assert 0.5 < trees["scaled"].min() and trees["scaled"].max() < 0.75
    assert (trees["uniform"] < 0.3).all()


def test_scaled_start_is_for_methods_with_such_layers(birds):
    told = "prototype_start scaled is for protopnet and prototree, not for tesnet"
    with pytest.raises(UserError, match=told):
        make_trainer(birds, model="tesnet", prototype_start="scaled")


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
