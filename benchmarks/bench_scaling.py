"""How time and memory grow with images, classes, prototypes and channels.

    python benchmarks/bench_scaling.py [--quick] [--results DIR]

A network whose backbone gives back the features that it is given, on random features of 7x7 cells:
what is ours alone. Every point is a process of its own with one thread, so that its peak of memory
is its own; the time is the processor's, of the fastest of up to three rounds, so that other work on
the machine changes it little. With the prototypes, the classes grow too, ten prototypes a class, as
they do with larger data sets; with the classes alone, the number of prototypes stays. The exponent
of an axis is the slope between its two largest sizes, where fixed costs weigh least.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from bench_training import JOINT, training_step
from timing import machine, results_folder
from torch import Tensor, nn
from tqdm import tqdm

from dpp import ops
from dpp.analysis import Network
from dpp.analysis.global_analysis import find_nearest
from dpp.data.batches import Batch
from dpp.data.image_records import Source
from dpp.extensions import many_classes
from dpp.methods.deformable import stage_one
from dpp.networks.model import make_last_layer
from dpp.paper import growth
from dpp.training import last_layer, projection

BATCH, SIDE, KEPT, PER_CLASS = 80, 7, 10, 10
ITERATIONS = 3  # of a fit, beyond what it begins with
AXES = {
    "images": (100, 1_000, 10_000, 100_000),
    "classes": (10, 100, 1_000, 10_000),
    "prototypes": (100, 1_000, 10_000, 100_000),
    "channels": (64, 128, 256, 512, 1024, 2048),
}
BASE = {  # the other sizes along an axis; classes follow the prototypes where they are not given
    "images": {"prototypes": 200, "channels": 64},
    "classes": {"images": 80, "prototypes": 10_000, "channels": 64},
    "prototypes": {"images": 80, "channels": 64},
    "channels": {"images": 80, "prototypes": 200},
}
QUICK = 2  # sizes of an axis
ROUNDS, ENOUGH = 3, 15.0  # of a point, the fastest of which counts; seconds after which none begins
MOST_CONNECTIONS = 10**8  # of a matrix that is fitted here: a fit holds it ten times
MOST_IMAGES = 10_000  # whose scores are fitted here
LINEAR = {"step", "projection", "global analysis", "operator"}
BOUND, GROWING = 1.05, ("images", "prototypes")  # of their exponents, along these axes


class Given(nn.Module):
    """A backbone that is given features and gives them back."""

    def __init__(self, channels: int):
        super().__init__()
        self.channels = channels

    def forward(self, features: Tensor) -> Tensor:
        return features


def make_model(sizes: dict[str, int]) -> many_classes.SparselyConnected:
    per_class = sizes["prototypes"] // sizes["classes"]
    shape = {"per_class": per_class, "kernel_size": 2}
    model = many_classes.SparselyConnected(Given(sizes["channels"]), sizes["classes"], **shape)
    model.offsets.reset_parameters(1e-3)
    return model


def make_batches(sizes: dict[str, int]) -> Iterator[Batch]:
    """So many images, in batches that share their features; the classes in turn."""
    shape = (min(BATCH, sizes["images"]), sizes["channels"], SIDE, SIDE)
    features = torch.rand(shape).contiguous(memory_format=torch.channels_last)
    for first in range(0, sizes["images"], BATCH):
        indices = torch.arange(first, min(first + BATCH, sizes["images"]))
        yield Batch(features[: len(indices)], indices % sizes["classes"], indices)


def training(sizes: dict[str, int]) -> Callable[[], object]:
    """An epoch's steps: forward, the paper's loss, backward, Adam."""
    batch = next(make_batches(sizes))
    step = training_step(make_model(sizes), stage_one(0.1), batch.images, batch.labels, JOINT)
    return lambda: [step() for _ in range(-(-sizes["images"] // BATCH))]


def searching(sizes: dict[str, int]) -> Callable[[], object]:
    model = make_model(sizes).eval()
    return lambda: projection.search(model, make_batches(sizes))


def analysing(sizes: dict[str, int]) -> Callable[[], object]:
    source = Source("noise", None, tuple(map(str, range(sizes["classes"]))), (), (), ())
    network = Network(make_model(sizes), "untrained", source, SIDE)
    return lambda: find_nearest(network, make_batches(sizes), KEPT)


def operating(sizes: dict[str, int]) -> Callable[[], object]:
    """The operator alone, forward."""
    model = make_model(sizes)
    vectors, geometry = model.prototypes.normalised().detach(), model.prototypes.geometry

    def run() -> None:
        for batch in make_batches(sizes):
            z, offsets = model.locate(batch.images)
            ops.max_similarity(z, offsets, vectors, **geometry)

    return torch.no_grad()(run)


def fitting(sizes: dict[str, int], sparse: bool) -> Callable[[], object] | None:
    """Some iterations of stage 3; None where a matrix, or the scores, would be too large."""
    count, classes = sizes["prototypes"], sizes["classes"]
    if sizes["images"] > MOST_IMAGES or not sparse and count * classes > MOST_CONNECTIONS:
        return None
    scores = torch.rand(sizes["images"], count)
    labels = torch.arange(len(scores)) % classes
    of = torch.arange(classes).repeat_interleave(count // classes)
    given = {"tolerance": 0.0, "iterations": ITERATIONS}
    if sparse:
        return lambda: many_classes.fit(scores, labels, classes, of, rounds=1, **given)
    weight = make_last_layer(classes, of).weight.detach()
    return lambda: last_layer.fit_to_convergence(scores, labels, weight, of, **given)


TASKS = {
    "step": training,
    "projection": searching,
    "global analysis": analysing,
    "operator": operating,
    "last layer": partial(fitting, sparse=False),
    "sparse last layer": partial(fitting, sparse=True),
}


def measure_here(task: str, sizes: dict[str, int]) -> dict[str, float] | None:
    """Processor seconds and the growth of the peak of memory, in bytes, of this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    function = TASKS[task](sizes)
    if function is None:
        return None
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    rounds = []
    while len(rounds) < ROUNDS and sum(rounds) < ENOUGH:
        begin = time.process_time()
        function()
        rounds.append(time.process_time() - begin)
    return {"seconds": min(rounds), "bytes": max(memory("VmHWM") - before, 1)}


