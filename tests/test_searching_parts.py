"""Parts that search, against loops over all centres, parts and steps."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_analysis import ask, make_data
from tiny_network import TinyBackbone, make_tiny_splits
from torch.nn import functional

from dpp import ops
from dpp.analysis import figure_data, part_following, reason
from dpp.data.batches import batches, make_loader
from dpp.extensions import part_search
from dpp.extensions.part_search import max_searched_similarity
from dpp.extensions.searching_parts import START, SearchingProtoPNet
from dpp.networks.prototypes import fix_length
from dpp.reference import resting_places
from dpp.runs.method_of import method_of
from dpp.runs.pruning import merge_duplicates
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment, make_experiment
from dpp.training.projection import project
from dpp.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")


def make_problem(kernel_size: int, seed: int = 0, size: tuple[int, int] = (4, 5)):
    """Features and prototypes of length r, and costs; double precision."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.rand(2, 5, *size, generator=generator, dtype=torch.double) ** 3
    prototypes = torch.rand(3, 5, kernel_size, kernel_size, generator=generator).double() ** 3
    costs = 0.02 * torch.rand(3, kernel_size**2, generator=generator, dtype=torch.double)
    return fix_length(z, 1 / kernel_size), fix_length(prototypes, 1 / kernel_size), costs


