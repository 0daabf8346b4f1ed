"""Decodes and resizes every image once, and keeps the pixels as they were decoded.

A folder of pixels is named by a hash of all that they depend on: the files (path, size, times,
inode), the boxes if they crop, the size, and the decoder. Change one and a new folder is made. In
it are `pixels.bin` and `about.json`, which has the hash of each image's pixels: they are compared
when an image is first used, and an image that does not match is decoded again. The folder `cache`
under the data root may be deleted at any time.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
import PIL
from tqdm.auto import tqdm

from dpp.data.disk_space import check_space
from dpp.data.image_records import ImageRecord
from dpp.data.images import decode
from dpp.system.errors import UserError
from dpp.system.files import (
    folder_built_beside,
    read_json,
    sha256_of_json,
    version,
    write_json,
)
from dpp.system.paths import data_root

KINDS = ("disk", "memory", "off")
NAMED = 5  # images in a message
FORMAT = 2  # change it when the pixels change for a reason that is not in the hash


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
                if wrong := self._map():
                    print(f"{self.path} is damaged ({wrong}): decoded again", file=sys.stderr)
                    shutil.rmtree(self.path, ignore_errors=True)
                    write(self.path, records, size, crop_to_box)
                    if wrong := self._map():
                        raise UserError(f"{self.path} is damaged again ({wrong}): is the disk?")
            except OSError as error:
                raise UserError(
                    f"resized images cannot be kept at {self.path}: {error}. Set DPP_DATA, or pass "
                    'keep="memory"'
                ) from error

    def _map(self) -> str:
        """Maps the pixels; returns what is wrong with them, if anything."""
        about = read_about(self.path)
        shape = (len(self.rows), 3, self.size, self.size)
        path = self.path / "pixels.bin"
        if about is None or len(about["pixels"]) != len(self.rows):
            return "its about.json is damaged or missing"
        if not path.is_file() or path.stat().st_size != int(np.prod(shape)):
            return f"pixels.bin does not have {int(np.prod(shape)):,} bytes"
        self.pixels = np.memmap(path, np.uint8, "r", shape=shape)
        self.image_sizes = np.array(about["sizes"], np.int64)
        self.digests: list[str] = about["pixels"]
        self.content: str = about["content"]
        self.checked = np.zeros(len(self.rows), bool)
        return ""

    def content_digest(self) -> str:
        """The SHA-256 of all images, by id, size and resized pixels."""
        if self.pixels is None:
            raise UserError('the pixels are not kept: pass keep="disk" or keep="memory"')
        if self.path:
            return self.content
        return content_digest(self.rows, self.image_sizes, self.pixels)

    def get(self, records: Sequence[ImageRecord]) -> tuple[np.ndarray, np.ndarray]:
        """The pixels (N, 3, size, size) uint8 and the original widths and heights (N, 2)."""
        if self.pixels is None:
            images, sizes = zip(
                *(decode(record, self.size, self.crop_to_box) for record in records), strict=True
            )
            return np.stack(images), np.array(sizes)
        rows = [self.rows[record.id] for record in records]
        pixels = self.pixels[rows]
        if self.path:
            for place, row in enumerate(rows):
                if not self.checked[row]:
                    self._check(records[place], row, pixels[place])
        return pixels, self.image_sizes[rows]

    def _check(self, record: ImageRecord, row: int, pixels: np.ndarray) -> None:
        """Compares an image's pixels with their hash; damaged ones are replaced, and reported."""
        if hashlib.sha256(pixels).hexdigest() != self.digests[row]:
            print(f"{self.path}: image {record.id} is damaged: decoded again", file=sys.stderr)
            pixels[:] = decode(record, self.size, self.crop_to_box)[0]
            if hashlib.sha256(pixels).hexdigest() != self.digests[row]:
                raise UserError(
                    f"image {record.path} was changed while it was used: run the command again"
                )
            with suppress(OSError), (self.path / "pixels.bin").open("r+b") as file:
                file.seek(row * pixels.size)
                file.write(pixels)
        self.checked[row] = True

    def __getstate__(self) -> dict:
        """Without the mapped pixels and their hashes, which the other process reads itself."""
        state = dict(self.__dict__)
        if self.path:
            state["pixels"] = state["digests"] = state["checked"] = None
        return state

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        if self.path and (wrong := self._map()):
            raise UserError(f"{self.path} is damaged ({wrong}): run the command again")


def digest(records: Sequence[ImageRecord], size: int, crop_to_box: bool) -> str:
    """The name of the folder for these records, as their files are now."""
    text = hashlib.sha256(f"{FORMAT} {PIL.__version__} {size} {crop_to_box}\n".encode())
    for record in records:
        try:
            file = (str(record.path), *version(record.path))
        except OSError as error:
            raise UserError(f"image {record.path} cannot be read: {error.strerror}") from error
        box = tuple(record.box) if crop_to_box and record.box else ""
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
        pixels = np.memmap(unfinished / "pixels.bin", np.uint8, "w+", shape=shape)
        image_sizes = fill(pixels, records, size, crop_to_box)
        pixels.flush()
        about = {
            "content": content_digest([record.id for record in records], image_sizes, pixels),
            "sizes": image_sizes.tolist(),
            "pixels": [hashlib.sha256(image).hexdigest() for image in pixels],
        }
        write_json(unfinished / "about.json", about | {"sha256": sha256_of_json(about)})
        del pixels


def content_digest(ids: Iterable[str], image_sizes: np.ndarray, pixels: np.ndarray) -> str:
    """The SHA-256 of images by their ids, original sizes and pixels."""
    names = hashlib.sha256("\n".join(ids).encode()).hexdigest()
    digest = hashlib.sha256(names.encode())
    digest.update(image_sizes.tobytes())
    for image in pixels:
        digest.update(np.ascontiguousarray(image))
    return digest.hexdigest()


def is_whole(folder: Path) -> bool:
    """Whether all pixels in a folder match their hashes: every byte is read."""
    about, path = read_about(folder), folder / "pixels.bin"
    if about is None or not path.is_file():
        return False
    known = about["pixels"]
    one = path.stat().st_size // max(len(known), 1)
    with path.open("rb") as file:
        matches = all(hashlib.sha256(file.read(one)).hexdigest() == digest for digest in known)
        return matches and not file.read(1)


def read_about(folder: Path) -> dict | None:
    """What is known of a folder of pixels, or None if it is damaged or not there."""
    try:
        about = read_json(folder / "about.json")
        return about if about.pop("sha256") == sha256_of_json(about) else None
    except (UserError, KeyError, TypeError, AttributeError):
        return None
