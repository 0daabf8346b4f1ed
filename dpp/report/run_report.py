"""The report of a run: its results, prototypes and decisions, as one HTML page."""

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
from matplotlib import pyplot
from matplotlib.figure import Figure
from scipy.stats import binomtest

from dpp import figures
from dpp.analysis import Network, audit
from dpp.data import catalogue
from dpp.evaluation import stored, table
from dpp.explanations import Audit, Reasoning, TreePath
from dpp.figures import explanation_figures, tree_figures
from dpp.figures.marked_pictures import number_text
from dpp.report import audit_text, chosen_images, html_page
from dpp.report.decision_cards import TOP, decisions
from dpp.report.html_page import Pictures
from dpp.report.own_folder import duration
from dpp.report.prototype_cards import network_contributions, prototypes
from dpp.report.source_images import find_sources
from dpp.runs import Run, familiarity, load_splits
from dpp.runs.run_files import uncovered
from dpp.system import files
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
LISTED = 12  # classes, up to which tables are shown unasked


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


def write_report(
    run: Run,
    path: Path,
    *,
    classes: Sequence[int | str] = (),
    images: int | None = None,
    examples: int = 4,
    device: str = "cpu",
    workers: int = 0,
) -> Path:
    """Writes a report of a run's network as one HTML page that needs no other file.

    Test accuracy, most frequent mistakes, training and experiment; if the network has prototypes,
    examples of decisions, the prototypes on their source images, and an audit; what `dpp evaluate`
    has stored, if it is of the same weights.

    Args:
        run: finished.
        path: of the page.
        classes: names or numbers, whose prototypes and test images are shown; by default all.
        images: test images of each class, at most; by default all.
        examples: of correct decisions, and as many of incorrect ones.
        device: that the network runs on.
        workers: processes that prepare batches.
    """
    chosen_images.check_counts(images, examples)
    files.check_writable(Path(path))
    experiment = run.experiment
    network = None
    if run.projected:
        familiarity.ensure(run, device)
        network = Network.of(run, device)
    model = network.model if network else run.load_model(device)
    names = run.source.class_names
    labels = chosen_images.choose_labels(names, classes, network)
    splits = load_splits(experiment, run.source)
    test = chosen_images.choose_images(splits, labels, len(names), images)
    logits, scores = chosen_images.predict(model, test, workers)
    checked, problem = audited(run, network) if network else (None, "")
    scope, found = chosen_images.scope(labels, names, images), test.labels.numpy()
    shown = chosen_images.results(logits, found, names) | {"scope": scope}
    pictures = Pictures()
    content = {
        "title": f"{experiment.model} {experiment.backbone} on {data_name(experiment)}",
        "headline": audit_text.headline(shown["correct"], shown["images"], checked, scope),
        "tiles": tiles(run, shown, checked),
        "about": describe(run),
        "training": training(run),
        "test": shown,
        "prototypes": None,
        "measures": measures(run),
    }
    if network:
        if network.familiarity:
            content["test"]["familiarity"] = network.familiarity.describe()
        content["decisions"] = decisions(pictures, network, test.records, logits, examples)
        contributions = network_contributions(network, scores, found)
        content["prototypes"] = prototypes(pictures, network, contributions, labels)
        content["audit"] = audit_content(checked, problem, names)
    html_page.write(Path(path), "report.html", pictures, **content)
    return Path(path)


def data_name(experiment: Experiment) -> str:
    """The name of the data, without the folders above it."""
    return experiment.data if experiment.data in catalogue.NAMES else Path(experiment.data).name


def tiles(run: Run, shown: dict, checked: Audit | None) -> list[tuple[str, str, str]]:
    """The main numbers: value, name, and what it is compared with."""
    low, high = binomtest(shown["correct"], max(shown["images"], 1)).proportion_ci(method="wilson")
    count = f"{shown['correct']} of {shown['images']}; 95% interval {low:.0%} to {high:.0%}"
    if shown["scope"]:
        count += f"; all test images: {run.manifest['results']['test_accuracy']:.1%}"
    found = [(shown["accuracy"], "test accuracy", count)]
    if checked is None:
        return found
    distinct, of = audit_text.places(checked), checked.shared_places.of
    note = "the others repeat a place" if distinct < of else "no two of a class share a place"
    found.append((f"{distinct} of {of}", "distinct prototypes", note))
    most = checked.most_from_one_image
    images = f"up to {most} prototypes from one" if most > 1 else "one for each prototype"
    found.append((f"{checked.source_images}", "source images", images))
    pairs = [one.mean_cosine for one in checked.collapse if one.mean_cosine is not None]
    if pairs:
        note = "mean of the pairs of a class; 1 is equal"
        found.append((number_text(float(np.mean(pairs))), "cosine between prototypes", note))
    if checked.parts.near.of:
        chance = f"by chance {checked.parts.chance.value:.0%}"
        found.append((f"{checked.parts.near.value:.0%}", "parts on the animal's parts", chance))
    offset = run.manifest["results"].get("test_offset")
    if offset is not None:
        found.append((f"{offset:.2f} cells", "median offset", "how far parts move on test images"))
    return found


