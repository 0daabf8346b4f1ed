"""The one command: makes the runs of the notebooks, runs the notebooks, shows the paper's tables.

What it makes goes to `results/reproduced/<profile>/`, beside what is committed, and is compared
with it. With `DPP_RESULTS` it goes elsewhere; `DPP_RESULTS=results` renews what is committed.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from dpp import runs
from dpp.paper import grid, notebooks, run_queue, tables
from dpp.runs import records
from dpp.system import paths
from dpp.system.errors import UserError
from dpp.system.profiles import check_profile
from dpp.training.experiments import example_experiment, make_experiment

# How the networks that a notebook explains differ from the example.
RIGID, TREE, PATCHES = {"deformable": False}, {"model": "prototree"}, {"model": "protopnet"}
NETWORKS = {
    "08_reasoning_process": ({}, RIGID, PATCHES, TREE),
    "09_local_analysis": ({}, RIGID),
    "10_global_analysis": ({},),
    "11_latent_space": ({},),
    "12_browse_prototypes": ({}, RIGID),
}
# By how many percentage points a run's accuracy may differ on another machine: as much as one did
# with other instructions, see results/estimates/other_instructions.csv.
TOLERANCE = 8.0


def reproduce(
    profile: str,
    only: Iterable[str] = (),
    settings: Mapping[str, str] = MappingProxyType({}),
    jobs: int = 0,
) -> bool:
    """Runs notebooks and all that they need; prints what came out.

    Args:
        profile: passed to every notebook that has a parameter of that name.
        only: see `notebooks.find`.
        settings: parameters by name, as text; every chosen notebook must have them.
        jobs: runs, then notebooks, at a time; 0 for one for each core or GPU.

    Returns:
        Whether all of it worked.
    """
    check_profile(profile)
    if "profile" in settings:
        raise UserError(f"the profile is not set with --set: use --profile {settings['profile']}")
    work = {path: notebooks.values(path, profile, settings) for path in notebooks.find(only)}
    asked = {path: cells_of(path.stem, values) for path, values in work.items()}
    others = [plan for path, values in work.items() for plan in of_notebook(path.stem, values)]
    os.environ["DPP_RESULTS"] = os.environ.get("DPP_RESULTS") or str(paths.RESULTS / "reproduced")
    for name in ("DPP_RESULTS", "DPP_RUNS", "DPP_DATA"):  # notebooks run in a folder of their own
        if given := os.environ.get(name):
            os.environ[name] = str(Path(given).expanduser().resolve())
    results = paths.results(profile)
    check_writable(results)
    for line in records.set_aside_damaged(profile):
        print(line, flush=True)

    wanted = [plan for found in asked.values() for cells in found.values() for plan in flat(cells)]
    failed = run_queue.carry_out([*others, *wanted], jobs=jobs, keep=records.store)
    at_a_time, _ = run_queue.choose_jobs(jobs)
    stuck = notebooks.execute(work, results / "notebooks", at_a_time)
    for cells in asked.values():
        for table, planned in cells.items():
            print(f"\n{tables.as_text(tables.compare(table, planned))}")
    print(f"\nTables, figures, records and executed notebooks: {results}")
    if others or wanted:
        print(said_of_differences(profile))
    for name, reason in failed.items():
        print(f"not made: {name}: {reason}")
    return not failed and not stuck


def cells_of(stem: str, values: Mapping) -> dict[str, dict]:
    """The cells of each table that a notebook with these parameters makes."""
    names = ("profile", "seeds", "backbones", "data", "resnet50", "changes")
    return {
        table: grid.cells(table, **{name: values[name] for name in names})
        for table in grid.TABLES.get(stem, ())
    }


def flat(cells: Mapping) -> list[grid.Plan]:
    return [plan for planned in cells.values() for plan in planned]


def of_notebook(stem: str, values: Mapping) -> list[grid.Plan]:
    """The runs that a notebook without a table wants, and that are not committed."""
    if stem == "03_train":
        return [
            make_experiment(values["profile"], backbone=backbone, seed=values["seed"], **changes)
            for backbone in values["backbones"]
            for changes in ({"kernel_size": values["kernel_size"]}, {"model": "cnn"})
        ]
    seed = values.get("seed", 0)
    kinds = NETWORKS.get(stem, ()) if not values.get("run") else ()
    wanted = [example_experiment(values["profile"], seed=seed, **changes) for changes in kinds]
    return [experiment for experiment in wanted if not runs.find_or_committed(experiment)]


def check_writable(folder: Path) -> None:
    """Says at once, and not after half an hour, that results have no place to go."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".writable").touch()
        (folder / ".writable").unlink()
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written to ({error.strerror}): set DPP_RESULTS to one that can"
        ) from error


def said_of_differences(profile: str) -> str:
    """What differs from the committed records by more than the tolerance."""
    found = records.differences(profile)
    if found.empty:
        return f"There are no committed {profile} records of these runs to compare with."
    far = found[found.difference.abs() > TOLERANCE]
    same = (found.difference.abs() < 0.005).sum()
    said = (
        f"Of {len(found)} runs that are committed too, {same} have the same accuracy, and "
        f"{len(far)} one that differs by more than {TOLERANCE:g} points."
    )
    lines = [
        f"  {row.run}: {row.now:.1f}, committed {row.committed:.1f}" for row in far.itertuples()
    ]
    return "\n".join([said, *lines])
