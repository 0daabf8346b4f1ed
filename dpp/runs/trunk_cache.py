"""What a frozen trunk makes of every image, computed once and trained from.

Two stores (`dpp.data.feature_store`) under `cache/trunk` in the data root: `plain`, of all images
as they are, for validation, test, projection and the last layer; and `views`, of the augmented
views of the training and validation images; `dpp evaluate` adds `changed`, of noisy test images. A
store is named by a digest of all that it depends on: the backbone and its frozen layers with their
weights, the images' pixels, and for views the augmentation and which images. An epoch shows one
view of each image, and as many epochs as there are views show each of them once
(`dpp.data.transforms.choose_view`). Runs that agree in all of this share a store, whatever their
method, loss, head, seed or validation split.

The plain features are always computed in float32: a prototype is projected on them, and is a patch
of the image for whoever looks at it later. Views serve training alone, and are computed in its
precision.

Features are kept in half precision. Measured on photographs of CUB with ImageNet weights, the
rounding changes the last block's features by a relative 1e-4 (ResNet-34 up to layer3; VGG-16 up to
its fourth pooling the same), bfloat16 by 1e-3 in the same room, and 8 bits with a scale for each
image and channel by 1.5e-3 in half of it.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dpp.backbones.backbone import Backbone
from dpp.backbones.trunks import TrunkFeatures
from dpp.data import transforms
from dpp.data.batches import Batch, ImageDataset, Splits, to_device
from dpp.data.cache import PixelStore
from dpp.data.disk_space import check_space
from dpp.data.feature_store import FeatureStore
from dpp.system.paths import data_root
from dpp.training.trainer import autocast

TRIAL = 8  # images that are timed to say how long all will take
SLICE = 16  # images at once: maps of 64 leave the processor's caches, and take 1.3 times as long


class CachedDataset(ImageDataset):
    """An image data set whose batches have `TrunkFeatures` in the images' place.

    Args:
        dataset: whose records, labels and views it has.
        features: an open store.
        rows: of each image in the store, the first of its views'.
    """

    def __init__(self, dataset: ImageDataset, features: FeatureStore, rows: Sequence[int]):
        super().__init__(
            dataset.records,
            dataset.store,
            augmented=dataset.augmented,
            seed=dataset.seed,
            views=dataset.views,
        )
        self.features, self.rows = features, tuple(rows)

    def batch(self, keys: Sequence[tuple[int, int]]) -> Batch:
        """The features at (epoch, index) keys."""
        indices = [index for _, index in keys]
        rows = [self.rows[index] for index in indices]
        if self.augmented:  # views are counted from 1
            rows = [row + self.view(*key) - 1 for row, key in zip(rows, keys, strict=True)]
        maps = torch.from_numpy(self.features.get(rows)).permute(0, 3, 1, 2)
        features = TrunkFeatures(maps, self.store.size)
        return Batch(features, self.labels[indices], torch.tensor(indices))


def cache_splits(
    splits: Splits,
    backbone: Backbone,
    *,
    precision: str = "float32",
    root: Path | None = None,
    dtype: str = "float16",
    progress: bool = False,
) -> Splits:
    """The same splits as features of the backbone's frozen trunk; what is missing is computed.

    Args:
        splits: of images; the training images have a number of views.
        backbone: with a frozen trunk, on the device that computes.
        precision: float32, bfloat16 or float16, that views are computed in.
        root: where stores live, instead of `cache/trunk` under the data root.
        dtype: that features are kept in, float16 or float32.
        progress: say what is about to be written, and show a bar.
    """
    root = Path(root or data_root() / "cache" / "trunk")
    maker = _Maker(splits, backbone, precision, root, dtype)
    plain, views = maker.stores
    both = ((plain, maker.compute_plain), (views, maker.compute_views))
    missing = [(store, compute) for store, compute in both if store.open()]
    if missing:
        needed = sum(store.missing_bytes() for store, _ in missing)
        advice = "or train with fewer views"
        check_space(plain.folder.parent, needed, "a cache of trunk features", advice)
        if progress:
            print(maker.announce([store for store, _ in missing]), file=sys.stderr)
        for store, compute in missing:
            store.build(compute, progress=progress)
    places = splits.test.store.rows  # of an image among all, by its id
    cached = {
        name: CachedDataset(dataset, plain, [places[record.id] for record in dataset.records])
        for name, dataset in splits._asdict().items()
        if name != "train"
    }
    first_rows = {r.id: n * splits.train.views for n, r in enumerate(maker.viewed.records)}
    rows = [first_rows[record.id] for record in splits.train.records]
    return Splits(train=CachedDataset(splits.train, views, rows), **cached)


class Missing(NamedTuple):
    """What `cache_splits` would compute."""

    maps: int
    bytes: int
    seconds: float  # from a trial of a few images; 0 if nothing is missing


def find_missing(splits: Splits, backbone: Backbone, precision: str) -> Missing:
    """What `cache_splits` would compute now, with its usual root and type."""
    maker = _Maker(splits, backbone, precision, data_root() / "cache" / "trunk", "float16")
    return maker.measure([store for store in maker.stores if store.open()])


class _Maker:
    """Computes features of images, and knows what they depend on."""

    def __init__(self, splits: Splits, backbone: Backbone, precision: str, root: Path, dtype: str):
        self.splits, self.backbone, self.dtype = splits, backbone, dtype
        self.precision = precision
        pixels, views = splits.train.store, splits.train.views
        records = {r.id: r for dataset in splits for r in dataset.records}
        self.plain = ImageDataset([records[id] for id in pixels.rows], pixels)
        # Views of validation images too: another seed or share of validation has the same store.
        tested = {record.id for record in splits.test.records}
        training = [record for record in self.plain.records if record.id not in tested]
        self.viewed = ImageDataset(training, pixels, augmented=True, views=views)
        shape = self.compute_plain(range(1)).shape[1:]
        key, (name, what) = key_of(backbone, pixels), names_of(backbone, pixels)
        views_key = key | {
            "views": views,
            "augmentation": [transforms.LARGEST_ANGLE, transforms.LARGEST_SHEAR, "bicubic"],
            "images": digest_of(record.id for record in training),
        }
        if precision != "float32":
            views_key["precision"] = precision
        count = len(training) * views
        described = f"{what}: {views} views of {len(training):,} images"
        self.stores = (
            plain_store(backbone, pixels, shape, root, dtype),
            FeatureStore(root, f"{name}-views", views_key, count, shape, dtype, described),
        )

    def compute_plain(self, rows: range) -> np.ndarray:
        """The features (N, H, W, C) of images as they are."""
        return self._compute(self.plain.show([(0, row) for row in rows]), "float32")

    def compute_views(self, rows: range) -> np.ndarray:
        """Row by row all views, counted from 1, of the first image, then of the second."""
        pairs = (divmod(row, self.viewed.views) for row in rows)
        images = self.viewed.show([(view + 1, index) for index, view in pairs])
        return self._compute(images, self.precision)

    def _compute(self, images: torch.Tensor, precision: str) -> np.ndarray:
        return compute_features(self.backbone, images, precision, self.dtype)

    def measure(self, stores: Sequence[FeatureStore]) -> Missing:
        """How much is missing of some stores, and about how long that takes."""
        if not stores:
            return Missing(0, 0, 0.0)
        few = range(min(TRIAL, len(self.plain)))
        self.compute_plain(few)  # the first pass also sets things up
        begun = time.perf_counter()
        self.compute_plain(few)
        pace = (time.perf_counter() - begun) / len(few)
        missing = sum(store.missing_bytes() for store in stores)
        maps = round(missing / stores[0].row_bytes)
        return Missing(maps, missing, maps * pace)

    def announce(self, stores: Sequence[FeatureStore]) -> str:
        """How much will be computed, where, and about how long that takes."""
        missing, (height, width, channels) = self.measure(stores), stores[0].shape
        minutes = max(round(missing.seconds / 60), 1)
        return (
            f"trunk features: {missing.maps:,} maps of {channels} x {height} x {width}, "
            f"{missing.bytes / 1e9:.2g} GB under {stores[0].folder.parent}, about {minutes} "
            f"minute{'s' if minutes > 1 else ''}"
        )


@torch.inference_mode()
def compute_features(
    backbone: Backbone, images: torch.Tensor, precision: str = "float32", dtype: str = "float16"
) -> np.ndarray:
    """What the frozen trunk makes of images (N, 3, S, S), as it is kept: (N, H, W, C)."""
    device, kept = next(backbone.parameters()).device, []
    for few in images.split(SLICE if device.type == "cpu" else len(images)):
        with autocast(precision, device):
            maps = backbone.trunk(to_device(few, device))
        kept.append(maps.to("cpu", getattr(torch, dtype)).permute(0, 2, 3, 1).contiguous())
    return torch.cat(kept).numpy()


def key_of(backbone: Backbone, pixels: PixelStore) -> dict:
    """All that plain features depend on, as it is read back from JSON."""
    return {
        "backbone": backbone.name,
        "frozen_trunk": backbone.frozen_trunk,
        "weights": trunk_digest(backbone),
        "pixels": pixels.content_digest(),
        "size": pixels.size,
        "crop_to_box": pixels.crop_to_box,
        "mean_std": [list(transforms.IMAGENET_MEAN), list(transforms.IMAGENET_STD)],
    }


def names_of(backbone: Backbone, pixels: PixelStore) -> tuple[str, str]:
    """The beginning of a store's name, and what is in it, for people."""
    name = f"{backbone.name}-{backbone.frozen_trunk}-{pixels.size}px"
    return name, f"{backbone.name} up to {backbone.frozen_trunk}, {pixels.size} px"


