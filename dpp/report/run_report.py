"""The report of a run: its results, prototypes and decisions, as one HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure

from dpp import analysis, figures
from dpp.analysis import Network, audit
from dpp.data import catalogue
from dpp.data.batches import batches, make_loader
from dpp.data.image_records import ImageRecord
from dpp.evaluation import table
from dpp.explanations import Reasoning, TreePath
from dpp.figures import explanation_figures, tree_figures
from dpp.figures.marked_pictures import Marked, mark, number_text, shorten_name, verdict
from dpp.figures.score_sheets import path_sheet, score_sheet
from dpp.report import html_page
from dpp.report.html_page import Pictures
from dpp.runs import Run, familiarity, load_splits
from dpp.runs.pruning import REPEATED, repeated_prototypes
from dpp.runs.run_files import uncovered
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment

CURVES = {
    "cross entropy": ["cross_entropy"],
    "cluster": ["cluster"],
    "separation": ["separation"],
    "orthogonality": ["orthogonality"],
    "accuracy": ["accuracy", "validation_accuracy"],
    "median offset, cells": ["validation_offset"],
    "active units of the offset branch": ["validation_active"],
    "gradient of the offset branch": ["offset_gradient"],
}
TOP = 3  # prototypes of a class that are shown


def draw(network: Network, explanation: Reasoning | TreePath, picture: np.ndarray) -> Figure:
    """The figure of an explanation of a picture (H, W, 3)."""
    sources = find_sources(network, used_prototypes(explanation))
    shown = {number: source.marked for number, source in sources.items()}
    function = tree_figures.tree_path if network.is_tree else explanation_figures.reasoning
    return function(explanation, picture, shown, network.source.class_names)


def used_prototypes(explanation: Reasoning | TreePath) -> list[int]:
    """The prototypes that the figure of an explanation shows."""
    if isinstance(explanation, TreePath):
        return [step.node for step in explanation.steps]
    return [match.prototype for one in explanation.classes[:2] for match in one.matches[:TOP]]


@dataclass(frozen=True, eq=False)
class SourceImage:
    """A prototype on its source image, and the name of that image."""

    image: str
    marked: Marked


def find_sources(network: Network, prototypes: Sequence[int]) -> dict[int, SourceImage]:
    """Prototypes on their source images; those that were not projected are left out."""
    sources = {}
    for number in dict.fromkeys(prototypes):
        if number in network.origins:
            seen = analysis.find_origin(network, number)
            pixels = network.picture(network.records[seen.image]).pixels
            sources[number] = SourceImage(seen.image, mark(pixels, seen))
    return sources


def write_report(
    run: Run, path: Path, *, examples: int = 4, device: str = "cpu", workers: int = 0
) -> Path:
    """Writes a report of a run's network as one HTML page that needs no other file.

    Experiment, training, test accuracy and most frequent mistakes; if the network has prototypes,
    each of them on its source image, an audit, and examples of decisions; what `dpp evaluate` has
    stored, if it is of the same weights.

    Args:
        run: finished.
        path: of the page.
        examples: of correct decisions, and as many of incorrect ones.
        device: that the network runs on.
        workers: processes that prepare batches.
    """
    experiment = run.experiment
    network = None
    if run.projected:
        familiarity.ensure(run, device)
        network = Network.of(run, device)
    model = network.model if network else run.load_model(device)
    splits = load_splits(experiment, run.source)
    logits = predict(model, make_loader(splits.test, 80, workers=workers))
    pictures = Pictures()
    content = {
        "title": f"{experiment.model} {experiment.backbone} on {data_name(experiment)}",
        "about": describe(run),
        "training": training(run),
        "test": results(logits, splits.test.labels.numpy(), run.source.class_names),
        "prototypes": None,
        "measures": measures(run),
    }
    if network:
        if network.familiarity:
            content["test"]["familiarity"] = network.familiarity.describe()
        content["prototypes"] = prototypes(pictures, network)
        content["audit"] = audited(run, network)
        records = splits.test.records
        content["decisions"] = decisions(pictures, network, records, logits, examples)
    html_page.write(Path(path), "report.html", pictures, **content)
    return Path(path)


@torch.no_grad()
def predict(model: torch.nn.Module, loader) -> np.ndarray:
    """The logits (N, classes) of all images."""
    parameter = next(model.parameters())
    logits = [model(batch.images.to(parameter)).cpu() for batch in batches(loader)]
    return torch.cat(logits).numpy()


def data_name(experiment: Experiment) -> str:
    """The name of the data, without the folders above it."""
    return experiment.data if experiment.data in catalogue.NAMES else Path(experiment.data).name


def describe(run: Run) -> dict:
    """The experiment's fields, and the main entries of the manifest."""
    experiment, manifest = run.experiment, run.manifest
    rows = experiment.row | {"data": data_name(experiment)}
    helps = {entry.name: entry.metadata["help"] for entry in fields(experiment)}
    images = ", ".join(f"{count} {split}" for split, count in manifest["images"].items())
    facts = [("run", run.folder.name), ("classes", manifest["classes"]), ("images", images)]
    facts += [
        (name.replace("_", " "), f"{value:.4f}") for name, value in manifest["results"].items()
    ]
    facts += [("trained for", f"{manifest['seconds']:.0f} s on {manifest['device']}")]
    facts += [(name, manifest[name]) for name in ("commit", "torch", "operator")]
    if without := uncovered(run.folder):
        facts.append(("not covered by a hash", f"{', '.join(without)}: the manifest is older"))
    every = [(name, value, helps[name]) for name, value in rows.items()]
    own = experiment.data not in catalogue.NAMES
    return {"profile": experiment.profile, "own": own, "facts": facts, "fields": every}


