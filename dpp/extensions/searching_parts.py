"""Beyond the paper: a network whose parts search for their places; no table of the paper uses it.

The paper names as its limitation that all prototypes share the offsets at a place. Here each part
of each prototype looks around its rest for itself, less a cost of moving that is learned, as in
deformable part models (Felzenszwalb et al., "Object detection with discriminatively trained
part-based models", 2010); `dpp.extensions.part_search` has the equation. Projection is that of
rigid prototypes: a prototype is a patch of its source image, and its parts rest as they lie there.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpp.backbones.backbone import Backbone
from dpp.extensions.part_search import (
    displacements_at,
    landing_rows,
    margin_of,
    max_searched_similarity,
    padded_products,
    rows_of,
    search_map,
)
from dpp.methods import deformable
from dpp.networks.model import DeformableProtoPNet, Output
from dpp.training.experiments import Experiment

START = 0.1  # the cost of one cell when joint training starts, as a share of r^2
RIGID = 64.0  # before it: no part gains so much


class PartSearch(nn.Module):
    """The costs of moving the parts of P prototypes; they do not move until `reset_parameters`.

    Args:
        prototypes: how many.
        kernel_size: K.
        reach: how far a part may go, in whole cells down and to the right.
    """

    def __init__(self, prototypes: int, kernel_size: int, reach: int):
        super().__init__()
        self.reach = reach
        self.stiffness = nn.Parameter(torch.full((prototypes, kernel_size**2), RIGID))

    def costs(self) -> Tensor:
        """(P, K*K), of a part that has moved by one cell; for d cells, d^2 times as much."""
        parts = self.stiffness.shape[1]
        return functional.softplus(self.stiffness) / parts  # of r^2 = 1 / parts

    @torch.no_grad()
    def reset_parameters(self, deviation: float | None = None) -> None:
        """Gives all parts the cost that joint training starts from; nothing is drawn."""
        self.stiffness.fill_(math.log(math.expm1(START)))


class SearchingProtoPNet(DeformableProtoPNet):
    """The paper's network with parts that search, in place of predicted offsets.

    Without its child `offsets`, its parts are at rest, as those of the paper's network are.

    Args:
        backbone, classes: as for `DeformableProtoPNet`.
        reach: how far a part may go, in cells.
        shape: `per_class` and `kernel_size`, as for `DeformableProtoPNet`.
    """

    def __init__(self, backbone: Backbone, classes: int, *, reach: int = 1, **shape: int):
        super().__init__(backbone, classes, **shape, deformable=False)
        layer = self.prototypes
        self.offsets = PartSearch(len(layer.vectors), layer.kernel_size, reach)

    def inspect(self, images: Tensor, normalised: Tensor | None = None) -> Output:
        """As `DeformableProtoPNet.inspect`."""
        if self.offsets is None:
            return super().inspect(images, normalised)
        z, _ = self.locate(images)
        vectors = self.prototypes.normalised() if normalised is None else normalised
        costs, reach = self.offsets.costs(), self.offsets.reach
        geometry = self.prototypes.geometry
        cosines, places, moved = max_searched_similarity(z, vectors, costs, reach, **geometry)
        return Output(self.last_layer(cosines), cosines, places, None, z, cosines, moved)

    def locate(self, images: Tensor) -> tuple[Tensor, None]:
        """The features on the hypersphere, and None: no offsets are shared."""
        return self.prototypes.place_features(self.backbone(images)), None

    def find_parts(self, output: Output, image: int, prototypes: Tensor) -> tuple[Tensor, Tensor]:
        """As `DeformableProtoPNet.find_parts`; what a part adds is less its cost of moving."""
        places, shares = super().find_parts(output, image, prototypes)
        if output.moved is None:
            return places, shares
        squares = output.moved[image, prototypes].square().sum(dim=2)
        return places, shares - self.offsets.costs().detach()[prototypes] * squares

    def sample(self, output: Output, prototypes: Tensor) -> Tensor:
        """As `DeformableProtoPNet.sample`."""
        if output.moved is None:
            return super().sample(output, prototypes)
        geometry, kernel_size = self.prototypes.geometry, self.prototypes.kernel_size
        centres, moved = output.places[:, prototypes], output.moved[:, prototypes].long()
        landed = landing_rows(output.z, centres, moved, kernel_size, geometry["dilation"])
        samples = rows_of(output.z, self.prototypes.length)[landed]  # (N, Q, parts, C + 1)
        return samples.mT.unflatten(3, (kernel_size, kernel_size))

    @torch.no_grad()
    def similarity_map(self, z: Tensor, offsets: None, prototypes: Tensor) -> Tensor:
        """As `DeformableProtoPNet.similarity_map`."""
        if self.offsets is None:
            return super().similarity_map(z, offsets, prototypes)
        layer, costs = self.prototypes, self.offsets.costs()[prototypes]
        given = (self.offsets.reach, layer.geometry["dilation"], layer.length)
        return search_map(z, layer.normalised(prototypes), costs, *given)[0]

    @torch.no_grad()
    def offset_field(self, z: Tensor, offsets: None, prototype: int) -> Tensor:
        """As `DeformableProtoPNet.offset_field`."""
        if self.offsets is None:
            return super().offset_field(z, offsets, prototype)
        centres = torch.arange(z[0, 0].numel(), device=z.device)[None]
        numbers = torch.full_like(centres[0], prototype)
        return self.displace(z, centres, numbers)[0].permute(1, 2, 0).unflatten(2, z.shape[2:])

    def displace(self, z: Tensor, centres: Tensor, prototypes: Tensor) -> Tensor:
        """(N, Q, K*K, 2): where the parts of prototypes (Q,) go from centres (N, Q)."""
        layer, reach = self.prototypes, self.offsets.reach
        costs = self.offsets.costs()[prototypes]
        margin = margin_of(layer.kernel_size, layer.geometry["dilation"], reach)
        products = padded_products(z, layer.normalised(prototypes), margin, layer.length)
        given = (reach, layer.geometry["dilation"], tuple(z.shape[2:]))
        return displacements_at(products, centres, costs, *given)[0]

    @torch.no_grad()
    def keep(self, prototypes: Tensor) -> None:
        """Removes all prototypes but these (Q,), their costs and their connections."""
        super().keep(prototypes)
        kept = prototypes.sort().values
        self.offsets.stiffness = nn.Parameter(self.offsets.stiffness[kept].clone())


def build(experiment: Experiment, backbone: Backbone, classes: int) -> SearchingProtoPNet:
    """The network of an experiment whose deformation is search."""
    shape = {"per_class": experiment.per_class, "kernel_size": experiment.kernel_size}
    return SearchingProtoPNet(backbone, classes, reach=experiment.search_reach, **shape)


METHOD = deformable.METHOD._replace(build=build)  # trained as the paper's network is
