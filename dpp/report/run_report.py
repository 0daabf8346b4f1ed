"""A run as one page that can be sent to anybody."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from html import escape
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
from dpp.data.pictures import Picture
from dpp.explanations import ClassScore, Reasoning, TreePath
from dpp.figures import explanation_figures, tree_figures
from dpp.figures.marked_pictures import Marked, mark, number_text, shorten_name, verdict
from dpp.report import html_page
from dpp.runs import Run, load_splits
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment

CURVES = {
    "cross entropy": ["cross_entropy"],
    "cluster": ["cluster"],
    "separation": ["separation"],
    "orthogonality": ["orthogonality"],
    "accuracy": ["accuracy", "validation_accuracy"],
    "median offset, cells": ["validation_offset"],
}
TOP = 3  # prototypes of a class that are shown


def draw(network: Network, explanation: Reasoning | TreePath, picture: np.ndarray) -> Figure:
    """The figure of an explanation of a picture (H, W, 3)."""
    sources = find_sources(network, used_prototypes(explanation))
    shown = {number: source.marked for number, source in sources.items()}
    function = tree_figures.tree_path if network.is_tree else explanation_figures.reasoning
    return function(explanation, picture, shown, network.source.class_names)


def used_prototypes(explanation: Reasoning | TreePath) -> list[int]:
    """The prototypes that a figure of an explanation shows."""
    if isinstance(explanation, TreePath):
        return [step.node for step in explanation.steps]
    return [match.prototype for one in explanation.classes[:2] for match in one.matches[:TOP]]


@dataclass(frozen=True, eq=False)
class SourceImage:
    """A prototype where it comes from, and the name of that image."""

    image: str
    marked: Marked


def find_sources(network: Network, prototypes: Sequence[int]) -> dict[int, SourceImage]:
    """Where prototypes come from; those that come from nowhere are left out."""
    found = {}
    for number in dict.fromkeys(prototypes):
        if number in network.origins:
            seen = analysis.find_origin(network, number)
            pixels = network.picture(network.records[seen.image]).pixels
            found[number] = SourceImage(seen.image, mark(pixels, seen))
    return found


def write_report(
    run: Run, path: Path, *, examples: int = 4, device: str = "cpu", workers: int = 0
) -> Path:
    """Writes the card of a run's network as one HTML page that needs no other file.

    What it is, how it was trained, how well it does and where it errs; if it has prototypes, each
    of them on the image that it comes from, what an audit finds, and examples of decisions.

    Args:
        run: finished.
        path: of the page.
        examples: of right decisions, and as many of wrong ones.
        device: where the network is to run.
        workers: processes that prepare batches.
    """
    experiment = run.experiment
    network = Network.of(run, device) if (run.folder / "prototypes.json").is_file() else None
    model = network.model if network else run.load_model(device)
    splits = load_splits(experiment, run.source)
    logits = predict(model, make_loader(splits.test, 80, workers=workers))
    labels = splits.test.labels.numpy()
    names = run.source.class_names
    page = html_page.Page(f"{experiment.model} {experiment.backbone} on {data_name(experiment)}")
    page.add("What it is", *describe(run))
    page.add("Training", *training(run))
    page.add("Test images", *results(logits, labels, names))
    if network:
        page.add("Prototypes", *prototypes(page, network))
        page.add("Audit", *audited(run, network))
        page.add("Decisions", *decisions(page, network, splits.test.records, logits, examples))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page.text(), encoding="utf-8")
    return path


@torch.no_grad()
def predict(model: torch.nn.Module, loader) -> np.ndarray:
    """The logits (N, classes) of all images."""
    parameter = next(model.parameters())
    found = [model(batch.images.to(parameter)).cpu() for batch in batches(loader)]
    return torch.cat(found).numpy()


def data_name(experiment: Experiment) -> str:
    """Of the data, without the folders above it."""
    return experiment.data if experiment.data in catalogue.NAMES else Path(experiment.data).name


def describe(run: Run) -> list[str]:
    """The experiment's fields, and what the manifest says."""
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
    note = ""
    if experiment.profile != "paper":
        photo = "The paper's data and backbones, but a frozen trunk and a shorter schedule"
        why = photo if experiment.profile == "photo" else "Small data and networks"
        note = (
            f'<p><span class="label">{escape(experiment.profile)} profile</span> '
            f"{why}: its numbers are not the paper's.</p>"
        )
    every = html_page.table((name, value, helps[name]) for name, value in rows.items())
    fold = f"<details><summary>All fields of the experiment</summary>{every}</details>"
    return [note, html_page.table(facts), fold]


