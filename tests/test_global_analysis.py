"""The images nearest to each prototype against all scores sorted; audits with known answers."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from test_runs import tiny
from tiny_analysis import KINDS, ask, ask_projected, make_data, make_model
from tiny_network import TinyBackbone
from torch import nn

from dpp import explanations, runs
from dpp.analysis import audit
from dpp.analysis.global_analysis import Nearest, find_nearest, global_analysis
from dpp.data.batches import batches, make_loader
from dpp.data.image_records import Box, ImageRecord, Part
from dpp.data.transforms import Geometry
from dpp.explanations import Accuracy, Share
from dpp.networks.soft_tree import ProtoTree
from dpp.system.errors import UserError
from dpp.system.files import sha256
from dpp.training.projection import Origin

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def data(tmp_path):
    return make_data(tmp_path / "cub")


def slow_neighbours(network, dataset, count: int) -> dict[int, list[tuple[int, float]]]:
    """All scores, one image at a time, sorted: (index, similarity) of each prototype's nearest."""
    scores = torch.stack([network.inspect(one.images[None]).scores[0] for one in dataset])
    order = range(len(dataset))
    return {
        number: [
            (index, float(scores[index, number]))
            for index in sorted(order, key=lambda i: (-float(scores[i, number]), i))[:count]
        ]
        for number in network.prototypes.tolist()
    }


@pytest.mark.parametrize("kind", [*KINDS, "tree"])
@pytest.mark.parametrize("count, batch_size", [(3, 4), (2, 80), (50, 5)])
def test_neighbours_are_those_of_all_scores_sorted(data, kind, count, batch_size):
    model = ProtoTree(TinyBackbone(), 3) if kind == "tree" else make_model(kind)
    network = ask(model.double(), data)
    splits = {"train": data.splits.projection, "test": data.splits.test}
    found = global_analysis(network, *splits.values(), count, batch_size=batch_size)
    for name, dataset in splits.items():
        expected = slow_neighbours(network, dataset, count)
        for neighbours in found.prototypes:
            nearest = getattr(neighbours, name)
            images = expected[neighbours.prototype]
            assert len(nearest) == min(count, len(dataset))
            assert [one.image for one in nearest] == [dataset.records[i].id for i, _ in images]
            values = [similarity for _, similarity in images]
            assert [one.similarity for one in nearest] == pytest.approx(values)


@pytest.mark.parametrize("kind", KINDS)
def test_neighbour_has_the_parts_that_the_image_has_alone(data, kind):
    network, dataset = ask(make_model(kind).double(), data), data.splits.projection
    rows = {record.id: row for row, record in enumerate(dataset.records)}
    found = global_analysis(network, dataset, data.splits.test, 3, batch_size=4)
    for neighbours in found.prototypes:
        for one in neighbours.train:
            output = network.inspect(dataset[rows[one.image]].images[None])
            number = torch.tensor([neighbours.prototype])
            places, shares = network.model.find_parts(output, 0, number)
            found_at = np.array([part.place for part in one.parts])
            np.testing.assert_allclose(found_at, places[0].numpy(), atol=1e-9)
            contributions = [part.contribution for part in one.parts]
            assert contributions == pytest.approx(shares[0].tolist())
            assert sum(contributions) == pytest.approx(one.similarity)
            assert one.centre == divmod(int(output.places[0, neighbours.prototype]), 4)
            assert one.label == dataset.records[rows[one.image]].label and one.size == (40, 30)
            view = Geometry(Box(0, 0, 40, 30), 16)
            for part in one.parts:
                assert part.box == pytest.approx(view.cell_box(part.place, (4, 4)))


class Counted(nn.Module):
    """Finds parts that tell which image and prototype they are of."""

    def __init__(self):
        super().__init__()
        self.prototypes = SimpleNamespace(classes=torch.zeros(5))

    def find_parts(self, output, image, prototypes):
        names = 100.0 * output.indices[image] + prototypes
        return names[:, None, None].expand(-1, 2, 2), names[:, None].expand(-1, 2)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [1, 3, 30])
