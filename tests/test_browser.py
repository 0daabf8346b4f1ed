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
from dpp.browser import Browser, drawings, screens, show, workbench
from dpp.browser.screens import VIEWS, export
from dpp.browser.session import Session
from dpp.browser.texts import sheet_rows
from dpp.browser.workbench import Changes, Subject, change, class_scores
from dpp.figures import paper_figures
from dpp.figures.marked_pictures import mark
from dpp.figures.score_sheets import score_sheet
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
        for view in ("Image", "Move the centre", "What if"):
            screens.show(session, view)
    assert len(looked) == 1


def test_click_on_the_image_and_on_the_map_sets_the_cell_under_it(session):
    screen = screens.show(session, "Move the centre")
    areas = {area.name: area for area in screen.first.areas}
    left, top, right, bottom = areas["map"].extent
    for row, column in ((0, 0), (2, 3), (3, 1)):
        across, down = (column + 0.5) / 4, (row + 0.5) / 4
        place = left + across * (right - left), top + down * (bottom - top)
        assert session.click(screen.first.areas, *place)
        assert session.centre == (row, column)
    x, y = session.picture().geometry.cell_to_image((2, 1), (4, 4))[::-1]
    left, top, right, bottom = areas["image"].extent
    x0, y0, x1, y1 = areas["image"].limits
    place = (x - x0) / (x1 - x0), (y - y0) / (y1 - y0)
    place = left + place[0] * (right - left), top + place[1] * (bottom - top)
    assert session.click(screen.first.areas, *place)
    assert session.centre == (2, 1)
    assert not session.click(screen.first.areas, 0.999, 0.999)
    assert session.centre == (2, 1)


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


def test_sheet_adds_up_and_its_rows_are_the_prototypes_of_the_class(session):
    sheet = session.sheet()
    assert sheet.adds_up
    assert sheet.score == pytest.approx(session.scores().max(), abs=1e-5)
    assert {number for _, number in sheet_rows(score_sheet(sheet))} == set(
        session.subject.prototypes_of(sheet.label)
    )


def test_row_of_the_sheet_becomes_the_prototype_that_is_shown(browser):
    browser.view.value = "Image"
    number = browser.sheet.options[1][1]
    browser.sheet.value = number
    assert browser.session.prototype == browser.prototype.value == number
    assert f"prototype {number}" in browser.figures["Image"][0].words
    network = browser.session.subject.network
    assert browser.label.value == network.labels[number]


def test_image_view_asks_for_its_sheet_once(browser, monkeypatch):
    asked = []
    reason = analysis.reason
    monkeypatch.setattr(analysis, "reason", lambda *given: asked.append(1) or reason(*given))
    browser.view.value = "Image"
    assert len(asked) == 1
    browser.sheet.value = browser.sheet.options[1][1]
    assert len(asked) == 2


def test_another_class_can_be_explained(browser):
    browser.view.value = "Image"
    worst = browser.explained.options[-1][1]
    browser.explained.value = worst
    assert browser.screen.data["sheet"]["label"] == worst
    assert browser.label.value == worst


def test_chosen_class_is_kept_and_explained_until_the_image_changes(browser):
    worst = int(browser.session.scores().argmin())
    browser.label.value = worst
    chosen = browser.session.prototype
    browser.view.value = "Image"
    assert (browser.session.label, browser.session.prototype) == (worst, chosen)
    assert browser.explained.value == browser.screen.data["sheet"]["label"] == worst
    browser.image.value = browser.image.options[-1][1]
    predicted = int(browser.session.scores().argmax())
    assert browser.explained.value == browser.label.value == predicted


def test_run_change_forgets_the_search(browser):
    browser.search.value = browser.session.subject.names[1]
    browser.run.value = "rigid"
    assert browser.search.value == "" and len(browser.label.options) == 3


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


def test_kept_axes_keep_nothing_of_what_was_drawn_before(session):
    images = session.subject.test.records
    seen = []
    for fresh in (True, False):
        for place, centre in enumerate([(0, 0), (2, 3), (1, 1)]):
            session.choose_image(images[place])
            session.set_centre(*centre)
            if fresh:
                drawings._canvas.cache_clear()
            seen.append(screens.show(session, "Move the centre").first)
    assert [one.png for one in seen[:3]] == [one.png for one in seen[3:]]
    assert [one.areas for one in seen[:3]] == [one.areas for one in seen[3:]]
    assert len({one.png for one in seen}) == 3


def test_search_finds_classes_and_says_when_there_are_none(browser):
    name = browser.session.subject.names[1]
    browser.search.value = name.replace("_", " ").upper()
    assert [label for _, label in browser.label.options] == [1]
    assert browser.session.label == 1
    browser.search.value = "no such bird"
    assert "no class has" in browser.message.value
    assert browser.session.label == 1
    browser.search.value = ""
    assert len(browser.label.options) == 3
    assert "no class" not in browser.message.value


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
    session.whole = True
    session.find_neighbours()
    for view in VIEWS:
        if view == "Move the centre" and kind != "deformable":
            with pytest.raises(UserError, match="choose a deformable run"):
                screens.show(session, view)
            continue
        screen = screens.show(session, view)
        assert screen.text
        assert json.loads(json.dumps(screen.data))["view"] == view
        Image.open(io.BytesIO(screen.picture())).verify()


