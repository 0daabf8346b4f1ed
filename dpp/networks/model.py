"""Deformable ProtoPNet: backbone, offset branch, deformable prototypes, last layer (section 4).

The four are the network's children; a training schedule refers to them by name.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dpp import ops
from dpp.backbones.backbone import Backbone
from dpp.networks.prototypes import OffsetBranch, Prototypes
from dpp.networks.released import PAPER, ReleasedSwitches
from dpp.reference import resting_places

OWN_CONNECTION = 1.0
OTHER_CONNECTION = -0.5
FEW = 64  # prototypes that are sampled at a time: fresh large buffers cost page faults


class Output(NamedTuple):
    """What the network saw in N images."""

    logits: Tensor  # (N, classes)
    scores: Tensor  # (N, P), each prototype's similarity to the image (equation 8)
    places: Tensor  # (N, P), its centre there, a flat index into H*W
    offsets: Tensor | None  # (N, 2*K*K, H, W), None if the prototypes are rigid
    z: Tensor  # (N, C + 1, H, W), the features on the hypersphere
    cosines: Tensor  # (N, P), the scores before the released code's ReLU; else the same
    moved: Tensor | None = None  # (N, P, K*K, 2), of parts that no offsets move, in cells

    def of_images(self, rows: slice | Tensor) -> "Output":
        """The same of some images, by slice or by their indices."""
        return Output(*(None if values is None else values[rows] for values in self))


class DeformableProtoPNet(nn.Module):
    """The paper's network.

    Args:
        backbone: whose features are non-negative.
        classes: how many.
        per_class: prototypes of a class.
        kernel_size: K; the paper has 3 with 6 prototypes a class, and 2 with 10.
        deformable: if not, the same network with its offsets held at zero.
        switches: of the released code.
        connect: makes the last layer, as `make_last_layer` does.
    """

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        *,
        per_class: int = 6,
        kernel_size: int = 3,
        deformable: bool = True,
        switches: ReleasedSwitches = PAPER,
        connect: Callable[[int, Tensor], nn.Module] | None = None,
    ):
        super().__init__()
        self.backbone = backbone
        self.prototypes = Prototypes(backbone.channels, classes, per_class, kernel_size, switches)
        channels = backbone.channels + self.prototypes.extra
        self.offsets = OffsetBranch(channels, kernel_size, switches) if deformable else None
        self.last_layer = (connect or make_last_layer)(classes, self.prototypes.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 3, H, W)."""
        return self.inspect(images).logits

    def inspect(self, images: Tensor, normalised: Tensor | None = None) -> Output:
        """The logits of images, and every intermediate result that explains them.

        Args:
            images: (N, 3, H, W).
            normalised: `prototypes.normalised()`, if it is computed already.
        """
        z, offsets = self.locate(images)
        cosines, places = self.prototypes(z, offsets, normalised)
        scores = self.activate(cosines)
        return Output(self.last_layer(scores), scores, places, offsets, z, cosines)

    def locate(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """The features on the hypersphere, and how far each part moves from each centre."""
        z = self.prototypes.place_features(self.backbone(images))
        return z, None if self.offsets is None else self.offsets(z)

    def activate(self, cosines: Tensor) -> Tensor:
        """Scores from cosines: the same, or their ReLU if the released code's switch is on."""
        return cosines.relu() if self.prototypes.switches.clipped_cosine else cosines

    @torch.no_grad()
    def find_parts(self, output: Output, image: int, prototypes: Tensor) -> tuple[Tensor, Tensor]:
        """Where the parts of some prototypes lie on an image, and what each adds to their scores.

        Args:
            output: of `inspect`.
            image: which of its images.
            prototypes: (Q,).

        Returns:
            places (Q, K*K, 2), rows and columns a' + m + offset, in cells from the first one's
            centre; and contributions (Q, K*K), whose sums are the scores (equation 7).
        """
        layer, one = self.prototypes, output.of_images(slice(image, image + 1))
        shares = []
        for few in prototypes.split(FEW):
            samples = self.sample(one, few)[0]
            shares.append((samples * layer.normalised(few)).sum(dim=1).flatten(1))
        shares = layer.damp(torch.cat(shares))
        if layer.switches.clipped_cosine:
            shares = shares * (output.cosines[image, prototypes, None] > 0)
        return self.part_places(one, prototypes)[0], shares

    def sample(self, output: Output, prototypes: Tensor) -> Tensor:
        """(N, Q, C + 1, K, K): the features under the parts of prototypes (Q,) on N images."""
        layer = self.prototypes
        shape = {"kernel_size": layer.kernel_size} | layer.geometry
        return ops.sample_parts(output.z, output.offsets, output.places[:, prototypes], **shape)

    def similarity_map(self, z: Tensor, offsets: Tensor | None, prototypes: Tensor) -> Tensor:
        """The similarity (N, Q, H, W) of prototypes (Q,), centred at each cell (equation 5)."""
        layer = self.prototypes
        vectors = layer.normalised(prototypes)
        return layer.damp(ops.similarity_map(z, offsets, vectors, **layer.geometry))

    def offset_field(self, z: Tensor, offsets: Tensor | None, prototype: int) -> Tensor:
        """(K*K, 2, H, W): how far a prototype's parts move on one image, from each centre."""
        if offsets is None:
            return z.new_zeros(self.prototypes.kernel_size**2, 2, *z.shape[2:])
        return offsets[0].unflatten(0, (-1, 2))

    @torch.no_grad()
    def part_places(self, output: Output, prototypes: Tensor) -> Tensor:
        """Where the parts of some prototypes (Q,) lie on all N images of an output.

        Returns:
            (N, Q, K*K, 2), rows and columns a' + m + offset, in cells from the first one's centre.
        """
        layer, centres = self.prototypes, output.places[:, prototypes]
        rest = resting_places(layer.kernel_size, layer.geometry["dilation"])
        width = output.z.shape[3]
        cells = torch.stack([centres // width, centres % width], dim=2)
        places = cells[:, :, None] + output.z.new_tensor(rest)
        moved = self.displacements(output, prototypes)
        return places if moved is None else places + moved

    def displacements(self, output: Output, prototypes: Tensor) -> Tensor | None:
        """How far the parts of prototypes (Q,) moved from rest, at their centres on N images.

        Returns:
            (N, Q, K*K, 2), down and to the right, in cells; None if they are rigid.
        """
        if output.offsets is None:
            return None if output.moved is None else output.moved[:, prototypes]
        return offsets_at(output.offsets, output.places[:, prototypes])

    def measure(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Metrics of each of N images.

        Returns:
            `accuracy` (N,), 0 or 1. If parts move, also `offset` (N,): the median, over all
            prototypes at their best centres and over their parts, of how far a part has moved, in
            cells; and `active` (N,), see `OffsetBranch.watch`.
        """
        watched = isinstance(self.offsets, OffsetBranch)
        with self.offsets.watch() if watched else nullcontext() as active:
            output = self.inspect(images)
        metrics = {"accuracy": (output.logits.argmax(dim=1) == labels).float()}
        moved = self.displacements(output, torch.arange(output.scores.shape[1]))
        if moved is not None:
            metrics["offset"] = moved.to(output.z).norm(dim=3).flatten(1).median(dim=1).values
        return metrics | ({"active": active[0]} if watched else {})

    @torch.no_grad()
    def keep(self, prototypes: Tensor) -> None:
        """Removes all prototypes but these (Q,), and their connections; the order stays."""
        kept = prototypes.sort().values
        vectors = self.prototypes.vectors[kept].contiguous(memory_format=torch.channels_last)
        self.prototypes.vectors = nn.Parameter(vectors)
        self.prototypes.classes = self.prototypes.classes[kept]
        self.last_layer.weight = nn.Parameter(self.last_layer.weight[:, kept].clone())
        self.last_layer.in_features = len(kept)


def make_last_layer(classes: int, prototype_classes: Tensor) -> nn.Linear:
    """Connections from prototypes to classes: for their own, and against the others."""
    layer = nn.Linear(len(prototype_classes), classes, bias=False)
    own = torch.arange(classes)[:, None] == prototype_classes
    with torch.no_grad():
        layer.weight.copy_(torch.where(own, OWN_CONNECTION, OTHER_CONNECTION))
    return layer


def offsets_at(offsets: Tensor, places: Tensor) -> Tensor:
    """How far each part has moved from given centres.

    Args:
        offsets: (N, 2*K*K, H, W).
        places: (N, P), flat indices into H*W.

    Returns:
        (N, P, K*K, 2), down and to the right, in cells.
    """
    index = places[:, None].expand(-1, offsets.shape[1], -1)
    return offsets.flatten(2).gather(2, index).transpose(1, 2).unflatten(2, (-1, 2))


def centre_cells(output, image: int, prototypes: Tensor) -> Tensor:
    """(Q, 2), row and column of the cell where each of the prototypes (Q,) is centred."""
    place, width = output.places[image, prototypes], output.z.shape[3]
    return torch.stack([place // width, place % width], dim=1)


def find_cells(model, output, image: int, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """`find_parts` of networks whose prototypes have one part, a cell: it makes the whole score."""
    cells = centre_cells(output, image, prototypes).to(output.scores)
    return cells[:, None], output.scores[image, prototypes, None]
