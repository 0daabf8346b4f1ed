"""Runs on a cluster: what each machine must have, and a real Ray cluster that loses a machine."""

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import pandas as pd
import pytest
from ray_nodes import PATIENCE, nodes
from tiny_data import write_cub, write_folder

from dpp.paper import cluster, engines, grid, notebooks, ray_engine
from dpp.paper.reproduce import tables_of
from dpp.runs import checkpoints, limits, records
from dpp.system import files
from dpp.system.errors import UserError
from dpp.system.paths import PACKAGE, ROOT
from dpp.training.experiments import make_experiment

HAS_RAY = importlib.util.find_spec("ray") is not None
NO_RAY = "ray is not installed: make test-cluster installs it and runs this"


def with_ray(test):
    """Marks a test that starts a Ray cluster."""
    skip = pytest.mark.skipif(not HAS_RAY, reason=NO_RAY)
    return pytest.mark.cluster(pytest.mark.slow(skip(test)))


# ---- Without Ray


def test_only_the_ray_engine_imports_ray_and_only_when_it_is_chosen():
    importing = {
        path.name: re.findall(r"^( *)(?:import|from) ray\b", path.read_text(), re.MULTILINE)
        for path in PACKAGE.rglob("*.py")
    }
    assert [name for name, found in importing.items() if found] == ["ray_engine.py"]
    assert all(importing["ray_engine.py"])  # within functions


def test_missing_extra_is_said_in_one_line(monkeypatch, dpp):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, said = dpp("reproduce", "--engine", "ray")
    assert code == 2 and said.count("\n") == 1
    assert "run pip install 'dpp[cluster]'" in said


@pytest.mark.parametrize(
    "options, said",
    [
        ({"name": "rya"}, "there is no engine 'rya': choose one of local, ray"),
        ({"address": "here:1"}, "an address .here:1. is for the engine ray"),
    ],
)
def test_unknown_engine_and_address_without_one_are_refused(options, said):
    with pytest.raises(UserError, match=said):
        engines.choose(**options)


@pytest.fixture
def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:", ":6379", "127.0.0.1:99999"])
def test_text_that_is_no_address_is_refused(address):
    with pytest.raises(UserError, match="Ray cluster") as caught:
        ray_engine.check_address(address)
    assert len(str(caught.value).splitlines()) == 1


