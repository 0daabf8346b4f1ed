"""PoseBirds: the same bytes everywhere, CUB's layout, parts where they belong, whole or absent."""

import dataclasses
import hashlib
import io
import itertools
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpp.data.cub import read_cub
from dpp.drawn import posebirds, species, studio
from dpp.drawn.bird_anatomy import ATTRIBUTES, PARTS, Plumage, Pose, draw_bird
from dpp.drawn.drawing import SUPERSAMPLE, Canvas, Frame, png_bytes
from dpp.system.errors import UserError

SMALL = {"classes": 3, "train_per_class": 3, "test_per_class": 2, "image_size": 32}
# Of one image of each of 25 classes. If it changes, so have the pictures: raise `studio.VERSION`.
PICTURES_SHA256 = "efb3b9a988013c52804e06848fbff6e8540ede8f525a7fd15efc1a22624e0f45"


def tree_digest(folder: Path) -> str:
    """Of every file's name and bytes."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return posebirds.make(tmp_path_factory.mktemp("birds"), **SMALL)


@pytest.fixture(scope="module")
def drawings() -> list[studio.Drawing]:
    return [draw(kind, index) for kind in species.kinds(5, base=False) for index in range(12)]


def draw(kind, index=0, pose=1.0, size=64) -> studio.Drawing:
    rng = studio.generator("posebirds", 0, "test", kind, index)
    return posebirds.draw_image(kind, rng, size, pose)


# The same bytes.


def test_bytes_are_the_published_ones():
    digest = hashlib.sha256()
    for kind in species.kinds(25, base=False):
        digest.update(png_bytes(draw(kind).pixels))
    assert digest.hexdigest() == PICTURES_SHA256


def test_stamp_holds_the_checksum_of_the_pictures(folder):
    names = [line.split()[1] for line in (folder / "images.txt").read_text().splitlines()]
    digests = [hashlib.sha256((folder / "images" / n).read_bytes()).hexdigest() for n in names]
    stamp = json.loads((folder / studio.STAMP).read_text())
    assert stamp["pictures_sha256"] == hashlib.sha256("".join(digests).encode()).hexdigest()


def test_bytes_do_not_depend_on_the_number_of_workers(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(studio, "WORTH_A_POOL", 0)
    for workers in (1, 3):
        again = posebirds.make(tmp_path / str(workers), **SMALL, workers=workers)
        assert tree_digest(again) == tree_digest(folder)


def test_bytes_do_not_depend_on_the_process(folder, tmp_path):
    script = (
        "import pathlib; from dpp.drawn import posebirds; "
        f"posebirds.make(pathlib.Path({str(tmp_path)!r}), **{SMALL!r})"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    # Two at once: both must end well, and one folder must be left.
    started = [subprocess.Popen([sys.executable, "-c", script], env=environment) for _ in range(2)]
    assert [process.wait() for process in started] == [0, 0]
    assert [tree_digest(path) for path in tmp_path.iterdir()] == [tree_digest(folder)]


def test_bytes_depend_on_the_seed(folder, tmp_path):
    other = posebirds.make(tmp_path, **SMALL, seed=1)
    assert (other / "classes.txt").read_bytes() == (folder / "classes.txt").read_bytes()
    pictures = [
        sorted(path.read_bytes() for path in root.rglob("*.png")) for root in (folder, other)
    ]
    assert not set(pictures[0]) & set(pictures[1])


def test_test_images_stay_when_training_images_are_added(folder, tmp_path):
    more = posebirds.make(tmp_path, **{**SMALL, "train_per_class": 4, "classes": 4})
    for path in folder.rglob("*_test_*.png"):
        assert (more / path.relative_to(folder)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("shape", [(1, 1, 3), (5, 7, 3), (200, 160, 3)])
def test_png_holds_the_pixels(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    with Image.open(io.BytesIO(png_bytes(pixels))) as image:
        image.load()
        np.testing.assert_array_equal(np.asarray(image), pixels)


def test_png_with_a_changed_byte_is_not_read():
    content = bytearray(png_bytes(np.zeros((8, 8, 3), np.uint8)))
    content[60] ^= 1
    with pytest.raises((OSError, SyntaxError)):
        Image.open(io.BytesIO(bytes(content))).load()


# CUB's layout.


def test_layout_is_read_by_the_cub_reader(folder):
    source = read_cub(folder)
    assert source.part_names == PARTS
    assert source.class_names == tuple(posebirds.class_names(3))
    for records, count in ((source.train, 3), (source.test, 2)):
        assert [record.label for record in records] == [c for c in range(3) for _ in range(count)]
    for record in source.train + source.test:
        with Image.open(record.path) as image:
            assert image.size == (32, 32) and image.mode == "RGB"
        assert len(record.parts) == 15


def test_box_and_parts_in_the_lists_are_those_of_the_drawing(folder):
    source = read_cub(folder)
    kinds = [kind for kind in species.kinds(3, base=False) for _ in range(2)]
    for number, (record, kind) in enumerate(zip(source.test, kinds, strict=True)):
        drawing = draw(kind, number % 2, size=32)
        np.testing.assert_allclose(record.box, drawing.box, atol=0.01)
        seen = {n: p for n, p in zip(PARTS, record.parts, strict=True) if p.visible}
        assert seen.keys() == drawing.parts.keys()
        for name, part in seen.items():
            np.testing.assert_allclose((part.x, part.y), drawing.parts[name], atol=0.01)


def test_layout_has_only_the_files_of_cub_and_the_stamp(folder):
    names = {str(path.relative_to(folder)) for path in folder.rglob("*.*") if path.is_file()}
    lists = {name for name in names if not name.endswith(".png")}
    assert lists == {
        "bounding_boxes.txt",
        "classes.txt",
        "drawn.json",
        "image_class_labels.txt",
        "images.txt",
        "parts/part_locs.txt",
        "parts/parts.txt",
        "train_test_split.txt",
    }
    assert len(names - lists) == 15


def test_hidden_parts_are_written_as_zeros(folder):
    lines = [line.split() for line in (folder / "parts/part_locs.txt").read_text().splitlines()]
    hidden = [line for line in lines if line[4] == "0"]
    assert hidden and all(line[2:4] == ["0.00", "0.00"] for line in hidden)
    assert all(0 <= float(value) <= 32 for line in lines for value in line[2:4])


# Classes.


def test_every_two_kinds_differ_in_three_attributes_or_more():
    words = species.words()
    # The code is linear: the distances from one word are those from every word.
    distances = [species.distance(words[0], word) for word in words[1:]]
    assert len(words) == 3125 and min(distances) == 3
    chosen = species.kinds(60, base=False) + species.kinds(60, base=True)
    pairs = [species.distance(*pair) for pair in itertools.combinations(chosen, 2)]
    assert min(pairs) == 3


def test_distance_falls_when_a_check_is_dropped(monkeypatch):
    monkeypatch.setattr(species, "CHECKS", ((1, 1, 1, 0, 1), (1, 2, 3, 1, 0), (0,) * 5))
    words = species.words()
    assert min(species.distance(words[0], word) for word in words[1:]) < 3


@pytest.mark.parametrize("base", [False, True])
def test_classes_come_with_a_relative_that_differs_in_three(base):
    chosen = species.kinds(20, base=base)
    assert [species.distance(*chosen[i : i + 2]) for i in range(0, 20, 2)] == [3] * 10


def test_base_and_target_classes_are_disjoint():
    for members in (species.kinds, posebirds.class_names):
        target, base = (
            {
                member if isinstance(member, tuple) else member[4:]
                for member in members(1500, base=b)
            }
            for b in (False, True)
        )
        assert len(target) == len(base) == 1500 and not target & base


def test_attributes_all_change_the_picture():
    """Every value of every attribute gives another picture of the same individual."""
    start = species.kinds(1, base=False)[0]
    for number in range(len(ATTRIBUTES)):
        pictures = set()
        for value in range(species.VALUES):
            kind = (*start[:number], value, *start[number + 1 :])
            pictures.add(posebirds.draw_image(kind, random.Random(5), 64, 0.0).pixels.tobytes())
        assert len(pictures) == species.VALUES


# Poses and parts.


def framed_apart(pose: float) -> float:
    """How far parts are from equal, in pixels of 64, once shift and scale are taken away."""
    kind = species.kinds(1, base=False)[0]
    first, *others = [draw(kind, index, pose).parts for index in range(8)]
    worst = 0.0
    for other in others:
        shared = sorted(first.keys() & other.keys())
        a, b = (np.array([parts[name] for name in shared]) for parts in (first, other))
        a, b = a - a.mean(axis=0), b - b.mean(axis=0)
        scale = (a * b).sum() / (a * a).sum()
        worst = max(worst, abs(b - scale * a).max())
    return worst


def test_pose_zero_is_one_pose_up_to_the_framing():
    assert framed_apart(0.0) < 1e-6
    assert framed_apart(0.5) > 1
    assert framed_apart(1.0) > 2


def test_pose_is_left_or_right_at_one_and_right_at_zero(drawings):
    eyes = [name for drawing in drawings for name in drawing.parts if name.endswith("eye")]
    assert {eyes.count("left eye") > 15, eyes.count("right eye") > 15} == {True}
    kind = species.kinds(1, base=False)[0]
    assert not any("left eye" in draw(kind, index, 0.0).parts for index in range(20))


def test_left_wing_is_seen_when_the_bird_looks_left(drawings):
    seen = set()
    for parts in (drawing.parts for drawing in drawings):
        assert not {"left wing", "right wing"} <= parts.keys()
        if {"breast", "tail"} <= parts.keys():
            looks_left = parts["breast"][0] < parts["tail"][0]
            assert not {"right wing" if looks_left else "left wing"} & parts.keys()
            seen.add(looks_left)
    assert seen == {True, False}


def test_pose_changes_nothing_but_the_pose():
    """Far from the bird, the same individual at two strengths has the same picture."""
    kind = species.kinds(1, base=False)[0]
    still, moved = (draw(kind, 1, pose).pixels.astype(int) for pose in (0.0, 0.3))
    assert (still[:4] == moved[:4]).mean() > 0.95 and (still != moved).any()


def test_box_holds_every_visible_part_and_lies_in_the_image(drawings):
    for drawing in drawings:
        left, top, right, bottom = drawing.box
        assert 0 <= left < right <= 64 and 0 <= top < bottom <= 64
        for name, (x, y) in drawing.parts.items():
            assert left <= x <= right and top <= y <= bottom, name


def test_box_is_tight():
    """Outside the box a bird changes nothing: only its colour and that of its box's inside."""
    canvas = Canvas(64, Image.new("RGB", (64, 64), (1, 2, 3)))
    canvas.measure()
    plumage = Plumage.draw(species.kinds(1, base=False)[0], random.Random(0))
    draw_bird(canvas, Frame.camera(0.5, 0.5, 0.4, 1), plumage, Pose.draw(random.Random(1), 1))
    drawn = (np.asarray(canvas.picture) != (1, 2, 3)).any(axis=2)
    rows, columns = (np.flatnonzero(drawn.any(axis=axis)) for axis in (1, 0))
    edges = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
    np.testing.assert_allclose(np.array(edges) / SUPERSAMPLE, canvas.take_box(), atol=0.5)


