"""The readers: what they find, and what they say of data that is not right."""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_data import PARTS, save_image, save_list, write_cub, write_dogs, write_folder

from dpp import data
from dpp.data import catalogue
from dpp.data.batches import make_splits
from dpp.data.image_records import Box, Part, images_per_class, relative_places, split_by_class
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment


def rewrite(path: Path, old: str, new: str) -> None:
    """Replaces the first line that equals `old`."""
    lines = path.read_text().splitlines()
    lines[lines.index(old)] = new
    path.write_text("\n".join(lines) + "\n")


def test_cub_is_read_in_its_own_layout(tmp_path):
    source = data.read_cub(write_cub(tmp_path / "cub"))
    assert source.counts() == (10, 6, 4)
    assert source.class_names == ("001.Bird_1", "002.Bird_2")
    assert source.part_names == PARTS
    assert [record.id for record in source.train] == ["1", "2", "3", "6", "7", "8"]
    record = source.test[2]
    assert (record.id, record.label, source.class_name(record)) == ("9", 1, "002.Bird_2")
    assert record.path == tmp_path / "cub" / "images" / "002.Bird_2" / "Bird_0009.jpg"
    assert record.box == Box(9.0, 2.0, 29.5, 42.0)
    assert record.parts == (Part(9.0, 3.0, True), Part(20.0, 9.5, True), Part(0.0, 0.0, False))


def test_cub_is_read_without_boxes_and_parts(tmp_path):
    root = write_cub(tmp_path)
    (root / "bounding_boxes.txt").unlink()
    (root / "parts" / "part_locs.txt").unlink()
    record = data.read_cub(root).train[0]
    assert record.box is None and record.parts is None


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("image_class_labels.txt", "4 1", "", "has no line for image 4"),
        ("image_class_labels.txt", "4 1", "4 2", "image 4 is 001.Bird_1/Bird_0004.jpg, its label"),
        ("image_class_labels.txt", "4 1", "4 7", "class 7 is not in classes.txt"),
        ("image_class_labels.txt", "4 1", "4", "line 4: '4' has one word"),
        ("image_class_labels.txt", "4 1", "3 1", "line 4: 3 appears twice"),
        ("images.txt", "4 001.Bird_1/Bird_0004.jpg", "", "has a line for image 4"),
        ("train_test_split.txt", "4 0", "4 2", "image 4 is not 0 or 1"),
        ("bounding_boxes.txt", "4 4.0 2.0 20.5 40.0", "4 4.0 wide", "image 4 has '4.0 wide'"),
        ("parts/part_locs.txt", "4 1 4.0 3.0 1", "4 9 4.0 3.0 1", "'4 9 4.0 3.0 1' is not image"),
    ],
)
def test_cub_lists_that_disagree_are_refused(tmp_path, file, old, new, said):
    root = write_cub(tmp_path)
    rewrite(root / file, old, new)
    with pytest.raises(UserError, match=re.escape(said)) as refusal:
        data.read_cub(root)
    assert str(root) in str(refusal.value)


def test_cub_without_a_list_says_how_to_get_it(tmp_path):
    with pytest.raises(UserError, match=r'no images.txt under .* run "dpp data cub"'):
        data.read_cub(tmp_path)


def test_cub_empty_list_is_refused(tmp_path):
    root = write_cub(tmp_path)
    (root / "classes.txt").write_text("\n")
    with pytest.raises(UserError, match=r"classes.txt is empty"):
        data.read_cub(root)


@pytest.mark.parametrize("write", [write_cub, write_dogs, write_folder])
def test_image_that_is_missing_or_empty_is_named(tmp_path, write):
    root = write(tmp_path)
    read = {write_cub: data.read_cub, write_dogs: data.read_dogs, write_folder: data.read_folder}
    path = read[write](root).test[0].path
    path.write_bytes(b"")
    with pytest.raises(UserError, match=f"{re.escape(str(path))} is empty"):
        read[write](root)
    path.unlink()
    path.symlink_to(root / "nothing.jpg")  # a folder's reader sees only what is there
    if write is not write_folder:
        with pytest.raises(UserError, match=f"{re.escape(str(path))} is listed but cannot be read"):
            read[write](root)


