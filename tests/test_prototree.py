"""ProtoTree: its equations in loops, leaves without gradients, pruning, projection, paths."""

import math

import numpy as np
import pytest
import torch
from test_trainer import same, weights_of
from tiny_network import Enough, TinyBackbone, make_tiny_splits, stop_after
from torch import Tensor

from dpp.analysis import Network, follow_tree
from dpp.data.batches import batches, make_loader
from dpp.data.image_records import Box, Source
from dpp.data.pictures import Picture
from dpp.data.transforms import Geometry
from dpp.explanations import TreePath
from dpp.methods import prototree
from dpp.methods.prototree import METHOD
from dpp.networks import soft_tree
from dpp.networks.soft_tree import Leaves, ProtoTree
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment
from dpp.training.trainer import Phase, Schedule, Trainer

IMAGES = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(0)).double()
LABELS = torch.tensor([0, 2, 1, 1, 0])
RATES = {"prototypes": 3e-2, "add_on": 3e-2, "backbone": 1e-2}


@pytest.fixture
def splits(tmp_path):
    return make_tiny_splits(tmp_path / "cub")


def make_tree(seed: int = 0, classes: int = 3, **options) -> ProtoTree:
    """A tree with drawn leaves whose images go different ways; float64, in evaluation mode."""
    torch.manual_seed(seed)
    tree = ProtoTree(TinyBackbone(), classes, **options).double().eval()
    tree.leaves.evidence.copy_(3 * torch.rand(tree.leaves.evidence.shape))
    with torch.no_grad():
        tree.add_on[0].weight.mul_(16)
        tree.prototypes.vectors.sub_(0.5).mul_(2).add_(0.5)
    return tree


def make_trainer(splits, schedule: Schedule, **options) -> Trainer:
    torch.manual_seed(3)
    tree = ProtoTree(TinyBackbone(), 3)
    stages = METHOD.stages(make_experiment("mini"))
    return Trainer(tree, schedule, splits, prototree.objective, stages, batch_size=5, **options)


def slow_distances(tree: ProtoTree, z: Tensor) -> Tensor:
    """Equation 1, patch by patch."""
    found = torch.zeros(len(z), len(tree.prototypes.vectors), dtype=z.dtype)
    for image in range(len(z)):
        for node, vector in enumerate(tree.prototypes.vectors):
            found[image, node] = min(
                (z[image, :, row, column] - vector).square().sum().sqrt()
                for row in range(z.shape[2])
                for column in range(z.shape[3])
            )
    return found


def slow_paths(distances: Tensor) -> list[float]:
    """The probabilities of one image's paths (nodes,), from the root down."""

    def descend(node: int, probability: float) -> list[float]:
        if node >= len(distances):
            return [probability]
        right = math.exp(-float(distances[node]))
        left = descend(2 * node + 1, probability * (1 - right))
        return left + descend(2 * node + 2, probability * right)

    return descend(0, 1.0)


def slow_predictions(tree: ProtoTree, images: Tensor) -> Tensor:
    """Equation 4, leaf by leaf."""
    leaves = tree.leaves.evidence.exp()
    leaves = leaves / leaves.sum(dim=1, keepdim=True)
    predictions = []
    for distances in slow_distances(tree, tree.locate(images)):
        paths = slow_paths(distances)
        predictions.append(sum(path * leaf for path, leaf in zip(paths, leaves, strict=True)))
    return torch.stack(predictions)


@pytest.mark.parametrize("classes,nodes", [(200, 511), (120, 255), (10, 31), (3, 7), (2, 3)])
def test_tree_has_at_least_twice_as_many_leaves_as_classes(classes, nodes):
    tree = ProtoTree(TinyBackbone(), classes)
    assert len(tree.prototypes.vectors) == nodes
    assert len(tree.leaves.evidence) == nodes + 1 >= 2 * classes
    assert soft_tree.choose_depth(200) == 9


@torch.no_grad()
def test_distances_and_places_are_those_of_the_nearest_patch():
    tree = make_tree()
    output = tree.inspect(IMAGES)
    expected = slow_distances(tree, output.z)
    torch.testing.assert_close(output.scores, (-expected).exp())
    for image in range(5):
        for node, place in enumerate(output.places[image].tolist()):
            patch = output.z[image, :, place // 4, place % 4]
            distance = (patch - tree.prototypes.vectors[node]).norm()
            torch.testing.assert_close(distance, expected[image, node])


@torch.no_grad()
def test_path_probabilities_are_products_and_sum_to_1():
    tree = make_tree()
    output = tree.inspect(IMAGES)
    for distances, paths in zip(-output.scores.log(), output.paths.exp(), strict=True):
        assert paths.tolist() == pytest.approx(slow_paths(distances))
        assert float(paths.sum()) == pytest.approx(1)


@torch.no_grad()
def test_prediction_is_the_mixture_of_the_leaves():
    tree = make_tree()
    probabilities = tree(IMAGES).exp()
    torch.testing.assert_close(probabilities, slow_predictions(tree, IMAGES))
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(5).double())


