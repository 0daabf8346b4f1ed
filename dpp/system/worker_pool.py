"""A pool of worker processes that stops on Ctrl-C and SIGTERM, and ends with its parent."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager

from dpp.system.errors import UserError

SPAWN = multiprocessing.get_context("spawn")
LOOK_EVERY = 0.5  # seconds between two looks at whether the parent is alive
GRACE = 5.0  # seconds in which the worker of a dead parent may save what it is doing


def count_cores() -> int:
    """The number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def end_with_parent(parent: int, grace: float = 0.0) -> None:
    """Ends this process when its parent has ended, however that was.

    A worker waits for its next task on a pipe whose both ends it holds: it would wait for ever, and
    keep the locks that it has.

    Args:
        parent: its process id; it may have ended already.
        grace: seconds between a SIGINT, at which work is saved, and the end.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_EVERY)
        if grace:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _begin(parent: int, begin: Callable, *given) -> None:
    begin(*given)
    end_with_parent(parent, GRACE)


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes a Ctrl-C and a SIGTERM a `KeyboardInterrupt` until the block ends."""
    watched = (signal.SIGINT, signal.SIGTERM)  # a shell may have started us ignoring SIGINT
    before = {number: signal.signal(number, signal.default_int_handler) for number in watched}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def describe_stop(kept: str) -> str:
    """The message of work that was stopped; `kept` is what is saved."""
    return f"stopped; {kept}: run the same command to resume"


@contextmanager
def pool(jobs: int, begin: Callable, *given, kept: str) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes, which are sent a SIGINT when this one gets a Ctrl-C or a SIGTERM.

    If this process is killed, they save what they are doing and end.

    Args:
        jobs: the number of processes.
        begin: called first in each process, with `given`. It sets what a SIGINT does there: one may
            come from the terminal and another from here.
        kept: what is saved when the work is stopped, for the message.

    Raises:
        UserError: a process died.
    """
    given = (os.getpid(), begin, *given)
    with interruptible():
        executor = ProcessPoolExecutor(jobs, SPAWN, initializer=_begin, initargs=given)
        try:
            yield executor
        except KeyboardInterrupt as stop:
            for process in multiprocessing.active_children():
                os.kill(process.pid, signal.SIGINT)
            raise KeyboardInterrupt(describe_stop(kept)) from stop
        except BrokenExecutor as error:
            raise UserError(
                "a worker process died, perhaps because memory ran out; what was finished is kept: "
                "run the command again with fewer jobs"
            ) from error
        finally:
            executor.shutdown(cancel_futures=True)
