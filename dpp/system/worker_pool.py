"""Processes that work side by side, and stop when this one is told to."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager

from dpp.system.errors import UserError

SPAWN = multiprocessing.get_context("spawn")


def count_cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def pool(jobs: int, begin: Callable, *given, kept: str) -> Iterator[ProcessPoolExecutor]:
    """Processes; on Ctrl-C or SIGTERM what is under way in them gets a SIGINT, too.

    That one of them died is a `UserError`.

    Args:
        jobs: how many.
        begin: called in each process with `given`. It says what a SIGINT means there: one may come
            from the terminal and another from here.
        kept: what is not lost, for the message.
    """
    watched = (signal.SIGINT, signal.SIGTERM)  # the first is ignored where a shell made it so
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
            "a process died, perhaps for want of memory; what was finished is kept: "
            "run the command again with fewer jobs"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)
        for number, handler in before.items():
            signal.signal(number, handler)
