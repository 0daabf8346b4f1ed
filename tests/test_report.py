"""The report of a run: one page, whole, escaped; and the files that explain one picture."""

import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib import pyplot
from test_runs import tiny
from tiny_data import write_folder

from dpp import analysis, runs
from dpp.analysis import Network
from dpp.analysis import audit as audits
from dpp.analysis.collapse import group_places
from dpp.explanations import Match, Reasoning, Share, TreePath
from dpp.figures.marked_pictures import Marked
from dpp.report import audit_text, chosen_images, html_page, run_report
from dpp.report.decision_cards import choose_examples, group_matches
from dpp.report.prototype_cards import measure_contributions
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
    by_class: dict = {}
    for origin in analysis.read_origins(run.origins).values():
        by_class.setdefault(Network.of(run).labels[origin.prototype], []).append(origin)
    places = [group for own in by_class.values() for group in group_places(own)]
    assert section.count('class="card"') == len(places)
    enlarged = [len(run.origins[0]["parts"])] * len(places)
    assert section.count('class="edge ') == sum(enlarged)


def test_headline_tells_of_duplicates(run, page):
    headline = re.search(r"<h1>(.*)</h1>", page)[1]
    accuracy = run.manifest["results"]["test_accuracy"]
    count = run.manifest["images"]["test"]
    assert headline.startswith(f"{round(accuracy * count)} of {count} test images correct")
    if run.experiment.model == "cnn":
        assert "prototypes" not in headline
        return
    shared = audits.audit(run).shared_places
    said = f"{shared.count} of {shared.of} prototypes" if shared.count else "a place of its own"
    assert said in headline


@pytest.mark.parametrize(
    "shared,words",
    [
        (0, "9 of 10 test images correct (90.0%), and each of the 6 prototypes has a place of its"),
        (1, "9 of 10 test images correct (90.0%), but 1 of 6 prototypes is a duplicate"),
        (4, "9 of 10 test images correct (90.0%), but 4 of 6 prototypes are duplicates"),
    ],
)
def test_headline_counts(shared, words):
    places = tuple((number,) for number in range(6 - shared))
    checked = SimpleNamespace(collapse=(places,), shared_places=Share(shared, 6))
    assert audit_text.headline(9, 10, checked).startswith(words)
    assert audit_text.headline(0, 0, None) == "0 of 0 test images correct (0.0%)"


def test_contributions_are_means_over_the_class_s_images():
    scores = np.array([[1.0, 2.0, 9.0], [3.0, 4.0, 9.0], [9.0, 9.0, 5.0]])
    found = measure_contributions(
        scores, np.array([0, 0, 1]), np.array([0, 0, 2]), np.array([2.0, -4.0, 1.0])
    )
    assert found.points[:2].tolist() == [4.0, -12.0] and np.isnan(found.points[2])
    assert found.shares[:2].tolist() == [0.25, 0.75]


def test_matches_of_one_place_are_added():
    matches = [Match(number, 0, (0, 0), 0.5, 1.0, points, ()) for number, points in
               ((3, 2.0), (1, 1.5), (0, 1.0), (2, -3.0))]  # fmt: skip
    found = group_matches(matches, [[0, 3], [1], [2]])
    assert [[match.prototype for match in group] for group in found] == [[3, 0], [2], [1]]


def test_examples_are_the_surest_mistakes_and_spread_successes():
    logits = np.array([[3.0, 0], [1, 0], [0, 5], [0, 2], [4, 0]])
    found = choose_examples(logits, np.array([1, 1, 1, 1, 0]), 2)
    assert found == {"incorrect": [0, 1], "correct": [2, 4]}
    assert choose_examples(logits, np.array([0, 0, 1, 1, 0]), 1) == {
        "incorrect": [],
        "correct": [0],
    }


@pytest.mark.parametrize(
    "boxes,expected",
    [
        (((40, 40, 50, 50), (50, 50, 60, 60)), (35, 35, 30, 30)),  # half a part on each side
        (((0, 0, 10, 10), (10, 10, 20, 20)), (0, 0, 30, 30)),  # moved onto the picture
        (((45, 45, 55, 55),), (40, 40, 20, 20)),  # a single part: twice as large
    ],
)
def test_enlarged_is_a_square_around_the_parts(boxes, expected):
    found = html_page.zoom_of(Marked(np.zeros((100, 120, 3), np.uint8), boxes))
    assert tuple(found.bounds) == pytest.approx(expected)


def test_enlarged_part_of_a_large_picture_is_embedded_on_its_own():
    pictures, pixels = html_page.Pictures(), np.zeros((600, 800, 3), np.uint8)
    marked = Marked(pixels, ((100.0, 100.0, 150.0, 150.0), (150.0, 150.0, 200.0, 200.0)))
    found = pictures.look("a", marked, "a bird")
    assert (found.whole.picture, found.zoom.picture) == (0, 1)
    _, cut = pictures.embedded.values()
    assert (cut.left, cut.top, cut.width, cut.height) == (75, 75, 150, 150)
    assert pictures.look("a", marked, "again").zoom.picture == 1
    small = Marked(np.zeros((60, 80, 3), np.uint8), ((10.0, 10.0, 20.0, 20.0),))
    assert pictures.look("b", small, "small").zoom.picture == 2  # of the picture itself


def test_some_classes_and_images_are_named_as_such(run, tmp_path):
    name, path = run.source.class_names[2], tmp_path / "some.html"
    if run.experiment.model == "cnn":
        with pytest.raises(UserError, match="leave out --class"):
            run_report.write_report(run, path, classes=[name])
        return
    run_report.write_report(run, path, classes=[name], images=1, examples=1)
    page = path.read_text(encoding="utf-8")
    assert "of 1 test images (1 of 3 classes, at most 1 of a class) correct" in page
    assert "1 of 3 classes were chosen" in page
    checked = Checker(page)
    assert not checked.wrong and not checked.open
    section = page[page.index('<section id="prototypes">') : page.index('<section id="audit">')]
    assert section.count("<h3>") == 1 and f"<h3>{name.replace('_', ' ')}</h3>" in section


def test_accuracy_is_that_of_the_run(run, page):
    found = re.search(r"(\d+) of (\d+) are correct", page)
    right, of = map(int, found.groups())
    assert right / of == pytest.approx(run.manifest["results"]["test_accuracy"])


def test_confusions_have_what_an_image_is_in_rows():
    found = chosen_images.count_confusions(np.array([0, 0, 2]), np.array([0, 1, 1]), 3)
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


def test_same_run_gives_the_same_page_and_no_figure_stays_open(run, page, tmp_path):
    before = pyplot.get_fignums()
    again = run_report.write_report(run, tmp_path / "again.html", examples=1)
    assert again.read_text(encoding="utf-8") == page
    assert pyplot.get_fignums() == before


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
