"""What `dpp evaluate` costs beyond one plain pass of the network over the same images.

    python benchmarks/bench_evaluation.py [--quick] [--images 100] [--rounds 3] [--results DIR]

ResNet-34 with 2,000 2x2 prototypes of 200 classes, 29 images a class as in CUB-200-2011:

- the pass that most measures share, against a plain pass;
- the same from what a frozen trunk (`layer3`) made of the images, as for runs of the photo profile;
- one step of the attack on an image, against a plain pass over it.

From these follows what consistency, stability and purity of a photo run take beyond a plain pass
over its 5,794 test images: a pass with noise, from images, and one over 5,394 training images, from
kept features; the clean pass over the test images is from kept features too.
"""

import argparse
import statistics
from collections.abc import Callable

import pandas as pd
import torch
from timing import machine, measure, results_folder

from dpp import ops
from dpp.analysis import Network
from dpp.backbones.backbone import make_backbone
from dpp.backbones.trunks import TrunkFeatures
from dpp.data.batches import Batch, ImageDataset
from dpp.data.image_records import Source
from dpp.evaluation import misalignment, sightings
from dpp.networks.model import DeformableProtoPNet

CLASSES, PER_CLASS, SIZE, IMAGES_OF_A_CLASS = 200, 10, 224, 29
TEST, TRAINING = 5794, 5394  # images of CUB-200-2011; a tenth of the training images validates
CLASSES_OF_BASELINES = 20
ATTACKED, STEPS = 4, 3  # images, and steps of the attack on them
TARGET, MINUTES = 1.5, 15


class Inputs(ImageDataset):
    """Images of noise, or what a trunk made of them; classes one after the other, as in CUB."""

    def __init__(self, images: torch.Tensor | TrunkFeatures):
        self.images, self.records, self.augmented = images, range(len(images)), False
        self.labels = torch.arange(len(images)) // IMAGES_OF_A_CLASS

    def batch(self, keys) -> Batch:
        indices = torch.tensor([index for _, index in keys])
        return Batch(self.images[indices], self.labels[indices], indices)


def make_network() -> Network:
    backbone = make_backbone("resnet34", frozen_trunk="layer3")
    model = DeformableProtoPNet(backbone, CLASSES, per_class=PER_CLASS, kernel_size=2)
    model.offsets.reset_parameters(1e-3)
    source = Source("noise", None, tuple(map(str, range(CLASSES))), (), (), ())
    return Network(model, "untrained", source, SIZE)


@torch.no_grad()
def contenders(count: int) -> dict[str, Callable[[], object]]:
    network = make_network()
    images = torch.randn(count, 3, SIZE, SIZE)
    parts = images.split(sightings.BATCH)
    trunk = network.model.backbone.trunk
    maps = torch.cat([trunk(network.prepare(part)).half() for part in parts])
    sightings.find_plain = lambda dataset, backbone: None  # these are not kept
    misalignment.STEPS = STEPS
    few, numbers = images[:ATTACKED], torch.arange(ATTACKED)
    protected = torch.zeros(ATTACKED, SIZE, SIZE)
    inputs = {"pass": Inputs(images), "kept": Inputs(TrunkFeatures(maps, SIZE))}

    def look(name: str, noise: int | None = None) -> Callable[[], object]:
        return lambda: sightings._see(network, inputs[name], lambda done, total: None, noise)

    return {
        "plain pass": torch.no_grad()(lambda: [network.inspect(part) for part in parts]),
        "evaluation pass": look("pass"),
        "evaluation pass, noise": look("pass", noise=0),
        "evaluation pass, kept features": look("kept"),
        "attack": lambda: misalignment.attack(network, network.prepare(few), protected, numbers),
    }


def minutes_more(seconds: dict[str, float], images: int) -> dict[str, float]:
    """Minutes beyond a plain pass for consistency, stability and purity of a photo run.

    Without what random weights cost, and that: two passes over the test images of 20 classes, one
    of them with noise, and one over the training images of as many.
    """
    each = {name: value / images / 60 for name, value in seconds.items()}
    own = TEST * (each["evaluation pass, kept features"] + each["evaluation pass, noise"])
    own += TRAINING * each["evaluation pass, kept features"] - TEST * each["plain pass"]
    share = CLASSES_OF_BASELINES / CLASSES
    blind = (TEST + TRAINING) * each["evaluation pass"] + TEST * each["evaluation pass, noise"]
    return {"consistency, stability, purity": own, "random weights": share * blind}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="1 round of 50 images")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--results", type=results_folder, help="write evaluation_benchmark.csv there, too"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.images = 1, 50
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)

    seconds = measure(contenders(arguments.images), arguments.rounds)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"operator: {ops.backend()}, {arguments.threads} threads, {arguments.images} images")
    for name, value in medians.items():
        print(f"  {name:<32} {value:9.3f} s")
    plain = medians["plain pass"]
    rows = [
        {"name": f"{name} / plain pass", "value": medians[name] / plain, "target": TARGET}
        for name in list(medians)[1:4]
    ]
    step = medians["attack"] / ATTACKED / STEPS / (plain / arguments.images)
    rows.append({"name": "step of the attack / plain pass of its image", "value": step})
    minutes = minutes_more(medians, arguments.images)
    rows += [{"name": f"minutes more: {name}", "value": value} for name, value in minutes.items()]
    total = sum(minutes.values())
    rows.append({"name": "minutes more: together", "value": total, "target": MINUTES})
    for row in rows:
        text = ""
        if "target" in row:
            row["met"] = bool(row["value"] <= row["target"])
            text = f"   target <= {row['target']:<5} {'met' if row['met'] else 'NOT MET'}"
        print(f"  {row['name']:<48} {row['value']:8.2f}{text}")
    if arguments.results:
        shared = machine() | {"threads": arguments.threads, "images": arguments.images}
        table = pd.DataFrame([row | shared for row in rows]).round(3)
        table.to_csv(arguments.results / "evaluation_benchmark.csv", index=False)


if __name__ == "__main__":
    main()
