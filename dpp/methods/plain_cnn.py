"""The plain CNN of Table 1: backbone, global average pooling, a linear classifier."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpp.backbones.backbone import Backbone
from dpp.training.experiments import Experiment
from dpp.training.trainer import Method, Phase, Schedule


class PlainCNN(nn.Module):
    """A classifier without prototypes.

    Args:
        backbone: where its features come from.
        classes: how many.
    """

    def __init__(self, backbone: Backbone, classes: int):
        super().__init__()
        self.backbone = backbone
        self.classifier = nn.Linear(backbone.channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 3, H, W)."""
        return self.classifier(self.backbone(images).mean(dim=(2, 3)))

    def measure(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """`accuracy` (N,), 0 or 1, of each image."""
        return {"accuracy": (self(images).argmax(dim=1) == labels).float()}


def objective(
    model: PlainCNN, images: Tensor, labels: Tensor, phase: Phase
) -> dict[str, torch.Tensor]:
    """Cross entropy, averaged."""
    logits = model(images)
    entropy = functional.cross_entropy(logits, labels)
    correct = (logits.argmax(dim=1) == labels).float()
    return {"loss": entropy, "cross_entropy": entropy, "accuracy": correct.mean()}


def make_schedule(experiment: Experiment) -> Schedule:
    """The classifier alone, then all of it."""
    rates = {"classifier": experiment.prototype_rate}
    joint = rates | {"backbone": experiment.backbone_rate}
    epochs = experiment.epochs - experiment.warm_epochs
    decay = {"decay": experiment.decay, "decay_every": experiment.decay_every}
    return Schedule(
        phases=(
            Phase("warm", experiment.warm_epochs, rates),
            Phase("joint", epochs, joint, **decay),
        ),
        weight_decay={"backbone": experiment.weight_decay},
    )


METHOD = Method(
    build=lambda experiment, backbone, classes: PlainCNN(backbone, classes),
    objective=lambda experiment: objective,
    schedule=make_schedule,
    stages=lambda experiment: {},
)
