"""Refuses what cannot fit, by an estimate that is said, before anything is built.

Estimates are lower bounds: what they refuse cannot work, what they let pass may still be slow.
"""

import os
from pathlib import Path

from dpp.system.errors import UserError
from dpp.training.experiments import Experiment

JOB_BYTES = 400e6  # that a process which trains has to itself
WORKER_BYTES = 60e6  # that a process which prepares batches has to itself
LOADERS = 4  # each with its own processes: training, projection, validation, test
MOST_EPOCHS = 100_000
SMALL_REACH = 3  # cells from its centre that a prototype may have parts at on any map
FLOAT = 4  # bytes
RUN_BYTES = 1e9  # that a run takes besides its batches, about
PIXEL_BYTES = 5e3  # that training takes for each pixel of a batch, at most, on DenseNet-161
VIEW_BYTES = 500  # ... where the trunk's features are cached
COPIES = 4  # of what is trained: itself, its gradient, and two moments of Adam


def check_workers(workers: int) -> None:
    """Raises a `UserError` for a number of processes that is negative or does not fit."""
    if workers < 0:
        raise UserError(f"workers={workers}: expected 0 (no other process) or more")
    needed, free = LOADERS * workers * WORKER_BYTES, available_memory()
    if needed > free:
        raise UserError(
            f"workers={workers}: {LOADERS * workers:,} processes need about {needed / 1e9:.0f} GB "
            f"and {free / 1e9:.1f} GB are free: choose at most "
            f"{int(free / LOADERS / WORKER_BYTES)}, better as many as there are cores"
        )


def check_jobs(jobs: int) -> None:
    """Raises a `UserError` for a number of runs at a time that is negative or does not fit."""
    if jobs < 0:
        raise UserError(f"jobs: expected a number from 0, got {jobs}")
    needed, free = jobs * JOB_BYTES, available_memory()
    if needed > free:
        raise UserError(
            f"jobs={jobs}: so many runs at a time need about {needed / 1e9:.0f} GB and "
            f"{free / 1e9:.1f} GB are free: choose at most {int(free / JOB_BYTES)}"
        )


def check_epochs(experiment: Experiment) -> None:
    """Raises a `UserError` for more epochs than anybody can wait for."""
    if experiment.epochs > MOST_EPOCHS:
        raise UserError(
            f"epochs={experiment.epochs:,}: at a second for each that is "
            f"{experiment.epochs / 86400:,.0f} days: choose at most {MOST_EPOCHS:,}"
        )


def check_memory(experiment: Experiment, channels: int, classes: int) -> None:
    """Raises a `UserError` if prototypes and a batch do not fit into the memory.

    Args:
        channels: of the backbone's map.
        classes: of the data.
    """
    parts = experiment.kernel_size**2
    prototypes = experiment.per_class * classes * parts * channels * FLOAT * COPIES
    images = experiment.batch_size * 3 * experiment.image_size**2 * FLOAT
    needs = {
        f"{experiment.per_class * classes:,} prototypes of {parts:,} parts with {channels:,} "
        "channels": (prototypes, "kernel_size or per_class"),
        f"a batch of {experiment.batch_size:,} images of {experiment.image_size:,} px": (
            images,
            "batch_size or image_size",
        ),
    }
    free = available_memory()
    for what, (needed, fields) in needs.items():
        if needed > free:
            raise UserError(
                f"{what} needs at least {needed / 1e9:,.0f} GB and {free / 1e9:.1f} GB are free: "
                f"lower {fields}"
            )


def check_reach(experiment: Experiment, cells: int) -> None:
    """Raises a `UserError` if a prototype's outer parts rest outside the map wherever it is.

    Args:
        cells: of a side of the backbone's map; on the smallest maps a few more are allowed.
    """
    dilation = 1 if experiment.kernel_size % 2 else 2
    reach = (experiment.kernel_size - 1) * dilation // 2
    most = max(cells - 1, SMALL_REACH)
    if reach > most:
        raise UserError(
            f"kernel_size={experiment.kernel_size}: its outer parts rest {reach} cells from the "
            f"centre, off the image, as the map has {cells} x {cells}: choose an odd number up to "
            f"{2 * most + 1} or an even one up to {(most + 1) // 2 * 2}"
        )


def expected_memory(experiment: Experiment, gpu: bool) -> int:
    """Bytes of the machine's memory that a run takes, about, for those who place runs by it.

    Args:
        experiment: of the run.
        gpu: whether it is trained on one, whose own memory holds the batches.
    """
    pixels = experiment.batch_size * experiment.image_size**2
    each = 3 * FLOAT if gpu else VIEW_BYTES if experiment.views else PIXEL_BYTES
    return int(RUN_BYTES + pixels * each)


def available_memory() -> float:
    """Bytes that can be allocated now: of the machine, or of the group that limits this process."""
    free = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
    except (OSError, ValueError, IndexError):  # not Linux
        pass
    try:
        free.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no group, or one without a limit
        pass
    return float(min(free))
