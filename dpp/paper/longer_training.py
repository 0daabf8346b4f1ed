"""Does more training close the gap between rigid and deformable prototypes? A control of Table 2.

Mini's Deformable ProtoPNets have the paper's 30 epochs, after which rigid ones still have training
images wrong. Here both have the budget of mini's other methods: twice the epochs, and three times
the backbone's rate. Each run is a row of `longer_training.csv`.
"""

from collections.abc import Iterable

import pandas as pd

from dpp import runs
from dpp.analysis.intervals import Interval
from dpp.paper import moving_parts
from dpp.runs import records
from dpp.system import paths
from dpp.training.experiments import Experiment, example_experiment

FILE = "longer_training.csv"
BUDGET = {"epochs": 60, "project_after": (40, 60), "decay": 0.96, "backbone_rate": 3e-3}
SEEDS = (0, 1, 2)


def design(deformable: bool, seed: int) -> Experiment:
    """Mini's example network, rigid or deformable, with the longer budget."""
    return example_experiment("mini", deformable=deformable, seed=seed, **BUDGET)


def collect(seeds: Iterable[int] = SEEDS, *, recompute: bool = False, **options) -> pd.DataFrame:
    """The stored rows of the study; what has none is trained and stored if `recompute` says so.

    Args:
        seeds: of the networks, rigid and deformable.
        recompute: train what has no row.
        options: of `runs.run`.
    """
    wanted = [design(deformable, seed) for seed in seeds for deformable in (False, True)]
    table = moving_parts.stored_table("mini", FILE)
    for experiment in wanted if recompute else ():
        if experiment.name not in set(table.run):
            store(runs.run(experiment, **options))
            table = moving_parts.stored_table("mini", FILE)
    return table[table.run.isin([experiment.name for experiment in wanted])]


def store(run: runs.Run) -> None:
    """Puts a run's record, with its last training accuracy, into the table of the study."""
    fitted = run.metrics.query("stage == 'train'").accuracy.iloc[-1]
    row = records.of_run(run).summary | {"train_accuracy": fitted}
    records.replace_rows(paths.results(run.experiment.profile) / FILE, pd.DataFrame([row]))


def gained(table: pd.DataFrame) -> Interval:
    """By how many points deformable networks are more accurate than rigid ones, seed by seed."""
    kinds = table.assign(kind=table.deformable.map({False: "rigid", True: "predicted"}))
    return moving_parts.paired(kinds, "test_accuracy", "rigid", "predicted")
