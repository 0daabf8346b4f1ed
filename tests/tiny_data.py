"""Tiny data sets in the real ones' layouts, for tests: a few flat-coloured images each."""

from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

PARTS = ("beak", "left wing", "tail")
ANNOTATION = """<annotation><folder>{folder}</folder><filename>{name}</filename>
<size><width>40</width><height>30</height><depth>3</depth></size>
<object><name>dog</name><bndbox><xmin>4</xmin><ymin>5</ymin><xmax>20</xmax><ymax>25</ymax></bndbox>
</object><object><name>dog</name><bndbox><xmin>10</xmin><ymin>2</ymin><xmax>38</xmax><ymax>22</ymax>
</bndbox></object></annotation>"""


def save_image(path: Path, number: int = 0, size: tuple[int, int] = (40, 30)) -> Path:
    """A smooth picture of a given width and height that differs for each number."""
    width, height = size
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(rows / 7 + number), np.cos(columns / 9 + 2 * number), np.sin(number + 1.0)]
    pixels = np.stack([np.broadcast_to(127 + 100 * wave, rows.shape) for wave in waves], axis=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


def write_cub(root: Path, classes: int = 2, train: int = 3, test: int = 2) -> Path:
    """CUB's layout. Image n's box begins at (n, 2), its beak is at (n, 3), its tail is hidden."""
    lists = {
        name: []
        for name in ("images", "classes", "image_class_labels", "train_test_split", "boxes", "locs")
    }
    number = 0
    for label in range(1, classes + 1):
        folder = f"{label:03}.Bird_{label}"
        lists["classes"].append(f"{label} {folder}")
        for place in range(train + test):
            number += 1
            save_image(root / "images" / folder / f"Bird_{number:04}.jpg", number)
            lists["images"].append(f"{number} {folder}/Bird_{number:04}.jpg")
            lists["image_class_labels"].append(f"{number} {label}")
            lists["train_test_split"].append(f"{number} {int(place < train)}")
            lists["boxes"].append(f"{number} {number}.0 2.0 20.5 40.0")
            lists["locs"] += [f"{number} 1 {number}.0 3.0 1", f"{number} 2 20.0 9.5 1"]
            lists["locs"].append(f"{number} 3 0.0 0.0 0")
    (root / "parts").mkdir()
    names = {"boxes": "bounding_boxes", "locs": "parts/part_locs"}
    for name, lines in lists.items():
        (root / f"{names.get(name, name)}.txt").write_text("\n".join(lines) + "\n")
    parts = [f"{place} {name}" for place, name in enumerate(PARTS, start=1)]
    (root / "parts" / "parts.txt").write_text("\n".join(parts) + "\n")
    return root


def write_dogs(root: Path, classes: int = 2, train: int = 3, test: int = 2) -> Path:
    """Stanford Dogs' layout; every image has two dogs."""
    entries = {"train": [], "test": []}
    for label in range(1, classes + 1):
        folder = f"n0208{label:04}-Breed_{label}"
        for place in range(train + test):
            name = f"n0208{label:04}_{place}"
            save_image(root / "Images" / folder / f"{name}.jpg", 10 * label + place)
            annotation = root / "Annotation" / folder / name
            annotation.parent.mkdir(parents=True, exist_ok=True)
            annotation.write_text(ANNOTATION.format(folder=folder, name=name))
            entries["train" if place < train else "test"].append((f"{folder}/{name}", label))
    for split, pairs in entries.items():
        save_list(root / f"{split}_list.mat", pairs)
    return root


def save_list(path: Path, pairs: list[tuple[str, int]]) -> None:
    """A list as Stanford's: cells of strings, labels as doubles."""
    files, annotations = np.empty((2, len(pairs), 1), dtype=object)
    for place, (name, _) in enumerate(pairs):
        files[place, 0], annotations[place, 0] = f"{name}.jpg", name
    labels = np.array([[float(label)] for _, label in pairs])
    savemat(path, {"file_list": files, "annotation_list": annotations, "labels": labels})


def write_folder(root: Path, classes: int = 2, images: int = 4) -> Path:
    """One folder for each class."""
    for label in range(classes):
        for number in range(images):
            save_image(root / f"kind_{label}" / f"{number}.png", 10 * label + number)
    return root
