"""How small an explanation is, and how much of it is said twice.

Numbers of prototypes and of connections, as most papers on prototypes count them. PIP-Net counts
a connection as none if it is not above 0.001, and so every negative one: `original` does.
"""

import numpy as np
import torch

from dpp.analysis.network import Network
from dpp.data.batches import Splits
from dpp.evaluation.baselines import random_weights, some_classes
from dpp.evaluation.scores import Progress, Score, from_values, mean, not_measured, part_of
from dpp.evaluation.sightings import see
from dpp.networks.losses import own_class
from dpp.runs.pruning import compared, find_duplicates

SMALL = 1e-3  # PIP-Net's


def count_distinct(network: Network) -> int:
    """How many prototypes differ from all earlier ones of their class, or in a tree from all."""
    numbers = network.prototypes
    if network.is_tree:
        vectors, classes = network.model.prototypes.vectors, torch.zeros(len(network.labels))
    else:
        vectors, classes = compared(network.model), network.model.prototypes.classes
    first = find_duplicates(vectors[numbers].detach(), classes[numbers].to(vectors.device))
    return len(first.unique())


def measure(network: Network, splits: Splits, *, seed: int, progress: Progress) -> list[Score]:
    """Accuracy beside the size of what explains it."""
    labels, test = np.array(network.labels), splits.test.labels.numpy()
    other = random_weights(network, splits.projection, seed)
    passes = ((network, splits.test), (other, some_classes(splits.test)))
    correct, blind = (
        100.0 * (see(one, images, part_of(progress, place, 2)).predicted == images.labels.numpy())
        for place, (one, images) in enumerate(passes)
    )
    numbers, classes = network.prototypes.numpy(), len(network.source.class_names)
    distinct, by_class = count_distinct(network), np.bincount(labels[numbers], minlength=classes)
    most = 100 * np.bincount(test).max() / len(test)
    scores = [
        from_values(
            "accuracy",
            "",
            correct,
            seed,
            unit="%",
            better="higher",
            random_weights=mean(blind),
            note=f"always the most frequent class: {most:.1f} %",
        ),
        Score("prototypes", value=len(numbers), better="lower"),
        Score("prototypes a class", value=len(numbers) / classes, better="lower"),
        Score("distinct prototypes", value=distinct),
        Score("duplicates", value=100 * (1 - distinct / len(numbers)), unit="%", better="lower"),
    ]
    if network.is_tree:
        why = "does not apply: a tree has no connections"
        note = f"classes that are likeliest somewhere: {(by_class > 0).sum()} of {classes}"
        scores[2] = scores[2]._replace(note=note)
        return scores + [not_measured(name, why) for name in ("connections", "sparsity")]
    weight = network.model.last_layer.weight.detach().cpu()
    owned = own_class(torch.arange(classes), network.model.prototypes.classes.cpu())
    used, above = weight != 0, weight > SMALL
    note = f"to a prototype's own class {int((used & owned).sum())}, to others "
    scores += [
        Score(
            "connections",
            value=int(used.sum()),
            better="lower",
            original=int(above.sum()),
            note=note + str(int((used & ~owned).sum())),
        ),
        Score(
            "sparsity",
            value=100 * mean(~used.numpy()),
            unit="%",
            better="higher",
            original=100 * mean(~above.numpy()),
            note="connections that are zero",
        ),
    ]
    return scores
