"""Prototypes that see nothing: what a measure gives to places that do not depend on the image."""

import numpy as np

from dpp.analysis.network import Network
from dpp.data.batches import ImageDataset
from dpp.evaluation.consistency import HALF, is_consistent, share_of_hits
from dpp.evaluation.keypoints import find_hits, find_marks, pixels
from dpp.evaluation.scores import mean


def blind_consistency(
    network: Network,
    dataset: ImageDataset,
    *,
    images: int | None = None,
    fixed: tuple[float, float] | None = None,
    prototypes: int = 100,
    seed: int = 0,
) -> float:
    """The consistency, in percent, of prototypes whose places have nothing to do with the image.

    Args:
        network: whose input and data are used; it sees no image.
        dataset: with marked parts.
        images: of each class, the first; all by default.
        fixed: the one place of all, as shares of the height and width; by default, another random
            one for each image.
        prototypes: of each class.
        seed: of random places.
    """
    marks, labels = find_marks(network, dataset), dataset.labels.numpy()
    random, found = np.random.default_rng(seed), []
    for label in np.unique(labels):
        own = marks[labels == label][:images]
        count = 1 if fixed else prototypes
        shape = (len(own), count, 2)
        places = np.broadcast_to(np.array(fixed or 0.0), shape)
        places = (places if fixed else random.uniform(size=shape)) * network.size
        hits = find_hits(places, own, pixels(HALF, network.size), network.size)
        visible, nobody = ~np.isnan(own[..., 0]), np.zeros(len(own), int)
        found.append(is_consistent(share_of_hits(hits, visible, nobody, 1))[0])
    return 100 * mean(np.concatenate(found))
