"""Experiments become runs: found if finished, else trained; stopped runs are resumed.

run = runs.run(make_experiment("mini", kernel_size=2))
model = run.load_model()
"""

from dpp.runs.finished import (
    Run,
    choose_device,
    find,
    find_or_committed,
    load_source,
    load_splits,
    open_run,
    set_aside,
    verify_manifest,
)
from dpp.runs.making import choose, get, load_backbone, make_trainer, prepare, run, surroundings

__all__ = [
    "Run",
    "choose",
    "choose_device",
    "find",
    "find_or_committed",
    "get",
    "load_backbone",
    "load_source",
    "load_splits",
    "make_trainer",
    "open_run",
    "prepare",
    "run",
    "set_aside",
    "surroundings",
    "verify_manifest",
]