def test_loss_is_the_mean_negative_log_likelihood():
    tree = make_tree()
    with torch.no_grad():
        predictions = slow_predictions(tree, IMAGES)
    hits = tree.measure(IMAGES, LABELS)["accuracy"]
    terms = prototree.objective(tree, IMAGES, LABELS, Phase("joint", 1, {}))
    expected = -sum(math.log(predictions[i, label]) for i, label in enumerate(LABELS)) / 5
    assert float(terms["loss"].detach()) == pytest.approx(expected)
    assert terms["accuracy"] == hits.mean()


def test_gradients_of_prototypes_and_patches_are_those_of_differences():
    tree = make_tree()
    z = tree.locate(IMAGES[:2]).detach().requires_grad_()

    def loss(vectors: Tensor, z: Tensor) -> Tensor:
        distances = torch.func.functional_call(tree.prototypes, {"vectors": vectors}, z)[0]
        branches = soft_tree.branch_probabilities(distances, tree.leaves.kept)
        return soft_tree.mix(soft_tree.path_probabilities(branches), tree.leaves())

    vectors = tree.prototypes.vectors.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, (vectors, z))


def test_gradients_are_finite_where_an_image_is_the_prototype():
    tree = make_tree()
    patch = tree.locate(IMAGES)[0, :, 1, 2].detach()
    with torch.no_grad():
        tree.prototypes.vectors[:] = patch
    prototree.objective(tree, IMAGES, LABELS, Phase("joint", 1, {}))["loss"].backward()
    assert all(parameter.grad.isfinite().all() for parameter in tree.parameters())


@pytest.mark.parametrize("copies", [1, 5])
@torch.no_grad()
def test_leaves_of_two_epochs_are_those_of_algorithm_1(copies):
    leaves = Leaves(4, 3).double()
    leaves.copies = copies
    drawn = torch.rand(2, 3, 5, 4).double()  # epochs, batches, images, leaves
    labels = torch.randint(3, (2, 3, 5))
    paths = drawn / drawn.sum(dim=3, keepdim=True)
    expected = torch.zeros(4, 3).double()
    for epoch in range(2):
        old = expected.clone()
        for batch in range(3):
            distributions = expected.exp() / expected.exp().sum(dim=1, keepdim=True)
            added = torch.zeros_like(expected)
            for path, label in zip(paths[epoch, batch], labels[epoch, batch], strict=True):
                prediction = sum(path[leaf] * distributions[leaf] for leaf in range(4))
                for leaf in range(4):
                    share = distributions[leaf, label] * path[leaf] / prediction[label]
                    added[leaf, label] += copies * share
            expected = expected - old / 3 + added
            leaves.update(paths[epoch, batch].log(), labels[epoch, batch])
            torch.testing.assert_close(leaves.evidence, expected)
        leaves.end_epoch()
    assert float(leaves.evidence.sum()) == pytest.approx(15 * copies)  # images of an epoch


@torch.no_grad()
def test_leaves_raise_the_likelihood_of_what_the_paths_know():
    labels = torch.arange(40) % 4
    paths = (3 * torch.eye(4)[labels] + torch.rand(40, 4)).log_softmax(dim=1)
    leaves, found = Leaves(4, 4), []
    for _ in range(4):
        likelihoods = soft_tree.mix(paths, leaves())[torch.arange(40), labels]
        found.append(float(likelihoods.mean()))
        leaves.update(paths, labels)
        leaves.end_epoch()
    assert found == sorted(found) and found[-1] > found[0] + 0.5


@torch.no_grad()
def test_epoch_of_the_leaves_ends_with_evaluation_of_the_whole_alone():
    tree = make_tree()
    tree.leaves.update(torch.zeros(5, 8).double(), LABELS)
    tree.leaves.train(False)  # as a trainer does that goes on within an epoch
    assert int(tree.leaves.steps) == 1
    tree.eval()
    assert (int(tree.leaves.steps), int(tree.leaves.steps_before)) == (0, 1)
    assert torch.equal(tree.leaves.evidence, tree.leaves.evidence_before)
    tree.eval()
    assert int(tree.leaves.steps_before) == 1