def test_figures_are_those_that_the_notebooks_draw(session):
    session.find_neighbours()
    session.whole = True
    network, picture = session.subject.network, session.picture()
    image = screens.show(session, "Image")
    (match,) = [one for one in session.sheet().matches if one.prototype == session.prototype]
    source = run_report.find_sources(network, [match.prototype])[match.prototype].marked
    pair = mark(picture.pixels, match), source, match.similarity
    figure = paper_figures.comparison({f"prototype {match.prototype}": pair})
    assert image.first.png == drawings.render(figure)[0]
    labels = np.argsort(-session.scores(), kind="stable")[:5].tolist()
    reasoning = analysis.reason(network, picture, labels)
    figure = run_report.draw(network, reasoning, picture.pixels)
    assert image.second.png == drawings.render(figure)[0]


def test_comparison_shows_both_runs_on_one_image(browser):
    browser.view.value = "Compare runs"
    browser.other.value = "rigid"
    runs = browser.screen.data["runs"]
    assert list(runs) == ["moving", "rigid"]
    rigid = browser.session.open("rigid").network
    picture = rigid.picture(browser.session.image)
    np.testing.assert_allclose(runs["rigid"]["scores"], class_scores(rigid, picture))
    assert runs["moving"]["scores"] != runs["rigid"]["scores"]


def test_another_run_keeps_class_and_image(browser):
    browser.label.value = 2
    browser.image_class.value = 1
    image = browser.session.image
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


def test_large_upload_is_shown_smaller_and_boxes_follow(subject, tmp_path):
    path = tmp_path / "large.png"
    path.write_bytes(flat_png(3000, 1500))
    whole = subject.network.picture(path)
    small = workbench.read_upload(subject.network, "large.png", path.read_bytes())
    assert small.size == (1200, 600)
    assert torch.equal(small.tensor, whole.tensor)
    one, other = (
        apply_prototype(subject.network, picture, 0).match.parts[0].box
        for picture in (small, whole)
    )
    np.testing.assert_allclose(np.array(one) * 2.5, other, rtol=1e-6)


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


def test_upload_is_explained_by_both_runs(browser):
    browser._answer(browser._uploaded, {"kind": "file", "name": "mine.png"}, [png()])
    browser.view.value = "Compare runs"
    browser.other.value = "rigid"
    assert "mine.png" in browser.texts["Compare runs"].value
    assert browser.image.value is None
    assert browser.screen.data["image"] == "mine.png"


# What is left behind


def test_exports_equal_what_is_shown(browser):
    browser.find.click()
    for view in VIEWS:
        browser.view.value = view
        browser.png.click()
        drawing = Path(browser.message.value.partition("written: ")[2].partition("<")[0])
        browser.json.click()
        data = Path(browser.message.value.partition("written: ")[2].partition("<")[0])
        assert json.loads(data.read_text()) == json.loads(json.dumps(browser.screen.data))
        shown = [figure.value for figure in browser.figures[view] if figure.value]
        if len(shown) == 1:
            assert drawing.read_bytes() == shown[0]
        else:
            pages = [np.asarray(Image.open(io.BytesIO(one)).convert("RGB")) for one in shown]
            sheet = np.asarray(Image.open(drawing))
            down = 0
            for page in pages:
                there = sheet[down : down + page.shape[0], : page.shape[1]]
                assert (there == page).all()
                down += page.shape[0]
    assert sorted(path.suffix for path in browser.folder.iterdir()) == 5 * [".json"] + 5 * [".png"]


def test_export_to_a_folder_that_cannot_be_made_is_said(session, tmp_path):
    (tmp_path / "file").write_text("in the way")
    screen = screens.show(session, "What if")
    with pytest.raises(UserError, match="could not be written"):
        export(session, screen, tmp_path / "file" / "exports")


def test_two_browsers_do_not_disturb_each_other(data, tmp_path):
    subject = make_subject(data)
    one, other = (show({"run": subject}, tmp_path) for _ in range(2))
    text, picture = other.texts["Prototype"].value, other.figures["Prototype"][0].value
    one.label.value = 2
    one.image_class.value = 1
    one.view.value = "What if"
    one.rigid.value = True
    assert other.session.label == 0 and other.view.value == "Prototype"
    assert other.texts["Prototype"].value == text
    assert other.figures["Prototype"][0].value == picture
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
    unnamed = [one for one in controls if not one.description and one is not browser.message]
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
    browser.find.click()
    for view in VIEWS:
        browser.view.value = view
        browser.png.click()
    browser.view.value = "What if"
    browser.off.value, browser.rigid.value, browser.connection.value = True, True, 4.0
    browser.json.click()
    browser.close()
    assert digests() == before
    run.verify()
