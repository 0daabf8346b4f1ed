"""Where attacks happen: a folder of its own, what it is compared with, and processes that end.

Whatever is started inherits limits on memory, file size and processor time, belongs to a session of
its own, and is killed at its end; processes that it left behind come to this one and are counted.
"""

import ctypes
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from tiny_data import write_folder

from dpp import data, runs
from dpp.data.cache import PixelStore
from dpp.system import worker_pool
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment, make_experiment

MEMORY = 16 * 10**9  # of address space, for each process
FILE = 2 * 10**9  # bytes
PROCESSOR = 900  # seconds, for each process
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: orphans become children of this process
TINY = {"weights": "none", "backbone": "slim_resnet50", "kernel_size": 2, "per_class": 2}
TINY |= {"image_size": 32, "epochs": 3, "warm_epochs": 1, "second_warm_epochs": 0}


class Broken(Exception):
    """An attack found a defect."""


@dataclass
class Lab:
    """A folder with a data root, a folder of images and a finished run of it."""

    home: Path
    chance: random.Random
    run: runs.Run = field(init=False)
    number: int = 0

    def __post_init__(self):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
        os.environ |= {"DPP_DATA": str(self.home / "data"), "OMP_NUM_THREADS": "1"}
        os.environ |= {"DPP_RESULTS": str(self.home / "results")}
        torch.set_num_threads(1)
        self.images = write_folder(self.home / "images", classes=3, images=8)
        self.source = data.load(str(self.images))
        self.run = runs.run(self.experiment, root=self.home / "runs", progress=False)
        self.known = facts(self.run)
        self.pixels = self.store(self.home / "cache").get(self.source.records)[0].copy()

    @property
    def experiment(self) -> Experiment:
        return make_experiment("smoke", data=str(self.images), project_after=(3,), **TINY)

    def store(self, folder: Path) -> PixelStore:
        return PixelStore(self.source.records, 16, folder=folder)

    def room(self) -> Path:
        """An empty folder for one attack."""
        self.number += 1
        folder = self.home / "rooms" / str(self.number)
        folder.mkdir(parents=True)
        return folder

    def copy_run(self, folder: Path) -> runs.Run:
        return runs.Run(
            self.run.experiment, shutil.copytree(self.run.folder, folder / self.run.folder.name)
        )

    def train(self, root: Path, *more: str) -> list[str]:
        """The command that trains what `run` is a run of."""
        words = ["train", "--profile", "smoke", "--root", str(root), "--data", str(self.images)]
        for name, value in TINY.items():
            words += ["--" + name.replace("_", "-"), str(value)]
        return [sys.executable, "-m", "dpp", *words, "--project-after", "3", *more]


def facts(run: runs.Run) -> tuple:
    """All that is read of a run, for comparing."""
    opened = runs.open_run(run.folder)
    opened.verify()
    weights = {k: v.numpy().tobytes() for k, v in opened.load_model().state_dict().items()}
    manifest = opened.manifest
    metrics = opened.metrics.drop(columns="seconds").to_csv()
    return weights, manifest["results"], metrics, opened.origins, opened.experiment


def weights_of(folder: Path) -> str:
    [path] = folder.glob("*/weights.safetensors")
    return runs.open_run(path.parent).manifest["weights_sha256"]


def expect_same(value, known, what: str) -> None:
    same = np.array_equal(value, known) if isinstance(known, np.ndarray) else value == known
    if not same:
        raise Broken(f"silently wrong: {what}")


def refused(error: UserError) -> str:
    """The outcome of an attack that was refused, in one line that can be printed."""
    text = str(error)
    text.encode()
    if len(text.splitlines()) != 1 or len(text) > 2000:
        raise Broken(f"not one line: {text!r}")
    return "refused"


def expect_clean(folder: Path) -> None:
    """No unfinished files or folders are left."""
    left = [p for p in folder.rglob(".*") if p.suffix in (".tmp", ".unfinished")]
    if left:
        raise Broken(f"left behind: {left[0].name}")


class Started:
    """A command in a session of its own."""

    def __init__(self, command: list[str], **options):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.process = subprocess.Popen(
            command, **pipes, start_new_session=True, preexec_fn=limit_processor, **options
        )

    def wait_until(self, ready, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while not ready() and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)

    def end(self, number: int | None = None, *, group: bool = False, seconds: float = 240) -> str:
        """Sends a signal, waits for the end, and looks for what it left; returns what it said."""
        if number and self.process.poll() is None:
            (os.killpg if group else os.kill)(self.process.pid, number)
        try:
            said = self.process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired as error:
            self.kill_session()
            raise Broken(f"did not end within {seconds:.0f} s") from error
        deadline = time.monotonic() + 2 * worker_pool.GRACE + 10
        while (alive := self.session()) and time.monotonic() < deadline:
            reap()
            time.sleep(0.2)
        self.kill_session()
        if alive:
            raise Broken(f"{len(alive)} processes left behind")
        if "Traceback" in said:
            raise Broken(f"traceback: {said.strip().splitlines()[-1]}")
        return said

    def session(self) -> list[int]:
        """The processes of the session that are alive."""
        alive = []
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = entry.read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) == self.process.pid and state != "Z":
                alive.append(int(entry.parent.name))
        return alive

    def kill_session(self) -> None:
        for number in self.session():
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                pass
        reap()


def limit_processor() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR, PROCESSOR))


def reap() -> None:
    """Takes note of the ends of adopted processes."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