def bare_bird(kind, seed: int) -> tuple[Canvas, Plumage]:
    """A bird on black, without light, so that its colours are those of its plumage."""
    canvas = Canvas(64, Image.new("RGB", (64, 64)))
    plumage = Plumage.draw(kind, random.Random(seed))
    pose = Pose.draw(random.Random(seed), 1.0)
    draw_bird(canvas, Frame.camera(0.5, 0.5, 0.4, -1 if pose.left else 1), plumage, pose)
    return canvas, plumage


@pytest.mark.parametrize("beak", range(5))
def test_beak_lies_on_beak_coloured_pixels_and_belly_does_not(beak):
    kind = (beak, 2, *species.kinds(1, base=False)[0][2:])
    seen = 0
    for seed in range(40):
        canvas, plumage = bare_bird(kind, seed)
        colours = {
            name: canvas.picture.getpixel((int(x * SUPERSAMPLE), int(y * SUPERSAMPLE)))
            for name, (x, y) in canvas.visible_parts().items()
        }
        if "beak" in colours:
            seen += 1
            assert colours["beak"] == plumage.beak_colour
        assert colours.get("belly") != plumage.beak_colour
    assert seen > 30


@pytest.mark.parametrize("tail", range(5))
def test_visible_parts_lie_on_the_bird(tail):
    kind = (*species.kinds(1, base=False)[0][:7], tail)
    for seed in range(20):
        canvas, _ = bare_bird(kind, seed)
        for name, (x, y) in canvas.visible_parts().items():
            place = (int(x * SUPERSAMPLE), int(y * SUPERSAMPLE))
            assert canvas.picture.getpixel(place) != (0, 0, 0), name


