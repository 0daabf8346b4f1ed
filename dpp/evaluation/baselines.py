"""What a score means: the same measure of a network that has learned nothing, or of random places.

A network with random weights has the trained one's shape and connections. Its batch norms know the
images' statistics, and its prototypes are cells of images of their classes, so that it differs from
a trained and projected network in what it has learned alone.

It needs passes over the images of its own. Where there are many classes, it makes them over all
images of some: what chance gives is a mean over prototypes, which those of 20 classes tell well
enough. Some images of all classes would tell something else: on few images, places that have
nothing to do with them are consistent.
"""

import copy
import weakref
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from dpp import ops
from dpp.analysis.following_study import select_images
from dpp.analysis.network import Network
from dpp.data.batches import ImageDataset
from dpp.networks.model import DeformableProtoPNet

CALIBRATION = 64  # images for the batch norms' statistics
MOST_CLASSES = 20  # that random weights are measured on
CHILDREN = ("backbone", "add_on", "offsets")
_KEPT: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # by the trained network
_SOME: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # classes, by data set


def random_weights(network: Network, images: ImageDataset, seed: int) -> Network:
    """The same network with random weights; the same again costs nothing.

    Args:
        network: is not changed.
        images: un-augmented training images.
        seed: of the weights, and of the cells that become prototypes.
    """
    kept = _KEPT.setdefault(network, {})
    if seed not in kept:
        kept[seed] = _randomise(network, images, seed)
    return kept[seed]


@torch.no_grad()
def _randomise(network: Network, images: ImageDataset, seed: int) -> Network:
    model = copy.deepcopy(network.model)
    random = np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name in CHILDREN:
            if getattr(model, name, None) is not None:
                draw_weights(getattr(model, name))
    other = replace(network, model=model, origins={}, familiarity=None)
    few = random.permutation(len(images))[:CALIBRATION]
    calibrate(model, other.prepare(images.batch([(0, int(index)) for index in few]).images))
    owners = np.array(network.labels)
    for label in np.unique(owners):
        numbers = torch.from_numpy(np.flatnonzero(owners == label))
        own = (images.labels == label).nonzero().flatten().tolist() or range(len(images))
        choose_cells(other, images, int(random.choice(own)), numbers, random)
    return other


def some_classes(dataset: ImageDataset) -> ImageDataset:
    """All images of 20 classes, evenly over them; the data set itself if it has no more."""
    labels = dataset.labels.unique()
    if len(labels) <= MOST_CLASSES:
        return dataset
    if dataset not in _SOME:
        places = np.linspace(0, len(labels) - 1, MOST_CLASSES).round()
        within = torch.isin(dataset.labels, labels[places.astype(int)])
        _SOME[dataset] = select_images(dataset, within.nonzero().flatten().tolist())
    return _SOME[dataset]


def draw_weights(module: nn.Module) -> None:
    """Draws the weights of all layers below a module as a new network's."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif hasattr(layer, "reset_parameters") and not list(layer.children()):
            layer.reset_parameters()


def calibrate(model: nn.Module, images: torch.Tensor) -> None:
    """Gives all batch norms the statistics of some images."""
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    before = [(norm.momentum, norm.training) for norm in norms]
    for norm in norms:
        norm.momentum, norm.training = 1.0, True
    model.backbone(images)
    for norm, (momentum, training) in zip(norms, before, strict=True):
        norm.momentum, norm.training = momentum, training


def choose_cells(
    network: Network, images: ImageDataset, index: int, numbers: torch.Tensor, random
) -> None:
    """Makes prototypes (Q,) what lies at random cells of one image."""
    model = network.model
    output = network.inspect(images.batch([(0, index)]).images)
    count = output.z[0, 0].numel()
    drawn = torch.from_numpy(random.integers(count, size=len(numbers)))
    places = output.places.clone()
    places[0, numbers] = drawn.to(places)
    if network.is_tree:
        model.prototypes.vectors[numbers] = output.z[0].flatten(1)[:, drawn].T
    elif isinstance(model, DeformableProtoPNet):
        output = output._replace(places=places)
        model.prototypes.replace(numbers, model.sample(output, numbers)[0])
    else:
        given = {"kernel_size": 1} | model.prototypes.geometry
        cells = ops.sample_parts(output.z, None, places[:, numbers], **given)
        model.prototypes.replace(numbers, cells[0])


def random_places(shape: tuple[int, ...], size: int, seed: int) -> np.ndarray:
    """Places (*shape, 2), uniform over an image of a side."""
    return np.random.default_rng(seed).uniform(0, size, (*shape, 2))
