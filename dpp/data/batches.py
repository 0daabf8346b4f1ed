"""Batches of images for a network: the same from the same seed, whatever the number of workers."""

import os
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from dpp.data.cache import PixelStore
from dpp.data.image_records import ImageRecord, Source, split_validation
from dpp.data.transforms import (
    Augmentation,
    Geometry,
    augment,
    choose_view,
    draw_augmentation,
    image_number,
    normalise,
    sampling_matrices,
)
from dpp.system import processes
from dpp.system.errors import UserError

VIEW_SEED = 0  # of an image's views, whatever the seed of a run: all share what is kept of them


class Batch(NamedTuple):
    """Some images, or one without the first dimension."""

    images: torch.Tensor  # (N, 3, size, size) float32, normalised
    labels: torch.Tensor  # (N,)
    indices: torch.Tensor  # (N,), places in the data set's records


class ImageDataset(Dataset):
    """Images of records, as a network takes them.

    `dataset[index]` is one un-batched `Batch`, as in epoch 0; a list of (epoch, index) gives a
    batch. An augmentation depends on the seed, the epoch and the index alone; of a number of views,
    on the image's id and which view the epoch shows: views are the same for every seed.

    Args:
        records: the images, in order.
        store: their pixels; several data sets may share it.
        augmented: as for training; otherwise as for projection and scoring.
        seed: of the augmentation, or of the order of the views.
        views: how many augmentations an image has in all, see `choose_view`; 0 for a new one in
            each epoch.
    """

    def __init__(
        self,
        records: Sequence[ImageRecord],
        store: PixelStore,
        *,
        augmented: bool = False,
        seed: int = 0,
        views: int = 0,
    ):
        self.records, self.store = tuple(records), store
        self.augmented, self.seed, self.views = augmented, seed, views
        self.labels = torch.tensor([record.label for record in self.records], dtype=torch.long)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: int | list[tuple[int, int]]) -> Batch:
        if isinstance(key, list):
            return self.batch(key)
        if not 0 <= key < len(self):
            raise IndexError(key)
        return Batch(*(part[0] for part in self.batch([(0, key)])))

    def batch(self, keys: Sequence[tuple[int, int]]) -> Batch:
        """The images at (epoch, index) keys."""
        indices = [index for _, index in keys]
        images = self.show([(self.view(*key), key[1]) for key in keys])
        return Batch(images, self.labels[indices], torch.tensor(indices))

    def show(self, views: Sequence[tuple[int, int]]) -> torch.Tensor:
        """The images (N, 3, size, size) at (view, index): an image as it is has no views."""
        records = [self.records[index] for _, index in views]
        pixels, image_sizes = self.store.get(records)
        with one_thread():
            return self._transformed(torch.from_numpy(pixels), views, records, image_sizes)

    def _transformed(self, images, views, records, image_sizes) -> torch.Tensor:
        if self.augmented:
            aspects = [
                self._geometry(*pair).aspect for pair in zip(records, image_sizes, strict=True)
            ]
            drawn = [self._augmentation(*view) for view in views]
            images = augment(images, sampling_matrices(drawn, aspects))
        return normalise(images, in_place=True)

    def view(self, epoch: int, index: int) -> int:
        """Which view of an image an epoch shows; without a number of views, the epoch's own."""
        if not (self.augmented and self.views):
            return epoch
        return choose_view(self.seed, epoch, image_number(self.records[index].id), self.views)

    def _augmentation(self, view: int, index: int) -> Augmentation:
        if self.views:
            return draw_augmentation(VIEW_SEED, view, image_number(self.records[index].id))
        return draw_augmentation(self.seed, view, index)

    def geometry(self, index: int) -> Geometry:
        """How the un-augmented tensor of an image lies in its file."""
        record = self.records[index]
        _, image_sizes = self.store.get([record])
        return self._geometry(record, image_sizes[0])

    def _geometry(self, record: ImageRecord, image_size: np.ndarray) -> Geometry:
        width, height = image_size.tolist()
        return Geometry.of(record, (width, height), self.store.size, self.store.crop_to_box)


