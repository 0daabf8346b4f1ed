"""The prototype browser without a browser: its numbers, its choices, what it refuses and keeps."""

import gc
import hashlib
import io
import json
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from ipywidgets.widgets import widget as registry
from matplotlib import pyplot
from PIL import Image
from tiny_analysis import ask, ask_projected, make_data, make_model
from tiny_network import TinyBackbone

from dpp import analysis, ops
from dpp.analysis.figure_data import apply_prototype
from dpp.analysis.global_analysis import global_analysis
from dpp.analysis.offset_effect import by_need_of_moving
from dpp.browser import Browser, drawings, scenes, screens, show, texts, thumbnails, workbench
from dpp.browser.pair_figure import patch_pairs
from dpp.browser.screens import VIEWS, export
from dpp.browser.session import Session
from dpp.browser.workbench import Changes, Subject, change, class_scores
from dpp.networks.soft_tree import ProtoTree
from dpp.report import run_report
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("tiny"))


def make_subject(data, kind="deformable", projected=True) -> Subject:
    network = ask_projected(data, kind) if projected else ask(make_model(kind), data)
    return Subject(network, data.splits.projection, data.splits.test)


@pytest.fixture
def subject(data):
    return make_subject(data)


@pytest.fixture
def session(data):
    return Session({"moving": make_subject(data), "rigid": make_subject(data, "rigid")})


@pytest.fixture
def browser(session, tmp_path):
    made = Browser(session, tmp_path / "exports")
    yield made
    made.close()


def another_image(browser) -> str:
    """The key of a listed image that is not the one shown."""
    keys = [item["key"] for item in browser.image.items]
    return next(key for key in reversed(keys) if key != browser.session.image.id)


def png(size=(40, 30), kind="PNG") -> bytes:
    content = io.BytesIO()
    Image.effect_noise(size, 60).convert("RGB").save(content, kind)
    return content.getvalue()


# Moving the centre


@pytest.mark.parametrize("kind", ["deformable", "dilated", "rigid", "released"])
def test_moved_centre_has_the_similarity_of_the_map_there(data, kind):
    subject = make_subject(data, kind)
    network, picture = subject.network, subject.network.picture(subject.test.records[1])
    model = network.model
    with torch.no_grad():
        z, offsets = model.locate(picture.tensor[None])
        layer = model.prototypes
        maps = layer.damp(ops.similarity_map(z, offsets, layer.normalised(), **layer.geometry))
    for prototype, centre in ((0, (0, 0)), (3, (2, 1)), (5, (3, 3))):
        found = apply_prototype(network, picture, prototype, centre)
        assert found.match.centre == centre
        expected = model.activate(maps[0, prototype, *centre])
        assert found.match.similarity == pytest.approx(float(expected), abs=1e-6)
        np.testing.assert_allclose(found.similarities, maps[0, prototype], atol=1e-6)
        shares = [part.contribution for part in found.match.parts]
        assert sum(shares) == pytest.approx(found.match.similarity, abs=1e-5)


def test_parts_at_a_moved_centre_lie_where_the_offset_field_says(subject):
    network, picture = subject.network, subject.network.picture(subject.test.records[1])
    found = apply_prototype(network, picture, 2, (1, 2))
    with torch.no_grad():
        _, offsets = network.model.locate(picture.tensor[None])
    field = offsets[0, :, 1, 2].reshape(-1, 2).numpy()
    places = np.array([part.place for part in found.match.parts])
    np.testing.assert_allclose(places, np.array([1, 2]) + found.rest + field, atol=1e-5)


def test_without_a_centre_the_prototype_is_where_the_network_finds_it(subject):
    network, picture = subject.network, subject.network.picture(subject.test.records[2])
    (match,) = analysis.local_analysis(network, picture, 1).matches
    assert apply_prototype(network, picture, match.prototype).match.centre == match.centre


def test_centre_off_the_map_is_refused(subject):
    picture = subject.network.picture(subject.test.records[0])
    with pytest.raises(UserError, match="no cell"):
        apply_prototype(subject.network, picture, 0, (0, 4))