def test_address_where_nothing_listens_is_refused_at_once(free_port):
    begun = time.monotonic()
    with pytest.raises(UserError, match=r"no Ray cluster at 127.0.0.1:\d+ \(Connection refused\)"):
        ray_engine.check_address(f"127.0.0.1:{free_port}")
    assert time.monotonic() - begun < ray_engine.REPLY


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_address_of_another_program_is_refused(reply, monkeypatch):
    monkeypatch.setattr(ray_engine, "REPLY", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(100)
            connection.sendall(reply)
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(UserError, match="no Ray cluster"):
            ray_engine.check_address(f"127.0.0.1:{server.getsockname()[1]}")


@pytest.fixture
def told(tmp_path, monkeypatch):
    """What machines are told about runs on a folder of images, with all folders in one."""
    for name in ("DPP_RUNS", "DPP_DATA", "DPP_RESULTS"):
        monkeypatch.setenv(name, str(tmp_path / name))
    write_folder(tmp_path / "birds")
    plan = make_experiment("smoke", data=str(tmp_path / "birds"), weights="none")
    with cluster.assembled([plan], tmp_path / "DPP_RUNS", gpus=False) as told:
        yield told


def test_machine_that_has_the_same_can_make_runs_and_is_seen(told):
    assert cluster.find_unseen(told, "other")
    assert cluster.check_here(told, "other") == ""
    assert cluster.find_unseen(told, "other") == ""


@pytest.mark.parametrize("name", ["DPP_RUNS", "DPP_DATA", "DPP_RESULTS"])
def test_folder_that_is_not_shared_is_named(told, name, tmp_path):
    shutil.rmtree(cluster.token_folder(told.shared[name], told.token))
    assert cluster.check_here(told, "other").startswith(f"{name}={tmp_path / name} is not shared")
    assert not list(tmp_path.glob("*/.shared-*/other"))


def test_folder_without_locks_is_named(told, monkeypatch):
    monkeypatch.setattr(files, "is_locked", lambda folder: False)
    assert "has no locks across machines" in cluster.check_here(told, "other")


def test_other_data_are_named(told, tmp_path):
    image = next((tmp_path / "birds").rglob("*.*"))
    image.write_bytes(image.read_bytes() + b"more")
    assert re.match("the data .*birds is .* there and .* here", cluster.check_here(told, "other"))


def test_other_code_is_named(told):
    other = told._replace(facts=told.facts | {"dpp": "0.0.1 with code 123"})
    assert "there and 0.0.1 with code 123 here" in cluster.check_here(other, "other")


def test_data_that_are_not_there_are_named(told, tmp_path):
    shutil.rmtree(tmp_path / "birds")
    assert "there is no data set" in cluster.check_here(told, "other")


def test_token_of_a_killed_process_is_removed(told, tmp_path):
    left = tmp_path / "DPP_RUNS" / ".shared-0"
    left.mkdir()
    with cluster.shared_folders({"DPP_RUNS": tmp_path / "DPP_RUNS"}) as (token, _):
        names = {path.name for path in (tmp_path / "DPP_RUNS").iterdir()}
    assert names == {f".shared-{told.token}", f".shared-{token}"}


def test_expected_memory_is_that_of_the_machine():
    whole = make_experiment("paper", backbone="densenet161")
    photo = make_experiment("photo", backbone="densenet161")
    on_cpu = limits.expected_memory(whole, gpu=False)
    assert 15e9 < on_cpu < 30e9  # the largest of results/estimates/paper_cost.csv has 21e9
    assert limits.expected_memory(whole, gpu=True) < 2e9 < on_cpu
    assert limits.expected_memory(photo, gpu=False) < on_cpu


# ---- With Ray


TABLES = ("table1", "table2", "table3", "dogs")
LONGEST = 3600.0  # seconds that all tables may take, on a busy machine


def reproduce(folder, address: str = "") -> subprocess.Popen:
    """Starts to make the smoke profile's tables in a folder, on a cluster if it has an address."""
    command = [sys.executable, "-m", "dpp", "reproduce", "--profile", "smoke"]
    command += [word for name in TABLES for word in ("--only", name)]
    command += ["--engine", "ray", "--address", address] if address else ["--jobs", "2"]
    own = {f"DPP_{name}": str(folder / name.lower()) for name in ("RUNS", "DATA", "RESULTS")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    folder.mkdir(exist_ok=True)  # not the checkout: Ray's processes import from here first
    return subprocess.Popen(command, env=os.environ | own, cwd=folder, **pipes)


def wait_until(reached, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def count_runs(names: Sequence[str]) -> int:
    """How many runs the smoke profile's tables need."""
    plans = [
        plan
        for path in notebooks.find(names)
        for table in tables_of(path.stem, notebooks.values(path, "smoke", {}))
        for plan in table.plans
    ]
    return len({plan.name for plan in grid.unfold(plans)})


@with_ray
def test_smoke_tables_on_a_cluster_that_loses_a_machine_are_those_of_the_local_pool(tmp_path):
    local = reproduce(tmp_path / "local")
    said, complaints = local.communicate(timeout=LONGEST)
    assert local.returncode == 0, said + complaints
    runs = tmp_path / "ray" / "runs"
    with nodes() as machines:
        machines.add()
        lost = machines.add()
        made = reproduce(tmp_path / "ray", machines.address)

        def busy() -> bool:
            """Whether some runs are finished, and the second machine is in the middle of one."""
            begun = [path for path in runs.glob("*/") if not (path / "manifest.json").exists()]
            finished = len(list(runs.glob("*/manifest.json")))
            under_way = any((path / "metrics.csv").exists() for path in begun)
            return finished > 3 and under_way and machines.members(lost, "ray::make_there")

        wait_until(busy, made)
        [raylet] = machines.members(lost, "raylet/raylet --raylet_socket_name")
        os.kill(raylet, signal.SIGKILL)
        said, complaints = made.communicate(timeout=LONGEST)
    assert made.returncode == 0, said + complaints
    assert "2 machines, 2 runs at a time; shared folders: DPP_RUNS=" in said
    count = count_runs(TABLES)
    ended = re.findall(rf"^\[ *\d+/{count}\] (\S+): \d", said, re.MULTILINE)
    assert len(ended) == len(set(ended)) == count > 100
    assert "(raylet)" not in said + complaints  # nothing of Ray's own between the lines
    tables = [
        pd.read_csv(tmp_path / engine / "results" / "smoke" / records.RUNS)
        for engine in ("local", "ray")
    ]
    assert all(table.run.is_unique for table in tables) and len(tables[0]) == count
    results = ["run", "test_accuracy", "validation_accuracy", "weights_sha256"]
    pd.testing.assert_frame_equal(tables[0][results], tables[1][results])
    assert not list((tmp_path / "ray").glob("*/.shared-*"))


def refusal(process: subprocess.Popen) -> str:
    """The one line that a command ends with."""
    said, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2, said + complaint
    assert complaint.count("\n") == 1, complaint
    return complaint


def can_mount() -> bool:
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


@with_ray
@pytest.mark.skipif(not shutil.which("unshare"), reason="unshare is not installed")
def test_folder_that_a_machine_has_to_itself_is_refused(tmp_path):
    if not can_mount():
        pytest.skip("this user may not mount a folder for one process")
    runs = tmp_path / "runs"
    runs.mkdir()
    alone = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {runs} && exec "$@"', "sh"]
    with nodes() as machines:
        machines.add()
        machines.add(prefix=alone)
        said = refusal(reproduce(tmp_path, machines.address))
    assert f"cannot make runs: DPP_RUNS={runs} is not shared" in said
    assert not any(runs.iterdir()) and not any((tmp_path / "data").iterdir())


@with_ray
def test_other_code_on_a_machine_is_refused(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "code" / "dpp")
    with (tmp_path / "code" / "dpp" / "ops.py").open("a") as file:
        file.write("# another version\n")
    other = os.pathsep.join([str(tmp_path / "code"), os.environ.get("PYTHONPATH", "")])
    with nodes() as machines:
        machines.add()
        machines.add(PYTHONPATH=other)
        said = refusal(reproduce(tmp_path, machines.address))
    assert re.search("cannot make runs: dpp is .* with code .* there and .* here", said)
    assert not any((tmp_path / "runs").iterdir())


TRUNKS = """
import json
import sys
from pathlib import Path
import torch
from test_run_queue import digests, photo
from dpp import runs
from dpp.paper import engines, run_queue
if __name__ == "__main__":  # the local pool starts processes that import this
    torch.set_num_threads(1)
    folder, address = Path(sys.argv[1]), sys.argv[2]
    wanted = [photo(folder), photo(folder, model="cnn"), photo(folder, frozen_trunk="layer9")]
    if address:
        runs.prepare = None  # in this process: features are the cluster's to compute
    root = folder / ("ray" if address else "local")
    engine = engines.choose("ray" if address else "local", 0 if address else 1, address)
    failed = run_queue.run_all(wanted, root=root, engine=engine)
    print(json.dumps([digests(root), list(failed.values())]))
"""


@with_ray
def test_trunk_features_are_a_task_that_the_runs_on_them_wait_for(tmp_path):
    write_cub(tmp_path / "birds", train=5)
    (tmp_path / "trunks.py").write_text(TRUNKS)
    tests = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])

    def make(address: str) -> list:
        name = "ray" if address else "local"
        own = {f"DPP_{name}": str(tmp_path / name.lower()) for name in ("RUNS", "RESULTS")}
        own |= {"DPP_DATA": str(tmp_path / f"{name}_data"), "PYTHONPATH": tests}
        command = [sys.executable, "trunks.py", tmp_path, address]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, env=os.environ | own, cwd=tmp_path, **pipes)
        said, complaints = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said + complaints
        return json.loads(said.splitlines()[-1])

    with nodes() as machines:
        machines.add()
        machines.add()  # where a run that did not wait would begin at once
        made, [failed] = make(machines.address)
    assert "no layer 'layer9'" in failed
    features = list((tmp_path / "ray_data" / "cache" / "trunk").glob("*/features.bin"))
    begun = [path / "experiment.json" for path in (tmp_path / "ray").glob("*/")]
    assert len(features) == len(begun) == len(made) == 2
    assert max(map(os.path.getmtime, features)) < min(map(os.path.getmtime, begun))
    assert [made, [failed]] == make("")


STOPPED = """
import sys
from pathlib import Path
from dpp.paper import engines, run_queue
from dpp.training.experiments import make_experiment
long = make_experiment("smoke", backbone="slim_vgg16_bn", weights="none", epochs=2000)
try:
    run_queue.run_all([long], root=Path(sys.argv[1]), engine=engines.choose("ray", 0, sys.argv[2]))
except KeyboardInterrupt as stop:
    print(stop)
"""


@with_ray
def test_stop_saves_what_the_cluster_is_making(tmp_path):
    (tmp_path / "stopped.py").write_text(STOPPED)
    own = {"DPP_DATA": str(tmp_path / "data"), "DPP_RESULTS": str(tmp_path / "results")}
    with nodes() as machines:
        machines.add()
        command = [sys.executable, tmp_path / "stopped.py", tmp_path / "runs", machines.address]
        process = subprocess.Popen(
            command, env=os.environ | own, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        wait_until(lambda: any(tmp_path.glob("runs/*/metrics.csv")), process)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE)[0]
    assert "stopped; runs in progress are saved: run the same command to resume" in said
    [folder] = (tmp_path / "runs").glob("deformable-*")
    assert checkpoints.find_states(folder) and not files.is_locked(folder)
