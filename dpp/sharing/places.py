"""Every prototype on every image of a split, as one table that is written while it is computed."""

import csv
import gzip
import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

import torch
from tqdm.auto import tqdm

from dpp.analysis.network import Network
from dpp.data.batches import ImageDataset, batches, make_loader
from dpp.data.disk_space import check_space
from dpp.networks.model import centre_cells
from dpp.system import files
from dpp.system.errors import UserError

BATCH = 40  # images that are inspected at a time
ABOUT = ("image", "label", "predicted", "prototype", "class", "similarity", "row", "column")
OF_A_PART = ("row", "column", "share", "left", "top", "right", "bottom")
ROW_BYTES, PART_BYTES = 70, 62  # of a row, and of each part in it, about
SQUEEZED = 0.3  # what gzip leaves of it, about
ENDINGS = (".csv", ".csv.gz")


def export_places(
    network: Network,
    dataset: ImageDataset,
    path: Path,
    *,
    own: bool = False,
    progress: bool = True,
) -> int:
    """Writes where each prototype is most similar to each image, and where its parts lie there.

    A row for each image and prototype: the image's id, class and predicted class; the prototype's
    number and class; its similarity and centre (row and column of the map); and of each part its
    place on the map, what it adds to the similarity, and its box in pixels of the original image.

    Args:
        network: with prototypes.
        dataset: un-augmented.
        path: a file that ends in .csv or .csv.gz; it is there complete or not at all.
        own: only prototypes of the image's own class.
        progress: show a bar.

    Returns:
        How many rows.
    """
    if not path.name.endswith(ENDINGS):
        raise UserError(f"{path}: the table's name must end in {' or '.join(ENDINGS)}")
    check_space(path.parent, estimate_bytes(network, dataset, path, own), f"the table {path.name}")
    count = 0
    with files.file_written_beside(path) as unfinished, _opened(unfinished, path) as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header(network))
        with tqdm(total=len(dataset), unit="image", desc="places", disable=not progress) as bar:
            for batch in batches(make_loader(dataset, BATCH)):
                for row in _rows(network, dataset, batch, own):
                    writer.writerow(row)
                    count += 1
                bar.update(len(batch.labels))
    return count


@contextmanager
def _opened(unfinished: Path, path: Path) -> Iterator[TextIO]:
    """A text file to write to, compressed if its final path ends in .gz."""
    with unfinished.open("wb") as plain, ExitStack() as stack:
        raw = plain
        if path.suffix == ".gz":  # without name and time, so that the same table has the same bytes
            raw = stack.enter_context(gzip.GzipFile("", "wb", fileobj=plain, mtime=0))
        yield stack.enter_context(io.TextIOWrapper(raw, newline="", encoding="utf-8"))


def count_parts(network: Network) -> int:
    vectors = getattr(network.model.prototypes, "vectors", None)
    return 1 if vectors is None else vectors.shape[-1] ** 2


def header(network: Network) -> list[str]:
    parts = range(count_parts(network))
    return [*ABOUT, *(f"part{part}_{name}" for part in parts for name in OF_A_PART)]


def estimate_bytes(network: Network, dataset: ImageDataset, path: Path, own: bool) -> int:
    """The size of the table, about."""
    shown = len(network.prototypes)
    if own:
        shown /= max(len(set(network.labels)), 1)
    row = ROW_BYTES + PART_BYTES * count_parts(network)
    return int(len(dataset) * shown * row * (SQUEEZED if path.suffix == ".gz" else 1))


@torch.no_grad()
def _rows(network: Network, dataset: ImageDataset, batch, own: bool) -> Iterator[list]:
    output = network.inspect(batch.images)
    names, cells = network.source.class_names, tuple(output.z.shape[2:])
    used, owners = network.prototypes, torch.tensor(network.labels)
    for place, index in enumerate(batch.indices.tolist()):
        record = dataset.records[index]
        numbers = used[owners[used] == record.label] if own else used
        numbers = numbers.to(output.scores.device)
        parts, shares = network.model.find_parts(output, place, numbers)
        boxes = network.geometry(record)[0].cell_boxes(parts.cpu().double().numpy(), cells)
        about = [record.id, names[record.label], names[int(output.logits[place].argmax())]]
        columns = (
            numbers.tolist(),
            output.scores[place, numbers].tolist(),
            centre_cells(output, place, numbers).tolist(),
            parts.tolist(),
            shares.tolist(),
            boxes.tolist(),
        )
        for number, similarity, centre, *found in zip(*columns, strict=True):
            row = [*about, number, names[network.labels[number]], f"{similarity:.6f}", *centre]
            for where, share, box in zip(*found, strict=True):
                row += [f"{value:.3f}" for value in where]
                row += [f"{share:.6f}", *(f"{value:.1f}" for value in box)]
            yield row
