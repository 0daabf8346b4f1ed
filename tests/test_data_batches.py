"""Batches and the pixels that are kept: exact, and the same whatever the number of workers."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_data import save_image, write_cub, write_folder
from torch.utils.data import DataLoader

from dpp import data
from dpp.data import cache
from dpp.data.batches import EpochBatches, ImageDataset, batches, make_loader, make_splits
from dpp.data.cache import PixelStore
from dpp.data.images import decode
from dpp.data.transforms import normalise
from dpp.system.errors import UserError


@pytest.fixture
def source(tmp_path):
    return data.read_cub(write_cub(tmp_path / "cub", train=5))


def collected(loader, epochs=(0, 1)):
    """Images, labels and indices of some epochs, copied out of shared memory."""
    return [[t.clone() for t in batch] for epoch in epochs for batch in batches(loader, epoch)]


@pytest.mark.parametrize("keep", ["disk", "off"])
def test_batches_do_not_depend_on_the_number_of_workers(source, tmp_path, keep):
    runs = []
    for workers in (0, 1, 2):
        store = PixelStore(source.records, 24, keep=keep, folder=tmp_path / "cache")
        dataset = ImageDataset(source.train, store, augmented=True, seed=7)
        loader = make_loader(dataset, 4, shuffle=True, workers=workers, seed=7)
        runs.append(collected(loader))
    assert [len(batch[0]) for batch in runs[0]] == [4, 4, 2] * 2
    for run in runs[1:]:
        for first, other in zip(runs[0], run, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_epochs_and_seeds_differ_and_an_epoch_can_be_asked_for_again(source):
    store = PixelStore(source.records, 16, keep="memory")
    dataset = ImageDataset(source.train, store, augmented=True, seed=0)
    loader = make_loader(dataset, 10, shuffle=True)
    zero, one, again = collected(loader, (0, 1, 0))
    assert torch.equal(zero[0], again[0]) and torch.equal(zero[2], again[2])
    assert not torch.equal(zero[2], one[2])
    # The same image in two epochs: turned in another way.
    by_index = [run[0][run[2].argsort()] for run in (zero, one)]
    assert all(not torch.equal(a, b) for a, b in zip(*by_index, strict=True))
    other = ImageDataset(source.train, store, augmented=True, seed=1)
    assert not torch.equal(dataset[0].images, other[0].images)


@pytest.mark.parametrize("workers", [0, 2])
def test_epoch_goes_on_after_the_batches_that_were_taken(source, workers):
    store = PixelStore(source.records, 16, keep="memory")
    dataset = ImageDataset(source.train, store, augmented=True)
    loader = make_loader(dataset, 3, shuffle=True, workers=workers)
    whole = collected(loader, (2,))
    rest = [[t.clone() for t in batch] for batch in batches(loader, 2, start=2)]
    assert len(whole) == 4 and len(rest) == 2
    for first, other in zip(whole[2:], rest, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert len(collected(loader, (2,))) == 4


def test_augmentation_does_not_depend_on_the_batch_or_the_global_generators(source):
    store = PixelStore(source.records, 16, keep="memory")
    dataset = ImageDataset(source.train, store, augmented=True)
    whole = dataset[[(3, index) for index in range(10)]]
    torch.manual_seed(99)
    np.random.seed(99)
    before = torch.get_rng_state()
    for index in range(10):
        assert torch.equal(dataset[[(3, index)]].images[0], whole.images[index])
    next(iter(make_loader(dataset, 4, shuffle=True)))
    assert torch.equal(torch.get_rng_state(), before)


def test_un_augmented_images_are_the_decoded_pixels_normalised(source):
    splits = make_splits(source, 20, keep="memory", validation_fraction=0.2)
    assert [len(part) for part in splits] == [8, 8, 2, 4]
    assert splits.train.records == splits.projection.records
    for index, record in enumerate(splits.projection.records):
        sample = splits.projection[index]
        pixels, _ = decode(record, 20, crop_to_box=False)
        assert torch.equal(sample.images, normalise(torch.tensor(pixels)))
        assert (sample.labels, sample.indices) == (record.label, index)
    assert not torch.equal(splits.train[0].images, splits.projection[0].images)
    assert list(splits.test)[-1].indices == len(splits.test) - 1


def test_validation_images_are_not_trained_on(source):
    splits = make_splits(source, 8, keep="off")
    ids = [{record.id for record in part.records} for part in splits]
    train, projection, validation, test = ids
    assert train == projection
    assert not train & validation and not train & test and not validation & test


def test_plain_data_loader_also_works(source):
    dataset = ImageDataset(source.train, PixelStore(source.records, 8, keep="memory"))
    batch = next(iter(DataLoader(dataset, batch_size=3)))
    assert batch.images.shape == (3, 3, 8, 8) and batch.labels.tolist() == [0, 0, 0]


def test_geometry_of_a_dataset_knows_the_crop(source):
    store = PixelStore(source.records, 16, crop_to_box=True, keep="memory")
    dataset = ImageDataset(source.train, store)
    assert tuple(dataset.geometry(1).region) == (2, 2, 23, 30)  # image 2: 40 by 30
    assert dataset.geometry(1).size == 16


@pytest.mark.parametrize("crop_to_box", [False, True])
def test_what_is_kept_is_exactly_what_decoding_gives(source, tmp_path, crop_to_box):
    stores = [
        PixelStore(source.records, 12, crop_to_box=crop_to_box, keep=keep, folder=tmp_path / "c")
        for keep in ("disk", "disk", "memory", "off")
    ]
    some = [source.test[1], source.train[0], source.train[3]]
    expected = np.stack([decode(record, 12, crop_to_box)[0] for record in some])
    for store in stores:
        pixels, sizes = store.get(some)
        assert np.array_equal(pixels, expected) and pixels.dtype == np.uint8
        assert sizes.tolist() == [[40, 30]] * 3


def test_kept_pixels_are_decoded_once(source, tmp_path, monkeypatch):
    PixelStore(source.records, 12, folder=tmp_path / "c")
    monkeypatch.setattr(cache, "decode", None)  # would raise if it were called
    again = PixelStore(source.records, 12, folder=tmp_path / "c")
    assert len(again.get(source.train)[0]) == 10
    with pytest.raises(TypeError):
        PixelStore(source.records, 13, folder=tmp_path / "c")


def test_kept_pixels_are_made_anew_when_anything_changes(source, tmp_path):
    folder = tmp_path / "c"
    PixelStore(source.records, 12, folder=folder)
    PixelStore(source.records, 13, folder=folder)
    PixelStore(source.records, 12, crop_to_box=True, folder=folder)
    assert len(list(folder.iterdir())) == 3


def test_kept_pixels_are_made_anew_when_a_file_changes_in_time_alone(source, tmp_path):
    path, folder = source.train[0].path, tmp_path / "c"
    kept = []
    for number, nanoseconds in ((1, 10**18), (77, 10**18 + 1)):
        save_image(path, number)
        path.write_bytes(path.read_bytes().ljust(5000, b"\0"))  # the same length for both
        os.utime(path, ns=(nanoseconds, nanoseconds))
        kept.append(PixelStore(source.records, 12, folder=folder).get(source.train[:1])[0])
    assert len(list(folder.iterdir())) == 2
    assert not np.array_equal(*kept)


def test_damaged_image_is_named_and_nothing_is_kept(source, tmp_path):
    path = source.test[-1].path
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(UserError, match=f"{path.name} cannot be decoded"):
        PixelStore(source.records, 12, folder=tmp_path / "c")
    assert list((tmp_path / "c").iterdir()) == []


def test_damaged_image_is_named_by_a_worker_too(source):
    dataset = ImageDataset(source.test, PixelStore(source.records, 12, keep="off"))
    path = source.test[-1].path
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(UserError, match=f"{path.name} cannot be decoded"):
        list(make_loader(dataset, 2, workers=1))


def test_store_goes_to_another_process_without_its_mapped_pixels(source, tmp_path):
    store = PixelStore(source.records, 64, folder=tmp_path / "c")
    text = pickle.dumps(store)
    assert len(text) < store.pixels.nbytes / 10
    dataset = ImageDataset(source.train, store, augmented=True)
    there = pickle.loads(pickle.dumps(dataset))
    assert there.records == dataset.records
    assert torch.equal(there[[(1, 2), (3, 4)]].images, dataset[[(1, 2), (3, 4)]].images)


def test_thread_count_is_as_before_once_a_batch_is_made(source):
    before = torch.get_num_threads()
    dataset = ImageDataset(source.train, PixelStore(source.records, 8, keep="memory"))
    try:
        torch.set_num_threads(2)
        assert dataset[0].images.shape == (3, 8, 8)
        assert torch.get_num_threads() == 2
        source.train[0].path.unlink()
        dataset = ImageDataset(source.train, PixelStore(source.records, 8, keep="off"))
        with pytest.raises(UserError):
            dataset[0]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_epoch_under_way_keeps_its_number_when_another_is_asked_for():
    keys = EpochBatches(6, 2, shuffle=False, drop_last=False, seed=0)
    first = iter(keys)
    keys.epoch = 5
    assert [epoch for batch in first for epoch, _ in batch] == [0] * 6
    assert next(iter(keys))[0] == (5, 0)


def test_store_that_does_not_fit_says_so_first(source, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10**6}))
    with pytest.raises(UserError, match=r'resized images needs .* GB free: .* keep="off"'):
        PixelStore(source.records, 12, folder=tmp_path / "c")
    assert list((tmp_path / "c").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"keep": "tape"}, "keep must be one of disk"), ({"size": 0}, "a size of at least 1")],
)
def test_store_refuses(source, arguments, said):
    with pytest.raises(UserError, match=said):
        PixelStore(source.records, **{"size": 8, **arguments})


def test_sampler_counts_its_batches_and_refuses_what_gives_none():
    for drop_last, expected in ((False, 3), (True, 2)):
        keys = EpochBatches(11, 4, shuffle=False, drop_last=drop_last, seed=0)
        assert len(keys) == len(list(keys)) == expected
    assert list(keys)[1] == [(0, 4), (0, 5), (0, 6), (0, 7)]
    with pytest.raises(UserError, match="3 images do not make one batch of 4: .*--batch-size"):
        EpochBatches(3, 4, shuffle=False, drop_last=True, seed=0)
    with pytest.raises(UserError, match="at least 1 image"):
        EpochBatches(3, 0, shuffle=False, drop_last=True, seed=0)


def test_shuffled_epoch_sees_every_image_once():
    keys = EpochBatches(23, 5, shuffle=True, drop_last=False, seed=4)
    seen = [index for batch in keys for _, index in batch]
    assert sorted(seen) == list(range(23)) and seen != list(range(23))


def test_folder_of_mixed_shapes_makes_batches(tmp_path):
    root = write_folder(tmp_path / "mine")
    save_image(root / "kind_0" / "wide.png", size=(90, 20))
    save_image(root / "kind_1" / "one_pixel.png", size=(1, 1))
    source = data.read_folder(root)
    dataset = ImageDataset(
        source.train, PixelStore(source.records, 8, keep="memory"), augmented=True
    )
    assert all(torch.isfinite(batch.images).all() for batch in make_loader(dataset, 3))


def damage_pixels(folder: Path, kind: str) -> None:
    """Damages one of the files of kept pixels."""
    [path] = folder.glob("about.json" if kind.startswith("about") else "pixels.*")
    content = path.read_bytes()
    damaged = {
        "inverted": bytes(255 - value for value in content),
        "one bit": content[:-1] + bytes([content[-1] ^ 1]),
        "cut": content[:-1],
        "empty": b"",
        "about of another kind": b"[]",
        "about edited": content.replace(b"40", b"41"),
        "about cut": content[:-9],
    }
    path.unlink() if kind.endswith("missing") else path.write_bytes(damaged[kind])


KINDS = ["inverted", "one bit", "cut", "empty", "missing"]
KINDS += ["about of another kind", "about edited", "about cut", "about missing"]


@pytest.mark.parametrize("kind", KINDS)
def test_kept_pixels_that_are_damaged_are_decoded_again(source, tmp_path, kind, capsys):
    known = PixelStore(source.records, 8, folder=tmp_path / "cache")
    whole = [part.copy() for part in known.get(source.records)]
    damage_pixels(known.path, kind)
    for said in ("damaged", ""):  # the second time nothing is wrong any more
        store = PixelStore(source.records, 8, folder=tmp_path / "cache")
        pixels, sizes = store.get(source.records)
        assert np.array_equal(pixels, whole[0]) and np.array_equal(sizes, whole[1])
        assert said in (error := capsys.readouterr().err) and bool(said) == bool(error)


def test_pixels_that_cannot_be_decoded_again_are_refused(source, tmp_path):
    store = PixelStore(source.records, 8, folder=tmp_path / "cache")
    damage_pixels(store.path, "inverted")
    save_image(source.train[0].path, 99)
    with pytest.raises(UserError, match="was changed while it was used"):
        store.get(source.train[:1])


def test_fewer_than_no_workers_are_refused(source):
    dataset = ImageDataset(source.train, PixelStore(source.records, 16, keep="memory"))
    with pytest.raises(UserError, match="workers=-1"):
        make_loader(dataset, 2, workers=-1)


ALIVE = """
import sys
from dpp import data
from dpp.data.batches import ImageDataset, make_loader
from dpp.data.cache import PixelStore
records = data.read_folder(sys.argv[1]).train
loader = make_loader(ImageDataset(records, PixelStore(records, 8, keep="memory")), 2, workers=2)
kept = next(iter(loader)), iter(loader)
"""


def test_process_ends_while_its_workers_live(tmp_path):
    words = [sys.executable, "-c", ALIVE, str(write_folder(tmp_path / "mine"))]
    assert subprocess.run(words, timeout=100).returncode == 0
