"""The study of notebook 13: do parts follow the pose? Its experiments, records and intervals.

Its networks are mini's: a slim ResNet-34, of which a cell sees a part of the bird, with 2x2 parts.
Each run is one row of `following.csv`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd
import scipy.stats

from dpp import runs
from dpp.analysis import Network, following_study, part_following, receptive_field
from dpp.analysis.intervals import Interval, interval
from dpp.networks import released
from dpp.paper import grid
from dpp.runs import records
from dpp.system import paths
from dpp.training.experiments import Experiment, base_experiment, make_experiment

FOLLOWING, FOLLOWING_EPOCHS = "following.csv", "following_epochs.csv"
FIELDS, SEARCH_SPEED = "receptive_fields.csv", "search_benchmark.csv"
KINDS = {
    "rigid": {"deformation": "none", "offset_start": "normal"},
    "predicted": {"deformation": "predicted"},
    "search": {"deformation": "search", "search_reach": 2, "offset_start": "normal"},
}
STARTS = {  # of the offset branch
    "He, zero": {},
    "normal, 2e-5": {"offset_start": "normal", "offset_deviation": 2e-5},
    "normal, 0.01": {"offset_start": "normal", "offset_deviation": 0.01},
    "He, zero; a tenth of the rate": {"offset_rate": 5e-4},
    "He, zero; four times the rate": {"offset_rate": 0.02},
    "He, zero; input times 64": {"variant": "released:large_features"},
}
EPOCH_COLUMNS = ("accuracy", "validation_offset", "validation_active", "offset_gradient")
RECORDED = {"test_accuracy": "accuracy", "test_offset": "offset", "test_active": "active"}
EVERY_SWITCH = "all"
ENDS = ("as in mini", "whole")  # of a backbone
STATES = ("moved", "at mean", "at rest")  # of one network: see `part_following`


def design(kind: str, pose: float, seed: int, **changes) -> Experiment:
    """An experiment of the study: `rigid`, `predicted` or `search` on birds of some pose."""
    fields = {"kernel_size": 2, "pose": pose, "seed": seed} | KINDS[kind] | changes
    return make_experiment("mini", **fields)


def switched(switch: str, pose: float, seed: int) -> Experiment:
    """An experiment with one departure of the released code, or all, or (empty) none."""
    variant = {"": "paper", EVERY_SWITCH: "released"}.get(switch, f"released:{switch}")
    return design("predicted", pose, seed, variant=variant)


def switches() -> list[str]:
    """The departures that change these networks: all but one that needs a file of weights."""
    return [name for name in released.NAMES if name != "stacked_branch"]


def collect(
    experiments: Iterable[Experiment],
    *,
    recompute: bool = False,
    study: Callable[[runs.Run], dict[str, float]] = following_study.study,
    **options,
) -> pd.DataFrame:
    """A row of measures for each experiment; what is not stored is left out, or computed.

    Args:
        experiments: of the study.
        recompute: train or find the runs that have no row, measure and store them.
        study: what measures a run.
        options: of `runs.run`.

    Returns:
        The rows of `following.csv` of these experiments, in their order, with `kind`.
    """
    found = []
    for experiment in experiments:
        rows = stored(experiment, FOLLOWING)
        if rows.empty and recompute:
            run = runs.run(experiment, **options)
            store(run, study(run))
            rows = stored(experiment, FOLLOWING)
        found.append(rows.assign(kind=kind_of(experiment)))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame({"run": []})


def kind_of(experiment: Experiment) -> str:
    """`rigid`, `predicted` or `search`."""
    return experiment.deformation if experiment.deformable else "rigid"


def stored(experiment: Experiment, name: str) -> pd.DataFrame:
    """The rows of a run in one of the study's tables."""
    table = stored_table(experiment.profile, name)
    return table[table.run == experiment.name]


def stored_table(profile: str, name: str) -> pd.DataFrame:
    """A whole table of the study; empty if there is none."""
    return records.read(paths.stored_file(profile, name))


def store(run: runs.Run, measures: dict[str, float]) -> None:
    """Puts the measures of a run, with its record, and its epochs into the study's tables."""
    folder = paths.results(run.experiment.profile)
    row = records.of_run(run).summary | measures
    records.replace_rows(folder / FOLLOWING, pd.DataFrame([row]))
    names = [*("stage", "epoch", "phase"), *EPOCH_COLUMNS]
    epochs = run.metrics.reindex(columns=names).assign(run=run.experiment.name)
    records.replace_rows(folder / FOLLOWING_EPOCHS, epochs)


def gap(
    rows: pd.DataFrame,
    measure: str,
    before: str = "at rest",
    after: str = "moved",
    scale: float = 100,
) -> Interval:
    """By how much a measure of one state of the same networks exceeds that of another."""
    first, second = (state_column(rows, measure, state) for state in (before, after))
    return interval(scale * (second - first))


