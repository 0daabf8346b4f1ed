"""Atomic files and folders, hashes, and locks on folders.

A file is written under a hidden name beside its path, flushed to the disk, then renamed: a killed
process or a full disk leaves the previous file intact. A folder is built in the same way. Nothing
here reads or writes pickle.
"""

import errno
import fcntl
import functools
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from dpp.system.errors import UserError

UNFINISHED = re.compile(r"\..+\.[0-9a-f]{8}\.unfinished")  # a folder being built
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
NO_ROOM = {
    errno.ENOSPC: "there is no room on the disk",
    errno.EDQUOT: "there is no room left in your quota",
    errno.EFBIG: "it is larger than this process or disk allows",
}


def write_file(path: Path, content: bytes) -> None:
    """Writes a file atomically, and makes the folders above it.

    Raises:
        UserError: it could not be written; the previous file, if any, is intact.
    """
    with file_written_beside(path, f" ({len(content):,} bytes)") as temporary:
        with temporary.open("wb") as file:
            file.write(content)


@contextmanager
def file_written_beside(path: Path, size: str = "") -> Iterator[Path]:
    """Writes a file in pieces that is there complete or not at all; see `write_file` for bytes.

    Args:
        path: the file's final path; the folders above it are made.
        size: for the message of a failure.

    Yields:
        A hidden path beside it, to be written to; it is renamed at the block's end. The leftovers
        of killed processes that wrote the same file are removed then.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _new_and_locked(path, "tmp") as (temporary, handle):
            yield temporary
            os.fsync(handle)
            os.replace(temporary, path)
    except OSError as error:
        reason = NO_ROOM.get(error.errno, error.strerror)
        exists = os.path.exists(path)  # False, not an error, in a folder that may not be read
        outcome = "the previous file is intact" if exists else "no file was left"
        raise UserError(
            f"{path}{size} could not be written: {reason}; {outcome}. Fix that, or write to "
            "another disk, and run the command again"
        ) from error
    remove_abandoned(path.parent, path.name)
    with suppress(OSError):  # not every file system can; without it, a crash may undo the rename
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def _new_and_locked(path: Path, kind: str) -> Iterator[tuple[Path, int]]:
    """Makes an empty file or folder ("tmp" or "unfinished") with a hidden name beside a path.

    It is locked until the block ends, and removed then if it is still there. The kernel releases
    the lock however its holder ends, and whoever finds it free removes what it belonged to. That
    may happen between the making and the locking too: then another one is made.

    Yields:
        Its path and an open handle.
    """
    while True:
        hidden = path.with_name(f".{path.name}.{secrets.token_hex(4)}.{kind}")
        if kind == "tmp":
            hidden.touch(exist_ok=False)
        else:
            hidden.mkdir()
        with ExitStack() as stack:
            stack.callback(_remove, hidden)
            try:
                handle = _open(hidden)
            except FileNotFoundError:
                continue
            stack.callback(os.close, handle)
            with suppress(OSError):  # a file system without locks: nobody removes anything there
                fcntl.flock(handle, fcntl.LOCK_EX)
            if os.path.exists(hidden):
                yield hidden, handle
                return


def _open(path: Path) -> int:
    """A handle to lock a file or a folder by.

    For `flock` itself: `filelock` locks a file by its path, and creates it if it is not there, but
    these locks belong to files that are open already and are about to be renamed or removed.
    """
    return os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)


def _remove(path: Path) -> None:
    """Removes a file or a folder, as far as it is there and may be removed."""
    with suppress(OSError):
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def _remove_unlocked(path: Path) -> None:
    """Removes a hidden file or folder whose maker has ended: its lock is free."""
    with suppress(OSError), ExitStack() as stack:
        handle = _open(path)
        stack.callback(os.close, handle)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(path)


def check_writable(path: Path) -> None:
    """Raises a `UserError` if a file cannot be written; the folders above it are made.

    For what takes minutes, so that this is known before.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
        folder, denied = path.is_dir(), path.exists() and not os.access(path, os.W_OK)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
    if folder:
        raise UserError(f"{path} cannot be written: it is a folder; give the name of a file")
    if denied:
        raise UserError(f"{path} cannot be written: permission denied")


