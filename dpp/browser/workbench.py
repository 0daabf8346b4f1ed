"""The networks and images of the prototype browser; no widgets.

Nothing here writes to a run or changes a network: changes are tried out on a copy that shares the
backbone, the costly part, which caches the features of the last images.
"""

import copy
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from dpp.analysis import Network
from dpp.data.batches import ImageDataset
from dpp.data.images import DAMAGE
from dpp.data.pictures import Picture
from dpp.runs import Run, familiarity, load_splits, pruning
from dpp.system.errors import UserError

LARGEST_FILE = 8_000_000  # bytes: Jupyter's server drops a connection that brings more than 10 MiB
LARGEST_SIDE = 10_000  # pixels
LARGEST_PICTURE = 40_000_000  # pixels
KINDS_OF_PICTURE = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
CACHED = 8  # images
BATCH = 40  # images that are predicted at a time


@dataclass(frozen=True, eq=False)
class Subject:
    """A run's network, its training images and its test images.

    Args:
        network: of prototypes and a last layer.
        train: un-augmented.
        test: un-augmented.
    """

    network: Network
    train: ImageDataset
    test: ImageDataset

    @classmethod
    def of(cls, run: Run) -> "Subject":
        familiarity.ensure(run)
        network = Network.of(run)
        splits = load_splits(run.experiment, network.source)
        return cls(network, splits.projection, splits.test)

    def __post_init__(self):
        if self.network.is_tree:
            raise UserError(
                f"{self.network.name} is a tree, which has no score sheets: choose a run of "
                "deformable, protopnet or tesnet"
            )
        backbone = CachedBackbone(self.network.model.backbone)
        object.__setattr__(self, "network", self.network.exchange(backbone=backbone))

    @property
    def names(self) -> tuple[str, ...]:
        return self.network.source.class_names

    def prototypes_of(self, label: int) -> list[int]:
        return [number for number, owner in enumerate(self.network.labels) if owner == label]

    def find_classes(self, text: str) -> list[int]:
        """The classes whose names contain all words of a text."""
        words = text.lower().replace("_", " ").split()
        spoken = [name.lower().replace("_", " ") for name in self.names]
        return [label for label, name in enumerate(spoken) if all(word in name for word in words)]

    def duplicates_of(self, label: int) -> list[list[int]]:
        """A class's prototypes, equal ones together, in order of their first numbers."""
        numbers = self.prototypes_of(label)
        vectors = pruning.compared(self.network.model).detach()[numbers]
        first = pruning.find_duplicates(vectors, torch.zeros(len(numbers), device=vectors.device))
        groups: dict[int, list[int]] = {}
        for number, place in zip(numbers, first.tolist(), strict=True):
            groups.setdefault(place, []).append(number)
        return list(groups.values())

    def connections(self, prototype: int) -> np.ndarray:
        """(classes,), from a prototype to every class."""
        return self.network.model.last_layer.weight[:, prototype].detach().cpu().numpy()


class CachedBackbone(nn.Module):
    """A backbone that caches the features of the last few single images."""

    def __init__(self, backbone: nn.Module, count: int = CACHED):
        super().__init__()
        self.backbone, self.kept = backbone, deque(maxlen=count)

    def __getattr__(self, name: str):
        """All other attributes are the backbone's own."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("backbone"), name)

    def forward(self, images: Tensor) -> Tensor:
        if len(images) != 1:
            return self.backbone(images)
        for image, features in self.kept:
            if torch.equal(image, images):
                return features
        self.kept.append((images.clone(), self.backbone(images).detach()))
        return self.kept[-1][1]


@dataclass(frozen=True)
class Changes:
    """Changes of a network to try out.

    Args:
        off: prototypes that are switched off.
        rigid: whether all offsets are zero.
        connections: new values by class and prototype.
    """

    off: frozenset[int] = frozenset()
    rigid: bool = False
    connections: Mapping[tuple[int, int], float] = field(
        default_factory=lambda: MappingProxyType({})
    )

    def __bool__(self) -> bool:
        return bool(self.off or self.rigid or self.connections)


def change(network: Network, changes: Changes) -> Network:
    """A copy of the network with changes; the given one is not changed."""
    children = {}
    if changes.rigid and getattr(network.model, "offsets", None) is not None:
        children["offsets"] = None
    if changes.off or changes.connections:
        layer = children["last_layer"] = copy.deepcopy(network.model.last_layer)
        with torch.no_grad():
            for place, value in changes.connections.items():
                layer.weight[place] = value
            layer.weight[:, sorted(changes.off)] = 0
    return network.exchange(**children) if children else network


def class_scores(network: Network, picture: Picture) -> np.ndarray:
    """(classes,), the logits of one picture."""
    return network.inspect(picture.tensor[None]).logits[0].double().cpu().numpy()


def predict(
    network: Network,
    images: ImageDataset,
    wanted: Sequence[int],
    report: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, int]:
    """The predicted classes of some images of a data set, by the images' ids.

    Args:
        network: with a last layer.
        images: un-augmented.
        wanted: their indices.
        report: called with the number of images done and the total.
    """
    predicted: dict[str, int] = {}
    for start in range(0, len(wanted), BATCH):
        indices = list(wanted[start : start + BATCH])
        batch = images.batch([(0, index) for index in indices])
        found = network.inspect(batch.images).logits.argmax(dim=1).tolist()
        ids = (images.records[index].id for index in indices)
        predicted |= zip(ids, found, strict=True)
        report(start + len(indices), len(wanted))
    return predicted


def read_upload(network: Network, name: str, content: bytes) -> Picture:
    """An uploaded image, from the bytes of its file; its size is checked before it is decoded.

    Raises:
        UserError: it is too large, or not an image.
    """
    check_upload(name, content)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture"
        path.write_bytes(content)
        try:
            return replace(network.picture(path), name=name)
        except UserError as error:
            raise UserError(str(error).replace(str(path), name)) from error


def check_upload(name: str, content: bytes) -> None:
    if len(content) > LARGEST_FILE:
        raise UserError(
            f"{name} has {len(content) / 1e6:.1f} MB: choose an image of at most "
            f"{LARGEST_FILE / 1e6:.0f} MB, or explain it with: dpp explain"
        )
    too_large = (
        f"an image of at most {LARGEST_SIDE} pixels a side and "
        f"{LARGEST_PICTURE // 10**6} million in all"
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # refused below
            with Image.open(BytesIO(content), formats=KINDS_OF_PICTURE) as image:
                width, height = image.size
    except Image.DecompressionBombError as error:
        raise UserError(f"{name} has too many pixels: choose {too_large}") from error
    except DAMAGE as error:
        raise UserError(
            f"{name} is not an image that can be read: choose a file of type "
            f"{', '.join(KINDS_OF_PICTURE)}"
        ) from error
    if max(width, height) > LARGEST_SIDE or width * height > LARGEST_PICTURE:
        raise UserError(f"{name} has {width} by {height} pixels: choose {too_large}")