def training(run: Run) -> dict:
    """Curves over the epochs, and the accuracy after each later stage."""
    metrics = run.metrics
    measured = set(metrics.columns[metrics.notna().any()])
    panels = {title: [c for c in columns if c in measured] for title, columns in CURVES.items()}
    panels = {title: columns for title, columns in panels.items() if columns}
    drawn = figures.training_curves(metrics, panels)
    curves = html_page.chart(drawn, "losses and accuracy over the epochs")
    pyplot.close(drawn)
    last = metrics[(metrics.stage != "train") | (metrics.epoch == metrics.epoch.max())]
    columns = [name for name in ("validation_accuracy", "test_accuracy") if name in measured]
    stages = [
        (stage, epoch, *("" if np.isnan(value) else f"{value:.4f}" for value in values))
        for stage, epoch, *values in last[["stage", "epoch", *columns]].itertuples(index=False)
    ]
    header = [name.replace("_", " ") for name in ("stage", "epoch", *columns)]
    return {"curves": curves, "stages": stages, "header": header}


def count_confusions(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """(classes, classes): how many images of a true class, in rows, were predicted as each."""
    pairs = labels * classes + predicted
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def results(logits: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> dict:
    """The accuracy, the confusion matrix, and the most frequent mistakes."""
    matrix = count_confusions(labels, logits.argmax(axis=1), len(names))
    correct = int(np.trace(matrix))
    wrong = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-wrong, axis=None, kind="stable")[:5]
    pairs = [np.unravel_index(place, wrong.shape) for place in order if wrong.flat[place]]
    return {
        "correct": correct,
        "images": len(labels),
        "accuracy": f"{correct / max(len(labels), 1):.1%}",
        "familiarity": "",
        "confusion": html_page.chart(
            explanation_figures.confusion(matrix, names), "confusion matrix"
        ),
        "mistakes": [
            (shorten_name(names[true]), shorten_name(names[predicted]), int(wrong[true, predicted]))
            for true, predicted in pairs
        ],
    }


def prototypes(pictures: Pictures, network: Network) -> dict:
    """Every class with its prototypes on their source images."""
    sources = find_sources(network, network.prototypes.tolist())
    classes = []
    for label, name in enumerate(network.source.class_names):
        numbers = [one for one in network.prototypes.tolist() if network.labels[one] == label]
        listed = [_prototype(pictures, network, sources, number) for number in numbers]
        classes.append({"name": shorten_name(name, 60), "prototypes": listed})
    return {"tree": network.is_tree, "classes": classes}


def _prototype(
    pictures: Pictures, network: Network, sources: dict[int, SourceImage], number: int
) -> dict:
    label, caption = network.labels[number], [f"prototype {number}"]
    if not network.is_tree:
        weight = network.model.last_layer.weight[label, number].item()
        caption.append(f"connection {number_text(weight)}")
    caption.append(f"image {sources[number].image}" if number in sources else "not projected")
    words = f"prototype {number} of {network.source.class_names[label]}"
    return {"source": _source(pictures, sources, number, words), "caption": caption}


def audited(run: Run, network: Network) -> dict:
    """The audit of the prototypes, or the reason why there is none."""
    try:
        checked = audit.audit(run, network)
    except UserError as error:
        return {"problem": str(error)}
    facts = [
        ("prototypes", checked.prototypes),
        ("source images", checked.source_images),
        ("most prototypes from one image", checked.most_from_one_image),
    ]
    for one in checked.accuracies:
        steps = f"{one.before:.4f} → {one.projected:.4f} → {one.final:.4f}"
        steps += " (before projection, after projection, at the end)"
        facts.append((f"{one.split} accuracy", steps))
    repeated = repeated_prototypes(run.origins)
    facts.append(("nearly repeat another", f"{len(repeated)} of {checked.prototypes} ({REPEATED})"))
    groups = [" = ".join(map(str, group)) for group in checked.duplicates]
    if groups:
        facts.append(("equal prototypes", "; ".join(groups)))
    shares = html_page.chart(explanation_figures.audit(checked), "shares that the audit counted")
    return {"problem": "", "shares": shares, "facts": facts}


def measures(run: Run) -> dict | None:
    """What `dpp evaluate` has stored beside the run; None if nothing, or of other weights."""
    path = run.folder / table.FILE
    content = table.read(path) if path.is_file() else {}
    if content.get("weights_sha256") != run.manifest["weights_sha256"]:
        return None
    scores = [table.from_entry(entry) for one in content["scores"].values() for entry in one]
    rows = [(*row, score.note) for row, score in zip(table.rows_of(scores), scores, strict=True)]
    about = {name: content[name] for name in ("images", "size", "seed")}
    return about | {"header": (*table.HEADER, "note"), "rows": rows}


def decisions(
    pictures: Pictures,
    network: Network,
    records: Sequence[ImageRecord],
    logits: np.ndarray,
    count: int,
) -> dict[str, list[dict]]:
    """Examples: the most confident incorrect decisions, and correct ones spread over the images."""
    labels = np.array([record.label for record in records])
    predicted = logits.argmax(axis=1)
    ordered = np.sort(logits, axis=1)
    lead = ordered[:, -1] - ordered[:, -2]
    incorrect = np.flatnonzero(predicted != labels)
    incorrect = incorrect[np.argsort(-lead[incorrect], kind="stable")][:count]
    correct = np.flatnonzero(predicted == labels)
    spread = np.linspace(0, len(correct) - 1, min(count, len(correct))).round().astype(int)
    chosen = {"incorrect": incorrect, "correct": correct[spread]}
    return {
        kind: [decision(pictures, network, records[index]) for index in indices]
        for kind, indices in chosen.items()
    }


def decision(pictures: Pictures, network: Network, record: ImageRecord) -> dict:
    """One image, and the score sheets of its first two classes or its path through a tree."""
    picture, names = network.picture(record), network.source.class_names
    explanation = analysis.explain(network, picture)
    sources = find_sources(network, used_prototypes(explanation))

    def row(number: int, marked: Marked, words: str, numbers) -> dict:
        image = pictures.show(picture.name, marked, words)
        source = _source(pictures, sources, number, f"prototype {number} on its source image")
        return {"image": image, "source": source, "numbers": numbers}

    content = {
        "image": pictures.show(record.id, Marked(picture.pixels), f"image {record.id}"),
        "caption": [f"image {record.id}", verdict(explanation, names)],
        "warning": explanation.warning,
        "classes": [],
        "path": None,
    }
    if isinstance(explanation, TreePath):
        sheet = path_sheet(explanation, names)
        rows = [
            row(step.node, Marked(picture.pixels, (tuple(step.box),)), "nearest patch", numbers)
            for step, numbers in zip(explanation.steps, sheet.rows, strict=True)
        ]
        path = {"rows": rows, "sheet": sheet, "name": shorten_name(sheet.name)}
        return content | {"path": path}
    for one in explanation.classes[:2]:
        sheet = score_sheet(one, TOP)
        rows = [
            row(match.prototype, mark(picture.pixels, match), "parts on the image", numbers)
            for match, numbers in zip(one.matches, sheet.rows, strict=False)
        ]
        question = explanation_figures.question(explanation, one)
        content["classes"].append({"question": question, "rows": rows, "sheet": sheet})
    return content


def _source(
    pictures: Pictures, sources: dict[int, SourceImage], number: int, words: str
) -> html_page.Shot | None:
    """A prototype on its source image; None if it was not projected."""
    source = sources.get(number)
    return pictures.show(source.image, source.marked, words) if source else None
