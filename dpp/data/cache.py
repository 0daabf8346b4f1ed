"""Decodes and resizes every image once, and keeps the pixels as they were decoded.

A folder of pixels is named by a hash of all that they depend on: the files (path, size, time of
change), the boxes if they crop, the size, and the decoder. Change one and a new folder is made. The
folder `cache` under the data root may be deleted at any time.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import PIL
from tqdm.auto import tqdm

from dpp.data.disk_space import check_space
from dpp.data.image_records import ImageRecord
from dpp.data.images import decode
from dpp.system.errors import UserError
from dpp.system.files import folder_built_beside
from dpp.system.paths import data_root

KINDS = ("disk", "memory", "off")
NAMED = 5  # images in a message
FORMAT = 1  # change it when the pixels change for a reason that is not in the hash


class PixelStore:
    """The resized pixels of some records, by record.

    Args:
        records: those that will be asked for.
        size: side of the square that images are resized to.
        crop_to_box: resize what is in the box, not the whole image.
        keep: `disk` (a memory-mapped file that processes share), `memory`, or `off` (decode at
            each use).
        folder: where files are kept; by default `cache` under the data root.
    """

    def __init__(
        self,
        records: Sequence[ImageRecord],
        size: int,
        *,
        crop_to_box: bool = False,
        keep: str = "disk",
        folder: Path | None = None,
    ):
        if keep not in KINDS:
            raise UserError(f"keep must be one of {', '.join(KINDS)}, not {keep!r}")
        if size < 1:
            raise UserError(f"size={size}: expected a size of at least 1")
        self.size, self.crop_to_box = size, crop_to_box
        self.rows = {record.id: row for row, record in enumerate(records)}
        self.pixels: np.ndarray | None = None
        self.image_sizes: np.ndarray | None = None
        self.path: Path | None = None
        if keep == "memory":
            self.pixels = np.empty((len(records), 3, size, size), np.uint8)
            self.image_sizes = fill(self.pixels, records, size, crop_to_box)
        elif keep == "disk":
            folder = folder or data_root() / "cache"
            self.path = folder / digest(records, size, crop_to_box)
            try:
                if not self.path.is_dir():
                    write(self.path, records, size, crop_to_box)
                self._map()
            except (OSError, ValueError) as error:
                raise UserError(
                    f"resized images cannot be kept at {self.path}: {error}. Delete that folder if "
                    'it is damaged, set DPP_DATA, or pass keep="memory"'
                ) from error

    def _map(self) -> None:
        self.pixels = np.load(self.path / "pixels.npy", mmap_mode="r")
        self.image_sizes = np.load(self.path / "sizes.npy")

    def get(self, records: Sequence[ImageRecord]) -> tuple[np.ndarray, np.ndarray]:
        """The pixels (N, 3, size, size) uint8 and the original widths and heights (N, 2)."""
        if self.pixels is None:
            images, sizes = zip(
                *(decode(record, self.size, self.crop_to_box) for record in records), strict=True
            )
            return np.stack(images), np.array(sizes)
        rows = [self.rows[record.id] for record in records]
        return self.pixels[rows], self.image_sizes[rows]

    def __getstate__(self) -> dict:
        """Without the mapped pixels, which a pickle would copy; the other process maps them."""
        state = dict(self.__dict__)
        if self.path:
            state["pixels"] = None
        return state

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        if self.path:
            self._map()


def digest(records: Sequence[ImageRecord], size: int, crop_to_box: bool) -> str:
    """The name of the folder for these records, as their files are now."""
    text = hashlib.sha256(f"{FORMAT} {PIL.__version__} {size} {crop_to_box}\n".encode())
    for record in records:
        try:
            status = record.path.stat()
        except OSError as error:
            raise UserError(f"image {record.path} cannot be read: {error.strerror}") from error
        box = tuple(record.box) if crop_to_box and record.box else ""
        file = (str(record.path), status.st_size, status.st_mtime_ns)
        line = (record.id, *file, box, record.upright)
        text.update(f"{line}\n".encode())
    return f"{size}px-{text.hexdigest()[:20]}"


def fill(
    pixels: np.ndarray, records: Sequence[ImageRecord], size: int, crop_to_box: bool
) -> np.ndarray:
    """Decodes every record into its row of `pixels`; returns the original sizes (N, 2).

    Raises:
        UserError: some images cannot be decoded; all are tried before, and the message names them.
    """
    image_sizes = np.empty((len(records), 2), np.int64)
    refused: list[tuple[Path, UserError]] = []

    def work(record: ImageRecord):
        try:
            return decode(record, size, crop_to_box)
        except UserError as error:
            return error

    workers = os.cpu_count() or 1
    with (
        ThreadPoolExecutor(workers) as pool,  # Pillow decodes and resizes outside the lock
        # Shown only where it lasts: a notebook's stored output must not depend on what is kept.
        tqdm(total=len(records), desc="decoding", unit="image", disable=None, delay=10) as bar,
    ):
        todo = iter(range(len(records)))
        # A few chunks in flight at a time, so that memory stays small.
        while rows := list(islice(todo, 64 * workers)):
            for row, decoded in zip(
                rows, pool.map(work, [records[row] for row in rows]), strict=True
            ):
                if isinstance(decoded, UserError):
                    refused.append((records[row].path, decoded))
                else:
                    pixels[row], image_sizes[row] = decoded
            bar.update(len(rows))
    if refused:
        raise UserError(describe_refused(refused))
    return image_sizes


def describe_refused(refused: Sequence[tuple[Path, UserError]]) -> str:
    """What is wrong with the first of some images, and which others something is wrong with."""
    (_, first), *others = refused
    if not others:
        return str(first)
    named = ", ".join(str(path) for path, _ in others[:NAMED])
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return f"{len(refused)} images cannot be used: {first}; the same for {named}{more}"


def write(path: Path, records: Sequence[ImageRecord], size: int, crop_to_box: bool) -> None:
    """Decodes into a folder that is there complete or not at all."""
    shape = (len(records), 3, size, size)
    path.parent.mkdir(parents=True, exist_ok=True)
    check_space(path.parent, int(np.prod(shape)), "resized images", 'or pass keep="off"')
    with folder_built_beside(path) as unfinished:
        pixels = np.lib.format.open_memmap(unfinished / "pixels.npy", "w+", np.uint8, shape)
        np.save(unfinished / "sizes.npy", fill(pixels, records, size, crop_to_box))
        pixels.flush()
        del pixels
