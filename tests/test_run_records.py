"""Records of runs in `results/`: read where they are, made where they are not."""

import json
from dataclasses import asdict

import pandas as pd
import pytest

from dpp import runs
from dpp.runs import records
from dpp.system import paths
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def make_run(folder, accuracy: float = 0.5, **changes) -> runs.Run:
    """The files of a finished run, as far as a record needs them."""
    experiment = make_experiment("smoke", **changes)
    run = runs.Run(experiment, folder / experiment.name)
    run.folder.mkdir(parents=True)
    (run.folder / "experiment.json").write_text(json.dumps(asdict(experiment)))
    manifest = {
        "run": experiment.name,
        "results": {"test_accuracy": accuracy},
        "seconds": 12.5,
        "images": {"train": 3},
        "commit": "abc",
        "threads": 2,
    }
    (run.folder / "manifest.json").write_text(json.dumps(manifest))
    rows = [{"stage": "train", "epoch": e, "loss": 1 / e, "seconds": 1.5} for e in (1, 2)]
    pd.DataFrame(rows).to_csv(run.folder / "metrics.csv", index=False)
    return run


def test_stored_record_is_the_runs(results, tmp_path):
    run = make_run(tmp_path / "runs")
    records.store(run)
    record = records.stored(run.experiment)
    assert record.summary["test_accuracy"] == 0.5
    assert record.summary["commit"] == "abc" and record.summary["seed"] == 0
    assert record.summary["project_after"] == 3
    pd.testing.assert_frame_equal(record.metrics, run.metrics)


def test_storing_again_replaces_and_leaves_the_others(results, tmp_path):
    first, other = make_run(tmp_path / "runs"), make_run(tmp_path / "runs", seed=1)
    records.store(first)
    records.store(other)
    records.store(make_run(tmp_path / "again", accuracy=0.75))
    assert records.stored(first.experiment).summary["test_accuracy"] == 0.75
    assert records.stored(other.experiment).summary["test_accuracy"] == 0.5
    assert len(pd.read_csv(results / "smoke" / "runs.csv")) == 2
    assert len(pd.read_csv(results / "smoke" / "epochs.csv")) == 4


def test_get_reads_what_is_stored_and_trains_what_is_not(results, tmp_path, monkeypatch):
    run = make_run(tmp_path / "runs")
    asked = []
    monkeypatch.setattr(runs, "run", lambda experiment, **options: asked.append(experiment) or run)
    assert records.get(run.experiment).summary["test_accuracy"] == 0.5
    assert records.get(run.experiment).summary["test_accuracy"] == 0.5
    assert asked == [run.experiment]
    records.get(run.experiment, retrain=True)
    assert len(asked) == 2


def test_record_names_weights_by_their_file_not_its_folder(results, tmp_path):
    (tmp_path / "some.pth").write_bytes(b"weights")
    run = make_run(tmp_path / "runs", weights=str(tmp_path / "some.pth"))
    records.store(run)
    assert str(tmp_path) not in (results / "smoke" / "runs.csv").read_text()


@pytest.mark.parametrize("text", ["run,stage,epoch\n", "run\n,\n", "run,stage\nother,train\n"])
def test_record_without_its_epochs_is_refused(results, tmp_path, text):
    run = make_run(tmp_path / "runs")
    records.store(run)
    (results / "smoke" / "epochs.csv").write_text(text)
    with pytest.raises(UserError, match=f"epochs.csv has no rows of {run.experiment.name}"):
        records.stored(run.experiment)


def test_table_of_uneven_lines_is_refused_in_one_line(results, tmp_path):
    run = make_run(tmp_path / "runs")
    records.store(run)
    (results / "smoke" / "epochs.csv").write_text("run,a\n1,2\n1,2,3,4\n")
    with pytest.raises(UserError, match="epochs.csv is damaged") as caught:
        records.stored(run.experiment)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["runs.csv", "epochs.csv"])
def test_table_that_ends_within_a_line_is_refused(results, tmp_path, name):
    run = make_run(tmp_path / "runs")
    records.store(run)
    path = results / "smoke" / name
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(UserError, match=f"{name} is damaged .it ends within a line"):
        records.stored(run.experiment)


def test_table_without_its_accuracies_is_refused(results, tmp_path):
    run = make_run(tmp_path / "runs")
    records.store(run)
    path = results / "smoke" / "runs.csv"
    path.write_text(path.read_text().replace("test_accuracy", "test_accurace"))
    with pytest.raises(UserError, match="runs.csv is damaged .it has no column test_accuracy"):
        records.stored(run.experiment)
