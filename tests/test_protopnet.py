"""ProtoPNet: distances, similarity and losses in loops; published sizes; projection; schedule."""

import hashlib
import math

import pytest
import torch
from tiny_network import TinyBackbone, make_tiny_splits

from dpp.backbones.backbone import make_backbone
from dpp.data.batches import batches, make_loader
from dpp.methods.protopnet import (
    METHOD,
    CellPrototypes,
    ProtoPNet,
    make_add_on,
    objective,
    project,
    similarity,
)
from dpp.system import files
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment
from dpp.training.trainer import Phase, Trainer

WEIGHTS = {"cluster": 0.8, "separation": 0.08}
LABELS = torch.tensor([0, 2, 1, 1])
EXPERIMENT = make_experiment(
    "mini",
    prototype_start="uniform",
    epochs=4,
    warm_epochs=1,
    second_warm_epochs=0,
    project_after=(4,),
    per_class=2,
    cluster=0.8,
    separation=0.08,
    prototype_rate=3e-3,
    backbone_rate=1e-3,
)


@pytest.fixture
def splits(tmp_path):
    return make_tiny_splits(tmp_path / "cub")


def make_images(seed: int = 0) -> torch.Tensor:
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(seed)).double()


def make_network(seed: int = 0, classes: int = 3) -> ProtoPNet:
    torch.manual_seed(seed)
    return ProtoPNet(TinyBackbone(), classes, per_class=2).double().eval()


def make_trainer(splits, experiment=EXPERIMENT, method=METHOD) -> Trainer:
    torch.manual_seed(0)
    return Trainer(
        method.build(experiment, TinyBackbone(), 3),
        method.schedule(experiment),
        splits,
        method.objective(experiment),
        method.stages(experiment),
        batch_size=5,
    )


def moving_children(trainer: Trainer, epochs: int) -> list[set[str]]:
    """Which children's weights or statistics each epoch changed."""
    before, moved = {}, []
    for child, module in trainer.model.named_children():
        before[child] = {name: value.clone() for name, value in module.state_dict().items()}
    for _, _ in zip(range(epochs), trainer.run(), strict=False):
        moved.append(set())
        for child, module in trainer.model.named_children():
            for name, value in module.state_dict().items():
                if not torch.equal(before[child][name], value):
                    moved[-1].add(child)
                    before[child][name] = value.clone()
    return moved


def slow_distances(network: ProtoPNet, images: torch.Tensor) -> torch.Tensor:
    """(N, P, H, W), one cell and one channel at a time."""
    cells = network.add_on(network.backbone(images)).detach()
    vectors = network.prototypes.vectors.detach()
    found = torch.zeros(len(images), len(vectors), *cells.shape[2:], dtype=torch.float64)
    for n, p, a, b in torch.cartesian_prod(*map(torch.arange, found.shape)).tolist():
        found[n, p, a, b] = sum((cells[n, :, a, b] - vectors[p, :, 0, 0]) ** 2)
    return found


def test_distances_are_squared_differences_and_the_least_is_found(one_thread):
    network = make_network()
    slow = slow_distances(network, make_images())
    output = network.inspect(make_images())
    torch.testing.assert_close(network.prototypes.distance_map(output.z), slow)
    torch.testing.assert_close(output.distances, slow.flatten(2).min(dim=2).values)
    assert torch.equal(output.places, slow.flatten(2).argmin(dim=2))


def test_similarity_falls_with_the_distance_from_the_bound_to_zero():
    distances = [0.0, 1e-6, 0.01, 1.0, 7.5, 1e6]
    slow = [math.log((d + 1) / (d + 1e-4)) for d in distances]
    found = similarity(torch.tensor(distances, dtype=torch.float64))
    assert found.tolist() == pytest.approx(slow, abs=1e-12)
    assert slow[0] == pytest.approx(math.log(1e4)) and slow[-1] < 1e-5


def test_score_is_the_highest_similarity_and_logits_are_linear_in_it(one_thread):
    network = make_network()
    output = network.inspect(make_images())
    everywhere = network.similarity_map(output.z)
    torch.testing.assert_close(output.scores, everywhere.flatten(2).max(dim=2).values)
    torch.testing.assert_close(output.logits, output.scores @ network.last_layer.weight.T)
    assert torch.equal(network(make_images()), output.logits)
    hits = (output.logits.argmax(dim=1) == LABELS).float()
    assert torch.equal(network.measure(make_images(), LABELS)["accuracy"], hits)


