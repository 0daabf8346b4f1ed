"""What the benchmarks share: contenders in turn, so that a slow spell of the machine slows all."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from dpp import ops


def measure(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contender in each round, after one round to warm up."""
    seconds = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, function in contenders.items():
            begin = time.perf_counter()
            function()
            if turn > 0:
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def results_folder(text: str) -> Path:
    """The folder of `--results`, made before anything is measured for it."""
    folder = Path(text)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def machine() -> dict[str, str]:
    """What a time depends on, for every row of a results file."""
    return {"processor": processor(), "torch": torch.__version__, "operator": ops.backend()}


def processor() -> str:
    """The processor's name, from the kernel."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
