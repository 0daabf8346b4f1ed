"""The table of all systems and all measures: made run by run, kept as one CSV in `results/`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from dpp import runs
from dpp.evaluation import misalignment, table
from dpp.evaluation.scores import Score
from dpp.runs import Run
from dpp.system import files, paths
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment, example_experiment

SYSTEMS = {
    "deformable": {},
    "rigid": {"deformable": False},
    "ProtoPNet": {"model": "protopnet"},
    "TesNet": {"model": "tesnet"},
    "ProtoTree": {"model": "prototree"},
    "plain CNN": {"model": "cnn"},
}
NO_CHANGES: Mapping = MappingProxyType({})
REPEATED = ("deformable", "rigid", "ProtoPNet")  # systems that are measured with every seed
FILE = "evaluation.csv"
ATTACKED = {  # what attacks change -> its abbreviation
    name: name.partition("(")[2].rstrip(")") for name, _ in misalignment.NAMES.values()
}
# Sacha et al., AAAI 2024: ResNet-34 on CUB-200-2011
PUBLISHED = {
    "ProtoPNet": {"PLC": 24.0, "PAC": 13.5, "PRC": 23.7},
    "TesNet": {"PLC": 16.0, "PAC": 2.9, "PRC": 3.4},
}


def experiments(
    profile: str, seeds: Iterable[int] = (0,), changes: Mapping = NO_CHANGES
) -> dict[tuple[str, int], Experiment]:
    """The experiments of all systems for the first seed, and of `REPEATED` for the others.

    All have the example's backbone.

    Args:
        profile, seeds: of the experiments.
        changes: of all of them, such as their data.
    """
    return {
        (name, seed): example_experiment(profile, seed=seed, **{**own, **changes})
        for place, seed in enumerate(seeds)
        for name, own in SYSTEMS.items()
        if place == 0 or name in REPEATED
    }


def rows_of(system: str, run: Run, content: Mapping) -> list[dict]:
    """The rows of one evaluation (`table.evaluate`)."""
    about = {"system": system, "run": content["run"], "profile": run.experiment.profile}
    about |= {"data": Path(run.experiment.data).name, "run_seed": run.experiment.seed}
    about |= {"seed": content["seed"], "size": content["size"]}
    about |= {f"{split}_images": count for split, count in content["images"].items()}
    return [
        about | {"family": family} | entry | {"family_seconds": content["seconds"][family]}
        for family, entries in content["scores"].items()
        for entry in entries
    ]


def collect(
    profile: str,
    seeds: Iterable[int] = (0,),
    changes: Mapping = NO_CHANGES,
    folder: Path | None = None,
    **options,
) -> pd.DataFrame:
    """Measures every system, training what there is none of yet, and stores the table.

    Each system's rows are stored as soon as they are measured. What is stored already for the same
    weights is not measured again. Rows of other data sets stay in the table; those of other runs on
    the same data are removed at the end.

    Args:
        profile, seeds, changes: of the runs, see `experiments`.
        folder, options: see `measure`.
    """
    own, frame = [], pd.DataFrame()
    for (name, _), experiment in experiments(profile, seeds, changes).items():
        run = runs.get(experiment)
        own.append(run.folder.name)
        frame = add(name, run, folder, **options)
    stale = ~frame.run.isin(own) & frame.data.isin(frame.data[frame.run.isin(own)])
    return write(profile, frame[~stale])


def add(system: str, run: Run, folder: Path | None = None, **options) -> pd.DataFrame:
    """Measures one run, and stores its rows beside those of others in its profile's table.

    Args:
        system: its name in the table.
        run: finished.
        folder, options: see `measure`.
    """
    profile, rows = run.experiment.profile, pd.DataFrame(measure(system, run, folder, **options))
    if find(profile) is not None:
        before = read(profile)
        rows = pd.concat([before[before.run != run.folder.name], rows])
    return write(profile, rows)


def measure(
    system: str,
    run: Run,
    folder: Path | None = None,
    measures: Iterable[str] = (),
    **options,
) -> list[dict]:
    """The rows of one run; what is stored already for its weights is not measured again.

    Args:
        system, run: see `add`.
        folder: for the evaluations of single runs; by default `evaluation/` under the runs.
        measures: names of families that must be among the rows; all without one.
        options: of `table.evaluate`.
    """
    name = f"{run.folder.name}-{run.manifest['weights_sha256'][:8]}.json"
    path = Path(folder or paths.runs_root() / "evaluation") / name
    return rows_of(system, run, table.evaluate(run, measures, out=path, **options))


def write(profile: str, frame: pd.DataFrame) -> pd.DataFrame:
    """Stores a profile's table; returns it as it is read."""
    target = paths.results(profile) / FILE
    files.write_file(target, frame.to_csv(index=False, float_format="%.6g").encode())
    return read(profile)