def describe(run: Run) -> dict:
    """The experiment's fields, and the main entries of the manifest."""
    experiment, manifest = run.experiment, run.manifest
    rows = experiment.row | {"data": data_name(experiment)}
    helps = {entry.name: entry.metadata["help"] for entry in fields(experiment)}
    images = ", ".join(f"{count} {split}" for split, count in manifest["images"].items())
    facts = [("run", run.folder.name), ("classes", manifest["classes"]), ("images", images)]
    facts += [
        (name.replace("_", " "), with_unit(name, value))
        for name, value in manifest["results"].items()
    ]
    seconds = manifest["seconds"]
    spent = f"{seconds:.0f} seconds" if seconds < 90 else duration(seconds)
    facts += [("trained for", f"{spent} on {manifest['device']}")]
    facts += [(name, manifest[name]) for name in ("commit", "torch", "operator")]
    if without := uncovered(run.folder):
        facts.append(("not covered by a hash", f"{', '.join(without)}: the manifest is older"))
    every = [(name, value, helps[name]) for name, value in rows.items()]
    own = experiment.data not in catalogue.NAMES
    return {"profile": experiment.profile, "own": own, "facts": facts, "fields": every}


def with_unit(name: str, value: float) -> str:
    """A metric in its unit: percent for shares, cells for offsets."""
    if name.endswith(("accuracy", "active")):
        return f"{value:.1%}"
    return f"{value:.3f} cells" if name.endswith("offset") else f"{value:.4f}"


def training(run: Run) -> dict:
    """Curves over the epochs, and the accuracy after each later stage."""
    metrics = run.metrics
    measured = set(metrics.columns[metrics.notna().any()])
    panels = {title: [c for c in columns if c in measured] for title, columns in CURVES.items()}
    curves = []
    for title, columns in panels.items():
        if columns:
            drawn = figures.training_curves(metrics, {title: columns}, across=1)
            curves.append(html_page.chart(drawn, f"{title} over the epochs"))
            pyplot.close(drawn)
    last = metrics[(metrics.stage != "train") | (metrics.epoch == metrics.epoch.max())]
    columns = [name for name in ("validation_accuracy", "test_accuracy") if name in measured]
    stages = [
        (stage, epoch, *("" if np.isnan(value) else f"{value:.1%}" for value in values))
        for stage, epoch, *values in last[["stage", "epoch", *columns]].itertuples(index=False)
    ]
    header = [name.replace("_", " ") for name in ("stage", "epoch", *columns)]
    return {"curves": curves, "stages": stages, "header": header}


def audited(run: Run, network: Network) -> tuple[Audit | None, str]:
    """The audit of the prototypes, or the reason why there is none."""
    try:
        return audit.audit(run, network), ""
    except UserError as error:
        return None, str(error)


def audit_content(checked: Audit | None, problem: str, names: Sequence[str]) -> dict:
    """What the page shows of an audit."""
    if checked is None:
        return {"problem": problem}
    bars = [
        {
            "name": title,
            "share": share.value or 0.0,
            "text": audit_text.share_text(share),
            "chance": chance.value if chance is not None and chance.of else None,
        }
        for title, share, chance in audit_text.shares(checked)
    ]
    rows = audit_text.collapse_rows(checked, names)
    return {
        "problem": "",
        "bars": bars,
        "facts": audit_text.facts(checked),
        "header": audit_text.HEADER,
        "rows": rows[:LISTED],
        "more": rows[LISTED:],
    }


def measures(run: Run) -> dict | None:
    """What `dpp evaluate` has stored beside the run; None if nothing, or of other weights."""
    path = run.folder / stored.FILE
    content = stored.read(path)
    if content.get("weights_sha256") != run.manifest["weights_sha256"]:
        if path.exists():
            what = f"{path} is damaged, of other weights or of another version"
            print(f"{what}: left out; dpp evaluate measures again", file=sys.stderr)
        return None
    scores = stored.scores_of(content)
    rows = [(*row, score.note) for row, score in zip(table.rows_of(scores), scores, strict=True)]
    about = {name: content[name] for name in ("images", "size", "seed")}
    return about | {"header": (*table.HEADER, "note"), "rows": rows}