def plain_store(
    backbone: Backbone, pixels: PixelStore, shape: Sequence[int], root: Path, dtype: str = "float16"
) -> FeatureStore:
    """The store of all images as they are, in the order of their pixels; not yet opened."""
    name, what = names_of(backbone, pixels)
    described = f"{what}: {len(pixels.rows):,} images"
    key, rows = key_of(backbone, pixels), len(pixels.rows)
    return FeatureStore(root, f"{name}-plain", key, rows, shape, dtype, described)


def find_plain(
    dataset: ImageDataset, backbone: torch.nn.Module, root: Path | None = None
) -> CachedDataset | None:
    """Un-augmented images as the trunk features that a training kept of them, if it did."""
    pixels = dataset.store
    if not getattr(backbone, "frozen_steps", 0) or dataset.augmented or pixels.pixels is None:
        return None
    shape = compute_features(backbone, dataset.show([(0, 0)])).shape[1:]
    store = plain_store(backbone, pixels, shape, Path(root or data_root() / "cache" / "trunk"))
    if store.open():
        return None
    return CachedDataset(dataset, store, [pixels.rows[record.id] for record in dataset.records])


def keep_changed(
    dataset: ImageDataset,
    backbone: Backbone,
    change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    about: dict,
    *,
    root: Path | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> CachedDataset:
    """Changed images as trunk features, computed once for all networks on the same trunk.

    Args:
        dataset: un-augmented.
        backbone: with a frozen trunk.
        change: from images (N, 3, S, S) and their indices (N,) to the images wanted.
        about: what the change depends on, as JSON.
        root: where stores live, instead of `cache/trunk` under the data root.
        report: called with how many images are done, and how many there are.
    """
    count, pixels = len(dataset), dataset.store

    def compute(rows: range) -> np.ndarray:
        images = dataset.show([(0, row) for row in rows])
        report(rows.stop, count)
        return compute_features(backbone, change(images, torch.tensor(rows)))

    shape, root = compute(range(1)).shape[1:], Path(root or data_root() / "cache" / "trunk")
    ids = digest_of(record.id for record in dataset.records)
    key = key_of(backbone, pixels) | {"change": about, "images": ids}
    name, what = names_of(backbone, pixels)
    described = f"{what}: {count:,} changed images"
    store = FeatureStore(root, f"{name}-changed", key, count, shape, "float16", described)
    if store.open():
        check_space(root, store.missing_bytes(), "a cache of trunk features", "or free some space")
        store.build(compute)
    return CachedDataset(dataset, store, range(count))


def trunk_digest(backbone: Backbone) -> str:
    """The SHA-256 of the frozen layers' weights and statistics."""
    digest = hashlib.sha256()
    for name, layer in backbone.steps()[: backbone.frozen_steps]:
        for key, value in layer.state_dict().items():
            array = value.detach().cpu().contiguous().numpy()
            digest.update(f"{name}.{key} {array.dtype} {array.shape}\n".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


def digest_of(ids) -> str:
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()