def slow_search(z, prototype, costs, reach, dilation):
    """(score, centre, displacements) of one prototype on one image, by trying everything."""
    height, width = z.shape[1:]
    kernel_size = prototype.shape[-1]
    beyond = torch.zeros(z.shape[0], dtype=z.dtype)
    beyond[-1] = 1 / kernel_size
    best = (-torch.inf, None, None)
    steps = range(-reach, reach + 1)
    for row, column in itertools.product(range(height), range(width)):
        total, moved = 0.0, []
        for part, (down, right) in enumerate(resting_places(kernel_size, dilation)):
            vector = prototype[:, part // kernel_size, part % kernel_size]
            tried = {}
            for step in itertools.product(steps, steps):
                y, x = row + down + step[0], column + right + step[1]
                inside = 0 <= y < height and 0 <= x < width
                feature = z[:, y, x] if inside else beyond
                squares = step[0] ** 2 + step[1] ** 2
                tried[step] = float(vector @ feature - costs[part] * squares)
            moved.append(max(tried, key=tried.get))
            total += tried[moved[-1]]
        if total > best[0] + 1e-12:
            best = (total, row * width + column, moved)
    return best


@pytest.mark.parametrize("kernel_size, dilation", [(1, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("reach", [0, 1, 2])
def test_search_is_that_of_loops(kernel_size, dilation, reach):
    z, prototypes, costs = make_problem(kernel_size)
    scores, centres, moved = max_searched_similarity(z, prototypes, costs, reach, dilation=dilation)
    for image, number in np.ndindex(*scores.shape):
        score, centre, steps = slow_search(
            z[image], prototypes[number], costs[number], reach, dilation
        )
        assert scores[image, number] == pytest.approx(score, abs=1e-12)
        assert centres[image, number] == centre
        assert moved[image, number].tolist() == [list(step) for step in steps]


def test_many_prototypes_are_searched_in_portions(monkeypatch):
    z, prototypes, costs = make_problem(2)
    whole = max_searched_similarity(z, prototypes, costs, 1, dilation=2)
    monkeypatch.setattr(part_search, "AT_ONCE", 1)
    portions = max_searched_similarity(z, prototypes, costs, 1, dilation=2)
    torch.testing.assert_close(whole, portions)


@pytest.mark.parametrize("kernel_size, dilation", [(2, 2), (3, 1)])
def test_dear_moves_are_not_made_and_the_score_is_that_of_rigid_prototypes(kernel_size, dilation):
    z, prototypes, costs = make_problem(kernel_size)
    scores, centres, moved = max_searched_similarity(z, prototypes, costs + 5, 2, dilation=dilation)
    expected, argmax = ops.max_similarity(z, None, prototypes, dilation=dilation)
    torch.testing.assert_close(scores, expected)
    assert centres.equal(argmax) and not moved.any()
    free = max_searched_similarity(z, prototypes, 0 * costs, 2, dilation=dilation)
    assert (free[0] >= scores).all() and free[2].any()


@pytest.mark.parametrize("kernel_size, dilation", [(2, 2), (3, 1)])
def test_gradients_are_those_of_finite_differences(kernel_size, dilation):
    inputs = [x.requires_grad_() for x in make_problem(kernel_size, seed=3, size=(3, 4))]

    def scores(*tensors):
        return max_searched_similarity(*tensors, 1, dilation=dilation)[0]

    assert torch.autograd.gradcheck(scores, inputs)


def test_gradient_is_refused_a_gradient():
    inputs = [x.requires_grad_() for x in make_problem(2)]
    score = max_searched_similarity(*inputs, 1, dilation=2)[0].sum()
    (grad,) = torch.autograd.grad(score, inputs[1], create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        grad.sum().backward()


def make_searching(seed: int = 0, **options) -> SearchingProtoPNet:
    torch.manual_seed(seed)
    options = {"per_class": 2, "kernel_size": 2, "reach": 1} | options
    network = SearchingProtoPNet(TinyBackbone(), 3, **options).eval()
    network.offsets.reset_parameters()
    with torch.no_grad():
        network.offsets.stiffness.sub_(2 * torch.rand_like(network.offsets.stiffness))
        network.prototypes.vectors.pow_(4)
    return network


IMAGES = torch.randn(4, 3, 24, 24, generator=torch.Generator().manual_seed(0))


def test_parts_are_at_rest_until_joint_training_starts():
    network = SearchingProtoPNet(TinyBackbone(), 3, per_class=2, kernel_size=2).eval()
    held = network.inspect(IMAGES)
    assert not held.moved.any()
    network.offsets.reset_parameters()
    torch.testing.assert_close(network.offsets.costs(), torch.full((6, 4), START / 4))


@pytest.mark.parametrize("kernel_size", [2, 3])
def test_shares_of_the_parts_less_their_costs_add_up_to_the_score(kernel_size):
    network = make_searching(kernel_size=kernel_size).double()
    output = network.inspect(IMAGES.double())
    assert output.moved.any()
    numbers = torch.tensor([4, 0, 3])
    for image in range(4):
        places, shares = network.find_parts(output, image, numbers)
        torch.testing.assert_close(shares.sum(dim=1), output.scores[image, numbers])
        assert places.equal(network.part_places(output, numbers)[image])
    lengths = network.sample(output, numbers).norm(dim=2)
    torch.testing.assert_close(lengths, torch.full_like(lengths, 1 / kernel_size))


def test_map_has_the_score_where_the_prototype_is_centred():
    network = make_searching()
    output = network.inspect(IMAGES)
    maps = network.similarity_map(output.z, None, torch.arange(6))
    torch.testing.assert_close(maps.flatten(2).amax(dim=2), output.scores)
    assert maps.flatten(2).argmax(dim=2).equal(output.places)
    field = network.offset_field(output.z[:1], None, 5).flatten(2)  # (parts, 2, H*W)
    assert field[..., output.places[0, 5]].equal(output.moved[0, 5])


def test_kept_prototypes_have_the_scores_they_had():
    network = make_searching()
    before = network.inspect(IMAGES).scores
    network.keep(torch.tensor([1, 5]))
    torch.testing.assert_close(network.inspect(IMAGES).scores, before[:, [1, 5]])


@pytest.fixture
def data(tmp_path):
    return make_data(tmp_path / "cub")


def test_projected_prototype_is_a_patch_on_which_its_parts_rest(data):
    model, images = make_searching(), data.splits.projection
    origins = project(model, batches(make_loader(images, 4)), images)
    rows = {record.id: row for row, record in enumerate(images.records)}
    for origin in origins:
        with torch.no_grad():
            output = model.inspect(images[rows[origin.image]].images[None])
        number = torch.tensor([origin.prototype])
        assert output.scores[0, origin.prototype] == pytest.approx(1, abs=1e-5)
        places, _ = model.find_parts(output, 0, number)
        assert places[0].tolist() == [list(place) for place in origin.parts]


def test_network_is_explained_and_drawn_as_the_papers_is(data):
    network = ask(make_searching(), data)
    picture = network.picture(data.splits.test.records[0])
    found = reason(network, picture)
    assert all(one.adds_up for one in found.classes)
    for match in found.classes[0].matches:
        assert sum(part.contribution for part in match.parts) == pytest.approx(match.similarity)
        applied = figure_data.apply_prototype(network, picture, match.prototype)
        assert applied.match.similarity == pytest.approx(match.similarity, abs=1e-5)
        shares = sum(part.contribution for part in applied.match.parts)
        assert shares == pytest.approx(match.similarity, abs=1e-5)
        assert [part.place for part in applied.match.parts] == [p.place for p in match.parts]
        held = figure_data.apply_prototype(network, picture, match.prototype, rigid=True)
        assert held.match.similarity <= match.similarity + 1e-5 and not held.offsets.any()
        assert sum(p.contribution for p in held.match.parts) == pytest.approx(
            held.match.similarity, abs=1e-5
        )
    assert dict(
        (block.name, block.shape) for block in figure_data.architecture_of(network.model, 16)
    )["similarities"] == (6, 4, 4)


def test_study_of_following_holds_its_parts_at_rest(data):
    network = ask(make_searching(), data)
    gain = part_following.gain_by_moving(network, data.splits.test)
    assert (gain.own > -1e-6).all() and (gain.own > 1e-3).any()  # a search never loses
    found = part_following.follow(network, data.splits.projection, data.splits.test)
    assert set(found.kind) == {"moved", "at rest"}


def test_experiment_trains_a_network_that_searches(tmp_path):
    experiment = make_experiment(
        "smoke", deformation="search", kernel_size=2, per_class=2, search_reach=2
    )
    experiment = replace(experiment, epochs=3, offset_rate=0.1, prototype_start="uniform")
    torch.manual_seed(0)
    method = method_of(experiment)
    model = method.build(experiment, TinyBackbone(), 3)
    assert isinstance(model, SearchingProtoPNet) and model.offsets.reach == 2
    trainer = Trainer(
        model,
        method.schedule(experiment),
        make_tiny_splits(tmp_path / "cub"),
        method.objective(experiment),
        method.stages(experiment),
        batch_size=5,
    )
    records = list(trainer.run())
    assert records[1]["validation_offset"] == 0 and records[-1]["test_accuracy"] >= 0
    assert records[2]["offset_gradient"] > 0 and len(trainer.provenance) == 6
    costs = model.offsets.costs()
    assert (costs >= 0).all() and costs.unique().numel() > 1


def test_no_deformation_is_the_rigid_experiment_and_predicted_the_papers():
    rigid, plain = make_experiment("mini", deformable=False), make_experiment("mini")
    assert make_experiment("mini", deformation="none") == rigid
    assert make_experiment("mini", deformation="none").name == rigid.name
    assert make_experiment("mini", deformation="predicted").name == plain.name
    search = make_experiment("mini", deformation="search")
    assert search.name not in (rigid.name, plain.name) and search.deformable
    assert replace(search, deformable=False) == replace(plain, deformable=False)
    with pytest.raises(UserError, match="released"):
        Experiment(deformation="search", variant="released")
    with pytest.raises(UserError, match="deformation"):
        Experiment(deformation="learned")


def test_half_precision_searches_in_float32():
    network = make_searching()
    with torch.autocast("cpu", torch.bfloat16):
        scores = network.inspect(IMAGES).scores
    assert scores.dtype == torch.float32
    assert functional.cosine_similarity(scores, network.inspect(IMAGES).scores).min() > 0.99


def test_equal_prototypes_that_move_at_other_costs_are_not_duplicates():
    network = make_searching()
    with torch.no_grad():
        network.prototypes.vectors[1] = network.prototypes.vectors[0]
        network.prototypes.vectors[3] = network.prototypes.vectors[2]
        network.offsets.stiffness[3] = network.offsets.stiffness[2]
    before = network(IMAGES)
    assert merge_duplicates(network).tolist() == [0, 1, 2, 4, 5]
    torch.testing.assert_close(network(IMAGES), before)
