"""Files of runs: every one is covered by the manifest, and what is wrong is said in one line."""

import json
import shutil

import pytest
import torch

from dpp import runs
from dpp.report import run_report
from dpp.runs import records
from dpp.system import paths
from dpp.system.errors import UserError
from dpp.training.experiments import example_experiment, make_experiment

TINY = {"weights": "none", "backbone": "slim_resnet50", "kernel_size": 2, "per_class": 2}
TINY |= {"image_size": 32, "epochs": 1, "warm_epochs": 0, "second_warm_epochs": 0}
FILES = ["experiment.json", "manifest.json", "metrics.csv", "prototypes.json"]
FILES += ["weights.safetensors"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> runs.Run:
    torch.set_num_threads(1)
    experiment = make_experiment("smoke", **TINY)
    return runs.run(experiment, root=tmp_path_factory.mktemp("runs"), progress=False)


@pytest.fixture
def run(finished, tmp_path) -> runs.Run:
    """A copy to be damaged."""
    folder = shutil.copytree(finished.folder, tmp_path / finished.folder.name)
    return runs.Run(finished.experiment, folder)


def as_older(run: runs.Run) -> None:
    """Takes away the hashes that older manifests have not."""
    path = run.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("files", None)
    path.write_text(json.dumps(manifest))


def read_all(run: runs.Run) -> None:
    """All that commands read of a run."""
    opened = runs.open_run(run.folder)
    opened.verify()
    opened.load_model()
    assert len(opened.metrics) and len(opened.origins)
    run_report.describe(opened)


def test_whole_run_verifies(run):
    read_all(run)
    assert "not covered by a hash" not in dict(run_report.describe(run)["facts"])


@pytest.mark.parametrize("name", FILES)
def test_one_changed_byte_of_any_file_is_noticed(run, name):
    path = run.folder / name
    content = bytearray(path.read_bytes())
    place = next(n for n in range(len(content) // 2, len(content)) if chr(content[n]).isdigit())
    content[place] = ord("1") if content[place] != ord("1") else ord("2")
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{name} was changed or damaged"):
        run.verify()


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_named(run, name):
    (run.folder / name).unlink()
    with pytest.raises(UserError, match=name):
        run.verify()


@pytest.mark.parametrize("older", [False, True])
def test_report_names_the_missing_prototypes(run, older, tmp_path):
    (run.folder / "prototypes.json").unlink()
    if older:
        as_older(run)
    with pytest.raises(UserError, match="prototypes.json is missing: restore"):
        run_report.write_report(run, tmp_path / "page.html")


def test_older_manifest_opens_and_what_it_does_not_cover_is_named(run):
    as_older(run)
    read_all(run)
    facts = dict(run_report.describe(run)["facts"])
    assert facts["not covered by a hash"].startswith("metrics.csv, prototypes.json: ")


def test_committed_networks_open():
    run = runs.find(example_experiment(), paths.RESULTS / "mini" / "networks")
    read_all(run)


WRONG = {
    "experiment.json": ["[]", "7", '"text"', "null", "{}{", '{"seed": "x"}', '{"epochs": null}'],
    "prototypes.json": ["{}", "7", "[7]", "[{}]", "null", '[{"prototype": "x"}]', "[[[[", ""],
    "metrics.csv": ["", "a,b\n1,2\n", "\0\1\2", "stage,epoch,seconds\n", '"', "\xff\xfe"],
    "manifest.json": ["[]", "7", "{}", '{"results": 7, "seconds": 1}', "null", '{"files": []}'],
}


@pytest.mark.parametrize("name,text", [(n, t) for n, texts in WRONG.items() for t in texts])
def test_file_of_the_wrong_kind_is_named_without_a_traceback(run, name, text):
    as_older(run)
    manifest = json.loads((run.folder / "manifest.json").read_text())
    manifest.pop("experiment_sha256")  # so that the content itself is looked at
    manifest["files"] = {"weights.safetensors": manifest["weights_sha256"]}
    (run.folder / "manifest.json").write_text(json.dumps(manifest))
    (run.folder / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=name) as caught:
        read_all(run)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "entry", ["results", "seconds", "classes", "images", "weights_sha256", "device", "commit"]
)
@pytest.mark.parametrize("value", [None, "x", 7, [], {"a": "b"}, -1, "absent"])
def test_edited_manifest_entry_is_named_or_harmless(run, entry, value):
    as_older(run)
    path = run.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest[entry] = value
    if value == "absent":
        del manifest[entry]
    path.write_text(json.dumps(manifest))
    try:
        read_all(run)
    except UserError as error:
        assert len(str(error).splitlines()) == 1


def test_run_of_a_newer_version_says_so(run):
    as_older(run)
    path = run.folder / "experiment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"telepathy": True}))
    manifest = json.loads((run.folder / "manifest.json").read_text())
    manifest["files"] = {}
    (run.folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="newer version of dpp.*'telepathy'.*update dpp"):
        runs.open_run(run.folder)


@pytest.mark.parametrize("column", ["seconds", "seed", "validation_accuracy"])
def test_records_with_words_for_numbers_are_refused(run, column, tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path / "results"))
    records.store(run)
    path = paths.results("smoke") / "runs.csv"
    table = records.pd.read_csv(path)
    table[column] = "word"
    table.to_csv(path, index=False)
    with pytest.raises(UserError, match=f"runs.csv is damaged .column {column}"):
        records.stored(run.experiment)
