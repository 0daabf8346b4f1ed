"""Beyond ProtoPNet's and ProtoTree's papers: add-on layers that begin at a scale they learn from.

With the released codes' first weights, cells of a ResNet-34 are far apart. ProtoPNet's similarity
is all but flat there, and training spends its first epochs on shrinking distances. In a ProtoTree
of 200 classes, nearly every image goes left at every node, so that most leaves are nearly empty.
Here each channel of an add-on layer gets a given deviation before the first epoch, and mean 0 where
it has a bias, as in Kraehenbuehl et al., "Data-dependent Initializations of Convolutional Neural
Networks", ICLR 2016. `docs/photo_profile.md` has what it gains: `prototype_start="scaled"`.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from dpp.backbones.backbone import Backbone
from dpp.networks.soft_tree import ProtoTree
from dpp.training import prototype_start
from dpp.training.experiments import Experiment
from dpp.training.trainer import Method, Trainer

SPREAD, TREE_SPREAD = 0.3, 0.05  # standard deviations before the sigmoid
NOISE = 0.03  # standard deviation of a tree's prototypes around the mean cell
COPIES = 5  # of each image, in a tree's leaves
IMAGES = 64  # that layers are scaled by, spread over the data set


@torch.no_grad()
def scale_add_on(layers: nn.Sequential, features: Tensor, spread: float) -> Tensor:
    """Scales add-on layers so that the cells of features begin near one another.

    Args:
        layers: convolutions, what comes between them, and a sigmoid; weights and biases change.
            Each channel of a convolution gets deviation 1, of the last one `spread`; and mean 0, if
            the convolution has biases.
        features: (N, C, H, W), of the backbone.

    Returns:
        What the layers make of the features now.
    """
    last = [layer for layer in layers if isinstance(layer, nn.Conv2d)][-1]
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            deviation, mean = torch.std_mean(layer(features), dim=(0, 2, 3))
            scale = (spread if layer is last else 1.0) / deviation.clamp_min(1e-6)
            layer.weight.mul_(scale[:, None, None, None])
            if layer.bias is not None:
                layer.bias.copy_((layer.bias - mean) * scale)
        features = layer(features)
    return features


@torch.no_grad()
def look_at_some(trainer: Trainer) -> Tensor:
    """The backbone's features (N, C, H, W) of some training images."""
    model, dataset = trainer.model.eval(), trainer.splits.projection
    count = min(IMAGES, len(dataset))
    places = [place * len(dataset) // count for place in range(count)]
    return model.backbone(trainer.to_device(dataset.batch([(0, place) for place in places]).images))


def start_cells(trainer: Trainer) -> dict[str, float]:
    """Scales a ProtoPNet's add-on layers, then starts its prototypes as patches."""
    scale_add_on(trainer.model.add_on, look_at_some(trainer), SPREAD)
    return prototype_start.stage(trainer)


@torch.no_grad()
def start_tree(trainer: Trainer) -> dict[str, float]:
    """Scales a ProtoTree's add-on layer, then puts every prototype near the mean cell.

    Distances begin at about 0.5, so that images go right about as likely as left.
    """
    cells = scale_add_on(trainer.model.add_on, look_at_some(trainer), TREE_SPREAD)
    vectors = trainer.model.prototypes.vectors
    vectors.copy_(cells.mean(dim=(0, 2, 3)) + NOISE * torch.randn_like(vectors))
    return {"source_images": len(cells)}


def build_tree(experiment: Experiment, backbone: Backbone, classes: int) -> ProtoTree:
    """A ProtoTree whose leaves count each image as often as its published data has it.

    A leaf's distribution is the softmax of a sum over an epoch's images. ProtoTree's code trains on
    five crops of each image of CUB: its sums are five times as large, and its leaves more certain.
    """
    tree = ProtoTree(backbone, classes)
    tree.leaves.copies = COPIES
    return tree


def with_scaled_start(method: Method, model: str) -> Method:
    """ProtoPNet or ProtoTree as they begin here."""
    stages, schedule = method.stages, method.schedule
    if model == "protopnet":
        return method._replace(stages=lambda one: {**stages(one), "start": start_cells})
    return method._replace(
        build=build_tree,
        stages=lambda one: {**stages(one), "start": start_tree},
        schedule=lambda one: replace(schedule(one), before=("start",)),
    )
