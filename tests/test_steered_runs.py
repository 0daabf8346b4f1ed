"""`dpp steer`: a new run without rejected prototypes, its history, and what is refused."""

import shutil
from dataclasses import asdict

import pytest
import torch
from test_runs import tiny

from dpp import runs
from dpp.runs import ensembles, pruned, run_files, steered
from dpp.sharing import packages
from dpp.system import files
from dpp.system.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT = {"epochs": 1, "warm_epochs": 1, "second_warm_epochs": 0, "project_after": (1,)}
WHY = "lies on the background"


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> runs.Run:
    """A run of six prototypes, two of each class."""
    root = tmp_path_factory.mktemp("runs")
    return runs.run(tiny(**SHORT, per_class=2), root=root, device="cpu", progress=False)


@pytest.fixture
def run(trained, tmp_path) -> runs.Run:
    return runs.open_run(shutil.copytree(trained.folder, tmp_path / "runs" / "old"))


def test_steered_network_is_a_run_beside_the_old_one(dpp, run):
    before = contents(run.folder)
    words = ("--forget", "1,2", "--reason", WHY, "--who", "Ada")
    code, out, err = dpp("steer", run.folder, *words)
    assert code == 0, err
    assert f"forgotten 1 of {run.source.class_names[0]}: {WHY}" in out
    assert "6 -> 4 (forgotten: 2)" in out and f"the run before: {run.folder}" in out
    assert contents(run.folder) == before

    new = runs.open_run(out.splitlines()[-1])
    new.verify()
    manifest = new.manifest
    assert new.folder.parent == run.folder.parent and manifest["kept"] == [0, 3, 4, 5]
    assert manifest["steered_from"]["run"] == "old" and manifest["steered_from"]["who"] == "Ada"
    assert [(one["prototype"], one["reason"]) for one in manifest["removed"]] == [
        (1, WHY),
        (2, WHY),
    ]
    assert manifest["before"]["test_accuracy"] == pytest.approx(
        ensembles.test_accuracy(run.load_model(), run.experiment)
    )
    assert manifest["results"]["test_accuracy"] == pytest.approx(
        ensembles.test_accuracy(new.load_model(), new.experiment)
    )
    assert asdict(new.experiment) == asdict(run.experiment)
    assert [origin["prototype"] for origin in new.origins] == [0, 1, 2, 3]
    assert [one["image"] for one in new.origins] == [run.origins[k]["image"] for k in (0, 3, 4, 5)]
    assert new.metrics.stage.tolist() == [*run.metrics.stage, "steer", "last layer"]
    assert new.metrics.converged.iloc[-1]
    assert steered.find_parent(new).folder == run.folder


@torch.no_grad()
def test_kept_prototypes_score_as_before(run):
    new, images = steered.steer(run, {0: WHY}), torch.randn(3, 3, 32, 32)
    before, after = run.load_model().inspect(images), new.load_model().inspect(images)
    torch.testing.assert_close(after.scores, before.scores[:, 1:])


def test_steered_run_is_steered_again_and_keeps_its_history(run):
    first = steered.steer(run, {1: "a twig"}, who="Ada")
    second = steered.steer(first, {1: "a cloud"}, who="Bo")  # which was 2 at first
    assert second.manifest["kept"] == [0, 3, 4, 5]
    one, two = second.manifest["steps"]
    assert (one["run"], one["who"], one["removed"][0]["reason"]) == ("old", "Ada", "a twig")
    assert (two["run"], two["who"]) == (first.folder.name, "Bo")
    assert one["after"]["test_accuracy"] == two["before"]["test_accuracy"]
    assert one["before"]["prototypes"] == 6 and two["after"]["prototypes"] == 4
    assert second.folder.name.count("steered") == 1
    assert steered.find_parent(second).folder == first.folder
    assert steered.find_parent(run) is None
    second.load_model()
    third = pruned.prune(second, keep_unused=True)
    assert set(third.manifest["kept"]) <= {0, 3, 4, 5}
    third.load_model()


def test_steered_run_is_explained_reported_and_packed(dpp, run, tmp_path):
    new = steered.steer(run, {5: WHY})
    picture = run.source.test[0].id
    code, _, err = dpp("explain", picture, "--run", new.folder, "--out", tmp_path / "out")
    assert code == 0, err
    code, _, err = dpp("report", new.folder, "--out", tmp_path / "card.html")
    assert code == 0, err
    package = packages.pack(new, tmp_path / "new.zip")
    with packages.opened(package) as (_, read):
        card = read(packages.CARD).decode()
    assert f"- 5 ({run.source.class_names[2]}): {WHY}" in card and "Steered from `old`" in card
    again = packages.unpack(package, tmp_path / "elsewhere")
    assert again.manifest["steps"] == new.manifest["steps"]


def test_same_steering_is_found_and_another_has_its_own_folder(run):
    first = steered.steer(run, {1: WHY})
    before = contents(first.folder)
    assert steered.steer(run, {1: f" {WHY}"}).folder == first.folder
    assert contents(first.folder) == before
    assert steered.steer(run, {1: "for another reason"}).folder != first.folder
    with pytest.raises(UserError, match="does not hold this steered run"):
        steered.steer(run, {2: WHY}, out=first.folder)


def test_committed_run_is_steered_into_the_runs(run, monkeypatch, tmp_path):
    monkeypatch.setattr(steered.paths, "RESULTS", run.folder.parent)
    monkeypatch.setenv("DPP_RUNS", str(tmp_path / "others"))
    assert steered.steer(run, {1: WHY}).folder.parent == tmp_path / "others"


