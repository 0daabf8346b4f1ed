"""ProtoTree (Nauta, van Bree and Seifert, CVPR 2021): training, pruning and projection.

The network is in `dpp.networks.soft_tree`. Backbone and prototypes learn by gradient descent, the
leaves by a derivative-free update beside it.

Differences from its released code: all of the backbone has one rate (there, the last block of a
ResNet-50 has the prototypes' rate); each `Phase` begins with a new Adam, which equals their AdamW
where the weight decay is 0; and similarities are taken at one patch, found without a gradient,
which gives the gradient of the minimum.
"""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from dpp.data.batches import Batch, ImageDataset, to_device
from dpp.networks.soft_tree import Leaves, ProtoTree
from dpp.system.files import sha256
from dpp.training import projection
from dpp.training.experiments import Experiment
from dpp.training.projection import Origin
from dpp.training.trainer import Method, Phase, Schedule, Trainer

THRESHOLD = 0.01  # of pruning, as published: about twice 1/200


def objective(model: ProtoTree, images: Tensor, labels: Tensor, phase: Phase) -> dict[str, Tensor]:
    """Minus the log likelihood of the soft prediction, averaged; and a step of the leaves.

    The leaves' step uses this prediction, made before the weights move, as algorithm 1 does.
    """
    output = model.inspect(images, "soft")
    entropy = functional.nll_loss(output.logits, labels)
    model.leaves.update(output.paths.detach(), labels)
    correct = (output.logits.argmax(dim=1) == labels).float()
    return {"loss": entropy, "cross_entropy": entropy, "accuracy": correct.mean()}


def choose_threshold(classes: int) -> float:
    """Of pruning: twice the odds of a class of a uniform leaf, and not less than as published.

    The paper wants it a little above 1/classes: 0.01 for CUB. For ten classes, it is 0.18.
    """
    return max(THRESHOLD, 2 / (classes + 1))


@torch.no_grad()
def prune(model: ProtoTree, threshold: float | None = None) -> None:
    """Prunes leaves that favour no class; a node with one side left is replaced by that side.

    The two most certain leaves stay in any case, and so a decision between them.

    Args:
        model: is changed.
        threshold: of a leaf's largest probability; by default from `choose_threshold`.
    """
    leaves = model.leaves
    if threshold is None:
        threshold = choose_threshold(leaves.evidence.shape[1])
    largest = leaves().exp().amax(dim=1).where(leaves.kept, 0)
    leaves.kept &= largest > threshold
    leaves.kept[largest.topk(2).indices] = True


@torch.no_grad()
def project(model: ProtoTree, batches: Iterable[Batch], dataset: ImageDataset) -> list[Origin]:
    """Replaces each prototype by its nearest patch in all images, of whatever class.

    Args:
        model: whose prototypes are replaced, those of nodes that are left.
        batches: of the images, un-augmented.
        dataset: what they are batches of.

    Returns:
        An origin for each node that is left; its `prototype` is the node's number. A prototype has
        no class of its own: `label` is the most likely one where it is present, of the leaves to
        the node's right.
    """
    model.eval()
    vectors = model.prototypes.vectors
    nearest = torch.full_like(vectors[:, 0], torch.inf)
    source = torch.zeros(len(vectors), 2, dtype=torch.long, device=vectors.device)  # image, place
    patch = torch.empty_like(vectors)
    for batch in batches:
        z = model.locate(to_device(batch.images, vectors.device))
        distances, places, patches = model.prototypes(z)
        distance, row = distances.min(dim=0)  # (nodes,), and which image
        better = (distance < nearest).nonzero().flatten()
        row = row[better]
        nearest[better], patch[better] = distance[better], patches[row, better]
        indices = batch.indices.to(row.device)[row]
        source[better] = torch.stack([indices, places[row, better]], dim=1)
    forks = model.forks
    vectors[forks] = patch[forks]
    labels, cells = labels_to_the_right(model.leaves), tuple(z.shape[2:])
    origins = []
    for node in forks.nonzero().flatten().tolist():
        image, place = source[node].tolist()
        record, centre = dataset.records[image], divmod(place, cells[1])
        similarity, parts = float((-nearest[node]).exp()), (tuple(map(float, centre)),)
        named = (node, labels[node], record.id, sha256(record.path))
        origins.append(Origin(*named, similarity, cells, centre, parts))
    return origins


def labels_to_the_right(leaves: Leaves) -> list[int]:
    """Of each node, the class with the largest sum over the leaves to its right."""
    known = leaves().exp() * leaves.kept[:, None]
    depth = len(known).bit_length() - 1
    sums = [known.unflatten(0, (2**level, 2, -1))[:, 1].sum(dim=1) for level in range(depth)]
    return torch.cat(sums).argmax(dim=1).tolist()


def make_schedule(experiment: Experiment) -> Schedule:
    """Frozen backbone; all of it; all of it at falling rates; then pruning and projection.

    As published: 30 epochs, 30, and 40 whose rates are halved at once and after each 10; weight
    decay 0.
    """
    rates = {"prototypes": experiment.prototype_rate, "add_on": experiment.prototype_rate}
    joint = rates | {"backbone": experiment.backbone_rate}
    falling = {name: rate * experiment.decay for name, rate in joint.items()}
    epochs = experiment.epochs - experiment.warm_epochs - experiment.second_warm_epochs
    decay = {"decay": experiment.decay, "decay_every": experiment.decay_every}
    return Schedule(
        phases=(
            Phase("warm", experiment.warm_epochs, rates),
            Phase("joint", experiment.second_warm_epochs, joint),
            Phase("falling", epochs, falling, **decay),
        ),
        stages=("prune", "project"),
        after=experiment.project_after,
        weight_decay={"backbone": experiment.weight_decay},
    )


def prune_stage(trainer: Trainer) -> dict[str, float]:
    prune(trainer.model)
    kept, forks = trainer.model.leaves.kept, trainer.model.forks
    return {"leaves": int(kept.sum()), "nodes": int(forks.sum())}


METHOD = Method(
    build=lambda experiment, backbone, classes: ProtoTree(backbone, classes),
    objective=lambda experiment: objective,
    schedule=make_schedule,
    stages=lambda experiment: {
        "prune": prune_stage,
        "project": partial(projection.stage, project=project),
    },
)
