"""Stage 2: every prototype becomes the most similar patch of a training image (equation 15)."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from dpp import ops
from dpp.data.batches import Batch, ImageDataset, share, to_device
from dpp.data.image_records import ImageRecord
from dpp.networks.model import DeformableProtoPNet, offsets_at
from dpp.reference import resting_places
from dpp.system import processes
from dpp.system.errors import UserError
from dpp.system.files import sha256
from dpp.training.trainer import Trainer


@dataclass(frozen=True)
class Origin:
    """Where a prototype comes from; places are (row, column) of the map, from its first cell.

    Args:
        prototype: its number in the network.
        label: its class.
        image: the data set's name for the image.
        sha256: of the image's file.
        similarity: to the prototype as it was before.
        cells: rows and columns of the map.
        centre: of the prototype.
        parts: where each part lies, whole or fractional, in the order of the parts.
    """

    prototype: int
    label: int
    image: str
    sha256: str
    similarity: float
    cells: tuple[int, int]
    centre: tuple[int, int]
    parts: tuple[tuple[float, float], ...]


@torch.no_grad()
def project(
    model: DeformableProtoPNet, images: Iterable[Batch], dataset: ImageDataset
) -> list[Origin]:
    """Replaces every prototype by the most similar samples of an image of its class.

    One pass over the images. All parts come from one image, at their fractional places; the first
    of equally similar images is taken.

    Args:
        model: whose prototypes are replaced.
        images: un-augmented.
        dataset: what they are batches of.

    Returns:
        An origin for each prototype.
    """
    model.eval()
    prototypes = model.prototypes
    best = search(model, images)
    classes = prototypes.classes.tolist()
    if lacking := [label for label, image in zip(classes, best.image, strict=True) if image < 0]:
        raise UserError(f"class {lacking[0]} has no training image to project its prototypes onto")
    prototypes.replace(torch.arange(len(classes), device=best.samples.device), best.samples)
    return best.origins(classes, dataset.records)


@torch.no_grad()
def search(model: DeformableProtoPNet, images: Iterable[Batch]) -> "Best":
    """Looks for every prototype in the images of its class."""
    prototypes = model.prototypes
    best = Best(prototypes.normalised(), prototypes.geometry)
    device = prototypes.vectors.device
    for batch in share(images):
        z, offsets = model.locate(to_device(batch.images, device))
        for label in batch.labels.unique().tolist():
            numbers = (prototypes.classes == label).nonzero().flatten()
            rows = (batch.labels == label).nonzero().flatten()
            index = rows.to(device)
            moved = None if offsets is None else offsets[index]
            best.update(numbers, z[index], moved, batch.indices[rows])
    best.merge()
    return best


class Best:
    """The most similar place of each prototype that was seen so far, and what is under its parts.

    Args:
        prototypes: (P, C + 1, K, K).
        geometry: dilation and outside, for the operator.
    """

    def __init__(self, prototypes: Tensor, geometry: dict):
        self.prototypes, self.geometry = prototypes, geometry
        self.samples = torch.empty_like(prototypes)
        count, kernel_size = len(prototypes), prototypes.shape[-1]
        self.similarity = torch.full((count,), -torch.inf, dtype=prototypes.dtype)
        self.image = torch.full((count,), -1)
        self.centre = torch.zeros(count, 2, dtype=torch.long)
        self.moved = torch.zeros(count, kernel_size**2, 2, dtype=prototypes.dtype)
        self.cells = (0, 0)

    def update(self, numbers: Tensor, z: Tensor, offsets: Tensor | None, images: Tensor) -> None:
        """Looks for prototypes `numbers` (Q,) in images (N,) with features z (N, C + 1, H, W)."""
        cosines, places = ops.max_similarity(z, offsets, self.prototypes[numbers], **self.geometry)
        similarity, row = cosines.max(dim=0)  # (Q,), and which image
        better = (similarity.cpu() > self.similarity[numbers.cpu()]).nonzero().flatten()
        if not len(better):
            return
        index = better.to(z.device)
        row, winners = row[index], numbers[index]
        centres = places[row, index][:, None]  # (Q, 1)
        moved = None if offsets is None else offsets[row]
        self.samples[winners] = ops.sample_parts(
            z[row], moved, centres, kernel_size=self.prototypes.shape[-1], **self.geometry
        )[:, 0]
        winners, self.cells = winners.cpu(), tuple(z.shape[2:])
        self.similarity[winners] = similarity[index].cpu()
        self.image[winners] = images[row.cpu()]
        width = self.cells[1]
        self.centre[winners] = torch.cat([centres // width, centres % width], dim=1).cpu()
        if moved is not None:
            self.moved[winners] = offsets_at(moved, centres)[:, 0].cpu()

    def merge(self) -> None:
        """Takes what other processes found, if there are any, where that is more similar."""
        found = (self.similarity, self.image, self.centre, self.moved, self.samples)
        found = processes.keep_highest(*found)
        self.similarity, self.image, self.centre, self.moved, self.samples = found

    def origins(self, labels: list[int], records: tuple[ImageRecord, ...]) -> list[Origin]:
        kernel_size = self.prototypes.shape[-1]
        rest = torch.tensor(resting_places(kernel_size, self.geometry["dilation"]))
        parts = self.centre[:, None] + rest + self.moved  # (P, K*K, 2)
        digests = {index: sha256(records[index].path) for index in set(self.image.tolist())}
        return [
            Origin(
                prototype=number,
                label=label,
                image=records[image].id,
                sha256=digests[image],
                similarity=float(self.similarity[number]),
                cells=self.cells,
                centre=tuple(self.centre[number].tolist()),
                parts=tuple(tuple(place) for place in parts[number].tolist()),
            )
            for number, (label, image) in enumerate(zip(labels, self.image.tolist(), strict=True))
        ]


def stage(trainer: Trainer, project: Callable[..., list[Origin]] = project) -> dict[str, float]:
    """Stage 2 on the un-augmented training images; the trainer keeps the origins.

    Args:
        project: the function of networks that project in another way.
    """
    images = trainer.loaders["projection"]
    origins = project(trainer.model, images, trainer.splits.projection)
    trainer.provenance = [asdict(origin) for origin in origins]
    return {"source_images": len({origin.image for origin in origins})}
