"""Reads Stanford Dogs, or anything in its layout, as it comes out of its three archives.

Its images and `test_list.mat` are enough: the other images are those to train on. Without
`Annotation/` images have no boxes, and only `crop_to_box` needs them.
"""

import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from dpp.data.image_records import Box, ImageRecord, Source, check_source
from dpp.system.errors import UserError

SYNSET = re.compile(r"n\d+-")  # WordNet's number, before the breed in a folder's name
ADVICE = 'run "dpp data dogs" or set DPP_DATA'


def read_dogs(root: Path, name: str = "Stanford Dogs") -> Source:
    """Reads the folder that holds `Images/` and `test_list.mat`.

    `train_list.mat` and `Annotation/` are read if they are there. An image's box goes around all
    the dogs that its annotation outlines. There are no parts.

    Args:
        root: the folder `StanfordDogs`.
        name: what the source is called in messages and tables.

    Returns:
        The source, with records in the lists' order; ids are file names without their ending.
    """
    root = Path(root)
    test = read_list(root / "test_list.mat")
    listed = (root / "train_list.mat").exists()
    train = read_list(root / "train_list.mat") if listed else list_others(root, test)
    folders: dict[int, str] = {}  # label from 1 -> folder of the class
    for list_name, entries in {"train_list.mat": train, "test_list.mat": test}.items():
        for file, label in entries:
            folder = Path(file).parent.name
            if folders.setdefault(label, folder) != folder:
                raise UserError(
                    f"{root / list_name} disagrees with its labels: {file} has label {label}, "
                    f"which is {folders[label]}"
                )
    labels = sorted(folders)
    if len(set(folders.values())) != len(labels):
        raise UserError(f"two labels in the lists under {root} have the same folder")
    order = {label: index for index, label in enumerate(labels)}
    boxed = (root / "Annotation").is_dir()
    records = [
        tuple(read_record(root, file, order[label], boxed) for file, label in entries)
        for entries in (train, test)
    ]
    names = tuple(SYNSET.sub("", folders[label]) for label in labels)
    return check_source(Source(name, root, names, (), *records))


def list_others(root: Path, test: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The files and labels of the images that are not for testing, as many of each class.

    Args:
        root: the folder that holds `Images/`.
        test: what `read_list` makes of the test list.
    """
    tested = {file for file, _ in test}
    labels = {Path(file).parent.name: label for file, label in test}
    files = sorted((root / "Images").glob("*/*.jpg"))
    others = [f"{path.parent.name}/{path.name}" for path in files]
    others = [file for file in others if file not in tested]
    if unknown := [file for file in others if Path(file).parent.name not in labels]:
        raise UserError(f"{root / 'test_list.mat'} has no image of the class of {unknown[0]}")
    counts = Counter(Path(file).parent.name for file in others)
    most = max(counts.values(), default=0)
    if short := [folder for folder in labels if counts[folder] < most]:
        raise UserError(
            f"{root} has no train_list.mat, and {counts[short[0]]} images of {short[0]} that are "
            f"not for testing where another class has {most}: images are missing; {ADVICE}"
        )
    return [(file, labels[Path(file).parent.name]) for file in others]


def read_list(path: Path) -> list[tuple[str, int]]:
    """The files and labels (from 1) of a list in MATLAB's format."""
    from scipy.io import loadmat

    if not path.exists():
        raise UserError(
            f"no {path.name} under {path.parent}: expected the layout of Stanford Dogs; {ADVICE}"
        )
    try:
        content = loadmat(path, variable_names=["file_list", "labels"])
        # Each entry of file_list is itself an array that holds one string.
        files = [str(np.asarray(entry).item()) for entry in content["file_list"].ravel()]
        labels = [int(label) for label in content["labels"].ravel()]
    except Exception as error:  # a damaged file makes loadmat raise nearly anything
        raise UserError(
            f"{path} is not a list with file_list and labels in MATLAB's format: {error}"
        ) from error
    if len(files) != len(labels):
        raise UserError(f"{path} has {len(files)} files and {len(labels)} labels")
    if not files:
        raise UserError(f"{path} is empty")
    return list(zip(files, labels, strict=True))


def read_record(root: Path, file: str, label: int, boxed: bool) -> ImageRecord:
    path = root / "Images" / file
    annotation = root / "Annotation" / Path(file).with_suffix("")
    return ImageRecord(path.stem, path, label, read_annotation(annotation) if boxed else None)


def read_annotation(path: Path) -> Box:
    """The box around all objects of a PASCAL-like annotation."""
    try:
        tree = ElementTree.parse(path).getroot()
        corners = [
            [float(box.findtext(corner, "")) for corner in ("xmin", "ymin", "xmax", "ymax")]
            for box in tree.iter("bndbox")
        ]
        edges = np.array(corners)
        return Box(*edges[:, :2].min(axis=0).tolist(), *edges[:, 2:].max(axis=0).tolist())
    except FileNotFoundError as error:
        raise UserError(f"no annotation {path}: {ADVICE}") from error
    except (ElementTree.ParseError, ValueError, IndexError) as error:
        raise UserError(f"annotation {path} has no object with a box: {error}") from error
