"""PoseBirds: drawn birds with joints, on disk in the layout of CUB-200-2011.

    folder = posebirds.make(data_root())             # ten target classes, drawn at first use
    base = posebirds.make(data_root(), base=True, classes=20)
    posebirds.contact_sheet(pose=(0, 0.5, 1, 1.5, 2)).save("poses.png")

`bird_anatomy` says what a bird is, `scenery` where it sits, `drawing` how both become pixels.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from PIL import Image

from dpp.drawn import scenery
from dpp.drawn.bird_anatomy import ADJECTIVES, NOUNS, PARTS, Plumage, Pose, draw_bird, near_foot
from dpp.drawn.drawing import Canvas, Frame, finish, swing
from dpp.drawn.species import Word, kinds, names
from dpp.drawn.studio import Drawing, DrawnSet, Note

OCCLUSION = 0.35  # how often something lies in front of the bird
CLOSE_UP = 0.15  # how often the framing is careless, so that the image may cut the bird


def class_names(count: int, *, base: bool = False) -> list[str]:
    """The classes' folders, numbered from 1 as in CUB-200-2011."""
    named = names(ADJECTIVES, 0, NOUNS)
    chosen = kinds(count, base=base)
    return [f"{number:03d}.{named[kind]}" for number, kind in enumerate(chosen, start=1)]


def file_stem(folder: str) -> str:
    """How the paths of a class's images begin."""
    return f"images/{folder}/{folder.partition('.')[2]}"


def draw_image(
    kind: Word,
    rng: random.Random,
    image_size: int,
    pose: float,
    turned: Mapping[str, float] | None = None,
) -> Drawing:
    """One individual of a class, in its pose, on its perch, in its light.

    The four have their own generators, so that another `pose` changes nothing but the pose.

    Args:
        turned: degrees to add to some joints of its pose, by their names in `Pose`.
    """
    return draw_on(Canvas, kind, rng, image_size, pose, turned)[0]


def draw_on(
    make_canvas: Callable[[int, Image.Image], Canvas],
    kind: Word,
    rng: random.Random,
    image_size: int,
    pose: float,
    turned: Mapping[str, float] | None = None,
) -> tuple[Drawing, Canvas]:
    """`draw_image` on a canvas of one's own, made from a size and a backdrop; and that canvas."""
    scene, look, angles, light = (random.Random(rng.getrandbits(64)) for _ in range(4))
    canvas = make_canvas(image_size, scenery.backdrop(image_size, scene))
    scenery.clutter(canvas, scene)

    stance = Pose.draw(angles, pose)
    added = {name: getattr(stance, name) + degrees for name, degrees in (turned or {}).items()}
    stance = stance._replace(**added)
    facing = -1 if stance.left else 1
    scale = 0.43 * scene.uniform(0.84, 1.16)
    reach = 0.26 if scene.random() < CLOSE_UP else 0.11
    centre = (0.5 + 0.04 * facing + reach * swing(scene), 0.5 + 0.6 * reach * swing(scene))
    camera = Frame.camera(*centre, scale, facing)
    scenery.perch(canvas, scene, near_foot(camera, stance))

    canvas.measure()
    draw_bird(canvas, camera, Plumage.draw(kind, look), stance)
    box = canvas.take_box()
    scenery.occlude(canvas, scene, centre, 0.26, OCCLUSION)
    return Drawing(finish(canvas, light), box, canvas.visible_parts()), canvas


def write_cub_lists(
    folder: Path, classes: Sequence[str], notes: Sequence[Note], image_size: int
) -> None:
    """Writes CUB-200-2011's text files, which hold no image size, for images in the folder."""
    numbers = {name: number for number, name in enumerate(classes, start=1)}
    images, labels, split, boxes, parts = [], [], [], [], []
    for number, note in enumerate(notes, start=1):
        path = note.task.file.removeprefix("images/")
        left, top, right, bottom = note.box
        images.append(f"{number} {path}")
        labels.append(f"{number} {numbers[path.partition('/')[0]]}")
        split.append(f"{number} {int(note.task.split == 'train')}")
        boxes.append(f"{number} {left:.2f} {top:.2f} {right - left:.2f} {bottom - top:.2f}")
        for part_number, part in enumerate(PARTS, start=1):
            x, y = note.parts.get(part, (0, 0))
            parts.append(f"{number} {part_number} {x:.2f} {y:.2f} {int(part in note.parts)}")
    lists = {
        "classes.txt": [f"{number} {name}" for name, number in numbers.items()],
        "images.txt": images,
        "image_class_labels.txt": labels,
        "train_test_split.txt": split,
        "bounding_boxes.txt": boxes,
        "parts/parts.txt": [f"{number} {part}" for number, part in enumerate(PARTS, start=1)],
        "parts/part_locs.txt": parts,
    }
    (folder / "parts").mkdir()
    for name, lines in lists.items():
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode())


BIRDS = DrawnSet("posebirds", class_names, file_stem, draw_image, write_cub_lists)
make, contact_sheet = BIRDS.make, BIRDS.contact_sheet
