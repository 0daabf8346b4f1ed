"""Beyond ProtoPNet's paper: add-on layers that begin at a scale from which they learn.

With the released code's first weights, cells of a ResNet-34 are so far apart (squared distances of
about 19) that ProtoPNet's similarity is all but flat, and training spends its first epochs on
shrinking them. Here each channel of an add-on layer gets mean 0 and a given deviation before the
first epoch, as in Kraehenbuehl et al., "Data-dependent Initializations of Convolutional Neural
Networks", ICLR 2016. `docs/photo_profile.md` has what it gains: `prototype_start="scaled"`.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dpp.training import prototype_start
from dpp.training.trainer import Trainer

SPREAD = 0.3  # standard deviation before the sigmoid
IMAGES = 64  # that layers are scaled by, spread over the data set


@torch.no_grad()
def scale_add_on(layers: nn.Sequential, features: Tensor) -> None:
    """Scales a ProtoPNet's add-on layers so that the cells of features begin near one another.

    Args:
        layers: convolutions, what comes between them, and a sigmoid; weights and biases change.
            Each channel of a convolution gets mean 0 and deviation 1, of the last one `SPREAD`.
        features: (N, C, H, W), of the backbone.
    """
    last = [layer for layer in layers if isinstance(layer, nn.Conv2d)][-1]
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            deviation, mean = torch.std_mean(layer(features), dim=(0, 2, 3))
            scale = (SPREAD if layer is last else 1.0) / deviation.clamp_min(1e-6)
            layer.weight.mul_(scale[:, None, None, None])
            layer.bias.copy_((layer.bias - mean) * scale)
        features = layer(features)


@torch.no_grad()
def stage(trainer: Trainer) -> dict[str, float]:
    """Scales the add-on layers, then starts the prototypes as patches (`prototype_start`)."""
    model, dataset = trainer.model.eval(), trainer.splits.projection
    count = min(IMAGES, len(dataset))
    places = [place * len(dataset) // count for place in range(count)]
    images = trainer.to_device(dataset.batch([(0, place) for place in places]).images)
    scale_add_on(model.add_on, model.backbone(images))
    return prototype_start.stage(trainer)


def with_scaled_start(stages: Callable) -> Callable:
    """The stages of ProtoPNet, as a function of an experiment, with the start replaced."""
    return lambda experiment: dict(stages(experiment)) | {"start": stage}
