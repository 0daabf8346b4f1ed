"""A network as numbers for the browser: batch norm folded, one array of weights, a list of layers.

The weights are single precision, as the run's own are; only folding rounds them once more. Arrays
lie channels last, as `page/network.js` reads them: an image row by row, each place with all its
channels, and a convolution's weights (out, rows, columns, in).
"""

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from dpp.data.transforms import IMAGENET_MEAN, IMAGENET_STD
from dpp.networks.model import DeformableProtoPNet
from dpp.networks.prototypes import EPSILON, OffsetBranch
from dpp.networks.released import PAPER
from dpp.system.errors import UserError


class Weights:
    """One array of single precision numbers, and where each tensor lies in it."""

    def __init__(self):
        self.pieces: list[np.ndarray] = []
        self.length = 0

    def add(self, values: Tensor) -> dict:
        """Appends a tensor. Returns its `start` and `shape`."""
        piece = values.detach().cpu().to(torch.float32).numpy()
        start, self.length = self.length, self.length + piece.size
        self.pieces.append(np.ascontiguousarray(piece).ravel())
        return {"start": start, "shape": list(piece.shape)}

    def joined(self) -> np.ndarray:
        return np.concatenate(self.pieces).astype("<f4")


def describe_network(model: DeformableProtoPNet) -> tuple[dict, np.ndarray]:
    """What the browser computes, step by step.

    Args:
        model: a Deformable ProtoPNet as the paper has it, on a ResNet of basic blocks.

    Returns:
        The steps, for JSON; and the array that they refer to, float32.
    """
    check_supported(model)
    weights, layer = Weights(), model.prototypes
    normalised = layer.normalised().detach()  # (P, C + 1, K, K)
    branch = model.offsets
    steps = {
        "mean": [255 * value for value in IMAGENET_MEAN],
        "deviation": [255 * value for value in IMAGENET_STD],
        "layers": list_layers([step for _, step in model.backbone.steps()], weights),
        "offsets": [convolution(branch[0], weights, relu=True), convolution(branch[2], weights)],
        "length": layer.length,
        "epsilon": EPSILON,
        "kernel": layer.kernel_size,
        "dilation": layer.geometry["dilation"],
        "prototypes": weights.add(normalised.permute(0, 2, 3, 1).flatten(1, 2)),
        "labels": layer.classes.tolist(),
        "connections": weights.add(model.last_layer.weight),
    }
    return steps, weights.joined()


def check_supported(model: nn.Module) -> None:
    """Raises a `UserError` if the page cannot compute what a network does."""
    if not isinstance(model, DeformableProtoPNet) or not isinstance(model.offsets, OffsetBranch):
        raise UserError("the demo page shows a Deformable ProtoPNet that predicts its offsets")
    if model.prototypes.switches != PAPER:
        raise UserError("the demo page computes the paper's network: choose --variant paper")


def list_layers(steps: list[nn.Module], weights: Weights) -> list[dict]:
    """The backbone's layers; a batch norm and a ReLU go into the convolution before them."""
    layers, queue = [], list(steps)
    while queue:
        step = queue.pop(0)
        if isinstance(step, nn.Conv2d):
            norm = queue.pop(0) if queue and isinstance(queue[0], nn.BatchNorm2d) else None
            relu = bool(queue) and isinstance(queue[0], nn.ReLU)
            if relu:
                queue.pop(0)
            layers.append(convolution(step, weights, norm, relu=relu))
        elif isinstance(step, nn.MaxPool2d):
            sizes = {"kernel": step.kernel_size, "stride": step.stride, "padding": step.padding}
            layers.append({"kind": "pool"} | sizes)
        elif isinstance(step, BasicBlock):
            layers.append(block(step, weights))
        else:
            raise UserError(
                f"the demo page cannot compute a {type(step).__name__}: choose slim_resnet34"
            )
    return layers


def block(step: BasicBlock, weights: Weights) -> dict:
    """Two convolutions beside a shortcut, which is None where it changes nothing."""
    beside = step.downsample
    return {
        "kind": "block",
        "first": convolution(step.conv1, weights, step.bn1, relu=True),
        "second": convolution(step.conv2, weights, step.bn2),
        "shortcut": None if beside is None else convolution(beside[0], weights, beside[1]),
    }


def convolution(
    step: nn.Conv2d, weights: Weights, norm: nn.BatchNorm2d | None = None, *, relu: bool = False
) -> dict:
    """A convolution with the batch norm after it folded in, in double precision."""
    kernel = step.weight.detach().double()  # (out, in, rows, columns)
    bias = torch.zeros(len(kernel)).double() if step.bias is None else step.bias.detach().double()
    if norm is not None:
        scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
        kernel = kernel * scale[:, None, None, None]
        bias = (bias - norm.running_mean.double()) * scale + norm.bias.double()
    return {
        "kind": "convolution",
        "kernel": step.kernel_size[0],
        "stride": step.stride[0],
        "padding": step.padding[0],
        "relu": relu,
        "weight": weights.add(kernel.permute(0, 2, 3, 1)),
        "bias": weights.add(bias),
    }
