"""Does the map's resolution decide whether moving helps? VGG-16 against ResNet-34, on photographs.

VGG-16 has a map of 14 x 14 cells of its own, and the paper's one large effect of deformation with
3 x 3 parts; ResNet-34's is one of 7 x 7, upsampled. Both are trained rigid and deformable on every
tenth class of CUB-200-2011, as the photo profile trains on all; batches of 8 weigh the
orthogonality of 20 classes as the paper's batches of 80 weigh that of 200.

Each run is a row of `following.csv`, told from those on all classes by its data set's name. Which
test images it classifies correctly is a column of `every_10th_class.csv`, a row for each image, so
that networks can be compared image by image.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from dpp import runs
from dpp.analysis import Network, following_study, part_following
from dpp.analysis.intervals import Interval, interval
from dpp.data import catalogue
from dpp.data.class_subset import class_subset
from dpp.paper import moving_parts
from dpp.runs import records
from dpp.system import paths
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment, make_experiment

EVERY = 10  # of the classes
FOLDER = "CUB_every_10th"
DECISIONS = "every_10th_class.csv"
BATCH = 8
IMAGES, PER_CLASS = 2, 10  # of the effective receptive field; of a class, to follow parts on
BACKBONES = {"vgg16": "VGG-16", "resnet34": "ResNet-34"}
MEASURES = (
    *("accuracy", "accuracy at rest", "active", "offset"),
    *("share moved", "share at mean", "share at rest", "gain own", "gain others", "half"),
)
KINDS = {
    "rigid": {"deformation": "none"},
    "predicted": {"deformation": "predicted"},
    "search": {"deformation": "search", "offset_start": "normal"},
}


def subset() -> Path:
    """The folder of every tenth class, under the data root; written at first use."""
    whole = catalogue.find("cub")
    if whole is None:
        raise UserError('CUB-200-2011 is not there: run "dpp data cub" or set DPP_DATA')
    return class_subset(whole, paths.data_root() / FOLDER, EVERY).root


def design(backbone: str, kind: str, seed: int, **changes) -> Experiment:
    """An experiment of the study: 3 x 3 prototypes, `rigid`, `predicted` or `search`."""
    fields = {"backbone": backbone, "data": str(subset()), "batch_size": BATCH, "seed": seed}
    return make_experiment("photo", **(fields | KINDS[kind] | changes))


def measure(experiments: Iterable[Experiment], **options) -> None:
    """Trains or finds runs, measures those that have no row, and stores rows and decisions.

    Args:
        experiments: of `design`.
        options: of `runs.run`.
    """
    for experiment in experiments:
        if len(moving_parts.stored(experiment, moving_parts.FOLLOWING)):
            continue
        run = runs.run(experiment, **options)
        test = following_study.splits_of(run).test
        gain = part_following.gain_by_moving(Network.of(run), test)
        store_decisions(run, [record.id for record in test.records], gain["correct moved"])
        given = {"gain": gain, "images": IMAGES, "per_class": PER_CLASS}
        moving_parts.store(run, following_study.study(run, **given))


def store_decisions(run: runs.Run, ids: Sequence[str], correct: Sequence[bool]) -> None:
    """Puts whether a run classifies each test image correctly into its column of the decisions."""
    column = pd.Series(list(correct), [f"image {one}" for one in ids]).astype(int)
    kind, experiment = moving_parts.kind_of(run.experiment), run.experiment
    name = decision_column(experiment.backbone, kind, experiment.seed)
    table = decisions().drop(columns=name, errors="ignore")
    table = table.join(column.rename(name), how="outer").rename_axis("run").reset_index()
    records.replace_rows(paths.results("photo") / DECISIONS, table)


def decision_column(backbone: str, kind: str, seed: int) -> str:
    return f"{backbone} {kind} {seed}"


def decisions() -> pd.DataFrame:
    """Whether each run classifies each test image correctly, 1 or 0; NaN if it was not asked."""
    return moving_parts.stored_table("photo", DECISIONS).set_index("run")


def stored_rows() -> pd.DataFrame:
    """The rows of the study's runs, with their `kind`; sorted by backbone, kind and seed."""
    table = moving_parts.stored_table("photo", moving_parts.FOLLOWING)
    if table.empty:
        return pd.DataFrame(columns=["backbone", "kind", "seed"])
    table = table[table.data == FOLDER]
    kinds = table.get("deformation", pd.Series(index=table.index)).fillna("predicted")
    table = table.assign(kind=kinds.where(table.deformable, "rigid"))
    return table.sort_values(["backbone", "kind", "seed"], ignore_index=True)


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds of the `MEASURES`, by backbone and kind, with the number of `runs`.

    Args:
        rows: of `stored_rows`.
    """
    wanted = pd.MultiIndex.from_product([BACKBONES, ["rigid", "predicted"]])
    groups = rows.reindex(columns=["backbone", "kind", *MEASURES]).groupby(["backbone", "kind"])
    means = groups[list(MEASURES)].mean().reindex(wanted)
    return means.assign(runs=groups.size().reindex(wanted).fillna(0))


def gain_by_image(backbone: str, before: str = "rigid", after: str = "predicted") -> pd.Series:
    """By how many points a kind of network is more accurate than another, image by image.

    Returns:
        For each test image the difference of the means over the seeds of each kind, which need not
        be the same; empty if one kind is not there.
    """
    table = decisions()
    means = [
        table.filter(regex=rf"^{backbone} {kind} \d+$").mean(axis=1) for kind in (after, before)
    ]
    return (100 * (means[0] - means[1])).dropna()


def gain_by_seed(backbone: str, before: str = "rigid", after: str = "predicted") -> Interval:
    """The same over the seeds of which both are there: paired differences of accuracies."""
    table = stored_rows()
    by_seed = table[table.backbone == backbone].pivot_table(
        index="seed", columns="kind", values="accuracy"
    )
    gaps = by_seed.reindex(columns=[before, after]).dropna().astype(float)
    return interval(100 * (gaps[after] - gaps[before]))


def compare_gains(first: str = "vgg16", second: str = "resnet34") -> Interval:
    """By how many points moving helps one backbone more than another; paired over images."""
    return interval((gain_by_image(first) - gain_by_image(second)).dropna())


def describe(backbone: str) -> list[str]:
    """What deformation does to a backbone, in sentences: accuracies, then where parts land."""
    table, name = stored_rows(), BACKBONES[backbone]
    moving = table[(table.backbone == backbone) & (table.kind == "predicted")]
    share, placed, worth = (
        moving_parts.gap(moving, *given)
        for given in (("share",), ("share", "at mean"), ("accuracy",))
    )
    classes = [
        f"{100 * row['share gained']:+.1f} [{100 * row['share gained low']:+.1f}, "
        f"{100 * row['share gained high']:+.1f}]"
        for _, row in moving.dropna(subset="share gained").iterrows()
    ]
    over_images, over_seeds = interval(gain_by_image(backbone)), gain_by_seed(backbone)
    return [
        f"{name}, accuracy of deformable over rigid, points: {over_images} over the test images, "
        f"{over_seeds} over seeds; of the deformable network over itself at rest {worth}.",
        f"{name}, on the true part, moved over at rest, points: {share} over seeds; over classes, "
        f"seed by seed, {', '.join(classes) or 'not run'}; moved over at mean {placed}.",
    ]
