"""Whether the prototypes of a class are many or one: source images, places and cosines.

Stage 2 gives every prototype the most similar patch, whatever the others took, so that a class of
ten prototypes may end on one patch of one image. Then its explanations repeat themselves, and its
accuracy does not show it. Two prototypes share a place by the rule that `projection="distinct"`
keeps them apart by (`dpp.extensions.distinct_projection.share_place`).
"""

from collections.abc import Iterable, Sequence
from math import isqrt

import torch
from torch import Tensor
from torch.nn import functional

from dpp.analysis.network import Network, read_origins
from dpp.explanations import Collapse, Share
from dpp.extensions.distinct_projection import share_place
from dpp.networks.prototypes import Prototypes
from dpp.runs import Run
from dpp.training.projection import Origin

SHARED = "same image, less than a part apart"  # the rule in words


def group_places(origins: Iterable[Origin]) -> tuple[tuple[int, ...], ...]:
    """Prototypes of one class by the place that they come from.

    Sharing a place is not transitive: an origin is compared with the first of each place.

    Args:
        origins: of the prototypes, in the order in which places are counted.

    Returns:
        The numbers of the prototypes at each place.
    """
    places: list[list[Origin]] = []
    for origin in origins:
        spacing = 1 if isqrt(len(origin.parts)) % 2 else 2  # parts of an even K: two cells apart
        for place in places:
            first = place[0]
            if first.image == origin.image and share_place(first.centre, origin.centre, spacing):
                place.append(origin)
                break
        else:
            places.append([origin])
    return tuple(tuple(origin.prototype for origin in place) for place in places)


def measure_collapse(
    origins: Sequence[Origin], vectors: Tensor, label: int | None = None
) -> Collapse:
    """How far the prototypes of one class have become one.

    Args:
        origins: of Q prototypes, at least one.
        vectors: (Q, ...), of the prototypes.
        label: the class.
    """
    rows = functional.normalize(vectors.detach().double().flatten(1), dim=1)
    first, second = torch.triu_indices(len(rows), len(rows), offset=1)
    cosines = (rows @ rows.T)[first, second]
    return Collapse(
        label=label,
        prototypes=len(origins),
        images=len({origin.image for origin in origins}),
        places=group_places(origins),
        mean_cosine=float(cosines.mean()) if len(cosines) else None,
        largest_cosine=float(cosines.max()) if len(cosines) else None,
    )


def run_duplicates(run: Run) -> Share:
    """Prototypes of a run at the place of an earlier one, without its network."""
    by_class: dict[int | None, list[Origin]] = {}
    for origin in read_origins(run.origins).values():
        label = None if run.experiment.model == "prototree" else origin.label
        by_class.setdefault(label, []).append(origin)
    count = sum(len(own) - len(group_places(own)) for own in by_class.values())
    return Share(count, len(run.origins))


@torch.no_grad()
def network_collapse(network: Network) -> tuple[Collapse, ...]:
    """The same for each class of a network that has prototypes; for a tree, for all at once."""
    layer = network.model.prototypes
    vectors = layer.normalised() if isinstance(layer, Prototypes) else layer.vectors
    vectors = vectors.cpu()
    numbers = [number for number in network.prototypes.tolist() if number in network.origins]
    by_class: dict[int | None, list[int]] = {}
    for number in numbers:
        label = None if network.is_tree else network.labels[number]
        by_class.setdefault(label, []).append(number)
    return tuple(
        measure_collapse([network.origins[one] for one in members], vectors[members], label)
        for label, members in by_class.items()
    )
