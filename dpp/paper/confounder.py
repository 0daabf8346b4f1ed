"""The study of notebook 16: a mark that one class has in training, and forgetting it.

PoseBirds with a coloured disc on the background of every training image of one class, and of no
test image: a network may learn the disc instead of the bird. Clean test images show whether it did;
validation images cannot, since they are taken from the training images and have the disc too.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure
from torch import Tensor

from dpp import figures, runs
from dpp.analysis import Network
from dpp.analysis.audit import Tally
from dpp.analysis.intervals import Interval, interval
from dpp.analysis.network import check_origin
from dpp.data.batches import batches, make_loader, to_device
from dpp.data.image_records import Source
from dpp.networks import losses
from dpp.paper.moving_parts import KINDS, stored_table
from dpp.paper.planted_mark import MARKS, RADIUS, plant
from dpp.runs import Run, checkpoints, records, steered
from dpp.system import files, paths
from dpp.training.experiments import Experiment, base_experiment, make_experiment

NEAR = 1.0  # cells from a disc's edge within which a part counts as on it
TABLE = "steering.csv"
# one cell a prototype, so that it is either on the disc or on the bird
NETWORK = KINDS["rigid"] | {"kernel_size": 1, "per_class": 3}
SHORT = {"epochs": 2, "project_after": (2,), "views": 1}  # what the smoke profile has of it
STEPS = ("never marked", "marked", "fitted again", "trained further")


# ---- Networks


def make_weights(profile: str, **options) -> Path:
    """The backbone of the profile's base run, which is trained if there is none, as a file.

    Args:
        options: of `runs.get`.
    """
    base = runs.get(base_experiment(make_experiment(profile)), **options)
    path = paths.runs_root() / f"{base.experiment.name}.safetensors"
    if not path.is_file():
        checkpoints.write_tensors(path, base.load_model().backbone.state_dict())
    return path


def design(source: Source, weights: Path, profile: str, seed: int) -> Experiment:
    """An experiment on a folder of drawn birds, of a network whose cells see a part of a bird."""
    given = {"data": str(source.root), "weights": str(weights), "seed": seed}
    return make_experiment(profile, **(NETWORK | (SHORT if profile == "smoke" else {}) | given))


class Birds(NamedTuple):
    """One data set, without and with the mark."""

    clean: Source
    marked: Source  # the mark on the training images of one class
    lure: Source  # the mark on the test images of all other classes
    label: int  # that class

    @property
    def marks(self) -> dict[str, tuple[float, float]]:
        """Centres of the discs on the training images, by their ids."""
        return files.read_json(self.marked.root / MARKS)


def make_birds(profile: str, label: int) -> Birds:
    """Draws the profile's PoseBirds and plants the mark, unless that was done before.

    Args:
        profile: of the data.
        label: the class with the mark; the last one if there are fewer.
    """
    clean = runs.load_source(make_experiment(profile))
    label = min(label, len(clean.class_names) - 1)
    others = set(range(len(clean.class_names))) - {label}
    beside = f"{clean.root.name}-{{}}-{label}"
    marked = plant(clean, clean.root.with_name(beside.format("marked")), {label})
    lure = plant(clean, clean.root.with_name(beside.format("lure")), others, "test")
    return Birds(clean, marked, lure, label)


# ---- The study


def collect(
    birds: Birds, profile: str, seeds: Iterable[int], *, epochs: int = 5, recompute: bool = False
) -> pd.DataFrame:
    """Rows of the study: what is stored, or if that is nothing, or on demand, computed and stored.

    Args:
        birds: without and with the mark.
        profile: of the networks.
        seeds: of the networks.
        epochs: of training further.
        recompute: whatever is stored.

    Returns:
        A row for each seed and each of `STEPS`, see `study`.
    """
    seeds, rows = list(seeds), stored_table(profile, TABLE)
    if recompute or rows.empty:
        for seed in seeds:
            found = study(birds, profile, seed, epochs)
            records.replace_rows(paths.results(profile) / TABLE, found)
        rows = stored_table(profile, TABLE)
    return rows[rows.seed.isin(seeds) & (rows.label == birds.label)]


def gain(rows: pd.DataFrame, measure: str, before: str, after: str) -> Interval:
    """By how many points a measure of one step exceeds that of another, seed by seed."""
    by_seed = rows.pivot(index="seed", columns="step", values=measure).reindex(columns=STEPS)
    return interval(100 * (by_seed[after] - by_seed[before]))


def study(birds: Birds, profile: str, seed: int, epochs: int = 5) -> pd.DataFrame:
    """Trains a network with and one without the mark, and steers the one with it in two ways.

    Returns:
        A row for each of `STEPS`: an `Outcome`, the accuracy on validation images, and how many
        prototypes of the class, and of the others, lie on the disc and off the bird; and how many
        of those on the disc are found by their drops in similarity.
    """
    weights = make_weights(profile, progress=False)
    marked = runs.run(design(birds.marked, weights, profile, seed), progress=False)
    forget = choose_forgotten(marked, birds)
    made = {"never marked": runs.run(design(birds.clean, weights, profile, seed), progress=False)}
    made["marked"] = marked
    if forget and len(forget) < marked.experiment.per_class:  # or the class would have none
        made["fitted again"] = steered.steer(marked, forget, who="the study")
    if forget:
        made["trained further"] = steered.steer(marked, forget, who="the study", fine_tune=epochs)
    named = {"run": marked.experiment.name, "seed": seed, "label": birds.label}
    rows = [
        named | {"step": step, "forgotten": len(forget)} | describe(run, birds)
        for step, run in made.items()
    ]
    return pd.DataFrame(rows)


def describe(run: Run, birds: Birds) -> dict[str, float]:
    """The measures of one run of the study."""
    places = place_prototypes(Network.of(run), birds.marks if run.source == birds.marked else {})
    own = [place for place in places if place.label == birds.label]
    others = [place for place in places if place.label != birds.label]
    return {
        **measure(run, birds)._asdict(),
        "validation": run.manifest["results"]["validation_accuracy"],
        "prototypes": len(own),
        "on_mark": sum(place.on_mark > 0 for place in own),
        "off_bird": sum(place.off_bird == place.parts for place in own),
        "others": len(others),
        "others_off_bird": sum(place.off_bird == place.parts for place in others),
        "drop_finds": find_by_drop(run, [place.prototype for place in places if place.on_mark]),
    }


def find_by_drop(run: Run, wanted: list[int]) -> int:
    """How many of some prototypes are among as many with the largest `similarity_drops`."""
    largest = similarity_drops(run).topk(len(wanted)).indices.tolist()
    return len(set(wanted) & set(largest))


@torch.inference_mode()
def similarity_drops(run: Run) -> Tensor:
    """(P,), by how much less similar a prototype is to its class's test than training images.

    It needs test images that are labelled and without the mark, and nobody who knows the mark.
    """
    model, splits = run.load_model(), runs.load_splits(run.experiment, run.source)
    means = []
    for dataset in (splits.projection, splits.test):
        seen = [
            (model.inspect(to_device(batch.images, "cpu")).scores, batch.labels)
            for batch in batches(make_loader(dataset, 60))
        ]
        scores, labels = (torch.cat(part) for part in zip(*seen, strict=True))
        own = losses.own_class(labels, model.prototypes.classes)
        means.append((scores * own).sum(dim=0) / own.sum(dim=0))
    return means[0] - means[1]


def choose_forgotten(run: Run, birds: Birds) -> dict[int, str]:
    """What someone who looks at the source images would forget: all that show the disc."""
    places = place_prototypes(Network.of(run), birds.marks)
    return {place.prototype: "lies on the disc" for place in places if place.on_mark}


# ---- Measures


class Outcome(NamedTuple):
    """How a network does on test images, as shares from 0 to 1."""

    accuracy: float  # on all clean images
    of_class: float  # on the clean images of the marked class
    of_others: float  # on the clean images of the other classes
    lured: float  # of images of other classes with the mark: predicted the marked class
    false_alarms: float  # of the same images without it


def measure(run: Run, birds: Birds) -> Outcome:
    """Measures a run on clean test images, and on those of other classes with the mark."""
    model, label = run.load_model(), birds.label
    labels, predicted = predict(model, run.experiment, birds.clean)
    _, fooled = predict(model, run.experiment, birds.lure)
    own = labels == label

    def share(which: Tensor) -> float:
        return float(which.double().mean())

    return Outcome(
        share(predicted == labels),
        share(predicted[own] == label),
        share(predicted[~own] == labels[~own]),
        share(fooled[~own] == label),
        share(predicted[~own] == label),
    )


@torch.inference_mode()
def predict(
    model: torch.nn.Module, experiment: Experiment, source: Source
) -> tuple[Tensor, Tensor]:
    """Labels and predicted classes (N,) of a source's test images."""
    loader = make_loader(runs.load_splits(experiment, source).test, 60)
    labels, predicted = [], []
    for batch in batches(loader):
        labels.append(batch.labels)
        predicted.append(model(to_device(batch.images, "cpu")).argmax(dim=1))
    return torch.cat(labels), torch.cat(predicted)


