"""How far explanations can be trusted: controls that an honest explanation should pass.

A box on a bird proves little if the same box would lie on any other bird, and a high similarity
proves little if noise has one, too. Each function here measures something beside its control.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dpp.analysis import latent_space
from dpp.analysis.audit import is_near
from dpp.analysis.network import Network
from dpp.data.batches import ImageDataset, batches, make_loader
from dpp.data.pictures import Picture
from dpp.explanations import ClassScore
from dpp.networks.losses import own_class
from dpp.runs import Run
from dpp.system.errors import UserError
from dpp.training.projection import project

BATCH = 80  # images that are inspected at a time


@torch.no_grad()
def decisions(network: Network, dataset: ImageDataset) -> pd.DataFrame:
    """What a network decides about each image, and how sure of it it seems.

    Args:
        network: with prototypes and a last layer.
        dataset: un-augmented.

    Returns:
        A row for each image, by its id: `label`, `predicted`, `correct`; `similarity`, of the most
        similar prototype of the predicted class; `nearest`, the class of the most similar prototype
        of all; `lead`, of the true class's score over the best other one, negative if the decision
        is incorrect; `margin`, of the predicted class's over the next; `probability`.
    """
    owners = torch.tensor(network.labels)
    rows = []
    for batch in batches(make_loader(dataset, BATCH)):
        output = network.inspect(batch.images)
        logits, scores, labels = output.logits.cpu(), output.scores.cpu(), batch.labels
        best = logits.topk(2, dim=1).values
        truth = logits.gather(1, labels[:, None])[:, 0]
        rivals = logits.scatter(1, labels[:, None], -torch.inf).amax(dim=1)
        predicted = logits.argmax(dim=1)
        own = own_class(predicted, owners)
        columns = {
            "label": labels,
            "predicted": predicted,
            "correct": predicted == labels,
            "similarity": scores.masked_fill(~own, -torch.inf).amax(dim=1),
            "nearest": owners[scores.argmax(dim=1)],
            "lead": truth - rivals,
            "margin": best[:, 0] - best[:, 1],
            "probability": logits.softmax(dim=1).amax(dim=1),
        }
        ids = [dataset.records[index].id for index in batch.indices.tolist()]
        rows.append(pd.DataFrame(columns, index=ids))
    return pd.concat(rows)


def ranks_correct_first(found: pd.DataFrame, column: str) -> float:
    """How often a column of `decisions` is larger for a correct than for an incorrect decision.

    Over all such pairs, ties by half (the area under the ROC curve): 0.5 says nothing, 1 all.
    """
    right = found[column][found.correct].to_numpy()[:, None]
    wrong = found[column][~found.correct].to_numpy()
    return float(((right > wrong) + 0.5 * (right == wrong)).mean()) if wrong.size else np.nan


def distinct_reasons(one: ClassScore, duplicates: Sequence[Sequence[int]]) -> pd.DataFrame:
    """The score sheet of a class with equal prototypes in one row: their connections are added.

    Args:
        one: the score of a class.
        duplicates: groups of equal prototypes, of `audit.duplicates`.

    Returns:
        A row for each distinct prototype, most points first: `prototypes`, such as "4 = 9",
        `similarity`, `connection` and `points`.
    """
    first = {number: group[0] for group in duplicates for number in group}
    rows = [
        {"reason": first.get(match.prototype, match.prototype), "number": match.prototype}
        | {name: getattr(match, name) for name in ("similarity", "connection", "points")}
        for match in one.matches
    ]
    grouped = pd.DataFrame(rows).sort_values("number").groupby("reason")
    sheet = grouped.agg(
        prototypes=("number", lambda numbers: " = ".join(map(str, numbers))),
        similarity=("similarity", "first"),
        connection=("connection", "sum"),
        points=("points", "sum"),
    )
    return sheet.sort_values("points", ascending=False, kind="stable").reset_index(drop=True)


def strongest_reasons(
    classes: Sequence[ClassScore], duplicates: Sequence[Sequence[int]]
) -> pd.DataFrame:
    """A row for each class: its score, how many distinct reasons it has, and the strongest."""
    rows = {}
    for one in classes:
        sheet = distinct_reasons(one, duplicates)
        rows[one.name] = {"score": one.score, "distinct reasons": len(sheet)} | dict(sheet.iloc[0])
    return pd.DataFrame.from_dict(rows, orient="index")


def compare_similarities(networks: Mapping[str, Network], dataset: ImageDataset) -> pd.DataFrame:
    """Of networks by their names: mean similarities of the nearest prototypes, and the accuracy.

    Returns:
        A row for each network: `own class`, the mean similarity of the nearest prototype of the
        image's class; `other classes`, of the nearest of all others; `accuracy`.
    """
    rows = {}
    for name, network in networks.items():
        angles = latent_space.measure_angles(network, dataset)
        similarities = {"own class": angles.own, "other classes": angles.other}
        rows[name] = {key: np.cos(one).mean() for key, one in similarities.items()}
        rows[name]["accuracy"] = angles.correct.mean()
    return pd.DataFrame.from_dict(rows, orient="index")


def mirror(picture: Picture) -> Picture:
    """A picture with left and right exchanged."""
    region, width = picture.geometry.region, picture.size[0]
    flipped = region._replace(left=width - region.right, right=width - region.left)
    return replace(
        picture,
        name=f"{picture.name}, mirrored",
        tensor=picture.tensor.flip(-1),
        pixels=picture.pixels[:, ::-1],
        geometry=replace(picture.geometry, region=flipped),
    )


@torch.no_grad()
def part_placement(network: Network, dataset: ImageDataset) -> pd.DataFrame:
    """Do parts lie on the animal because they found it, or because animals are in the middle?

    Of each image, the parts of its most similar prototype, over all classes.

    Args:
        network: with prototypes, trained or not.
        dataset: un-augmented, with marked parts of the animal.

    Returns:
        A row for each image with visible marks: `near`, the share of those parts within one cell
        of a mark; `elsewhere`, the same of the same places on all other images; `chance`, of all
        cells.
    """
    places, marks, cells = {}, {}, (0, 0)
    for batch in batches(make_loader(dataset, BATCH)):
        output = network.inspect(batch.images)
        cells = tuple(output.z.shape[2:])
        numbers = network.prototypes.to(output.scores.device)
        best = numbers[output.scores[:, numbers].argmax(dim=1)]
        for row, index in enumerate(batch.indices.tolist()):
            record = dataset.records[index]
            visible = [(part.y, part.x) for part in record.parts or () if part.visible]
            if visible:
                parts, _ = network.model.find_parts(output, row, best[row : row + 1])
                places[record.id] = parts[0].cpu().numpy()
                view = network.geometry(record)[0]
                marks[record.id] = view.image_to_cell(np.array(visible), cells)
    if len(marks) < 2:
        raise UserError(f"{network.source.name} has no two images with marked parts of the animal")
    everywhere = np.concatenate(list(places.values()))  # (images * parts, 2)
    near = np.stack([is_near(everywhere, mark) for mark in marks.values()])
    near = near.reshape(len(marks), len(places), -1).mean(axis=2)  # marks of, places of
    own = near.diagonal()
    grid = np.stack(np.indices(cells), axis=-1).reshape(-1, 2)
    chance = [is_near(grid, mark).mean() for mark in marks.values()]
    elsewhere = (near.sum(axis=0) - own) / (len(marks) - 1)
    return pd.DataFrame({"near": own, "elsewhere": elsewhere, "chance": chance}, index=list(marks))


@torch.no_grad()
def hide_parts(network: Network, dataset: ImageDataset, seed: int = 0) -> pd.DataFrame:
    """What a similarity loses when the pixels in the boxes of its parts are hidden.

    Of each image, the most similar prototype of its own class. Hidden pixels have the mean colour
    that normalisation subtracts.

    Args:
        network: with prototypes of classes.
        dataset: un-augmented.
        seed: of the random places.

    Returns:
        A row for each thing that is hidden: `pixels`, the share of them that is; `similarity` of
        that prototype; `lost`, of it; `parts cost more`, by how much more it loses with the boxes
        of its parts hidden, and `error`, the standard error of that over the images; `accuracy`.
    """
    everything = dataset.batch([(0, index) for index in range(len(dataset))])
    images, labels = everything.images, everything.labels
    owners, rows = torch.tensor(network.labels), torch.arange(len(images))
    output = network.inspect(images)
    similarity = output.scores.cpu().masked_fill(~own_class(labels, owners), -torch.inf)
    chosen = similarity.argmax(dim=1)
    cells = tuple(output.z.shape[2:])
    places = [network.model.find_parts(output, row, chosen[row : row + 1])[0][0] for row in rows]
    places = torch.stack(places).cpu().numpy()  # (N, parts, 2)
    view = network.geometry(dataset.records[0])[0]
    masks = part_masks(view.cell_to_tensor(places, cells), network.size, network.size / cells[0])
    random = np.random.default_rng(seed).uniform(0, network.size, places.shape)
    kinds = {
        "nothing": torch.zeros_like(masks),
        "as many boxes at random": part_masks(random, network.size, network.size / cells[0]),
        "the boxes of another image": masks.roll(len(masks) // 2, dims=0),
        "the boxes of its parts": masks,
        "all but the boxes of its parts": ~masks,
    }
    rows_of, lost = {}, {}
    for name, hidden in kinds.items():
        seen = network.inspect(images.masked_fill(hidden[:, None], 0))
        now = seen.scores.cpu()[rows, chosen]
        lost[name] = similarity[rows, chosen] - now
        rows_of[name] = {
            "pixels": hidden.float().mean(),
            "similarity": now.mean(),
            "lost": lost[name].mean(),
            "accuracy": (seen.logits.argmax(dim=1).cpu() == labels).float().mean(),
        }
    table = pd.DataFrame(rows_of).T.astype(float)
    more = {name: (lost["the boxes of its parts"] - one).numpy() for name, one in lost.items()}
    table.insert(3, "parts cost more", pd.Series({name: one.mean() for name, one in more.items()}))
    errors = {name: one.std(ddof=1) / len(one) ** 0.5 for name, one in more.items()}
    table.insert(4, "error", pd.Series(errors))
    return table


def part_masks(centres: np.ndarray, size: int, side: float) -> Tensor:
    """(N, size, size), whether a pixel is in a square of this side around centres (N, parts, 2)."""
    middles = np.arange(size) + 0.5
    inside = np.abs(centres[..., None] - middles) <= side / 2  # (N, parts, 2, size)
    both = inside[:, :, 0, :, None] & inside[:, :, 1, None, :]
    return torch.from_numpy(both.any(axis=1))


@torch.no_grad()
def without_animals(network: Network, dataset: ImageDataset, seed: int = 0) -> pd.DataFrame:
    """How similar and how sure a network finds things that are no image of any class.

    Args:
        network: with prototypes of classes.
        dataset: un-augmented.
        seed: of the noise and of the order of the pixels.

    Returns:
        A row for each kind of input: `similarity`, of the most similar prototype; `probability` of
        the predicted class; `accuracy`, NaN where there is no true class.
    """
    everything = dataset.batch([(0, index) for index in range(len(dataset))])
    images, labels = everything.images, everything.labels
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(images[0, 0].numel(), generator=draw)
    mean, spread = (x.view(1, -1, 1, 1) for x in (images.mean((0, 2, 3)), images.std((0, 2, 3))))
    kinds = {
        "test images": images,
        "test images, pixels shuffled": images.flatten(2)[:, :, order].view_as(images),
        "noise": torch.randn(images.shape, generator=draw) * spread + mean,
    }
    rows = {}
    for name, inputs in kinds.items():
        seen = network.inspect(inputs)
        correct = seen.logits.argmax(dim=1).cpu() == labels
        rows[name] = {
            "similarity": seen.scores.amax(dim=1).mean(),
            "probability": seen.logits.softmax(dim=1).amax(dim=1).mean(),
            "accuracy": np.nan if name == "noise" else correct.float().mean(),
        }
    return pd.DataFrame(rows).T.astype(float)


def project_untrained(run: Run, dataset: ImageDataset) -> Network:
    """A network of a run's experiment with random weights, projected: it has learned nothing.

    Args:
        run: whose experiment and data are used.
        dataset: un-augmented: `Splits.projection`.
    """
    network = latent_space.untrained(run.experiment, run.source)
    origins = project(network.model, batches(make_loader(dataset, BATCH)), dataset)
    return replace(network, origins={origin.prototype: origin for origin in origins})


@torch.no_grad()
def reasons_needed(network: Network, dataset: ImageDataset) -> pd.DataFrame:
    """How many prototypes of the predicted class must go before the prediction changes.

    They go in the order of their points, most first.

    Args:
        network: with prototypes and a last layer.
        dataset: un-augmented.

    Returns:
        A row for each image, by its id: `switched off`, if their scores become 0, and `made
        average`, if their scores become those that they have on average over the images. All
        prototypes of the class and one more, if the prediction never changes.
    """
    everything = dataset.batch([(0, index) for index in range(len(dataset))])
    output, owners = network.inspect(everything.images), torch.tensor(network.labels)
    scores, weight = output.scores.cpu().double(), network.model.last_layer.weight.cpu().double()
    average = scores.mean(dim=0)
    instead = {"switched off": torch.zeros_like(average), "made average": average}
    rows = []
    for mine, logits in zip(scores, output.logits.cpu().double(), strict=True):
        label = int(logits.argmax())
        own = (owners == label).nonzero().flatten()
        order = own[(mine * weight[label])[own].argsort(descending=True, stable=True)]
        needed = {}
        for name, instead in (
            ("switched off", torch.zeros_like(average)),
            ("made average", average),
        ):
            lost = (weight[:, order] * (mine - instead)[order]).cumsum(dim=1)  # (classes, own)
            stays = (logits[:, None] - lost).argmax(dim=0) == label
            needed[name] = int(stays.int().cumprod(dim=0).sum()) + 1
        rows.append(needed)
    return pd.DataFrame(rows, index=[record.id for record in dataset.records])
