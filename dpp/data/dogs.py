"""Reads Stanford Dogs, or anything in its layout, as it comes out of its three archives."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from dpp.data.image_records import Box, ImageRecord, Source, check_source
from dpp.system.errors import UserError

SYNSET = re.compile(r"n\d+-")  # WordNet's number, before the breed in a folder's name
ADVICE = 'run "dpp data dogs" or set DPP_DATA'


def read_dogs(root: Path, name: str = "Stanford Dogs") -> Source:
    """Reads the folder that holds `Images/`, `Annotation/`, `train_list.mat`, `test_list.mat`.

    An image's box goes around all the dogs that its annotation outlines. There are no parts.

    Args:
        root: the folder `StanfordDogs`.
        name: what the source is called in messages and tables.

    Returns:
        The source, with records in the lists' order; ids are file names without their ending.
    """
    root = Path(root)
    folders: dict[int, str] = {}  # label from 1 -> folder of the class
    splits = []
    for list_name in ("train_list.mat", "test_list.mat"):
        entries = []
        for file, label in read_list(root / list_name):
            folder = Path(file).parent.name
            if folders.setdefault(label, folder) != folder:
                raise UserError(
                    f"{root / list_name} disagrees with its labels: {file} has label {label}, "
                    f"which is {folders[label]}"
                )
            entries.append((file, label))
        splits.append(entries)
    labels = sorted(folders)
    if len(set(folders.values())) != len(labels):
        raise UserError(f"two labels in the lists under {root} have the same folder")
    order = {label: index for index, label in enumerate(labels)}
    train, test = (
        tuple(read_record(root, file, order[label]) for file, label in entries)
        for entries in splits
    )
    names = tuple(SYNSET.sub("", folders[label]) for label in labels)
    return check_source(Source(name, root, names, (), train, test))


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


def read_record(root: Path, file: str, label: int) -> ImageRecord:
    path = root / "Images" / file
    annotation = root / "Annotation" / Path(file).with_suffix("")
    return ImageRecord(path.stem, path, label, read_annotation(annotation))


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
