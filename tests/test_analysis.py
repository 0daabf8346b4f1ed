"""Explanations of one image: sums that must hold, boxes on all kinds of pictures, origins."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from PIL import Image
from test_runs import tiny
from tiny_analysis import (
    KINDS,
    ask,
    ask_projected,
    displaced_brightness,
    make_data,
    make_model,
    paint_spot,
    seek_light,
)
from tiny_network import TinyBackbone

from dpp import explanations, runs
from dpp.analysis import (
    Network,
    explain,
    find_origin,
    follow_tree,
    local_analysis,
    read_origins,
    reason,
)
from dpp.data.image_records import Source
from dpp.data.pictures import load_picture
from dpp.data.transforms import Geometry
from dpp.explanations import ClassScore
from dpp.methods.plain_cnn import PlainCNN
from dpp.networks.soft_tree import ProtoTree
from dpp.reference import resting_places
from dpp.runs import pruning
from dpp.system.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")
ORIENTATION = 0x0112
NOTHING = Source("nothing", None, ("light", "dark"), (), (), ())


@pytest.fixture
def data(tmp_path):
    return make_data(tmp_path / "cub")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> runs.Run:
    short = {"epochs": 1, "warm_epochs": 1, "second_warm_epochs": 0, "project_after": (1,)}
    root = tmp_path_factory.mktemp("runs")
    return runs.run(tiny(**short), root=root, device="cpu", progress=False)


# What adds up


@pytest.mark.parametrize("kind", KINDS)
def test_points_of_a_class_sum_to_its_logit(data, kind):
    network = ask(make_model(kind), data)
    for record in data.source.test:
        picture = network.picture(record)
        reasoning = reason(network, picture, [0, 1, 2])
        logits = network.model(picture.tensor[None])[0].tolist()
        assert [one.score for one in reasoning.classes] == pytest.approx(logits, abs=1e-5)
        for one in reasoning.classes:
            assert one.total == pytest.approx(one.score, abs=1e-5) and one.adds_up
            assert {match.label for match in one.matches} == {one.label}
            points = [match.points for match in one.matches]
            assert len(points) == 2 and points == sorted(points, reverse=True)


@pytest.mark.parametrize("kind", KINDS)
def test_contributions_of_the_parts_sum_to_the_similarity(data, kind):
    network = ask(make_model(kind), data)
    for record in data.source.test:
        picture = network.picture(record)
        scores = network.inspect(picture.tensor[None]).scores[0].tolist()
        matches = local_analysis(network, picture, 6).matches
        assert len(matches) == 6
        for match in matches:
            total = sum(part.contribution for part in match.parts)
            assert total == pytest.approx(match.similarity, abs=1e-6)
            assert match.similarity == pytest.approx(scores[match.prototype], abs=1e-6)
            assert match.points == pytest.approx(match.similarity * match.connection)


def test_sum_that_is_not_the_score_is_seen():
    right = ClassScore(0, "a", 1.0, 0.5, (), 1.0)
    assert right.adds_up and not replace(right, others=1.0001).adds_up
    assert replace(right, score=1000.0, others=1000.001).adds_up  # rounding grows with the score


@pytest.mark.parametrize("kind", ["deformable", "dilated", "rigid"])
def test_place_is_centre_and_resting_place_and_offset(data, kind):
    network = ask(make_model(kind), data)
    picture = network.picture(data.source.test[0])
    with torch.no_grad():
        _, offsets = network.model.locate(network.prepare(picture.tensor[None]))
    kernel_size = network.model.prototypes.kernel_size
    rest = resting_places(kernel_size, network.model.prototypes.geometry["dilation"])
    for match in local_analysis(network, picture, 6).matches:
        a, b = match.centre
        for number, (part, (down, right)) in enumerate(zip(match.parts, rest, strict=True)):
            expected = [a + down, b + right]
            if offsets is not None:
                expected[0] += float(offsets[0, 2 * number, a, b])
                expected[1] += float(offsets[0, 2 * number + 1, a, b])
            assert part.place == pytest.approx(expected, abs=1e-6)
            assert part.box == picture.geometry.cell_box(part.place, (4, 4))


def test_default_classes_are_the_predicted_one_and_the_next(data):
    network = ask(make_model("deformable"), data)
    picture = network.picture(data.source.test[0])
    reasoning = reason(network, picture)
    order = network.model(picture.tensor[None])[0].argsort(descending=True).tolist()
    assert [one.label for one in reasoning.classes] == order[:2]
    assert reasoning.predicted == order[0] and reasoning.label == data.source.test[0].label
    assert (reasoning.size, reasoning.cells, reasoning.run) == ((40, 30), (4, 4), "tiny")
    everything = reason(network, picture, list(data.source.class_names)).classes
    assert sum(one.probability for one in everything) == pytest.approx(1)


@pytest.mark.parametrize("kind", KINDS)
def test_local_analysis_has_the_most_similar_prototypes_of_all_classes(data, kind):
    network = ask(make_model(kind), data)
    picture = network.picture(data.source.test[3])
    scores = network.inspect(picture.tensor[None]).scores[0]
    expected = sorted(range(6), key=lambda number: (-float(scores[number]), number))
    found = local_analysis(network, picture, 4)
    assert [match.prototype for match in found.matches] == expected[:4]
    assert found.origins == ()  # never projected


# Where boxes lie


def assert_on_spot(network: Network, file, spot: tuple[int, int], size: tuple[int, int]) -> None:
    """The prototype that seeks light has its box around the spot, of a fourteenth of each side."""
    picture = network.picture(file)
    assert picture.size == size and picture.tensor.shape == (3, 224, 224)
    (part,) = reason(network, picture, ["light"]).classes[0].matches[0].parts
    left, top, right, bottom = part.box
    assert left <= spot[0] + 0.5 <= right and top <= spot[1] + 0.5 <= bottom
    assert (right - left, bottom - top) == pytest.approx((size[0] / 14, size[1] / 14))


@pytest.mark.parametrize("moved", [None, (2.0, -3.0), (-4.0, 1.0)])
def test_bright_spot_lies_in_the_box_wherever_the_centre_is(tmp_path, moved):
    network = seek_light(NOTHING, moved=moved)
    for spot in [(88, 72), (136, 104), (104, 136)]:
        paint_spot((224, 224), spot).save(tmp_path / "spot.png")
        assert_on_spot(network, tmp_path / "spot.png", spot, (224, 224))


@pytest.mark.parametrize(
    "size, spot, reach",
    [
        ((300, 120), (210, 35), (10, 4)),
        ((90, 500), (20, 410), (3, 15)),
        ((32, 32), (20, 9), (1, 1)),
        ((4000, 3000), (3100, 700), (120, 90)),
    ],
)
def test_box_fits_the_picture_whatever_its_size(tmp_path, size, spot, reach):
    paint_spot(size, spot, reach).save(tmp_path / "spot.png")
    assert_on_spot(seek_light(NOTHING), tmp_path / "spot.png", spot, size)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_pictures_of_other_kinds_are_understood(tmp_path, mode):
    file = tmp_path / ("spot.tif" if mode == "CMYK" else "spot.png")
    paint_spot((300, 120), (210, 35), (10, 4)).convert(mode).save(file)
    assert_on_spot(seek_light(NOTHING), file, (210, 35), (300, 120))


@pytest.mark.parametrize("ending", ["jpg", "png"])
def test_box_lands_in_the_upright_picture_if_its_tag_turns_it(tmp_path, ending):
    upright = paint_spot((300, 120), (210, 35), (10, 4))
    exif = Image.Exif()
    exif[ORIENTATION] = 6  # the camera was turned: to be shown a quarter turn clockwise
    file = tmp_path / f"turned.{ending}"
    upright.transpose(Image.Transpose.ROTATE_90).save(file, exif=exif)
    with Image.open(file) as stored:
        assert stored.size == (120, 300)
    assert_on_spot(seek_light(NOTHING), file, (210, 35), (300, 120))


def test_record_with_annotations_is_not_turned(data):
    record = data.source.test[0]
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    with Image.open(record.path) as image:
        image.load()
    image.save(record.path, exif=exif)
    assert load_picture(record, 16).size == (40, 30)
    assert load_picture(record.path, 16).size == (30, 40)
    turned = replace(record, upright=True)
    network = ask(make_model("rigid"), data)
    assert network.geometry(record)[1] == (40, 30) and network.geometry(turned)[1] == (30, 40)


def test_cropped_record_has_boxes_within_its_box(data):
    record = data.source.test[0]  # 7.0 2.0 20.5 40.0: cut off at the image's lower edge
    picture = load_picture(record, 16, crop_to_box=True)
    assert picture.geometry == Geometry((7, 2, 28, 30), 16) and picture.size == (40, 30)
    network = ask(make_model("rigid"), data, crop_to_box=True)
    centre = local_analysis(network, network.picture(record), 1).matches[0].parts[4]
    left, top, right, bottom = centre.box
    assert 7 <= left < right <= 28 and 2 <= top < bottom <= 30


def test_mirror_image_has_mirrored_places(tmp_path):
    network = seek_light(NOTHING, kernel_size=3)
    image = paint_spot((224, 224), (71, 136), (24, 24))
    image.save(tmp_path / "a.png")
    image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(tmp_path / "b.png")
    found = [
        reason(network, network.picture(tmp_path / name), [0]).classes[0].matches[0].parts
        for name in ("a.png", "b.png")
    ]
    mirrored = [found[1][number] for number in (2, 1, 0, 5, 4, 3, 8, 7, 6)]
    for part, other in zip(found[0], mirrored, strict=True):
        assert other.place == (part.place[0], 13 - part.place[1])
        assert other.box.left == pytest.approx(224 - part.box.right)
        assert other.contribution == pytest.approx(part.contribution, abs=1e-6)


@pytest.mark.parametrize(
    "size, spot, reach",
    [
        ((224, 224), (56, 152), (3, 3)),
        ((224, 224), (105, 71), (3, 3)),
        ((300, 120), (150, 56), (4, 2)),
        ((90, 500), (50, 333), (1, 6)),
    ],
)
def test_box_lies_on_the_spot_where_padding_displaces_what_cells_look_at(
    tmp_path, size, spot, reach
):
    """The boxes of cells as they lie would be one down and right of it."""
    paint_spot(size, spot, reach).save(tmp_path / "spot.png")
    network = seek_light(NOTHING, backbone=displaced_brightness())
    assert_on_spot(network, tmp_path / "spot.png", spot, size)
    unaware = replace(network)
    unaware.__dict__["cell_centres"] = None
    with pytest.raises(AssertionError):
        assert_on_spot(unaware, tmp_path / "spot.png", spot, size)


def test_origins_and_neighbours_are_drawn_where_cells_look(data):
    """All ways to boxes agree: of a picture, of a record, of where a prototype comes from."""
    network = ask_projected(data, "rigid")
    shifted = replace(network)
    shifted.__dict__["cell_centres"] = tuple(look - 3.5 for look in network.cell_centres)
    record = network.records[network.origins[0].image]
    assert shifted.picture(record).geometry == shifted.geometry(record)[0]
    for part, other in zip(
        find_origin(shifted, 0).parts, find_origin(network, 0).parts, strict=True
    ):
        expected = other.box - np.array([40, 30, 40, 30]) * 3.5 / 16
        assert part.box == pytest.approx(tuple(expected))


# Origins


@pytest.mark.parametrize("kind", KINDS)
def test_origin_is_found_again_on_its_image(data, kind):
    network = ask_projected(data, kind)
    for number, origin in network.origins.items():
        found = find_origin(network, number)
        record = network.records[found.image]
        assert found.label == record.label == network.labels[number]
        assert (found.size, found.cells) == ((40, 30), (4, 4))
        assert [part.place for part in found.parts] == list(origin.parts)
        if kind == "tesnet":  # a longer cell of another direction may project further
            continue
        picture = network.picture(record)
        matches = reason(network, picture, [found.label]).classes[0].matches
        match = next(match for match in matches if match.prototype == number)
        assert match.centre == found.centre
        for part, other in zip(match.parts, found.parts, strict=True):
            assert part.box == pytest.approx(other.box, abs=1e-4)


def test_local_analysis_tells_where_its_prototypes_come_from(data):
    network = ask_projected(data)
    found = local_analysis(network, network.picture(data.source.test[0]), 3)
    numbers = [match.prototype for match in found.matches]
    assert [origin.prototype for origin in found.origins] == numbers
    assert found.origins[0] == find_origin(network, numbers[0])


def test_image_that_has_changed_is_no_origin(data):
    network = ask_projected(data)
    record = network.records[network.origins[0].image]
    record.path.write_bytes(record.path.read_bytes() + b"!")
    with pytest.raises(UserError, match=f"{record.path.name}.* has changed since"):
        find_origin(network, 0)


def test_image_that_is_gone_is_named(data):
    network = ask_projected(data)
    moved = {0: replace(network.origins[0], image="99")}
    with pytest.raises(UserError, match="has no image 99, the source image of prototype"):
        find_origin(replace(network, origins=moved), 0)


def test_prototype_without_origin_is_refused(data):
    with pytest.raises(UserError, match="prototype 6 of tiny has no source image"):
        find_origin(ask_projected(data), 6)


def test_pruned_network_is_explained_with_the_origins_that_are_left(data):
    network = ask_projected(data)
    before = {number: origin.image for number, origin in network.origins.items()}
    unused = torch.tensor([True, False, False, False, True, False])
    kept = pruning.prune(network.model, unused)
    left = pruning.keep_origins([asdict(origin) for origin in network.origins.values()], kept)
    pruned = ask(network.model, data, origins=read_origins(left))
    reasoning = reason(pruned, pruned.picture(data.source.test[0]), [0, 1, 2])
    assert [len(one.matches) for one in reasoning.classes] == [1, 2, 1]
    assert all(one.adds_up for one in reasoning.classes)
    for number, old in enumerate(kept.tolist()):
        assert find_origin(pruned, number).image == before[old]


def test_network_of_a_run_has_all_that_explaining_needs(trained):
    network = Network.of(trained)
    picture = network.picture(network.source.test[0])
    reasoning = explain(network, picture)
    assert all(one.adds_up for one in reasoning.classes) and reasoning.run == trained.folder.name
    assert reasoning.cells == network.origins[0].cells
    assert read_origins(trained.origins) == network.origins
    origin = find_origin(network, 5)
    assert origin.label == network.labels[5]


# Files


def test_explanations_are_read_back_as_they_were(data, tmp_path):
    network = ask_projected(data)
    picture = network.picture(data.source.test[0])
    tree = ask(ProtoTree(TinyBackbone(), 3), data)
    for explanation in (
        reason(network, picture),
        local_analysis(network, picture),
        follow_tree(tree, picture),
    ):
        explanations.write(tmp_path / "saved.json", explanation)
        assert explanations.read(tmp_path / "saved.json") == explanation


def test_file_that_holds_no_explanation_is_refused(data, tmp_path):
    file = tmp_path / "saved.json"
    for content in ([], {"kind": "Experiment"}):
        file.write_text(json.dumps(content))
        with pytest.raises(UserError, match="saved.json is not an explanation"):
            explanations.read(file)
    network = ask(make_model("rigid"), data)
    explanations.write(file, reason(network, network.picture(data.source.test[0])))
    content = json.loads(file.read_text())
    del content["classes"][0]["others"]
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match="not a complete Reasoning: TypeError.*others"):
        explanations.read(file)


# What is refused


def test_file_that_is_no_image_is_named(tmp_path):
    network = seek_light(NOTHING)
    (tmp_path / "letter.jpg").write_text("Dear Sir")
    with pytest.raises(UserError, match="letter.jpg cannot be decoded"):
        network.picture(tmp_path / "letter.jpg")
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(UserError, match="empty.jpg is empty"):
        network.picture(tmp_path / "empty.jpg")
    for wrong in (tmp_path / "nowhere.jpg", tmp_path):
        with pytest.raises(UserError, match=f"there is no image {wrong}"):
            network.picture(wrong)


def test_unknown_class_is_answered_with_near_ones(data):
    network = ask(make_model("rigid"), data)
    picture = network.picture(data.source.test[0])
    with pytest.raises(UserError, match="no class 'Bird_2': did you mean .*002.Bird_2"):
        reason(network, picture, ["Bird_2"])
    for number in (-1, 3):
        with pytest.raises(UserError, match=f"classes 0 to 2, not {number}"):
            reason(network, picture, [number])


def test_network_without_prototypes_is_refused(data):
    with pytest.raises(UserError, match="PlainCNN, which has no prototypes"):
        ask(PlainCNN(TinyBackbone(), 3), data)


def test_tree_and_points_are_not_confused(data):
    tree, other = ask(ProtoTree(TinyBackbone(), 3), data), ask(make_model("rigid"), data)
    picture = tree.picture(data.source.test[0])
    assert explain(tree, picture) == follow_tree(tree, picture)
    with pytest.raises(UserError, match="no score sheet"):
        reason(tree, picture)
    with pytest.raises(UserError, match="not a tree"):
        follow_tree(other, picture)
    with pytest.raises(UserError, match="no chosen classes"):
        explain(tree, picture, [0])