def square(left: float) -> tuple:
    return ((left, 0.4), (left + 0.2, 0.4), (left + 0.2, 0.6), (left, 0.6))


def test_part_is_hidden_outside_the_image_and_under_what_is_drawn_later():
    canvas = Canvas(32, Image.new("RGB", (32, 32)))
    canvas.polygon(square(0.1), (9, 9, 9), 10)
    for name, x in (
        ("under a shape", 0.2),
        ("under an occluder", 0.5),
        ("free", 0.8),
        ("out", 1.01),
    ):
        canvas.note_part(name, (x, 0.5))
    canvas.polygon(square(0.7), (9, 9, 9))  # a marking hides nothing
    assert set(canvas.visible_parts()) == {"under a shape", "under an occluder", "free"}
    canvas.polygon(square(0.1), (9, 9, 9), 20)
    canvas.cover_from_here()
    canvas.polygon(square(0.4), (9, 9, 9))
    assert canvas.visible_parts() == {"free": (0.8 * 32, 16)}


@pytest.mark.parametrize("size", [16, 33, 100])
def test_scene_is_the_same_at_every_size(size):
    kind = species.kinds(1, base=False)[0]
    small, large = (draw(kind, 3, size=side) for side in (size, 3 * size))
    assert small.pixels.shape == (size, size, 3)
    shared = small.parts.keys() & large.parts.keys()
    assert len(shared) > 5
    for name in shared:
        np.testing.assert_allclose(3 * np.array(small.parts[name]), large.parts[name])
    reduced = np.asarray(Image.fromarray(large.pixels).reduce(3)).astype(int)
    assert abs(reduced - small.pixels).mean() < 12
    other = draw(kind, 4, size=size)
    assert abs(reduced - other.pixels).mean() > 20