def read_file(path: Path) -> bytes:
    """The content of a file, or a `UserError` that says why it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    return hash_file(path, "sha256")


def known_sha256(path: Path) -> str:
    """The SHA-256 of a file, computed once while its size, times and inode stay the same."""
    try:
        return _sha256_of_version(path, *version(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def version(path: Path) -> tuple[int, ...]:
    """What changes when a file is written to or replaced: size, times, inode."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


@functools.lru_cache(maxsize=32)
def _sha256_of_version(path: Path, *version: int) -> str:
    return sha256(path)


def sha256_of_bytes(content: bytes) -> str:
    """The SHA-256 of what a file holds or will hold, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def sha256_of_json(value) -> str:
    """The SHA-256 of numbers, strings, lists and dictionaries, as they are after `read_json`."""
    return sha256_of_bytes(json.dumps(value, sort_keys=True).encode())


def hash_file(path: Path, algorithm: str) -> str:
    """The hash of a file, which is read in blocks, or a `UserError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def write_json(path: Path, value) -> None:
    """Writes numbers, strings, lists and dictionaries as JSON; the order of keys is kept."""
    write_file(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path):
    """Reads what `write_json` wrote."""
    content = read_file(path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged, or is not JSON: {error}") from error


def remove_abandoned(folder: Path, name: str = "") -> None:
    """Removes the unfinished files of processes that have ended: of one name, or all."""
    for path in folder.glob(f".{glob.escape(name) or '*'}.*.tmp"):
        _remove_unlocked(path)


@contextmanager
def folder_built_beside(path: Path, inner: str = "") -> Iterator[Path]:
    """Builds a folder that is there complete or not at all.

    The block fills a folder with a hidden name beside `path`, which is renamed to `path` at the
    block's end. If another process was quicker, its folder is kept. If the block raises, nothing is
    left; the leftovers of killed processes are removed when the next folder is built beside them.

    Args:
        path: the folder's final path.
        inner: the folder inside the hidden one that becomes `path`, instead of all of it.

    Yields:
        The hidden folder, empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(path.parent)
    with _new_and_locked(path, "unfinished") as (unfinished, _):
        yield unfinished
        try:
            (unfinished / inner).rename(path)
        except OSError:
            if not path.is_dir():  # otherwise another process was quicker
                raise


def remove_unfinished(parent: Path) -> None:
    """Removes the unfinished folders of processes that have ended."""
    for path in parent.iterdir():
        if UNFINISHED.fullmatch(path.name):
            _remove_unlocked(path)


class BusyError(UserError):
    """Another process holds a folder's lock."""


@contextmanager
def locked(folder: Path, wait: bool = True, waiting: str = "") -> Iterator[None]:
    """Holds a folder's lock, its file `.lock`; where the file system has no locks, nobody waits.

    Args:
        folder: is made if it is not there.
        wait: until no other process holds the lock, instead of raising at once.
        waiting: printed if there is one to wait for.

    Raises:
        BusyError: another process holds the lock, and `wait` is False.
        UserError: the folder cannot be written to.
    """
    lock = FileLock(folder / ".lock", blocking=wait, fallback_to_soft=False)
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if waiting:
                with suppress(Timeout):
                    stack.enter_context(lock.acquire(blocking=False))
                if not lock.is_locked:
                    print(waiting, file=sys.stderr, flush=True)
            stack.enter_context(lock)
        except Timeout as error:
            raise BusyError(
                f"another process is at work in {folder}: wait until it has ended, then run the "
                "command again"
            ) from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise UserError(f"{folder} cannot be written to: {error.strerror}") from error
        yield


def is_locked(folder: Path) -> bool:
    """Whether another process holds the lock of a folder, which need not be there."""
    try:
        if (folder / ".lock").is_file():
            with locked(folder, wait=False):
                pass
    except BusyError:
        return True
    except UserError:  # it cannot be written to: whoever tries will say so
        pass
    return False