def test_features_are_computed_once_for_an_image(session):
    looked = []
    backbone = session.subject.network.model.backbone.backbone
    backbone.register_forward_hook(lambda *_: looked.append(1))
    for centre in ((0, 0), (1, 2), (3, 3)):
        session.set_centre(*centre)
        for view in ("Image", "What if"):
            screens.show(session, view)
    assert len(looked) == 1


def test_dragged_centre_becomes_the_cell_and_arrow_keys_and_best_place_follow(browser):
    assert browser.board.heat["cells"] == [4, 4]
    for row, column in ((0, 0), (2, 3), (3, 1)):
        browser._answer(browser._pointed, {"kind": "centre", "row": row, "column": column})
        assert browser.session.centre == (row, column)
        assert browser.board.scene["cell"] == [row, column]
        similarities = np.array(browser.screen.data["similarities"])
        found = browser.screen.data["match"]["similarity"]
        assert found == pytest.approx(similarities[row, column], abs=1e-6)
        assert f"Similarity {found:.3f} at row {row}, column {column}" in (
            browser.board.scene["caption"].replace("−", "-")
        )
    browser._answer(browser._pointed, {"kind": "step", "rows": -1, "columns": 1})
    assert browser.board.scene["cell"] == [2, 2]
    browser._answer(browser._pointed, {"kind": "best"})
    assert browser.session.centre is None and "its best place" in browser.board.scene["caption"]


def test_cells_of_the_heat_are_where_the_centre_is_drawn(session):
    """The page finds the cell under the pointer by these boxes."""
    screens.show(session, "Image")  # which chooses a prototype
    session.set_centre(2, 1)
    (pair,) = screens.show(session, "Image").pairs
    left, top, right, bottom = pair.heat["boxes"][2 * 4 + 1]
    middle = (left + right) / 2, (top + bottom) / 2
    np.testing.assert_allclose(pair.scene["here"]["centre"], middle, atol=0.02)
    down, across = session.picture().geometry.cell_to_image((2, 1), (4, 4))
    np.testing.assert_allclose(middle, (across, down), atol=0.01)
    assert min(pair.heat["values"]) == 0 and max(pair.heat["values"]) == 1


def test_arrow_keys_stop_at_the_edge_of_the_map(session):
    session.set_centre(0, 3)
    session.move(-1, 1)
    assert session.centre == (0, 3)
    session.move(1, -1)
    assert session.centre == (1, 2)


# What if


@pytest.mark.parametrize("kind", ["deformable", "protopnet"])
def test_changed_scores_are_the_logits_computed_by_hand(data, kind):
    subject = make_subject(data, kind)
    network, picture = subject.network, subject.network.picture(subject.test.records[0])
    similarities = network.inspect(picture.tensor[None]).scores[0].double()
    weight = network.model.last_layer.weight.detach().double().clone()
    weight[2, 1] = -3.5
    weight[:, [0, 4]] = 0
    changes = Changes(off=frozenset({0, 4}), connections={(2, 1): -3.5})
    expected = (weight * similarities).sum(dim=1)
    np.testing.assert_allclose(
        class_scores(change(network, changes), picture), expected, rtol=1e-5, atol=1e-5
    )


def test_offsets_at_zero_are_the_rigid_operator(subject):
    network, picture = subject.network, subject.network.picture(subject.test.records[0])
    layer = network.model.prototypes
    with torch.no_grad():
        z, _ = network.model.locate(picture.tensor[None])
        cosines, _ = ops.max_similarity(z, None, layer.normalised(), **layer.geometry)
        expected = network.model.last_layer(cosines)[0]
    found = class_scores(change(network, Changes(rigid=True)), picture)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert not np.allclose(found, class_scores(network, picture))


def test_what_is_tried_out_leaves_the_network_as_it_was(subject):
    picture = subject.network.picture(subject.test.records[0])
    before = class_scores(subject.network, picture)
    state = {name: value.clone() for name, value in subject.network.model.state_dict().items()}
    changes = Changes(frozenset({1}), True, {(0, 0): 9.0})
    class_scores(change(subject.network, changes), picture)
    assert subject.network.model.offsets is not None
    assert (class_scores(subject.network, picture) == before).all()
    for name, value in subject.network.model.state_dict().items():
        assert torch.equal(value, state[name])


