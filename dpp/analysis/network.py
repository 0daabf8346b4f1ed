"""A trained network with its data: what every analysis asks."""

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
from dpp.methods.prototree import ProtoTree, labels_to_the_right
from dpp.runs import Run
from dpp.system.errors import UserError
from dpp.training.projection import Origin, file_digest


@dataclass(frozen=True, eq=False)
class Network:
    """A network that can be asked, and what its numbers stand for.

    Args:
        model: with prototypes, trained or not, pruned or not.
        name: of its run.
        source: the data that its classes and origins are of.
        size: side of the images that it sees.
        crop_to_box: whether it sees what is in their boxes.
        origins: where its prototypes come from, by their numbers.
    """

    model: nn.Module
    name: str
    source: Source
    size: int
    crop_to_box: bool = False
    origins: Mapping[int, Origin] = field(default_factory=dict)

    def __post_init__(self):
        if not hasattr(self.model, "find_parts"):
            raise UserError(
                f"{self.name} is a {type(self.model).__name__}, which has no prototypes to explain "
                "anything by: choose a run of deformable, protopnet, tesnet or prototree"
            )
        self.model.eval()

    @classmethod
    def of(cls, run: Run, device: str = "cpu") -> "Network":
        """The network of a run."""
        experiment, model = run.experiment, run.load_model(device)
        there = (run.folder / "prototypes.json").is_file()
        origins = read_origins(run.origins) if there else {}
        shown = {"size": experiment.image_size, "crop_to_box": experiment.crop_to_box}
        return cls(model, run.folder.name, run.source, **shown, origins=origins)

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
        """The numbers of the prototypes: all, but for a tree's nodes that are pruned."""
        used = self.model.forks if self.is_tree else torch.ones(len(self.labels), dtype=torch.bool)
        return used.nonzero().flatten()

    @cached_property
    def records(self) -> dict[str, ImageRecord]:
        return {record.id: record for record in self.source.records}

    def picture(self, source: str | Path | ImageRecord) -> Picture:
        """Loads a record or a file as the network was shown images."""
        return load_picture(
            source, self.size, crop_to_box=self.crop_to_box, cell_centres=self.cell_centres
        )

    @cached_property
    def cell_centres(self) -> tuple[float, ...]:
        """Where the cells of its map look, in pixels of what it sees."""
        return self.model.backbone.cell_centres(self.size)

    def geometry(self, record: ImageRecord) -> tuple[Geometry, tuple[int, int]]:
        """How the network's view lies in a record's image, and that image's width and height."""
        size = image_size(record)
        return Geometry.of(record, size, self.size, self.crop_to_box, self.cell_centres), size

    def exchange(self, **children: nn.Module | None) -> "Network":
        """The same but for some children of its model; this one stays as it is."""
        model = copy.copy(self.model)
        model._modules = self.model._modules | children
        return replace(self, model=model)

    @torch.no_grad()
    def inspect(self, images: Tensor):
        """The model's output for images (N, 3, size, size)."""
        return self.model.inspect(self.prepare(images))

    def prepare(self, images: Tensor) -> Tensor:
        """Images (N, 3, size, size) on the model's device, in its precision and memory layout."""
        parameter = next(self.model.parameters())
        return to_device(images, parameter.device).to(parameter.dtype)

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
    """Origins by prototype, from what a run keeps of them (`Run.origins`)."""
    found = {}
    for kept in origins:
        pairs = {name: tuple(kept[name]) for name in ("cells", "centre")}
        parts = tuple(tuple(place) for place in kept["parts"])
        found[kept["prototype"]] = Origin(**(dict(kept) | pairs | {"parts": parts}))
    return found


def check_origin(network: Network, origin: Origin) -> ImageRecord:
    """The record that a prototype comes from, if its file is still the same."""
    record, source = network.records.get(origin.image), network.source
    if record is None:
        raise UserError(
            f"prototype {origin.prototype} of {network.name} comes from image {origin.image}, "
            f"which {source.name} under {source.root} does not have"
        )
    if file_digest(record) != origin.sha256:
        raise UserError(
            f"image {record.path}, from which prototype {origin.prototype} of {network.name} "
            "comes, has changed since: put the original back, or train the run again"
        )
    return record
