"""`dpp explain` and `report`: what they print and write, and how they refuse."""

import re
import shutil

import pytest
from PIL import Image
from test_runs import tiny

from dpp import explanations, runs
from dpp.analysis import Network, explain
from dpp.commands import finished
from dpp.explanations import Reasoning, TreePath
from dpp.figures.marked_pictures import shorten_name

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT = {"epochs": 1, "warm_epochs": 1, "second_warm_epochs": 0, "project_after": (1,)}


def test_image_of_the_data_set_is_explained_by_its_id(dpp, trained, tmp_path):
    record = trained.source.test[0]
    code, out, err = dpp("explain", record.id, "--run", trained.folder, "--out", tmp_path / "out")
    assert code == 0, err
    explanation = explanations.read(tmp_path / "out" / f"{record.id}.reasoning.json")
    assert isinstance(explanation, Reasoning) and explanation.label == record.label
    with Image.open(tmp_path / "out" / f"{record.id}.reasoning.png") as figure:
        assert figure.width > 1000
    assert out.splitlines()[-1] == str(tmp_path / "out" / f"{record.id}.reasoning.json")


def test_points_that_are_printed_add_up(dpp, trained):
    code, out, _ = dpp("explain", trained.source.test[0].id, "--run", trained.folder)
    assert code == 0
    numbers = re.compile(r"= +([−\d.]+)$|^prototypes of other classes +([−\d.]+)$", re.MULTILINE)
    sheets = out.split("probability")[1:]
    assert len(sheets) == 2
    for sheet in sheets:
        points = [float("".join(found).replace("−", "-")) for found in numbers.findall(sheet)]
        score = float(re.search(r"^score +([−\d.]+)$", sheet, re.MULTILINE)[1].replace("−", "-"))
        assert len(points) == 3 and sum(points) == pytest.approx(score, abs=0.02)


def test_own_picture_is_explained_for_chosen_classes(dpp, trained, tmp_path):
    Image.new("RGB", (90, 50), "olive").save(tmp_path / "bird.png")
    names = trained.source.class_names
    chosen = ("--class", names[2], "--class", names[0], "--class", names[1])
    code, _, err = dpp("explain", "bird.png", "--run", trained.folder, *chosen)
    assert code == 0, err
    explanation = explanations.read(tmp_path / "bird.reasoning.json")
    assert [one.label for one in explanation.classes] == [2, 0, 1]
    assert explanation.label is None and explanation.size == (90, 50)
    with Image.open(tmp_path / "bird.png") as picture:
        assert picture.size == (90, 50)  # not written over


def test_path_through_a_tree_is_told(dpp, tmp_path):
    experiment = tiny(model="prototree", **SHORT)
    run = runs.run(experiment, root=tmp_path / "runs", device="cpu", progress=False)
    record = run.source.test[0]
    code, out, err = dpp("explain", record.id, "--run", run.folder)
    assert code == 0, err
    path = explanations.read(tmp_path / f"{record.id}.reasoning.json")
    assert isinstance(path, TreePath) and f"leaf {path.leaf}, path probability" in out
    assert dpp("explain", record.id, "--run", run.folder, "--class", "x")[0] == 2


def test_largest_points_of_other_classes_are_itemised(dpp, trained):
    record = trained.source.test[0]
    code, out, _ = dpp("explain", record.id, "--run", trained.folder)
    assert code == 0
    network = Network.of(trained)
    names = network.source.class_names
    for one in explain(network, network.picture(record)).classes[:2]:
        amounts = [abs(match.points) for match in one.largest_others]
        assert amounts == sorted(amounts, reverse=True) and len(amounts) == 4
        assert sum(match.points for match in one.largest_others) == pytest.approx(one.others)
        for match in one.largest_others:
            assert match.label != one.label
            assert f"prototype {match.prototype} of {shorten_name(names[match.label])} (" in out


def test_audit_counts_places_and_writes_json(dpp, trained, tmp_path):
    code, out, err = dpp("audit", trained.folder, "--out", "deep/audit.json")
    assert code == 0, err
    checked = explanations.read(tmp_path / "deep" / "audit.json")
    shared = checked.shared_places
    assert f"duplicates (same image, less than a part apart)  {shared.value:.1%} (" in out
    assert out.splitlines()[-1] == "deep/audit.json"
    for one in checked.collapse:
        name = shorten_name(trained.source.class_names[one.label], 60)
        assert re.search(rf"^{name} +2 +{len(one.places)} +{one.images} ", out, re.MULTILINE)


def test_report_is_one_page(dpp, trained, tmp_path):
    code, out, err = dpp("report", trained.folder, "--out", "deep/card.html")
    assert code == 0, err
    assert out.strip() == "deep/card.html"
    assert (tmp_path / "deep" / "card.html").read_text().startswith("<!DOCTYPE html>")


