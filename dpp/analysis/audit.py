"""Checks of prototypes: what projection cost, which are the same, whether parts lie on the animal.

An audit checks the prototypes on their source images; `part_share` on any images. Both count parts
within one cell of an annotated part of the animal; `chance` is the share expected of parts that are
spread uniformly over the images.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import torch

from dpp.analysis.collapse import network_collapse
from dpp.analysis.network import Network, check_origin
from dpp.data.batches import Batch
from dpp.data.image_records import ImageRecord
from dpp.data.transforms import Geometry
from dpp.explanations import Accuracy, Audit, PartShare, Share
from dpp.runs import Run
from dpp.runs.pruning import compared, find_duplicates
from dpp.system.errors import UserError


def audit(run: Run, network: Network | None = None) -> Audit:
    """Audits the prototypes of a run on their source images.

    Args:
        run: finished, with projected prototypes.
        network: of the run, if it is loaded already; or the pruned one.

    Raises:
        UserError: the prototypes were not projected, or a source image has changed.
    """
    network = network or Network.of(run)
    if not network.origins:
        raise UserError(f"{network.name} has no source images: its prototypes were not projected")
    origins = list(network.origins.values())
    records = [check_origin(network, origin) for origin in origins]
    images = Counter(origin.image for origin in origins)
    views = {record.id: network.geometry(record)[0] for record in records}
    tally = Tally()
    for origin, record in zip(origins, records, strict=True):
        tally.add(record, views[record.id], origin.cells, np.array(origin.parts))
    return Audit(
        run=network.name,
        prototypes=len(network.prototypes),
        accuracies=accuracies(run.metrics),
        duplicates=duplicates(network),
        source_images=len(images),
        most_from_one_image=max(images.values()),
        off_image=Share(tally.off_image, tally.parts),
        on_background=Share(tally.on_background, tally.boxed),
        parts=tally.part_share,
        collapse=network_collapse(network),
    )


def accuracies(metrics: pd.DataFrame) -> tuple[Accuracy, ...]:
    """The accuracies before and after the last projection, if there was one."""
    projections = metrics.index[metrics.stage == "project"]
    if not len(projections):
        return ()
    last = projections[-1]
    around = []
    for split in ("validation", "test"):
        column = metrics[f"{split}_accuracy"]
        values = (column[last - 1], column[last], column.iloc[-1])
        around.append(Accuracy(split, *map(float, values)))
    return tuple(around)


@torch.no_grad()
def duplicates(network: Network) -> tuple[tuple[int, ...], ...]:
    """Groups of equal prototypes of one class, by their numbers."""
    model, numbers = network.model, network.prototypes.cpu()
    vectors = model.prototypes.vectors if network.is_tree else compared(model)
    labels = torch.tensor(network.labels)
    classes = torch.zeros_like(labels) if network.is_tree else labels
    first = find_duplicates(vectors.cpu()[numbers], classes[numbers])
    groups = [numbers[first == one].tolist() for one in first.unique().tolist()]
    return tuple(tuple(group) for group in groups if len(group) > 1)


def close_parts(network: Network, within: float = 0.5) -> Share:
    """Prototypes with two parts at nearly the same place on their source images.

    The paper: "deformations without further regularization often result in duplications of
    prototypical parts within a prototype".

    Args:
        network: with projected prototypes.
        within: the largest distance, in cells.
    """
    parts = [np.array(origin.parts) for origin in network.origins.values()]
    apart = [np.linalg.norm(one[:, None] - one, axis=2) for one in parts]
    close = [(np.triu(within - each, k=1) > 0).any() for each in apart]
    return Share(sum(map(int, close)), len(close))


@torch.no_grad()
def part_share(
    network: Network, images: Iterable[Batch], records: Sequence[ImageRecord], count: int = 1
) -> PartShare:
    """How many parts of the prototypes most similar to each image lie on parts of the animal.

    Args:
        network: trained; or untrained, as a baseline.
        images: un-augmented.
        records: of these images, with annotated parts.
        count: prototypes of each image, over all classes.
    """
    tally = Tally()
    for batch in images:
        output = network.inspect(batch.images)
        numbers = network.prototypes.to(output.scores.device)
        nearest = output.scores[:, numbers].topk(min(count, len(numbers)), dim=1).indices
        for row, index in enumerate(batch.indices.tolist()):
            places, _ = network.model.find_parts(output, row, numbers[nearest[row]])
            record, cells = records[index], tuple(output.z.shape[2:])
            view = network.geometry(record)[0]
            tally.add(record, view, cells, places.flatten(0, 1).cpu().numpy())
    if not tally.marked:
        raise UserError(
            f"{network.source.name} has no annotated parts of the animal: choose data with parts, "
            "such as posebirds or cub"
        )
    return tally.part_share


class Tally:
    """Counts of parts: on the image, on the background, near parts of the animal."""

    def __init__(self):
        self.parts = self.off_image = self.boxed = self.on_background = 0
        self.marked = self.near = self.cells = self.near_cells = 0

    def add(
        self, record: ImageRecord, view: Geometry, cells: tuple[int, int], places: np.ndarray
    ) -> None:
        """Counts parts at places (Q, 2) of the map, on a record's image."""
        self.parts += len(places)
        on_image = is_on_map(places, cells)
        self.off_image += int((~on_image).sum())
        if record.box:
            down, right = view.cell_to_image(places[on_image], cells).T
            left, top, end, bottom = record.box
            inside = (left <= right) & (right < end) & (top <= down) & (down < bottom)
            self.boxed += len(inside)
            self.on_background += int((~inside).sum())
        targets = [(part.y, part.x) for part in record.parts or () if part.visible]
        if targets:
            marks = view.image_to_cell(np.array(targets), cells)
            grid = np.stack(np.indices(cells), axis=-1).reshape(-1, 2)
            self.marked += len(places)
            self.near += int(is_near(places, marks).sum())
            self.cells += len(grid)
            self.near_cells += int(is_near(grid, marks).sum())

    @property
    def part_share(self) -> PartShare:
        return PartShare(Share(self.near, self.marked), Share(self.near_cells, self.cells))


def is_on_map(places: np.ndarray, cells: tuple[int, int]) -> np.ndarray:
    """(Q,), whether places (Q, 2) are within the outer edges of the map's cells."""
    return ((places >= -0.5) & (places < np.array(cells) - 0.5)).all(axis=1)


def is_near(places: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """(Q,), whether a mark (M, 2) is within a distance of one cell of places (Q, 2)."""
    return (np.linalg.norm(places[:, None] - marks, axis=2) <= 1).any(axis=1)
