"""Measures of located prototypes against loops over images, prototypes and parts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_analysis import KINDS, TinyData, ask, make_data, make_model
from tiny_network import TinyBackbone
from torch.nn import functional

from dpp.analysis import Network
from dpp.data.batches import make_splits
from dpp.evaluation import baselines, blind, compactness, consistency, keypoints, purity, sightings
from dpp.evaluation.scores import Score, bootstrap, from_values, mean, part_of
from dpp.networks.soft_tree import ProtoTree
from dpp.system.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = 16  # of the tiny networks' input


def quiet(done: int, total: int) -> None:
    """Progress that nobody looks at."""


@pytest.fixture
def data(tmp_path) -> TinyData:
    return make_data(tmp_path / "cub", test=4)


def make(kind: str, data: TinyData, **options) -> Network:
    if kind != "prototree":
        return ask(make_model(kind), data, **options)
    torch.manual_seed(0)
    tree = ProtoTree(TinyBackbone(), 3, depth=3)
    tree.leaves.evidence.normal_()
    tree.leaves.kept[2:4] = False  # one node is left out
    return ask(tree.eval(), data, **options)


def find(scores: list[Score], measure: str, at: str = "centre") -> Score:
    (one,) = (score for score in scores if (score.measure, score.at) == (measure, at))
    return one


def slow_maps(network: Network, output, image: int, number: int) -> torch.Tensor:
    """The similarity map (H, W) of one prototype on one image."""
    model = network.model
    if network.is_tree:
        apart = output.z[image] - model.prototypes.vectors[number][:, None, None]
        return (-apart.norm(dim=0)).exp()
    if hasattr(model, "locate") and hasattr(model, "offset_field"):
        offsets = None if output.offsets is None else output.offsets[image : image + 1]
        given = (output.z[image : image + 1], offsets, torch.tensor([number]))
        return model.activate(model.similarity_map(*given))[0, 0]
    return model.similarity_map(output.z[image : image + 1])[0, number]


def slow_pairs(network: Network, dataset, noise=None):
    """{(image, prototype): (peak, part places in pixels)}, one image and prototype at a time."""
    found = {}
    for index, record in enumerate(dataset.records):
        image = dataset.batch([(0, index)]).images
        if noise is not None:
            image = sightings.add_noise(image, torch.tensor([index]), noise)
        output = network.inspect(image)
        for number in network.prototypes.tolist():
            if network.labels[number] != record.label:
                continue
            big = functional.interpolate(
                slow_maps(network, output, 0, number)[None, None].detach(),
                size=(SIZE, SIZE),
                mode="bicubic",
            )[0, 0]
            places, _ = network.model.find_parts(output, 0, torch.tensor([number]))
            view = network.geometry(record)[0]
            found[index, number] = (big, view.cell_to_tensor(places[0].numpy(), (4, 4)))
    return found


def slow_marks(network: Network, record, cropped: bool = True) -> list[tuple[float, float] | None]:
    """Where each part is in the network's input, by the rule of three; None if hidden."""
    view, (width, height) = network.geometry(record)
    left, top, right, bottom = view.region if cropped else (0, 0, width, height)
    return [
        (SIZE * (part.y - top) / (bottom - top), SIZE * (part.x - left) / (right - left))
        if part.visible
        else None
        for part in record.parts
    ]


def slow_hits(place, marks, half: float) -> list[bool]:
    (row, column), hits = place, []
    top, bottom = max(0, row - half), min(SIZE, row + half)
    left, right = max(0, column - half), min(SIZE, column + half)
    for mark in marks:
        hits.append(mark is not None and top <= mark[0] <= bottom and left <= mark[1] <= right)
    return hits


