"""The arrays that the paper's Figures 1 to 4 are drawn from, computed by a network."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from dpp.analysis.network import Network
from dpp.analysis.reasoning import find_matches, make_parts
from dpp.data.batches import ImageDataset
from dpp.data.image_records import Box
from dpp.data.pictures import Picture
from dpp.explanations import Match
from dpp.networks.model import DeformableProtoPNet, Output
from dpp.reference import resting_places
from dpp.system.errors import UserError


@dataclass(frozen=True)
class Block:
    """One stage of a network: its name and the shape of its output for one image."""

    name: str
    shape: tuple[int, ...]


@torch.no_grad()
def architecture_of(model: nn.Module, image_size: int) -> list[Block]:
    """The stages of a network, with the shapes of a real forward pass.

    Names: image, features, z, offsets, prototypes, similarities, scores, logits; those that the
    network does not have are left out.
    """
    parameter = next(model.parameters())
    image = torch.zeros(1, 3, image_size, image_size).to(parameter)
    features = model.backbone(image)
    output = model.eval().inspect(image)
    stages = {"image": image[0], "features": features[0], "z": output.z[0]}
    if getattr(output, "offsets", None) is not None:
        stages["offsets"] = output.offsets[0]
    stages["prototypes"] = model.prototypes.vectors
    if isinstance(model, DeformableProtoPNet):
        stages["prototypes"] = model.prototypes.normalised()
        numbers = torch.arange(output.scores.shape[1])
        stages["similarities"] = model.similarity_map(output.z, output.offsets, numbers)[0]
    stages |= {"scores": output.scores[0], "logits": output.logits[0]}
    return [Block(name, tuple(tensor.shape)) for name, tensor in stages.items()]


@dataclass(frozen=True, eq=False)
class Application:
    """A deformable prototype applied to an image (Figure 2); H x W cells, rho parts.

    Args:
        match: the prototype centred at one cell.
        features: (C + 1, H, W), on the hypersphere.
        offsets: (rho, 2, H, W), down and to the right, in cells; zero if the prototype is rigid.
        rest: (rho, 2), positions of the parts before they move, relative to the centre.
        rest_boxes: left, top, right, bottom of each part before it moves, in pixels.
        similarities: (H, W), with the prototype centred at each cell.
    """

    match: Match
    features: np.ndarray
    offsets: np.ndarray
    rest: np.ndarray
    rest_boxes: tuple[Box, ...]
    similarities: np.ndarray


@torch.no_grad()
def apply_prototype(
    network: Network,
    picture: Picture,
    prototype: int,
    centre: tuple[int, int] | None = None,
    *,
    rigid: bool = False,
) -> Application:
    """Everything that leads to the similarity of one prototype, centred at (a, b) of equation 5.

    Args:
        network: a Deformable ProtoPNet.
        picture: from `Network.picture`.
        prototype: its number.
        centre: row and column; by default where it is most similar (equation 8).
        rigid: hold the offsets at zero (Figure 1a).
    """
    model = check_deformable(network)
    held = (network.exchange(offsets=None) if rigid else network).model
    layer, number = model.prototypes, torch.tensor([prototype])
    z, offsets = held.locate(network.prepare(picture.tensor[None]))
    similarities = held.similarity_map(z, offsets, number)[0, 0]  # (H, W)
    height, width = cells = tuple(similarities.shape)
    if centre is None:
        centre = divmod(int(similarities.argmax()), width)
    if not (0 <= centre[0] < height and 0 <= centre[1] < width):
        raise UserError(
            f"the map of {network.name} has no cell {tuple(centre)}: choose a row from 0 to "
            f"{height - 1} and a column from 0 to {width - 1}"
        )
    cosines = similarities[centre].expand(1, len(network.labels))  # only this prototype's is read
    places = torch.full_like(cosines, centre[0] * width + centre[1], dtype=torch.long)
    field = held.offset_field(z, offsets, prototype)
    moved = field[..., centre[0], centre[1]].expand(1, len(network.labels), -1, -1)
    output = Output(cosines, model.activate(cosines), places, offsets, z, cosines, moved)
    connections = model.last_layer.weight[network.labels[prototype], number]
    (match,) = find_matches(network, output, picture, number, connections)
    rest = np.array(resting_places(layer.kernel_size, layer.geometry["dilation"]))
    (resting,) = make_parts(picture.geometry, cells, (rest + match.centre)[None])
    return Application(
        match=match,
        features=z[0].cpu().numpy(),
        offsets=field.cpu().numpy(),
        rest=rest,
        rest_boxes=tuple(part.box for part in resting),
        similarities=similarities.cpu().numpy(),
    )


@dataclass(frozen=True, eq=False)
class LatentSpace:
    """Prototypes and features around them on the hypersphere (Figure 4); all vectors of length 1.

    Args:
        labels: (c,), of the classes.
        prototypes: (c, (C + 1) rho), one of each class, its parts in one vector.
        parts: (c, rho, C + 1), the same, part by part.
        features: (N, (C + 1) rho), of N images, under the first class's prototype where it is most
            similar.
        patches: (N, rho, C + 1), the features of each image under the prototype of its own class.
        image_labels: (N,).
        margin: phi of equation 12.
    """

    labels: np.ndarray
    prototypes: np.ndarray
    parts: np.ndarray
    features: np.ndarray
    patches: np.ndarray
    image_labels: np.ndarray
    margin: float


@torch.no_grad()
def latent_space_of(
    network: Network,
    dataset: ImageDataset,
    labels: Sequence[int],
    *,
    margin: float,
    images: int = 20,
) -> LatentSpace:
    """The first prototype of each class, and the features of images under it.

    Args:
        network: a Deformable ProtoPNet.
        dataset: un-augmented.
        labels: of the classes.
        margin: phi of equation 12.
        images: of each class, at most.
    """
    model = check_deformable(network)
    layer, owners = model.prototypes, np.array(network.labels)
    firsts = torch.tensor([int(np.flatnonzero(owners == label)[0]) for label in labels])
    image_labels = dataset.labels.numpy()
    chosen = [index for label in labels for index in np.flatnonzero(image_labels == label)[:images]]
    output = network.inspect(dataset.batch([(0, int(index)) for index in chosen]).images)
    samples = model.sample(output, firsts)
    own = torch.tensor([labels.index(int(image_labels[index])) for index in chosen])
    rows = torch.arange(len(own))
    prototypes = layer.normalised()[firsts]  # (c, C + 1, K, K)
    by_part = {"start_dim": -2}
    parts, patches = (x.flatten(**by_part).mT for x in (prototypes, samples[rows, own]))
    return LatentSpace(
        labels=np.array(labels),
        prototypes=prototypes.flatten(1).cpu().numpy(),
        parts=(parts / layer.length).cpu().numpy(),
        features=samples[:, 0].flatten(1).cpu().numpy(),
        patches=(patches / layer.length).cpu().numpy(),
        image_labels=image_labels[chosen],
        margin=margin,
    )


def check_deformable(network: Network) -> DeformableProtoPNet:
    if not isinstance(network.model, DeformableProtoPNet):
        raise UserError(f"{network.name} has no deformable prototypes: choose a deformable run")
    return network.model
