"""Stage 2 with a place of its own for each prototype: against all assignments, tried in turn."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from tiny_network import make_network, make_tiny_splits

from dpp.analysis.collapse import group_places
from dpp.data.batches import batches, make_loader
from dpp.extensions.distinct_projection import Sites, project_distinct
from dpp.runs.method_of import method_of
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment
from dpp.training.projection import project
from dpp.training.trainer import Trainer


@pytest.fixture
def images(tmp_path):
    return make_tiny_splits(tmp_path / "cub").projection


def loaded(images) -> list:
    """Batches in double precision, for the network of the tests."""
    read = batches(make_loader(images, 4))
    return [batch._replace(images=batch.images.double()) for batch in read]


def sites_of(maps: np.ndarray, spacing: int) -> Sites:
    """The places on images with similarity maps (N, Q, H, W)."""
    sites = Sites(spacing)
    for index, one in enumerate(maps):
        sites.add(index, one)
    return sites


def far_enough(one: tuple[int, int], other: tuple[int, int], width: int, spacing: int) -> bool:
    (image, centre), (other_image, other_centre) = one, other
    rows, columns = zip(divmod(centre, width), divmod(other_centre, width), strict=True)
    return (
        image != other_image or max(abs(rows[0] - rows[1]), abs(columns[0] - columns[1])) >= spacing
    )


@pytest.mark.parametrize("spacing", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_assignment_is_the_best_of_all(spacing, count):
    maps = np.random.default_rng(spacing).random((count, 3, 4, 5))
    sites = sites_of(maps, spacing)
    found = sites.assign(0)
    values = np.array(sites.similarities)
    tried = (
        sum(values[place, number] for number, place in enumerate(places))
        for places in permutations(range(len(values)), 3)
    )
    assert sum(similarity for *_, similarity in found) == pytest.approx(max(tried))
    for number, (image, centre, similarity) in enumerate(found):
        assert similarity == maps[image, number].flat[centre]


@pytest.mark.parametrize("spacing", [1, 2, 3])
def test_places_of_an_image_are_a_part_apart(spacing):
    maps = np.random.default_rng(0).random((2, 4, 6, 6))
    places = sites_of(maps, spacing).places
    for one in places:
        assert all(far_enough(one, other, 6, spacing) for other in places if other is not one)
    assert places[0] == (0, int(maps[0].max(axis=0).argmax()))


def test_every_prototype_gets_its_best_place_where_none_wants_anothers():
    maps = np.zeros((1, 3, 5, 5))
    wanted = [(0, 0), (0, 4), (4, 2)]
    for number, place in enumerate(wanted):
        maps[0, number][place] = 1 - number / 10
    found = sites_of(maps, 2).assign(0)
    assert [(centre // 5, centre % 5) for _, centre, _ in found] == wanted


def test_loser_of_a_place_goes_where_it_loses_least():
    maps = np.zeros((2, 2, 3, 3))
    maps[0, :, 1, 1] = (0.9, 0.8)  # both want it
    maps[1, :, 0, 0] = (0.2, 0.7)
    assert sites_of(maps, 2).assign(0) == [(0, 4, 0.9), (1, 0, 0.7)]


def test_too_few_places_are_refused():
    with pytest.raises(UserError, match="class 7 has 1 places .* fewer than prototypes"):
        sites_of(np.ones((1, 3, 2, 2)), 2).assign(7)


@pytest.mark.parametrize("deformable", [True, False])
@torch.no_grad()
def test_prototypes_become_what_lies_at_their_places(images, deformable, one_thread):
    network = make_network(deformable=deformable, per_class=4)
    before = [network.inspect(batch.images) for batch in loaded(images)]
    origins = project_distinct(network, loaded(images), images)
    assert [origin.prototype for origin in origins] == list(range(12))
    for label in range(3):
        assert len(group_places([one for one in origins if one.label == label])) == 4
    rows = {record.id: row for row, record in enumerate(images.records)}
    highest = torch.cat([output.cosines for output in before])
    for origin in origins:
        assert images.records[rows[origin.image]].label == origin.label
        assert origin.similarity <= float(highest[rows[origin.image], origin.prototype]) + 1e-9
        picture = images[rows[origin.image]].images[None].double()
        z, offsets = network.locate(picture)
        number = torch.tensor([origin.prototype])
        here = network.similarity_map(z, offsets, number)[0, 0][origin.centre]
        assert float(here) == pytest.approx(1, abs=1e-5)


@torch.no_grad()
def test_equal_prototypes_part_ways(images, one_thread):
    network = make_network(per_class=3)
    network.prototypes.vectors[1:3] = network.prototypes.vectors[0]
    same = network.prototypes.vectors[:3].clone()
    nearest = project(network, loaded(images), images)[:3]
    assert len({(origin.image, origin.centre) for origin in nearest}) == 1
    network.prototypes.vectors[:3] = same
    distinct = project_distinct(network, loaded(images), images)[:3]
    assert len({(origin.image, origin.centre) for origin in distinct}) == 3


def test_experiment_projects_distinctly(tmp_path):
    experiment = make_experiment("smoke", kernel_size=2, per_class=2, projection="distinct")
    experiment = replace(
        experiment, epochs=1, warm_epochs=1, second_warm_epochs=0, project_after=(1,)
    )
    method = method_of(experiment)
    network = make_network(per_class=2).float()
    splits = make_tiny_splits(tmp_path / "cub")
    trainer = Trainer(
        network,
        method.schedule(experiment),
        splits,
        method.objective(experiment),
        method.stages(experiment),
        batch_size=5,
    )
    records = list(trainer.run())
    assert [record["stage"] for record in records][-2:] == ["project", "last layer"]
    assert len(trainer.provenance) == 6
    places = {(origin["image"], origin["centre"]) for origin in trainer.provenance}
    assert len(places) == 6


def test_other_models_cannot_project_distinctly():
    with pytest.raises(UserError, match="distinct is for deformable, not for tesnet"):
        make_experiment("mini", model="tesnet", projection="distinct")
