"""A pool of worker processes that stops on Ctrl-C and SIGTERM."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager

from dpp.system.errors import UserError

SPAWN = multiprocessing.get_context("spawn")


def count_cores() -> int:
    """The number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def pool(jobs: int, begin: Callable, *given, kept: str) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes, which are sent a SIGINT when this one gets a Ctrl-C or a SIGTERM.

    Args:
        jobs: the number of processes.
        begin: called first in each process, with `given`. It sets what a SIGINT does there: one may
            come from the terminal and another from here.
        kept: what is saved when the work is stopped, for the message.

    Raises:
        UserError: a process died.
    """
    watched = (signal.SIGINT, signal.SIGTERM)  # a shell may have started us ignoring SIGINT
    before = {number: signal.signal(number, signal.default_int_handler) for number in watched}
    executor = ProcessPoolExecutor(jobs, SPAWN, initializer=begin, initargs=given)
    try:
        yield executor
    except KeyboardInterrupt as stop:
        for process in multiprocessing.active_children():
            os.kill(process.pid, signal.SIGINT)
        raise KeyboardInterrupt(f"stopped; {kept}: run the same command to resume") from stop
    except BrokenExecutor as error:
        raise UserError(
            "a worker process died, perhaps because memory ran out; what was finished is kept: run "
            "the command again with fewer jobs"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)
        for number, handler in before.items():
            signal.signal(number, handler)
