"""Measures of heat maps, deletion, perturbation and attacks against hand-made cases and loops."""

import numpy as np
import pytest
import torch
from test_evaluation import SIZE, find, make, quiet
from tiny_analysis import TinyData, make_data, make_model
from tiny_network import TinyBackbone
from torch.nn import functional

from dpp.analysis import Network
from dpp.data.batches import make_splits
from dpp.data.cub import read_cub
from dpp.data.images import region_of
from dpp.drawn import posebirds
from dpp.drawn.individuals import masks, of_record
from dpp.evaluation import deletion, heat, misalignment, perturbation, pointing
from dpp.evaluation.sightings import see
from dpp.methods.plain_cnn import PlainCNN
from dpp.system.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def data(tmp_path) -> TinyData:
    return make_data(tmp_path / "cub", test=2)


def half_and_half() -> tuple[torch.Tensor, torch.Tensor]:
    """Heat that falls from the left to the right, and an object in the left half."""
    warm = torch.linspace(1, 0, 10).expand(1, 10, 10)
    mask = torch.zeros(1, 10, 10)
    mask[:, :, :5] = 1
    return warm, mask


def test_pointing_is_perfect_on_the_object_and_worst_off_it():
    _, mask = half_and_half()
    for warm, on in ((mask, 100), (1 - mask, 0)):
        assert float(pointing.energy(warm, mask)) == on
        assert float(pointing.content_heat(warm, mask)) == on
    assert float(pointing.outside_inside(mask, mask)) == 0
    assert pointing.outside_inside(1 - mask, mask).isnan().all()  # no heat on it: no ratio
    warm, mask = half_and_half()
    assert float(pointing.hottest(warm, mask)) == 100
    assert float(pointing.hottest(warm.flip(2), mask)) == 0


def test_pointing_of_a_slope_is_that_of_a_sum():
    warm, mask = half_and_half()
    values = np.linspace(1, 0, 10)
    assert float(pointing.energy(warm, mask)) == pytest.approx(100 * values[:5].sum() / 5)
    assert float(pointing.content_heat(warm, mask)) == pytest.approx(100 * values[:5].mean())
    ratio = 100 * values[5:].mean() / values[:5].mean()
    assert float(pointing.outside_inside(warm, mask)) == pytest.approx(ratio, rel=1e-4)


def test_heat_anywhere_points_as_much_as_the_object_covers():
    warm, mask = half_and_half()
    mask[:, :, 3:] = 0
    anywhere = heat.moved(warm.expand(4000, -1, -1), 0)
    found = pointing.energy(anywhere, mask.expand(4000, -1, -1))
    assert float(found.mean()) == pytest.approx(30, abs=1)


def test_heat_of_maps_is_scaled_and_heat_of_places_is_a_tent():
    maps = np.zeros((2, 4, 4), np.float32)
    maps[0, 1, 2] = 5
    warm = heat.from_maps(maps, SIZE)
    assert float(warm[0].max()) == 1 and float(warm[0].min()) == 0
    assert not warm[1].any()
    (tent,) = heat.from_places(np.array([[[5.5, 8.5]]]), np.ones((1, 1)), SIZE, 4.0)
    assert float(tent[5, 8]) == 1 and float(tent[5, 10]) == 0.5 and float(tent[9, 8]) == 0
    (none,) = heat.from_places(np.array([[[5.5, 8.5]]]), -np.ones((1, 1)), SIZE, 4.0)
    assert not none.any()  # a part that speaks against the class explains nothing


def test_objects_lie_where_their_boxes_do(data):
    network = make("protopnet", data)
    (mask,) = heat.object_masks(network, data.splits.test, np.array([0]))
    box = data.splits.test.records[0].box
    for row in range(SIZE):
        for column in range(SIZE):
            x, y = (column + 0.5) * 40 / SIZE, (row + 0.5) * 30 / SIZE  # images are 40 by 30
            inside = box.left <= x <= box.right and box.top <= y <= box.bottom
            assert bool(mask[row, column]) == inside


