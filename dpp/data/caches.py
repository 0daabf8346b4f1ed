"""What is kept under `cache` in the data root to save time: listed, verified, removed.

All of it is made again when it is needed.
"""

import shutil
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from dpp.data.cache import is_whole
from dpp.data.feature_store import allocated, reopen
from dpp.system import files
from dpp.system.errors import UserError
from dpp.system.paths import data_root


class KeptCache(NamedTuple):
    """A folder that holds resized images or a trunk's features."""

    name: str
    what: str
    bytes: int  # on the disk
    used: float  # when it was last used, in seconds since the epoch
    folder: Path


def find_caches(root: Path | None = None) -> list[KeptCache]:
    """All caches under a data root, those used last first."""
    folder = (root or data_root()) / "cache"
    images = [describe_images(path) for path in folder.glob("*px-*") if path.is_dir()]
    trunks = [describe_trunk(path) for path in folder.glob("trunk/[!.]*") if path.is_dir()]
    return sorted(images + trunks, key=lambda kept: kept.used, reverse=True)


def describe_images(folder: Path) -> KeptCache:
    size = folder.name.lstrip(".").partition("px-")[0]
    unfinished = ", unfinished" if folder.name.startswith(".") else ""
    what = f"resized images, {size} px{unfinished}"
    return KeptCache(folder.name, what, folder_bytes(folder), last_use(folder), folder)


def describe_trunk(folder: Path) -> KeptCache:
    try:
        about = files.read_json(folder / "about.json")
        what, chunks = f"trunk features, {about['what']}", about["chunks"]
        if folder.suffix == ".part":
            done = sum(chunk is not None for chunk in chunks) / len(chunks)
            what += f", {done:.0%} done: the command that was stopped resumes it"
    except (UserError, KeyError, TypeError, ZeroDivisionError):
        what = "trunk features, damaged"
    return KeptCache(folder.name, what, folder_bytes(folder), last_use(folder), folder)


def folder_bytes(folder: Path) -> int:
    return sum(allocated(path) for path in folder.rglob("*") if path.is_file())


def last_use(folder: Path) -> float:
    status = [path.stat() for path in folder.rglob("*") if path.is_file()] or [folder.stat()]
    return max(max(s.st_atime, s.st_mtime) for s in status)


def as_text(caches: list[KeptCache]) -> str:
    """A line for each cache, and their sum."""
    if not caches:
        return f"no caches under {data_root() / 'cache'}"
    widths = [max(len(str(cache[column])) for cache in caches) for column in range(2)]
    lines = [
        f"{cache.name:{widths[0]}}  {cache.what:{widths[1]}}  {cache.bytes / 1e9:8.3f} GB  "
        f"used {datetime.fromtimestamp(cache.used):%Y-%m-%d %H:%M}"
        for cache in caches
    ]
    total = sum(cache.bytes for cache in caches) / 1e9
    return "\n".join([*lines, f"{total:.3f} GB in all under {data_root() / 'cache'}"])


def remove(name: str, root: Path | None = None) -> list[KeptCache]:
    """Removes a cache by its name, or all of them; gives what was removed."""
    caches = find_caches(root)
    chosen = [cache for cache in caches if name in ("all", cache.name)]
    if not chosen and name != "all":
        known = ", ".join(cache.name for cache in caches) or "none"
        raise UserError(f"there is no cache {name!r}: choose all or one of {known}")
    for cache in chosen:
        try:
            shutil.rmtree(cache.folder)
        except OSError as error:
            raise UserError(f"{cache.folder} cannot be removed: {error.strerror}") from error
    return chosen


def verify(root: Path | None = None) -> list[str]:
    """Reads every byte of the complete caches; a line for each."""
    lines = []
    for cache in find_caches(root):
        if cache.folder.suffix == ".part" or cache.name.startswith("."):
            continue
        whole = trunk_is_whole if cache.folder.parent.name == "trunk" else is_whole
        advice = f'damaged: run "dpp cache --remove {cache.name}"'
        matches = whole(cache.folder)
        lines.append(f"{cache.name}  {'all of it matches its hashes' if matches else advice}")
    return lines


def trunk_is_whole(folder: Path) -> bool:
    try:
        store = reopen(folder)
        return store.folder == folder and not store.verify()
    except (UserError, KeyError, TypeError, ValueError, OSError, AttributeError):
        return False
