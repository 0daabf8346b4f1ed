"""Stops a script in the middle of its work, as a person or a scheduler does."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def stop(folder: Path, script: str, number: int, ready: Callable[[], bool]) -> str:
    """Runs a script with a folder for its argument, sends a signal when it is ready.

    Returns:
        What it printed, errors too.
    """
    path = folder / "stopped.py"
    path.write_text(script)
    command = [sys.executable, str(path), str(folder)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, **pipes, text=True)
    deadline = time.monotonic() + 120
    while not ready() and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(process.pid, number)
    return process.communicate(timeout=120)[0]