def test_reasons_go_with_their_numbers_and_keep_names_the_rest(run):
    read = steered.read_request
    assert read(run, ["1,2", "4"], "", ["a", "b"]) == {1: "a", 2: "a", 4: "b"}
    assert read(run, ["1", "4"], "", ["a"]) == {1: "a", 4: "a"}
    assert read(run, [], "0, 2,4", ["a"]) == {1: "a", 3: "a", 5: "a"}


def test_fine_tuning_trains_projects_and_records_itself(dpp, run):
    words = ("--forget", "1", "--reason", WHY, "--fine-tune", "2", "--out", "new")
    code, out, err = dpp("steer", run.folder, *words)
    assert code == 0, err
    assert "6 -> 5 (forgotten: 1, then 2 epochs)" in out
    new = runs.open_run("new")
    new.verify()
    rows = new.metrics.tail(5)
    assert rows.stage.tolist() == ["steer", "train", "train", "project", "last layer"]
    assert rows.epoch.tolist() == [1, 2, 3, 3, 3] and rows.forgetting.notna().sum() == 2
    assert len(new.origins) == 5 == len(new.load_model().prototypes.classes)
    old, now = run.load_model(), new.load_model()
    assert not torch.equal(old.prototypes.vectors[0], now.prototypes.vectors[0])


def test_network_with_a_kept_trunk_is_trained_further(tmp_path):
    experiment = tiny(**SHORT, per_class=2, frozen_trunk="layer3", views=1)
    run = runs.run(experiment, root=tmp_path, device="cpu", progress=False)
    new = steered.steer(run, {1: WHY}, fine_tune=1)
    assert new.metrics.forgetting.notna().sum() == 1


def test_class_without_prototypes_begins_anew_when_fine_tuned(run):
    new = steered.steer(run, {2: WHY, 3: WHY, 4: WHY}, fine_tune=1)
    assert new.manifest["kept"] == [0, 1, 2, 3, 5]
    assert new.load_model().prototypes.classes.tolist() == [0, 0, 1, 1, 2]


@pytest.mark.parametrize(
    "words,message",
    [
        (("--forget", "6"), "has no prototype 6: its prototypes are 0 to 5"),
        (("--keep", "0,9"), "has no prototype 9: its prototypes are 0 to 5"),
        (("--forget", "1,x"), "expected numbers of prototypes with commas between, got 'x'"),
        (("--forget", "-1"), "expected numbers of prototypes"),
        (("--forget", "0,1"), "would be left: keep one, or fine-tune"),
        (("--keep", "0,1,2,3,4,5"), "no prototype is named"),
        ((), "say which prototypes to forget with --forget, or which to keep"),
        (("--forget", "1", "--keep", "2"), "say which prototypes"),
        (("--forget", "1", "--fine-tune", "-1"), "expected a number of epochs"),
        (("--forget", "1", "--reason", "more"), "got 2 for 1"),
        (("--forget", "1", "--out", "old"), "exists and does not hold this steered run"),
        (("--forget", "1", "--device", "abacus"), "no device 'abacus'"),
    ],
)
def test_bad_options_are_refused_in_one_line(dpp, run, monkeypatch, words, message):
    monkeypatch.chdir(run.folder.parent)
    code, out, err = dpp("steer", run.folder, "--reason", WHY, *words)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1
    assert [path.name for path in run.folder.parent.iterdir()] == ["old"]


def test_forgetting_without_a_reason_is_refused(dpp, run):
    code, _, err = dpp("steer", run.folder, "--forget", "1")
    assert code == 2 and "expected one --reason" in err
    code, _, err = dpp("steer", run.folder, "--forget", "1", "--reason", " ")
    assert code == 2 and "prototype 1 has no reason" in err


@pytest.mark.parametrize("model", ["prototree", "cnn"])
def test_networks_without_prototypes_of_a_class_are_refused(dpp, run, model):
    files.write_json(run.folder / "experiment.json", asdict(tiny(model=model)))
    manifest = run.manifest | {"experiment_sha256": files.sha256(run.folder / "experiment.json")}
    run_files.write_manifest(run.folder, manifest)
    code, _, err = dpp("steer", run.folder, "--forget", "1", "--reason", WHY)
    assert code == 2 and f"is a {model}, which cannot be steered" in err


def test_damaged_run_is_refused(dpp, run, tmp_path):
    code, _, err = dpp("steer", tmp_path, "--forget", "1", "--reason", WHY)
    assert code == 2 and "no finished run" in err
    with (run.folder / "weights.safetensors").open("ab") as file:
        file.write(b"more")
    code, _, err = dpp("steer", run.folder, "--forget", "1", "--reason", WHY)
    assert code == 2 and "weights.safetensors" in err


def test_twin_of_a_forgotten_prototype_is_named(run, monkeypatch):
    model = run.load_model()
    with torch.no_grad():
        model.prototypes.vectors[1] = model.prototypes.vectors[0]
    monkeypatch.setattr(runs.Run, "load_model", lambda self, *_: model)
    assert steered.find_twins(run, [{"prototype": 1}]) == [(1, 0)]
    assert steered.find_twins(run, [{"prototype": 0}, {"prototype": 1}]) == []
    assert not {0, 1} & {twin for _, twin in steered.find_twins(run, [{"prototype": 2}])}