def test_connection_that_is_no_number_is_refused(session):
    with pytest.raises(UserError, match="finite"):
        session.connect(0, float("nan"))
    assert not session.changes.connections


def test_undo_brings_back_the_scores(browser):
    browser.view.value = "What if"
    before = browser.screen.data["before"]
    browser.off.value = True
    browser.rigid.value = True
    browser.connection.value = 7.0
    assert browser.screen.data["after"] != before
    assert len(browser.screen.data["changes"]) == 3
    browser.undo.click()
    assert browser.screen.data["after"] == browser.screen.data["before"] == before
    assert not browser.off.value and not browser.rigid.value


# Choices and screens


@pytest.mark.parametrize("label", [0, 1, 2])
def test_bars_of_the_sheet_add_up_to_the_score(session, label):
    session.explained = label
    sheet = session.sheet()
    assert sheet.adds_up
    assert sheet.score == pytest.approx(session.scores()[label], abs=1e-5)
    drawn = scenes.sheet_scene(sheet, "moving", 4)
    numbers = [row["prototype"] for row in drawn["rows"]]
    assert set(numbers) == set(session.subject.prototypes_of(label))
    bars = [row["bar"] for row in drawn["rows"]] + [drawn["others"]["bar"]]
    assert bars[0][0] == drawn["zero"] == drawn["score"]["bar"][0]
    for one, following in zip(bars[:-1], bars[1:], strict=True):
        assert one[1] == following[0]
    assert bars[-1][1] == pytest.approx(drawn["score"]["bar"][1], abs=2e-4)
    printed = [float(one["points"].replace("−", "-")) for one in (*drawn["rows"], drawn["others"])]
    total = float(drawn["score"]["points"].replace("−", "-"))
    assert sum(printed) == pytest.approx(total, abs=1e-9), "the printed numbers add up, too"


def test_lengths_of_the_bars_are_the_points(session):
    sheet = session.sheet()
    drawn = scenes.sheet_scene(sheet, "moving", 4)
    lengths = [row["bar"][1] - row["bar"][0] for row in drawn["rows"]]
    points = [match.points for match in sheet.matches]
    scale = sheet.score / (drawn["score"]["bar"][1] - drawn["score"]["bar"][0])
    np.testing.assert_allclose(np.array(lengths) * scale, points, atol=2e-4 * abs(scale))


def test_sheet_says_that_it_adds_up(session):
    sheet = session.sheet()
    said = texts.sheet_text(sheet, 4)
    assert said.startswith("The bars add up: ") and "from its own 2 prototypes" in said
    assert "the 4 of other classes" in said


def test_row_of_the_sheet_becomes_the_prototype_that_is_shown(browser):
    number = browser.sheet.data["rows"][1]["prototype"]
    browser.sheet.value = number
    assert browser.session.prototype == number
    assert f"prototype {number} of" in browser.board.scene["there"]["title"]
    assert browser.label.value == browser.session.subject.network.labels[number]
    assert f"prototype {number}," in browser.class_pick.data["note"]


@pytest.mark.parametrize("kind", ["dilated", "rigid", "protopnet"])
def test_browser_begins_where_moving_matters_most(data, kind):
    subject = make_subject(data, kind, projected=False)
    session, records = Session({kind: subject}), subject.test.records
    expected = records[0]
    if kind == "dilated":
        expected = by_need_of_moving(subject.network, subject.test)[0]
        assert expected != records[0] and expected.label != 0, "otherwise this shows nothing"
    assert session.image == expected
    assert session.label == expected.label == subject.network.labels[session.prototype]


def test_browser_begins_with_a_class_that_has_prototypes(data, monkeypatch):
    subject = make_subject(data, "dilated", projected=False)
    label = Session({"all": subject}).label
    owned = type(subject).prototypes_of
    monkeypatch.setattr(
        type(subject), "prototypes_of", lambda one, of: [] if of == label else owned(one, of)
    )
    session = Session({"pruned": subject})
    assert (session.label, session.image.label) == (0, label)


