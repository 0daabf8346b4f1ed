"""What can be chosen in the prototype browser: thumbnails, mistakes, prototypes to forget."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_analysis import ask_projected, make_data

from dpp import runs
from dpp.analysis import trust
from dpp.browser import Browser, listings, show, steering, thumbnails
from dpp.browser.controls import EVERY
from dpp.browser.session import Session
from dpp.browser.steering import FORGET, KEEP, Mark, Marks
from dpp.browser.workbench import Subject, predict
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def subject(data):
    return Subject(ask_projected(data), data.splits.projection, data.splits.test)


@pytest.fixture
def browser(subject, tmp_path):
    made = Browser(Session({"tiny": subject}), tmp_path / "exports")
    yield made
    made.close()


def make_equal(subject: Subject, one: int, other: int) -> None:
    """Makes a prototype equal to an earlier one of its class."""
    with torch.no_grad():
        vectors = subject.network.model.prototypes.vectors
        vectors[other] = vectors[one]
    subject.network.origins[other] = subject.network.origins[one]


# Thumbnails


def test_every_thumbnail_that_is_listed_can_be_made(browser):
    browser.view.value = "Prototype"
    browser.find.click()
    listed = (browser.label, browser.image, browser.gallery, browser.nearest)
    assert [len(one.items) for one in listed] == [3, 2, 2, 6]
    browser.view.value = "Image"
    keys = [item["picture"] for one in listed for item in one.items]
    keys += [row["picture"] for row in browser.sheet.data["rows"]]
    keys += [browser.class_pick.data["picture"], browser.image_pick.data["picture"]]
    for key in keys:
        with Image.open(io.BytesIO(browser._thumbnails.get(key))) as image:
            assert image.size == (thumbnails.SIDE, thumbnails.SIDE)


def test_the_page_gets_the_thumbnails_that_it_asks_for(browser, monkeypatch):
    sent = []
    monkeypatch.setattr(
        browser.label, "send", lambda content, buffers: sent.append((content, buffers))
    )
    wanted = [item["picture"] for item in browser.label.items[:2]]
    browser._send_thumbnails(browser.label, {"kind": "want", "pictures": wanted}, [])
    assert [content["picture"] for content, _ in sent] == wanted
    assert all(buffers[0][:4] == b"\x89PNG" for _, buffers in sent)


@pytest.mark.parametrize(
    "key",
    [["class", "tiny", 99], ["image", "tiny", "none"], ["class", "no run", 0], ["x", "tiny", 0]],
)
def test_unknown_thumbnail_is_empty(browser, key):
    assert browser._thumbnails.get(key) == b""


def test_thumbnail_of_a_prototype_shows_its_parts(subject):
    session = Session({"tiny": subject})
    seen, picture = session.source(prototype=0)
    drawn = np.asarray(thumbnails.draw_prototype(seen, picture)).reshape(-1, 3)
    assert (drawn == (0xE6, 0x9F, 0x00)).all(axis=1).any(), "the first part's orange"


# Mistakes


def test_predictions_are_those_of_the_whole_data_set(subject):
    expected = trust.decisions(subject.network, subject.test).predicted
    steps = []
    found = predict(subject.network, subject.test, range(6), lambda *step: steps.append(step))
    assert found == expected.to_dict()
    assert steps == [(6, 6)]


def test_only_mistakes_are_listed_on_request(browser):
    expected = trust.decisions(browser.session.subject.network, browser.session.subject.test)
    browser.image_class.value = EVERY
    assert len(browser.image.items) == 6
    browser.mistakes.value = True
    wrong = [item["key"] for item in browser.image.items]
    assert wrong == expected.index[~expected.correct].tolist()
    assert 0 < len(wrong) < 6
    names = browser.session.subject.names
    for item in browser.image.items:
        name = names[expected.predicted[item["key"]]].partition(".")[2].replace("_", " ")
        assert item["note"] == f"predicted {name}" and "incorrect" in item["words"]
    browser.image.value = wrong[-1]
    assert "incorrect" in browser.texts["Image"].value
    browser.mistakes.value = False
    assert len(browser.image.items) == 6


def test_each_image_is_classified_once(browser, monkeypatch):
    asked = []
    ask = browser.session.subject.network.model.backbone.backbone.forward
    backbone = browser.session.subject.network.model.backbone.backbone
    monkeypatch.setattr(
        backbone, "forward", lambda images: asked.append(len(images)) or ask(images)
    )
    browser.mistakes.value = True  # of the first class
    assert sum(asked) == 2
    browser.image_class.value = EVERY
    assert sum(asked) == 6
    browser.mistakes.value = False
    browser.mistakes.value = True
    assert sum(asked) == 6


def test_class_without_mistakes_says_so(browser):
    test = browser.session.subject.test
    browser.session._predicted["tiny"] = {one.id: one.label for one in test.records}
    browser.mistakes.value = True
    assert browser.image.items == [] and browser.image.none == "no image is classified incorrectly"


# The gallery


def test_equal_prototypes_are_one_item(subject, tmp_path):
    make_equal(subject, 2, 3)
    session = Session({"tiny": subject})
    assert subject.duplicates_of(1) == [[2, 3]] and subject.duplicates_of(0) == [[0], [1]]
    (item,) = listings.gallery(session, subject.duplicates_of(1))
    assert item["title"] == "2, 3" and item["badge"] == "2 equal" and item["key"] == 2


def test_gallery_chooses_the_prototype(browser):
    browser.view.value = "Prototype"
    browser.label.value = 1
    assert [item["key"] for item in browser.gallery.items] == [2, 3]
    browser.gallery.value = 3
    assert browser.session.prototype == 3
    assert "<b>Prototype 3 of" in browser.texts["Prototype"].value
    assert browser.card.scene["alone"] and browser.card.here_picture


def test_nearest_image_is_opened_with_the_prototype(browser):
    browser.view.value = "Prototype"
    browser.label.value = 2
    browser.find.click()
    key = browser.nearest.items[-1]["key"]
    browser.nearest.value = key
    assert browser.view.value == "Image" and browser.session.image.id == key
    assert browser.session.label == browser.screen.sheet.label == 2


# Keep and forget


def test_marks_are_set_and_undone():
    marks = Marks()
    with pytest.raises(UserError, match="give a reason"):
        marks.set([1], FORGET, "  ")
    assert not marks.undoable
    marks.set([1, 4], FORGET, " background ")
    marks.set([1], KEEP)
    assert marks.by_prototype == {1: Mark(KEEP, ""), 4: Mark(FORGET, "background")}
    assert marks.forgotten == {4: "background"}
    marks.undo()
    assert marks.forgotten == {1: "background", 4: "background"}
    marks.undo()
    assert marks.by_prototype == {} and not marks.undoable
    marks.undo()


def test_marking_shows_in_gallery_and_list_and_equal_prototypes_go_together(subject, tmp_path):
    make_equal(subject, 2, 3)
    browser = show({"tiny": subject}, tmp_path)
    browser.view.value = "Prototype"
    browser.label.value = 1
    browser.forget.click()
    assert "give a reason" in browser.message.value and not browser.session.run_marks.forgotten
    browser.reason.value = "<b>grass</b>"
    browser.forget.click()
    assert browser.session.run_marks.forgotten == {2: "<b>grass</b>", 3: "<b>grass</b>"}
    assert browser.gallery.items[0]["mark"] == FORGET and browser.reason.value == ""
    browser.view.value = "Keep or forget"
    text = browser.texts["Keep or forget"].value
    assert "&lt;b&gt;grass" in text and "<b>grass" not in text
    assert browser.refit.description == "Refit without 2 of them"
    browser.unmark.click()
    assert browser.session.run_marks.by_prototype == {} and browser.unmark.disabled
    browser.close()


def test_refit_is_refused_without_marks_and_without_a_run(browser):
    browser.view.value = "Keep or forget"
    browser.refit.click()
    assert "not stored as a run" in browser.message.value
    run = runs.Run(make_experiment("smoke"), folder=None)
    with pytest.raises(UserError, match="no prototype is marked"):
        steering.refit(run, Marks())


def test_refit_makes_and_shows_a_run_without_the_forgotten(tmp_path, monkeypatch):
    for name in ("DATA", "RUNS"):
        monkeypatch.setenv(f"DPP_{name}", str(tmp_path / name))
    run = runs.run(make_experiment("smoke", kernel_size=2, per_class=2, epochs=2), progress=False)
    browser = show({"run": run}, tmp_path / "exports")
    browser.view.value = "Prototype"
    browser.label.value = 1
    forgotten = browser.session.prototype
    many = len(browser.session.subject.network.labels)
    browser.reason.value = "it lies on the background"
    browser.forget.click()
    count = len(browser.session.run_marks.forgotten)
    browser.view.value = "Keep or forget"
    if count == 2:  # both prototypes of the class are equal
        browser.session.run_marks.set([forgotten + 1], KEEP)
        count = 1
    browser.who.value = "a bird watcher"
    browser.refit.click()
    done = browser.session.refits[browser.session.run]
    assert browser.run.value == done.run == f"run, {count} forgotten" and done.before == "run"
    assert len(browser.session.subject.network.labels) == many - count
    new = browser.session.runs[done.run]
    assert new.manifest["steered_from"]["who"] == "a bird watcher"
    accuracies = tuple(one.manifest["results"]["test_accuracy"] for one in (run, new))
    assert done.accuracies == accuracies
    expected = f"{accuracies[0]:.1%} → {accuracies[1]:.1%}"
    assert expected in browser.texts["Keep or forget"].value
    browser.run.value = "run"  # the old one is as it was, and so are its marks
    assert len(browser.session.subject.network.labels) == many
    assert forgotten in browser.session.run_marks.forgotten
    run.verify()
    browser.close()
