"""Rows of numbers that were computed once and are kept on disk, memory-mapped.

A store is a folder: `features.bin`, the rows one after the other, and `about.json`, what they are
and the SHA-256 of each chunk of rows. It is computed chunk by chunk in a folder with `.part` after
its name, where `about.json` lists the chunks that are done: whoever is killed resumes there. The
complete folder is then renamed. Chunks that do not match their hash are computed again: all are
compared when a store is opened for the first time since `features.bin` was written to, and two at
each other time; `dpp cache --verify` compares all.
"""

import hashlib
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from dpp.system import files
from dpp.system.errors import UserError

FORMAT = 1
CHUNK = 64  # rows
Compute = Callable[[range], np.ndarray]  # from row numbers to rows


class FeatureStore:
    """Rows by number, once `open` has found them or `build` has computed them.

    Args:
        root: the folder that holds stores.
        kind: the beginning of the store's name, for people.
        key: all that the rows depend on, as JSON; its digest ends the name.
        rows: how many.
        shape: of a row.
        dtype: as numpy names it.
        what: one line for people.
    """

    def __init__(
        self,
        root: Path,
        kind: str,
        key: dict,
        rows: int,
        shape: Sequence[int],
        dtype: str = "float16",
        what: str = "",
    ):
        self.key = key | {"format": FORMAT, "rows": rows, "shape": list(shape), "dtype": dtype}
        text = json.dumps(self.key, sort_keys=True)
        self.folder = Path(root) / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self.part = self.folder.with_name(f"{self.folder.name}.part")
        self.rows, self.shape, self.dtype, self.what = rows, tuple(shape), np.dtype(dtype), what
        self.features: np.ndarray | None = None

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes

    def get(self, rows: Sequence[int]) -> np.ndarray:
        """A copy of some rows, (len(rows), *shape)."""
        return self.features[list(rows)]

    def open(self) -> str:
        """Maps the rows of a complete store that matches its hashes, see the top of this module.

        Returns:
            "" if it is open; otherwise what is wrong with it, or that it is not there.
        """
        if not self.folder.is_dir():
            return "it is not there"
        files.remove_abandoned(self.folder)
        if wrong := self._problem():
            return wrong
        with suppress(OSError):  # it may be another person's
            os.utime(self.folder / "about.json")  # when it was used, for `dpp cache`
        self._map()
        return ""

    def _map(self) -> None:
        path = self.folder / "features.bin"
        self.features = np.memmap(path, self.dtype, "r", shape=(self.rows, *self.shape))

    def _problem(self) -> str:
        digests = self._digests(self.folder)
        if digests is None:
            return "its about.json is damaged or is of another store"
        if None in digests:
            return "some of it was never computed"
        size = (self.folder / "features.bin").stat().st_size
        if size != self.bytes:
            return f"features.bin has {size:,} bytes and should have {self.bytes:,}"
        about = files.read_json(self.folder / "about.json")
        found = list(files.version(self.folder / "features.bin"))
        seen = about.get("verified") == found
        compared = {0, len(digests) - 1} if seen else range(len(digests))
        for number in sorted(compared):
            if chunk_digest(self, self.folder, number) != digests[number]:
                return f"chunk {number} does not match its hash"
        if not seen:
            with suppress(UserError):  # it may be another person's: compared each time
                files.write_json(self.folder / "about.json", about | {"verified": found})
        return ""

    def _digests(self, folder: Path) -> list[str | None] | None:
        """Of each chunk, None for one that is not done; None if the record is not this store's."""
        try:
            about = files.read_json(folder / "about.json")
            digests = about["chunks"]
            fits = about["key"] == self.key and isinstance(digests, list)
            fits = fits and len(digests) == len(self.chunks())
            return digests if fits and (folder / "features.bin").is_file() else None
        except (UserError, KeyError, TypeError):
            return None

    def chunks(self) -> list[range]:
        return [range(n, min(n + CHUNK, self.rows)) for n in range(0, self.rows, CHUNK)]

    def missing_bytes(self) -> int:
        """How much `build` would add to the disk."""
        done = self.part / "features.bin"
        return max(self.bytes - (allocated(done) if done.is_file() else 0), 0)

    def build(self, compute: Compute, *, progress: bool = False) -> None:
        """Computes what is not there yet, and opens the store.

        Another process that builds the same store is waited for, with a message. A complete store
        that is damaged gets its damaged chunks anew.

        Args:
            compute: gives rows (n, *shape) for n row numbers.
            progress: show a bar.
        """
        waiting = f"waiting: another process is computing {self.folder}"
        with files.locked(self.folder.parent / ".locks" / self.folder.name, waiting=waiting):
            if self.folder.is_dir():
                if not (wrong := self.open()):
                    return  # another process was quicker
                print(f"{self.folder} is damaged ({wrong}): computed again", file=sys.stderr)
                shutil.rmtree(self.part, ignore_errors=True)
                self.folder.rename(self.part)
            self._fill(compute, progress)
            self.part.rename(self.folder)
            self._map()

    def _fill(self, compute: Compute, progress: bool) -> None:
        digests = self._kept_chunks()
        about = {"what": self.what, "made": datetime.now(UTC).isoformat(timespec="seconds")}
        about |= {"bytes": self.bytes, "key": self.key, "chunks": digests}
        done = sum(len(rows) for rows, kept in zip(self.chunks(), digests, strict=True) if kept)
        bar = {"total": self.rows, "initial": done, "desc": "trunk features", "unit": "map"}
        with self._written() as file, tqdm(**bar, disable=not progress) as bar:
            for number, rows in enumerate(self.chunks()):
                if digests[number]:
                    continue
                content = np.ascontiguousarray(compute(rows), self.dtype)
                if content.shape != (len(rows), *self.shape):
                    raise ValueError(f"rows of {content.shape[1:]}, not {self.shape}")
                if not np.isfinite(content).all():
                    raise UserError(
                        f"features {rows.start} to {rows.stop - 1} are NaN or too large for "
                        f"{self.dtype}: look at the backbone's weights"
                    )
                file.seek(rows.start * self.row_bytes)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                digests[number] = hashlib.sha256(content).hexdigest()
                files.write_json(self.part / "about.json", about)
                bar.update(len(rows))

    def _kept_chunks(self) -> list[str | None]:
        """The hashes of chunks that a stopped build left and that are as it wrote them."""
        digests = self._digests(self.part)
        if digests is None:
            shutil.rmtree(self.part, ignore_errors=True)
            return [None] * len(self.chunks())
        return [
            known if known and chunk_digest(self, self.part, number) == known else None
            for number, known in enumerate(digests)
        ]

    @contextmanager
    def _written(self) -> Iterator:
        """The file that rows are written to; what happens to it, in one line."""
        path = self.part / "features.bin"
        try:
            self.part.mkdir(parents=True, exist_ok=True)
            with path.open("r+b" if path.exists() else "w+b") as file:
                file.truncate(self.bytes)
                yield file
        except OSError as error:
            reason = files.NO_ROOM.get(error.errno, error.strerror or str(error))
            raise UserError(
                f"{path} could not be written: {reason}. What is done is kept: free some space or "
                "set DPP_DATA to another disk, and run the command again to resume"
            ) from error
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(
                f"stopped; what is done is kept in {self.part}: run the same command to resume"
            ) from stop

    def verify(self) -> list[int]:
        """The numbers of the chunks that do not match their hashes: every byte is read."""
        digests = self._digests(self.folder)
        if digests is None:
            return list(range(len(self.chunks())))
        return [n for n, known in enumerate(digests) if chunk_digest(self, self.folder, n) != known]

    def __getstate__(self) -> dict:
        """Without the mapped rows, which a pickle would copy; the other process maps them."""
        return self.__dict__ | {"features": None}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        if self.folder.is_dir():
            self._map()


def chunk_digest(store: FeatureStore, folder: Path, number: int) -> str:
    """The SHA-256 of a chunk as it is on the disk."""
    rows = store.chunks()[number]
    with (folder / "features.bin").open("rb") as file:
        file.seek(rows.start * store.row_bytes)
        return hashlib.sha256(file.read(len(rows) * store.row_bytes)).hexdigest()


def allocated(path: Path) -> int:
    """The bytes that a file takes on the disk, without its holes."""
    return path.stat().st_blocks * 512


def reopen(folder: Path) -> FeatureStore:
    """The store that a folder says it is, to verify it."""
    about = files.read_json(folder / "about.json")
    key = dict(about["key"])
    rows, shape, dtype = (key.pop(name) for name in ("rows", "shape", "dtype"))
    kind = folder.name.rpartition("-")[0]
    return FeatureStore(folder.parent, kind, key, rows, shape, dtype, about["what"])