@pytest.mark.parametrize("kind", [*KINDS, "prototree"])
def test_a_pass_sees_what_each_image_shows_by_itself(data, kind):
    network = make(kind, data)
    seen, slow = (
        sightings.see(network, data.splits.test, quiet),
        slow_pairs(network, data.splits.test),
    )
    pairs = list(zip(seen.image.tolist(), seen.prototype.tolist(), strict=True))
    assert sorted(pairs) == sorted(slow)
    for place, pair in enumerate(pairs):
        big, parts = slow[pair]
        assert big[tuple(seen.peaks[place])] == pytest.approx(float(big.max()), abs=1e-5)
        assert seen.parts[place] == pytest.approx(parts, abs=1e-4)


@pytest.mark.parametrize("kind", ["dilated", "protopnet", "prototree"])
def test_a_pass_keeps_the_nearest_images_and_what_counts_most(data, kind):
    network, test = make(kind, data), data.splits.test
    seen = sightings.see(network, test, quiet)
    outputs = [network.inspect(test.batch([(0, index)]).images) for index in range(len(test))]
    scores = torch.cat([output.scores for output in outputs])
    for number in network.prototypes.tolist():
        order = scores[:, number].argsort(descending=True, stable=True)[:10]
        assert seen.nearest[:, number].tolist() == order.tolist()
        cell = [divmod(int(outputs[index].places[0, number]), 4) for index in order]
        assert seen.nearest_cells[:, number].tolist() == list(map(list, cell))
    for index, output in enumerate(outputs):
        number = int(seen.shown[index])
        assert seen.predicted[index] == int(output.logits.argmax())
        if not network.is_tree:
            points = output.scores[0] * network.model.last_layer.weight[seen.predicted[index]]
            assert number == int(points.argmax())
        assert seen.shown_map[index].max() == pytest.approx(float(output.scores[0, number]), 1e-4)
        own = [n for n in network.prototypes.tolist() if network.labels[n] == test.labels[index]]
        if own:
            maps = [slow_maps(network, output, 0, one).detach() for one in own]
            assert seen.class_map[index] == pytest.approx(
                torch.stack(maps).mean(0).numpy(), abs=1e-4
            )
        assert seen.shown_shares[index].sum() == pytest.approx(
            float(output.scores[0, number]), abs=1e-4
        )


def test_the_same_pass_is_made_once_and_noise_is_another(data):
    network, test = make("dilated", data), data.splits.test
    seen = sightings.see(network, test, quiet)
    assert sightings.see(network, test, quiet) is seen
    noisy = sightings.see(network, test, quiet, noise=3)
    slow = slow_pairs(network, test, noise=3)
    for place, pair in enumerate(zip(noisy.image, noisy.prototype, strict=True)):
        assert noisy.parts[place] == pytest.approx(slow[pair][1], abs=1e-4)


def test_noise_is_clipped_and_belongs_to_the_image():
    images = torch.zeros(3, 3, 32, 32)
    noisy = sightings.add_noise(images, torch.tensor([4, 5, 6]), 0)
    assert noisy.abs().max() == pytest.approx(0.25)
    # the deviation of a normal variable of deviation 0.2 that is cut off at 0.25
    assert float(noisy.std()) == pytest.approx(0.165, abs=0.005)
    alone = sightings.add_noise(images[:1], torch.tensor([5]), 0)
    assert torch.equal(alone[0], noisy[1])


