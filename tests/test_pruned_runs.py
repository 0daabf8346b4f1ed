"""`dpp prune`: a new run with fewer prototypes, its records, and what is refused."""

import shutil
from dataclasses import asdict

import pytest
import torch
from test_runs import tiny

from dpp import runs
from dpp.analysis import Network
from dpp.runs import checkpoints, ensembles, pruned, run_files
from dpp.system import files

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT = {"epochs": 1, "warm_epochs": 1, "second_warm_epochs": 0, "project_after": (1,)}


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> runs.Run:
    """A run whose prototypes 4 and 5, of the third class, are equal."""
    root = tmp_path_factory.mktemp("runs")
    run = runs.run(tiny(**SHORT, per_class=2), root=root, device="cpu", progress=False)
    model = run.load_model()
    torch.manual_seed(0)
    with torch.no_grad():
        model.prototypes.vectors.uniform_()  # projection may have made others equal too
        model.prototypes.vectors[5] = model.prototypes.vectors[4]
    digest = checkpoints.write_tensors(run.folder / "weights.safetensors", model.state_dict())
    manifest = run.manifest | {"weights_sha256": digest}
    run_files.write_manifest(run.folder, manifest)
    return run


@pytest.fixture
def run(trained, tmp_path) -> runs.Run:
    return runs.open_run(shutil.copytree(trained.folder, tmp_path / "runs" / "old"))


def test_merged_network_is_a_run_beside_the_old_one(dpp, run):
    before = contents(run.folder)
    code, out, err = dpp("prune", run.folder, "--keep-unused")
    assert code == 0, err
    assert "6 -> 5 (duplicates merged: 1, unused removed: 0)" in out
    assert contents(run.folder) == before
    new = runs.open_run(run.folder.with_name("old-pruned"))
    new.verify()
    manifest = new.manifest
    assert manifest["kept"] == [0, 1, 2, 3, 4]
    assert manifest["removed"] == [{"prototype": 5, "reason": "duplicate of 4"}]
    assert manifest["pruned_from"]["run"] == "old" and manifest["run"] == "old-pruned"
    assert manifest["before"]["test_accuracy"] == pytest.approx(
        ensembles.test_accuracy(run.load_model(), run.experiment)
    )
    assert asdict(new.experiment) == asdict(run.experiment)
    assert [origin["prototype"] for origin in new.origins] == [0, 1, 2, 3, 4]
    assert new.metrics.stage.tolist() == [*run.metrics.stage, "prune", "last layer"]
    assert len(new.load_model().prototypes.classes) == 5
    assert new.metrics.converged.iloc[-1]


@torch.no_grad()
def test_merging_alone_changes_no_logit(run):
    model, images = run.load_model(), torch.randn(3, 3, 32, 32)
    before, scores = model(images), torch.rand(4, 6)
    pruned.remove(model, scores, torch.tensor([0, 1, 2, 2]), pruned.TOLERANCE, keep_unused=True)
    assert len(model.prototypes.classes) == 5
    torch.testing.assert_close(model(images), before)


def test_unused_prototypes_are_removed_with_a_reason(run):
    model, labels = run.load_model(), torch.arange(3).repeat_interleave(4)
    own = (labels[:, None] == model.prototypes.classes).float()
    own[:, 1] = (labels == 2).float()  # of class 0, but near images of class 2
    selection = pruned.remove(model, own, labels, pruned.TOLERANCE, keep_unused=False)
    assert selection.kept == [0, 2, 3, 4]
    assert selection.removed[0]["prototype"] == 1
    assert selection.removed[0]["reason"].startswith("unused: fewer than 3 of the 6 nearest")
    assert selection.removed[1] == {"prototype": 5, "reason": "duplicate of 4"}


def test_pruned_run_is_explained_and_reported(dpp, run, tmp_path):
    new = pruned.prune(run)
    assert Network.of(new).labels == new.load_model().prototypes.classes.tolist()
    picture = run.source.test[0].id
    code, _, err = dpp("explain", picture, "--run", new.folder, "--out", tmp_path / "out")
    assert code == 0, err
    code, _, err = dpp("report", new.folder, "--out", tmp_path / "card.html")
    assert code == 0, err


def test_same_pruning_is_found_and_another_refused(dpp, run):
    first = pruned.prune(run)
    before = contents(first.folder)
    assert pruned.prune(run).folder == first.folder and contents(first.folder) == before
    code, _, err = dpp("prune", run.folder, "--tolerance", "0.5")
    assert code == 2 and "exists and does not hold this pruned run" in err and "--out" in err
    code, out, err = dpp("prune", run.folder, "--tolerance", "0.5", "--out", "other")
    assert code == 0 and out.strip().endswith("other"), err


@pytest.mark.parametrize(
    "words,message",
    [
        (("--tolerance", "-1"), "tolerance: expected a number from 0 to below 1, got -1"),
        (("--tolerance", "nan"), "tolerance: expected"),
        (("--out", "old"), "exists and does not hold this pruned run"),
        (("--device", "abacus"), "no device 'abacus'"),
    ],
)
def test_bad_options_are_refused(dpp, run, monkeypatch, words, message):
    monkeypatch.chdir(run.folder.parent)
    code, out, err = dpp("prune", run.folder, *words)
    assert code == 2 and out == "" and message in err
    assert not run.folder.with_name("old-pruned").exists()


def test_folders_that_are_no_run_and_pruned_runs_are_refused(dpp, run, tmp_path):
    code, _, err = dpp("prune", tmp_path)
    assert code == 2 and "no finished run" in err
    new = pruned.prune(run)
    code, _, err = dpp("prune", new.folder)
    assert code == 2 and "is pruned already: prune the original, old" in err


def test_tree_is_refused(dpp, run):
    tree = asdict(tiny(model="prototree"))
    files.write_json(run.folder / "experiment.json", tree)
    manifest = run.manifest | {"experiment_sha256": files.sha256(run.folder / "experiment.json")}
    run_files.write_manifest(run.folder, manifest)
    code, _, err = dpp("prune", run.folder)
    assert code == 2 and "is a prototree, which cannot be pruned" in err


def test_run_with_changed_weights_is_refused(dpp, run):
    with (run.folder / "weights.safetensors").open("ab") as file:
        file.write(b"more")
    code, _, err = dpp("prune", run.folder)
    assert code == 2 and "weights.safetensors" in err
