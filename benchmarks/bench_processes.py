"""A training step by two processes with one thread each, against one process with two threads.

    python benchmarks/bench_processes.py [--quick] [--images 80] [--rounds 3] [--results DIR]

The joint phase (forward, backward, Adam) of ResNet-34 with 2,000 2x2 prototypes at 224 px, on the
paper's batch of 80, as a run of the paper profile has it. What is done once a step, whatever the
batch (Adam, the gradients' sum, an exchange for each batch norm), weighs five times as much in a
batch of 16. Both take turns in the same two processes, on the same batch; one waits where the other
works alone. It needs two cores with nothing else to do.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable

import pandas as pd
import torch
from bench_training import CLASSES, JOINT, PER_CLASS, SIZE, training_step
from timing import machine, measure, results_folder

from dpp.backbones.backbone import make_backbone
from dpp.backbones.shared_batch_norm import share_batch_norm
from dpp.data.batches import part_of
from dpp.methods.deformable import stage_one
from dpp.networks.model import DeformableProtoPNet
from dpp.runs import several_processes
from dpp.system import processes

PROCESSES = 2
LEAST = 0.9  # of the images a second of one process with as many threads


def make_network() -> DeformableProtoPNet:
    torch.manual_seed(0)
    shape = {"per_class": PER_CLASS, "kernel_size": 2}
    model = DeformableProtoPNet(make_backbone("resnet34"), CLASSES, **shape)
    model.offsets.reset_parameters(1e-3)
    return model


def contenders(count: int) -> dict[str, Callable[[], None]]:
    """A step on `count` images: by the first process alone, and by both."""
    images = torch.randn(count, 3, SIZE, SIZE).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, (count,))
    objective = stage_one(0.1)
    parts = [part_of(range(count), number, PROCESSES) for number in range(PROCESSES)]
    own = slice(parts[processes.rank()].start, parts[processes.rank()].stop)
    model = make_network()
    share_batch_norm(model)
    shared = several_processes.share_objective(objective, [len(part) for part in parts])
    together = training_step(model, shared, images[own], labels[own], JOINT)
    alone = training_step(make_network(), objective, images, labels, JOINT)

    def first_alone() -> None:
        torch.set_num_threads(PROCESSES)
        if processes.is_first():
            alone()
        processes.gather(None)  # the other waits

    def both() -> None:
        torch.set_num_threads(1)
        together()
        processes.gather(None)

    return {"1 process, 2 threads": first_alone, "2 processes, 1 thread": both}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=80, help="in a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="1 round of batches of 4")
    parser.add_argument(
        "--results", type=results_folder, help="write processes_benchmark.csv there, too"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.images = 1, 4
    if not processes.launched():
        launch = ["torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
        sys.exit(subprocess.run([sys.executable, "-m", *launch, *sys.argv]).returncode)
    with several_processes.joined("cpu"):
        torch.manual_seed(0)
        seconds = measure(contenders(arguments.images), arguments.rounds)
    if os.environ["RANK"] != "0":
        return
    pace = {name: arguments.images / statistics.median(took) for name, took in seconds.items()}
    for name, value in pace.items():
        print(f"  {name:<22} {value:7.2f} images/s")
    one, two = pace.values()
    met = "met" if two / one >= LEAST else "NOT MET"
    print(f"  processes / threads    {two / one:7.2f}   target >= {LEAST:g}   {met}")
    if arguments.results:
        rows = [{"contender": name, "images_per_second": value} for name, value in pace.items()]
        shared = machine() | {"images": arguments.images}
        table = pd.DataFrame([row | shared for row in rows]).round(3)
        table.to_csv(arguments.results / "processes_benchmark.csv", index=False)


if __name__ == "__main__":
    main()