def test_equally_similar_images_come_in_the_data_sets_order(data, count, seed):
    """Scores are whole numbers, so that most are equal; batches come in any order."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-2, 2, (20, 5), generator=generator).float()
    nearest = Nearest(ask(Counted(), data), count)
    for indices in torch.randperm(20, generator=generator).split(6):
        output = SimpleNamespace(
            scores=scores[indices],
            places=indices[:, None] % 16 * torch.ones(5, dtype=torch.long),
            z=torch.zeros(len(indices), 1, 4, 4),
            indices=indices,
        )
        nearest.update(output, indices)
    for number in range(5):
        expected = sorted(range(20), key=lambda i: (-float(scores[i, number]), i))[:count]
        assert nearest.image[:20, number].tolist()[: len(expected)] == expected
        there = slice(0, len(expected))
        assert nearest.centre[there, number].tolist() == [i % 16 for i in expected]
        names = [100 * i + number for i in expected]
        assert nearest.places[there, number, 1, 1].tolist() == names
        assert nearest.shares[there, number, 0].tolist() == names


def test_what_a_pass_keeps_does_not_grow_with_the_images(data):
    network = ask(make_model("deformable"), data)
    few, many = (
        find_nearest(network, batches(make_loader(dataset, 4)), 2)
        for dataset in (data.splits.test, data.splits.projection)
    )
    for name in ("similarity", "image", "centre", "places", "shares"):
        assert getattr(few, name).shape == getattr(many, name).shape


def test_global_analysis_is_read_back_as_it_was(data, tmp_path):
    network = ask(make_model("deformable"), data)
    found = global_analysis(network, data.splits.projection, data.splits.test)
    explanations.write(tmp_path / "saved.json", found)
    assert explanations.read(tmp_path / "saved.json") == found


def test_global_analysis_refuses_augmented_images_and_no_images(data):
    network = ask(make_model("rigid"), data)
    with pytest.raises(UserError, match="not augmented"):
        global_analysis(network, data.splits.train, data.splits.test)
    with pytest.raises(UserError, match="at least 1 image, not 0"):
        global_analysis(network, data.splits.projection, data.splits.test, 0)


# Audits


def marked(**changes) -> ImageRecord:
    """An image of 40 by 40, ten pixels to a cell: animal in the middle, a part on cell (1, 1)."""
    parts = (Part(15, 15, True), Part(35, 35, False))
    return replace(ImageRecord("0", None, 0, Box(10, 10, 30, 30), parts), **changes)


PLACES = np.array(
    [
        [0.0, 0.0],  # background, and the square root of 2 from the animal's part
        [1.0, 1.0],  # upon it
        [1.0, 2.0],  # one cell from it
        [3.0, 3.0],  # background, on a part that is hidden
        [-0.6, 1.0],  # off the image
        [-0.5, 1.0],  # on its edge, background
    ]
)
VIEW = Geometry(Box(0, 0, 40, 40), 16)


def test_tally_counts_what_was_placed_by_hand():
    tally = audit.Tally()
    tally.add(marked(), VIEW, (4, 4), PLACES)
    assert (tally.off_image, tally.parts) == (1, 6)
    assert (tally.on_background, tally.boxed) == (3, 5)
    assert tally.part_share.near == Share(2, 6)
    assert tally.part_share.chance == Share(5, 16)  # the cell and its four neighbours


def test_tally_counts_only_what_is_known():
    tally = audit.Tally()
    tally.add(marked(box=None, parts=None), VIEW, (4, 4), PLACES)
    tally.add(marked(box=None, parts=(Part(35, 35, False),)), VIEW, (4, 4), PLACES)
    assert (tally.parts, tally.boxed, tally.marked, tally.cells) == (12, 0, 0, 0)
    assert tally.part_share.near.value is None


def test_part_that_moved_without_end_is_off_the_image_and_near_nothing():
    tally = audit.Tally()
    tally.add(marked(), VIEW, (4, 4), np.array([[np.inf, 0], [np.nan, 1], [1e30, 1]]))
    assert (tally.off_image, tally.boxed, tally.near) == (3, 0, 0)


METRICS = pd.DataFrame(
    [
        ("train", 0.5, None),
        ("train", 0.6, 0.61),
        ("project", 0.1, 0.11),
        ("train", 0.7, 0.71),
        ("project", 0.65, 0.66),
        ("last layer", 0.75, 0.76),
    ],
    columns=["stage", "validation_accuracy", "test_accuracy"],
)


def test_accuracies_are_those_around_the_last_projection():
    expected = (Accuracy("validation", 0.7, 0.65, 0.75), Accuracy("test", 0.71, 0.66, 0.76))
    assert audit.accuracies(METRICS) == expected
    assert audit.accuracies(METRICS[METRICS.stage == "train"]) == ()


def test_audit_of_a_constructed_network(data):
    """Two equal prototypes of class 0, both from image 1, the second with all parts off it.

    Place (1, 1.5) is the pixel (20, 11.25). Image n's box begins at (n, 2), 20.5 by 40 large, so
    that only in image 22 this is background; a wing is at (20, 9.5) in every image.
    """
    inside, outside = ((1.0, 1.5),) * 4, ((-2.0, 1.0),) * 4
    network = ask(make_model("dilated"), data)
    for number, image in enumerate(("1", "1", "9", "9", "22", "22")):
        parts = outside if number == 1 else inside
        digest = sha256(network.records[image].path)
        network.origins[number] = Origin(
            number, number // 2, image, digest, 0.9, (4, 4), (1, 1), parts
        )
    with torch.no_grad():
        network.model.prototypes.vectors[1] = network.model.prototypes.vectors[0]
    found = audit.audit(SimpleNamespace(metrics=METRICS), network)
    assert found.duplicates == ((0, 1),)
    assert (found.prototypes, found.source_images, found.most_from_one_image) == (6, 3, 2)
    assert found.off_image == Share(4, 24)
    assert found.on_background == Share(8, 20)
    assert found.parts.near == Share(20, 24)
    assert found.accuracies == audit.accuracies(METRICS)


def test_equal_prototypes_of_two_classes_are_no_duplicates(data):
    for kind in KINDS:
        network = ask(make_model(kind), data)
        with torch.no_grad():
            network.model.prototypes.vectors[4] = network.model.prototypes.vectors[1]
            assert audit.duplicates(network) == ()
            network.model.prototypes.vectors[0] = network.model.prototypes.vectors[1]
        assert audit.duplicates(network) == ((0, 1),)


def test_audit_refuses_prototypes_from_nowhere_and_changed_images(data):
    run = SimpleNamespace(metrics=METRICS)
    with pytest.raises(UserError, match="not projected"):
        audit.audit(run, ask(make_model("rigid"), data))
    network = ask_projected(data)
    record = network.records[network.origins[3].image]
    record.path.write_bytes(record.path.read_bytes() + b"!")
    with pytest.raises(UserError, match="has changed since"):
        audit.audit(run, network)


def test_audit_of_a_trained_run_is_read_back_as_it_was(tmp_path):
    short = {"epochs": 1, "warm_epochs": 1, "second_warm_epochs": 0, "project_after": (1,)}
    run = runs.run(tiny(**short), root=tmp_path, device="cpu", progress=False)
    found = audit.audit(run)
    assert found.prototypes == 6 and found.off_image.of == 24 and found.parts.near.of == 24
    assert [one.split for one in found.accuracies] == ["validation", "test"]
    explanations.write(tmp_path / "audit.json", found)
    assert explanations.read(tmp_path / "audit.json") == found


@pytest.mark.parametrize("kind", ["deformable", "rigid", "protopnet"])
def test_part_share_is_that_of_each_images_best_prototypes(data, kind):
    network, images = ask(make_model(kind), data), data.splits.test
    found = audit.part_share(network, batches(make_loader(images, 4)), images.records, count=2)
    near = marks = 0
    for index, record in enumerate(images.records):
        output = network.inspect(images[index].images[None])
        best = output.scores[0].topk(2).indices
        for place in network.model.find_parts(output, 0, best)[0].flatten(0, 1).tolist():
            x, y = (place[1] + 0.5) * 10, (place[0] + 0.5) * 7.5  # pixels
            visible = [part for part in record.parts if part.visible]
            steps = [np.hypot((part.x - x) / 10, (part.y - y) / 7.5) for part in visible]
            near, marks = near + (min(steps) <= 1), marks + 1
    assert found.near == Share(near, marks)
    assert found.chance.of == 16 * len(images)


def test_part_share_needs_marked_parts(data):
    network, images = ask(make_model("rigid"), data), data.splits.test
    records = [replace(record, parts=None) for record in images.records]
    with pytest.raises(UserError, match="no annotated parts of the animal"):
        audit.part_share(network, batches(make_loader(images, 4)), records)
