"""Birds that are drawn again for a network, its explanations on their parts, and the scores."""

import numpy as np
import pytest
import torch
from tiny_analysis import ask as ask_tiny
from tiny_analysis import make_data, make_model
from tiny_network import TinyBackbone

from dpp.analysis import Network, reason
from dpp.data.batches import batches, make_loader, make_splits
from dpp.data.cub import read_cub
from dpp.drawn import posebirds
from dpp.drawn.individuals import BIRD
from dpp.evaluation import interventions
from dpp.evaluation.bird_scenes import Classifier, Subject, choose_birds, find_words
from dpp.evaluation.part_importance import Boxes, Explainer, part_importances, scatter
from dpp.evaluation.part_protocols import THINGS, Question
from dpp.evaluation.sightings import places_of
from dpp.methods.plain_cnn import PlainCNN
from dpp.networks.soft_tree import ProtoTree
from dpp.system.errors import UserError

SIZE = 32


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    counts = {"classes": 3, "train_per_class": 3, "test_per_class": 2}
    return read_cub(posebirds.make(tmp_path_factory.mktemp("birds"), **counts, image_size=SIZE))


def split(source, **options):
    return make_splits(source, SIZE, keep="memory", validation_fraction=0.4, **options)


def make_network(kind: str, source) -> Network:
    if kind == "prototree":
        torch.manual_seed(0)
        model = ProtoTree(TinyBackbone(), 3, depth=2)
        model.leaves.evidence.normal_()
    else:
        model = make_model(kind)
    return Network(model.eval(), kind, source, SIZE)


# Importances.


def slow_importances(boxes: Boxes, masks: np.ndarray, fine: int = 40) -> np.ndarray:
    """A box's weight in many equal crumbs, each of which falls on a pixel or beside the image."""
    found = np.zeros(len(masks))
    for (left, top, right, bottom), weight in zip(*boxes, strict=True):
        for i in range(fine):
            for j in range(fine):
                x = left + (right - left) * (i + 0.5) / fine
                y = top + (bottom - top) * (j + 0.5) / fine
                if 0 <= x < masks.shape[2] and 0 <= y < masks.shape[1]:
                    found += weight / fine**2 * masks[:, int(y), int(x)]
    return found


def test_importances_are_those_of_crumbs():
    random = np.random.default_rng(0)
    masks = random.random((3, 7, 9))
    corner = random.uniform(-3, 8, (5, 2))
    boxes = Boxes(np.concatenate([corner, corner + [2.5, 3.2]], axis=1), random.normal(size=5))
    found = part_importances(boxes, masks)
    np.testing.assert_allclose(found, slow_importances(boxes, masks), atol=0.02)


def test_importance_of_a_box_that_lies_on_one_part_alone_is_its_weight():
    masks = np.zeros((2, 8, 8))
    masks[0, 2:4, 1:5], masks[1, 2:4, 5:7] = 1, 1
    boxes = Boxes(
        np.array([[1.0, 2, 5, 4], [4.0, 2, 6, 4], [-9, -9, -5, -5]]), np.array([3.0, 2, 5])
    )
    np.testing.assert_allclose(part_importances(boxes, masks), [3 + 1, 1])


def test_scattered_boxes_keep_sizes_and_weights_and_lie_in_the_region():
    boxes = Boxes(np.tile([0.0, 0, 4, 2], (200, 1)), np.arange(200.0))
    moved = scatter(boxes, (10, 20, 30, 60), np.random.default_rng(0))
    np.testing.assert_allclose(moved.corners[:, 2:] - moved.corners[:, :2], [[4, 2]] * 200)
    middles = (moved.corners[:, 2:] + moved.corners[:, :2]) / 2
    assert (middles >= [10, 20]).all() and (middles <= [30, 60]).all()
    assert (middles.max(axis=0) > [28, 56]).all() and moved.weights is boxes.weights


