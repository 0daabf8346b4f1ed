"""The test images that a report is about: which, what the network predicts, and its mistakes."""

from collections.abc import Sequence

import numpy as np
import torch
from tqdm import tqdm

from dpp.analysis import Network
from dpp.data.batches import ImageDataset, Splits, batches, make_loader
from dpp.evaluation import table
from dpp.figures import explanation_figures
from dpp.figures.marked_pictures import shorten_name
from dpp.report import html_page
from dpp.system.errors import UserError

BATCH = 40  # images that are predicted at a time
MATRIX = 60  # classes, up to which a confusion matrix can be read
MISTAKES = 5  # pairs of classes that are listed


def check_counts(images: int | None, examples: int) -> None:
    """Raises a `UserError` if there would be nothing to report on."""
    if images is not None and images < 1:
        raise UserError(f"--images {images}: a class needs at least 1 image")
    if examples < 0:
        raise UserError(f"--examples {examples}: expected 0 or more")


def scope(labels: Sequence[int], names: Sequence[str], images: int | None) -> str:
    """Which test images were chosen, in words that follow "test images"; empty for all."""
    limits = []
    if len(labels) < len(names):
        limits.append(f"{len(labels)} of {len(names)} classes")
    if images is not None:
        limits.append(f"at most {images} of a class")
    return f" ({', '.join(limits)})" if limits else ""


def choose_labels(
    names: Sequence[str], classes: Sequence[int | str], network: Network | None
) -> list[int]:
    """The numbers of chosen classes, in the data's order; of all if none is chosen."""
    if not classes:
        return list(range(len(names)))
    if network is None:
        raise UserError("a network without prototypes has no classes to choose: leave out --class")
    return sorted({network.label_of(one) for one in classes})


def choose_images(
    splits: Splits, labels: Sequence[int], classes: int, images: int | None
) -> ImageDataset:
    """The test images of some classes, at most so many of each."""
    test = table.limit(splits, images).test
    if len(labels) == classes:
        return test
    records = [record for record in test.records if record.label in set(labels)]
    if not records:
        raise UserError("the chosen classes have no test images: choose others with --class")
    return ImageDataset(records, test.store)


@torch.no_grad()
def predict(
    model: torch.nn.Module, test: ImageDataset, workers: int = 0
) -> tuple[np.ndarray, np.ndarray | None]:
    """The logits (N, classes) of all images and, of a network with prototypes, scores (N, P)."""
    parameter, logits, scores = next(model.parameters()), [], []
    prototypes = hasattr(model, "find_parts")
    with tqdm(total=len(test), desc="test images", unit="image", disable=None) as bar:
        for batch in batches(make_loader(test, BATCH, workers=workers)):
            shown = batch.images.to(parameter)
            output = model.inspect(shown) if prototypes else None
            logits.append((output.logits if prototypes else model(shown)).cpu())
            scores += [output.scores.cpu()] if prototypes else []
            bar.update(len(shown))
    return torch.cat(logits).numpy(), torch.cat(scores).numpy() if prototypes else None


def count_confusions(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """(classes, classes): how many images of a true class, in rows, were predicted as each."""
    pairs = labels * classes + predicted
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def results(logits: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> dict:
    """The accuracy, the confusion matrix, and the most frequent mistakes."""
    matrix = count_confusions(labels, logits.argmax(axis=1), len(names))
    correct = int(np.trace(matrix))
    wrong = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MISTAKES]
    pairs = [np.unravel_index(place, wrong.shape) for place in order if wrong.flat[place]]
    chart = None
    if len(names) <= MATRIX:
        chart = html_page.chart(explanation_figures.confusion(matrix, names), "confusion matrix")
    return {
        "correct": correct,
        "images": len(labels),
        "accuracy": f"{correct / max(len(labels), 1):.1%}",
        "familiarity": "",
        "confusion": chart,
        "mistakes": [
            (shorten_name(names[true], 60), shorten_name(names[other], 60), int(wrong[true, other]))
            for true, other in pairs
        ],
    }