@torch.no_grad()
def test_hard_route_follows_the_larger_probability():
    tree = make_tree(routing="hard")
    output = tree.inspect(IMAGES)
    for image in range(5):
        node = 0
        while node < 7:
            node = 2 * node + (2 if output.scores[image, node] > 0.5 else 1)
        assert int(output.leaves[image]) == node - 7
    assert len(output.leaves.unique()) > 1
    torch.testing.assert_close(output.logits, tree.leaves()[output.leaves])
    measured = tree.measure(IMAGES, LABELS)
    assert torch.equal(measured["accuracy"], measured["hard_accuracy"])
    assert torch.equal(tree.inspect(IMAGES, "soft").logits, make_tree()(IMAGES))


def test_unknown_routing_is_refused():
    with pytest.raises(UserError, match="routing"):
        ProtoTree(TinyBackbone(), 3, routing="random")


@torch.no_grad()
def test_pruning_removes_subtrees_without_knowledge_and_their_parents():
    tree = make_tree()
    tree.leaves.evidence.fill_(1.0)
    tree.leaves.evidence[[0, 2, 3], [0, 1, 2]] = 9.0  # leaf 1 and leaves 4 to 7 know nothing
    prototree.prune(tree)
    assert tree.leaves.kept.nonzero().flatten().tolist() == [0, 2, 3]
    assert tree.forks.nonzero().flatten().tolist() == [1, 4]  # below node 1: leaf 0, and node 4
    output = tree.inspect(IMAGES)
    right = output.scores
    expected = torch.stack(
        [1 - right[:, 1], right[:, 1] * (1 - right[:, 4]), right[:, 1] * right[:, 4]], dim=1
    )
    torch.testing.assert_close(output.paths.exp()[:, [0, 2, 3]], expected)
    assert (output.paths.exp().sum(dim=1) - 1).abs().max() < 1e-9
    assert set(output.leaves.tolist()) <= {0, 2, 3}


@torch.no_grad()
def test_pruning_of_paths_that_nothing_takes_changes_no_prediction():
    tree = make_tree()
    tree.leaves.evidence.copy_(9 * torch.eye(3)[torch.arange(8) % 3])
    tree.prototypes.vectors[2] += 40.0  # nothing goes right of node 2
    tree.leaves.evidence[6:] = 0.0
    before = tree(IMAGES)
    prototree.prune(tree)
    assert tree.forks.tolist() == [True, True, False, True, True, True, False]
    torch.testing.assert_close(tree(IMAGES), before)


@pytest.mark.parametrize("classes,threshold", [(200, 0.01), (10, 2 / 11), (2, 2 / 3)])
def test_threshold_is_as_published_for_cub_and_above_uniform_for_few_classes(classes, threshold):
    assert prototree.choose_threshold(classes) == pytest.approx(threshold)


@torch.no_grad()
def test_tree_that_knows_nothing_keeps_one_decision():
    tree = make_tree()
    tree.leaves.evidence.fill_(0.0)
    tree.leaves.evidence[[2, 5], [1, 0]] = 0.1
    for _ in range(2):
        prototree.prune(tree)
        assert tree.leaves.kept.nonzero().flatten().tolist() == [2, 5]
    assert tree.forks.nonzero().flatten().tolist() == [0]
    torch.testing.assert_close(
        tree.inspect(IMAGES).paths.exp()[:, 5], tree.inspect(IMAGES).scores[:, 0]
    )


@torch.no_grad()
def test_projection_makes_each_prototype_its_nearest_patch(splits, one_thread):
    images, tree = splits.projection, make_tree().float()
    tree.leaves.kept[:2] = False
    before = tree.prototypes.vectors.clone()
    z = torch.cat([tree.locate(batch.images) for batch in batches(make_loader(images, 4))])
    distances = slow_distances(tree, z)
    origins = prototree.project(tree, batches(make_loader(images, 4)), images)
    # node 1 has one side left, node 3 none
    assert [origin.prototype for origin in origins] == [0, 2, 4, 5, 6]
    assert torch.equal(tree.prototypes.vectors[[1, 3]], before[[1, 3]])
    rows = {record.id: row for row, record in enumerate(images.records)}
    for origin in origins:
        nearest = distances[:, origin.prototype].min()
        assert origin.similarity == pytest.approx(float((-nearest).exp()), abs=1e-5)
        row, (down, right) = rows[origin.image], origin.centre
        torch.testing.assert_close(
            tree.prototypes.vectors[origin.prototype], z[row, :, down, right], check_stride=False
        )
        output = tree.inspect(images[row].images[None])
        assert float(output.scores[0, origin.prototype]) == pytest.approx(1, abs=1e-5)
        assert origin.parts == (origin.centre,) and origin.cells == (4, 4)


@torch.no_grad()
def test_origin_has_the_class_that_the_prototype_speaks_for(splits, one_thread):
    tree = make_tree().float()
    tree.leaves.evidence.copy_(9 * torch.eye(3)[[0, 1, 2, 2, 0, 1, 1, 1]])
    origins = prototree.project(tree, batches(make_loader(splits.projection, 4)), splits.projection)
    assert [origin.label for origin in origins] == [1, 2, 1, 1, 2, 1, 1]