@pytest.mark.parametrize("kind", ["dilated", "protopnet", "prototree"])
@pytest.mark.parametrize("crop", [False, True])
def test_consistency_is_that_of_loops(tmp_path, kind, crop):
    data = make_data(tmp_path / "cub", test=4)
    splits = make_splits(data.source, SIZE, keep="memory", crop_to_box=crop)
    network = make(kind, data, crop_to_box=crop)
    half, pairs = 36 * SIZE / 224, slow_pairs(network, splits.test)
    marks = [slow_marks(network, record) for record in splits.test.records]
    wanted: dict[str, list[float]] = {"centre": [], "parts": []}
    for number in network.prototypes.tolist():
        own = [(image, pairs[image, n]) for image, n in pairs if n == number]
        if not own:
            continue
        units = {"centre": [[peak_of(big) for _, (big, _) in own]], "parts": []}
        for part in range(len(own[0][1][1])):
            units["parts"].append([parts[part] for _, (_, parts) in own])
        for at, listed in units.items():
            for places in listed:
                best = 0.0
                for mark in range(3):
                    shown = [i for i, (image, _) in enumerate(own) if marks[image][mark]]
                    hits = [slow_hits(places[i], marks[own[i][0]], half)[mark] for i in shown]
                    best = max(best, np.mean(hits) if hits else 0)
                wanted[at].append(100 * (best >= 0.8))
    scores = consistency.measure_consistency(network, splits, seed=0, progress=quiet)
    assert find(scores, "consistency").value == pytest.approx(np.mean(wanted["centre"]))
    if kind == "dilated":
        assert find(scores, "consistency", "parts").value == pytest.approx(np.mean(wanted["parts"]))
    assert len(scores) == (2 if kind == "dilated" else 1)


def peak_of(big: torch.Tensor) -> np.ndarray:
    row, column = divmod(int(big.argmax()), SIZE)
    return np.array([row + 0.5, column + 0.5])


def test_consistency_of_hand_made_hits():
    prototype = np.repeat([0, 1, 2], 5)  # and a fourth that no image is for
    visible = np.ones((15, 2), bool)
    hits = np.zeros((15, 2), bool)
    hits[0:4, 0] = True  # the first: one part on 4 of 5 images
    hits[5:8, 1] = True  # the second: 3 of 5
    visible[13:, 1], hits[10:13, 1] = False, True  # the third: 3 of the 3 that show it
    share = consistency.share_of_hits(hits, visible, prototype, 4)
    assert share[:3].tolist() == [[0.8, 0], [0, 0.6], [0, 1]]
    assert consistency.is_consistent(share)[:3].tolist() == [1, 0, 1]
    assert np.isnan(consistency.is_consistent(share)[3])
    assert mean(100 * consistency.is_consistent(share)) == pytest.approx(200 / 3)


def test_borders_of_a_box_belong_to_it_and_boxes_end_with_the_image():
    marks = np.array([[[2.0, 3.0], [8.0, 9.0], [-0.5, 1.0], [np.nan, np.nan]]])
    places = np.array([[5.0, 6.0]])
    assert keypoints.find_hits(places, marks, 3.0, 10).tolist() == [[True, True, False, False]]
    assert keypoints.find_hits(places, marks, 2.9, 10).tolist() == [[False] * 4]
    # a part outside the image is never hit, however large the box
    assert keypoints.find_hits(places, marks, 50.0, 10).tolist() == [[True, True, False, False]]


def test_random_places_hit_as_often_as_their_area_says():
    marks = np.full((20_000, 1, 2), 50.0)
    places = baselines.random_places((20_000,), 100, 0)
    assert keypoints.find_hits(places, marks, 10, 100).mean() == pytest.approx(0.04, abs=0.005)


def test_stability_of_hand_made_hits():
    prototype = np.array([0, 0, 0, 0, 1, 1])
    before = np.array([[1, 0], [1, 0], [0, 0], [0, 0], [0, 0], [0, 0]], bool)
    after = np.array([[1, 0], [0, 1], [0, 0], [1, 0], [0, 0], [0, 0]], bool)
    stays, none, held = consistency.is_stable(before, after, prototype, 2)
    assert stays.tolist() == [0.5, 1.0]  # the second is perfectly stable, and never held a part
    assert none.tolist() == [0.5, 1.0]
    assert held[0] == pytest.approx(1 / 3) and np.isnan(held[1])