@contextmanager
def one_thread() -> Iterator[None]:
    """Uses one thread, as a worker does: with more, small tensors only take longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class EpochBatches(Sampler):
    """Lists of (epoch, index): the order of an epoch depends on the seed and the epoch alone.

    The epoch is sent with the indices, so that persistent workers know it too.
    """

    def __init__(self, length: int, batch_size: int, *, shuffle: bool, drop_last: bool, seed: int):
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}: a batch needs at least 1 image")
        if drop_last and length < batch_size:
            raise UserError(
                f"{length} images do not make one batch of {batch_size}: lower batch_size "
                f"(--batch-size) to {length} or less"
            )
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self.shuffle, self.drop_last = shuffle, drop_last
        self.epoch = 0
        self.start, self.step = 0, 1  # which batches: all
        self.part = (0, 1)  # which part of each: the first of one, see `part_of`

    def __len__(self) -> int:
        whole, rest = divmod(self.length, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        whole = self.keys(self.epoch)[self.start :: self.step]
        return iter([part_of(keys, *self.part) for keys in whole])

    def keys(self, epoch: int) -> list[list[tuple[int, int]]]:
        """The whole batches of an epoch."""
        order = np.arange(self.length)
        if self.shuffle:
            order = np.random.default_rng((self.seed, epoch)).permutation(self.length)
        keys = [(epoch, index) for index in order.tolist()]
        starts = range(0, len(self) * self.batch_size, self.batch_size)
        return [keys[start : start + self.batch_size] for start in starts]


def part_of(keys: list, number: int, count: int) -> list:
    """The part of a batch for one of several processes; in their order, parts make the batch.

    Args:
        keys: of the batch.
        number: of the process, from 0.
        count: of the processes; where it does not divide the batch, parts differ by one.
    """
    return keys[len(keys) * number // count : len(keys) * (number + 1) // count]


def make_loader(
    dataset: ImageDataset,
    batch_size: int,
    *,
    shuffle: bool = False,
    drop_last: bool = False,
    workers: int = 0,
    seed: int = 0,
    pin_memory: bool | None = None,
) -> DataLoader:
    """A loader whose batches depend on the seed and the epoch, not on the workers.

    Args:
        dataset: what to load.
        batch_size: images in a batch.
        shuffle: a new order in each epoch (see `batches`); otherwise the records' own.
        drop_last: leave out a last batch that is not full.
        workers: processes that prepare batches; 0 prepares them in this one.
        seed: of the order.
        pin_memory: by default if there is a GPU.
    """
    if workers < 0:
        raise UserError(f"workers={workers}: expected 0 (no other process) or more")
    keys = EpochBatches(len(dataset), batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
    return DataLoader(
        dataset,
        batch_size=None,  # the sampler makes the batches, the data set takes them whole
        sampler=keys,
        collate_fn=as_it_is,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
        pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
        generator=torch.Generator().manual_seed(seed),  # leaves the global one alone
        worker_init_fn=leave_signals_to_parent,
    )


def leave_signals_to_parent(worker: int) -> None:
    """Sets up a worker process: a signal to the whole group stops the parent, which saves first.

    The parent ends its workers, if it must by a SIGTERM of its own: only that one counts.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # Linux: it tells who sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_at_parents_signal, daemon=True).start()


def _end_at_parents_signal() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def as_it_is(batch: Batch) -> Batch:
    return batch


def to_device(images: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Images (N, 3, H, W) on a device, in channels-last memory, which is fastest."""
    return images.to(device, non_blocking=True, memory_format=torch.channels_last)


def batches(loader: DataLoader, epoch: int = 0, start: int = 0, step: int = 1) -> Iterator[Batch]:
    """The batches of one epoch of a loader from `make_loader`; finish one before the next.

    Args:
        start: skip this many batches, for a run that is resumed.
        step: then give every so many.
    """
    keys = loader.sampler
    keys.epoch, keys.start, keys.step = epoch, start, step
    iterator = iter(loader)  # knows its keys now
    keys.start, keys.step = 0, 1
    return iterator


def share(images: Iterable[Batch]) -> Iterable[Batch]:
    """The batches, in turn, that are for this process, of several; of one all.

    They are whole: a network gives the same results for them as in one process.
    """
    if processes.count() == 1:
        return images
    if isinstance(images, DataLoader):  # which then prepares no others
        return batches(images, start=processes.rank(), step=processes.count())
    return islice(images, processes.rank(), None, processes.count())


def merge(values: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Values (N, ...) by name of each batch of a `share`, of all images in their order.

    Where there are several processes, on the CPU.
    """
    if processes.count() > 1:
        own = [{name: value.cpu() for name, value in batch.items()} for batch in values]
        in_turn = zip_longest(*processes.gather(own))
        values = [batch for turn in in_turn for batch in turn if batch is not None]
    names = values[0] if values else ()
    return {name: torch.cat([batch[name] for batch in values]) for name in names}


class Splits(NamedTuple):
    """What training needs. Choices are made on `validation`; `test` gives the final result."""

    train: ImageDataset  # augmented
    projection: ImageDataset  # the same records, un-augmented
    validation: ImageDataset
    test: ImageDataset


def make_splits(
    source: Source,
    size: int,
    *,
    crop_to_box: bool = False,
    validation_fraction: float = 0.1,
    seed: int = 0,
    views: int = 0,
    keep: str = "disk",
    folder: Path | None = None,
) -> Splits:
    """The four data sets of a source; they share one `PixelStore`, to which `keep` belongs.

    Args:
        source: from a reader.
        size: side of the images' square.
        crop_to_box: show the network what is in the box (`bb` in Table 3).
        validation_fraction: share of each class's training images for validation.
        seed: of the validation split and of the augmentation.
        views: of a training image; 0 for a new augmentation in each epoch.
        keep: see `PixelStore`.
        folder: see `PixelStore`.
    """
    store = PixelStore(source.records, size, crop_to_box=crop_to_box, keep=keep, folder=folder)
    train, validation = split_validation(source, validation_fraction, seed)
    return Splits(
        train=ImageDataset(train, store, augmented=True, seed=seed, views=views),
        projection=ImageDataset(train, store),
        validation=ImageDataset(validation, store),
        test=ImageDataset(source.test, store),
    )
