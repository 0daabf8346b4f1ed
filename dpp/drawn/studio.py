"""Draws a data set to disk: settings, seeds, processes, and a folder that is complete or absent.

A folder's stamp, `drawn.json`, says what it was drawn from; a folder whose stamp matches is not
drawn again. However many processes start at once, nobody sees half a folder.
"""

import dataclasses
import json
import multiprocessing
import os
import random
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from dpp.drawn.drawing import Point, png_bytes
from dpp.drawn.species import Word, kinds
from dpp.system.errors import UserError
from dpp.system.files import folder_built_beside, remove_unfinished, sha256_of_bytes
from dpp.system.worker_pool import count_cores, end_with_parent

VERSION = 1  # of the drawings: raise it when the same seed gives other pictures
STAMP = "drawn.json"
SMALLEST, LARGEST = 16, 2048  # image sizes in pixels
STRONGEST_POSE = 2.0
FEWEST_TRAINING_IMAGES = 2  # of a class, one of which is kept for validation
MOST_IMAGES = 1_000_000  # hours of drawing
WORTH_A_POOL = 100  # images; fewer are drawn before other processes have started


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a drawn data set depends on. The same settings give the same bytes."""

    classes: int
    train_per_class: int
    test_per_class: int
    image_size: int
    pose: float
    seed: int
    base: bool

    def __post_init__(self):
        if self.train_per_class < FEWEST_TRAINING_IMAGES or self.test_per_class < 1:
            raise UserError(
                f"train_per_class={self.train_per_class}, test_per_class={self.test_per_class}: "
                f"each class needs {FEWEST_TRAINING_IMAGES} training images and 1 test image"
            )
        images = self.classes * (self.train_per_class + self.test_per_class)
        if images > MOST_IMAGES:
            raise UserError(
                f"{self.classes} classes of {self.train_per_class} + {self.test_per_class} are "
                f"{images:,} images: choose at most {MOST_IMAGES:,} in all"
            )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise UserError(f"seed={self.seed!r}: choose a whole number")
        if not SMALLEST <= self.image_size <= LARGEST:
            raise UserError(
                f"image_size={self.image_size}: choose from {SMALLEST} to {LARGEST} pixels"
            )
        if not 0 <= self.pose <= STRONGEST_POSE:
            raise UserError(
                f"pose={self.pose}: choose from 0 (all in one pose) to {STRONGEST_POSE:g}"
            )
        kinds(self.classes, base=self.base)  # complains if there are not so many

    def folder_name(self, name: str) -> str:
        return (
            f"{name}-{'base' if self.base else 'target'}-{self.classes}x{self.train_per_class}"
            f"+{self.test_per_class}-{self.image_size}px-pose{self.pose:g}-seed{self.seed}"
        )


class Drawing(NamedTuple):
    """One image and what is known of it."""

    pixels: np.ndarray  # (size, size, 3), uint8
    box: tuple[float, float, float, float]  # left, top, right, bottom in pixels
    parts: dict[str, Point]  # the visible ones only: x, y in pixels


class Task(NamedTuple):
    """One image to draw: where it goes and what its generator is seeded with."""

    file: str
    kind: Word
    split: str
    index: int


class Note(NamedTuple):
    """What is left of a drawing once its picture is on the disk."""

    task: Task
    box: tuple[float, float, float, float]
    parts: dict[str, Point]
    digest: str


Draw = Callable[[Word, random.Random, int, float], Drawing]


def generator(name: str, seed: int, split: str, kind: Word, index: int) -> random.Random:
    """The source of all that is random in one image; no other image shares it."""
    return random.Random(f"{name}/{seed}/{split}/{kind}/{index}")


def list_tasks(settings: Settings, stems: Sequence[str], kinds: Sequence[Word]) -> list[Task]:
    """Every image of a data set, class after class; `stems` are the beginnings of their files."""
    counts = (("train", settings.train_per_class), ("test", settings.test_per_class))
    return [
        Task(f"{stem}_{split}_{index + 1:04d}.png", kind, split, index)
        for stem, kind in zip(stems, kinds, strict=True)
        for split, count in counts
        for index in range(count)
    ]


@dataclasses.dataclass(frozen=True)
class DrawnSet:
    """A drawn data set: what PoseBirds and PoseDogs differ in.

    Args:
        name: begins its folder's name and seeds its images.
        class_names: the classes' folders, given their count and `base`.
        file_stem: how the paths of a class's images begin, given its folder.
        draw: draws one image.
        write_lists: writes the layout's lists, given the unfinished folder, the classes' folders,
            the notes in the order of the images, and the image size.
    """

    name: str
    class_names: Callable[..., list[str]]
    file_stem: Callable[[str], str]
    draw: Draw
    write_lists: Callable[[Path, list[str], list[Note], int], None]

    def make(
        self,
        root: Path,
        *,
        classes: int = 10,
        train_per_class: int = 30,
        test_per_class: int = 30,
        image_size: int = 64,
        pose: float = 1.0,
        seed: int = 0,
        base: bool = False,
        workers: int | None = None,
    ) -> Path:
        """Draws the data set under `root`, unless it is there already.

        Args:
            pose: strength of the pose variation: 0 for one and the same pose, at most 2.
            seed: of the individuals. The classes are the same for every seed.
            base: draw base classes, none of which is a target class.
            workers: processes; None for as many as there are cores. The bytes do not depend on it.

        Returns:
            The folder, for the layout's reader: `read_cub` or `read_dogs`.
        """
        counts = (classes, train_per_class, test_per_class, image_size)
        return self._build(root, Settings(*counts, float(pose), seed, base), workers)

    def _build(self, root: Path, settings: Settings, workers: int | None) -> Path:
        if workers is not None and workers < 1:
            raise UserError(f"workers={workers}: choose 1 or more, or None for all cores")
        folder = Path(root) / settings.folder_name(self.name)
        stamp = {"name": self.name, "version": VERSION, **dataclasses.asdict(settings)}
        if folder.exists():
            remove_unfinished(folder.parent)
            return _check_stamp(folder, stamp)
        classes = self.class_names(settings.classes, base=settings.base)
        stems = [self.file_stem(name) for name in classes]
        tasks = list_tasks(settings, stems, kinds(settings.classes, base=settings.base))
        try:
            with folder_built_beside(folder) as unfinished:
                for directory in sorted({(unfinished / task.file).parent for task in tasks}):
                    directory.mkdir(parents=True)
                notes = _draw_all(unfinished, self.name, settings, tasks, self.draw, workers)
                self.write_lists(unfinished, classes, notes, settings.image_size)
                digests = "".join(note.digest for note in notes)
                pictures = sha256_of_bytes(digests.encode())
                text = json.dumps({**stamp, "pictures_sha256": pictures}, indent=1)
                (unfinished / STAMP).write_text(text + "\n", encoding="utf-8")
            return _check_stamp(folder, stamp)  # ours, or that of a process that was quicker
        except OSError as error:
            raise UserError(
                f"cannot write {folder}: {error}. Set DPP_DATA to a folder that you may write to"
            ) from error

    def contact_sheet(
        self,
        *,
        classes: int = 6,
        columns: int = 8,
        image_size: int = 96,
        pose: float | Sequence[float] = 1.0,
        seed: int = 0,
        base: bool = False,
        mark_parts: bool = False,
    ) -> Image.Image:
        """A row of test images for each class.

        Args:
            pose: one strength for all; or several, and each row shows one individual along them.
            mark_parts: outline the box and dot the visible parts.
        """
        chosen = kinds(classes, base=base)
        poses = [pose] * columns if isinstance(pose, int | float) else list(pose)
        step = image_size + 2
        sheet = Image.new("RGB", (step * len(poses) - 2, step * len(chosen) - 2), "white")
        for row, kind in enumerate(chosen):
            for column, strength in enumerate(poses):
                index = column if isinstance(pose, int | float) else 0
                rng = generator(self.name, seed, "test", kind, index)
                drawing = self.draw(kind, rng, image_size, strength)
                picture = Image.fromarray(drawing.pixels)
                if mark_parts:
                    _mark(picture, drawing)
                sheet.paste(picture, (step * column, step * row))
        return sheet


def _check_stamp(folder: Path, wanted: dict) -> Path:
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        stamp = {}
    stamp = stamp if isinstance(stamp, dict) else {}
    differing = [key for key, value in wanted.items() if stamp.get(key) != value]
    if differing:
        raise UserError(
            f"{folder} exists but was not drawn as asked ({STAMP} differs in "
            f"{', '.join(differing)}): remove or rename that folder and try again"
        )
    return folder


def _draw_all(folder, name, settings, tasks, draw, workers) -> list[Note]:
    workers = count_cores() if workers is None else workers
    shared = (folder, name, settings.seed, settings.image_size, settings.pose, draw)
    alone = len(tasks) < WORTH_A_POOL or multiprocessing.current_process().daemon
    if workers == 1 or alone:
        return _draw_some(shared, tasks)
    # Linux forks, which starts at once and does not run the caller's script again.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    step = max(1, min(50, len(tasks) // (4 * workers)))
    portions = [tasks[start : start + step] for start in range(0, len(tasks), step)]
    options = {"initializer": end_with_parent, "initargs": (os.getpid(),)}
    with ProcessPoolExecutor(min(workers, len(portions)), context, **options) as pool:
        try:
            waiting = [pool.submit(_draw_some, shared, portion) for portion in portions]
            return [note for portion in waiting for note in portion.result()]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _draw_some(shared, tasks: Sequence[Task]) -> list[Note]:
    folder, name, seed, size, pose, draw = shared
    notes = []
    for task in tasks:
        rng = generator(name, seed, task.split, task.kind, task.index)
        drawing = draw(task.kind, rng, size, pose)
        content = png_bytes(drawing.pixels)
        (folder / task.file).write_bytes(content)
        notes.append(Note(task, drawing.box, drawing.parts, sha256_of_bytes(content)))
    return notes


def _mark(picture: Image.Image, drawing: Drawing) -> None:
    """Outlines the box and dots the visible parts."""
    pen = ImageDraw.Draw(picture)
    pen.rectangle(drawing.box, outline="#F0E442")
    radius = max(1, picture.width // 80)
    for x, y in drawing.parts.values():
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), "#D55E00", "white")
