"""What a folder of images holds, as one digest: of the names and the contents of its files.

Contents are read once: under `cache/hashes` in the data root a file keeps the hash of each version
of a file that was read, by path, size, times and inode. It may be deleted at any time.
"""

import functools
import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dpp.system import files
from dpp.system.errors import UserError
from dpp.system.paths import data_root

SYSTEM = tuple(map(Path, ("/proc", "/sys", "/dev")))  # what looks like files there is none


def folder_digest(folder: Path) -> str:
    """The SHA-256 of the names of a folder's files and of the hashes of their contents.

    Raises:
        UserError: a file cannot be read, or the folder is not one of files.
    """
    folder = folder.resolve()
    refuse_system(folder)
    try:
        versions = {str(path.relative_to(folder)): files.version(path) for path in walk(folder)}
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be read: {error.strerror}") from error
    return _digest(folder, tuple(sorted(versions.items())))


def refuse_system(folder: Path) -> None:
    """Raises a `UserError` for a folder of the system, whose files can be endless."""
    if any(folder.resolve().is_relative_to(system) for system in SYSTEM):
        raise UserError(f"{folder} is the system's and holds no images: give a folder of images")


@functools.lru_cache(maxsize=8)
def _digest(folder: Path, versions: tuple[tuple[str, tuple[int, ...]], ...]) -> str:
    kept_at = data_root() / "cache" / "hashes" / f"{files.sha256_of_json(str(folder))[:16]}.json"
    kept = read_hashes(kept_at)
    hashes = {}
    for name, version in versions:
        known = kept.get(name, [])
        same = known[:-1] == list(version)
        hashes[name] = [*version, known[-1] if same else files.sha256(folder / name)]
    if hashes != kept:
        with suppress(UserError):  # a data root that is read-only: they are read each time
            files.write_json(kept_at, {"sha256": files.sha256_of_json(hashes), "hashes": hashes})
    lines = [f"{hashes[name][-1]} {name}" for name, _ in versions]
    return hashlib.sha256(os.fsencode("\n".join(lines))).hexdigest()


def walk(folder: Path) -> Iterator[Path]:
    """All files under a folder, also in folders that are links; each real folder once."""

    def fail(error: OSError) -> None:
        raise error

    seen = set()
    for parent, inner, names in os.walk(folder, followlinks=True, onerror=fail):
        if (place := os.path.realpath(parent)) in seen:
            inner.clear()
            continue
        seen.add(place)
        yield from (path for name in names if (path := Path(parent, name)).is_file())


def read_hashes(path: Path) -> dict[str, list]:
    """The hashes that were kept, by name; empty if there are none, or if they are damaged."""
    try:
        content = files.read_json(path)
        whole = content["sha256"] == files.sha256_of_json(content["hashes"])
        return content["hashes"] if whole and isinstance(content["hashes"], dict) else {}
    except (UserError, KeyError, TypeError):
        return {}