def test_class_with_one_training_image_is_named(tmp_path):
    root = write_cub(tmp_path)
    for number in (1, 2):
        rewrite(root / "train_test_split.txt", f"{number} 1", f"{number} 0")
    with pytest.raises(UserError, match=r"class 001.Bird_1 .* has only .*Bird_0003.jpg"):
        data.read_cub(root)


def test_dogs_are_read_in_their_own_layout(tmp_path):
    source = data.read_dogs(write_dogs(tmp_path))
    assert source.counts() == (10, 6, 4)
    assert source.class_names == ("Breed_1", "Breed_2") and source.part_names == ()
    record = source.test[-1]
    assert (record.id, record.label) == ("n02080002_4", 1)
    assert record.path == tmp_path / "Images" / "n02080002-Breed_2" / "n02080002_4.jpg"
    assert record.box == Box(4.0, 2.0, 38.0, 25.0)  # around both dogs


def test_dogs_list_that_disagrees_with_its_labels_is_refused(tmp_path):
    root = write_dogs(tmp_path)
    save_list(root / "test_list.mat", [("n02080001-Breed_1/n02080001_3", 2)])
    with pytest.raises(UserError, match=r"test_list.mat disagrees .*n02080001_3.jpg has label 2"):
        data.read_dogs(root)


def without_lists_and_boxes(root: Path) -> Path:
    """Stanford Dogs with its images and test list alone."""
    (root / "train_list.mat").unlink()
    shutil.rmtree(root / "Annotation")
    return root


def test_dogs_are_read_from_their_images_and_test_list_alone(tmp_path):
    whole = data.read_dogs(write_dogs(tmp_path))
    source = data.read_dogs(without_lists_and_boxes(tmp_path))
    assert source.class_names == whole.class_names
    for split in ("train", "test"):
        assert [replace(record, box=None) for record in getattr(whole, split)] == list(
            getattr(source, split)
        )


def test_dogs_without_annotations_cannot_be_cropped_to_boxes(tmp_path):
    source = data.read_dogs(without_lists_and_boxes(write_dogs(tmp_path)))
    with pytest.raises(UserError, match=r"n02080001_0.jpg has no box.*crop_to_box"):
        make_splits(source, 32, crop_to_box=True, keep="memory")
    assert len(make_splits(source, 32, keep="memory").test) == 4


def test_dogs_without_a_training_list_must_have_all_of_their_images(tmp_path):
    root = without_lists_and_boxes(write_dogs(tmp_path))
    image = root / "Images" / "n02080002-Breed_2" / "n02080002_0.jpg"
    image.unlink()
    with pytest.raises(UserError, match=r"2 images of n02080002-Breed_2 .* another class has 3"):
        data.read_dogs(root)
    save_image(root / "Images" / "n02080003-Breed_3" / "n02080003_0.jpg")
    with pytest.raises(UserError, match=r"no image of the class of n02080003-Breed_3/n0208"):
        data.read_dogs(root)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda root: (root / "test_list.mat").unlink(), "no test_list.mat under"),
        (lambda root: (root / "test_list.mat").write_bytes(b"MATLAB 5.0"), "is not a list with"),
        (lambda root: save_list(root / "test_list.mat", []), "test_list.mat is empty"),
        (lambda root: annotation(root).unlink(), "no annotation"),
        (lambda root: annotation(root).write_text("<annotation>"), "n02080001_0 has no object"),
        (lambda root: annotation(root).write_text("<annotation/>"), "n02080001_0 has no object"),
    ],
)
def test_dogs_that_are_damaged_are_refused(tmp_path, damage, said):
    root = write_dogs(tmp_path)
    damage(root)
    with pytest.raises(UserError, match=said):
        data.read_dogs(root)


def annotation(root: Path) -> Path:
    return root / "Annotation" / "n02080001-Breed_1" / "n02080001_0"


def test_folder_with_train_and_test_is_read(tmp_path):
    write_folder(tmp_path / "train")
    write_folder(tmp_path / "test", images=1)
    save_image(tmp_path / "train" / "kind_0" / "deeper" / "x.JPG")
    (tmp_path / "train" / "kind_0" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / "kind_0" / "._0.png").write_bytes(b"what a Mac leaves behind")
    source = data.read_folder(tmp_path)
    assert source.counts() == (11, 9, 2)
    assert source.class_names == ("kind_0", "kind_1")
    assert source.train[4].id == "train/kind_0/deeper/x.JPG"
    assert [record.label for record in source.test] == [0, 1]
    assert all(record.upright for record in source.records)