def test_example_network_is_taken_by_default(dpp, trained, monkeypatch):
    monkeypatch.setattr(finished, "example_experiment", lambda: trained.experiment)
    monkeypatch.setenv("DPP_RUNS", str(trained.folder.parent))
    code, out, err = dpp("explain", trained.source.test[0].id)
    assert code == 0, err
    assert "example network" not in out  # it is one of its own images


@pytest.mark.parametrize("chosen", [True, False])
def test_example_network_says_what_it_knows(dpp, trained, chosen, monkeypatch, tmp_path):
    monkeypatch.setattr(finished, "example_experiment", lambda: trained.experiment)
    monkeypatch.setenv("DPP_RUNS", str(trained.folder.parent))
    Image.new("RGB", (60, 50), "olive").save(tmp_path / "bird.jpg")
    code, out, err = dpp("explain", "bird.jpg", *(["--run", trained.folder] if chosen else []))
    assert code == 0, err
    assert ("the example network, which knows drawn birds only" in out) == (not chosen)


def refused(answer: tuple[int, str, str]) -> str:
    """The one line with which a command was refused."""
    code, out, err = answer
    assert code == 2 and out == ""
    assert err.startswith("dpp: ") and err.count("\n") == 1, err
    return err


def test_missing_image_is_refused(dpp, trained):
    said = refused(dpp("explain", "no/bird.jpg", "--run", trained.folder))
    assert "there is no image no/bird.jpg: neither a file nor the id of an image of" in said


def test_file_that_is_no_image_is_refused(dpp, trained, tmp_path):
    (tmp_path / "bird.jpg").write_text("a bird")
    said = refused(dpp("explain", "bird.jpg", "--run", trained.folder))
    assert "bird.jpg cannot be decoded" in said


def test_unknown_class_is_refused_with_the_nearest(dpp, trained):
    name = trained.source.class_names[1]
    image = trained.source.test[0].id
    said = refused(dpp("explain", image, "--run", trained.folder, "--class", name + "x"))
    assert f"has no class {name + 'x'!r}" in said and name in said.split("did you mean")[1]


@pytest.mark.parametrize("command", [["explain", "1", "--run"], ["report"], ["audit"]])
def test_folder_that_is_no_run_is_refused(dpp, command, trained, tmp_path):
    assert "there is no finished run in nowhere" in refused(dpp(*command, "nowhere"))
    shutil.copytree(trained.folder, tmp_path / "half")
    (tmp_path / "half" / "experiment.json").unlink()
    assert "experiment.json is missing" in refused(dpp(*command, "half"))


def test_folder_that_cannot_be_written_to_is_refused(dpp, trained, tmp_path):
    (tmp_path / "file").touch()
    image = trained.source.test[0].id
    said = refused(dpp("explain", image, "--run", trained.folder, "--out", "file"))
    assert "cannot be written" in said
    said = refused(dpp("report", trained.folder, "--out", "file/card.html"))
    assert "file/card.html cannot be written" in said
    said = refused(dpp("report", trained.folder, "--out", "."))
    assert "it is a folder" in said
    assert "could not be written" in refused(
        dpp("audit", trained.folder, "--out", "file/audit.json")
    )


@pytest.mark.parametrize(
    "words,complaint",
    [
        (("--images", 0), "--images 0: a class needs at least 1 image"),
        (("--examples", -1), "--examples -1: expected 0 or more"),
        (("--class", "no such bird"), "has no class 'no such bird': did you mean"),
        (("--device", "tpu"), "there is no device 'tpu'"),
    ],
)
def test_report_of_nothing_is_refused(dpp, trained, words, complaint, tmp_path):
    assert complaint in refused(dpp("report", trained.folder, "--out", "card.html", *words))
    assert not (tmp_path / "card.html").exists()


def test_network_without_prototypes_cannot_be_audited(dpp, tmp_path):
    experiment = tiny(model="cnn", **SHORT | {"project_after": ()})
    run = runs.run(experiment, root=tmp_path / "runs", device="cpu", progress=False)
    assert "has no prototypes" in refused(dpp("audit", run.folder))


def test_true_class_comes_second_if_the_network_is_wrong(trained):
    network = Network.of(trained)
    found = [explain(network, network.picture(record)) for record in trained.source.test]
    wrong = [one for one in found if one.predicted != one.label]
    assert wrong and all(one.classes[0].label == one.predicted for one in found)
    assert all(one.classes[1].label == one.label for one in wrong)
    assert all(len(one.classes) == 3 for one in found)
