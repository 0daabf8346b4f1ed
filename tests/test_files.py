"""Folders that are complete or absent, and locks on folders."""

import errno
import fcntl
import hashlib
import multiprocessing
import os
from pathlib import Path
from threading import Timer

import pytest

from dpp.system import files
from dpp.system.errors import UserError

FORK = multiprocessing.get_context("fork")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def build_slowly(path: Path, started, go) -> None:
    with files.folder_built_beside(path) as unfinished:
        (unfinished / "half").write_text("half")
        started.set()
        go.wait(10)


@pytest.fixture
def builder(tmp_path):
    """A process that is building the folder `slow`, and the event that lets it finish."""
    started, go = FORK.Event(), FORK.Event()
    process = FORK.Process(target=build_slowly, args=(tmp_path / "slow", started, go))
    process.start()
    assert started.wait(10)
    yield process, go
    if process.is_alive():  # to wake a killed process would wait for its answer
        go.set()
    process.join(10)


def test_folder_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "new" / "folder"
    with files.folder_built_beside(path) as unfinished:
        (unfinished / "file").write_text("content")
        assert not path.exists()
        (name,) = names(path.parent)
        assert name.startswith(".folder.")
    assert (path / "file").read_text() == "content"
    assert names(path.parent) == ["folder"]


def test_inner_folder_alone_is_kept(tmp_path):
    with files.folder_built_beside(tmp_path / "folder", "inner") as unfinished:
        (unfinished / "inner").mkdir()
        (unfinished / "inner" / "file").touch()
        (unfinished / "other").touch()
    assert names(tmp_path) == ["folder"] and names(tmp_path / "folder") == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_failed_block_leaves_nothing(tmp_path, error):
    with pytest.raises(error), files.folder_built_beside(tmp_path / "folder") as unfinished:
        (unfinished / "file").touch()
        raise error
    assert names(tmp_path) == []


def test_folder_of_a_quicker_process_is_kept(tmp_path):
    path = tmp_path / "folder"
    with files.folder_built_beside(path) as unfinished:
        (unfinished / "file").write_text("ours")
        path.mkdir()
        (path / "file").write_text("theirs")
    assert (path / "file").read_text() == "theirs"
    assert names(tmp_path) == ["folder"]


def test_file_in_the_way_is_an_error_and_stays(tmp_path):
    path = tmp_path / "folder"
    with pytest.raises(OSError), files.folder_built_beside(path):
        path.write_text("a file")
    assert names(tmp_path) == ["folder"] and path.is_file()


def test_leftovers_of_a_killed_process_are_removed_by_the_next(tmp_path, builder):
    process, _ = builder
    process.kill()
    process.join(10)
    assert len(names(tmp_path)) == 1
    with files.folder_built_beside(tmp_path / "other"):
        pass
    assert names(tmp_path) == ["other"]


def test_folder_that_another_process_is_building_is_spared(tmp_path, builder):
    process, go = builder
    with files.folder_built_beside(tmp_path / "other"):
        pass
    assert len(names(tmp_path)) == 2
    go.set()
    process.join(10)
    assert names(tmp_path) == ["other", "slow"]
    assert (tmp_path / "slow" / "half").exists()


def test_empty_folder_is_removed_and_foreign_ones_are_spared(tmp_path):
    empty, foreign = tmp_path / ".folder.0123abcd.unfinished", tmp_path / ".folder.unfinished"
    empty.mkdir()
    foreign.mkdir()
    (foreign / "file").touch()
    with files.folder_built_beside(tmp_path / "other"):
        pass
    assert names(tmp_path) == [foreign.name, "other"]


@pytest.mark.parametrize("moment", ["open", "flock"])
def test_folder_that_is_cleaned_before_it_is_locked_is_made_again(tmp_path, monkeypatch, moment):
    """Another process finds the new folder, unlocked, and removes it."""
    module = {"open": os, "flock": fcntl}[moment]
    original, removed = getattr(module, moment), []

    def late(*arguments):
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].rmdir()
        return original(*arguments)

    monkeypatch.setattr(module, moment, late)
    with files.folder_built_beside(tmp_path / "folder") as unfinished:
        assert removed and unfinished != removed[0]
        (unfinished / "file").touch()
    assert names(tmp_path) == ["folder"] and names(tmp_path / "folder") == ["file"]