def test_stability_is_that_of_loops(data):
    network, test = make("dilated", data), data.splits.test
    clean, noisy = slow_pairs(network, test), slow_pairs(network, test, noise=7)
    marks = [slow_marks(network, record) for record in test.records]
    half, same, none = 36 * SIZE / 224, {}, {}
    for image, number in clean:
        hits = [
            slow_hits(peak_of(pass_[image, number][0]), marks[image], half)
            for pass_ in (clean, noisy)
        ]
        same.setdefault(number, []).append(hits[0] == hits[1])
        none.setdefault(number, []).append(not any(hits[0]))
    scores = consistency.measure_stability(network, data.splits, seed=7, progress=quiet)
    wanted = 100 * np.mean([np.mean(one) for one in same.values()])
    assert find(scores, "stability").value == pytest.approx(wanted)
    wanted = 100 * np.mean([np.mean(one) for one in none.values()])
    assert find(scores, "stability: no part hit").value == pytest.approx(wanted)


@pytest.mark.parametrize("kind", ["dilated", "protopnet"])
@pytest.mark.parametrize("crop", [False, True])
def test_purity_is_that_of_loops(tmp_path, kind, crop):
    data = make_data(tmp_path / "cub", test=4)
    splits = make_splits(data.source, SIZE, keep="memory", crop_to_box=crop)
    network = make(kind, data, crop_to_box=crop)
    half = 16 * SIZE / 224
    step = round((SIZE - 2 * half) / 3)
    wanted, old = [], []
    outputs = [network.inspect(splits.test.batch([(0, i)]).images) for i in range(12)]
    for number in range(6):
        order = np.argsort([-float(o.scores[0, number]) for o in outputs], kind="stable")[:10]
        for cropped, listed in ((True, wanted), (False, old)):
            held: dict[int, list[bool]] = {}
            for index in order:
                record, place = splits.test.records[index], int(outputs[index].places[0, number])
                cell = np.array(divmod(place, 4))
                centre = (cell + 0.5) * SIZE / 4 if cropped else cell * step + half
                marks = slow_marks(network, record, cropped)
                for mark, hit in enumerate(slow_hits(centre, marks, half)):
                    if marks[mark]:
                        held.setdefault(mark, []).append(hit)
            listed.append(100 * max(np.mean(one) for one in held.values()))
    scores = purity.measure(network, splits, seed=0, progress=quiet)
    found = find(scores, "purity, test images")
    assert found.value == pytest.approx(np.mean(wanted))
    assert found.original == pytest.approx(np.mean(old))
    four = purity.variants(network, splits.test, seed=0)
    unmoved = four.pop("parts not moved")
    assert list(four.values()) == [found.value, found.original, found.random_places]
    assert crop or unmoved == found.value  # without a crop, there is nothing to move with
    assert {score.at for score in scores} == ({"centre", "parts"} - {"parts" * (kind != "dilated")})


def test_purity_of_hand_made_hits_with_left_and_right_as_one():
    hits = np.zeros((2, 1, 3), bool)  # images, prototypes, marked parts
    visible = np.ones((2, 1, 3), bool)
    hits[0, 0, 0] = hits[1, 0, 2] = True  # the left one, then the right one
    assert purity.purity(hits, visible).tolist() == [0.5]
    merged = purity.merge_sides(hits, visible, [0, 1, 0])
    assert purity.purity(*merged).tolist() == [1.0]
    visible[0, 0, 1] = False
    hits[1, 0, 1] = True  # held on the only image that shows it
    assert purity.purity(hits, visible).tolist() == [1.0]


def test_patches_of_the_original_script_begin_at_whole_steps():
    # 14 cells of 224 pixels: steps of 15, so that the last patch ends at 227
    assert purity.tiled_centres(np.array([0, 13]), 14, 224, 32).tolist() == [16, 211]


@pytest.mark.parametrize("fixed", [(0.1, 0.1), (0.35, 0.5), (1.0, 1.0)])
def test_consistency_of_one_fixed_place_is_that_of_loops(data, fixed):
    network, test = make("protopnet", data), data.splits.test
    found = []
    for label in range(3):
        marks = [slow_marks(network, one) for one in test.records if one.label == label][:3]
        place, best = (SIZE * fixed[0], SIZE * fixed[1]), 0.0
        for mark in range(3):
            hits = [slow_hits(place, one, 36 * SIZE / 224)[mark] for one in marks if one[mark]]
            best = max(best, np.mean(hits) if hits else 0)
        found.append(100 * (best >= 0.8))
    given = blind.blind_consistency(network, test, images=3, fixed=fixed)
    assert given == pytest.approx(np.mean(found))


