"""Many runs side by side: each once, after what it needs; nothing is lost by damage or a stop."""

import json
import multiprocessing
import re
import signal
import time

import pytest
from stopping import stop
from tiny_data import write_cub

from dpp import runs
from dpp.paper import grid, run_queue
from dpp.runs import checkpoints
from dpp.runs.ensembles import Ensemble
from dpp.runs.making import prepare
from dpp.system import files, worker_pool
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment

QUICK = {"epochs": 1, "warm_epochs": 0, "second_warm_epochs": 0, "image_size": 32}


def tiny(**changes):
    return make_experiment("smoke", backbone="slim_vgg16_bn", **(QUICK | changes))


PAIR = (tiny(seed=0), tiny(seed=1))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs, their pretraining and their ensemble, made by two processes; and a bad one."""
    root, kept = tmp_path_factory.mktemp("runs"), []
    wanted = [Ensemble(PAIR), tiny(weights=str(root / "missing.pth"))]
    failed = run_queue.run_all(wanted, jobs=2, root=root, keep=lambda *some: kept.extend(some))
    return root, kept, failed


def digests(root) -> dict[str, str]:
    manifests = sorted(root.glob("*/manifest.json"))
    return {
        path.parent.name: json.loads(path.read_text()).get("weights_sha256") for path in manifests
    }


def test_everything_that_is_needed_is_made_once_and_a_failure_stops_nothing(made):
    root, kept, failed = made
    names = [plan.name for plan in grid.unfold([Ensemble(PAIR)])]
    assert sorted(run.experiment.name for run in kept) == sorted(names)
    assert len(names) == 4 and set(digests(root)) == set(names)
    [reason] = failed.values()
    assert "no weights at" in reason


def test_each_run_has_one_thread_so_that_numbers_do_not_depend_on_the_jobs(made):
    manifests = [files.read_json(run.folder / "manifest.json") for run in made[1]]
    assert {manifest["threads"] for manifest in manifests} == {1}


def test_second_time_starts_no_process(made, monkeypatch, capsys):
    started = "a process was started"
    monkeypatch.setattr(worker_pool, "pool", lambda *_, **__: pytest.fail(started))
    kept = []
    assert not run_queue.run_all([Ensemble(PAIR)], root=made[0], keep=lambda *r: kept.extend(r))
    assert len(kept) == 4
    assert "4 runs, 4 already finished" in capsys.readouterr().out


def test_damaged_run_is_set_aside_and_made_anew_with_the_same_weights(made, capsys):
    root, before = made[0], digests(made[0])
    damaged = root / PAIR[0].name
    (damaged / "weights.safetensors").write_bytes(b"nothing of the kind")
    assert not run_queue.run_all([PAIR[0]], jobs=1, root=root)
    assert re.search(
        r"damaged: .*weights.safetensors was changed or damaged", capsys.readouterr().out
    )
    assert (root / f"{damaged.name}.damaged-1").is_dir()
    after = digests(root)
    assert after.pop(f"{damaged.name}.damaged-1") == after[damaged.name]
    assert after == before


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"results": {}}', '{"results": {"test_accuracy": 7}}']
)
def test_damaged_manifest_is_noticed(made, text, tmp_path):
    ensemble = next(run for run in made[1] if isinstance(run.experiment, Ensemble))
    path = ensemble.folder / "manifest.json"
    whole = path.read_text()
    try:
        path.write_text(text)
        with pytest.raises(UserError, match="manifest.json"):
            ensemble.verify()
    finally:
        path.write_text(whole)


def test_jobs_below_zero_are_refused():
    with pytest.raises(UserError, match="jobs: expected a number from 0, got -1"):
        run_queue.run_all([], jobs=-1)


def photo(root, **changes):
    """Tiny runs of the photo profile, on random trunks."""
    small = {"backbone": "slim_resnet34", "weights": "none", "frozen_trunk": "layer3", "views": 2}
    small |= {"image_size": 32, "per_class": 2, "batch_size": 4, "data": str(root / "birds")}
    small |= {"epochs": 2, "warm_epochs": 1, "second_warm_epochs": 0}
    return make_experiment("photo", **(small | changes))


def test_trunk_features_are_cached_once_before_processes_need_them(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_DATA", str(tmp_path / "data"))
    write_cub(tmp_path / "birds", train=5)
    plans = [photo(tmp_path), photo(tmp_path, model="cnn")]
    prepared, begun = [], []
    monkeypatch.setattr(runs, "prepare", lambda one: (prepared.append(one), prepare(one)))
    display = run_queue.Display  # is made when all is prepared and no process is started
    monkeypatch.setattr(run_queue, "Display", lambda *a: begun.append(stores()) or display(*a))

    def stores() -> dict:
        folder = tmp_path / "data" / "cache" / "trunk"
        return {path: path.stat().st_mtime_ns for path in folder.glob("*/features.bin")}

    assert run_queue.run_all(plans, jobs=2, root=tmp_path / "runs") == {}
    assert prepared == plans[:1] and len(begun[0]) == 2
    assert stores() == begun[0]  # nobody wrote them again
    assert len(digests(tmp_path / "runs")) == 2


@pytest.mark.slow
def test_features_that_cannot_be_cached_fail_their_runs_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_DATA", str(tmp_path / "data"))
    write_cub(tmp_path / "birds", train=5)
    bad = photo(tmp_path, frozen_trunk="layer9")
    good = photo(tmp_path, model="cnn")
    failed = run_queue.run_all([bad, good], jobs=1, root=tmp_path / "runs")
    assert list(failed) == [bad.name] and "no layer 'layer9'" in failed[bad.name]
    assert list(digests(tmp_path / "runs")) == [good.name]


STOPPED = """
from pathlib import Path
import sys
from dpp.paper import run_queue
from dpp.training.experiments import make_experiment
if __name__ == "__main__":
    long = make_experiment("smoke", backbone="slim_vgg16_bn", weights="none", epochs=2000)
    try:
        run_queue.run_all([long], jobs=1, root=Path(sys.argv[1]) / "runs")
    except KeyboardInterrupt as stop:
        print(stop)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_stop_saves_what_is_under_way(tmp_path, number):
    said = stop(tmp_path, STOPPED, number, lambda: any(tmp_path.glob("runs/*/metrics.csv")))
    assert "runs in progress are saved: run the same command to resume" in said
    [folder] = (tmp_path / "runs").glob("deformable-*")
    assert checkpoints.find_states(folder) and not (folder / "manifest.json").exists()


