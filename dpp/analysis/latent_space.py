"""How images lie around prototypes on the hypersphere, and how orthogonal parts are (Figure 4).

The angle between an image and a prototype is taken where it is most similar (equation 8). All
angles are in radians, as the margin is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch

from dpp import runs
from dpp.analysis.figure_data import check_deformable
from dpp.analysis.network import Network
from dpp.backbones.backbone import make_backbone
from dpp.data.batches import ImageDataset, batches, make_loader
from dpp.data.image_records import Source
from dpp.networks import losses
from dpp.runs import Run, records
from dpp.runs.method_of import method_of
from dpp.training.experiments import Experiment

VARIED = ("margin", "orthogonality", "seed")


@dataclass(frozen=True, eq=False)
class Angles:
    """The angles of N images to their nearest prototypes.

    Args:
        own: (N,), to the nearest prototype of the image's own class.
        other: (N,), to the nearest prototype of any other class.
        correct: (N,), whether the prediction is correct.
    """

    own: np.ndarray
    other: np.ndarray
    correct: np.ndarray

    def inflated(self, margin: float) -> np.ndarray:
        """(N,), the angles to other classes as training counts them (equation 12)."""
        return np.maximum(self.other - margin, 0)

    def ahead(self, margin: float = 0.0) -> float:
        """The share of images nearer to their own class, by more than the margin."""
        return float((self.own < self.inflated(margin)).mean())


@torch.no_grad()
def measure_angles(network: Network, dataset: ImageDataset, batch_size: int = 80) -> Angles:
    """The angles of all images of an un-augmented data set."""
    classes = check_deformable(network).prototypes.classes.cpu()
    own, other, correct = [], [], []
    for batch in batches(make_loader(dataset, batch_size)):
        output = network.inspect(batch.images)
        angles = output.cosines.cpu().double().clamp(-1, 1).arccos()  # (N, P)
        is_own = losses.own_class(batch.labels, classes)
        own.append(angles.masked_fill(~is_own, torch.inf).min(dim=1).values)
        other.append(angles.masked_fill(is_own, torch.inf).min(dim=1).values)
        correct.append(output.logits.argmax(dim=1).cpu() == batch.labels)
    return Angles(*(torch.cat(values).numpy() for values in (own, other, correct)))


@torch.no_grad()
def part_cosines(network: Network) -> tuple[float, float]:
    """Mean |cosine| of two parts of a class, and of two parts of one prototype.

    Equation 13 makes both small in stage 1; projection replaces the parts by features of images.
    """
    layer = check_deformable(network).prototypes
    parts = layer.normalised().flatten(2).mT / layer.length  # (P, rho, C + 1)
    groups = [parts[layer.classes == label].flatten(0, 1) for label in layer.classes.unique()]
    return _mean_cosine(groups), _mean_cosine(list(parts))


def _mean_cosine(groups: list[torch.Tensor]) -> float:
    """Over all pairs of two rows of a group, of all groups."""
    pairs = []
    for rows in groups:
        above = torch.triu_indices(len(rows), len(rows), offset=1)
        pairs.append((rows @ rows.T).abs()[above[0], above[1]])
    return float(torch.cat(pairs).mean())


def summarise(network: Network, angles: Angles, margin: float) -> dict[str, float]:
    """A network's row of a table: mean angles, shares of images, mean cosines of parts."""
    of_class, of_prototype = part_cosines(network)
    return {
        "own": angles.own.mean(),
        "other": angles.other.mean(),
        "gap": (angles.other - angles.own).mean(),
        "nearer": angles.ahead(),
        "by the margin": angles.ahead(margin),
        "|cos| class": of_class,
        "|cos| prototype": of_prototype,
        "accuracy": angles.correct.mean(),
    }


def untrained(experiment: Experiment, source: Source) -> Network:
    """The network of an experiment at random initialisation, its backbone too."""
    torch.manual_seed(experiment.seed)
    backbone = make_backbone(experiment.backbone, "none", cut_after=experiment.cut_after)
    model = method_of(experiment).build(experiment, backbone, len(source.class_names))
    return Network(model, "untrained", source, experiment.image_size, experiment.crop_to_box)


def find_twin(run: Run, **changes) -> Run | None:
    """The finished run of a run's experiment with some fields changed; None if there is none."""
    return runs.find_or_committed(replace(run.experiment, **changes), run.folder.parent)


def stage_one_table(cells: Mapping[tuple, Sequence[Experiment]]) -> pd.DataFrame:
    """The state of recorded runs before each of their projections.

    Args:
        cells: of `plans.cells`; rigid prototypes and missing runs are left out.

    Returns:
        A row for each run and projection: the fields that Table 2 changes, and the
        `stage_one_state` of the epoch before it.
    """
    rows = []
    for experiment in (one for planned in cells.values() for one in planned if one.deformable):
        record = records.stored(experiment)
        for epoch in experiment.project_after if record else ():
            fields = {name: getattr(experiment, name) for name in VARIED} | {"epoch": epoch}
            classes = int(record.summary["classes"])
            rows.append(fields | stage_one_state(record.metrics, experiment, classes, epoch))
    return pd.DataFrame(rows, columns=[*VARIED, "epoch", "own", "other", "gap", "cosine"])


def stage_one_state(
    metrics: pd.DataFrame, experiment: Experiment, classes: int, epoch: int
) -> dict[str, float]:
    """Angles and cosines of prototypes in an epoch of stage 1, from that epoch's losses.

    Returns:
        `own` and `other`, the angles whose cosines are the mean best similarities of the training
        images (equations 9 and 10), the `gap` between them, and `cosine`, the root of the mean
        square over all pairs of two parts of a class, which equation 13 sums.
    """
    (row,) = metrics[(metrics.stage == "train") & (metrics.epoch == epoch)].itertuples()
    own, other = np.arccos(-row.cluster), np.arccos(row.separation)
    parts = experiment.per_class * experiment.kernel_size**2  # of a class
    pairs = classes * parts * (parts - 1)
    squares = row.orthogonality * experiment.kernel_size**4  # parts have the length r = 1/K
    cosine = np.sqrt(squares / pairs)
    return {"own": own, "other": other, "gap": other - own, "cosine": cosine}