def test_folder_test_classes_keep_their_labels_when_one_is_absent(tmp_path):
    write_folder(tmp_path / "train", classes=3)
    write_folder(tmp_path / "test", classes=3)
    for path in (tmp_path / "test" / "kind_1").iterdir():
        path.unlink()
    (tmp_path / "test" / "kind_1").rmdir()
    assert {record.label for record in data.read_folder(tmp_path).test} == {0, 2}


def test_folder_without_halves_is_split_by_class_and_seed(tmp_path):
    write_folder(tmp_path, images=8)
    first, again, other = (data.read_folder(tmp_path, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.test != other.test
    assert images_per_class(first.test, 2).tolist() == [2, 2]
    assert sorted(first.records, key=lambda r: r.id) == sorted(other.records, key=lambda r: r.id)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda root: None, "has no subfolders"),
        (lambda root: (root / "kind_0").mkdir(), "kind_0 has 0 images but needs"),
        (lambda root: write_folder(root, images=1), r"kind_0 has 1 image \(0.png\) but needs"),
        (lambda root: write_folder(root / "train"), r"has train/ but no test/"),
        (lambda root: root.rmdir(), "there is no folder"),
    ],
)
def test_folder_that_cannot_be_used_is_refused(tmp_path, make, said):
    make(tmp_path)
    with pytest.raises(UserError, match=said):
        data.read_folder(tmp_path)


def test_folder_with_an_unknown_test_class_is_refused(tmp_path):
    write_folder(tmp_path / "train")
    write_folder(tmp_path / "test", classes=3)
    with pytest.raises(UserError, match="class kind_2 is in .*test but not in .*train"):
        data.read_folder(tmp_path)


def test_validation_split_is_stratified_seeded_and_never_touches_the_test_set(tmp_path):
    source = data.read_cub(write_cub(tmp_path, classes=3, train=10, test=2))
    train, validation = data.split_validation(source, fraction=0.2, seed=3)
    assert images_per_class(validation, 3).tolist() == [2, 2, 2]
    assert not {r.id for r in validation} & {r.id for r in (*train, *source.test)}
    assert {r.id for r in (*train, *validation)} == {r.id for r in source.train}
    assert (train, validation) == data.split_validation(source, fraction=0.2, seed=3)
    assert validation != data.split_validation(source, fraction=0.2, seed=4)[1]
    _, backwards = split_by_class(source.train[::-1], 0.2, 3)
    assert set(backwards) == set(validation)


def test_validation_split_leaves_and_takes_at_least_one_of_each_class(tmp_path):
    source = data.read_cub(write_cub(tmp_path, train=2))
    for fraction in (0.01, 0.99):
        left, taken = data.split_validation(source, fraction)
        assert images_per_class(left, 2).tolist() == images_per_class(taken, 2).tolist() == [1, 1]
    with pytest.raises(UserError, match="above 0 and below 1"):
        data.split_validation(source, 1.0)
    with pytest.raises(UserError, match="image 1 is alone in its class"):
        split_by_class(source.train[:1], 0.5, 0)


def test_image_listed_twice_is_refused(tmp_path):
    root = write_dogs(tmp_path)
    save_list(root / "test_list.mat", [("n02080001-Breed_1/n02080001_0", 1)])
    with pytest.raises(UserError, match="lists image n02080001_0 twice"):
        data.read_dogs(root)


def test_load_finds_data_sets_under_the_data_root(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r'Dogs has no test_list.mat .* "dpp data dogs"'):
        data.load("dogs")
    write_cub(tmp_path / "CUB_200_2011")
    write_dogs(tmp_path / "StanfordDogs")
    assert data.load("cub").counts() == data.load("dogs").counts() == (10, 6, 4)
    assert data.load("dogs", tmp_path).name == catalogue.PUBLISHED["dogs"].title


def test_load_takes_a_path_and_refuses_an_unknown_name(tmp_path):
    write_folder(tmp_path / "shoes")
    assert data.load(str(tmp_path / "shoes"), test_fraction=0.5).counts() == (8, 4, 4)
    with pytest.raises(UserError, match="there is no data set 'shoos': choose one of cub, dogs"):
        data.load("shoos")