def training(run: Run) -> list[str]:
    """Curves over the epochs, and what each later stage did."""
    metrics = run.metrics
    there = set(metrics.columns[metrics.notna().any()])
    panels = {title: [c for c in columns if c in there] for title, columns in CURVES.items()}
    panels = {title: columns for title, columns in panels.items() if columns}
    drawn = figures.training_curves(metrics, panels)
    image = html_page.chart(drawn, "losses and accuracy over the epochs")
    pyplot.close(drawn)
    last = metrics[(metrics.stage != "train") | (metrics.epoch == metrics.epoch.max())]
    columns = [name for name in ("validation_accuracy", "test_accuracy") if name in there]
    rows = [
        (stage, epoch, *("" if np.isnan(value) else f"{value:.4f}" for value in values))
        for stage, epoch, *values in last[["stage", "epoch", *columns]].itertuples(index=False)
    ]
    titles = [name.replace("_", " ") for name in ("stage", "epoch", *columns)]
    return [image, html_page.table(rows, titles)]


def count_confusions(labels: np.ndarray, taken: np.ndarray, classes: int) -> np.ndarray:
    """(classes, classes), how many images of a class, in rows, were taken for another."""
    return np.bincount(labels * classes + taken, minlength=classes**2).reshape(classes, classes)


def results(logits: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> list[str]:
    """The accuracy, which classes are mistaken for which."""
    matrix = count_confusions(labels, logits.argmax(axis=1), len(names))
    right = int(np.trace(matrix))
    wrong = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-wrong, axis=None, kind="stable")[:5]
    pairs = [np.unravel_index(place, wrong.shape) for place in order if wrong.flat[place]]
    rows = [(shorten_name(names[a]), shorten_name(names[b]), int(wrong[a, b])) for a, b in pairs]
    drawn = explanation_figures.confusion(matrix, names)
    return [
        f"<p>{right} of {len(labels)} are right: {right / max(len(labels), 1):.1%}.</p>",
        html_page.chart(drawn, "confusion matrix"),
        "<h3>Most frequent mistakes</h3>" + html_page.table(rows, ("is", "taken for", "images"))
        if rows
        else "",
    ]


def prototypes(page: html_page.Page, network: Network) -> list[str]:
    """Every class with its prototypes on their sources."""
    found = find_sources(network, network.prototypes.tolist())
    labels, names = network.labels, network.source.class_names
    content = []
    if network.is_tree:
        content.append(
            "<p>A tree's prototypes belong to its nodes. Each is listed under the class that is "
            "likeliest where it is present.</p>"
        )
    for label, name in enumerate(names):
        shots = []
        for number in network.prototypes.tolist():
            if labels[number] != label:
                continue
            caption = f"prototype {number}"
            if not network.is_tree:
                weight = network.model.last_layer.weight[label, number].item()
                caption += f"\nconnection {number_text(weight)}"
            if number not in found:
                shots.append(html_page.figure("", f"{caption}\nnever projected"))
                continue
            source = found[number]
            drawn = page.show(source.image, source.marked, f"prototype {number} of {name}")
            shots.append(html_page.figure(drawn, f"{caption}\nimage {source.image}"))
        row = f'<div class="row">{"".join(shots)}</div>' if shots else '<p class="soft">none</p>'
        content.append(f"<h3>{escape(shorten_name(name, 60))}</h3>{row}")
    return content


def audited(run: Run, network: Network) -> list[str]:
    """What an audit finds, or why there is none."""
    try:
        found = audit.audit(run, network)
    except UserError as error:
        return [f"<p>{escape(str(error))}</p>"]
    rows = [
        ("prototypes", found.prototypes),
        ("images that they come from", found.source_images),
        ("most from one image", found.most_from_one_image),
    ]
    for one in found.accuracies:
        steps = f"{one.before:.4f} → {one.projected:.4f} → {one.final:.4f}"
        rows.append((f"{one.split} accuracy", f"{steps} (before projection, after it, at the end)"))
    groups = [" = ".join(map(str, group)) for group in found.duplicates]
    if groups:
        rows.append(("equal prototypes", "; ".join(groups)))
    drawn = explanation_figures.audit(found)
    return [html_page.chart(drawn, "shares that the audit counted"), html_page.table(rows)]