ORPHANED = """
from pathlib import Path
import sys
from dpp.paper import run_queue
from dpp.training.experiments import make_experiment
if __name__ == "__main__":
    long = {"backbone": "slim_vgg16_bn", "weights": "none", "epochs": 2000}
    plans = [make_experiment("smoke", **long, seed=seed) for seed in range(2)]
    run_queue.run_all(plans, jobs=2, root=Path(sys.argv[1]) / "runs")
"""


def test_killed_parent_takes_its_workers_along(tmp_path):
    """The runs that they were making can be resumed: their locks are free."""
    ready = lambda: len(list(tmp_path.glob("runs/*/metrics.csv"))) == 2  # noqa: E731
    stop(tmp_path, ORPHANED, signal.SIGKILL, ready)
    folders = list((tmp_path / "runs").glob("deformable-*"))
    deadline = time.monotonic() + 2 * worker_pool.GRACE + 10
    while any(map(files.is_locked, folders)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert len(folders) == 2 and not any(map(files.is_locked, folders))


def hold(folder, held, go) -> None:
    with files.locked(folder):
        held.set()
        go.wait(100)


def test_run_that_another_process_makes_is_waited_for_then_taken_over(tmp_path, monkeypatch):
    run, fork = tiny(weights="none"), multiprocessing.get_context("fork")
    held, go = fork.Event(), fork.Event()
    holder = fork.Process(target=hold, args=(tmp_path / run.name, held, go), daemon=True)
    holder.start()
    assert held.wait(10)
    waited = []
    monkeypatch.setattr(
        run_queue.Display, "say_once", lambda display, line: waited.append(line) or go.set()
    )
    assert run_queue.run_all([run], jobs=1, root=tmp_path) == {}
    holder.join(10)
    assert f"{run.name}: another process is making it: waiting" in waited
    assert (tmp_path / run.name / "manifest.json").is_file()


def test_line_is_said_once(tmp_path, capsys):
    run = tiny(weights="none")
    with run_queue.Display({run.name: run}, set(), tmp_path) as display:
        display.say_once("waiting")
        display.say_once("waiting")
    assert capsys.readouterr().out.splitlines() == ["waiting"]