# Mistakes and accidents.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"classes": 0}, "0 classes"),
        ({"classes": 4000}, "there are 15"),
        ({"image_size": 8}, "image_size=8"),
        ({"pose": -0.1}, "pose=-0.1"),
        ({"pose": float("nan")}, "pose=nan"),
        ({"train_per_class": 0}, "train_per_class=0"),
        ({"test_per_class": 0}, "test_per_class=0"),
        ({"workers": 0}, "workers=0"),
    ],
)
def test_bad_argument_is_named_and_nothing_is_written(wrong, message, tmp_path):
    with pytest.raises(UserError, match=message):
        posebirds.make(tmp_path, **{**SMALL, **wrong})
    assert not list(tmp_path.iterdir())


def test_finished_folder_is_not_drawn_again(folder, monkeypatch):
    monkeypatch.setattr(studio, "_draw_all", None)
    assert posebirds.make(folder.parent, **SMALL) == folder
    with pytest.raises(TypeError):  # the guard: other settings would have been drawn
        posebirds.make(folder.parent, **SMALL, seed=1)


@pytest.mark.parametrize("stamp", [None, "{", '{"name": "posebirds", "version": 0}'])
def test_folder_that_was_not_drawn_as_asked_is_left_alone(stamp, tmp_path):
    strange = tmp_path / studio.Settings(3, 3, 2, 32, 1.0, 0, False).folder_name("posebirds")
    strange.mkdir()
    if stamp:
        (strange / studio.STAMP).write_text(stamp)
    with pytest.raises(UserError, match="was not drawn as asked"):
        posebirds.make(tmp_path, **SMALL)
    assert strange.is_dir()