def decisions(
    page: html_page.Page,
    network: Network,
    records: Sequence[ImageRecord],
    logits: np.ndarray,
    count: int,
) -> list[str]:
    """Examples: the surest of the wrong decisions, and right ones from all over the images."""
    labels = np.array([record.label for record in records])
    taken = logits.argmax(axis=1)
    ordered = np.sort(logits, axis=1)
    lead = ordered[:, -1] - ordered[:, -2]
    wrong = np.flatnonzero(taken != labels)
    wrong = wrong[np.argsort(-lead[wrong], kind="stable")][:count]
    right = np.flatnonzero(taken == labels)
    right = right[np.linspace(0, len(right) - 1, min(count, len(right))).round().astype(int)]
    content = []
    for title, kind, chosen in (("Wrong", "wrong", wrong), ("Right", "right", right)):
        content.append(f'<h3 class="{kind}">{title}</h3>')
        content += [decision(page, network, records[index]) for index in chosen]
        if not len(chosen):
            content.append('<p class="soft">none</p>')
    return content


def decision(page: html_page.Page, network: Network, record: ImageRecord) -> str:
    """One image and why it was given its class, and not its own if that is another."""
    picture, names = network.picture(record), network.source.class_names
    explanation = analysis.explain(network, picture)
    sources = find_sources(network, used_prototypes(explanation))
    plain = page.show(record.id, Marked(picture.pixels), f"image {record.id}")
    caption = f"image {record.id}\n{verdict(explanation, names)}"
    blocks = [html_page.figure(plain, caption)]
    if isinstance(explanation, TreePath):
        blocks.append(tell_path(page, explanation, picture, sources, names))
    else:
        for word, one in zip(("Why", "Why not"), explanation.classes, strict=False):
            blocks.append(tell_class(page, word, one, picture, sources))
    return f'<div class="card"><div class="row">{"".join(blocks)}</div></div>'


def tell_class(page: html_page.Page, word: str, one: ClassScore, picture: Picture, sources) -> str:
    """The prototypes of a class, on the image and on their sources, and how the points add up."""
    shown, rows = one.matches[:TOP], []
    for match in shown:
        here = page.show(picture.name, mark(picture.pixels, match), "parts on the image")
        pair = here + _show_source(page, sources, match.prototype)
        product = f"{number_text(match.similarity, 3)} × {number_text(match.connection)} ="
        text = f"prototype {match.prototype}<br>{product}"
        rows.append(
            f'<tr><td><div class="row">{pair}</div></td><td>{text}</td>'
            f'<td class="number"><br>{number_text(match.points)}</td></tr>'
        )
    rest = explanation_figures.remainder(one, shown)
    rows.append(f'<tr><td></td><td>all others</td><td class="number">{number_text(rest)}</td></tr>')
    rows.append(
        f'<tr class="total"><td></td><td>score</td>'
        f'<td class="number">{number_text(one.score)}</td></tr>'
    )
    title = f"<strong>{word} {escape(shorten_name(one.name))}?</strong>"
    return f'<div class="wide">{title}<table>{"".join(rows)}</table></div>'


def tell_path(page: html_page.Page, path: TreePath, picture: Picture, sources, names) -> str:
    """The decisions on the way to a leaf."""
    rows = []
    for step in path.steps:
        here = page.show(picture.name, Marked(picture.pixels, (tuple(step.box),)), "nearest patch")
        pair = here + _show_source(page, sources, step.node)
        has = "has it" if step.branch == "right" else "has it not"
        text = f"node {step.node}: similarity {number_text(step.similarity, 3)}"
        text += f"<br>{has} ({number_text(step.probability)}), to the {step.branch}"
        rows.append(f'<tr><td><div class="row">{pair}</div></td><td>{text}</td></tr>')
    best = int(np.argmax(path.distribution))
    leaf = f"{escape(shorten_name(names[best]))} {number_text(path.distribution[best])}"
    text = f"leaf {path.leaf}: {leaf}<br>probability of this path {number_text(path.probability)}"
    rows.append(f'<tr class="total"><td></td><td>{text}</td></tr>')
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _show_source(page: html_page.Page, sources: dict[int, SourceImage], number: int) -> str:
    if number not in sources:
        return '<span class="soft">never projected</span>'
    source = sources[number]
    return page.show(source.image, source.marked, f"prototype {number} on its source")