def memory(name: str) -> int:
    """A size in bytes that the kernel knows of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def sizes_along(axis: str, size: int) -> dict[str, int]:
    sizes = BASE[axis] | {axis: size}
    return {"classes": max(sizes["prototypes"] // PER_CLASS, 1)} | sizes


def measure_all(quick: bool) -> pd.DataFrame:
    points = [
        (task, axis, size)
        for axis, all_sizes in AXES.items()
        for size in (all_sizes[:QUICK] if quick else all_sizes)
        for task in TASKS
        if axis != "channels" or "last layer" not in task  # which sees scores alone
    ]
    rows = []
    for task, axis, size in tqdm(points, unit="point", file=sys.stderr):
        sizes = sizes_along(axis, size)
        words = [sys.executable, __file__, "--point", json.dumps([task, sizes])]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{task} with {axis} {size:,} failed: {done.stderr.strip()[-500:]}")
        found = json.loads(done.stdout)
        if found is not None:
            rows.append({"task": task, "axis": axis, "size": size} | sizes | found)
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"the first {QUICK} sizes of an axis")
    parser.add_argument(
        "--results", type=results_folder, help="write scaling_benchmark.csv there, too"
    )
    parser.add_argument("--point", help=argparse.SUPPRESS)  # one measurement, as JSON
    arguments = parser.parse_args()
    if arguments.point:
        print(json.dumps(measure_here(*json.loads(arguments.point))))
        return
    points = measure_all(arguments.quick)
    print(f"operator: {ops.backend()}, one thread; exponents between the two largest sizes")
    for row in growth.exponents(points).to_dict("records"):
        bounded = row["task"] in LINEAR and row["axis"] in GROWING
        verdict = "met" if row["seconds"] <= BOUND else "NOT MET"
        print(
            f"  {row['task']:<18} {row['axis']:<11} {row['from']:>7,} to {row['to']:>7,}   "
            f"time {row['seconds']:5.2f}   memory {row['bytes']:5.2f}"
            + (f"   time <= {BOUND}: {verdict}" if bounded else "")
        )
    if arguments.results:
        table = points.assign(**machine())
        table.to_csv(arguments.results / growth.FILE, index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
