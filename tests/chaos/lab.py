"""Where attacks happen: a folder of its own, and what their outcomes are compared with.

Processes that an attack left behind come to this one and are counted. Mounts are seen by this
process and what it starts, and vanish with it.
"""

import contextlib
import ctypes
import functools
import os
import random
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import victims
from started import Broken, Started, limit_all
from tiny_data import write_folder
from tqdm import tqdm

from dpp import data, runs
from dpp.data.cache import PixelStore
from dpp.system import files
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment, make_experiment

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: orphans become children of this process
NEW_MOUNTS, NEW_USER = 0x20000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER
PRIVATE = 0x4000 | 0x40000  # MS_REC | MS_PRIVATE
VICTIMS = str(Path(victims.__file__).resolve())
FRESH = 0.1  # of the commands start a new interpreter
TINY = {"weights": "none", "backbone": "slim_vgg16_bn", "kernel_size": 2, "per_class": 2}
TINY |= {"image_size": 32, "epochs": 3, "warm_epochs": 1, "second_warm_epochs": 0}


@dataclass
class Lab:
    """A folder with a data root, a folder of images and a finished run of it."""

    home: Path
    chance: random.Random
    run: runs.Run = field(init=False)
    number: int = 0

    def __post_init__(self):
        limit_all()
        self.can_mount = own_mounts()
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
        os.environ |= {"DPP_DATA": str(self.home / "data"), "OMP_NUM_THREADS": "1"}
        os.environ |= {"DPP_RESULTS": str(self.home / "results")}
        torch.set_num_threads(1)
        tqdm.monitor_interval = 0  # no thread, which a copy of this process would not have
        tqdm.set_lock(threading.RLock())  # the usual one is shared with copies, and they are killed
        self.images = write_folder(self.home / "images", classes=3, images=8)
        self.source = data.load(str(self.images))
        self.run = runs.run(self.experiment, root=self.home / "runs", progress=False)
        self.known, self.weights = facts(self.run), weights_of(self.run.folder.parent)
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

    def start(self, *words: str, **changes: str) -> Started:
        """Starts one of the victims, or `dpp` if the first word is its command."""
        command = [VICTIMS, *words] if hasattr(victims, words[0]) else ["-m", "dpp", *words]
        return Started(command, fresh=self.chance.random() < FRESH, **changes)

    def train(self, root: Path, *more: str, **changes: str) -> Started:
        """Starts to train what `run` is a run of."""
        words = ["train", "--profile", "smoke", "--root", str(root), "--data", str(self.images)]
        for name, value in TINY.items():
            words += ["--" + name.replace("_", "-"), str(value)]
        return self.start(*words, "--project-after", "3", *more, **changes)

    def queue(self, root: Path, jobs: str) -> Started:
        """Starts to make the runs of a queue."""
        return self.start(
            "queue", str(root), jobs, "spawn" if self.chance.random() < FRESH else "fork"
        )

    @functools.cached_property
    def queued(self) -> dict[str, str]:
        for plan in victims.plans():
            runs.run(plan, root=self.home / "queued", progress=False)
        return weights_of(self.home / "queued")

    @functools.cached_property
    def made(self) -> dict:
        """What victims make where nothing disturbs them."""
        folder = str(self.home / "made")
        pixels = victims.pixels(str(self.images), folder, "100")
        return {
            "pixels": pixels.copy(),
            "features": victims.features(folder),
            "drawing": contents(victims.drawing(folder, "1")),
        }

    @contextlib.contextmanager
    def disk(self, size: int) -> Iterator[Path]:
        """A disk of its own, of some bytes."""
        folder = self.room() / "disk"
        folder.mkdir()
        mount("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
        try:
            yield folder
        finally:
            mount("umount", "--lazy", str(folder))


def mount(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def own_mounts() -> bool:
    """Whether this process could get mounts of its own: root can, others on some systems."""
    system, user, group = ctypes.CDLL(None), os.getuid(), os.getgid()
    if system.unshare(NEW_MOUNTS):
        if system.unshare(NEW_MOUNTS | NEW_USER):
            return False
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    return not system.mount(b"none", b"/", None, PRIVATE, None)


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file in a folder, by its path there."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): files.sha256(path) for path in found}


def facts(run: runs.Run) -> tuple:
    """All that is read of a run, for comparing."""
    opened = runs.open_run(run.folder)
    opened.verify()
    weights = {k: v.numpy().tobytes() for k, v in opened.load_model().state_dict().items()}
    manifest = opened.manifest
    metrics = opened.metrics.drop(columns="seconds").to_csv()
    return weights, manifest["results"], metrics, opened.origins, opened.experiment


def weights_of(root: Path) -> dict[str, str]:
    """The hashes of the weights of finished runs, which are compared with them, by name."""
    found = [runs.open_run(path.parent) for path in root.glob("*/manifest.json")]
    for run in found:
        run.verify()
    return {run.folder.name: run.manifest["weights_sha256"] for run in found}


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
    left = [path for path in folder.rglob(".*") if path.suffix in (".tmp", ".unfinished")]
    if left:
        raise Broken(f"left behind: {left[0].name}")


def size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
