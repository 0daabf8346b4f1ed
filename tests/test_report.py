"""The report of a run: one page, whole, escaped; and the files that explain one picture."""

import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot
from test_runs import tiny
from tiny_data import write_folder

from dpp import analysis, runs
from dpp.analysis import Network
from dpp.explanations import Reasoning, TreePath
from dpp.report import run_report
from dpp.system.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")
ODD = "<b>bold & “odd”"  # a class's name
EMPTY = {"meta", "link", "img", "br"}
SHORT = {"epochs": 1, "warm_epochs": 1, "second_warm_epochs": 0}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> Path:
    folder = write_folder(tmp_path_factory.mktemp("photographs") / "zoo", classes=3, images=8)
    (folder / "kind_1").rename(folder / ODD)
    return folder


@pytest.fixture(scope="module", params=["deformable", "protopnet", "prototree", "cnn"])
def run(request, photographs, tmp_path_factory) -> runs.Run:
    after = {"project_after": () if request.param == "cnn" else (1,)}
    experiment = tiny(model=request.param, data=str(photographs), **SHORT, **after)
    root = tmp_path_factory.mktemp("runs")
    return runs.run(experiment, root=root, device="cpu", progress=False)


@pytest.fixture(scope="module")
def page(run, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("report") / "new" / "card.html"
    assert run_report.write_report(run, path, examples=1) == path
    return path.read_text(encoding="utf-8")


class Checker(HTMLParser):
    """Notes attributes, ids, text, and tags that are not closed in their order."""

    def __init__(self, page: str):
        super().__init__()
        self.open, self.wrong, self.attributes, self.text = [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.attributes += [(tag, *pair) for pair in attributes]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.attributes += [(tag, *pair) for pair in attributes]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, text):
        self.text.append(text)


def test_page_is_well_formed(page):
    checked = Checker(page)
    assert not checked.wrong and not checked.open
    assert page.startswith("<!DOCTYPE html>")


def test_checker_sees_a_tag_that_is_not_closed():
    assert Checker("<p><b>bold</p>").wrong


def test_page_needs_nothing_from_elsewhere(page):
    for tag, name, value in Checker(page).attributes:
        if name in ("href", "src", "srcset", "data", "poster", "action"):
            assert value.startswith(("data:image/", "#")), (tag, name, value[:80])
    assert not re.search(r"https?://|@import|url\(|<script", page)


def test_all_that_is_referred_to_is_there(page):
    attributes = Checker(page).attributes
    ids = [value for _, name, value in attributes if name == "id"]
    wanted = {value[1:] for _, name, value in attributes if name == "href" and value[0] == "#"}
    assert wanted <= set(ids) and len(ids) == len(set(ids))


def test_names_are_escaped(page):
    assert escape(ODD) in page or escape(ODD.replace("_", " ")) in page
    assert "<b>" not in page


def test_every_class_and_prototype_is_there(run, page):
    if run.experiment.model == "cnn":
        assert "Prototypes" not in page and "of" in page
        return
    section = page[page.index('<section id="prototypes">') : page.index('<section id="audit">')]
    text = " ".join(Checker(section).text)
    assert all(name.replace("_", " ") in text for name in run.source.class_names)
    numbers = re.findall(r"prototype (\d+)\b", text)
    assert sorted(map(int, numbers)) == sorted(origin["prototype"] for origin in run.origins)
    parts = sum(len(origin["parts"]) for origin in run.origins)
    assert section.count('class="part ') == parts


def test_accuracy_is_that_of_the_run(run, page):
    found = re.search(r"(\d+) of (\d+) are correct", page)
    right, of = map(int, found.groups())
    assert right / of == pytest.approx(run.manifest["results"]["test_accuracy"])


def test_confusions_have_what_an_image_is_in_rows():
    found = run_report.count_confusions(np.array([0, 0, 2]), np.array([0, 1, 1]), 3)
    assert found.tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 0]]


def test_points_of_a_decision_add_up(run, page):
    if run.experiment.model in ("cnn", "prototree"):
        pytest.skip("has no points")
    tables = re.findall(r"<strong>Why.*?</table>", page, re.DOTALL)
    assert tables
    for one in tables:
        numbers = re.findall(r'<td class="number">(?:<br>)?([−\d.]+)', one)
        *points, score = [float(number.replace("−", "-")) for number in numbers]
        assert sum(points) == pytest.approx(score)


def test_small_profile_is_named(page):
    assert "smoke profile" in page


def test_no_folder_of_this_machine_is_in_the_page(page, photographs):
    assert str(photographs.parent) not in page


def test_nothing_stays_open(page):
    assert not pyplot.get_fignums()


def test_same_run_gives_the_same_page(run, page, tmp_path):
    again = run_report.write_report(run, tmp_path / "again.html", examples=1)
    assert again.read_text(encoding="utf-8") == page


def test_explanation_of_each_network_is_drawn(run, photographs):
    if run.experiment.model == "cnn":
        with pytest.raises(UserError, match="no prototypes"):
            Network.of(run)
        return
    network = Network.of(run)
    picture = network.picture(photographs / "kind_0" / "3.png")
    explanation = analysis.explain(network, picture)
    kind = TreePath if run.experiment.model == "prototree" else Reasoning
    assert isinstance(explanation, kind)
    assert run_report.draw(network, explanation, picture.pixels).axes
