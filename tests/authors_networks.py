"""The authors' networks, written down from what is known of them: layout and forward pass.

Layouts are those of the state dicts that the authors' public code writes; the forward passes follow
the papers, and what is known of the released code (`docs/differences.md`). Slow, for tests.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision import models

TINY = 1e-4  # the authors' epsilon, in all its places


def make_features(name: str) -> nn.Module:
    """A backbone as the authors keep it: torchvision's layers up to the last native map."""
    if name.startswith("vgg11"):  # with its last pooling, and without building its large head
        layers = models.vgg.make_layers(models.vgg.cfgs["A"], batch_norm=name.endswith("_bn"))
        return nn.Sequential(OrderedDict([("features", layers)]))
    network = models.get_model(name)
    if name.startswith("resnet"):
        kept = [(n, child) for n, child in network.named_children() if n not in ("avgpool", "fc")]
        return nn.Sequential(OrderedDict(kept))
    network.features.add_module("final_relu", nn.ReLU())
    return nn.Sequential(OrderedDict([("features", network.features)]))


class AuthorsNetwork(nn.Module):
    """What the three have in common; the last layer as it is at first, and a little noise."""

    def __init__(self, backbone: str, classes: int, per_class: int, shape: tuple[int, int, int]):
        super().__init__()
        self.features = make_features(backbone)
        self.prototype_vectors = nn.Parameter(torch.rand(classes * per_class, *shape))
        self.ones = nn.Parameter(torch.ones(classes * per_class, *shape), requires_grad=False)
        self.last_layer = nn.Linear(classes * per_class, classes, bias=False)
        own = torch.arange(classes)[:, None] == torch.arange(classes * per_class) // per_class
        noise = 0.1 * torch.randn(classes, classes * per_class)
        self.last_layer.weight = nn.Parameter(torch.where(own, 1.0, -0.5) + noise)

    def forward(self, images: Tensor) -> Tensor:
        return self.last_layer(self.similarities(images).flatten(2).amax(dim=2))


class AuthorsProtoPNet(AuthorsNetwork):
    """Similarity log((d + 1) / (d + epsilon)) of the squared distance d to each cell."""

    def __init__(self, backbone: str, classes: int, per_class: int, channels: int = 128):
        super().__init__(backbone, classes, per_class, (channels, 1, 1))
        width = self.features(torch.zeros(1, 3, 64, 64)).shape[1]
        self.add_on_layers = nn.Sequential(
            nn.Conv2d(width, channels, 1), nn.ReLU(), nn.Conv2d(channels, channels, 1), nn.Sigmoid()
        )

    def similarities(self, images: Tensor) -> Tensor:
        cells = self.add_on_layers(self.features(images))[:, None]  # (N, 1, C, H, W)
        distances = (cells - self.prototype_vectors).square().sum(dim=2)
        return torch.log((distances + 1) / (distances + TINY))


class AuthorsTesNet(AuthorsProtoPNet):
    """The projection of each cell on prototypes of unit length."""

    def __init__(self, backbone: str, classes: int, per_class: int):
        super().__init__(backbone, classes, per_class, channels=64)

    def similarities(self, images: Tensor) -> Tensor:
        cells = self.add_on_layers(self.features(images))
        return functional.conv2d(cells, functional.normalize(self.prototype_vectors, dim=1))


class AuthorsDeformable(AuthorsNetwork):
    """2x2 parts at (±1, ±1), moved by offsets, on a map that is upsampled to twice its size."""

    def __init__(self, backbone: str, classes: int, per_class: int):
        width = make_features(backbone).eval()(torch.zeros(1, 3, 64, 64)).shape[1]
        super().__init__(backbone, classes, per_class, (width, 2, 2))
        self.conv_offset = nn.Sequential(
            nn.Conv2d(width + 2, 128, 4, padding=1), nn.ReLU(), nn.Conv2d(128, 8, 2, padding=1)
        )

    def similarities(self, images: Tensor) -> Tensor:
        maps = functional.interpolate(self.features(images), scale_factor=2, mode="bilinear")
        z = functional.pad(maps, (0, 0, 0, 0, 0, 2), value=TINY)
        z = 64 * z / (z.square().sum(dim=1, keepdim=True) + TINY).sqrt() / 2
        vectors = functional.pad(self.prototype_vectors, (0, 0, 0, 0, 0, 2), value=TINY)
        lengths = (vectors.square().sum(dim=1, keepdim=True) + TINY).sqrt() + TINY
        vectors = vectors / lengths / 2
        offsets = self.conv_offset(z).unflatten(1, (4, 2))
        rows, columns = torch.meshgrid(*map(torch.arange, z.shape[2:]), indexing="ij")
        total = 0
        for part in range(4):
            down = rows + 2 * (part // 2) - 1 + offsets[:, part, 0]
            right = columns + 2 * (part % 2) - 1 + offsets[:, part, 1]
            sample = interpolate(z.square(), down, right).sqrt()  # (N, C, H, W)
            one = vectors[:, :, part // 2, part % 2]
            total = total + torch.einsum("nchw,pc->nphw", sample, one)
        return (total / (64 * 1.01)).relu()


def interpolate(maps: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Bilinear interpolation of maps (N, C, H, W) at places (N, H, W), with zeros outside."""
    images = torch.arange(len(maps))[:, None, None]
    height, width = maps.shape[2:]
    total = 0
    for row in (down.floor(), down.floor() + 1):
        for column in (right.floor(), right.floor() + 1):
            weight = (1 - (down - row).abs()) * (1 - (right - column).abs())
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            r, c = row.clamp(0, height - 1).long(), column.clamp(0, width - 1).long()
            total = total + (maps[images, :, r, c] * (weight * inside)[..., None]).movedim(3, 1)
    return total


def make_checkpoint(kind: type[AuthorsNetwork], backbone: str, classes: int = 3) -> AuthorsNetwork:
    """A network with random weights, also of its batch norm and offsets, in evaluation mode."""
    torch.manual_seed(0)
    network = kind(backbone, classes, 2)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    if kind is AuthorsDeformable:
        nn.init.normal_(network.conv_offset[2].bias, std=0.4)  # parts that move, also off the map
    return network.eval()