def test_last_layer_begins_at_one_and_minus_a_half():
    expected = [[1, 1, -0.5, -0.5, -0.5, -0.5], [-0.5, -0.5, 1, 1, -0.5, -0.5]]
    network = make_network()
    assert network.last_layer.weight[:2].tolist() == expected
    assert network.last_layer.bias is None


def test_loss_is_that_of_the_paper_in_loops(one_thread):
    network = make_network()
    with torch.no_grad():
        terms = objective(network, make_images(), LABELS, Phase("joint", 1, {}, WEIGHTS))
    distances = slow_distances(network, make_images()).flatten(2).min(dim=2).values.tolist()
    classes, connections = network.prototypes.classes.tolist(), network.last_layer.weight.tolist()
    entropy = cluster = separation = 0
    for row, label in zip(distances, LABELS.tolist(), strict=True):
        scores = [math.log((d + 1) / (d + 1e-4)) for d in row]
        logits = [sum(w * s for w, s in zip(line, scores, strict=True)) for line in connections]
        entropy -= (logits[label] - math.log(sum(map(math.exp, logits)))) / 4
        cluster += min(d for d, c in zip(row, classes, strict=True) if c == label) / 4
        separation += min(d for d, c in zip(row, classes, strict=True) if c != label) / 4
    assert float(terms["cross_entropy"]) == pytest.approx(entropy, abs=1e-9)
    assert float(terms["cluster"]) == pytest.approx(cluster, abs=1e-9)
    assert float(terms["separation"]) == pytest.approx(-separation, abs=1e-9)
    slow = entropy + 0.8 * cluster - 0.08 * separation
    assert float(terms["loss"]) == pytest.approx(slow, abs=1e-9)


@pytest.mark.parametrize("everywhere", [False, True])
def test_distance_gradient_is_that_of_finite_differences(everywhere, one_thread):
    torch.manual_seed(0)
    prototypes = CellPrototypes(5, 2, 2).double()
    features = torch.rand(2, 5, 3, 3, dtype=torch.float64, requires_grad=True)

    def distances(features, vectors):  # these are the layer's own, changed in place
        z = prototypes.place_features(features)
        return prototypes.distance_map(z) if everywhere else prototypes(z)[0]

    torch.autograd.gradcheck(distances, (features, prototypes.vectors))


def test_gradients_are_finite_where_a_cell_equals_its_prototype(splits, one_thread):
    network = make_network().float()
    project(network, batches(make_loader(splits.projection, 4)), splits.projection)
    batch = next(batches(make_loader(splits.projection, 18)))
    objective(network, batch.images, batch.labels, Phase("joint", 1, {}, WEIGHTS))[
        "loss"
    ].backward()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


