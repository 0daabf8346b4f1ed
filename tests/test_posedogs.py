"""PoseDogs: the same bytes everywhere, and Stanford Dogs' layout."""

import hashlib
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import loadmat

from dpp.data.dogs import read_dogs
from dpp.drawn import posebirds, posedogs, species, studio
from dpp.drawn.drawing import png_bytes
from dpp.system.errors import UserError

SMALL = {"classes": 3, "train_per_class": 3, "test_per_class": 2, "image_size": 32}
# Of one image of each of 25 classes. If it changes, so have the pictures: raise `studio.VERSION`.
PICTURES_SHA256 = "873699b3154056cb3551389eb287135d0e9a407d0e2092920b4d031918523ece"


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return posedogs.make(tmp_path_factory.mktemp("dogs"), **SMALL)


def draw(kind, index=0, pose=1.0) -> studio.Drawing:
    rng = studio.generator("posedogs", 0, "test", kind, index)
    return posedogs.draw_image(kind, rng, 64, pose)


def test_bytes_are_the_published_ones():
    digest = hashlib.sha256()
    for kind in species.kinds(25, base=False):
        digest.update(png_bytes(draw(kind).pixels))
    assert digest.hexdigest() == PICTURES_SHA256


def test_bytes_do_not_depend_on_workers_or_the_day(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(studio, "WORTH_A_POOL", 0)
    monkeypatch.setattr(time, "asctime", lambda *_: "Thu Jan  1 00:00:00 1970")
    assert files(posedogs.make(tmp_path, **SMALL, workers=2)) == files(folder)


def test_layout_is_read_by_the_dogs_reader(folder):
    source = read_dogs(folder)
    breeds = [name.partition("-")[2] for name in posedogs.class_names(3)]
    assert list(source.class_names) == breeds
    assert [record.label for record in source.train] == [0] * 3 + [1] * 3 + [2] * 3
    assert [record.label for record in source.test] == [0] * 2 + [1] * 2 + [2] * 2
    for record in source.train + source.test:
        with Image.open(record.path) as image:
            assert image.size == (32, 32) and image.mode == "RGB"
        left, top, right, bottom = (getattr(record.box, name) for name in record.box._fields)
        assert 0 <= left < right <= 32 and 0 <= top < bottom <= 32


def test_lists_have_the_shape_of_the_published_ones(folder):
    content = loadmat(folder / "train_list.mat")
    assert content["file_list"].shape == content["annotation_list"].shape == (9, 1)
    assert content["labels"].shape == (9, 1)
    for file, annotation in zip(content["file_list"], content["annotation_list"], strict=True):
        assert file[0][0] == annotation[0][0] + ".png"
        assert (folder / "Images" / file[0][0]).is_file()
        assert (folder / "Annotation" / annotation[0][0]).is_file()
    np.testing.assert_array_equal(content["labels"].ravel(), [1, 1, 1, 2, 2, 2, 3, 3, 3])


def test_attributes_all_change_the_picture():
    start = species.kinds(1, base=False)[0]
    for number in range(species.ATTRIBUTES):
        kinds = [(*start[:number], value, *start[number + 1 :]) for value in range(5)]
        pictures = set()
        for kind in kinds:
            rng = studio.generator("posedogs", 0, "test", start, 3)
            pictures.add(posedogs.draw_image(kind, rng, 64, 0.0).pixels.tobytes())
        assert len(pictures) == 5


def test_box_holds_every_visible_part():
    for kind in species.kinds(4, base=False):
        for index in range(10):
            drawing = draw(kind, index)
            left, top, right, bottom = drawing.box
            for name, (x, y) in drawing.parts.items():
                assert left <= x <= right and top <= y <= bottom, name


def test_pose_zero_is_one_pose_up_to_the_framing():
    kind = species.kinds(1, base=False)[0]
    for pose, still in ((0.0, True), (1.0, False)):
        first, *others = [draw(kind, index, pose).parts for index in range(6)]
        apart = []
        for other in others:
            shared = sorted(first.keys() & other.keys())
            a, b = (np.array([parts[name] for name in shared]) for parts in (first, other))
            a, b = a - a.mean(axis=0), b - b.mean(axis=0)
            apart.append(abs(b - a * (a * b).sum() / (a * a).sum()).max())
        assert (max(apart) < 1e-6) == still


def test_dogs_and_birds_have_their_own_names_and_folders(folder, tmp_path):
    assert posebirds.make(tmp_path, **SMALL).name != folder.name
    assert len(set(posedogs.class_names(1500) + posedogs.class_names(1500, base=True))) == 3000


@pytest.mark.parametrize("wrong", [{"classes": 0}, {"image_size": 4}, {"pose": -1.0}])
def test_bad_argument_is_an_error_and_nothing_is_written(wrong, tmp_path):
    with pytest.raises(UserError):
        posedogs.make(tmp_path, **{**SMALL, **wrong})
    assert not list(tmp_path.iterdir())


def test_contact_sheet_has_a_row_for_each_class():
    assert posedogs.contact_sheet(classes=2, columns=3, image_size=32).size == (100, 66)