class Place(NamedTuple):
    """Where a prototype lies on its source image: how many of its parts."""

    prototype: int
    label: int
    parts: int
    on_mark: int  # within `NEAR` cells of the disc
    off_bird: int  # not within a cell of any marked part of the bird, as in an audit


def place_prototypes(network: Network, marks: dict[str, tuple[float, float]]) -> list[Place]:
    """Where the parts of all prototypes lie on their source images.

    Args:
        network: with projected prototypes.
        marks: centres of the discs, by the images' ids.
    """
    found = []
    for number, origin in network.origins.items():
        record = check_origin(network, origin)
        view, _ = network.geometry(record)
        places, cells, tally = np.array(origin.parts), tuple(origin.cells), Tally()
        tally.add(record, view, cells, places)
        on_mark = 0
        if record.id in marks:
            x, y = marks[record.id]
            down, right = view.cell_to_image(places, cells).T
            reach = RADIUS * network.size + NEAR * network.size / cells[0]
            on_mark = int((np.hypot(right - x, down - y) <= reach).sum())
        found.append(Place(number, origin.label, len(places), on_mark, tally.marked - tally.near))
    return found


def draw_prototypes(network: Network, label: int) -> Figure:
    """The source images of a class's prototypes, with the places of their parts."""
    origins = [origin for origin in network.origins.values() if origin.label == label]
    found = [check_origin(network, origin) for origin in origins]
    pictures = [network.picture(record).pixels for record in found]
    figure, grid = figures.picture_grid(pictures, columns=max(len(pictures), 1), side=1.9)
    for axes, origin, record in zip(grid, origins, found, strict=False):
        view, _ = network.geometry(record)
        for down, right in view.cell_to_image(np.array(origin.parts), tuple(origin.cells)):
            axes.plot(right, down, "o", mfc="none", mec="white", markersize=17, mew=2.2)
        axes.set_title(f"prototype {origin.prototype}", fontsize=9)
    return figure


def draw_steps(rows: pd.DataFrame, panels: dict[str, str]) -> Figure:
    """Measures along the steps, in percent: a line for each seed, a panel for each measure.

    Args:
        rows: of `collect`.
        panels: titles by measure.
    """
    width = 4.2 * len(panels)
    figure, grid = pyplot.subplots(1, len(panels), figsize=(width, 2.9), layout="constrained")
    for axes, (measure, title) in zip(np.atleast_1d(grid), panels.items(), strict=True):
        by_step = 100 * rows.pivot(index="step", columns="seed", values=measure).reindex(STEPS)
        for seed in by_step:
            axes.plot(range(len(STEPS)), by_step[seed], "o-", markersize=4, alpha=0.75, label=seed)
        axes.set_xticks(range(len(STEPS)), [step.replace(" ", "\n") for step in STEPS])
        axes.set_title(title, fontsize=10)
        axes.set_ylim(-4, 104)
        axes.spines[["top", "right"]].set_visible(False)
    if len(rows):
        axes.legend(title="seed", fontsize=8, title_fontsize=8, frameon=False)
    return figure