@pytest.mark.parametrize("kind", ["deformable", "rigid", "protopnet", "tesnet"])
def test_weights_of_an_explanation_are_the_points_of_its_class(kind, source):
    network = make_network(kind, source)
    subject = Subject(network, choose_birds(network, split(source).test, 1))
    explainer = subject.explainer()
    output = network.inspect(subject.show([Question(0)]))
    for label in range(3):
        own = np.array(network.labels) == label
        points = (output.scores[0] * network.model.last_layer.weight[label])[own].sum()
        for place in places_of(network):
            total = explainer.boxes(0, label, place).weights.sum()
            np.testing.assert_allclose(total, points.item(), atol=1e-4)
    several = kind in ("deformable", "rigid")
    assert places_of(network) == (("centre", "parts") if several else ("centre",))


def test_boxes_of_parts_are_those_that_figures_show(source):
    network = make_network("deformable", source)
    records = split(source).test.records
    subject = Subject(network, choose_birds(network, split(source).test, 1))
    shown = reason(network, network.picture(records[0]), classes=[1]).classes[0]
    explained = subject.explainer().boxes(0, 1, "parts")
    wanted = {
        tuple(np.round(part.box, 3)): part.contribution * match.connection
        for match in shown.matches
        for part in match.parts
    }
    found = dict(zip(map(tuple, np.round(explained.corners, 3)), explained.weights, strict=True))
    assert found.keys() == wanted.keys()
    for box, weight in wanted.items():
        np.testing.assert_allclose(found[box], weight, atol=1e-5)


def test_tree_explains_by_the_nodes_where_its_path_goes_right(source):
    network = make_network("prototree", source)
    subject = Subject(network, choose_birds(network, split(source).test, 1))
    output, explainer = network.inspect(subject.show([Question(0)])), subject.explainer()
    distributions = network.model.leaves()
    for label in range(3):
        leaf = int((output.paths[0] + distributions[:, label]).argmax())
        turns = [(0, leaf >= 2), (1 + (leaf >= 2), leaf % 2)]
        wanted = [float(output.scores[0, node]) for node, right in turns if right]
        found = explainer.boxes(0, label, "centre").weights
        np.testing.assert_allclose(sorted(found), sorted(wanted), rtol=1e-5)


# Scenes.


@pytest.mark.parametrize("cropped", [False, True])
def test_whole_birds_are_the_images_of_the_data_set(source, cropped):
    network = make_network("protopnet", source)
    object.__setattr__(network, "crop_to_box", cropped)
    dataset = split(source, crop_to_box=cropped).test
    scenes = choose_birds(network, dataset, 9)
    shown = Subject(network, scenes).show([Question(bird) for bird in range(len(scenes))])
    images = torch.cat([batch.images for batch in batches(make_loader(dataset, 4))])
    torch.testing.assert_close(shown, images)
    assert [scene.label for scene in scenes] == dataset.labels.tolist()


