"""Parts that search against predicted offsets: the operator alone, forward and backward.

    python benchmarks/bench_search.py [--quick] [--images 16] [--rounds 3] [--threads 1]
        [--results results/mini]

2,000 2x2 prototypes, 512 channels, 14x14 maps: ResNet-34 on CUB-200-2011. Predicted offsets do not
include the branch that predicts them, nor does the search include anything besides the operator.
"""

import argparse
import statistics
from collections.abc import Callable

import pandas as pd
import torch
from timing import machine, measure, results_folder

from dpp import ops
from dpp.extensions.part_search import max_searched_similarity
from dpp.networks.prototypes import fix_length

PROTOTYPES, CHANNELS, CELLS, KERNEL, DILATION = 2000, 512, 14, 2, 2
REACHES = (1, 2)


def contenders(images: int, prototypes: int) -> dict[str, Callable[[], object]]:
    """A training step of the operator, by name."""
    torch.manual_seed(0)
    z = fix_length(torch.randn(images, CHANNELS - 1, CELLS, CELLS).relu(), 1 / KERNEL)
    vectors = fix_length(torch.rand(prototypes, CHANNELS - 1, KERNEL, KERNEL), 1 / KERNEL)
    offsets = torch.randn(images, 2 * KERNEL**2, CELLS, CELLS)
    costs = torch.full((prototypes, KERNEL**2), 0.02)
    for tensor in (z, vectors, offsets, costs):
        tensor.requires_grad_()

    def step(function: Callable, *tensors) -> None:
        function(*tensors, dilation=DILATION)[0].sum().backward()

    found = {
        "predicted": lambda: step(ops.max_similarity, z, offsets, vectors),
        "rigid": lambda: step(ops.max_similarity, z, None, vectors),
    }
    for reach in REACHES:
        found[f"search, reach {reach}"] = lambda reach=reach: step(
            max_searched_similarity, z, vectors, costs, reach
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--prototypes", type=int, default=PROTOTYPES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="1 round, 4 images, 500 prototypes")
    parser.add_argument(
        "--results", type=results_folder, help="write search_benchmark.csv there, too"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.images, arguments.prototypes = 1, 4, 500
    torch.set_num_threads(arguments.threads)
    seconds = measure(contenders(arguments.images, arguments.prototypes), arguments.rounds)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    table = pd.DataFrame({"seconds": medians})
    table["of predicted"] = table.seconds / medians["predicted"]
    print(table.round(3).to_string(), *machine().values(), sep="\n")
    if arguments.results:
        sizes = {"images": arguments.images, "prototypes": arguments.prototypes}
        rows = table.round(4).rename_axis("run").reset_index().assign(**sizes)
        rows.to_csv(arguments.results / "search_benchmark.csv", index=False)


if __name__ == "__main__":
    main()
