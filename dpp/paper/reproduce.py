"""The one command: makes the runs of the notebooks, runs the notebooks, shows the paper's tables.

What it makes goes to `results/reproduced/<profile>/`, beside what is committed, and is compared
with it. With `DPP_RESULTS` it goes elsewhere; `DPP_RESULTS=results` renews what is committed.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from dpp import runs
from dpp.analysis.training_study import usual_backbones
from dpp.paper import cost, engines, grid, notebooks, photo, run_queue
from dpp.paper.regenerate import TOLERANCE, RegeneratedTable
from dpp.runs import records
from dpp.runs.ensembles import Ensemble, module_of
from dpp.system import paths
from dpp.system.errors import UserError
from dpp.system.profiles import check_profile
from dpp.training.experiments import example_experiment, make_experiment

PATHS = ("DPP_RESULTS", "DPP_RUNS", "DPP_DATA", "DPP_WEIGHTS")


def reproduce(
    profile: str,
    only: Iterable[str] = (),
    settings: Mapping[str, str] = MappingProxyType({}),
    jobs: int = 0,
    engine: str = "local",
    address: str = "",
) -> bool:
    """Trains what notebooks need, runs them, and prints the tables.

    Args:
        profile: passed to every notebook that has a parameter of that name.
        only: see `notebooks.find`.
        settings: parameters by name, as text; every chosen notebook must have them.
        jobs: runs, then notebooks, at a time; 0 for one for each core or GPU.
        engine: that makes the runs, see `engines.choose`; notebooks are run on this machine.
        address: of the engine's cluster.

    Returns:
        Whether all of it worked.
    """
    check_profile(profile)
    chosen = engines.choose(engine, jobs, address)
    if "profile" in settings:
        raise UserError(f"--set cannot change the profile: use --profile {settings['profile']}")
    work = {path: notebooks.values(path, profile, settings) for path in notebooks.find(only)}
    if profile == "photo":
        for values in work.values():
            if values.get("resnet50") == "":
                values["resnet50"] = photo.resnet50()
    tables = [table for path, values in work.items() for table in tables_of(path.stem, values)]
    others = [plan for path, values in work.items() for plan in plans_of(path.stem, values)]
    os.environ["DPP_RESULTS"] = os.environ.get("DPP_RESULTS") or str(paths.RESULTS / "reproduced")
    for name in PATHS:  # notebooks run in a folder of their own
        if given := os.environ.get(name):
            os.environ[name] = str(Path(given).expanduser().resolve())
    results = paths.results(profile)
    check_writable(results)
    for line in records.set_aside_damaged(profile):
        print(line, flush=True)
    records.begin(profile)

    plans = [*others, *(plan for table in tables for plan in table.plans)]
    if profile == "photo":
        plans = plan_photo(plans, jobs if engine == "local" else 0)
    failed_runs = run_queue.run_all(plans, keep=records.store, engine=chosen)
    processes, _ = engines.choose_jobs(jobs if engine == "local" else 0)
    failed_notebooks = notebooks.execute(work, results / "notebooks", processes)
    for table in tables:
        print(f"\n{table}")
    print(f"\nTables, figures, records and executed notebooks: {results}")
    if plans:
        print(describe_differences(profile))
    for name, reason in failed_runs.items():
        print(f"failed: {name}: {reason}")
    return not failed_runs and not failed_notebooks


def plan_photo(plans: Iterable[grid.Plan], jobs: int) -> list[grid.Plan]:
    """What is finished or can be trained here; prints the rest, and what the training will take."""
    found = {plan.name: bool(module_of(plan).find(plan)) for plan in plans}
    wanted = {plan.name: plan for plan in plans}
    finished = [plan for name, plan in wanted.items() if found[name]]
    todo = [plan for name, plan in wanted.items() if not found[name]]
    chosen, lines = photo.trainable(todo)
    if lines and not chosen and not finished:
        raise UserError(f"nothing can be trained here; {'; '.join(lines)}")
    print(*lines, sep="\n", end="\n" * bool(lines), flush=True)
    networks = [plan for plan in grid.unfold(chosen) if not isinstance(plan, Ensemble)]
    unfinished = [plan for plan in networks if not runs.find(plan)]
    if unfinished:
        known = [plan for plan in grid.unfold(finished) if not isinstance(plan, Ensemble)]
        print(cost.estimate(unfinished, known, engines.choose_jobs(jobs)[0]), flush=True)
    return [*finished, *chosen]


def tables_of(stem: str, values: Mapping) -> list[RegeneratedTable]:
    """The tables that a notebook with these parameters makes."""
    names = ("profile", "seeds", "backbones", "data", "resnet50", "changes")
    options = {name: values[name] for name in names if name in values}
    return [RegeneratedTable(table, **options) for table in grid.TABLES.get(stem, ())]


def plans_of(stem: str, values: Mapping) -> list[grid.Plan]:
    """The runs that a notebook without a table needs and that are not committed."""
    if stem == "03_train" and not values["run"]:
        size = values["kernel_size"]
        return [
            make_experiment(values["profile"], backbone=backbone, seed=values["seed"], **changes)
            for backbone in values["backbones"] or usual_backbones(values["profile"])
            for changes in (
                {"kernel_size": size},
                {"kernel_size": size} | grid.RIGID,
                {"model": "cnn"},
            )
        ]
    seed = values.get("seed", 0)
    kinds = grid.EXPLAINED.get(stem, ()) if not values.get("run") else ()
    wanted = [
        example_experiment(values["profile"], seed=seed, **grid.EXAMPLES[kind]) for kind in kinds
    ]
    return [experiment for experiment in wanted if not runs.find_or_committed(experiment)]


def check_writable(folder: Path) -> None:
    """Fails at once, and not after half an hour, if results cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".writable").touch()
        (folder / ".writable").unlink()
    except OSError as error:
        raise UserError(
            f"cannot write to {folder} ({error.strerror}): set DPP_RESULTS to a writable folder"
        ) from error


def describe_differences(profile: str) -> str:
    """Which runs differ from the committed records by more than the tolerance."""
    both = records.differences(profile)
    if both.empty:
        return f"There are no committed {profile} records of these runs to compare with."
    far = both[both.difference.abs() > TOLERANCE]
    same = (both.difference.abs() < 0.005).sum()
    summary = (
        f"Compared with {len(both)} committed runs: {same} have the same accuracy, "
        f"{len(far)} differ by more than {TOLERANCE:g} points."
    )
    lines = [
        f"  {row.run}: {row.now:.1f}, committed {row.committed:.1f}" for row in far.itertuples()
    ]
    return "\n".join([summary, *lines])
