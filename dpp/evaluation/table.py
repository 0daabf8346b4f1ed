"""All measures of a run: computed family by family, stored beside it, printed as a table."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import torch

from dpp.analysis.following_study import first_of_classes
from dpp.analysis.network import Network
from dpp.data.batches import Splits, batches, make_loader
from dpp.evaluation import (
    compactness,
    consistency,
    deletion,
    interventions,
    misalignment,
    perturbation,
    pointing,
    purity,
    stored,
)
from dpp.evaluation.bird_scenes import Classifier
from dpp.evaluation.scores import NotApplicable, Score, from_values, not_measured
from dpp.runs import Run, load_splits
from dpp.system import files
from dpp.system.errors import UserError, one_line

FAMILIES: dict[str, Callable[..., list[Score]]] = {
    "compactness": compactness.measure,
    "consistency": consistency.measure_consistency,
    "stability": consistency.measure_stability,
    "purity": purity.measure,
    "pointing": pointing.measure,
    "perturbation": perturbation.measure,
    "deletion": deletion.measure,
    "misalignment": misalignment.measure,
    "interventions": interventions.measure,
    "effects": interventions.measure_effects,
}
UNEXPLAINED = ("interventions", "effects")  # which measure classifiers too
HEADER = ("measure", "at", "value", "95 % interval", "random weights", "random places", "original")


def choose(names: Iterable[str]) -> list[str]:
    """The families of these names, in the order of `FAMILIES`; all of them without a name."""
    names = list(names)
    for name in names:
        if name not in FAMILIES:
            near = get_close_matches(name, FAMILIES, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(FAMILIES)}"
            raise UserError(f"there is no measure {name!r}: {hint}")
    return [name for name in FAMILIES if name in names or not names]


def limit(splits: Splits, images: int | None) -> Splits:
    """The splits with the first images of each class alone, un-augmented and of the test set."""
    if images is None:
        return splits
    if images < 1:
        raise UserError(f"--images {images}: a class needs at least 1 image")

    some = partial(first_of_classes, count=images)
    return splits._replace(projection=some(splits.projection), test=some(splits.test))


def evaluate(
    run: Run,
    measures: Iterable[str] = (),
    *,
    images: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    out: Path | None = None,
    again: bool = False,
    report: Callable[[str, int, int], None] = lambda family, done, total: None,
) -> dict:
    """Measures a run and stores the result, family by family.

    Families that were stored before for the same weights, seed and images are kept, so that an
    evaluation that was stopped is resumed.

    Args:
        run: finished; its prototypes, if it has any, projected.
        measures: names of families; all without one.
        images: of each class, at most; all by default.
        seed: of random weights, places, noise and the bootstrap.
        device: that the network runs on.
        out: the file; by default `evaluation.json` in the run's folder.
        again: measure families again that are stored already.
        report: called with a family as it begins and later, what is done of it, and the total.

    Returns:
        What is stored: `scores` has the scores of each family as dictionaries.
    """
    chosen = choose(measures)
    if not 0 <= seed < 2**32:
        raise UserError(f"--seed {seed}: expected a whole number from 0 to {2**32 - 1}")
    experiment = run.experiment
    plain = experiment.model == "cnn"
    if not plain and not run.projected:
        raise UserError(
            f"the prototypes of {run.folder.name} were not projected, so that they are no parts of "
            "images to be measured: choose a run with project_after"
        )
    splits = limit(load_splits(experiment, run.source), images)
    usual = run.folder / stored.FILE
    path = usual if out is None else Path(out)
    own = path.resolve() == usual.resolve()
    about = {
        "format": stored.FORMAT,
        "run": run.folder.resolve().name,
        "model": experiment.model,
        "weights_sha256": run.manifest["weights_sha256"],
        "seed": seed,
        "images_per_class": images,
        "images": {"training": len(splits.projection), "test": len(splits.test)},
        "size": experiment.image_size,
    }
    content = {"seconds": {}, "scores": {}} | stored.find(path, about, own) | about
    if not again:
        chosen = [name for name in chosen if name not in content["scores"]]
    if chosen:  # minutes or hours of work
        files.check_writable(path)
    network = Network.of(run, device) if chosen and not plain else None
    for name in chosen:
        started = time.perf_counter()
        report(name, 0, 1)

        def progress(done: int, total: int, name: str = name) -> None:
            report(name, done, total)

        if plain and name in UNEXPLAINED:
            scores = measure_family(Classifier.of(run, device), splits, name, seed, progress)
        elif plain:
            scores = measure_plain(run, splits, name, seed, device)
        else:
            scores = measure_family(network, splits, name, seed, progress)
        seconds = time.perf_counter() - started
        content = stored.add(path, about, name, scores, seconds, own)
    return content | {
        "scores": {n: content["scores"][n] for n in FAMILIES if n in content["scores"]}
    }


def measure_family(network: Network, splits: Splits, name: str, seed: int, progress) -> list[Score]:
    """The scores of one family, or why there is none: that of others must not depend on it."""
    try:
        return FAMILIES[name](network, splits, seed=seed, progress=progress)
    except NotApplicable as error:
        return [not_measured(name, one_line(error))]


@torch.no_grad()
def measure_plain(run: Run, splits: Splits, name: str, seed: int, device: str) -> list[Score]:
    """What applies to a CNN without prototypes: its accuracy, and deletion."""
    if name == "deletion":
        return deletion.measure_plain(run.load_model(device), splits, seed)
    if name != "compactness":
        return [not_measured(name, "does not apply: a plain CNN has no prototypes")]
    model = run.load_model(device)
    parameter, correct = next(model.parameters()), []
    for batch in batches(make_loader(splits.test, 80)):
        predicted = model(batch.images.to(parameter)).argmax(dim=1).cpu()
        correct.append(100.0 * (predicted == batch.labels))
    given = {"unit": "%", "better": "higher"}
    return [from_values("accuracy", "", torch.cat(correct).numpy(), seed, **given)]


def format_number(value: float, unit: str = "") -> str:
    """A number of a table: three digits, but all of a whole number; empty for NaN."""
    if math.isnan(value):
        return ""
    text = f"{value:.0f}" if value == round(value) else f"{float(f'{value:.3g}'):g}"
    return text + (f" {unit}" if unit else "")


def rows_of(scores: Sequence[Score]) -> list[tuple[str, ...]]:
    """The cells of a table, as text: `HEADER`'s columns."""
    rows = []
    for one in scores:
        ends = (format_number(end) for end in (one.low, one.high))
        interval = "" if math.isnan(one.low) else " to ".join(ends)
        value = format_number(one.value, one.unit) or "not measured"
        beside = (one.random_weights, one.random_places, one.original)
        rows.append((one.measure, one.at, value, interval, *map(format_number, beside)))
    return rows


def as_text(content: dict) -> str:
    """An evaluation as a table for the screen, with notes below it."""
    scores = stored.scores_of(content)
    rows = [HEADER, *rows_of(scores)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = ["  ".join(f"{c:{w}}" for c, w in zip(row, widths, strict=True)) for row in rows]
    images = " and ".join(f"{count} {split}" for split, count in content["images"].items())
    about = f"{content['run']}: {images} images of {content['size']} pixels, seed {content['seed']}"
    named = {f"{one.measure} {one.at}".strip(): one.note for one in scores if one.note}
    notes = [f"{name}: {note}" for name, note in named.items()]
    return "\n".join([about, "", *(line.rstrip() for line in lines), "", *notes])
