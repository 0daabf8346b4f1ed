"""Files that are whole or not there: killed writers, full disks, damage, and planted pickles."""

import hashlib
import io
import json
import multiprocessing
import os
import pickle
import resource
import shutil
import subprocess
import sys
import time
import warnings
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch

from dpp.runs import checkpoints
from dpp.system import files
from dpp.system.errors import UserError

FORK = multiprocessing.get_context("fork")  # a child that has torch already


def some_state(step: int, size: int = 1000) -> dict:
    """Every kind of value; each part says which step it belongs to."""
    return {
        "step": step,
        "weights": {"conv": torch.full((size,), float(step)), "half": torch.ones(2).half()},
        "optimizer": [{0: (torch.tensor(step), 0.1, None, True)}, "sgd"],
        "random": torch.Generator().manual_seed(step).get_state(),
    }


def is_equal(left, right) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(is_equal(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and all(map(is_equal, left, right))
    return type(left) is type(right) and left == right


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def steps(folder: Path) -> list[int]:
    return sorted(checkpoints.step_of(path) for path in folder.glob("state-*.pt"))


# Round trips


def test_write_file_in_new_folder_leaves_only_the_file(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    files.write_file(path, b"first")
    files.write_file(path, b"second")
    assert path.read_bytes() == b"second"
    assert names(path.parent) == ["file"]


def test_json_comes_back_in_order(tmp_path):
    value = {"z": 1, "a": [1.5, None, True, "Größe", "\udcff"]}
    files.write_json(tmp_path / "v.json", value)
    back = files.read_json(tmp_path / "v.json")
    assert back == value and list(back) == ["z", "a"]
    assert (tmp_path / "v.json").read_text().endswith("}\n")


def test_tensors_come_back_with_metadata(tmp_path):
    path = tmp_path / "w.safetensors"
    base = torch.arange(12.0, requires_grad=True).reshape(3, 4)
    tensors = {
        "turned": base.T,
        "view": base[1:],  # shares memory with the other
        "none": torch.empty(0, 3),
        "scalar": torch.tensor(True),
        "brain": torch.ones(3, dtype=torch.bfloat16),
    }
    digest = checkpoints.write_tensors(path, tensors, {"model": "größer", "a": "b"})
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert is_equal(tensors, {**tensors, **checkpoints.read_tensors(path, digest)})
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"model": "größer", "a": "b"}


def test_tensors_equal_give_equal_files(tmp_path):
    metadata = {str(i): str(i) for i in range(8)}  # the library shuffles these
    tensors = {"b": torch.ones(3).half(), "a": torch.zeros(5)}
    turned = dict(reversed(tensors.items()))
    digests = {
        checkpoints.write_tensors(tmp_path / "w", given, metadata)
        for given in [tensors, turned] * 4
    }
    assert len(digests) == 1


def test_state_comes_back_with_every_type(tmp_path):
    path = checkpoints.save_state(tmp_path, 12, some_state(12))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.name == f"state-00000012-{digest[:16]}.pt"
    assert is_equal(checkpoints.read_state(path), some_state(12))
    assert is_equal(checkpoints.latest_state(tmp_path), some_state(12))


def test_state_of_a_model_and_optimizer_comes_back(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    path = checkpoints.save_state(tmp_path, 1, state)
    back = checkpoints.read_state(path)
    model.load_state_dict(back["model"])
    optimizer.load_state_dict(back["optimizer"])
    again = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    assert checkpoints.save_state(tmp_path, 1, again) == path


def test_states_equal_have_one_name_whatever_their_objects(tmp_path):
    word = "".join(["s", "g", "d"])  # not the object that the literal is
    big = torch.arange(100_000.0)
    one = {"sgd": "sgd", "view": big[:2], "tied": [big[:2], big[:2]]}
    two = OrderedDict(sgd=word, view=big[:2].clone(), tied=[big[:2].clone(), big[:2].clone()])
    path = checkpoints.save_state(tmp_path, 1, one)
    assert checkpoints.save_state(tmp_path, 1, two) == path
    assert path.stat().st_size < 10_000  # not the 400 kB of which it is a view


@pytest.mark.parametrize("value", [np.float64(1), np.zeros(2), {1, 2}, Path("x"), b"x"])
def test_save_state_refuses_what_could_not_be_read(tmp_path, value):
    with pytest.raises(TypeError, match=r"state\['a'\]\[1\] is a "):
        checkpoints.save_state(tmp_path, 1, {"a": [0, value]})
    assert not names(tmp_path)


# Which states stay


def test_save_state_keeps_the_two_newest(tmp_path):
    for step in (5, 10, 15, 20):
        checkpoints.save_state(tmp_path, step, some_state(step))
    assert steps(tmp_path) == [15, 20]


def test_save_state_after_going_back_is_the_newest(tmp_path):
    for step in (10, 20):
        checkpoints.save_state(tmp_path, step, some_state(step))
    checkpoints.save_state(tmp_path, 15, some_state(15))
    assert steps(tmp_path) == [10, 15]
    other = {**some_state(15), "optimizer": "another"}
    checkpoints.save_state(tmp_path, 15, other)
    assert steps(tmp_path) == [10, 15]
    assert is_equal(checkpoints.latest_state(tmp_path), other)


def test_save_state_leaves_other_files(tmp_path):
    for name in ("metrics.csv", "state-notes.pt", ".hidden"):
        (tmp_path / name).write_text("mine")
    for step in (1, 2, 3):
        checkpoints.save_state(tmp_path, step, some_state(step))
    assert set(names(tmp_path)) >= {"metrics.csv", "state-notes.pt", ".hidden"}


def test_latest_state_counts_steps_past_eight_digits(tmp_path):
    checkpoints.save_state(tmp_path, 99_999_999, some_state(1))
    checkpoints.save_state(tmp_path, 100_000_000, some_state(2))
    assert checkpoints.latest_state(tmp_path)["step"] == 2


@pytest.mark.parametrize("folder", ["", "not there"])
def test_latest_state_without_states_is_none(tmp_path, folder):
    assert checkpoints.latest_state(tmp_path / folder) is None


# Damage


def cut(length):
    return lambda content: content[:length]


def flip(place):
    def damage(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[place] ^= 1
        return bytes(changed)

    return damage


DAMAGES = {
    "empty": cut(0),
    "one byte": cut(1),
    "a header": cut(100),
    "half": lambda content: content[: len(content) // 2],
    "all but one": cut(-1),
    "one more": lambda content: content + b"\0",
    "first bit": flip(0),
    "a bit of a weight": flip(1500),
    "last bit": flip(-1),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_state_damaged_is_refused_and_the_older_taken(tmp_path, damage):
    older = checkpoints.save_state(tmp_path, 1, some_state(1))
    newer = checkpoints.save_state(tmp_path, 2, some_state(2))
    newer.write_bytes(damage(newer.read_bytes()))
    with pytest.raises(UserError, match=f"{newer.name} is damaged"):
        checkpoints.read_state(newer)
    with pytest.warns(UserWarning) as caught:
        assert is_equal(checkpoints.latest_state(tmp_path), some_state(1))
    (line,) = [str(warning.message) for warning in caught]
    assert line.startswith(f"{newer} is damaged") and line.endswith(f"using {older.name} instead")
    assert "\n" not in line


def test_latest_state_with_all_damaged_names_them(tmp_path):
    for step in (1, 2):
        checkpoints.save_state(tmp_path, step, some_state(step)).write_bytes(b"")
    with pytest.raises(UserError, match="Remove them to start from") as caught:
        checkpoints.latest_state(tmp_path)
    assert all(str(path) in str(caught.value) for path in tmp_path.iterdir())


def test_latest_state_passes_over_one_that_does_not_fit(tmp_path):
    def check(state):
        if state["step"] == 2:
            raise UserError("it was made with another seed")

    older, newer = (checkpoints.save_state(tmp_path, n, some_state(n)) for n in (1, 2))
    with pytest.warns(UserWarning, match=f"{newer.name}: it was made .* using {older.name}"):
        assert checkpoints.latest_state(tmp_path, check)["step"] == 1


def test_read_state_refuses_other_names_and_missing_files(tmp_path):
    path = checkpoints.save_state(tmp_path, 1, some_state(1))
    with pytest.raises(UserError, match="the name must be state-"):
        checkpoints.read_state(path.rename(tmp_path / "state.pt"))
    with pytest.raises(UserError, match=f"{path.name} cannot be read: No such file"):
        checkpoints.read_state(path)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_tensors_damaged_are_refused_by_digest(tmp_path, damage):
    path = tmp_path / "w.safetensors"
    digest = checkpoints.write_tensors(path, {"a": torch.arange(1000.0)})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match="w.safetensors is damaged or replaced"):
        checkpoints.read_tensors(path, digest)


@pytest.mark.parametrize("damage", [name for name in DAMAGES if "bit" not in name])
def test_tensors_of_another_length_are_refused_without_digest(tmp_path, damage):
    path = tmp_path / "w.safetensors"
    checkpoints.write_tensors(path, {"a": torch.arange(1000.0)})
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(UserError, match="w.safetensors is damaged, or is not a safetensors"):
        checkpoints.read_tensors(path)


@pytest.mark.parametrize("content", [b"", b'{"a": [1, 2', b"\xff\xfe\x80", b"[" * 200_000])
def test_json_damaged_is_refused(tmp_path, content):
    path = tmp_path / "v.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match="v.json is damaged"):
        files.read_json(path)


@pytest.mark.parametrize("read", [files.read_json, checkpoints.read_tensors])
def test_reading_what_is_not_there_or_a_folder_is_refused(tmp_path, read):
    with pytest.raises(UserError, match="nothing cannot be read: No such file"):
        read(tmp_path / "nothing")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read(tmp_path)


# Planted code


class Payload:
    """A pickle of it creates a file when it is loaded."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def planted(kind: str, path: Path) -> bytes:
    payload = {"step": 3, "weights": Payload(path)}
    if kind == "pickle":
        return pickle.dumps(payload, protocol=2)  # the one that torch itself writes
    buffer = io.BytesIO()
    torch.save(payload, buffer, _use_new_zipfile_serialization=kind == "torch")
    return buffer.getvalue()


KINDS = ("pickle", "torch", "torch's old format")


@pytest.mark.parametrize("kind", KINDS)
def test_payload_runs_when_pickle_is_let(tmp_path, kind):
    """Otherwise the tests below would show nothing."""
    with suppress(RuntimeError):  # from what comes after the payload
        torch.load(io.BytesIO(planted(kind, tmp_path / "ran")), weights_only=False)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_payload_does_not_run_as_a_state(tmp_path, kind, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    folder, ran = tmp_path / "run", tmp_path / "ran"
    checkpoints.save_state(folder, 1, some_state(1))
    content = planted(kind, ran)
    path = folder / f"state-00000003-{hashlib.sha256(content).hexdigest()[:16]}.pt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{path.name} was not written by this program"):
        checkpoints.read_state(path)
    with pytest.warns(UserWarning, match=f"{path.name} was not written by this program"):
        assert checkpoints.latest_state(folder)["step"] == 1
    assert not ran.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_payload_does_not_run_as_tensors_or_json(tmp_path, kind):
    ran, path = tmp_path / "ran", tmp_path / "planted"
    path.write_bytes(planted(kind, ran))
    with pytest.raises(UserError, match="is not a safetensors file"):
        checkpoints.read_tensors(path, hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(UserError, match="is not JSON"):
        files.read_json(path)
    assert not ran.exists()


def test_state_that_is_no_dictionary_is_refused(tmp_path):
    buffer = io.BytesIO()
    torch.save([1], buffer)
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    path = tmp_path / f"state-00000001-{digest[:16]}.pt"
    path.write_bytes(buffer.getvalue())
    with pytest.raises(UserError, match="does not contain a dictionary"):
        checkpoints.read_state(path)


# Killed writers


def save_for_ever(folder: Path, step: int) -> None:
    torch.set_num_threads(1)  # a fork does not have the parent's threads and would wait for them
    while True:
        step += 1
        checkpoints.save_state(folder, step, some_state(step, 500_000))  # 2 MB
        files.write_json(folder / "progress.json", {"steps": [step] * 10_000})


def test_files_are_whole_after_kills(tmp_path):
    last, kills, unfinished = 0, 0, 0
    while kills < 8 or not unfinished:  # until one was killed as it wrote
        writer = FORK.Process(target=save_for_ever, args=(tmp_path, last), daemon=True)
        writer.start()
        patience = time.monotonic() + 30
        while not any(step > last + 1 for step in steps(tmp_path)):
            time.sleep(0.001)
            assert writer.is_alive() and time.monotonic() < patience
        time.sleep(0.005 * (kills % 8))
        writer.kill()
        writer.join()
        kills += 1
        unfinished += len(list(tmp_path.glob(".*.tmp")))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            state = checkpoints.latest_state(tmp_path)
        assert state["step"] > last
        last = state["step"]
        assert is_equal(state, some_state(last, 500_000))
        assert len(set(files.read_json(tmp_path / "progress.json")["steps"])) == 1
        assert kills < 100
    checkpoints.save_state(tmp_path, last + 1, some_state(last + 1))
    assert not any(path.stat().st_size for path in tmp_path.glob(".*.tmp"))
    assert len(steps(tmp_path)) == 2


def write_slowly(path: Path, started, go) -> None:
    sync = os.fsync

    def wait(handle: int) -> None:
        started.set()
        go.wait(10)
        sync(handle)

    os.fsync = wait
    files.write_file(path, b"slow")


def test_remove_abandoned_spares_a_file_being_written(tmp_path):
    started, go = FORK.Event(), FORK.Event()
    writer = FORK.Process(target=write_slowly, args=(tmp_path / "slow", started, go))
    writer.start()
    assert started.wait(10)
    files.remove_abandoned(tmp_path)
    (name,) = names(tmp_path)
    assert name.startswith(".slow.")
    go.set()
    writer.join(10)
    assert names(tmp_path) == ["slow"]


def test_remove_abandoned_removes_the_file_of_a_dead_writer(tmp_path):
    started, go = FORK.Event(), FORK.Event()
    writer = FORK.Process(target=write_slowly, args=(tmp_path / "slow", started, go))
    writer.start()
    assert started.wait(10)
    writer.kill()
    writer.join(10)
    assert len(names(tmp_path)) == 1
    files.remove_abandoned(tmp_path)
    assert not names(tmp_path)


def test_remove_abandoned_removes_the_empty_file_of_a_dead_writer(tmp_path):
    (tmp_path / ".file.0123abcd.tmp").touch()
    files.remove_abandoned(tmp_path)
    assert not names(tmp_path)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_write_file_interrupted_leaves_no_temporary(tmp_path, monkeypatch, call):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    files.write_file(tmp_path / "file", b"old")
    monkeypatch.setattr(files.os, call, interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write_file(tmp_path / "file", b"new")
    assert names(tmp_path) == ["file"] and (tmp_path / "file").read_bytes() == b"old"


# No room, no permission


def run_in_child(work) -> None:
    """In a process of its own, for limits and rights that cannot be had back.

    The work returns None, or why it cannot be done here.
    """

    def report(sender):
        torch.set_num_threads(1)
        try:
            sender.send((work(), None))
        except BaseException as error:
            sender.send((None, repr(error)))

    receiver, sender = FORK.Pipe(duplex=False)
    child = FORK.Process(target=report, args=(sender,))
    child.start()
    sender.close()
    skipped, failed = receiver.recv() if receiver.poll(30) else (None, "it does not answer")
    child.kill()
    child.join()
    if skipped:
        pytest.skip(skipped)
    assert not failed, failed


def test_save_state_past_the_file_limit_leaves_the_old(tmp_path):
    old = checkpoints.save_state(tmp_path, 1, some_state(1))

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))  # Python ignores SIGXFSZ
        with pytest.raises(UserError, match=r"state-00000002.*it is larger than .* no file was"):
            checkpoints.save_state(tmp_path, 2, some_state(2, 100_000))
        with pytest.raises(UserError, match=f"{old.name}.* the previous file is intact"):
            files.write_file(old, bytes(100_000))

    run_in_child(work)
    assert names(tmp_path) == [old.name]
    assert is_equal(checkpoints.latest_state(tmp_path), some_state(1))


FILL = """
import sys, warnings
from pathlib import Path
from dpp.system import files
from dpp.runs import checkpoints
import torch
warnings.simplefilter("error")
folder = Path(sys.argv[1])
files.write_json(folder / "v.json", {"old": 1})
old = checkpoints.save_state(folder, 1, {"a": torch.ones(1000)})
for write in (
    lambda: checkpoints.save_state(folder, 2, {"a": torch.ones(100_000)}),
    lambda: checkpoints.write_tensors(folder / "w", {"a": torch.ones(100_000)}),
    lambda: files.write_json(folder / "v.json", [1] * 100_000),
):
    try:
        write()
        sys.exit("it did fit")
    except files.UserError as error:
        print(error)
assert {path.name for path in folder.iterdir()} == {"v.json", old.name}
assert files.read_json(folder / "v.json") == {"old": 1}
assert torch.equal(checkpoints.latest_state(folder)["a"], torch.ones(1000))
"""


def test_writing_on_a_full_disk_leaves_the_old(tmp_path):
    mount = f"mount -t tmpfs -o size=128k none '{tmp_path}'"
    own = ["unshare", "--map-root-user", "--mount", "sh", "-ec"]  # the mount ends with the process
    if not shutil.which("unshare") or subprocess.run([*own, mount], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here: unshare or mount is not allowed")
    command = [*own, f'{mount}; exec "$@"', "sh", sys.executable, "-c", FILL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and all("there is no room on the disk" in line for line in lines)
    assert "v.json" in lines[2] and "the previous file is intact" in lines[2]


def test_writing_in_a_folder_without_permission_is_refused(tmp_path):
    files.write_json(tmp_path / "v.json", {"old": 1})

    def work():
        os.chdir(tmp_path)  # the folders above may be closed to others
        if os.geteuid() == 0:  # who may write anywhere
            try:
                os.seteuid(65534)
            except OSError:
                return "root may write anywhere, and there is no other user to become"
        with pytest.raises(UserError, match="v.json .*Permission denied; the previous .* intact"):
            files.write_json(Path("v.json"), {"new": 1})
        with pytest.raises(UserError, match="closed/v.json .*Permission denied"):
            files.write_json(Path("closed/v.json"), {"new": 1})

    (tmp_path / "closed").mkdir(0o000)
    tmp_path.chmod(0o555)
    try:
        run_in_child(work)
    finally:
        tmp_path.chmod(0o755)
    (tmp_path / "closed").rmdir()  # still empty
    assert names(tmp_path) == ["v.json"]
    assert json.loads((tmp_path / "v.json").read_text()) == {"old": 1}


def test_writing_under_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="could not be written: .*no file was left"):
        files.write_json(tmp_path / "file" / "v.json", 1)
