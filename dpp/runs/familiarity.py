"""How similar test images are to a network's prototypes: an input below that is unfamiliar.

A network gives every input a class and reasons for it, noise too. Of each test image, the highest
similarity to any prototype is measured once, at the end of training, and what 99 % of them have is
kept in `familiarity.json` beside the run's other files. An input with less is unlike all images
that the run's accuracy is about.
"""

import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dpp.data.batches import Batch, batches, make_loader, to_device
from dpp.runs.finished import Run, load_splits
from dpp.system import files
from dpp.system.errors import UserError

FILE = "familiarity.json"
SHARE = 0.01  # of the test images that may have less than the threshold
SLACK = 1e-3  # training may have measured on trunk features that are kept in half precision
MANY = 1000  # test images, whose measuring is announced
BATCH = 40  # images that are inspected at a time


@dataclass(frozen=True)
class Familiarity:
    """The highest similarities of the test images to any prototype.

    Args:
        threshold: what all but `SHARE` of the images have; with fewer than 100, what all have.
        median: of the images.
        images: how many.
    """

    threshold: float
    median: float
    images: int

    def warning(self, similarity: float) -> str:
        """What to say of an input with this highest similarity; empty if it is familiar."""
        if similarity >= self.threshold - SLACK:
            return ""
        return (
            f"far from the training images: highest similarity to a prototype {similarity:.3g}; "
            f"{self.describe()}: do not rely on the class or its reasons"
        )

    def describe(self) -> str:
        share = f"{1 - SHARE:.0%}" if SHARE * self.images >= 1 else "all"
        return (
            f"{share} of the {self.images} test images have {self.threshold:.3g} or more "
            f"(median {self.median:.3g})"
        )


@torch.inference_mode()
def measure(model: nn.Module, images: Iterable[Batch]) -> Familiarity:
    """Measures a network on un-augmented test images.

    Args:
        model: with prototypes, in evaluation mode.
        images: batches of them.
    """
    device = next(model.parameters()).device
    highest = [
        highest_similarity(model, model.inspect(to_device(batch.images, device)).scores).cpu()
        for batch in images
    ]
    similarities = torch.cat(highest).double().numpy()
    threshold = np.quantile(similarities, SHARE, method="lower")
    return Familiarity(float(threshold), float(np.median(similarities)), len(similarities))


def highest_similarity(model: nn.Module, scores: Tensor) -> Tensor:
    """(N,), the highest of scores (N, P), without those of a tree's pruned nodes."""
    forks = getattr(model, "forks", None)
    return (scores if forks is None else scores[:, forks.to(scores.device)]).amax(dim=1)


def write(folder: Path, model: nn.Module, images: Iterable[Batch], weights_sha256: str) -> None:
    """Measures a network and keeps the result in a run's folder; one without prototypes has none.

    Args:
        folder: of the run.
        model: trained.
        images: test images.
        weights_sha256: of the run's weights, so that a file of others is not used.
    """
    if hasattr(model, "find_parts"):
        model.eval()
        kept = asdict(measure(model, images)) | {"weights_sha256": weights_sha256}
        files.write_json(folder / FILE, kept | {"sha256": files.sha256_of_json(kept)})


def find(run: Run) -> Familiarity | None:
    """What is kept of a run; None if there is nothing, or it is damaged or of other weights.

    The file has a hash of its own: unlike those that the manifest covers, it can be made again.
    """
    with suppress(UserError, KeyError, TypeError, AttributeError):
        kept = files.read_json(run.folder / FILE)
        whole = kept.pop("sha256") == files.sha256_of_json(kept)
        if whole and kept.pop("weights_sha256") == run.manifest["weights_sha256"]:
            return Familiarity(**kept)
    return None


def ensure(run: Run, device: str = "cpu") -> Familiarity | None:
    """The same, measured now if a run has none yet, which takes a pass over the test images."""
    if known := find(run):
        return known
    model, images = run.load_model(device), load_splits(run.experiment, run.source).test
    if len(images) >= MANY:
        print(f"measuring {len(images):,} test images of {run.folder}, once", file=sys.stderr)
    loader = make_loader(images, BATCH)
    with suppress(UserError):  # a folder that cannot be written to: it stays unknown
        write(run.folder, model, batches(loader), run.manifest["weights_sha256"])
    return find(run)
