"""TesNet: projections, cosines and the geometry of subspaces in loops; unit length; projection."""

import math

import pytest
import torch
from test_protopnet import EXPERIMENT, LABELS, make_images, make_trainer, moving_children
from tiny_network import TinyBackbone, make_tiny_splits
from torch.nn import functional

from dpp.backbones.backbone import make_backbone
from dpp.data.batches import batches, make_loader
from dpp.methods.tesnet import METHOD, TesNet, objective, subspace_distances
from dpp.training.experiments import make_experiment
from dpp.training.projection import project
from dpp.training.trainer import Phase

WEIGHTS = {"cluster": 0.8, "separation": 0.08, "orthogonality": 1e-4, "subspace": 1e-7}


@pytest.fixture
def splits(tmp_path):
    return make_tiny_splits(tmp_path / "cub")


def make_network(seed: int = 0) -> TesNet:
    torch.manual_seed(seed)
    return TesNet(TinyBackbone(), 3, per_class=2).double().eval()


def slow_scores(network: TesNet, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Projections and cosines (N, P, H*W), one cell at a time."""
    cells = network.add_on(network.backbone(images)).detach().flatten(2)
    vectors = network.prototypes.vectors.detach().flatten(1)
    projections = torch.zeros(len(images), len(vectors), cells.shape[2], dtype=torch.float64)
    cosines = torch.zeros_like(projections)
    for n, p, q in torch.cartesian_prod(*map(torch.arange, projections.shape)).tolist():
        cell, vector = cells[n, :, q], vectors[p]
        projections[n, p, q] = sum(cell * vector) / math.sqrt(sum(vector**2))
        cosines[n, p, q] = projections[n, p, q] / math.sqrt(sum(cell**2))
    return projections, cosines


def lengths(network: TesNet) -> torch.Tensor:
    return network.prototypes.vectors.detach().flatten(1).norm(dim=1)


def test_score_is_the_longest_projection_on_the_unit_prototype(one_thread):
    network = make_network()
    with torch.no_grad():
        network.prototypes.vectors.mul_(3)  # their length does not count
    projections, cosines = slow_scores(network, make_images())
    output = network.inspect(make_images())
    torch.testing.assert_close(output.scores, projections.max(dim=2).values)
    assert torch.equal(output.places, projections.argmax(dim=2))
    torch.testing.assert_close(output.cosines, cosines.max(dim=2).values)
    torch.testing.assert_close(network.similarity_map(output.z).flatten(2), projections)
    torch.testing.assert_close(network.prototypes.distance_map(output.z).flatten(2), 1 - cosines)
    torch.testing.assert_close(output.logits, output.scores @ network.last_layer.weight.T)


def slow_subspaces(vectors: torch.Tensor, classes: torch.Tensor) -> float:
    """Projection metrics of all pairs, from the projections (C, C) themselves."""
    rows = [vectors[classes == c].flatten(1) for c in range(int(classes.max()) + 1)]
    slow = 0
    for c in range(len(rows)):
        for d in range(c):
            difference = rows[c].T @ rows[c] - rows[d].T @ rows[d]
            slow += math.sqrt(sum(difference.flatten() ** 2)) / math.sqrt(2)
    return slow


@pytest.mark.parametrize("classes", [[0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 1, 2]])
def test_subspace_distances_are_projection_metrics_over_pairs(classes):
    vectors = functional.normalize(torch.rand(6, 5, 1, 1, dtype=torch.float64), dim=1)
    found = subspace_distances(vectors, torch.tensor(classes))
    assert float(found) == pytest.approx(slow_subspaces(vectors, torch.tensor(classes)), abs=1e-9)


def test_orthogonal_subspaces_are_as_far_apart_as_their_dimension_allows():
    vectors = torch.eye(6, dtype=torch.float64)[:, :, None, None]
    found = subspace_distances(vectors, torch.tensor([0, 0, 1, 1, 2, 2]))
    assert float(found) == pytest.approx(3 * math.sqrt(2))  # three pairs, of two dimensions each


def test_equal_subspaces_have_distance_0_and_finite_gradients():
    one = torch.eye(3, dtype=torch.float64)[:2]
    vectors = torch.cat([one, one])[:, :, None, None].requires_grad_()
    found = subspace_distances(vectors, torch.tensor([0, 0, 1, 1]))
    found.backward()
    assert float(found.detach()) < 1e-9 and vectors.grad.isfinite().all()


def test_subspace_gradient_is_that_of_finite_differences():
    vectors = torch.rand(6, 5, 1, 1, dtype=torch.float64, requires_grad=True)
    classes = torch.tensor([0, 0, 1, 1, 2, 2])
    torch.autograd.gradcheck(lambda v: subspace_distances(v, classes), vectors)


def test_loss_is_that_of_the_paper_in_loops(one_thread):
    network = make_network()
    weights = WEIGHTS | {"orthogonality": 0.1, "subspace": 0.01}  # heavy enough to be seen
    terms = objective(network, make_images(), LABELS, Phase("joint", 1, {}, weights))
    projections, cosines = (
        value.max(dim=2).values for value in slow_scores(network, make_images())
    )
    classes, vectors = network.prototypes.classes, network.prototypes.vectors.detach()
    logits = projections @ network.last_layer.weight.detach().T
    slow = 0
    for i, label in enumerate(LABELS.tolist()):
        slow -= (float(logits[i, label]) - math.log(sum(logits[i].exp()))) / 4
        slow -= 0.8 * max(float(cosines[i, p]) for p in range(6) if classes[p] == label) / 4
        slow += 0.08 * max(float(cosines[i, p]) for p in range(6) if classes[p] != label) / 4
    for c in range(3):
        rows = vectors[classes == c].flatten(1)
        for i in range(2):
            for j in range(2):
                slow += 0.1 * (float(rows[i] @ rows[j]) - (i == j)) ** 2
    slow -= 0.01 * slow_subspaces(vectors, classes)
    assert float(terms["loss"].detach()) == pytest.approx(slow, abs=1e-9)
    terms["loss"].backward()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


def test_published_sizes_on_cub():
    with torch.device("meta"):
        network = TesNet(make_backbone("vgg19"), 200)
    assert network.prototypes.vectors.shape == (2000, 64, 1, 1)
    add_on = sum(parameter.numel() for parameter in network.add_on.parameters())
    assert add_on == (512 + 1) * 64 + (64 + 1) * 64 == 36992


@torch.no_grad()
def test_projection_takes_the_longest_projection_of_the_own_class(splits, one_thread):
    images = splits.projection
    network = make_network()
    best = [(-math.inf, -1, -1)] * 6
    for index in range(len(images)):
        projections = slow_scores(network, images[index].images[None].double())[0][0]
        for prototype, label in enumerate(network.prototypes.classes.tolist()):
            place = int(projections[prototype].argmax())
            found = (float(projections[prototype, place]), index, place)
            if images.records[index].label == label and found[0] > best[prototype][0]:
                best[prototype] = found
    loaded = [b._replace(images=b.images.double()) for b in batches(make_loader(images, 4))]
    origins = project(network, loaded, images)
    for origin, (length, index, place) in zip(origins, best, strict=True):
        assert origin.image == images.records[index].id
        assert origin.label == images.records[index].label
        assert origin.label == int(network.prototypes.classes[origin.prototype])
        assert origin.similarity == pytest.approx(length)
        assert origin.centre == (place // 4, place % 4) and origin.parts == (origin.centre,)


@torch.no_grad()
def test_projection_leaves_the_direction_of_the_source(splits, one_thread):
    network, images = make_network().float(), splits.projection
    origins = project(network, batches(make_loader(images, 4)), images)
    rows = {record.id: row for row, record in enumerate(images.records)}
    for origin in origins:
        output = network.inspect(images[rows[origin.image]].images[None])
        assert float(output.cosines[0, origin.prototype]) == pytest.approx(1, abs=1e-5)
        cell = output.z[0, :, *origin.centre]
        there = network.similarity_map(output.z)[0, origin.prototype, *origin.centre]
        assert float(there) == pytest.approx(float(cell.norm()), rel=1e-5)  # nothing is longer
    torch.testing.assert_close(lengths(network), torch.ones(6))


def test_schedule_is_protopnets_with_two_more_terms():
    experiment = make_experiment("paper", cluster=0.8, separation=0.08, orthogonality=1e-4)
    warm, joint = METHOD.schedule(experiment).phases
    assert warm.weights == joint.weights == WEIGHTS
    assert warm.rates == {"add_on": 3e-3, "prototypes": 3e-3}
    assert joint.rates == warm.rates | {"backbone": 1e-4}


def test_prototypes_are_back_at_unit_length_after_each_step(splits, one_thread):
    trainer = make_trainer(splits, method=METHOD)
    given, taken = [], []  # lengths in the objective, and as the optimiser left them

    def watched(model, *arguments):
        terms = objective(model, *arguments)
        given.append(lengths(model))
        return terms

    trainer.objective = watched
    records = list(trainer.run(lambda trainer: taken.append(lengths(trainer.model))))
    assert records[-1]["stage"] == "last layer" and len(given) == len(taken) > 4
    assert (torch.stack(taken) - 1).abs().max() > 1e-4
    for length in (*given, lengths(trainer.model)):
        torch.testing.assert_close(length, torch.ones(6))


def test_frozen_children_stay_as_they_are(splits, one_thread):
    moved = moving_children(make_trainer(splits, method=METHOD), 2)
    assert moved == [{"add_on", "prototypes"}, {"add_on", "prototypes", "backbone"}]


def test_training_lowers_the_loss_and_ends_in_stages_2_and_3(splits, one_thread):
    trainer = make_trainer(splits, EXPERIMENT, METHOD)
    records = list(trainer.run())
    assert [record["stage"] for record in records] == ["train"] * 4 + ["project", "last layer"]
    assert records[3]["loss"] < records[0]["loss"]
    assert {"orthogonality", "subspace"} <= records[0].keys()
    assert [origin["prototype"] for origin in trainer.provenance] == list(range(6))