def test_the_best_prototype_is_shown_first(browser):
    assert browser.sheet.value == browser.screen.sheet.matches[0].prototype
    assert browser.screen.sheet.label == int(browser.session.scores().argmax())


def test_image_view_asks_for_its_sheet_once(browser, monkeypatch):
    asked = []
    reason = analysis.reason
    monkeypatch.setattr(analysis, "reason", lambda *given: asked.append(1) or reason(*given))
    browser.image.value = another_image(browser)
    assert len(asked) == 1
    browser.sheet.value = browser.sheet.data["rows"][1]["prototype"]
    browser._answer(browser._pointed, {"kind": "centre", "row": 0, "column": 0})
    assert len(asked) == 1


def test_another_class_can_be_explained(browser):
    worst = browser.explained.options[-1][1]
    browser.explained.value = worst
    assert browser.screen.data["sheet"]["label"] == worst
    assert browser.label.value == worst


def test_chosen_class_is_kept_and_explained_until_the_image_changes(browser):
    worst = int(browser.session.scores().argmin())
    browser.view.value = "Prototype"
    browser.label.value = worst
    chosen = browser.session.prototype
    browser.view.value = "Image"
    assert (browser.session.label, browser.session.prototype) == (worst, chosen)
    assert browser.explained.value == browser.screen.data["sheet"]["label"] == worst
    browser.image.value = another_image(browser)
    predicted = int(browser.session.scores().argmax())
    assert browser.explained.value == browser.label.value == predicted


def test_run_change_forgets_the_search(browser):
    browser.search.value = browser.session.subject.names[1]
    browser.run.value = "rigid"
    assert browser.search.value == "" and len(browser.label.items) == 3


def test_two_threads_answer_one_after_the_other(browser):
    """JupyterLab sends some messages to the kernel's main thread and others to a subshell's."""
    name, began, answered = browser.session.run, threading.Event(), []

    def report(done, of):
        began.set()
        time.sleep(0.2)
        answered.append(browser.session.run)

    def choose_other_run():
        began.wait(60)
        browser.run.value = "rigid"

    other = threading.Thread(target=choose_other_run)
    other.start()
    browser._answer(browser.session.find_neighbours, report)
    other.join()
    assert set(answered) == {name} and browser.session.run == "rigid"
    assert browser.session.neighbours is None  # rigid's were not looked for


def test_search_lists_classes_and_never_contradicts_the_class_shown(browser):
    shown = browser.session.label
    other = next(label for label in range(3) if label != shown)
    browser.search.value = browser.session.subject.names[other].replace("_", " ").upper()
    assert [item["key"] for item in browser.label.items] == [other]
    assert browser.session.label == shown and browser.class_pick.data["picture"][2] == shown
    browser.search.value = "no such bird"
    assert browser.label.items == [] and "'no such bird'" in browser.label.none
    browser.search.value = browser.session.subject.names[other]
    browser.label.value = other
    assert browser.session.label == other and browser.search.value == ""
    assert len(browser.label.items) == 3


def test_neighbours_are_those_of_the_global_analysis(session):
    steps = []
    session.find_neighbours(lambda done, of: steps.append((done, of)))
    subject = session.subject
    expected = global_analysis(subject.network, subject.train, subject.test, 3)
    session.choose_prototype(3)
    assert session.neighbours == expected.prototypes[3]
    assert steps[-1][0] == steps[-1][1] == len(subject.train) + len(subject.test)
    done = len(steps)
    session.find_neighbours(lambda *step: steps.append(step))
    assert len(steps) == done, "once for each run"


@pytest.mark.parametrize("kind", ["deformable", "protopnet", "tesnet"])
@pytest.mark.parametrize("projected", [True, False])
def test_every_view_shows_something_or_says_why_not(data, kind, projected):
    session = Session({"only": make_subject(data, kind, projected)})
    session.find_neighbours()
    for view in VIEWS:
        screen = screens.show(session, view)
        assert screen.text
        assert json.loads(json.dumps(screen.data))["view"] == view
        Image.open(io.BytesIO(screen.picture())).verify()


