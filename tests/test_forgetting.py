"""The forgetting loss: against loops, on cases with known answers, and that it is followed."""

import math

import pytest
import torch
from tiny_network import TinyBackbone, make_network, make_tiny_splits

from dpp.data.batches import to_device
from dpp.extensions import forgetting
from dpp.methods import deformable
from dpp.methods.protopnet import EPSILON, ProtoPNet
from dpp.methods.tesnet import TesNet
from dpp.training.trainer import Phase, Schedule, Trainer

IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(2)).double()
CENTRES, LABELS = torch.tensor([5, 0, 15, 10]), torch.tensor([0, 1, 2, 1])


def cell_network(kind):
    torch.manual_seed(0)
    return kind(TinyBackbone(), 3, per_class=2).double().eval()


def slow_forgetting(model, images, centres, labels) -> float:
    """Patch by patch, cell by cell, prototype by prototype."""
    z, offsets = model.locate(images)
    layer, total = model.prototypes, 0.0
    height, width = z.shape[2:]
    for image, (centre, label) in enumerate(zip(centres.tolist(), labels.tolist(), strict=True)):
        best = -math.inf
        for row in range(max(centre // width - 1, 0), min(centre // width + 2, height)):
            for column in range(max(centre % width - 1, 0), min(centre % width + 2, width)):
                for number in (layer.classes == label).nonzero().flatten().tolist():
                    if isinstance(model, TesNet):
                        cell, vector = z[image, :, row, column], layer.vectors[number].flatten()
                        cosine = (cell @ vector / cell.norm() / vector.norm()).item()
                        distance = 2 - 2 * cosine
                    elif isinstance(model, ProtoPNet):
                        cell = z[image, :-1, row, column]
                        distance = (cell - layer.vectors[number].flatten()).square().sum().item()
                    else:
                        whole = model.similarity_map(z, offsets, torch.tensor([number]))
                        distance = 2 - 2 * whole[image, 0, row, column].item()
                    best = max(best, math.log((distance + 1) / (distance + EPSILON)))
        total += best
    return total / len(images)


@torch.no_grad()
@pytest.mark.parametrize("make", [make_network, ProtoPNet, TesNet], ids=lambda make: make.__name__)
def test_loss_equals_loops_over_patches_cells_and_prototypes(make):
    model = make() if make is make_network else cell_network(make)
    loss = forgetting.forgetting(model, IMAGES, CENTRES, LABELS)
    assert loss.item() == pytest.approx(slow_forgetting(model, IMAGES, CENTRES, LABELS), rel=1e-9)


@torch.no_grad()
def test_prototype_that_is_the_forgotten_patch_gives_the_highest_loss():
    model = cell_network(ProtoPNet)
    z, _ = model.locate(IMAGES[:1])
    model.prototypes.vectors[1] = z[0, :-1, 1, 1, None, None]  # cell 5 of a map of 4 x 4
    given = (IMAGES[:1], torch.tensor([5]))
    assert forgetting.forgetting(model, *given, torch.tensor([0])).item() == pytest.approx(
        math.log(1 / EPSILON)
    )
    assert forgetting.forgetting(model, *given, torch.tensor([1])) < 5  # another class may have it


def test_cells_around_stay_on_the_map():
    assert forgetting.neighbours(torch.tensor([0]), (2, 3), 1).tolist() == [
        [0, 0, 1, 0, 0, 1, 3, 3, 4]
    ]
    assert forgetting.neighbours(torch.tensor([4]), (2, 3), 0).tolist() == [[4]]


def test_batch_norm_keeps_its_statistics_and_its_mode():
    model = make_network()
    model.backbone.train()
    before = {name: value.clone() for name, value in model.backbone.state_dict().items()}
    forgetting.forgetting(model, IMAGES, CENTRES, LABELS).backward()
    assert all(torch.equal(value, before[n]) for n, value in model.backbone.state_dict().items())
    assert model.backbone.layers[1].training and model.backbone.layers[0].weight.grad.any()


@pytest.fixture(scope="module")
def trainer(tmp_path_factory) -> Trainer:
    model = make_network(classes=3).float()
    splits = make_tiny_splits(tmp_path_factory.mktemp("birds"))
    phase = Phase("joint", 1, {"prototypes": 3e-3})
    schedule = Schedule((phase,))
    return Trainer(model, schedule, splits, deformable.stage_one(0.1), {}, batch_size=4)


@torch.no_grad()
def test_sightings_are_the_most_similar_images_of_the_class(trainer):
    found = forgetting.find_sightings(trainer, [1, 4], count=2)
    data, model = trainer.splits.projection, trainer.model
    batch = data.batch([(0, index) for index in range(len(data))])
    output = model.inspect(to_device(batch.images, "cpu"))
    for number, label, chosen in ((1, 0, [0, 2]), (4, 2, [1, 3])):
        own = (batch.labels == label).nonzero().flatten()
        best = own[output.scores[own, number].argsort(descending=True)][:2]
        assert found.images[chosen].tolist() == best.tolist()
        assert found.centres[chosen].tolist() == output.places[best, number].tolist()
        assert found.labels[chosen].tolist() == [label, label]
    few = forgetting.find_sightings(trainer, [1], count=100)
    assert len(few.images) == int((batch.labels == 0).sum())


def test_training_lowers_the_loss(trainer):
    found = forgetting.find_sightings(trainer, [0], count=2)
    data, model = trainer.splits.projection, trainer.model
    phase = trainer.schedule.phases[0]
    objective = forgetting.with_forgetting(trainer.objective, data, found, weight=100.0)
    batch = data.batch([(0, index) for index in range(6)])
    optimiser = torch.optim.Adam(model.prototypes.parameters(), lr=0.02)
    values = []
    for _ in range(30):
        optimiser.zero_grad()
        terms = objective(model, batch.images, batch.labels, phase)
        terms["loss"].backward()
        optimiser.step()
        values.append(terms["forgetting"].item())
    assert values[-1] < values[0] - 0.1
