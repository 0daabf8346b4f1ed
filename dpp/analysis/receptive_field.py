"""Where cells of a trained network look: effective receptive fields, and where a box belongs.

What a cell could depend on is fixed by the layers; what it does depend on is found by gradients
(Luo et al., "Understanding the effective receptive field", 2016) and is smaller. A prototype's part
is drawn as a box of the image, and there are three places for it: `PLACEMENTS`.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from dpp.analysis.audit import Tally
from dpp.analysis.network import Network
from dpp.data.batches import ImageDataset, batches, make_loader
from dpp.data.transforms import Geometry

BATCH = 50  # images that are inspected at a time
PROBES = 4  # random directions of the features whose gradients are taken
PLACEMENTS = {  # of the box of a part that lies on a cell
    "receptive field": "the centre of its receptive field, by the layers' kernels and strides",
    "paper": "gamma times its place, its upper left corner, as the paper writes it",
    "cell": "the centre of the cell itself",
}


def pixel_weights(
    backbone: nn.Module,
    images: Tensor,
    cell: tuple[int, int],
    *,
    probes: int = PROBES,
    seed: int = 0,
) -> Tensor:
    """How much each pixel moves the direction of the features at one cell.

    The squared gradient of random projections of the unit feature vector, summed over images,
    projections and colours: in expectation, the squared Frobenius norm of the Jacobian of the
    direction, which is what a cosine sees.

    Args:
        backbone: images to a map (N, C, H, W).
        images: (N, 3, S, S).
        cell: row and column.
        probes: how many projections.
        seed: of the projections.

    Returns:
        (S, S), with sum 1.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = images.detach().clone().requires_grad_()
    features = backbone(inputs)[:, :, cell[0], cell[1]]
    unit = nn.functional.normalize(features, dim=1)
    weights = torch.zeros(images.shape[2:], dtype=torch.double)
    for probe in range(probes):
        direction = torch.randn(unit.shape, generator=generator).to(unit)
        kept = probe + 1 < probes
        (slope,) = torch.autograd.grad((unit * direction).sum(), inputs, retain_graph=kept)
        weights += slope.double().square().sum(dim=(0, 1)).cpu()
    return weights / weights.sum()


def weighted_quantile(weights: np.ndarray, share: float) -> float:
    """Where, along a row of pixels (S,), this share of the weight lies before; the first ends at 1.

    Linear within a pixel.
    """
    total = np.concatenate([[0], np.cumsum(weights)])
    return float(np.interp(share * total[-1], total, np.arange(len(total))))


def containing_side(weights: np.ndarray, centre: tuple[float, float], share: float) -> float:
    """The side of the square around a centre that holds a share of the weight (S, S), in pixels.

    Pixels outside the image weigh nothing: at the border the square is as large as inside.
    """
    middles = np.arange(len(weights)) + 0.5
    away = np.abs(middles[:, None] - np.array(centre))  # (S, 2), rows and columns
    reach = np.maximum(away[:, 0, None], away[None, :, 1]).ravel()  # half the side, of each pixel
    order = np.argsort(reach, kind="stable")
    held = np.cumsum(weights.ravel()[order])
    last = np.searchsorted(held, share * held[-1] * (1 - 1e-9))
    return float(2 * reach[order][last] + 1)


def effective_field(
    backbone: nn.Module,
    images: Tensor,
    cells: Sequence[tuple[int, int]],
    cell_centres: Sequence[float],
    *,
    probes: int = PROBES,
) -> pd.DataFrame:
    """Size and centre of the effective receptive fields of some cells.

    Args:
        backbone: in evaluation mode.
        images: (N, 3, S, S), as it takes them.
        cells: rows and columns.
        cell_centres: of the layers' receptive fields, in pixels (`Backbone.cell_centres`).
        probes: projections of the features, see `pixel_weights`.

    Returns:
        A row for each cell: `row` and `column`; `down` and `right`, the centre of its effective
        field in pixels, the median of the weight along each axis; `half` and `most`, the sides of
        the squares around it that hold a half and nine tenths of the weight, in pixels;
        `from field down`, `from cell right` and so on: how far that centre is from the layers'
        centre and from the cell's own middle, in cells.
    """
    rows = []
    for row, column in cells:
        weights = pixel_weights(backbone, images, (row, column), probes=probes).numpy()
        centre = tuple(weighted_quantile(weights.sum(axis=axis), 0.5) for axis in (1, 0))
        pace = len(weights) / len(cell_centres)
        found = {"row": row, "column": column, "down": centre[0], "right": centre[1]}
        found |= {
            name: containing_side(weights, centre, share)
            for name, share in (("half", 0.5), ("most", 0.9))
        }
        for place, at, axis in zip((row, column), centre, ("down", "right"), strict=True):
            found[f"from field {axis}"] = (at - cell_centres[place]) / pace
            found[f"from cell {axis}"] = (at - (place + 0.5) * pace) / pace
        rows.append(found)
    return pd.DataFrame(rows)


