"""A trained network with its data, the subject of every analysis."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from dpp.data.batches import to_device
from dpp.data.image_records import ImageRecord, Source
from dpp.data.images import image_size
from dpp.data.pictures import Picture, load_picture
from dpp.data.transforms import Geometry
from dpp.methods.prototree import labels_to_the_right
from dpp.networks.soft_tree import ProtoTree
from dpp.runs import Run, familiarity
from dpp.runs.familiarity import Familiarity, highest_similarity
from dpp.system.errors import UserError
from dpp.system.files import sha256
from dpp.training.projection import Origin


@dataclass(frozen=True, eq=False)
class Network:
    """A network with the data that its classes and prototypes refer to.

    Args:
        model: with prototypes, trained or not, pruned or not.
        name: of its run.
        source: the data of its classes and source images.
        size: side of its input, in pixels.
        crop_to_box: whether its input is cropped to the bounding boxes.
        origins: of its prototypes, by their numbers.
        familiarity: how similar the test images are to its prototypes, if that is known.
    """

    model: nn.Module
    name: str
    source: Source
    size: int
    crop_to_box: bool = False
    origins: Mapping[int, Origin] = field(default_factory=dict)
    familiarity: Familiarity | None = None

    def __post_init__(self):
        if not hasattr(self.model, "find_parts"):
            raise UserError(
                f"{self.name} is a {type(self.model).__name__}, which has no prototypes to explain "
                "its predictions: choose a run of deformable, protopnet, tesnet or prototree"
            )
        self.model.eval()

    @classmethod
    def of(cls, run: Run, device: str = "cpu") -> "Network":
        """The network of a run."""
        experiment, model = run.experiment, run.load_model(device)
        origins = read_origins(run.origins) if run.projected else {}
        shown = {"size": experiment.image_size, "crop_to_box": experiment.crop_to_box}
        known = familiarity.find(run)
        return cls(model, run.folder.name, run.source, **shown, origins=origins, familiarity=known)

    @property
    def is_tree(self) -> bool:
        return isinstance(self.model, ProtoTree)

    @cached_property
    def labels(self) -> list[int]:
        """The class of every prototype; in a tree, the likeliest one where it is present."""
        if self.is_tree:
            return labels_to_the_right(self.model.leaves)
        return self.model.prototypes.classes.tolist()

    @property
    def prototypes(self) -> Tensor:
        """The numbers of all prototypes; of a tree, without those of pruned nodes."""
        used = self.model.forks if self.is_tree else torch.ones(len(self.labels), dtype=torch.bool)
        return used.nonzero().flatten()

    @cached_property
    def records(self) -> dict[str, ImageRecord]:
        return {record.id: record for record in self.source.records}

    def picture(self, source: str | Path | ImageRecord) -> Picture:
        """Loads a record or a file as input of the network."""
        return load_picture(
            source, self.size, crop_to_box=self.crop_to_box, cell_centres=self.cell_centres
        )

    @cached_property
    def cell_centres(self) -> tuple[float, ...]:
        """The centres of the cells' receptive fields, in pixels of its input."""
        return self.model.backbone.cell_centres(self.size)

    def geometry(self, record: ImageRecord) -> tuple[Geometry, tuple[int, int]]:
        """The position of the network's input in a record's image, and the image's size."""
        size = image_size(record)
        return Geometry.of(record, size, self.size, self.crop_to_box, self.cell_centres), size

    def exchange(self, **children: nn.Module | None) -> "Network":
        """A copy with some children of its model replaced; this one is not changed."""
        model = copy.copy(self.model)
        model._modules = self.model._modules | children
        return replace(self, model=model)

    @torch.no_grad()
    def inspect(self, images: Tensor):
        """The model's output for images (N, 3, size, size)."""
        return self.model.inspect(self.prepare(images))

    def warning(self, output) -> str:
        """That the first image of an output is far from the training images; otherwise empty."""
        if self.familiarity is None:
            return ""
        return self.familiarity.warning(float(highest_similarity(self.model, output.scores)[0]))

    def prepare(self, images: Tensor) -> Tensor:
        """Images (N, 3, size, size) on the model's device, in its precision and memory layout.

        What a frozen trunk made of images (`TrunkFeatures`) may take their place.
        """
        parameter = next(self.model.parameters())
        shown = to_device(images, parameter.device)
        return shown.to(parameter.dtype) if isinstance(shown, Tensor) else shown

    def label_of(self, wanted: int | str) -> int:
        """A class by its number or name."""
        names = self.source.class_names
        if isinstance(wanted, str):
            if wanted in names:
                return names.index(wanted)
            near = get_close_matches(wanted, names, n=3, cutoff=0.4) or names[:3]
            raise UserError(
                f"{self.source.name} has no class {wanted!r}: did you mean {', '.join(near)}?"
            )
        if not 0 <= wanted < len(names):
            raise UserError(f"{self.source.name} has classes 0 to {len(names) - 1}, not {wanted}")
        return wanted


def read_origins(origins: Sequence[Mapping]) -> dict[int, Origin]:
    """Origins by prototype, from their JSON form (`Run.origins`)."""
    by_number = {}
    for kept in origins:
        pairs = {name: tuple(kept[name]) for name in ("cells", "centre")}
        parts = tuple(tuple(place) for place in kept["parts"])
        by_number[kept["prototype"]] = Origin(**(dict(kept) | pairs | {"parts": parts}))
    return by_number


def check_origin(network: Network, origin: Origin) -> ImageRecord:
    """The record of a prototype's source image, if its file has not changed.

    Raises:
        UserError: the image is missing or has changed.
    """
    record, source = network.records.get(origin.image), network.source
    if record is None:
        raise UserError(
            f"{source.name} under {source.root} has no image {origin.image}, the source image of "
            f"prototype {origin.prototype} of {network.name}: use the data it was trained on"
        )
    if sha256(record.path) != origin.sha256:
        raise UserError(
            f"image {record.path}, the source image of prototype {origin.prototype} of "
            f"{network.name}, has changed since: restore the original, or train the run again"
        )
    return record
