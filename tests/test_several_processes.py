"""One training by several processes: equal to that of one, resumed by any number, refused if wrong.

`two_processes.py` is what the two processes do.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from test_runs import command, digest, tiny
from tiny_data import save_image, write_cub
from tiny_network import Enough
from torch.distributed import PrefixStore, TCPStore
from two_processes import METHOD_CHANGES, SHORT, stop_at_second_record

from dpp import runs
from dpp.data.batches import part_of
from dpp.runs import resumable, several_processes
from dpp.system import processes
from dpp.system.errors import UserError

TESTS = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def place_of(rank: int, port: int, count: int = 2) -> dict[str, str]:
    """The environment that torchrun gives a process."""
    named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port}
    return {name: str(value) for name, value in named.items()} | {"MASTER_ADDR": "127.0.0.1"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> runs.Run:
    """The run of one process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("alone")
    run = runs.run(tiny(**SHORT), root=root, device="cpu", progress=False)
    torch.set_num_threads(threads)
    return run


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    """The folder that two processes have worked in."""
    folder = tmp_path_factory.mktemp("pair")
    for rank in range(2):
        write_cub(folder / f"data-{rank}" / "CUB_200_2011", classes=3, train=6)
    [changed] = (folder / "data-1").rglob("Bird_0003.jpg")
    save_image(changed, 99)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Enough):
        patch.setattr(resumable, "report", stop_at_second_record)
        runs.run(tiny(**SHORT), root=folder / "one to two", device="cpu", progress=False)
    port = free_port()
    command = [sys.executable, str(TESTS / "two_processes.py"), str(folder)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    both = [
        subprocess.Popen(command, env=os.environ | place_of(rank, port), **pipes)
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=600)[0] for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], "\n".join(said)
    return folder


def results(pair: Path, part: str) -> list[dict]:
    """What each process found."""
    return [json.loads((pair / f"{part}-{rank}.json").read_text()) for rank in range(2)]


def assert_same_run(run: runs.Run, alone: runs.Run) -> None:
    """Losses are equal up to rounding; origins and accuracies exactly."""
    one, other = alone.metrics.drop(columns="seconds"), run.metrics.drop(columns="seconds")
    assert one.stage.tolist() == other.stage.tolist()
    for name in one.select_dtypes("number"):
        # the gradient of an offset grows without bound towards whole places, where offsets begin
        tolerance = 1e-3 if "offset" in name or name.endswith("active") else 1e-5
        if name.endswith("accuracy") or name == "source_images":
            tolerance = 0
        expected = pytest.approx(one[name].tolist(), rel=tolerance, abs=0, nan_ok=True)
        assert other[name].tolist() == expected, name
    places = [[(o["image"], o["centre"], o["label"]) for o in r.origins] for r in (alone, run)]
    assert places[0] == places[1]
    for mine, theirs in zip(run.origins, alone.origins, strict=True):
        assert mine["similarity"] == pytest.approx(theirs["similarity"], rel=1e-5)
        assert mine["cells"] == theirs["cells"]
    assert run.manifest["results"]["test_accuracy"] == alone.manifest["results"]["test_accuracy"]


def test_parts_of_a_batch_make_the_batch():
    for length in range(1, 9):
        for count in range(1, length + 1):
            parts = [part_of(list(range(length)), number, count) for number in range(count)]
            assert sum(parts, []) == list(range(length))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_batch_norm_of_unequal_parts_is_that_of_the_whole_batch(pair):
    for found in results(pair, "compare_batch_norm"):
        assert found["difference"] < 1e-12 and found["output"] < 1e-12


@pytest.mark.parametrize("method", METHOD_CHANGES)
def test_step_of_two_processes_has_the_loss_and_gradients_of_one(pair, method):
    for found in results(pair, "compare_gradients"):
        assert found[method].pop("smallest") > 1e-5  # every gradient counts
        assert max(found[method].values()) < 1e-7  # of a bias before batch norm all is noise


def test_whole_batches_are_dealt_out_and_merged_in_their_order(pair):
    first, second = results(pair, "deal_out_batches")
    assert (first["3"]["taken"], second["3"]["taken"]) == ([0, 2], [1])
    assert (first["1"]["taken"], second["1"]["taken"]) == ([0], [])
    for found in (first, second):
        assert found["3"]["merged"] == {"values": [0, 0, 1, 1, 2, 2]}
        assert found["1"]["merged"] == {"values": [0, 0]}
        assert found["0"]["merged"] == {}


def test_projection_of_two_processes_takes_the_first_of_equal_images(pair):
    for found in results(pair, "project_with_ties"):
        images = found.pop("images")
        assert all(found.values()), found
        assert max(images) < 4  # of each image, the first of its three copies


def test_run_of_two_processes_is_that_of_one(pair, alone):
    run = runs.find(tiny(**SHORT), pair / "two")
    assert_same_run(run, alone)
    assert run.manifest["processes"] == 2 and "processes" not in alone.manifest
    assert {path.name for path in run.folder.iterdir()} == {
        path.name for path in alone.folder.iterdir()
    }


def test_run_of_one_process_is_resumed_by_two(pair, alone):
    assert_same_run(runs.find(tiny(**SHORT), pair / "one to two"), alone)


def test_run_of_two_processes_is_resumed_by_one(pair, alone, tmp_path, one_thread):
    folder = pair / "two to one" / tiny(**SHORT).name
    assert len(list(folder.glob("state-*.pt"))) == 2
    shutil.copytree(folder, tmp_path / folder.name)
    assert_same_run(runs.run(tiny(**SHORT), root=tmp_path, progress=False), alone)