@pytest.mark.parametrize("crop", [False, True])
def test_objects_of_posebirds_are_their_drawn_masks(tmp_path, crop):
    counts = {"classes": 3, "train_per_class": 2, "test_per_class": 1, "image_size": 32}
    source = read_cub(posebirds.make(tmp_path / "birds", **counts))
    network = Network(make_model("protopnet"), "birds", source, 32, crop_to_box=crop)
    test = make_splits(source, 32, keep="memory", crop_to_box=crop).test
    (mask,) = heat.object_masks(network, test, np.array([1])).numpy()
    record = test.records[1]
    drawn = masks(of_record(source.root, record.path, record.label))["bird"]
    left, top, right, bottom = region_of(record, 32, 32, crop_to_box=True)
    if crop:  # the box fills the input
        drawn = drawn[int(top) : int(bottom), int(left) : int(right)]
        assert mask.mean() == pytest.approx(drawn.mean(), abs=0.02)
        return
    assert mask == pytest.approx(drawn)
    middles = np.arange(32) + 0.5
    down, across = ((middles >= a) & (middles <= b) for a, b in ((top, bottom), (left, right)))
    box = (down[:, None] & across).astype(np.float32)
    beside = torch.from_numpy(box * (mask == 0))[None]  # in the box, and not on the bird
    assert beside.any()
    assert float(pointing.energy(beside, torch.from_numpy(mask)[None])) == 0
    assert float(pointing.energy(beside, torch.from_numpy(box)[None])) == pytest.approx(100)
    splits = make_splits(source, 32, keep="memory")
    scores = pointing.measure(network, splits, seed=0, progress=quiet)
    assert {score.note for score in scores} == {"the object is its drawn mask"}


def test_pointing_needs_boxes_and_an_outside(data):
    network = make("protopnet", data, crop_to_box=True)
    with pytest.raises(UserError, match="cropped to the object's box"):
        pointing.measure(network, data.splits, seed=0, progress=quiet)


@pytest.mark.parametrize("kind", ["dilated", "tesnet", "prototree"])
def test_pointing_is_that_of_loops(data, kind):
    network, test = make(kind, data), data.splits.test
    scores = pointing.measure(network, data.splits, seed=0, progress=quiet)
    seen, wanted = see(network, test, quiet), {"heat on the object": [], "content heat (CH)": []}
    masks = heat.object_masks(network, test, np.arange(len(test))).numpy()
    for index in range(len(test)):
        for name, maps in zip(wanted, (seen.shown_map, seen.class_map), strict=True):
            small = torch.from_numpy(maps[index])[None, None]
            big = functional.interpolate(small, size=(SIZE, SIZE), mode="bicubic")[0, 0].numpy()
            spread = big.max() - big.min()
            warm = (big - big.min()) / spread if spread > 0 else 0 * big
            on, whole = (warm * masks[index]).sum(), warm.sum()
            area = masks[index].sum()
            wanted[name].append(100 * (on / max(whole, 1e-12) if "object" in name else on / area))
    for name, values in wanted.items():
        assert find(scores, name).value == pytest.approx(np.mean(values), abs=0.02)


def test_area_of_hand_made_curves():
    curves = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [1.0, 0.5, 0.0]])
    assert deletion.area(curves).tolist() == [1.0, 0.25, 0.5]


