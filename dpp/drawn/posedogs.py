"""PoseDogs: drawn dogs with joints, on disk in the layout of Stanford Dogs.

    folder = posedogs.make(data_root())             # ten target classes, drawn at first use
    posedogs.contact_sheet(classes=4).save("dogs.png")

`dog_anatomy` says what a dog is, `scenery` where it stands, `drawing` how both become pixels.
"""

import io
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpp.drawn import scenery
from dpp.drawn.dog_anatomy import ADJECTIVES, NOUNS, Coat, Pose, draw_dog
from dpp.drawn.drawing import Canvas, Frame, finish, swing
from dpp.drawn.species import Word, kinds, names
from dpp.drawn.studio import Drawing, DrawnSet, Note

OCCLUSION = 0.25  # how often something lies in front of the dog
CLOSE_UP = 0.15  # how often the framing is careless, so that the image may cut the dog
MAT_HEADER = b"MATLAB 5.0 MAT-file, written by dpp"  # scipy's own would hold the date

ANNOTATION = """<annotation>
\t<folder>{folder}</folder>
\t<filename>{stem}</filename>
\t<source>
\t\t<database>PoseDogs</database>
\t</source>
\t<size>
\t\t<width>{size}</width>
\t\t<height>{size}</height>
\t\t<depth>3</depth>
\t</size>
\t<segment>0</segment>
\t<object>
\t\t<name>{breed}</name>
\t\t<pose>Unspecified</pose>
\t\t<truncated>{truncated}</truncated>
\t\t<difficult>0</difficult>
\t\t<bndbox>
\t\t\t<xmin>{left}</xmin>
\t\t\t<ymin>{top}</ymin>
\t\t\t<xmax>{right}</xmax>
\t\t\t<ymax>{bottom}</ymax>
\t\t</bndbox>
\t</object>
</annotation>
"""


def class_names(count: int, *, base: bool = False) -> list[str]:
    """The classes' folders: a number like WordNet's, which WordNet does not use, and the breed."""
    named = names(ADJECTIVES, 1, NOUNS)
    first = 95_000_001 if base else 90_000_001
    chosen = kinds(count, base=base)
    return [f"n{number:08d}-{named[kind]}" for number, kind in enumerate(chosen, start=first)]


def file_stem(folder: str) -> str:
    """How the paths of a class's images begin."""
    return f"Images/{folder}/{folder.partition('-')[0]}"


def draw_image(kind: Word, rng: random.Random, image_size: int, pose: float) -> Drawing:
    """One individual of a class, in its pose, on its ground, in its light.

    The four have their own generators, so that another `pose` changes nothing but the pose.
    """
    scene, look, angles, light = (random.Random(rng.getrandbits(64)) for _ in range(4))
    canvas = Canvas(image_size, scenery.backdrop(image_size, scene))
    coat, stance = Coat.draw(kind, look), Pose.draw(angles, pose)
    facing = -1 if stance.left else 1
    scale = 0.46 * scene.uniform(0.84, 1.14)
    reach = 0.26 if scene.random() < CLOSE_UP else 0.1
    centre = (0.5 - 0.08 * facing + reach * swing(scene), 0.54 + 0.6 * reach * swing(scene))
    camera = Frame.camera(*centre, scale, facing)
    scenery.clutter(canvas, scene)
    scenery.ground(canvas, scene, camera.place((0, -0.08 - 0.52 * coat.leg_length))[1])

    canvas.measure()
    draw_dog(canvas, camera, coat, stance)
    box = canvas.take_box()
    scenery.occlude(canvas, scene, centre, 0.26, OCCLUSION)
    return Drawing(finish(canvas, light), box, canvas.visible_parts())


def write_dogs_lists(
    folder: Path, classes: Sequence[str], notes: Sequence[Note], image_size: int
) -> None:
    """Writes Stanford Dogs' annotations and lists for images that are already in the folder."""
    labels = {name: number for number, name in enumerate(classes, start=1)}
    files = {"train": [], "test": []}
    for name in classes:
        (folder / "Annotation" / name).mkdir(parents=True)
    for note in notes:
        file = note.task.file.removeprefix("Images/")
        files[note.task.split].append(file)
        group, _, stem = file.removesuffix(".png").partition("/")
        synset, _, breed = group.partition("-")
        left, top, right, bottom = (round(edge) for edge in note.box)
        touches = min(left, top) <= 0 or max(right, bottom) >= image_size
        text = ANNOTATION.format(
            folder=synset[1:],
            stem=stem,
            size=image_size,
            breed=breed,
            truncated=int(touches),
            left=left,
            top=top,
            right=right,
            bottom=bottom,
        )
        (folder / "Annotation" / group / stem).write_bytes(text.encode())
    for split, listed in files.items():
        numbers = [labels[file.partition("/")[0]] for file in listed]
        (folder / f"{split}_list.mat").write_bytes(list_bytes(listed, numbers))


def list_bytes(files: Sequence[str], labels: Sequence[int]) -> bytes:
    """A list in MATLAB's format: `file_list`, `annotation_list` and `labels`, each (n, 1)."""
    from scipy.io import savemat

    def cells(texts: Sequence[str]) -> np.ndarray:
        column = np.empty((len(texts), 1), dtype=object)
        column[:, 0] = texts
        return column

    content = {
        "file_list": cells(files),
        "annotation_list": cells([file.removesuffix(".png") for file in files]),
        "labels": np.array(labels, dtype=np.float64).reshape(-1, 1),
    }
    buffer = io.BytesIO()
    savemat(buffer, content)
    return MAT_HEADER.ljust(116) + buffer.getvalue()[116:]


DOGS = DrawnSet("posedogs", class_names, file_stem, draw_image, write_dogs_lists)
make, contact_sheet = DOGS.make, DOGS.contact_sheet
