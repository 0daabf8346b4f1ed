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
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 300.0  # seconds, on a busy machine
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
        if not self.processes:
            place = ("--head", "--port", port, "--include-dashboard=false")
            place += ("--temp-dir", str(self.folder / "session"))
        command = [*prefix, sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        command += [*place, "--num-cpus", str(cpus), *SMALL]
        log = self.folder / f"node-{len(self.processes)}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                command,
                env=os.environ | {"RAY_worker_niceness": "0"} | variables,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        deadline = time.monotonic() + PATIENCE
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        return process

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

    def end(self) -> None:
        for process in reversed(self.processes):
            for number in self.members(process, ""):
                try:
                    os.kill(number, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def nodes() -> Iterator[Nodes]:
    started = Nodes()
    try:
        yield started
    finally:
        started.end()
