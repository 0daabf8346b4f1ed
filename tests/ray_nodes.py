"""Machines of a Ray cluster, as processes of this one on loopback; each can be killed."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE = 300.0  # seconds, on a busy machine
ATTEMPTS = 3  # to start a machine: Ray gives up after 30 s, whatever else the processor does
SMALL = ("--object-store-memory", "80000000", "--disable-usage-stats")
SMALL += ("--include-log-monitor", "false")


class Nodes:
    """Starts machines, the first of which is the head; all end with `end`."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets' paths are short
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.processes: list[subprocess.Popen] = []

    def add(self, cpus: int = 1, prefix: Sequence[str] = (), **variables: str) -> subprocess.Popen:
        """Starts a machine and waits until it has joined.

        Args:
            cpus: runs that it can make at a time.
            prefix: of its command.
            variables: of its environment.
        """
        port = self.address.rpartition(":")[2]
        place = ("--address", self.address)
        if not any(process.poll() is None for process in self.processes):
            place = ("--head", "--port", port, "--include-dashboard=false", "--no-monitor")
            place += ("--temp-dir", str(self.folder / "session"))
        command = [*prefix, sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        command += [*place, "--num-cpus", str(cpus), *SMALL]
        for _ in range(ATTEMPTS):
            process, log = self.start(command, variables)
            deadline = time.monotonic() + PATIENCE
            while process.poll() is None and time.monotonic() < deadline:
                if "Ray runtime started" in log.read_text():
                    return process
                time.sleep(0.2)
            self.kill(process)
        raise AssertionError(log.read_text())

    def start(self, command: Sequence[str], variables: dict) -> tuple[subprocess.Popen, Path]:
        log = self.folder / f"node-{len(self.processes)}.log"
        own = {"RAY_worker_niceness": "0", "RAY_agent_register_timeout_ms": "100000"}
        with log.open("w") as output:
            process = subprocess.Popen(
                command,
                env=os.environ | own | variables,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process, log

    def members(self, process: subprocess.Popen, title: str) -> list[int]:
        """The processes of a machine whose title has some text, by their numbers."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_text().replace("\0", " ")
                if os.getsid(int(folder.name)) == process.pid and title in words:
                    found.append(int(folder.name))
            except OSError:  # it has ended
                continue
        return found

    def kill(self, process: subprocess.Popen) -> None:
        """Ends all processes of a machine."""
        for number in self.members(process, ""):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait()

    def end(self) -> None:
        for process in reversed(self.processes):
            self.kill(process)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def nodes() -> Iterator[Nodes]:
    started = Nodes()
    try:
        yield started
    finally:
        started.end()