def find(profile: str) -> Path | None:
    """The file of a profile's stored table, of the results in use or else the committed ones."""
    found = paths.stored_file(profile, FILE)
    return found if found.is_file() else None


def read(profile: str) -> pd.DataFrame:
    """The stored table of a profile."""
    found = find(profile)
    if found is None:
        raise UserError(f"there is no {paths.results(profile) / FILE}: use systems.collect")
    texts = {name: "" for name in ("at", "unit", "better", "note")}
    return pd.read_csv(found, dtype=dict.fromkeys(texts, str)).fillna(texts)


def load(profile: str, seeds: Iterable[int] = (0,), recompute: bool = False) -> pd.DataFrame:
    """The stored table of a profile; measured now if there is none, or if that is wanted."""
    if recompute or find(profile) is None:
        return collect(profile, seeds)
    return read(profile)


def scores_of(frame: pd.DataFrame, system: str, run_seed: int = 0) -> list[Score]:
    """The scores of one system, as they were measured."""
    own = frame[(frame.system == system) & (frame.run_seed == run_seed)]
    return [Score(**row) for row in own[list(Score._fields)].to_dict("records")]


def pivot(frame: pd.DataFrame, column: str = "value") -> pd.DataFrame:
    """A row for each measure and place, a column for each system, of its first run's seed."""
    frame = frame[frame.run_seed == frame.groupby("system").run_seed.transform("min")]
    order = frame[["measure", "at"]].drop_duplicates()
    wide = frame.pivot_table(column, ["measure", "at"], "system", sort=False, dropna=False)
    kept = pd.MultiIndex.from_frame(
        order[order.set_index(["measure", "at"]).index.isin(wide.index)]
    )
    names = [name for name in SYSTEMS if name in wide.columns]
    return wide.loc[kept, names].dropna(how="all")


def over_seeds(frame: pd.DataFrame) -> pd.DataFrame:
    """What measures of systems with several runs differ by from training to training.

    Returns:
        A row for each system, measure and place: `mean`, `lowest` and `highest` over the runs,
        `runs`, how many, and the bootstrap interval `low` to `high` of the first.
    """
    keys = ["system", "measure", "at"]
    groups = frame.dropna(subset="value").sort_values("run_seed", kind="stable").groupby(keys)
    values = groups.value.agg(["mean", "min", "max", "count"])
    values.columns = ["mean", "lowest", "highest", "runs"]
    found = values.join(groups[["low", "high"]].first())
    order = frame.set_index(keys).index.drop_duplicates()
    return found.reindex(order[order.isin(found.index)]).query("runs > 1")


def beside_published(frame: pd.DataFrame) -> pd.DataFrame:
    """What attacks outside the shown box change, beside what was published.

    Args:
        frame: of one data set and one run of each system.

    Returns:
        A row for each system; columns for PLC, PAC, PRC and AC of the attack that was meant, of
        the released one, of random weights, and as published.
    """
    rows = frame[frame.measure.isin(ATTACKED) & (frame["at"] == "centre")]
    columns = {"value": "attack", "original": "released attack", "random_weights": "random weights"}
    found = {
        name: rows.pivot_table(column, "system", "measure", sort=False).rename(columns=ATTACKED)
        for column, name in columns.items()
    }
    beside = pd.concat({**found, "published": pd.DataFrame(PUBLISHED).T}, axis=1)
    return beside.loc[[name for name in SYSTEMS if name in set(rows.dropna(subset="value").system)]]


def intervals_apart(frame: pd.DataFrame, one: str, other: str) -> pd.Series:
    """Whether the 95 % intervals of two systems do not overlap, by measure and place.

    Args:
        frame: of one data set and one run of each system.
        one, other: systems; measures that lack an interval of either are left out.
    """
    ends = frame.pivot_table(["low", "high"], ["measure", "at"], "system", sort=False)
    ends = ends.reindex(columns=pd.MultiIndex.from_product([("low", "high"), (one, other)]))
    low, high = (ends.dropna()[side] for side in ("low", "high"))
    return (low[one] > high[other]) | (low[other] > high[one])