def test_file_that_is_cleaned_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    lock, removed = fcntl.flock, []

    def late(*arguments):
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].unlink()
        return lock(*arguments)

    monkeypatch.setattr(fcntl, "flock", late)
    files.write_file(tmp_path / "file", b"content")
    assert removed and names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"content"


def write_in_pieces(path: Path, started, go) -> None:
    with files.file_written_beside(path) as unfinished:
        unfinished.write_text("half")
        started.set()
        go.wait(10)


def test_file_in_pieces_of_a_killed_process_is_removed_by_the_next(tmp_path):
    started, go = FORK.Event(), FORK.Event()
    writer = FORK.Process(target=write_in_pieces, args=(tmp_path / "file", started, go))
    writer.start()
    assert started.wait(10)
    with files.file_written_beside(tmp_path / "file") as unfinished:
        unfinished.write_text("of a quicker process")
    assert len(names(tmp_path)) == 2  # the other's is spared
    writer.kill()
    writer.join(10)
    files.write_file(tmp_path / "file", b"content")
    assert names(tmp_path) == ["file"]


# Locks


def hold(folder: Path, held, go) -> None:
    with files.locked(folder):
        held.set()
        go.wait(10)


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of `tmp_path`, and the event that lets it end."""
    held, go = FORK.Event(), FORK.Event()
    process = FORK.Process(target=hold, args=(tmp_path, held, go))
    process.start()
    assert held.wait(10)
    yield process, go
    if process.is_alive():
        go.set()
    process.join(10)


def test_unfinished_file_of_a_killed_process_is_removed_when_it_is_written_again(tmp_path):
    left, other = tmp_path / ".a[1].json.0123abcd.tmp", tmp_path / ".b.json.0123abcd.tmp"
    for path in (left, other):
        path.write_text("half")
    files.write_json(tmp_path / "a[1].json", {})
    assert names(tmp_path) == [other.name, "a[1].json"]


def test_lock_that_another_process_holds_is_refused_or_waited_for(tmp_path, holder):
    process, go = holder
    with pytest.raises(UserError, match="another process is at work in"):
        with files.locked(tmp_path, wait=False):
            pass
    go.set()
    with files.locked(tmp_path):
        process.join(10)
        assert process.exitcode == 0


def test_waiting_for_a_lock_is_said(tmp_path, holder, capfd):
    _, go = holder
    Timer(0.5, go.set).start()
    with files.locked(tmp_path, waiting="waiting for the other process"):
        assert capfd.readouterr().err == "waiting for the other process\n"
    with files.locked(tmp_path, waiting="waiting again"):
        assert capfd.readouterr().err == ""
    with files.locked(tmp_path, wait=False):
        pass


def test_lock_of_a_killed_process_is_free(tmp_path, holder):
    process, _ = holder
    process.kill()
    process.join(10)
    with files.locked(tmp_path, wait=False):
        pass


def test_lock_is_free_after_an_error(tmp_path):
    with pytest.raises(ValueError), files.locked(tmp_path / "new", wait=False):
        raise ValueError
    with files.locked(tmp_path / "new", wait=False):
        pass


@pytest.mark.parametrize("wait", [True, False])
def test_nobody_waits_where_there_are_no_locks(tmp_path, monkeypatch, wait):
    def refuse(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with files.locked(tmp_path, wait=wait), files.locked(tmp_path, wait=wait):
        pass


@pytest.mark.parametrize("wait", [True, False])
def test_folder_that_cannot_be_locked_is_named(tmp_path, wait):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file/folder cannot be written to: Not a directory"):
        with files.locked(tmp_path / "file" / "folder", wait=wait):
            pass


# Hashes


def test_hash_of_a_file_is_that_of_its_content(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content" * 100_000)
    assert files.sha256(path) == files.sha256_of_bytes(path.read_bytes())
    assert files.sha256_of_bytes(b"abc").startswith("ba7816bf8f01cfea414140de5dae2223b00361a3")
    assert files.hash_file(path, "md5") == hashlib.md5(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["absent", "."])
def test_hash_of_what_cannot_be_read_is_an_error(tmp_path, name):
    with pytest.raises(UserError, match="cannot be read: "):
        files.sha256(tmp_path / name)
