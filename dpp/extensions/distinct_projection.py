"""Beyond the paper: stage 2 with a place of its own for each prototype of a class.

The paper projects every prototype onto the most similar patch of its class's images, whatever the
others took, so that several may end on one patch. Here no two prototypes of a class take the same
image, or they take places on it that are at least a part apart; which one goes where is the
assignment that loses the least similarity in all (Kuhn, "The Hungarian method for the assignment
problem", 1955). No table of the paper uses it: `projection="distinct"` in an experiment.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from dpp import ops
from dpp.data.batches import Batch, ImageDataset, to_device
from dpp.networks.model import DeformableProtoPNet, offsets_at
from dpp.reference import resting_places
from dpp.system.errors import UserError
from dpp.system.files import sha256
from dpp.training import projection
from dpp.training.projection import Origin
from dpp.training.trainer import Trainer


def stage(trainer: Trainer) -> dict[str, float]:
    """Stage 2, with `project_distinct` in place of the paper's projection."""
    return projection.stage(trainer, project_distinct)


@torch.no_grad()
def project_distinct(
    model: DeformableProtoPNet, images: Iterable[Batch], dataset: ImageDataset
) -> list[Origin]:
    """Replaces every prototype by samples of its class's images, each at a place of its own.

    Args:
        model: whose prototypes are replaced.
        images: un-augmented; they are gone through twice, so no iterator.
        dataset: what they are batches of.

    Returns:
        An origin for each prototype.
    """
    model.eval()
    layer = model.prototypes
    spacing = layer.geometry["dilation"]  # cells from a part to the next
    sites = {label: Sites(spacing) for label in layer.classes.unique().tolist()}
    for label, rows, z, offsets in _by_class(model, images):
        vectors = layer.normalised((layer.classes == label).nonzero().flatten())
        maps = ops.similarity_map(z, offsets, vectors, **layer.geometry)  # (N, Q, H, W)
        for index, one in zip(rows.tolist(), maps.cpu().numpy(), strict=True):
            sites[label].add(index, one)
    taken: dict[int, list[tuple[int, int, float]]] = {}  # by image: prototype, centre, similarity
    for label, found in sites.items():
        numbers = (layer.classes == label).nonzero().flatten().tolist()
        for number, (index, centre, similarity) in zip(numbers, found.assign(label), strict=True):
            taken.setdefault(index, []).append((number, centre, similarity))
    origins = [
        origin
        for _, rows, z, offsets in _by_class(model, images)
        for place, index in enumerate(rows.tolist())
        for origin in _take(model, z[place], _row(offsets, place), index, taken, dataset)
    ]
    return sorted(origins, key=lambda origin: origin.prototype)


def _by_class(
    model: DeformableProtoPNet, images: Iterable[Batch]
) -> Iterator[tuple[int, Tensor, Tensor, Tensor | None]]:
    """Class, indices (N,), features and offsets of the images of each class of each batch."""
    for batch in images:
        z, offsets = model.locate(to_device(batch.images, model.prototypes.vectors.device))
        for label in batch.labels.unique().tolist():
            rows = (batch.labels == label).nonzero().flatten()
            index = rows.to(z.device)
            yield label, batch.indices[rows], z[index], _row(offsets, index)


def _row(offsets: Tensor | None, row) -> Tensor | None:
    return None if offsets is None else offsets[row]


def _take(model, z: Tensor, offsets: Tensor | None, index: int, taken: dict, dataset):
    """Gives the prototypes that an image was assigned to what lies there; yields their origins."""
    layer, cells = model.prototypes, tuple(z.shape[1:])
    rest = torch.tensor(resting_places(layer.kernel_size, layer.geometry["dilation"]))
    shape = {"kernel_size": layer.kernel_size} | layer.geometry
    for number, centre, similarity in taken.get(index, ()):
        place = torch.tensor([[centre]], device=z.device)
        moves = None if offsets is None else offsets[None]
        samples = ops.sample_parts(z[None], moves, place, **shape)[0]
        layer.replace(torch.tensor([number], device=z.device), samples)
        where = divmod(centre, cells[1])
        parts = torch.tensor(where) + rest
        if moves is not None:
            parts = parts + offsets_at(moves, place)[0, 0].cpu()
        record = dataset.records[index]
        yield Origin(
            prototype=number,
            label=int(layer.classes[number]),
            image=record.id,
            sha256=sha256(record.path),
            similarity=similarity,
            cells=cells,
            centre=where,
            parts=tuple(tuple(place) for place in parts.tolist()),
        )


def share_place(centres, other, spacing: int) -> np.ndarray:
    """Whether prototypes on one image are less than a part apart, both in rows and in columns.

    Args:
        centres: (..., 2), rows and columns.
        other: (2,), row and column of another centre.
        spacing: cells from a part to the next.
    """
    return np.abs(np.asarray(centres) - np.asarray(other)).max(axis=-1) < spacing


class Sites:
    """The places that the Q prototypes of one class may take, on all images of the class.

    Args:
        spacing: how far apart places on one image are at least, in rows or in columns.
    """

    def __init__(self, spacing: int):
        self.spacing = spacing
        self.places: list[tuple[int, int]] = []  # image, centre
        self.similarities: list[np.ndarray] = []  # (Q,) at each

    def add(self, index: int, maps: np.ndarray) -> None:
        """Adds up to Q places of an image, from the similarity maps (Q, H, W) of the prototypes.

        First where any prototype is most similar, then where any is among the places that are far
        enough from those.
        """
        count, _, width = maps.shape
        best = maps.max(axis=0)
        cells = np.stack(np.indices(best.shape), axis=-1)  # (H, W, 2)
        for _ in range(count):
            centre = int(best.argmax())
            row, column = divmod(centre, width)
            if best[row, column] == -np.inf:  # the image is full
                return
            self.places.append((index, centre))
            self.similarities.append(maps[:, row, column])
            near = share_place(cells, (row, column), self.spacing)
            best = np.where(near, -np.inf, best)

    def assign(self, label: int) -> list[tuple[int, int, float]]:
        """A place for each prototype, at the least loss of similarity in all.

        Returns:
            Image, centre and similarity, for each of the Q prototypes.

        Raises:
            UserError: there are fewer places than prototypes.
        """
        values = np.array(self.similarities)  # (places, Q)
        if not len(values) or len(values) < values.shape[1]:
            raise UserError(
                f"class {label} has {len(values)} places for its prototypes to be projected onto, "
                "fewer than prototypes: give it more images, or fewer prototypes"
            )
        places, numbers = linear_sum_assignment(values, maximize=True)
        chosen = dict(zip(numbers.tolist(), places.tolist(), strict=True))
        return [
            (*self.places[chosen[number]], float(values[chosen[number], number]))
            for number in range(values.shape[1])
        ]


def with_distinct_projection(stages: Callable) -> Callable:
    """The stages of a method, as a function of an experiment, with stage 2 replaced."""
    return lambda experiment: dict(stages(experiment)) | {"project": stage}