@pytest.mark.parametrize(("name", "parts"), [("posebirds", 15), ("posedogs", 0)])
def test_load_draws_what_is_drawn_and_reads_it_with_the_real_reader(tmp_path, name, parts):
    options = {"classes": 2, "train_per_class": 3, "test_per_class": 1, "image_size": 32}
    source = data.load(name, tmp_path, **options)
    assert source.counts() == (8, 6, 2) and len(source.part_names) == parts
    assert source.root.parent == tmp_path and all(record.box for record in source.records)
    times = {record.path: record.path.stat().st_mtime_ns for record in source.records}
    again = data.load(name, tmp_path, **options)
    assert again == source
    assert times == {record.path: record.path.stat().st_mtime_ns for record in again.records}


def test_load_refuses_an_option_that_the_drawing_does_not_have(tmp_path):
    with pytest.raises(UserError, match="PoseBirds cannot be drawn with .* 'colour'"):
        data.load("posebirds", tmp_path, colour=3)


def test_relative_places_are_those_of_the_images_that_show_both_parts(tmp_path):
    source = data.read_cub(write_cub(tmp_path))
    assert relative_places(source, "beak", "left wing")[:2].tolist() == [[-19, -6.5], [-18, -6.5]]
    assert relative_places(source, "tail", "beak").shape == (0, 2)
    with pytest.raises(UserError, match="has no part 'fin'; its parts: beak, left wing, tail"):
        relative_places(source, "beak", "fin")


def test_images_in_hidden_folders_are_passed_over(tmp_path):
    write_folder(tmp_path)
    before = len(data.read_folder(tmp_path).records)
    image = next(path for path in sorted(tmp_path.rglob("*")) if path.is_file())
    save_image(image.parent / ".ipynb_checkpoints" / image.name)
    assert len(data.read_folder(tmp_path).records) == before


def test_load_refuses_options_that_a_data_set_has_not(tmp_path):
    with pytest.raises(UserError, match="CUB-200-2011 has no option 'pose'"):
        data.load("cub", tmp_path, pose=1)


@pytest.mark.parametrize("folder", ["/proc", "/sys/kernel", "/dev"])
def test_folder_of_the_system_is_refused(folder):
    with pytest.raises(UserError, match=f"{folder} is the system's and holds no images"):
        data.load(folder)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (b"bird\xff\xfe", r"'bird\\udcff\\udcfe' .* is not UTF-8: rename it"),
        (b"b" * 201, "has 201 characters: rename it to at most 200"),
        (b"two\nlines", "characters that cannot be shown"),
    ],
)
@pytest.mark.parametrize("what", ["class", "image"])
def test_name_that_cannot_be_shown_is_refused_in_one_line(tmp_path, name, said, what):
    root = write_folder(tmp_path / "mine")
    old = os.fsencode(root / "kind_1") + (b"" if what == "class" else b"/0.png")
    os.rename(old, os.path.dirname(old) + b"/" + name + (b"" if what == "class" else b".png"))
    with pytest.raises(UserError, match=said if what == "class" else ": rename it") as caught:
        data.load(str(root))
    assert len(str(caught.value).splitlines()) == 1
    str(caught.value).encode()  # can be printed


def test_lists_that_are_not_utf_8_are_refused(tmp_path):
    root = write_cub(tmp_path / "cub")
    (root / "classes.txt").write_bytes(b"1 001.B\xff\n2 002.Bird_2\n")
    with pytest.raises(UserError, match="classes.txt is not UTF-8 text"):
        data.read_cub(root)


def test_run_on_a_folder_with_a_long_name_has_a_name_that_file_systems_take(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_DATA", str(tmp_path / "data"))
    folder = write_folder(tmp_path / ("\u00e9" * 120))
    experiment = make_experiment("mini", data=str(folder), weights="none")
    assert len(f"{experiment.name}.damaged-1".encode()) < 255


def test_list_that_is_a_folder_is_refused(tmp_path):
    root = write_cub(tmp_path / "cub")
    (root / "parts" / "part_locs.txt").unlink()
    (root / "parts" / "part_locs.txt").mkdir()
    with pytest.raises(UserError, match="part_locs.txt cannot be read: Is a directory"):
        data.read_cub(root)


def test_long_line_of_a_damaged_list_is_cut_in_the_message(tmp_path):
    root = write_cub(tmp_path / "cub")
    (root / "parts" / "part_locs.txt").write_text("[" * 100_000)
    with pytest.raises(UserError) as caught:
        data.read_cub(root)
    assert len(str(caught.value)) < 500