def test_random_places_are_consistent_if_there_are_few_images(data):
    network, test = make("protopnet", data), data.splits.test
    one, four = (blind.blind_consistency(network, test, images=n, seed=1) for n in (1, 4))
    assert one > 3 * four  # with one image, a single hit is enough


def test_compactness_counts_duplicates_and_connections(data):
    network = make("dilated", data)
    vectors = network.model.prototypes.vectors.data
    vectors[1] = 3 * vectors[0]  # of the same class, and the same direction
    weight = network.model.last_layer.weight.data.fill_(0)
    weight[0, 0], weight[1, 0], weight[2, 4] = 1, -0.5, 0.0005
    scores = compactness.measure(network, data.splits, seed=0, progress=quiet)
    value = {score.measure: score for score in scores}
    assert value["distinct prototypes"].value == 5
    assert value["duplicates"].value == pytest.approx(100 / 6)
    assert value["connections"].value == 3 and value["connections"].original == 1
    assert value["sparsity"].value == pytest.approx(100 * 15 / 18)
    assert value["sparsity"].original == pytest.approx(100 * 17 / 18)


@pytest.mark.parametrize("kind", [*KINDS, "prototree"])
def test_random_weights_leave_the_network_as_it_is(data, kind):
    network, images = make(kind, data), data.splits.projection
    before = {name: one.clone() for name, one in network.model.state_dict().items()}
    other = baselines.random_weights(network, images, 0)
    after = network.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    drawn = other.model.state_dict()
    for name in ("backbone.layers.0.weight", "prototypes.vectors"):
        assert not torch.equal(before[name], drawn[name])
    assert baselines.random_weights(network, images, 0) is other
    again = baselines._randomise(network, images, 0).model.state_dict()
    assert all(torch.equal(drawn[name], again[name]) for name in drawn)
    output = other.inspect(data.splits.test.batch([(0, 0)]).images)
    assert torch.isfinite(output.logits).all()


def test_prototypes_of_random_weights_are_cells_of_images_of_their_class(data):
    network = baselines.random_weights(make("protopnet", data), data.splits.projection, 0)
    images = data.splits.projection
    for number, label in enumerate(network.labels):
        own = (images.labels == label).nonzero().flatten().tolist()
        output = network.inspect(images.batch([(0, index) for index in own]).images)
        assert float(output.distances[:, number].min()) == pytest.approx(0, abs=1e-6)


def test_measures_of_parts_need_marked_parts(data):
    network, test = make("dilated", data), data.splits.test
    test.records = tuple(replace(record, parts=None) for record in test.records)
    for measure in (consistency.measure_consistency, consistency.measure_stability, purity.measure):
        with pytest.raises(UserError, match="no marked parts"):
            measure(network, data.splits, seed=0, progress=quiet)


def test_bootstrap_interval_of_a_mean():
    values = np.random.default_rng(0).normal(5, 2, 400)
    low, high = bootstrap(values, 0)
    assert (low, high) == pytest.approx((values.mean() - 0.196, values.mean() + 0.196), abs=0.03)
    assert bootstrap(values, 0) == bootstrap(values, 0) != bootstrap(values, 1)
    assert all(np.isnan(bootstrap(np.array([1.0, np.nan]), 0)))
    parts = from_values("x", "parts", np.array([[0.0, 1.0], [1.0, 1.0]]), 0)
    assert parts.value == 0.75


def test_progress_of_several_tasks_is_one():
    told = []
    part_of(lambda done, total: told.append((done, total)), 1, 3)(2, 10)
    assert told == [(12, 30)]
