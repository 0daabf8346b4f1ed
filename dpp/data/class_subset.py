"""A part of CUB-200-2011, by a rule that gives everybody the same: every so many of its classes.

Written in the data set's own layout, with its own numbers of images and classes and its split, so
that the same reader reads it. Class folders are links to the whole data set's.
"""

from collections.abc import Collection
from pathlib import Path

from dpp.data.cub import read_cub, read_lines, read_table
from dpp.data.image_records import Source
from dpp.system.files import folder_built_beside

BY_IMAGE = ("images", "image_class_labels", "train_test_split", "bounding_boxes", "parts/part_locs")


def class_subset(whole: Path, folder: Path, every: int) -> Source:
    """The first of a data set's classes and every so many-th after it, as a data set of its own.

    Args:
        whole: a folder in the layout of CUB-200-2011.
        folder: where the part is written, unless it is there.
        every: 10 takes 20 of 200 classes: the 1st, 11th, 21st and so on of `classes.txt`.
    """
    if not folder.is_dir():
        with folder_built_beside(folder) as unfinished:
            _write(whole.resolve(), unfinished, every)
    return read_cub(folder, name=folder.name)


def _write(whole: Path, folder: Path, every: int) -> None:
    classes = list(read_table(whole / "classes.txt").items())[::every]
    labels, numbers = read_table(whole / "image_class_labels.txt"), {key for key, _ in classes}
    images = {image for image, label in labels.items() if label in numbers}
    (folder / "images").mkdir()
    for _, name in classes:
        (folder / "images" / name).symlink_to(whole / "images" / name, target_is_directory=True)
    _copy_lines(whole, folder, "classes", numbers)
    for name in BY_IMAGE:
        _copy_lines(whole, folder, name, images)
    if (parts := whole / "parts" / "parts.txt").is_file():
        (folder / "parts" / "parts.txt").write_text(parts.read_text())


def _copy_lines(whole: Path, folder: Path, name: str, kept: Collection[str]) -> None:
    """A list's lines whose first word is kept; nothing where there is no such list."""
    if not (source := whole / f"{name}.txt").is_file():
        return
    lines = [f"{key} {value}\n" for _, key, value in read_lines(source) if key in kept]
    target = folder / f"{name}.txt"
    target.parent.mkdir(exist_ok=True)
    target.write_text("".join(lines))
