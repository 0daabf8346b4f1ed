"""The operator against its yardsticks: time, as ratios within one run, and memory.

    python benchmarks/bench_operator.py [--quick] [--cases i,iv] [--threads 1,2] [--results DIR]

Every round runs all contenders one after another, so that a slow spell of the machine slows all of
them; medians over rounds are compared. The contenders:

- gemm, 3 gemms: the matrix products of an im2col implementation, forward (columns x prototypes) and
  forward plus backward, outputs preallocated; no sampling at all;
- plain: `dpp.reference`, the same operator in PyTorch's own operations;
- deform_conv2d: torchvision's, which interpolates bilinearly, followed by the maximum;
- unscreened: ours with DPP_SCREENING=never, as on a processor that does not multiply bfloat16.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import torch
from timing import machine, measure, results_folder
from torch import Tensor
from torchvision.ops import deform_conv2d

from dpp import ops, reference

SIZE = 14  # of the map
MEGABYTE = 2**20


@dataclass(frozen=True)
class Case:
    """A shape of the paper: channels C (with the ε channel), K, prototypes P, images N."""

    channels: int
    kernel_size: int
    prototypes: int
    images: int

    @property
    def dilation(self) -> int:
        return 2 if self.kernel_size % 2 == 0 else 1

    def __str__(self) -> str:
        return f"C={self.channels} K={self.kernel_size} P={self.prototypes} N={self.images}"


CASES = {
    "i": Case(2049, 3, 1200, 8),
    "ii": Case(2049, 2, 2000, 8),
    "iii": Case(513, 2, 2000, 16),
    "iv": Case(129, 3, 60, 16),
}
# (ratio, is it an upper bound, bound at 2 threads); "iv" has its own
TARGETS = [
    ("forward / gemm", True, 1.15),
    ("forward+backward / 3 gemms", True, 0.50),
    ("deform_conv2d / forward+backward", False, 8.0),
    ("plain / forward+backward", False, 2.5),
]
TARGETS_IV = [("deform_conv2d / forward+backward", False, 40.0)]
MEMORY_TARGETS = {8: 70, 80: 400}  # images of case i -> MB


def make_inputs(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Features as ReLU leaves them, half of them zero, and prototypes like them; length r."""
    generator = torch.Generator().manual_seed(0)

    def vectors(count: int, size: int) -> Tensor:
        shape = (count, case.channels, size, size)
        values = torch.randn(shape, generator=generator).relu_()
        values /= values.norm(dim=1, keepdim=True) * case.kernel_size
        return values.contiguous(memory_format=torch.channels_last)

    z = vectors(case.images, SIZE)
    shape = (case.images, 2 * case.kernel_size**2, SIZE, SIZE)
    offsets = torch.randn(shape, generator=generator)
    prototypes = vectors(case.prototypes, case.kernel_size)
    return tuple(t.requires_grad_() for t in (z, offsets, prototypes))


def contenders(case: Case) -> dict[str, Callable[[], object]]:
    inputs = make_inputs(case)
    dilation, padding = case.dilation, (case.kernel_size - 1) * case.dilation // 2
    rows, depth = case.images * SIZE**2, case.channels * case.kernel_size**2
    columns, weights = torch.rand(rows, depth), torch.rand(case.prototypes, depth)
    similarity = torch.empty(rows, case.prototypes)
    columns_grad, weights_grad = torch.empty(rows, depth), torch.empty(case.prototypes, depth)
    grad = torch.randn(case.images, case.prototypes)

    def gemm():
        torch.mm(columns, weights.t(), out=similarity)

    def three_gemms():
        gemm()
        torch.mm(similarity.t(), columns, out=weights_grad)
        torch.mm(similarity, weights, out=columns_grad)

    # torchvision's operator would first copy what is channels-last
    theirs = tuple(t.detach().contiguous().requires_grad_() for t in inputs)

    def forward(function):
        def run():
            with torch.no_grad():
                return function()

        return run

    def both(function, arguments=inputs):
        return lambda: torch.autograd.grad(function(), arguments, grad)

    def ours():
        return ops.max_similarity(*inputs, dilation=dilation)[0]

    def unscreened():
        before = os.environ.get("DPP_SCREENING", "")
        os.environ["DPP_SCREENING"] = "never"
        try:
            return ours()
        finally:
            os.environ["DPP_SCREENING"] = before

    def plain():
        return reference.max_similarity(*inputs, dilation=dilation)[0]

    def torchvision():
        z, offsets, prototypes = theirs
        similarity = deform_conv2d(z, offsets, prototypes, padding=padding, dilation=dilation)
        return similarity.flatten(2).max(dim=2).values

    return {
        "gemm": gemm,
        "forward": forward(ours),
        "3 gemms": three_gemms,
        "forward+backward": both(ours),
        "unscreened, forward": forward(unscreened),
        "unscreened": both(unscreened),
        "plain, forward": forward(plain),
        "plain": both(plain),
        "deform_conv2d, forward": forward(torchvision),
        "deform_conv2d": both(torchvision, theirs),
    }


