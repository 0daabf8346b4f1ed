"""The images that each prototype resembles most: the supplement's global analysis.

One pass over the images, for all prototypes at once. Memory does not grow with the number of
images: for each prototype, only its nearest images so far and the places of its parts are kept.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from dpp.analysis.network import Network
from dpp.analysis.reasoning import make_parts
from dpp.data.batches import Batch, ImageDataset, batches, make_loader
from dpp.explanations import GlobalAnalysis, Neighbours, Share, Sighting
from dpp.system.errors import UserError

NO_IMAGE = torch.iinfo(torch.int64).max  # the index of an empty slot


def global_analysis(
    network: Network,
    train: ImageDataset,
    test: ImageDataset,
    count: int = 2,
    *,
    batch_size: int = 80,
    workers: int = 0,
    report: Callable[[int, int], None] = lambda done, of: None,
) -> GlobalAnalysis:
    """The training and the test images most similar to each prototype.

    Args:
        network: whose prototypes are searched for.
        train: un-augmented: `Splits.projection`.
        test: `Splits.test`.
        count: images of each split; fewer if a split has fewer.
        batch_size: images in a forward pass.
        workers: processes that prepare batches.
        report: called with the number of images done and the total.
    """
    by_split, done = [], 0

    def watch(dataset: ImageDataset) -> Iterator[Batch]:
        nonlocal done
        for batch in batches(make_loader(dataset, batch_size, workers=workers)):
            yield batch
            done += len(batch.images)
            report(done, len(train) + len(test))

    for dataset in (train, test):
        if dataset.augmented:
            raise UserError(
                "a global analysis needs images that are not augmented: give Splits.projection and "
                "Splits.test"
            )
        by_split.append(find_nearest(network, watch(dataset), count).sightings(dataset))
    neighbours = [
        Neighbours(number, network.labels[number], *(split.get(number, ()) for split in by_split))
        for number in network.prototypes.tolist()
    ]
    return GlobalAnalysis(network.name, count, tuple(neighbours))


def find_nearest(network: Network, images: Iterable[Batch], count: int) -> "Nearest":
    """The images most similar to every prototype, in one pass over un-augmented images."""
    nearest = Nearest(network, count)
    for batch in images:
        nearest.update(network.inspect(batch.images), batch.indices)
    return nearest


class Nearest:
    """The most similar images of each prototype so far; P prototypes, k images.

    Of equally similar images, the first in the data set is the nearer one, independent of the order
    in which they are processed.

    Args:
        network: whose prototypes they are.
        count: k.
    """

    def __init__(self, network: Network, count: int):
        if count < 1:
            raise UserError(f"a global analysis needs a count of at least 1 image, not {count}")
        self.network, self.count = network, count
        self.numbers = network.prototypes.cpu()
        shape = (count, len(self.numbers))
        self.similarity = torch.full(shape, -torch.inf, dtype=torch.float64)
        self.image = torch.full(shape, NO_IMAGE)
        self.centre = torch.zeros(shape, dtype=torch.long)  # a flat index into H*W
        self.places: Tensor | None = None  # (k, P, parts, 2)
        self.shares: Tensor | None = None  # (k, P, parts)
        self.cells = (0, 0)

    @torch.no_grad()
    def update(self, output, images: Tensor) -> None:
        """Adds the network's output for images (N,), given by their indices."""
        self.cells = tuple(output.z.shape[2:])
        scores = output.scores.cpu()[:, self.numbers].double()
        centres = output.places.cpu()[:, self.numbers]
        similarity = torch.cat([self.similarity, scores])  # (k + N, P)
        image = torch.cat([self.image, images[:, None].expand_as(scores)])
        by_image = image.argsort(dim=0)
        order = similarity.gather(0, by_image).argsort(dim=0, descending=True, stable=True)
        order = by_image.gather(0, order)[: self.count]
        self.similarity, self.image = similarity.gather(0, order), image.gather(0, order)
        self.centre = torch.cat([self.centre, centres]).gather(0, order)
        self._move_parts(order)
        for row in range(len(images)):
            slots, columns = (order == self.count + row).nonzero(as_tuple=True)
            if len(columns):
                self._take_parts(output, row, slots, columns)

    def _move_parts(self, order: Tensor) -> None:
        """Reorders the parts of images that stay; those of new images are set next."""
        if self.places is None:
            return
        before = order.clamp(max=self.count - 1)
        columns = torch.arange(before.shape[1])
        self.places, self.shares = self.places[before, columns], self.shares[before, columns]

    def _take_parts(self, output, row: int, slots: Tensor, columns: Tensor) -> None:
        """Finds the parts, on one new image, of the prototypes that have it among their nearest."""
        prototypes = self.numbers[columns].to(output.scores.device)
        places, shares = self.network.model.find_parts(output, row, prototypes)
        if self.places is None:
            self.places = places.new_zeros(*self.image.shape, *places.shape[1:], device="cpu")
            self.shares = shares.new_zeros(*self.image.shape, shares.shape[1], device="cpu")
        self.places[slots, columns], self.shares[slots, columns] = places.cpu(), shares.cpu()

    def sightings(self, dataset: ImageDataset) -> dict[int, tuple[Sighting, ...]]:
        """The nearest images of each prototype, by its number, most similar first."""
        sightings = defaultdict(dict)
        for index in self.image[self.image != NO_IMAGE].unique().tolist():
            record = dataset.records[index]
            geometry, size = self.network.geometry(record)
            slots, columns = (self.image == index).nonzero(as_tuple=True)
            seen = self.places[slots, columns], self.shares[slots, columns]
            parts = make_parts(geometry, self.cells, *seen)
            for slot, column, part in zip(slots.tolist(), columns.tolist(), parts, strict=True):
                number, width = int(self.numbers[column]), self.cells[1]
                sightings[number][slot] = Sighting(
                    prototype=number,
                    image=record.id,
                    label=record.label,
                    similarity=float(self.similarity[slot, column]),
                    size=size,
                    cells=self.cells,
                    centre=divmod(int(self.centre[slot, column]), width),
                    parts=part,
                )
        return {number: tuple(by[slot] for slot in sorted(by)) for number, by in sightings.items()}


def own_shares(analysis: GlobalAnalysis, split: str = "test") -> list[Share]:
    """The share of nearest images that are of the prototype's own class.

    Args:
        analysis: of a network.
        split: "train" or "test".

    Returns:
        The share among the nearest image of each prototype, among its two nearest, and so on.
    """
    rows = [
        [seen.label == neighbours.label for seen in getattr(neighbours, split)]
        for neighbours in analysis.prototypes
    ]
    longest = max(map(len, rows))
    firsts = [[own for row in rows for own in row[:count]] for count in range(1, longest + 1)]
    return [Share(sum(owns), len(owns)) for owns in firsts]


def chance_share(analysis: GlobalAnalysis, dataset: ImageDataset) -> Share:
    """The same share for images drawn at random: over all images, for each prototype."""
    counts = Counter(dataset.labels.tolist())
    own = sum(counts[neighbours.label] for neighbours in analysis.prototypes)
    return Share(own, len(analysis.prototypes) * len(dataset))


def select(analysis: GlobalAnalysis, prototypes: Iterable[int], count: int) -> GlobalAnalysis:
    """Some prototypes of a global analysis, with fewer of their nearest images."""
    by_number = {neighbours.prototype: neighbours for neighbours in analysis.prototypes}
    chosen = [
        replace(one, train=one.train[:count], test=one.test[:count])
        for one in map(by_number.__getitem__, prototypes)
    ]
    return GlobalAnalysis(analysis.run, count, tuple(chosen))
