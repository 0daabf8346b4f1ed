"""Where the run queue's runs are made: the queue decides which runs and when, an engine where.

`LocalEngine` has processes on this machine and is the default; `dpp.paper.ray_engine` has the
machines of a Ray cluster, and is imported only when it is chosen.
"""

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import torch

from dpp import runs
from dpp.paper.photo import Plan
from dpp.runs import ensembles, limits
from dpp.runs.ensembles import EnsembleRun
from dpp.system import worker_pool
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment

NAMES = ("local", "ray")
MOST_JOBS = 8  # by default: each takes about a gigabyte
SAVED = "runs in progress are saved"
IMAGES = (*ensembles.SAME, "train_per_class")  # what decides which images runs share
FEATURES = (*IMAGES, "backbone", "weights", "frozen_trunk", "views")  # ... and which features
Finished = runs.Run | EnsembleRun


class Engine(Protocol):
    """What the run queue needs of an engine."""

    def started(self, plans: Sequence[Plan], root: Path) -> AbstractContextManager[None]:
        """Checks that runs can be made; within it, they can be submitted. A stop saves them."""

    def slots(self) -> int:
        """How many runs can be made at a time; it may change."""

    def cache_features(self, experiment: Experiment) -> str:
        """Computes trunk features, or starts to: runs that are submitted later wait for them.

        Returns:
            What went wrong, if that is known already.
        """

    def submit(self, plan: Plan, root: Path) -> Future[Finished]:
        """Starts to make a run, whose prerequisites are finished; see `make`."""


def choose(name: str = "local", jobs: int = 0, address: str = "") -> Engine:
    """The engine of a name, which is ready to be started.

    Args:
        name: local or ray.
        jobs: runs at a time; 0 for one for each core or GPU.
        address: of a Ray cluster, host:port.
    """
    if name == "ray":
        from dpp.paper.ray_engine import RayEngine

        return RayEngine(jobs, address)
    if name != "local":
        raise UserError(f"there is no engine {name!r}: choose one of {', '.join(NAMES)}")
    if address:
        raise UserError(f"an address ({address}) is for the engine ray: add --engine ray")
    return LocalEngine(jobs)


def make(plan: Plan, root: Path, device: str) -> Finished:
    """Finds or trains one run; an interruption is a `UserError`, which other processes can read."""
    run = ensembles.module_of(plan).run
    try:
        return run(plan, root=root, device=device, progress=False)
    except KeyboardInterrupt as stop:
        raise UserError(str(stop)) from stop


def cache_features(experiment: Experiment) -> str:
    """Computes a trunk's features unless they are cached; returns what went wrong, if anything."""
    try:
        runs.prepare(experiment)
    except UserError as error:  # such as a full disk: runs on other backbones continue
        return str(error)
    return ""


def values_of(experiment: Experiment, names: Sequence[str]) -> tuple:
    """The values of some fields, such as `FEATURES`: runs with the same ones share a cache."""
    return tuple(getattr(experiment, name) for name in names)


# ---- On this machine


class LocalEngine:
    """Processes on this machine.

    On CPUs each run has a process and a thread of its own, so that its numbers do not depend on how
    many there are; on GPUs the processes take turns among the devices.

    Args:
        jobs: processes; 0 for one for each core or GPU.
    """

    def __init__(self, jobs: int = 0):
        self.jobs, self.devices = choose_jobs(jobs)

    @contextmanager
    def started(self, plans: Sequence[Plan], root: Path) -> Iterator[None]:
        numbers = worker_pool.SPAWN.Value("i", 0)
        with worker_pool.pool(self.jobs, _begin, numbers, self.devices, kept=SAVED) as self.pool:
            yield

    def slots(self) -> int:
        return self.jobs

    def cache_features(self, experiment: Experiment) -> str:
        return cache_features(experiment)  # in this process, with all cores

    def submit(self, plan: Plan, root: Path) -> Future[Finished]:
        return self.pool.submit(_make, plan, root)


def choose_jobs(jobs: int) -> tuple[int, list[str]]:
    """How many processes, and the devices among which they take turns."""
    limits.check_jobs(jobs)
    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]
    usual = len(devices) if devices != ["cpu"] else min(worker_pool.count_cores(), MOST_JOBS)
    return jobs or usual, devices


WORKER = {"device": "cpu"}  # of this process


def _begin(numbers, devices: list[str]) -> None:
    """Sets up a worker process: chooses its device, ignores SIGINT except during training."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with numbers.get_lock():
        WORKER["device"] = devices[numbers.value % len(devices)]
        numbers.value += 1
    if WORKER["device"] == "cpu":
        torch.set_num_threads(1)


def _make(plan: Plan, root: Path) -> Finished:
    return make(plan, root, WORKER["device"])
