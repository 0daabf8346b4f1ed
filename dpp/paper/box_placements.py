"""Where the box of a part belongs: three placements, by gradients and by marked parts of birds.

Rows of `box_placements.csv`: `network`, a backbone or a run; `measure`; and a value
for each of `receptive_field.PLACEMENTS`. Measures are `distance`, from what cells see by their
gradients, in cells; and of a run's parts `near`, the share within a cell of a marked part,
`beyond`, by how much that exceeds the share on another image's animal, and `background`, the share
outside the animal's box.
"""

from collections.abc import Iterable

import pandas as pd
import torch

from dpp import runs
from dpp.analysis import Network, following_study, receptive_field
from dpp.backbones.backbone import make_backbone
from dpp.data import catalogue
from dpp.data.batches import ImageDataset
from dpp.data.pictures import load_picture
from dpp.runs import records
from dpp.system import paths

BOXES = "box_placements.csv"
LARGER = ("near", "beyond")  # measures that are better the larger they are
PIXELS = 224


def of_backbone(name: str, images: int = 4, probes: int = 1) -> pd.DataFrame:
    """How far boxes would lie from what the cells of a backbone with ImageNet weights see.

    Args:
        name: a full backbone.
        images: photographs of CUB-200-2011, evenly spread.
        probes: of `receptive_field.pixel_weights`.
    """
    known = catalogue.load("cub").records
    chosen = known[:: max(1, len(known) // images)][:images]
    backbone = make_backbone(name, "imagenet").eval()
    centres = backbone.cell_centres(PIXELS)
    shown = torch.stack([load_picture(one, PIXELS).tensor for one in chosen])
    cells = receptive_field.inner_cells(len(centres), 3)
    fields = receptive_field.effective_field(backbone, shown, cells, centres, probes=probes)
    return _rows(
        f"{name}, ImageNet weights", {"distance": receptive_field.placement_errors(fields)}
    )


def of_run(run: runs.Run, per_class: int = 0, images: int = 4) -> pd.DataFrame:
    """All measures of a trained network on its test images, some of each class or all (0)."""
    network = Network.of(run)
    test: ImageDataset = following_study.splits_of(run).test
    fields = receptive_field.field_of(
        network, runs.load_splits(run.experiment, run.source).test, images
    )
    found = receptive_field.compare_placements(
        network, following_study.first_of_classes(test, per_class)
    )
    measures = {"distance": receptive_field.placement_errors(fields)}
    measures |= {"near": found.near, "beyond": found.near - found.elsewhere}
    measures["background"] = found.background
    return _rows(_name(run), measures)


def _name(run: runs.Run) -> str:
    """A network by its backbone and data, with what other networks of a table do not have."""
    experiment = run.experiment
    cut = f" up to {experiment.cut_after}" if experiment.cut_after else ""
    search = ", search" if experiment.deformation == "search" else ""
    return f"{experiment.backbone}{cut}{search}, {run.source.name}"


def _rows(network: str, measures: dict[str, pd.Series]) -> pd.DataFrame:
    table = pd.DataFrame(measures).T.rename_axis("measure").reset_index()
    return table.assign(network=network, run=[f"{network}: {name}" for name in table.measure])


def store(profile: str, tables: Iterable[pd.DataFrame]) -> None:
    """Puts rows into a profile's table, in place of older ones of the same networks."""
    records.replace_rows(paths.results(profile) / BOXES, pd.concat(tables))


def stored(profile: str) -> pd.DataFrame:
    """The rows of a profile, indexed by network and measure."""
    table = records.read(paths.stored_file(profile, BOXES))
    if table.empty:
        return pd.DataFrame(columns=list(receptive_field.PLACEMENTS))
    return table.set_index(["network", "measure"])[list(receptive_field.PLACEMENTS)]


def best(table: pd.DataFrame) -> pd.Series:
    """The best placement of each row of `stored`: the largest of `LARGER`, or the smallest."""
    larger = table.index.get_level_values("measure").isin(LARGER)
    return pd.concat([table[larger].idxmax(axis=1), table[~larger].idxmin(axis=1)])[table.index]
