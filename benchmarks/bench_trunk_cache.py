"""A joint training step on photographs: whole network, frozen trunk, and trunk features at hand.

    python benchmarks/bench_trunk_cache.py [BACKBONE] [BATCH]

CUB's size: 200 classes with 10 prototypes of 2x2 parts, 224 pixels, random pixels and weights, in
the precision that the photo profile trains in. Seconds are of the processor, which a busy machine
disturbs less than the clock's.
"""

import sys
import time

import torch

from dpp.backbones.backbone import make_backbone
from dpp.backbones.trunks import TrunkFeatures, usual_trunk
from dpp.data.transforms import augment, draw_augmentation, normalise, sampling_matrices
from dpp.methods.deformable import METHOD
from dpp.runs.precision import choose_precision
from dpp.training.experiments import make_experiment
from dpp.training.trainer import autocast, freeze_all_but, make_optimiser

CLASSES, SIZE, STEPS = 200, 224, 2


def measure(name: str, trunk: str, batch_size: int, cached: bool) -> float:
    """Images for each second of the processor."""
    torch.manual_seed(0)
    experiment = make_experiment("photo", backbone=name, kernel_size=2, per_class=10)
    backbone = make_backbone(name, frozen_trunk=trunk)
    model = METHOD.build(experiment, backbone, CLASSES)
    schedule = METHOD.schedule(experiment)
    joint = schedule.phases[-1]
    model.offsets.reset_parameters(joint.resets["offsets"])
    optimiser = make_optimiser(model, joint, schedule.weight_decay)
    freeze_all_but(model, joint.rates)
    objective = METHOD.objective(experiment)
    precision = choose_precision(experiment.precision)
    pixels = torch.randint(0, 256, (batch_size, 3, SIZE, SIZE), dtype=torch.uint8)
    labels = torch.arange(batch_size) % CLASSES
    kept = None
    if cached:
        with torch.no_grad():
            kept = TrunkFeatures(backbone.trunk(normalise(pixels)).half(), SIZE)

    def step(number: int) -> None:
        if cached:
            images = kept.to("cpu", memory_format=torch.channels_last)
        else:
            drawn = [draw_augmentation(0, number, index) for index in range(batch_size)]
            images = normalise(augment(pixels, sampling_matrices(drawn, [1.3] * batch_size)))
            images = images.to(memory_format=torch.channels_last)
        optimiser.zero_grad(set_to_none=True)
        with autocast(precision, "cpu"):
            loss = objective(model, images, labels, joint)["loss"]
        loss.backward()
        optimiser.step()

    step(0)
    begun = time.process_time()
    for number in range(STEPS):
        step(number)
    return STEPS * batch_size / (time.process_time() - begun)


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "resnet34"
    batch_size = int(sys.argv[2]) if len(sys.argv) > 2 else 48
    trunk, precision = usual_trunk(name), choose_precision("auto")
    torch.set_num_threads(1)
    speeds = {
        "whole network": measure(name, "", batch_size, False),
        f"frozen up to {trunk}": measure(name, trunk, batch_size, False),
        "trunk features at hand": measure(name, trunk, batch_size, True),
    }
    for kind, speed in speeds.items():
        ratio = speed / speeds["whole network"]
        told = f"{speed:6.1f} images a processor second  {ratio:4.1f} x"
        print(f"{name}  {precision}  {kind:28}  {told}")


if __name__ == "__main__":
    main()
