"""Real photographs and really pretrained weights on a CPU: a short schedule, in about an hour each.

    python benchmarks/cub_subset.py --data DIR --weights resnet50.pth [--only deformable]

DIR holds a folder `CUB_200_2011`, all of it or some of its classes; the weights are a ResNet-50's
(see `dpp.backbones.pretrained.load_weights`). Five runs with the same budget: Deformable ProtoPNet,
the same without deformation, ProtoPNet, the plain CNN, and Deformable ProtoPNet from random
weights. Runs are kept: stopped ones are resumed, finished ones are printed.
"""

import argparse
import os
from pathlib import Path

BUDGET = {
    "data": "cub",
    "backbone": "resnet50",
    "batch_size": 24,
    "kernel_size": 2,
    "epochs": 7,
    "warm_epochs": 2,
    "last_layer": "converged",
}
SHOWN = ["stage", "epoch", "phase", "accuracy"]
SHOWN += ["validation_accuracy", "test_accuracy", "test_offset"]
PROJECTED = {"project_after": (7,)}
DEFORMABLE = PROJECTED | {"second_warm_epochs": 2}
RUNS = {
    "deformable": DEFORMABLE,
    "rigid": DEFORMABLE | {"deformable": False},
    "protopnet": PROJECTED | {"model": "protopnet"},
    "cnn": {"model": "cnn"},
    "random": DEFORMABLE | {"weights": "none"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="what holds CUB_200_2011")
    parser.add_argument("--weights", type=Path, required=True, help="of a ResNet-50")
    parser.add_argument("--root", type=Path, help="for the runs, instead of DPP_RUNS or runs/")
    parser.add_argument("--only", choices=RUNS, action="append")
    arguments = parser.parse_args()
    os.environ["DPP_DATA"] = str(arguments.data.resolve())

    from dpp import runs
    from dpp.training.experiments import make_experiment

    weights = str(arguments.weights.resolve())
    for name in arguments.only or RUNS:
        changes = BUDGET | {"weights": weights} | RUNS[name]
        run = runs.run(make_experiment("paper", **changes), root=arguments.root)
        print(f"\n{name}: {run.manifest['seconds']:.0f} s, {run.folder}")
        table = run.metrics
        print(table[[column for column in SHOWN if column in table]].to_string(index=False))


if __name__ == "__main__":
    main()