def test_deletion_removes_the_hottest_pixels_first(data):
    network, seen = make("dilated", data), []
    images = data.splits.test.batch([(0, 0)]).images
    warm = torch.rand(1, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    real = deletion.predictor(network)
    watched = lambda shown: seen.append(shown.clone()) or real(shown)  # noqa: E731
    curve = deletion.deletion_curve(watched, images, warm, steps=4)
    assert curve.shape == (1, 5)
    label = int(real(images).argmax())
    order = warm.flatten().argsort(descending=True)
    for step, shown in enumerate(seen):
        slow = images.clone()
        for pixel in order[: step * SIZE**2 // 4].tolist():
            slow[0, :, pixel // SIZE, pixel % SIZE] = 0
        assert torch.equal(shown, slow)
        wanted = real(slow).softmax(dim=1)[0, label]
        assert float(curve[0, step]) == pytest.approx(float(wanted), abs=1e-5)


def test_class_activation_adds_up_to_the_score(data):
    torch.manual_seed(0)
    model = PlainCNN(TinyBackbone(), 3).eval()
    batch = data.splits.test.batch([(0, 0), (0, 3)])
    maps = deletion.class_activation(model, batch.images, batch.labels)
    scores = model(batch.images).detach()[range(2), batch.labels]
    bias = model.classifier.bias.detach()[batch.labels]
    assert (maps.mean(dim=(1, 2)) + bias).tolist() == pytest.approx(scores.tolist(), abs=1e-5)
    (score,) = deletion.measure_plain(model, data.splits, 0)
    assert 0 < score.value < 100


def test_perturbations_change_what_is_warm_and_nothing_else(data):
    network = make("protopnet", data)
    images = data.splits.test.batch([(0, 0), (0, 1)]).images
    numbers = torch.tensor([0, 3])
    lost, there = perturbation.drops(network, images, torch.zeros(2, SIZE, SIZE), numbers)
    assert lost.shape == there.shape == (6, 2)
    assert np.abs(lost).max() < 1 and np.abs(there).max() < 1  # but for rounding to whole pixels
    warm = torch.ones(2, SIZE, SIZE)
    score = network.inspect(images).scores[range(2), numbers]
    dark = perturbation.PERTURBATIONS["brightness"](perturbation.to_pixels(images), warm)
    after = network.inspect(perturbation.normalise(dark.float())).scores[range(2), numbers]
    lost, there = perturbation.drops(network, images, warm, numbers)
    assert lost[0] == pytest.approx((100 * (score - after) / score).numpy(), abs=1e-3)
    assert (there >= lost - 1e-3).all()  # the best cell is never worse than the old one


def test_waves_shift_rows_and_columns_by_a_sine():
    picture = torch.arange(3 * 8 * 8, dtype=torch.uint8).view(1, 3, 8, 8)
    warm = torch.ones(1, 8, 8)
    (wavy,) = perturbation.waves(picture, warm)
    shift = [int(7 * 8 / 224 * np.sin(2 * np.pi * line * 5 / 8)) for line in range(8)]
    slow = picture[0].numpy().copy()
    for row in range(8):
        slow[:, row] = np.roll(slow[:, row], shift[row], axis=1)
    for column in range(8):
        slow[:, :, column] = np.roll(slow[:, :, column], shift[column], axis=1)
    assert (wavy.numpy() == slow).all()


def test_box_of_the_highest_pixels_with_its_border():
    maps = torch.zeros(1, 20, 20)
    maps[0, 4:8, 10:15] = 1  # 20 of 400 pixels
    (mask,) = misalignment.box_mask(maps, 2.0)
    wanted = torch.zeros(20, 20)
    wanted[2:10, 8:17] = 1
    assert torch.equal(mask, wanted)


def test_released_attack_has_no_gradient_and_is_only_noise(data):
    """A cross entropy over a single logit is 0 whatever the logit is."""
    logits = torch.tensor([0.3, 5.0, -2.0], requires_grad=True)
    loss = misalignment.released_loss(logits)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert float(loss) == 0 and not gradient.any()
    network = make("protopnet", data)
    images = data.splits.test.batch([(0, 0), (0, 1)]).images
    protected = torch.zeros(2, SIZE, SIZE)
    protected[:, :5] = 1
    attacked = misalignment.attack(network, images, protected, torch.tensor([0, 1]), released=3)
    noise = torch.rand(images.shape, generator=torch.Generator().manual_seed(3))
    free = 1 - protected[:, None]
    assert torch.allclose(attacked, images + 0.4 * (2 * noise - 1) * free, atol=1e-6)


@pytest.mark.parametrize("kind", ["dilated", "protopnet", "tesnet", "prototree"])
def test_attack_lowers_the_similarity_within_its_bounds(data, kind):
    network = make(kind, data)
    images = data.splits.test.batch([(0, 0), (0, 3)]).images
    scores = network.inspect(images).scores
    numbers = network.prototypes[scores[:, network.prototypes].argmax(dim=1)]
    protected = torch.zeros(2, SIZE, SIZE)
    protected[:, :, :2] = 1
    attacked = misalignment.attack(network, images, protected, numbers)
    change = attacked - images
    assert change.abs().max() <= 0.4 + 1e-6 and not change[..., :2].any()
    before, after = (network.inspect(x).scores[range(2), numbers] for x in (images, attacked))
    assert (after < before).all()
    noisy = misalignment.attack(network, images, protected, numbers, released=0)
    assert after.sum() < network.inspect(noisy).scores[range(2), numbers].sum()


@pytest.mark.parametrize("kind", ["dilated", "released", "protopnet", "prototree"])
def test_attack_is_that_of_the_whole_network_step_by_step(data, kind):
    network = make(kind, data)
    images = data.splits.test.batch([(0, 0), (0, 3), (0, 5)]).images
    numbers = network.prototypes[torch.tensor([1, 0, 1])]
    protected = torch.zeros(3, SIZE, SIZE)
    protected[:, 4:9] = 1
    wanted = torch.zeros_like(images)
    for _ in range(40):
        tried = (images + wanted).requires_grad_()
        network.model.inspect(tried).scores[range(3), numbers].sum().backward()
        step = -0.01 * tried.grad.sign() * (1 - protected[:, None])
        wanted = (wanted + step).clamp(-0.4, 0.4)
    found = misalignment.attack(network, images, protected, numbers) - images
    assert torch.allclose(found, wanted, atol=1e-5)
    assert all(parameter.requires_grad for parameter in network.model.prototypes.parameters())


def test_nothing_changes_if_nothing_was_attacked(data):
    network = make("dilated", data)
    batch = data.splits.test.batch([(0, 0), (0, 1), (0, 2)])
    numbers = network.inspect(batch.images).scores.argmax(dim=1)
    found = misalignment.compare(network, batch.images, batch.images, numbers, batch.labels)
    assert [one.tolist() for one in found] == 4 * [[0, 0, 0]]


def test_changes_are_those_of_loops(data):
    network = make("protopnet", data)
    batch = data.splits.test.batch([(0, index) for index in range(4)])
    other = batch.images.flip(3)
    output, after = network.inspect(batch.images), network.inspect(other)
    numbers = output.scores.argmax(dim=1)
    found = misalignment.compare(network, batch.images, other, numbers, batch.labels)
    for row, number in enumerate(numbers.tolist()):
        tops = []
        for one in (output, after):
            small = network.model.similarity_map(one.z[row : row + 1])[:, number : number + 1]
            big = functional.interpolate(small, size=(SIZE, SIZE), mode="bilinear")[0, 0]
            tops.append({tuple(p) for p in (big > big.flatten().quantile(0.9)).nonzero().tolist()})
        overlap = len(tops[0] & tops[1]) / len(tops[0] | tops[1])
        assert found.location[row] == pytest.approx(100 * (1 - overlap), abs=1e-3)
        a, b = float(output.scores[row, number]), float(after.scores[row, number])
        assert found.activation[row] == pytest.approx(100 * (1 - b / a), abs=1e-3)
        above = [
            sum(
                float(one.scores[row, other]) > float(one.scores[row, number])
                for other in range(6)
                if network.labels[other] != batch.labels[row]
            )
            for one in (output, after)
        ]
        assert found.rank[row] == above[1] - above[0]


@pytest.mark.parametrize("kind", ["dilated", "prototree"])
def test_every_family_of_heat_gives_its_scores(data, kind):
    network = make(kind, data)
    for family in (perturbation, deletion, misalignment):
        scores = family.measure(network, data.splits, seed=0, progress=quiet)
        again = family.measure(network, data.splits, seed=0, progress=quiet)
        assert scores == again or str(scores) == str(again)  # NaN is not equal to itself
        assert {score.at for score in scores} >= {"centre"}
        assert ("parts" in {score.at for score in scores}) == (kind == "dilated")
        assert all(np.isfinite(score.value) for score in scores)
