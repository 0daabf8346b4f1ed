"""Does the map's resolution decide whether moving helps? VGG-16 against ResNets, on photographs.

VGG-16 has a map of 14 x 14 cells of its own, and the paper's one large effect of deformation with
3 x 3 parts; a ResNet's is one of 7 x 7, upsampled. They are trained rigid, deformable and with
parts that search on every tenth class of CUB-200-2011, as the photo profile trains on all; batches
of 8 weigh the orthogonality of 20 classes as the paper's batches of 80 weigh that of 200.

A fourth network is to the photographs what mini's are to drawn birds: `LOCAL` ends a ResNet-34
after the first block of its third stage, whose own map has 14 x 14 cells. It has as many epochs as
mini's, and rates near theirs (`LONGER`); and, as a control, photo's own schedule.

Each run is a row of `following.csv`, told from those on all classes by its data set's name. Which
test images it classifies correctly is a column of `every_10th_class.csv`, a row for each image, so
that networks can be compared image by image.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
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
LOCAL = {"backbone": "resnet34", "cut_after": "layer3.0", "frozen_trunk": "layer2"}
LONGER = {
    **{"epochs": 30, "warm_epochs": 2, "second_warm_epochs": 2, "project_after": (30,)},
    **{"decay": 0.93, "backbone_rate": 1e-3, "prototype_rate": 3e-3, "offset_rate": 5e-3},
}
NETWORKS = {
    "VGG-16": {"backbone": "vgg16"},
    "ResNet-34": {"backbone": "resnet34"},
    "ResNet-50": {"backbone": "resnet50_v1"},
    "local ResNet-34": LOCAL | LONGER,
    "local ResNet-34, short": LOCAL,
}
TOLD_BY = {"backbone": "", "cut_after": "", "epochs": 7}  # fields, and what they are if not given
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


def design(network: str, kind: str, seed: int) -> Experiment:
    """An experiment of the study: 3 x 3 prototypes, `rigid`, `predicted` or `search`."""
    fields = {"data": str(subset()), "batch_size": BATCH, "seed": seed}
    return make_experiment("photo", **(fields | NETWORKS[network] | KINDS[kind]))


def network_of(fields: Mapping) -> str:
    """The name in `NETWORKS` of an experiment's fields; its backbone's if it has none."""
    given = {name: fields[name] for name in TOLD_BY}
    found = (
        name
        for name, one in NETWORKS.items()
        if given == {k: one.get(k, v) for k, v in TOLD_BY.items()}
    )
    return next(found, given["backbone"])


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
    name = f"{network_of(asdict(experiment))} {kind} {experiment.seed}"
    table = decisions().drop(columns=name, errors="ignore")
    table = table.join(column.rename(name), how="outer").rename_axis("run").reset_index()
    records.replace_rows(paths.results("photo") / DECISIONS, table)


def decisions() -> pd.DataFrame:
    """Whether each run (network, kind, seed) has each test image right, 1 or 0; NaN: not asked."""
    return moving_parts.stored_table("photo", DECISIONS).set_index("run")


def stored_rows() -> pd.DataFrame:
    """The rows of the study's runs, with `network` and `kind`; sorted by these and the seed."""
    keys = ["network", "kind", "seed"]
    table = moving_parts.stored_table("photo", moving_parts.FOLLOWING)
    if table.empty:
        return pd.DataFrame(columns=keys)
    table = table[table.data == FOLDER]
    later = {"deformation": "predicted", "cut_after": ""}  # what they are where no row has them
    given = table.reindex(columns=list(later)).astype(object).fillna(later)
    given = given.join(table[["backbone", "epochs"]])
    names = [network_of(fields) for fields in given.to_dict("records")]
    table = table.assign(network=names, kind=given.deformation.where(table.deformable, "rigid"))
    return table.sort_values(keys, ignore_index=True)


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds of the `MEASURES`, by network and kind, with the number of `runs`.

    Args:
        rows: of `stored_rows`.
    """
    keys = ["network", "kind"]
    wanted = pd.MultiIndex.from_product([NETWORKS, KINDS])
    groups = rows.reindex(columns=[*keys, *MEASURES]).groupby(keys)
    means = groups[list(MEASURES)].mean().reindex(wanted)
    return means.assign(runs=groups.size().reindex(wanted).fillna(0))


def gain_by_image(network: str, before: str = "rigid", after: str = "predicted") -> pd.Series:
    """By how many points a kind of network is more accurate than another, image by image.

    Returns:
        For each test image the difference of the means over the seeds of each kind, which need not
        be the same; empty if one kind is not there.
    """
    table = decisions()
    means = [
        table.filter(regex=rf"^{network} {kind} \d+$").mean(axis=1) for kind in (after, before)
    ]
    return (100 * (means[0] - means[1])).dropna()


def gain_by_seed(network: str, before: str = "rigid", after: str = "predicted") -> Interval:
    """The same over the seeds of which both are there: paired differences of accuracies."""
    table = stored_rows()
    by_seed = table[table.network == network].pivot_table(
        index="seed", columns="kind", values="accuracy"
    )
    gaps = by_seed.reindex(columns=[before, after]).dropna().astype(float)
    return interval(100 * (gaps[after] - gaps[before]))


def compare_gains(first: str = "VGG-16", second: str = "ResNet-34") -> Interval:
    """By how many points moving helps one network more than another; paired over images."""
    return interval((gain_by_image(first) - gain_by_image(second)).dropna())


def describe(network: str, kind: str = "predicted") -> list[str]:
    """What deformation does to a network, in sentences: accuracies, then where parts land.

    Args:
        network: of `NETWORKS`.
        kind: predicted or search, compared with rigid.
    """
    table, name = stored_rows(), f"{network}, {kind}"
    moving = table[(table.network == network) & (table.kind == kind)]
    share, placed, worth = (
        moving_parts.gap(moving, *given)
        for given in (("share",), ("share", "at mean"), ("accuracy",))
    )
    classes = [
        f"{100 * row['share gained']:+.1f} [{100 * row['share gained low']:+.1f}, "
        f"{100 * row['share gained high']:+.1f}]"
        for _, row in moving.dropna(subset="share gained").iterrows()
    ]
    over_images = interval(gain_by_image(network, after=kind))
    over_seeds = gain_by_seed(network, after=kind)
    return [
        f"{name}, accuracy over rigid, points: {over_images} over the test images, "
        f"{over_seeds} over seeds; over the same network at rest {worth}.",
        f"{name}, on the true part, moved over at rest, points: {share} over seeds; over classes, "
        f"seed by seed, {', '.join(classes) or 'not run'}; moved over at mean {placed}.",
    ]
