"""What a data set is, whatever its files look like: records, and a source that holds them.

Coordinates are (x, y) in pixels of the original image as the annotations give them, measured from
its top left corner: pixel (0, 0) covers the square from 0 to 1.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpp.system.errors import UserError

# Below this a class cannot give an image to validation and keep one for training.
FEWEST_TRAINING_IMAGES = 2
LONGEST_NAME = 200  # characters of a class's name, or of an image's without its folders


class Box(NamedTuple):
    """A rectangle in pixels of the original image."""

    left: float
    top: float
    right: float
    bottom: float


class Part(NamedTuple):
    """Where a part is, in pixels of the original image; x and y mean nothing if not visible."""

    x: float
    y: float
    visible: bool


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """One image of a data set.

    Args:
        id: the data set's own name for it, the same on every machine.
        path: its file.
        label: its class, from 0.
        box: around the animal, as annotated: it may stick out of the image.
        parts: one for each of the source's part names.
        upright: turn the image as its EXIF tag says. Never where there are annotations, which
            are in the pixels of the file.
    """

    id: str
    path: Path
    label: int
    box: Box | None = None
    parts: tuple[Part, ...] | None = None
    upright: bool = False


@dataclass(frozen=True)
class Source:
    """A data set as read from the disk. `test` is for the final result alone."""

    name: str
    root: Path
    class_names: tuple[str, ...]
    part_names: tuple[str, ...]
    train: tuple[ImageRecord, ...]
    test: tuple[ImageRecord, ...]

    @property
    def records(self) -> tuple[ImageRecord, ...]:
        """Every record, training first."""
        return self.train + self.test

    def class_name(self, record: ImageRecord) -> str:
        return self.class_names[record.label]

    def counts(self) -> tuple[int, int, int]:
        """Numbers of images in all, for training and for testing."""
        return len(self.records), len(self.train), len(self.test)


def check_source(source: Source) -> Source:
    """Returns a source that can be trained on; otherwise says which class or file is wrong.

    Checks the lists and the files' sizes. Whether a file is an image shows when it is decoded.
    """
    twice = [id for id, count in Counter(r.id for r in source.records).items() if count > 1]
    if twice:
        raise UserError(f"{source.name} under {source.root} lists image {twice[0]} twice")
    for name in source.class_names:
        check_name(name, source.root)
    for label, name in enumerate(source.class_names):
        images = [record for record in source.train if record.label == label]
        if len(images) < FEWEST_TRAINING_IMAGES:
            count = f"only {images[0].path}" if images else "none"
            raise UserError(
                f"class {name} of {source.name} under {source.root} needs at least "
                f"{FEWEST_TRAINING_IMAGES} training images and has {count}: "
                f"add images or remove the class"
            )
    for record in source.records:
        check_file(record.path)
    return source


def check_name(name: str, root: Path) -> None:
    """Raises a `UserError` for the name of a class or of an image that cannot be shown."""
    shown = ascii(name if len(name) <= 40 else name[:40] + "...")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"the name {shown} under {printable(root)} is not UTF-8: rename it"
        ) from error
    if len(name) > LONGEST_NAME:
        raise UserError(
            f"the name {shown} under {printable(root)} has {len(name)} characters: rename it to at "
            f"most {LONGEST_NAME}"
        )
    if not name.isprintable():
        raise UserError(
            f"the name {shown} under {printable(root)} has characters that cannot be shown, such "
            "as a line break: rename it"
        )


def printable(path: Path) -> str:
    """A path for a message, whatever its bytes are."""
    return str(path).encode(errors="backslashreplace").decode()


def check_file(path: Path) -> None:
    """Raises a `UserError` if an image file is missing or empty."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise UserError(f"image {path} is listed but cannot be read: {error.strerror}") from error
    if size == 0:
        raise UserError(f"image {path} is empty (0 bytes): copy or extract it again")


def split_by_class(
    records: Iterable[ImageRecord], fraction: float, seed: int
) -> tuple[tuple[ImageRecord, ...], tuple[ImageRecord, ...]]:
    """Takes a seeded share of every class out of some records.

    Which images are taken depends on the seed and the ids alone, not on the order of `records`.

    Args:
        records: at least two of each class.
        fraction: the share to take, above 0 and below 1; of each class at least one image is
            taken and at least one is left.
        seed: another seed takes other images.

    Returns:
        What is left and what was taken, each in the order of `records`.
    """
    if not 0 < fraction < 1:
        raise UserError(f"the fraction of a split must be above 0 and below 1, not {fraction}")
    records = tuple(records)
    classes: dict[int, list[str]] = defaultdict(list)
    for record in records:
        classes[record.label].append(record.id)
    taken: set[str] = set()
    for label, ids in classes.items():
        if len(ids) < 2:
            raise UserError(f"image {ids[0]} is alone in its class: a split needs two")
        count = min(max(round(fraction * len(ids)), 1), len(ids) - 1)
        order = np.random.default_rng((seed, label)).permutation(len(ids))
        names = sorted(ids)
        taken.update(names[index] for index in order[:count])
    left = tuple(record for record in records if record.id not in taken)
    return left, tuple(record for record in records if record.id in taken)


def split_validation(
    source: Source, fraction: float = 0.1, seed: int = 0
) -> tuple[tuple[ImageRecord, ...], tuple[ImageRecord, ...]]:
    """Splits validation records off the training ones, stratified; the test set stays unseen.

    Returns:
        The records to train on and those to validate on.
    """
    return split_by_class(source.train, fraction, seed)


def images_per_class(records: Sequence[ImageRecord], classes: int) -> np.ndarray:
    """How many records each class has, (classes,)."""
    return np.bincount([record.label for record in records], minlength=classes)


def relative_places(source: Source, part: str, anchor: str) -> np.ndarray:
    """Where a part lies as seen from another, in every image that shows both: (images, 2), x, y."""
    unknown = [name for name in (part, anchor) if name not in source.part_names]
    if unknown:
        known = ", ".join(source.part_names) or "none"
        raise UserError(f"{source.name} has no part {unknown[0]!r}; its parts: {known}")
    indices = (source.part_names.index(part), source.part_names.index(anchor))
    pairs = [[record.parts[index] for index in indices] for record in source.records]
    vectors = [(p.x - a.x, p.y - a.y) for p, a in pairs if p.visible and a.visible]
    return np.array(vectors).reshape(-1, 2)