def placement_errors(fields: pd.DataFrame) -> pd.Series:
    """How far boxes would lie from what cells see, for each of the `PLACEMENTS`.

    Args:
        fields: of `effective_field`.

    Returns:
        The length, in cells, of the mean displacement from the box's centre to that of the
        effective field. Single cells scatter around it, on few images by more than a cell.
    """
    gaps = {
        name: [fields[f"from {kind} {axis}"] + shift for axis in ("down", "right")]
        for name, kind, shift in (
            ("receptive field", "field", 0.0),
            ("paper", "cell", 0.5),  # its box is centred on the cell's upper left corner
            ("cell", "cell", 0.0),
        )
    }
    means = {name: [float(along.mean()) for along in gap] for name, gap in gaps.items()}
    return pd.Series({name: float(np.hypot(*mean)) for name, mean in means.items()})


def inner_cells(count: int, apart: int = 2) -> list[tuple[int, int]]:
    """Nine cells in and around the middle of a map of so many rows and columns."""
    middle, apart = count // 2, min(apart, (count - 1) // 2)
    places = (middle - apart, middle, middle + apart)
    return [(row, column) for row in places for column in places]


def field_of(network: Network, dataset: ImageDataset, images: int = 10) -> pd.DataFrame:
    """`effective_field` of the inner cells of a network on the first images of a data set."""
    count = min(images, len(dataset))
    shown = network.prepare(dataset.batch([(0, index) for index in range(count)]).images)
    backbone = network.model.backbone
    cells = inner_cells(len(network.cell_centres))
    return effective_field(backbone, shown, cells, network.cell_centres)


def placed(view: Geometry, placement: str, count: int) -> Geometry:
    """A geometry that puts boxes where a placement does.

    Args:
        view: with the layers' centres.
        placement: one of `PLACEMENTS`.
        count: rows and columns of the map.
    """
    pace = view.size / count
    centres = {
        "receptive field": view.cell_centres,
        "paper": tuple(place * pace for place in range(count)),
        "cell": None,
    }[placement]
    return Geometry(view.region, view.size, centres)


@torch.no_grad()
def compare_placements(network: Network, dataset: ImageDataset, count: int = 1) -> pd.DataFrame:
    """How well boxes lie on the animal, for each of the `PLACEMENTS`.

    Args:
        network: with prototypes.
        dataset: un-augmented, with marked parts of the animal, and boxes around it.
        count: prototypes of each image, the most similar ones of its own class.

    Returns:
        A row for each placement: `near`, the share of the parts within one cell of a marked part;
        `chance`, of all cells; `background`, the share outside the animal's box; `elsewhere`, the
        share near a marked part if each image's parts are laid on another one, half of the data set
        away. Animals are in the middle, and so are some placements' boxes, whatever is seen there.
    """
    tallies, others = ({name: Tally() for name in PLACEMENTS} for _ in range(2))
    owners = torch.tensor(network.labels)
    for batch in batches(make_loader(dataset, BATCH)):
        output = network.inspect(batch.images)
        cells = tuple(output.z.shape[2:])
        scores = output.scores.cpu().masked_fill(batch.labels[:, None] != owners, -torch.inf)
        best = scores.topk(count, dim=1).indices
        for row, index in enumerate(batch.indices.tolist()):
            own = dataset.records[index]
            other = dataset.records[(index + len(dataset) // 2) % len(dataset)]
            places, _ = network.model.find_parts(output, row, best[row].to(output.scores.device))
            places = places.flatten(0, 1).cpu().numpy()
            for record, counted in ((own, tallies), (other, others)):
                view = network.geometry(record)[0]
                for name, tally in counted.items():
                    tally.add(record, placed(view, name, cells[0]), cells, places)
    rows = {
        name: {
            "near": tally.part_share.near.value,
            "chance": tally.part_share.chance.value,
            "background": tally.on_background / max(1, tally.boxed),
            "elsewhere": others[name].part_share.near.value,
        }
        for name, tally in tallies.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")