def test_figures_are_drawn_when_they_are_asked_for(session, monkeypatch):
    drawn = []
    monkeypatch.setattr(screens, "render", lambda figure: drawn.append(figure) or b"png")
    shown = [screens.show(session, view) for view in VIEWS]
    assert drawn == []
    assert shown[0].first.png == shown[0].first.png == b"png" and len(drawn) == 1


def test_figure_of_the_image_view_shows_what_the_page_shows(session):
    screen = screens.show(session, "Image")
    (match,) = [one for one in session.sheet().matches if one.prototype == session.prototype]
    figure = patch_pairs(session.picture(), match, session.source(), session.sheet())
    assert screen.first.png == drawings.render(figure)
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert {part["text"] for part in screen.pairs[0].scene["parts"]} <= set(words)


def test_parts_of_the_scene_are_those_of_the_match(session):
    scene = screens.show(session, "Image").pairs[0].scene
    (match,) = [one for one in session.sheet().matches if one.prototype == session.prototype]
    seen, picture = session.source()
    for side, parts in (("here", match.parts), ("there", seen.parts)):
        boxes = [part[side] for part in scene["parts"]]
        np.testing.assert_allclose(boxes, [part.box for part in parts], atol=0.01)
    assert scene["there"]["size"] == list(picture.size)
    shares = np.array([part.contribution for part in match.parts])
    np.testing.assert_allclose(
        [part["share"] for part in scene["parts"]], shares / np.abs(shares).max(), atol=1e-4
    )
    assert len({part["colour"] for part in scene["parts"]}) == 9


def test_source_of_an_unprojected_prototype_is_said_to_be_missing(data):
    session = Session({"raw": make_subject(data, projected=False)})
    scene = screens.show(session, "Image").pairs[0].scene
    assert scene["there"] is None and all(part["there"] is None for part in scene["parts"])
    assert thumbnails.Thumbnails(session).get(["prototype", "raw", 0]) == b""


def test_comparison_shows_both_runs_on_one_image(browser):
    browser.view.value = "Compare runs"
    browser.other.value = "rigid"
    runs = browser.screen.data["runs"]
    assert list(runs) == ["moving", "rigid"]
    rigid = browser.session.open("rigid").network
    picture = rigid.picture(browser.session.image)
    np.testing.assert_allclose(runs["rigid"]["scores"], class_scores(rigid, picture))
    assert runs["moving"]["scores"] != runs["rigid"]["scores"]
    text = browser.texts["Compare runs"].value
    for name, board in zip(runs, browser.boards, strict=True):
        number = runs[name]["prototype"]
        assert number == runs[name]["sheet"]["matches"][0]["prototype"]
        assert f"<b>{name}</b>: prototype {number} of" in text
        assert board.scene["caption"].startswith(f"{name}, prototype {number} of")
        assert board.here_picture and board.there_picture


def test_another_run_keeps_class_and_image(browser):
    browser.view.value = "Prototype"
    browser.image_class.value = 1
    browser.image.value = browser.image.items[0]["key"]
    browser.label.value = 2
    image = browser.session.image
    assert image.label == 1
    browser.run.value = "rigid"
    assert browser.session.label == 2
    assert browser.session.image == image
    assert browser.screen.data["run"] == browser.session.open("rigid").network.name


def test_tree_is_refused_with_its_reason(data):
    tree = ask(ProtoTree(TinyBackbone(), 3, depth=2), data)
    with pytest.raises(UserError, match="is a tree"):
        Subject(tree, data.splits.projection, data.splits.test)