def follow(tree: ProtoTree, image: Tensor, leaf: int | None = None) -> TreePath:
    """The path of an image that is as large as its square."""
    network = Network(tree, "tree", Source("none", None, ("a", "b", "c"), (), (), ()), 16)
    pixels = np.zeros((16, 16, 3), np.uint8)
    return follow_tree(network, Picture("0", image, pixels, Geometry(Box(0, 0, 16, 16), 16)), leaf)


@pytest.mark.parametrize("pruned", [[], [0, 1, 5]])
@torch.no_grad()
def test_steps_of_an_explanation_multiply_to_the_path(pruned):
    tree = make_tree()
    tree.leaves.kept[pruned] = False
    output = tree.inspect(IMAGES)
    for image in range(5):
        explanation = follow(tree, IMAGES[image])
        assert explanation.leaf == int(output.leaves[image]) not in pruned
        product = math.prod(step.probability for step in explanation.steps)
        assert product == pytest.approx(explanation.probability)
        assert product == pytest.approx(float(output.paths[image, explanation.leaf].exp()))
        assert sum(explanation.distribution) == pytest.approx(1)
        for step in explanation.steps:
            assert (step.branch == "right") == (step.similarity > 0.5)
            assert step.similarity == pytest.approx(float(output.scores[image, step.node]))
            assert 4 * step.place[0] + step.place[1] == int(output.places[image, step.node])
            top, left = 4 * step.place[0], 4 * step.place[1]
            assert step.box == (left, top, left + 4, top + 4)


def test_explanation_of_another_leaf_is_the_way_there():
    steps = follow(make_tree(), IMAGES[0], leaf=5).steps
    assert [(step.node, step.branch) for step in steps] == [(0, "right"), (2, "left"), (5, "right")]


def test_leaf_that_is_not_there_is_refused():
    with pytest.raises(UserError, match="leaves 0 to 7, not 8"):
        follow(make_tree(), IMAGES[0], leaf=8)


def test_published_schedule_comes_from_the_fields():
    experiment = make_experiment(
        "paper",
        epochs=100,
        warm_epochs=30,
        second_warm_epochs=30,
        project_after=(100,),
        prototype_rate=1e-3,
        backbone_rate=1e-5,
        decay=0.5,
        decay_every=10,
        weight_decay=0.0,
    )
    schedule = METHOD.schedule(experiment)
    warm, joint, falling = schedule.phases
    assert (warm.epochs, joint.epochs, falling.epochs) == (30, 30, 40)
    assert warm.rates == {"prototypes": 1e-3, "add_on": 1e-3}
    assert joint.rates == warm.rates | {"backbone": 1e-5} and joint.decay == 1
    assert falling.rates == {name: rate / 2 for name, rate in joint.rates.items()}
    assert (falling.decay, falling.decay_every) == (0.5, 10)
    assert [task.stage for task in schedule.tasks()[-3:]] == ["train", "prune", "project"]


def test_trainer_lowers_the_loss_prunes_and_projects(splits, one_thread):
    schedule = Schedule((Phase("joint", 12, RATES),), ("prune", "project"), (12,))
    trainer = make_trainer(splits, schedule)
    records = list(trainer.run())
    assert records[11]["loss"] < records[0]["loss"] - 0.1
    assert records[12]["nodes"] == records[12]["leaves"] - 1
    assert len(trainer.provenance) == records[12]["nodes"]
    assert float(trainer.model.leaves.evidence.sum()) == pytest.approx(15, abs=1e-3)  # images
    assert {"test_accuracy", "test_hard_accuracy"} <= records[-1].keys()


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_trains(splits, precision, one_thread):
    schedule = Schedule((Phase("joint", 9, RATES),))
    records = list(make_trainer(splits, schedule, precision=precision).run())
    assert records[-1]["loss"] < records[0]["loss"]


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_state_taken_between_steps_leads_to_the_same_tree(splits, stop, one_thread):
    phases = (Phase("warm", 1, {"prototypes": 3e-2, "add_on": 3e-2}), Phase("joint", 3, RATES))
    schedule = Schedule(phases, ("prune", "project"), (4,))

    undisturbed = make_trainer(splits, schedule)
    list(undisturbed.run())
    first = make_trainer(splits, schedule)
    with pytest.raises(Enough):
        list(first.run(stop_after(stop)))
    second = make_trainer(splits, schedule)
    second.restore(first.state())
    list(second.run())
    assert same(weights_of(undisturbed.model), weights_of(second.model))
    assert undisturbed.provenance == second.provenance
