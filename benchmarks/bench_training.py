"""The three training stages against their yardsticks, as ratios within one run.

    python benchmarks/bench_training.py [--quick] [--images 16] [--rounds 3] [--results DIR]

- a training step (forward, backward, Adam) of ResNet-50 with 2,000 2x2 prototypes, against the same
  step with the operator in plain PyTorch, and against the bare backbone's step;
- projection against one plain pass of the backbone over the same images;
- twenty passes of the last layer over cached scores, against running the network for them.
"""

import argparse
import statistics
from collections.abc import Callable

import pandas as pd
import torch
from timing import machine, measure, results_folder
from torch import Tensor, nn

from dpp import ops, reference
from dpp.backbones.backbone import make_backbone
from dpp.data.batches import Batch
from dpp.methods import plain_cnn
from dpp.methods.deformable import stage_one
from dpp.networks.model import DeformableProtoPNet, make_last_layer
from dpp.training import last_layer, projection
from dpp.training.trainer import Phase, freeze_all_but, make_optimiser

CLASSES, PER_CLASS, SIZE = 200, 10, 224
WEIGHTS = {"separation": 0.01, "cluster": 0.1, "orthogonality": 0.1}
JOINT = Phase("joint", 1, {"backbone": 1e-4, "prototypes": 3e-3, "offsets": 5e-4}, WEIGHTS)
PASSES = 20
# numerator, denominator, is it an upper bound, the bound
TARGETS = [
    ("plain step", "step", False, 1.3),
    ("step", "backbone step", True, 1.5),
    ("projection", "backbone pass", True, 1.3),
    ("network passes", "last layer", False, 50.0),
]


def training_step(model: nn.Module, objective, images: Tensor, labels: Tensor, phase: Phase):
    """One step of stage 1, as `Trainer` makes it."""
    freeze_all_but(model, phase.rates)
    optimiser = make_optimiser(model, phase, {"backbone": 1e-3})

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        objective(model, images, labels, phase)["loss"].backward()
        optimiser.step()

    return step


def with_operator(function: Callable, step: Callable[[], None]) -> Callable[[], None]:
    """A step in which `ops.max_similarity` is another function."""

    def run() -> None:
        ours, ops.max_similarity = ops.max_similarity, function
        try:
            step()
        finally:
            ops.max_similarity = ours

    return run


def make_network() -> DeformableProtoPNet:
    shape = {"per_class": PER_CLASS, "kernel_size": 2}
    model = DeformableProtoPNet(make_backbone("resnet50"), CLASSES, **shape)
    model.offsets.reset_parameters(1e-3)
    return model


def training_contenders(images: Tensor, labels: Tensor) -> dict[str, Callable[[], None]]:
    model = make_network()
    bare = plain_cnn.PlainCNN(make_backbone("resnet50"), CLASSES)
    ours = training_step(model, stage_one(0.1), images, labels, JOINT)
    phase = Phase("joint", 1, {"backbone": 1e-4, "classifier": 1e-3})
    return {
        "step": ours,
        "plain step": with_operator(reference.max_similarity, ours),
        "backbone step": training_step(bare, plain_cnn.objective, images, labels, phase),
    }


def stage_contenders(images: Tensor, labels: Tensor) -> dict[str, Callable[[], object]]:
    model = make_network()
    model.eval()
    indices = torch.arange(len(images))

    return {
        "projection": lambda: projection.search(model, [Batch(images, labels, indices)]),
        "backbone pass": torch.no_grad()(lambda: model.backbone(images)),
        "network pass": torch.no_grad()(lambda: model(images)),
    }


def fit(count: int) -> Callable[[], object]:
    """Stage 3 on `count` images' scores, as the paper profile has it."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(count, CLASSES * PER_CLASS, generator=generator)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    classes = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
    weight = make_last_layer(CLASSES, classes).weight.detach()
    return lambda: last_layer.fit_by_passes(scores, labels, weight, classes, passes=PASSES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=16, help="in a batch (the paper has 80)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="1 round of batches of 2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--results", type=results_folder, help="write training_benchmark.csv there, too"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.images = 1, 2
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    shape = (arguments.images, 3, SIZE, SIZE)
    images = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, shape[:1])

    seconds = measure(training_contenders(images, labels), arguments.rounds)
    seconds |= measure(stage_contenders(images, labels), arguments.rounds)
    # Each pass costs as much for every image: both sides for 80 images, a batch of the paper's.
    count = 80
    seconds |= measure({"last layer": fit(count)}, arguments.rounds)
    passes = [PASSES * count / arguments.images * value for value in seconds["network pass"]]
    seconds["network passes"] = passes

    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"operator: {ops.backend()}, {arguments.threads} threads, batches of {arguments.images}")
    for name, value in medians.items():
        print(f"  {name:<16} {value:9.3f} s")
    rows = []
    for above, below, upper, bound in TARGETS:
        value = medians[above] / medians[below]
        met = value <= bound if upper else value >= bound
        target = f"{'<=' if upper else '>='} {bound:g}"
        print(
            f"  {above + ' / ' + below:<30} {value:8.2f}   target {target:<8} "
            f"{'met' if met else 'NOT MET'}"
        )
        rows.append({"ratio": f"{above} / {below}", "value": value, "target": target, "met": met})
    if arguments.results:
        shared = machine() | {"threads": arguments.threads, "images": arguments.images}
        table = pd.DataFrame([row | shared for row in rows]).round(3)
        table.to_csv(arguments.results / "training_benchmark.csv", index=False)


if __name__ == "__main__":
    main()