def test_small_distances_are_exact_in_single_precision(one_thread):
    prototypes = CellPrototypes(128, 2, 2)
    features = (torch.rand(2, 128, 4, 4) > 0.5).float()  # as long as sigmoids can be
    with torch.no_grad():
        prototypes.vectors.copy_(features[0, :, 0, :].T[:, :, None, None])
        prototypes.vectors[:, 0] += 1e-3
    distances, places = prototypes(prototypes.place_features(features))
    torch.testing.assert_close(distances[0], torch.full((4,), 1e-6), rtol=1e-3, atol=0)
    assert places[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("backbone,features", [("vgg16", 512), ("resnet34", 512)])
def test_published_sizes_on_cub(backbone, features):
    with torch.device("meta"):
        network = ProtoPNet(make_backbone(backbone), 200)
    counts = {
        name: sum(parameter.numel() for parameter in child.parameters())
        for name, child in network.named_children()
    }
    assert list(counts) == ["backbone", "add_on", "prototypes", "last_layer"]
    assert network.prototypes.vectors.shape == (2000, 128, 1, 1)
    assert counts["add_on"] == (features + 1) * 128 + (128 + 1) * 128 == 82176
    assert counts["prototypes"] == 256000 and counts["last_layer"] == 400000


def test_add_on_layers_end_in_a_sigmoid():
    layers = make_add_on(6, 8)
    features = layers(10 * torch.randn(2, 6, 3, 3))
    assert features.shape == (2, 8, 3, 3) and 0 <= features.min() <= features.max() <= 1
    kinds = [type(layer).__name__ for layer in layers]
    assert kinds == ["Conv2d", "ReLU", "Conv2d", "Sigmoid"]


@torch.no_grad()
def test_projection_takes_the_nearest_cell_of_the_own_class(splits, one_thread):
    images = splits.projection
    network = make_network()
    best = [(math.inf, -1, -1)] * 6
    for index in range(len(images)):
        distances = slow_distances(network, images[index].images[None].double())[0].flatten(1)
        for prototype, label in enumerate(network.prototypes.classes.tolist()):
            place = int(distances[prototype].argmin())
            found = (float(distances[prototype, place]), index, place)
            if images.records[index].label == label and found < best[prototype]:
                best[prototype] = found
    loaded = [b._replace(images=b.images.double()) for b in batches(make_loader(images, 4))]
    origins = project(network, loaded, images)
    for origin, (distance, index, place) in zip(origins, best, strict=True):
        record = images.records[index]
        assert origin.image == record.id and origin.label == record.label
        assert origin.label == int(network.prototypes.classes[origin.prototype])
        assert origin.sha256 == hashlib.sha256(record.path.read_bytes()).hexdigest()
        assert origin.centre == (place // 4, place % 4) and origin.cells == (4, 4)
        assert origin.parts == (origin.centre,)
        assert origin.similarity == pytest.approx(math.log((distance + 1) / (distance + 1e-4)))


@torch.no_grad()
def test_projection_leaves_distance_0_to_the_source(splits, one_thread):
    network, images = make_network().float(), splits.projection
    origins = project(network, batches(make_loader(images, 4)), images)
    rows = {record.id: row for row, record in enumerate(images.records)}
    for origin in origins:
        output = network.inspect(images[rows[origin.image]].images[None])
        assert float(output.distances[0, origin.prototype]) <= 1e-5
        assert float(output.scores[0, origin.prototype]) == pytest.approx(math.log(1e4), abs=1e-2)


def test_projection_names_a_class_without_an_image(splits):
    network = make_network(classes=4).float()
    with pytest.raises(UserError, match="class 3 has no training image"):
        project(network, batches(make_loader(splits.projection, 4)), splits.projection)


def test_schedule_is_that_of_the_paper():
    experiment = make_experiment(
        "paper", cluster=0.8, separation=0.08, project_after=(10, 20, 30), second_warm_epochs=0
    )
    schedule = METHOD.schedule(experiment)
    warm, joint = schedule.phases
    assert (warm.epochs, joint.epochs) == (5, 25)
    assert warm.rates == {"add_on": 3e-3, "prototypes": 3e-3}
    assert joint.rates == {"add_on": 3e-3, "prototypes": 3e-3, "backbone": 1e-4}
    assert (warm.decay, joint.decay, joint.decay_every) == (1, 0.1, 5)
    assert warm.weights == joint.weights == WEIGHTS
    assert schedule.weight_decay == {"backbone": 1e-3, "add_on": 1e-3}
    assert schedule.after == (10, 20, 30) and schedule.stages == ("project", "last layer")
    fixed = METHOD.schedule(make_experiment("paper", last_layer="fixed"))
    assert fixed.stages == ("project",)


def test_frozen_children_stay_as_they_are(splits, one_thread):
    moved = moving_children(make_trainer(splits), 2)
    assert moved == [{"add_on", "prototypes"}, {"add_on", "prototypes", "backbone"}]


def test_training_lowers_the_loss_and_ends_in_stages_2_and_3(splits, tmp_path, one_thread):
    trainer = make_trainer(splits)
    start = trainer.model.last_layer.weight.detach().clone()
    records = list(trainer.run())
    assert [record["stage"] for record in records] == ["train"] * 4 + ["project", "last layer"]
    assert records[3]["loss"] < records[0]["loss"]
    assert 1 <= records[4]["source_images"] <= 6 and "test_accuracy" in records[-1]
    assert not torch.equal(start, trainer.model.last_layer.weight)
    assert [origin["prototype"] for origin in trainer.provenance] == list(range(6))
    files.write_json(tmp_path / "prototypes.json", trainer.provenance)


def test_half_precision_keeps_distances_in_single(splits, one_thread):
    network = make_network().float()
    images = make_images().float()
    with torch.autocast("cpu", torch.bfloat16):
        output = network.inspect(images)
    assert output.distances.dtype == torch.float32
    torch.testing.assert_close(
        output.distances, network.inspect(images).distances, rtol=0.05, atol=0.1
    )


def test_keep_leaves_prototypes_with_their_connections(one_thread):
    network = make_network()
    before = network.inspect(make_images())
    network.keep(torch.tensor([4, 0, 3]))
    after = network.inspect(make_images())
    torch.testing.assert_close(after.scores, before.scores[:, [0, 3, 4]])
    assert network.prototypes.classes.tolist() == [0, 1, 2] and after.logits.shape == (4, 3)