def state_column(rows: pd.DataFrame, measure: str, state: str) -> pd.Series:
    """A measure of one of the `STATES`, run by run; NaN where it was not taken."""
    name = "accuracy" if (measure, state) == ("accuracy", "moved") else f"{measure} {state}"
    return rows.get(name, pd.Series(float("nan"), index=rows.index))


def by_state(rows: pd.DataFrame, scales: Mapping[str, float]) -> pd.DataFrame:
    """Means with intervals, as text: a row for each of the `STATES`, a column for each measure.

    Args:
        rows: of networks that predict offsets.
        scales: what each measure is multiplied by, by its name.
    """
    cells = {
        state: {
            measure: interval(scale * state_column(rows, measure, state)).text(1)
            for measure, scale in scales.items()
        }
        for state in STATES
    }
    return pd.DataFrame.from_dict(cells, orient="index")


def departures(table: pd.DataFrame, pose: float, seeds: Iterable[int]) -> pd.DataFrame:
    """What each departure of the released code does to the measures, beside networks without any.

    Args:
        table: of `collect`, with rows of `switched` experiments.
        pose, seeds: of those.

    Returns:
        A row for each departure and for all: means of `accuracy`, `offset`, `share moved` and
        `share at rest`; `accuracy gained`, an `Interval` of paired differences; `runs`.
    """
    known = table.set_index("run")
    columns = ["accuracy", "offset", "share moved", "share at rest"]
    rows = {}
    for switch in ("", *switches(), EVERY_SWITCH):
        pairs = [[switched(one, pose, seed).name for one in ("", switch)] for seed in seeds]
        both = [pair for pair in pairs if set(pair) <= set(known.index)]
        found = known.reindex([after for _, after in both])
        gains = [100 * (known.accuracy[after] - known.accuracy[before]) for before, after in both]
        rows[switch or "as the paper"] = dict(found[columns].mean()) | {
            "accuracy gained": interval(gains),
            "runs": len(both),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def paired(
    table: pd.DataFrame, column: str, before: str, after: str, scale: float = 100
) -> Interval:
    """By how much a measure of kind `after` exceeds that of kind `before`, seed by seed."""
    by_seed = table.pivot_table(index=["pose", "seed"], columns="kind", values=column)
    gaps = by_seed.reindex(columns=[before, after]).dropna()
    return interval(scale * (gaps[after] - gaps[before]))


def along(table: pd.DataFrame, column: str, scale: float = 100, by: str = "pose") -> pd.DataFrame:
    """A measure along the pose, or another column: `mean`, `low`, `high` and `count`."""
    rows = {key: interval(scale * values)._asdict() for key, values in table.groupby(by)[column]}
    columns = list(Interval._fields)
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis(by)


def compare_with_rigid(gain: pd.DataFrame, rigid_gain: pd.DataFrame) -> dict[str, float]:
    """By how many points a network is more accurate than its rigid twin on the same test images.

    Args:
        gain, rigid_gain: of `part_following.gain_by_moving`, a row for each image.

    Returns:
        `over rigid`, its `low` and `high`: the interval over images, of paired differences.
    """
    before, after = (one["correct moved"].astype(float) for one in (rigid_gain, gain))
    return interval(100 * (after - before)).named("over rigid")


def measure_photo(run: str, rigid_run: str, per_class: int = 5) -> None:
    """Measures a deformable run on photographs and its rigid twin, and stores their rows.

    Args:
        run: folder of the deformable run.
        rigid_run: of its twin; empty if there is none yet.
        per_class: images of each class and split on which parts are followed.
    """
    both = [runs.open_run(Path(one).expanduser()) for one in (run, rigid_run) if one]
    gains = [
        part_following.gain_by_moving(Network.of(one), following_study.splits_of(one).test)
        for one in both
    ]
    rows = [
        following_study.study(one, per_class=per_class, gain=gain)
        for one, gain in zip(both, gains, strict=True)
    ]
    if len(both) == 2:
        rows[0] |= compare_with_rigid(*gains)
    for one, row in zip(both, rows, strict=True):
        store(one, row)


def photo_rows(backbones: Iterable[str]) -> pd.DataFrame:
    """The stored rows of photo runs on all of CUB: of each backbone a deformable and a rigid one.

    Returns:
        Indexed by `backbone` and `kind`; of several runs the first by name. A run whose parts have
        not been followed has what its own record says; NaN if it was not run.
    """
    wanted = pd.MultiIndex.from_product([backbones, ["deformable", "rigid"]])
    recorded = stored_table("photo", records.RUNS).rename(
        columns=lambda one: RECORDED.get(one, one)
    )
    found = [_of_paper(one) for one in (stored_table("photo", FOLLOWING), recorded)]
    columns = list(dict.fromkeys([*found[0], *RECORDED.values(), "kernel_size"]))
    rows = pd.concat([one.reindex(columns=columns) for one in found if len(one)] or found)
    rows = rows.drop_duplicates(["backbone", "kind"]).set_index(["backbone", "kind"])
    return rows.reindex(wanted)


def _of_paper(table: pd.DataFrame) -> pd.DataFrame:
    """Of a table of runs, the paper's networks on all classes of CUB, with their `kind`."""
    asked = {"model": "deformable", "data": "cub", "variant": "paper"}
    asked |= {name: getattr(Experiment, name) for name in ("margin", "orthogonality")}
    for name, value in asked.items():
        table = table[table.get(name, pd.Series(value, table.index)) == value]
    table = table.reindex(columns=list(dict.fromkeys([*table, "backbone", "deformable"])))
    return table.assign(kind=table.deformable.map({True: "deformable", False: "rigid"}))


def stored_fields(*, recompute: bool = False) -> pd.DataFrame:
    """`fields_of_backbones` as stored; computed and stored anew if `recompute` says so."""
    if recompute:
        table = fields_of_backbones().reset_index(names="run")
        records.replace_rows(paths.results("mini") / FIELDS, table)
    table = stored_table("mini", FIELDS).set_index("run").rename_axis("backbone")
    table = table.fillna({"last": "of its own"})
    names = [f"{one}, {end}" for one in map(grid.slim, grid.BACKBONES) for end in ENDS]
    return table.reindex(names)


def fields_of_backbones(images: int = 4) -> pd.DataFrame:
    """The effective receptive fields of mini's backbones, pretrained, cut and whole.

    Returns:
        Indexed by the backbone and which of the `ENDS` it has: `last`, its last layer if it is cut,
        `channels`, `cells` in a row of the map, and `half` and `most`, the sides in pixels of the
        squares that hold a half and nine tenths of what a cell sees.
    """
    rows = {}
    for name in map(grid.slim, grid.BACKBONES):
        experiment = make_experiment("mini", backbone=name)
        base = runs.run(base_experiment(experiment), progress=False)
        test = runs.load_splits(experiment, runs.load_source(experiment)).test
        shown = test.batch([(0, index * len(test) // images) for index in range(images)]).images
        for end, cut in zip(ENDS, (experiment.cut_after, ""), strict=True):
            whole = replace(experiment, cut_after=cut, frozen_trunk="", views=0)
            backbone = runs.load_backbone(whole, base).eval()
            centres = backbone.cell_centres(experiment.image_size)
            cells = receptive_field.inner_cells(len(centres))
            field = receptive_field.effective_field(backbone, shown, cells, centres)
            about = {"last": cut, "channels": backbone.channels, "cells": len(centres)}
            rows[f"{name}, {end}"] = about | dict(field[["half", "most"]].mean())
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("backbone")


def gain_by_backbone() -> pd.DataFrame:
    """What deformation is worth on each of mini's backbones, beside what a cell sees of the image.

    Returns:
        Indexed by the paper's name of a backbone: `half` and `most`, see `fields_of_backbones`;
        accuracies of Table 1's networks, `2x2 rigid` and so on, in percent, means over their
        seeds; and `2x2 gained` and `3x3 gained`. NaN if there is no record.
    """
    known = stored_table("mini", records.RUNS).set_index("run").get("test_accuracy", pd.Series())
    fields, cells = stored_fields(), grid.cells("table1", "mini")
    rows = {}
    for column in grid.BACKBONES:
        rows[column] = dict(fields.loc[f"{grid.slim(column)}, {ENDS[0]}", ["half", "most"]])
        for shape in ("2x2", "3x3"):
            before, after = (
                100 * known.reindex([one.name for one in cells[f"Def. ProtoPNet ({row})", column]])
                for row in (f"{shape},nd", shape)
            )
            rows[column] |= {f"{shape} rigid": before.mean(), f"{shape} deformable": after.mean()}
            rows[column][f"{shape} gained"] = after.mean() - before.mean()
    return pd.DataFrame.from_dict(rows, orient="index").astype(float).sort_values("most")


def locality(gains: pd.DataFrame) -> tuple[float, float]:
    """Spearman's rank correlation of what a cell sees with what deformation is worth, and its p.

    Args:
        gains: of `gain_by_backbone`; the two shapes' gains are averaged, backbone by backbone.
    """
    worth = gains[["2x2 gained", "3x3 gained"]].mean(axis=1)
    found = scipy.stats.spearmanr(gains["most"], worth, nan_policy="omit")
    return float(found.statistic), float(found.pvalue)