def ratios(medians: dict[str, float], name: str, threads: int) -> list[dict]:
    """Every ratio of `TARGETS`, with its target if this case has one: they are for 2 threads."""
    own = TARGETS_IV if name == "iv" else TARGETS
    bounds = {ratio: (upper, bound) for ratio, upper, bound in own if threads == 2}
    rows = []
    for ratio, _, _ in TARGETS:
        above, below = ratio.split(" / ")
        value = medians[above] / medians[below]
        row = {"ratio": ratio, "value": value, "target": None, "met": None}
        if ratio in bounds:
            upper, bound = bounds[ratio]
            row["target"] = f"{'<=' if upper else '>='} {bound:g}"
            row["met"] = value <= bound if upper else value >= bound
        rows.append(row)
    return rows


# Memory is measured in processes of their own, so that nothing is warm.


def status_field(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def size_of(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def extra_memory(images: int) -> float:
    """MB that forward or backward takes at its peak beyond inputs, outputs and gradients."""
    ops.max_similarity(*make_inputs(Case(64, 3, 8, 2)))[0].sum().backward()  # load the libraries
    case = Case(2049, 3, 1200, images)
    inputs = make_inputs(case)
    grad = torch.randn(images, case.prototypes)
    before = status_field("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    scores, argmax = ops.max_similarity(*inputs)
    forward = status_field("VmHWM") - before - size_of(scores, argmax)
    grads = torch.autograd.grad(scores, inputs, grad)
    both = status_field("VmHWM") - before - size_of(scores, argmax, *grads)
    return max(forward, both) / MEGABYTE


def measure_memory(images: int) -> float:
    command = [sys.executable, __file__, "--memory-of", str(images)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_case(name: str, threads: int, seconds: dict, rows: list[dict]) -> None:
    print(f"\n({name}) {CASES[name]}, {threads} thread{'s' * (threads > 1)}")
    for contender, values in seconds.items():
        median, least = statistics.median(values), min(values)
        print(f"  {contender:<24} {median * 1e3:9.1f} ms   least {least * 1e3:9.1f}")
    for row in rows:
        verdict = "" if row["met"] is None else "met" if row["met"] else "NOT MET"
        target = f"target {row['target']}" if row["target"] else ""
        print(f"  {row['ratio']:<34} {row['value']:8.3f}   {target:<15} {verdict}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 rounds, cases iii and iv, N=8")
    parser.add_argument("--cases", type=lambda text: text.split(","))
    parser.add_argument("--threads", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--rounds", type=int)
    parser.add_argument(
        "--results", type=results_folder, help="write two CSV files into this folder, too"
    )
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.cases = arguments.cases or (["iii", "iv"] if arguments.quick else list(CASES))
    arguments.threads = arguments.threads or ([2] if arguments.quick else [2, 1])
    for name in arguments.cases:
        if name not in CASES:
            parser.error(f"no case {name!r}: expected some of {', '.join(CASES)}")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    if arguments.memory_of is not None:
        print(extra_memory(arguments.memory_of))
        return
    print(f"operator: {ops.backend()} ({ops.why()}), torch {torch.__version__}, float32")
    times, memory = [], []
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for name in arguments.cases:
            rounds = arguments.rounds or (3 if arguments.quick else 15 if name == "iv" else 5)
            seconds = measure(contenders(CASES[name]), rounds)
            medians = {contender: statistics.median(s) for contender, s in seconds.items()}
            rows = ratios(medians, name, threads)
            print_case(name, threads, seconds, rows)
            shape = {"case": name, **asdict(CASES[name]), "threads": threads}
            for contender, values in seconds.items():
                taken = {"median_ms": 1e3 * medians[contender], "least_ms": 1e3 * min(values)}
                times.append({**shape, "contender": contender, **taken, **machine()})
    print("\nmemory of forward+backward on (i), beyond inputs, outputs and gradients")
    for images, most in MEMORY_TARGETS.items():
        if arguments.quick and images > 8:
            continue
        found = measure_memory(images)
        met = "met" if found <= most else "NOT MET"
        print(f"  N={images:<3} {found:8.1f} MB   target <= {most} MB   {met}")
        memory.append({"case": "i", "images": images, "megabytes": found, **machine()})
    if arguments.results:
        for rows, file in ((times, "operator_benchmark.csv"), (memory, "operator_memory.csv")):
            pd.DataFrame(rows).round(2).to_csv(arguments.results / file, index=False)


if __name__ == "__main__":
    main()
