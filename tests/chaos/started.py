"""Processes that end: a session of their own, limits, and a count of what they leave behind.

Importing torch takes seconds, which a copy of this process saves; some attacks start a new
interpreter nevertheless, as people do.
"""

import os
import resource
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from dpp.system import worker_pool

MEMORY = 16 * 10**9  # bytes of address space, for each process
RESIDENT = 6 * 10**9  # bytes, of all processes of a session
PROCESSES = 24  # of a session
FILE = 2 * 10**9  # bytes
PROCESSOR = 900  # seconds, for each process
PATIENCE = 600.0  # seconds, on a busy machine
PAGE = os.sysconf("SC_PAGE_SIZE")
ENDED: dict[int, int] = {}  # statuses of children that have ended, by their numbers


class Broken(Exception):
    """An attack found a defect."""


def limit_all() -> None:
    """Limits this process and all that it starts."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Started:
    """A command in a session of its own.

    Args:
        command: what follows `python`: `-m dpp ...`, or a script and its arguments.
        fresh: in a new interpreter, instead of a copy of this process.
        changes: of the environment.
    """

    def __init__(self, command: list[str], fresh: bool = False, **changes: str):
        self.output = tempfile.TemporaryFile("w+", errors="replace")
        self.code: int | None = None
        self.looked = time.monotonic()
        sys.stdout.flush()
        self.number = os.fork()
        if self.number == 0:
            become(command, fresh, self.output.fileno(), changes)

    def ended(self) -> bool:
        if self.code is None:
            reap()
            status = ENDED.pop(self.number, None)
            self.code = None if status is None else os.waitstatus_to_exitcode(status)
        return self.code is not None

    def wait_until(self, ready: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Waits until something holds, the command has ended, or it is too late."""
        deadline = time.monotonic() + seconds
        while not self.ended() and not ready() and time.monotonic() < deadline:
            time.sleep(0.02)
            if time.monotonic() - self.looked > 1:
                self.looked = time.monotonic()
                self.check_size()

    def pause(self, seconds: float) -> None:
        self.wait_until(lambda: False, seconds)

    def end(self, number: int | None = None, *, group: bool = False) -> str:
        """Sends a signal, waits for the end, and looks for what it left; returns what it said."""
        if number and not self.ended():
            (os.killpg if group else os.kill)(self.number, number)
        self.wait_until(lambda: False)
        if not self.ended():
            self.kill_session()
            raise Broken(f"did not end within {PATIENCE:.0f} s")
        deadline = time.monotonic() + 4 * worker_pool.GRACE + 10
        while (alive := self.session()) and time.monotonic() < deadline:
            reap()
            time.sleep(0.1)
        self.kill_session()
        if alive:
            raise Broken(f"{len(alive)} processes left behind")
        self.output.seek(0)
        said = self.output.read()
        self.output.close()
        if "Traceback" in said:
            raise Broken(f"traceback: {said.strip().splitlines()[-1]}")
        return said

    def finish(self) -> str:
        """Waits for the end of a command that must succeed; returns what it said."""
        said = self.end()
        if self.code:
            raise Broken(f"the next command failed ({self.code}): {said[-300:]!r}")
        return said

    def session(self) -> dict[int, int]:
        """The processes of the session that are alive, and their resident bytes."""
        alive = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.number and fields[0] != "Z":
                alive[int(entry)] = int(fields[21]) * PAGE
        return alive

    def check_size(self) -> None:
        alive = self.session()
        if len(alive) > PROCESSES or sum(alive.values()) > RESIDENT:
            self.kill_session()
            raise Broken(f"{len(alive)} processes with {sum(alive.values()) / 1e9:.1f} GB")

    def kill_session(self) -> None:
        for number in self.session():
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.ended()
        reap()


def become(command: list[str], fresh: bool, output: int, changes: dict[str, str]) -> None:
    """Turns a copy of this process into the command; never returns."""
    code = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR, PROCESSOR))
        os.environ.update(changes)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, handle in enumerate((nothing, output, output)):
            os.dup2(handle, number)
        if fresh:
            os.execv(sys.executable, [sys.executable, *command])
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
        module = command[0] == "-m"
        sys.argv = command[module:]
        if module:
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(command[0], run_name="__main__")
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def reap() -> None:
    """Notes the ends of all children, adopted ones too, so that none is waited for twice."""
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            ENDED[ended[0]] = ended[1]
    except ChildProcessError:
        pass