def test_network_is_shown_what_a_question_says(source):
    network = make_network("deformable", source)
    subject = Subject(network, choose_birds(network, split(source).test, 1))
    scene = subject.scenes[0]
    whole, without, twin = subject.show(
        [
            Question(0),
            Question(0, frozenset({"wing"})),
            Question(0, kind=subject.scenes[1].bird.kind),
        ]
    )
    changed = (whole != without).any(dim=0).numpy()
    assert changed.any() and not changed[: SIZE // 8].all()
    assert (whole != twin).any() and scene.masks.shape == (len(THINGS), SIZE, SIZE)
    answers = subject.ask([Question(0), Question(0, frozenset({"body"})), Question(0)])
    assert (answers[0] == answers[2]).all() and (answers[0] != answers[1]).any()
    np.testing.assert_allclose(answers[:1], network.inspect(whole[None]).logits.numpy(), rtol=1e-4)


def test_words_of_other_data_are_refused(tmp_path):
    network = ask_tiny(make_model("deformable"), make_data(tmp_path / "cub"))
    with pytest.raises(UserError, match="do not apply to tiny: .* is not PoseBirds"):
        find_words(network)


# Scores.


@pytest.mark.parametrize("kind", ["deformable", "rigid", "protopnet", "tesnet", "prototree"])
def test_every_network_with_prototypes_is_measured(kind, source):
    network, progress = make_network(kind, source), []
    given = {"seed": 1, "birds": 2}
    scores = interventions.measure(
        network, split(source), **given, progress=lambda *two: progress.append(two)
    )
    names = ["accuracy on birds drawn again", "background independence"]
    each = [*interventions.NAMES.values(), "completeness"]
    places = ["centre", "parts"] if kind in ("deformable", "rigid") else ["centre"]
    assert [score.measure for score in scores] == names + len(places) * each
    assert [score.at for score in scores] == ["", ""] + [p for p in places for _ in each]
    for score in scores:
        assert score.unit == "%" and score.better == "higher"
        for value in (score.value, score.random_weights, score.random_places, score.original):
            assert np.isnan(value) or 0 <= value <= 100
        if not np.isnan(score.low):
            assert score.low <= score.value + 1e-9 and score.value <= score.high + 1e-9
    assert not np.isnan(
        [score.value for score in scores if score.measure != "target sensitivity"]
    ).all()
    assert progress[-1][0] == progress[-1][1]
    assert same(scores, interventions.measure(network, split(source), **given))


def same(one, two) -> bool:
    return str(one) == str(two)


def test_original_chooses_its_threshold_on_the_test_birds(source):
    """With the same birds for both, there is no difference; `original` is for checks alone."""
    network, splits = make_network("deformable", source), split(source)
    splits = splits._replace(validation=splits.test)
    for score in interventions.measure(network, splits, birds=2)[2:]:
        if "check" in score.measure or score.measure in ("distractibility", "completeness"):
            assert score.original == score.value or np.isnan(score.value)
        else:
            assert np.isnan(score.original)


def test_classifier_without_prototypes_has_what_needs_no_explanation(source):
    torch.manual_seed(0)
    network = Classifier(PlainCNN(TinyBackbone(), 3).eval(), "plain", source, SIZE)
    scores = interventions.measure(network, split(source), birds=2)
    assert [score.measure for score in scores if not np.isnan(score.value)] == [
        "accuracy on birds drawn again",
        "background independence",
    ]
    assert all("does not apply" in score.note for score in scores[2:])
    effects = {s.measure: s.value for s in interventions.measure_effects(network, split(source))}
    assert not np.isnan([effects[f"effect of removing {part}"] for part in BIRD[:-1]]).any()


def test_effects_are_drops_of_the_probability(source):
    network = make_network("deformable", source)
    scenes = choose_birds(network, split(source).test, 2)
    subject = Subject(network, scenes)
    drops = []
    for bird, scene in enumerate(scenes):
        pictures = subject.show([Question(bird), Question(bird, frozenset({"tail"}))])
        odds = network.inspect(pictures).logits.double().softmax(dim=1)[:, scene.label]
        drops.append(100 * float(odds[0] - odds[1]))
    scores = interventions.measure_effects(network, split(source), birds=2)
    (found,) = [score for score in scores if score.measure == "effect of removing tail"]
    np.testing.assert_allclose(found.value, np.mean(drops), atol=1e-4)
    assert found.unit == "percentage points"


def test_explainer_is_given_masks_in_the_order_of_things(source):
    network = make_network("protopnet", source)
    subject = Subject(network, choose_birds(network, split(source).test, 1))
    explainer: Explainer = subject.explainer()
    importances, totals = explainer.at("centre")(np.zeros(len(subject.scenes), int))
    assert importances.shape == (len(subject.scenes), len(THINGS))
    boxes = explainer.boxes(0, 0, "centre")
    wing = slow_importances(boxes, subject.scenes[0].masks)[THINGS.index("wing")]
    np.testing.assert_allclose(importances[0, THINGS.index("wing")], wing, atol=0.05)
    np.testing.assert_allclose(totals[0], boxes.weights.sum())