def test_error_that_is_no_mistake_of_the_user_is_said_and_raised(browser, monkeypatch):
    monkeypatch.setitem(VIEWS, "What if", lambda session: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        browser.view.value = "What if"
    assert "internal error" in browser.message.value


# Uploads


def test_upload_is_what_the_network_sees_of_the_same_file(subject, tmp_path):
    path = tmp_path / "bird.png"
    path.write_bytes(png())
    found = workbench.read_upload(subject.network, "bird.png", path.read_bytes())
    expected = subject.network.picture(path)
    assert torch.equal(found.tensor, expected.tensor)
    assert (found.pixels == expected.pixels).all()
    assert found.name == "bird.png" and found.label is None


def test_upload_is_shown_at_its_own_resolution_under_its_name(browser):
    browser._answer(browser._uploaded, {"kind": "file", "name": "mine.png"}, [flat_png(3000, 1500)])
    assert browser.board.scene["here"]["size"] == [3000, 1500]
    with Image.open(io.BytesIO(browser.board.here_picture)) as image:
        assert image.size == (3000, 1500)
    for view in VIEWS:  # as long as it is shown
        browser.view.value = view
        title = {"title": "mine.png", "note": "your own picture, 3000 × 1500"}
        assert title.items() <= browser.image_pick.data.items()
    picture = browser.image_pick.data["picture"]
    assert Image.open(io.BytesIO(browser._thumbnails.get(picture))).size == (144, 144)
    browser._answer(browser._uploaded, {"kind": "file", "name": "mine.png"}, [png()])
    assert browser.image_pick.data["picture"] != picture, "another picture of the same name"
    browser.image.value = browser.image.items[0]["key"]
    assert browser.image_pick.data["title"] == f"image {browser.image.value}"


SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"


@pytest.mark.parametrize(
    ("name", "make", "complaint"),
    [
        ("notes.txt", lambda: b"not an image", "not an image that can be read"),
        ("empty.png", lambda: b"", "not an image that can be read"),
        ("drawing.svg", lambda: SVG, "not an image that can be read"),
        ("drawing.png", lambda: SVG, "not an image that can be read"),
        ("drawing.eps", lambda: EPS, "not an image that can be read"),
        ("half.png", lambda: png()[:400], "cannot be decoded"),
        ("huge.png", lambda: b"\x89PNG" + bytes(50_000_000), "50.0 MB"),
        ("wide.png", lambda: png((20_000, 3)), "20000 by 3 pixels"),
        ("bomb.png", lambda: flat_png(20_000), "too many pixels"),
        ("large.png", lambda: flat_png(9_000), "9000 by 9000 pixels"),
    ],
)
def test_upload_is_refused_and_all_stays_as_it_was(browser, name, make, complaint):
    before, shown = browser.session.image, browser.screen
    content = make()
    browser._answer(browser._uploaded, {"kind": "file", "name": name}, [memoryview(content)])
    assert complaint in browser.message.value
    assert name in browser.message.value and "tmp" not in browser.message.value
    assert browser.session.image == before and browser.screen is shown


def flat_png(width: int, height: int | None = None) -> bytes:
    """A picture of one bit a pixel, small as a file."""
    content = io.BytesIO()
    Image.new("1", (width, height or width)).save(content, "PNG")
    return content.getvalue()


def test_what_the_page_refused_is_said_too(browser):
    refused = {"kind": "refused", "name": "huge<b>.png", "size": 50_000_000}
    browser._answer(browser._uploaded, refused, [])
    assert "50.0 MB" in browser.message.value and "<b>.png" not in browser.message.value


def test_name_of_an_upload_is_escaped(browser):
    name = "<img src=x onerror=alert(1)>.png"
    browser._answer(browser._uploaded, {"kind": "file", "name": name}, [png()])
    for view in VIEWS:
        browser.view.value = view
        assert "<img" not in browser.texts[view].value + browser.message.value


def test_upload_is_explained_by_both_runs(browser):
    browser._answer(browser._uploaded, {"kind": "file", "name": "mine.png"}, [png()])
    browser.view.value = "Compare runs"
    browser.other.value = "rigid"
    assert "mine.png" in browser.texts["Compare runs"].value
    assert browser.image.value is None
    assert browser.screen.data["image"] == "mine.png"


# What is left behind


def test_exports_equal_what_is_shown_and_are_offered_as_downloads(browser, monkeypatch):
    offered = []
    monkeypatch.setattr(
        browser.downloads, "send", lambda *given, **more: offered.append((given, more))
    )
    browser.view.value = "Prototype"
    browser.find.click()
    for view in VIEWS:
        browser.view.value = view
        for button, content in (
            (browser.png, browser.screen.picture()),
            (browser.json, None),
        ):
            button.click()
            path = Path(browser.message.value.partition("written: ")[2].partition("<")[0])
            if content is None:
                assert json.loads(path.read_text()) == json.loads(json.dumps(browser.screen.data))
            else:
                assert path.read_bytes() == content
            ((message,), more), *_ = offered[-1:]
            assert message["name"] == path.name and more["buffers"] == [path.read_bytes()]
    assert sorted(path.suffix for path in browser.folder.iterdir()) == 5 * [".json"] + 5 * [".png"]


def test_reasoning_is_exported_as_the_report_draws_it(browser):
    browser.reasoning.click()
    path = Path(browser.message.value.partition("written: ")[2].partition("<")[0])
    network, picture = browser.session.subject.network, browser.session.picture()
    labels = np.argsort(-browser.session.scores(), kind="stable")[:5].tolist()
    reasoning = analysis.reason(network, picture, labels)
    figure = run_report.draw(network, reasoning, picture.pixels)
    assert path.read_bytes() == drawings.render(figure)


def test_export_to_a_folder_that_cannot_be_made_is_said(session, tmp_path):
    (tmp_path / "file").write_text("in the way")
    screen = screens.show(session, "What if")
    with pytest.raises(UserError, match="could not be written"):
        export(session, screen, tmp_path / "file" / "exports", "json")


def test_two_browsers_do_not_disturb_each_other(data, tmp_path):
    subject = make_subject(data)
    one, other = (show({"run": subject}, tmp_path) for _ in range(2))
    text, picture = other.texts["Image"].value, other.board.here_picture
    label = other.session.label
    one.label.value = (label + 1) % 3
    one.image_class.value = 1
    one.image.value = one.image.items[0]["key"]
    one.view.value = "What if"
    one.rigid.value = True
    assert other.session.label == label and other.view.value == "Image"
    assert other.texts["Image"].value == text
    assert other.board.here_picture == picture
    one.close()
    other.view.value = "What if"
    assert other.screen.data["changes"] == []
    assert other.screen.data["before"] == other.screen.data["after"]
    other.close()


def test_static_viewers_get_a_picture(browser):
    bundle = browser._repr_mimebundle_()
    assert len(bundle["image/png"]) < 150_000
    Image.open(io.BytesIO(bundle["image/png"])).verify()
    assert bundle["text/plain"] == "A prototype browser of moving, rigid"
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_every_control_has_a_label(browser):
    controls = [
        one
        for one in vars(browser).values()
        if isinstance(one, registry.Widget) and hasattr(one, "description")
    ]
    assert len(controls) >= 20
    unnamed = [one for one in controls if not one.description]
    assert [one for one in unnamed if type(one).__name__ != "HTML"] == []


@pytest.mark.parametrize("turns", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_opening_and_closing_leaves_nothing(data, tmp_path, turns):
    subject = make_subject(data)

    def open_and_close(view: str) -> None:
        made = show({"run": subject}, tmp_path)
        made.view.value = view
        made.close()

    def resident() -> int:
        gc.collect()
        return psutil.Process().memory_info().rss

    views = list(VIEWS)
    for view in views:
        open_and_close(view)
    widgets, figures, before = len(registry._instances), pyplot.get_fignums(), resident()
    for turn in range(turns):
        open_and_close(views[turn % 5])
    assert len(registry._instances) == widgets
    assert pyplot.get_fignums() == figures
    assert resident() - before < 50e6


def test_nothing_in_the_run_changes(tmp_path, monkeypatch):
    from dpp import runs

    for name in ("DATA", "RUNS"):
        monkeypatch.setenv(f"DPP_{name}", str(tmp_path / name))
    experiment = make_experiment("smoke", kernel_size=2, per_class=2, epochs=2)
    run = runs.run(experiment, progress=False)

    def digests() -> dict:
        files = sorted(path for path in run.folder.rglob("*") if path.is_file())
        return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = digests()
    browser = show({"run": run}, tmp_path / "exports")
    browser.view.value = "Prototype"
    browser.find.click()
    browser.reason.value = "it lies on the background"
    browser.forget.click()
    for view in VIEWS:
        browser.view.value = view
        browser.png.click()
    browser.view.value = "What if"
    browser.off.value, browser.rigid.value, browser.connection.value = True, True, 4.0
    browser.json.click()
    browser.close()
    assert digests() == before
    run.verify()
