"""The global analysis against one plain pass of the network over the same images.

    python benchmarks/bench_analysis.py [--quick] [--images 32] [--rounds 3] [--results DIR]

ResNet-50 with 2,000 2x2 prototypes; 10 images kept of each prototype. The images come in several
batches, as in use: in the first one, every image is among the nearest of many prototypes, so that a
few images are the worst case.
"""

import argparse
import statistics
from collections.abc import Callable

import pandas as pd
import torch
from bench_training import CLASSES, SIZE, make_network
from timing import machine, measure, results_folder
from torch import Tensor

from dpp import ops
from dpp.analysis import Network
from dpp.analysis.global_analysis import find_nearest
from dpp.data.batches import Batch
from dpp.data.image_records import Source

KEPT, BATCH, TARGET = 10, 8, 1.3


def contenders(images: Tensor) -> dict[str, Callable[[], object]]:
    source = Source("noise", None, tuple(map(str, range(CLASSES))), (), (), ())
    network = Network(make_network(), "untrained", source, SIZE)
    indices = torch.arange(len(images))
    labels = torch.zeros_like(indices)
    parts = zip(*(whole.split(BATCH) for whole in (images, labels, indices)), strict=True)
    batches = [Batch(*part) for part in parts]
    return {
        "global analysis": lambda: find_nearest(network, batches, KEPT),
        "network pass": torch.no_grad()(lambda: [network.model(batch.images) for batch in batches]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="1 round of 24 images")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--results", type=results_folder, help="write analysis_benchmark.csv there, too"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.images = 1, 3 * BATCH
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    shape = (arguments.images, 3, SIZE, SIZE)
    images = torch.randn(shape).contiguous(memory_format=torch.channels_last)

    seconds = measure(contenders(images), arguments.rounds)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = medians["global analysis"] / medians["network pass"]
    print(f"operator: {ops.backend()}, {arguments.threads} threads, {arguments.images} images")
    for name, value in medians.items():
        print(f"  {name:<16} {value:9.3f} s")
    name = "global analysis / network pass"
    met = ratio <= TARGET
    print(f"  {name:<30} {ratio:8.2f}   target <= {TARGET:<5} {'met' if met else 'NOT MET'}")
    if arguments.results:
        row = {"ratio": name, "value": ratio, "target": f"<= {TARGET}", "met": met}
        shared = machine() | {"threads": arguments.threads, "images": arguments.images}
        table = pd.DataFrame([row | shared]).round(3)
        table.to_csv(arguments.results / "analysis_benchmark.csv", index=False)


if __name__ == "__main__":
    main()