def test_root_that_is_a_file_is_named(tmp_path):
    root = tmp_path / "data"
    root.write_text("not a folder")
    with pytest.raises(UserError, match="cannot write .*data.*DPP_DATA"):
        posebirds.make(root, **SMALL)


def interrupt(kind, rng, size, pose):
    if rng.random() < 0.3:
        raise KeyboardInterrupt
    return posebirds.draw_image(kind, rng, size, pose)


def fail(*arguments):
    raise OSError("no space left on the disk")


@pytest.mark.parametrize("pool", [False, True])
def test_interrupted_drawing_leaves_nothing(pool, tmp_path, monkeypatch):
    monkeypatch.setattr(studio, "WORTH_A_POOL", 0 if pool else 1000)
    interrupted = dataclasses.replace(posebirds.BIRDS, draw=interrupt)
    with pytest.raises(KeyboardInterrupt):
        interrupted.make(tmp_path, **SMALL, workers=2)
    assert not list(tmp_path.iterdir())


def test_failed_lists_leave_nothing(tmp_path):
    failing = dataclasses.replace(posebirds.BIRDS, write_lists=fail)
    with pytest.raises(UserError, match="no space"):
        failing.make(tmp_path, **SMALL)
    assert not list(tmp_path.iterdir())


def test_folder_appears_only_when_it_is_finished(tmp_path):
    seen = []

    def watched(*arguments):
        seen.extend(path.name for path in tmp_path.iterdir())
        posebirds.write_cub_lists(*arguments)

    folder = dataclasses.replace(posebirds.BIRDS, write_lists=watched).make(tmp_path, **SMALL)
    assert len(seen) == 1 and seen[0].startswith(".")
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


# Looks and speed.


def test_contact_sheet_has_a_row_for_each_class():
    assert posebirds.contact_sheet(classes=2, columns=3, image_size=32).size == (100, 66)
    along = posebirds.contact_sheet(classes=1, image_size=32, pose=(0, 1), mark_parts=True)
    assert along.size == (66, 32)


def test_speed_is_reported(record_property):
    kind = species.kinds(1, base=False)[0]
    start = time.process_time()
    for index in range(40):
        png_bytes(draw(kind, index).pixels)
    per_second = 40 / (time.process_time() - start)
    record_property("images_per_cpu_second", round(per_second))
    print(f"{per_second:.0f} images of 64 px in a CPU second")


DRAW = """
import sys
from pathlib import Path
from dpp.drawn import posebirds
posebirds.make(Path(sys.argv[1]), classes=10, train_per_class=200, image_size=128, workers=2)
"""


def test_kill_while_drawing_leaves_nothing_once_dpp_has_started_again(tmp_path):
    posebirds.make(tmp_path, classes=2, train_per_class=2, test_per_class=1, image_size=16)
    drawn = {path.name for path in tmp_path.iterdir()}
    process = subprocess.Popen([sys.executable, "-c", DRAW, str(tmp_path)])
    while len(list(tmp_path.glob(".*.unfinished/images/*/*"))) < 20 and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert {path.name for path in tmp_path.iterdir()} != drawn
    deadline = time.monotonic() + 20  # its workers end by themselves
    while {path.name for path in tmp_path.iterdir()} != drawn and time.monotonic() < deadline:
        time.sleep(0.5)
        posebirds.make(tmp_path, classes=2, train_per_class=2, test_per_class=1, image_size=16)
    assert {path.name for path in tmp_path.iterdir()} == drawn
