"""Inputs far from the training images: the threshold of a run, and where the warning is shown."""

import json
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from test_runs import tiny
from tiny_analysis import ask_projected, make_data
from tiny_data import write_folder

from dpp import __main__ as command_line
from dpp import analysis, explanations, runs
from dpp.analysis import Network
from dpp.browser import screens
from dpp.browser.session import Session
from dpp.browser.workbench import Subject
from dpp.data.batches import Batch
from dpp.figures.marked_pictures import warning_lines
from dpp.report import run_report
from dpp.runs import familiarity
from dpp.runs.familiarity import Familiarity
from dpp.system import files

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT = {"epochs": 1, "warm_epochs": 1, "second_warm_epochs": 0}
STRICT = Familiarity(threshold=1e6, median=2e6, images=300)  # nothing is as similar


@pytest.fixture(scope="module", params=["deformable", "protopnet", "tesnet", "prototree"])
def run(request, tmp_path_factory) -> runs.Run:
    folder = write_folder(tmp_path_factory.mktemp("photographs") / "zoo", classes=3, images=8)
    experiment = tiny(model=request.param, data=str(folder), project_after=(1,), **SHORT)
    root = tmp_path_factory.mktemp("runs")
    return runs.run(experiment, root=root, device="cpu", progress=False)


@pytest.fixture(scope="module")
def strict(run, tmp_path_factory) -> runs.Run:
    """A copy of the run whose threshold no image reaches."""
    folder = shutil.copytree(run.folder, tmp_path_factory.mktemp("strict") / "run")
    kept = json.loads((folder / familiarity.FILE).read_text()) | {"threshold": 1e6}
    kept["sha256"] = files.sha256_of_json({k: v for k, v in kept.items() if k != "sha256"})
    (folder / familiarity.FILE).write_text(json.dumps(kept))
    return runs.open_run(folder)


def test_threshold_is_what_99_percent_of_the_test_images_have(run):
    known = familiarity.find(run)
    network, records = Network.of(run), run.source.test
    numbers = network.prototypes
    with torch.no_grad():
        seen = [network.inspect(network.picture(r).tensor[None]).scores for r in records]
    highest = [float(scores[0, numbers].max()) for scores in seen]
    assert known.images == len(records)
    assert known.threshold == pytest.approx(min(highest), abs=1e-4)  # of fewer than 100
    assert known.median == pytest.approx(np.median(highest), abs=1e-4)


def test_threshold_leaves_out_the_lowest_of_many():
    """Of a network whose two prototypes see the first two channels of a pixel."""

    class Pixel(torch.nn.Linear):
        def inspect(self, images):
            return SimpleNamespace(scores=images[:, :2, 0, 0])

    images = torch.arange(300.0).view(-1, 1, 1, 1).expand(-1, 3, 1, 1)
    batch = Batch(images, torch.zeros(300), torch.arange(300))
    known = familiarity.measure(Pixel(1, 1), [batch])
    assert known == Familiarity(threshold=2.0, median=149.5, images=300)
    assert known.describe().startswith("99% of the 300 test images have 2 or more")
    assert not known.warning(2.0) and "prototype 1.9; 99%" in known.warning(1.9)


def test_test_images_are_familiar(run):
    network = Network.of(run)
    found = [analysis.explain(network, network.picture(record)) for record in run.source.test]
    assert {one.warning for one in found} == {""}


def test_warning_is_printed_drawn_and_saved(strict, tmp_path, monkeypatch, capsys):
    image = strict.source.test[0].id
    words = ["dpp", "explain", image, "--run", strict.folder, "--out", tmp_path]
    monkeypatch.setattr(sys, "argv", list(map(str, words)))
    assert command_line.main() == 0
    assert "warning: far from the training images: highest" in capsys.readouterr().out
    (path,) = tmp_path.glob("*.json")
    explanation = explanations.read(path)
    assert explanation.warning.startswith("far from the training images")
    figure = run_report.draw(Network.of(strict), explanation, np.zeros((30, 40, 3), np.uint8))
    drawn = [text.get_text() for text in figure.findobj(lambda one: hasattr(one, "get_text"))]
    assert "\n".join(warning_lines(explanation)) in drawn


def test_older_explanation_without_a_warning_is_read(run, tmp_path):
    network = Network.of(run)
    explanation = analysis.explain(network, network.picture(run.source.test[0]))
    explanations.write(tmp_path / "one.json", explanation)
    content = json.loads((tmp_path / "one.json").read_text())
    del content["warning"]
    (tmp_path / "one.json").write_text(json.dumps(content))
    assert explanations.read(tmp_path / "one.json") == explanation


def test_report_says_what_is_familiar_and_marks_what_is_not(run, strict, tmp_path):
    text = run_report.write_report(run, tmp_path / "card.html", examples=1).read_text()
    assert "Highest similarity to a prototype: all of the 6 test images have" in text
    assert "Warning: far from" not in text
    text = run_report.write_report(strict, tmp_path / "strict.html", examples=1).read_text()
    assert "Warning: far from the training images" in text


def test_older_run_is_measured_on_demand_and_once(run, tmp_path, monkeypatch):
    folder = shutil.copytree(run.folder, tmp_path / "older")
    (folder / familiarity.FILE).unlink()
    older = runs.open_run(folder)
    assert familiarity.find(older) is None
    known = familiarity.ensure(older)
    assert known.threshold == pytest.approx(familiarity.find(run).threshold, abs=1e-4)
    monkeypatch.setattr(familiarity, "measure", None)
    assert familiarity.ensure(older) == known


def test_file_of_other_weights_is_not_used(run, tmp_path):
    folder = shutil.copytree(run.folder, tmp_path / "other")
    kept = json.loads((folder / familiarity.FILE).read_text())
    for content in (kept | {"weights_sha256": "0"}, [], {"threshold": 1}):
        (folder / familiarity.FILE).write_text(json.dumps(content))
        assert familiarity.find(runs.open_run(folder)) is None


def test_browser_warns_of_an_upload(tmp_path):
    data = make_data(tmp_path / "cub")
    network = ask_projected(data)
    unsure = replace(network, familiarity=STRICT)
    subjects = [Subject(one, data.splits.projection, data.splits.test) for one in (network, unsure)]
    session = Session({"sure": subjects[0], "unsure": subjects[1]})
    assert "Warning" not in screens.show(session, "Image").text
    session.choose_run("unsure")
    Image.new("RGB", (20, 20), "olive").save(tmp_path / "upload.png")
    session.upload("upload.png", (tmp_path / "upload.png").read_bytes())
    screen = screens.show(session, "Image")
    assert '<div class="dpp-warning">Warning: far from the training images' in screen.text
    assert screen.data["warning"].startswith("far from the training images")
    assert screens.show(session, "Compare runs").text.count("dpp-warning") == 1


def test_damaged_file_is_not_used(run, tmp_path):
    folder = shutil.copytree(run.folder, tmp_path / "damaged")
    kept = json.loads((folder / familiarity.FILE).read_text())
    (folder / familiarity.FILE).write_text(json.dumps(kept | {"threshold": 0.0}))
    assert familiarity.find(runs.open_run(folder)) is None