def test_batch_smaller_than_the_number_of_processes_is_refused(pair):
    first, second = results(pair, "refuse_small_batches")
    assert first["kind"] == "UserError" and second["kind"] == "ReportedError"
    assert "a batch of 1 has no image for each of 2 processes" in first["message"]
    assert not (pair / "small").exists()


def test_unequal_data_are_refused_before_anything_is_written(pair):
    first, second = results(pair, "refuse_other_data")
    assert first["kind"] == "UserError" and second["kind"] == "ReportedError"
    assert "images differ from the first process's: digest" in first["message"]
    assert "process 1 of 2, on" in first["message"] and "\n" not in first["message"]
    assert not (pair / "other").exists() and not list(pair.glob("data-*/cache"))


def test_signal_to_one_process_is_known_to_all(pair):
    for found in results(pair, "agree_on_a_signal"):
        assert found == {"none": [], "one": [15]}


def test_loss_that_is_not_finite_is_reported_once_with_the_whole_batch(pair):
    first, second = results(pair, "explain_what_is_not_finite")
    assert first["kind"] == "UserError" and second["kind"] == "ReportedError"
    assert "training is not finite" in first["message"]
    [path] = (pair / "infinite").rglob("not_finite.json")
    assert len(json.loads(path.read_text())["images"]) == tiny(**SHORT).batch_size


@pytest.mark.parametrize("rank", [0, 1])
def test_processes_that_do_not_meet_say_so(monkeypatch, rank):
    monkeypatch.setattr(several_processes, "MEETING", 1)
    for name, value in place_of(rank, free_port()).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="the 2 processes did not meet at 127.0.0.1:"):
        several_processes.meet()


def test_restarted_processes_do_not_meet_those_before_them(monkeypatch):
    monkeypatch.setattr(several_processes, "MEETING", 1)
    kept = TCPStore("127.0.0.1", 0, is_master=True)  # as torchrun keeps it over restarts
    torchrun_sets = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    for name, value in (place_of(0, kept.port) | torchrun_sets).items():
        monkeypatch.setenv(name, value)
    PrefixStore(several_processes.attempt(), kept).set("came 1", "")
    several_processes.meet()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(UserError, match="did not meet"):
        several_processes.meet()


def test_incomplete_environment_is_named(monkeypatch):
    for name in several_processes.NEEDED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError, match="no WORLD_SIZE: start the processes with torchrun"):
        several_processes.meet()


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(several_processes, "choose_device", lambda name: name)
    monkeypatch.setattr(processes, "local_rank", lambda: 3)
    assert several_processes.own_device("cuda") == "cuda:3"
    assert several_processes.own_device("cpu") == "cpu"
    monkeypatch.setattr(processes, "local_rank", lambda: 4)
    with pytest.raises(UserError, match="--nproc-per-node 4, or --device cpu"):
        several_processes.own_device("cuda")
    with pytest.raises(UserError, match="give cuda, and each takes its own"):
        several_processes.own_device("cuda:1")


def test_other_commands_refuse_several_processes(dpp, monkeypatch):
    for name, value in place_of(0, free_port()).items():
        monkeypatch.setenv(name, value)
    code, _, error = dpp("doctor")
    assert code == 2 and error.startswith("dpp: torchrun is for dpp train")


LONGER = SHORT | {"epochs": 6, "project_after": (6,)}  # time to stop it


def torchrun(root: Path, *options: str, **changes) -> list[str]:
    """`torchrun -m dpp train` of a tiny experiment, in two processes of one machine."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]
    return [sys.executable, *launch, *command(root, **changes)[1:], "--device", "cpu"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> runs.Run:
    root = tmp_path_factory.mktemp("undisturbed")
    done = subprocess.run(torchrun(root, **LONGER), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test_accuracy") == 1  # the first process alone reports
    return runs.find(tiny(**LONGER), root)


def start_and_wait_for_a_state(root: Path, *options: str) -> subprocess.Popen:
    process = subprocess.Popen(
        torchrun(root, *options, **LONGER), stderr=subprocess.PIPE, text=True
    )
    folder = root / tiny(**LONGER).name
    while not list(folder.glob("state-*.pt")) and process.poll() is None:
        time.sleep(0.02)
    return process


@pytest.mark.slow
def test_killed_worker_is_restarted_and_the_run_ends_as_undisturbed(undisturbed, tmp_path):
    process = start_and_wait_for_a_state(tmp_path, "--max-restarts", "2")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    message = process.communicate(timeout=600)[1]
    assert process.returncode == 0, message
    assert "exitcode: -9" in message
    run = runs.find(tiny(**LONGER), tmp_path)
    assert digest(run) == digest(undisturbed)
    assert run.origins == undisturbed.origins


@pytest.mark.slow
def test_stopped_torchrun_saves_and_resumes(undisturbed, tmp_path):
    process = start_and_wait_for_a_state(tmp_path)
    process.send_signal(signal.SIGTERM)
    message = process.communicate(timeout=600)[1]
    assert process.returncode != 0 and message.count("run the same command to resume") == 1
    done = subprocess.run(torchrun(tmp_path, **LONGER), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert digest(runs.find(tiny(**LONGER), tmp_path)) == digest(undisturbed)


@pytest.mark.slow
def test_mistake_is_reported_in_one_line_by_one_process(tmp_path):
    words = torchrun(tmp_path, **SHORT, batch_size=1)
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("dpp: ")]
    assert len(lines) == 1 and "a batch of 1 has no image" in lines[0]
    assert not any(tmp_path.iterdir())
