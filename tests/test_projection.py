"""Stage 2: equation 15, against a search in loops; where prototypes come from; pruning."""

import hashlib

import pytest
import torch
from tiny_network import make_network, make_tiny_splits

from dpp import ops
from dpp.data.batches import batches, make_loader
from dpp.reference import resting_places
from dpp.system.errors import UserError
from dpp.training.projection import project


@pytest.fixture
def images(tmp_path):
    return make_tiny_splits(tmp_path / "cub").projection


def loaded(images, size: int = 4):
    """Batches in double precision, for the network of the tests."""
    for batch in batches(make_loader(images, size)):
        yield batch._replace(images=batch.images.double())


def slow_search(network, images) -> list[tuple[float, int, int]]:
    """The best (similarity, image, place) of each prototype, one image and place at a time."""
    found = []
    for prototype, label in enumerate(network.prototypes.classes.tolist()):
        best = (-2.0, -1, -1)
        for batch in loaded(images, 1):
            if int(batch.labels) != label:
                continue
            z, offsets = network.locate(batch.images)
            similarity = ops.similarity_map(
                z, offsets, network.prototypes.normalised(), **network.prototypes.geometry
            )[0, prototype].flatten()
            for place, value in enumerate(similarity.tolist()):
                if value > best[0]:
                    best = (value, int(batch.indices), place)
        found.append(best)
    return found


@pytest.mark.parametrize("kernel_size", [2, 3])
@pytest.mark.parametrize("deformable", [True, False])
@torch.no_grad()
def test_equation_15_takes_the_most_similar_place_of_the_own_class(
    images, kernel_size, deformable, one_thread
):
    network = make_network(kernel_size=kernel_size, deformable=deformable)
    expected = slow_search(network, images)
    origins = project(network, loaded(images), images)
    for origin, (similarity, image, place) in zip(origins, expected, strict=True):
        assert origin.similarity == pytest.approx(similarity, abs=1e-6)
        assert origin.image == images.records[image].id
        assert origin.centre == (place // 4, place % 4)
        assert images.records[image].label == origin.label


@torch.no_grad()
def test_each_prototype_is_its_own_source_after_projection(images, one_thread):
    network = make_network(moving=0.8)
    origins = project(network, loaded(images), images)
    rows = {record.id: row for row, record in enumerate(images.records)}
    for origin in origins:
        picture = images[rows[origin.image]].images[None].double()
        output = network.inspect(picture)
        assert float(output.scores[0, origin.prototype]) == pytest.approx(1, abs=1e-5)
        place = int(output.places[0, origin.prototype])
        assert (place // 4, place % 4) == origin.centre


@torch.no_grad()
def test_single_precision_projects_to_similarity_1_within_1e_5(images, one_thread):
    network = make_network(moving=0.8).float()
    project(network, batches(make_loader(images, 4)), images)
    best = torch.stack(
        [network.inspect(batch.images).scores for batch in batches(make_loader(images, 1))]
    ).amax(dim=(0, 1))
    torch.testing.assert_close(best, torch.ones_like(best), atol=1e-5, rtol=0)


@torch.no_grad()
def test_origin_says_where_each_part_lies_and_of_which_file(images, one_thread):
    network = make_network()
    origins = project(network, loaded(images), images)
    rows = {record.id: row for row, record in enumerate(images.records)}
    for origin in origins:
        row = rows[origin.image]
        content = images.records[row].path.read_bytes()
        assert origin.sha256 == hashlib.sha256(content).hexdigest()
        _, offsets = network.locate(images[row].images[None].double())
        a, b = origin.centre
        for part, (down, right) in enumerate(resting_places(2, 2)):
            expected = (
                a + down + float(offsets[0, 2 * part, a, b]),
                b + right + float(offsets[0, 2 * part + 1, a, b]),
            )
            assert origin.parts[part] == pytest.approx(expected, abs=1e-6)


@torch.no_grad()
def test_batch_size_and_order_do_not_change_the_projection(images, one_thread):
    expected = project(make_network(), loaded(images), images)
    assert project(make_network(), loaded(images, 1), images) == expected
    backwards = reversed(list(loaded(images, 3)))
    again = project(make_network(), backwards, images)
    assert [origin.image for origin in again] == [origin.image for origin in expected]


@torch.no_grad()
def test_parts_off_the_map_are_projected_on_the_empty_vector(images, one_thread):
    network = make_network(moving=0)
    network.offsets[2].bias.fill_(50.0)
    project(network, loaded(images), images)
    expected = torch.zeros_like(network.prototypes.normalised())
    expected[:, -1] = 0.5
    torch.testing.assert_close(network.prototypes.normalised(), expected)


def test_class_without_an_image_is_named(images):
    network = make_network(classes=4)
    with pytest.raises(UserError, match="class 3 has no training image"):
        project(network, loaded(images), images)
