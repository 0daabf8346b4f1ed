"""ProtoTree (Nauta, van Bree and Seifert, CVPR 2021): prototypes in the nodes of a soft tree.

At each inner node of a full binary tree an image goes right as far as it has the node's prototype,
and left as far as it has not; each leaf has a distribution over the classes. Backbone and
prototypes learn by gradient descent, the leaves without gradients, beside it. Equations are those
of that paper. Nodes are numbered as in a heap: the children of node n are 2n + 1, to the left, and
2n + 2; leaves from left to right.

What differs from its released code: all of the backbone has one rate (there, the last block of a
ResNet-50 has the prototypes' rate); each `Phase` begins with a new Adam, which is AdamW where the
weight decay is 0, as theirs is; similarities are taken at one patch, found without a gradient,
which is the gradient of the minimum; and probabilities are logarithms throughout.
"""

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpp.data.batches import Batch, ImageDataset, to_device
from dpp.networks.backbones import Backbone
from dpp.networks.model import find_cells
from dpp.system.errors import UserError
from dpp.system.files import sha256
from dpp.training import projection
from dpp.training.experiments import Experiment
from dpp.training.projection import Origin
from dpp.training.trainer import Method, Phase, Schedule, Trainer

CHANNELS = 256  # of the patches that prototypes are compared with; as the backbone, if it has fewer
FLOOR = 1e-6  # a smaller distance counts as this one for going left, whose logarithm stays finite
THRESHOLD = 0.01  # of pruning, as published: about twice 1/200
ROUTINGS = ("soft", "hard")


class Output(NamedTuple):
    """What the tree saw in N images."""

    logits: Tensor  # (N, classes), logarithms of probabilities
    scores: Tensor  # (N, nodes), exp(-distance), each prototype's similarity to the image
    places: Tensor  # (N, nodes), of the nearest patch, a flat index into H*W
    branches: Tensor  # (N, nodes, 2), log probability of going left and right
    paths: Tensor  # (N, leaves), log probability of each path
    leaves: Tensor  # (N,), where the greedy path ends
    z: Tensor  # (N, C, H, W), the patches


def choose_depth(classes: int) -> int:
    """One more than classes need: 9 for the 200 of CUB, as published; 5 for 10."""
    return (classes - 1).bit_length() + 1


class NodePrototypes(nn.Module):
    """A prototype of one cell for each inner node.

    Args:
        nodes: how many.
        channels: of the patches, which lie between 0 and 1.
    """

    def __init__(self, nodes: int, channels: int):
        super().__init__()
        self.vectors = nn.Parameter(0.5 + 0.1 * torch.randn(nodes, channels))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Equation 1: how far each prototype is from its nearest patch.

        Args:
            z: (N, C, H, W).

        Returns:
            distances (N, nodes), places (N, nodes), flat indices into H*W, and the patches there
            (N, nodes, C).
        """
        cells = z.flatten(2)  # (N, C, H*W)
        with torch.no_grad(), torch.autocast(z.device.type, enabled=False):
            products = self.vectors @ cells  # (N, nodes, H*W)
            places = (cells.square().sum(dim=1, keepdim=True) - 2 * products).argmin(dim=2)
        there = places[:, None].expand(-1, cells.shape[1], -1)
        patches = cells.gather(2, there).transpose(1, 2)
        return torch.linalg.vector_norm(patches - self.vectors, dim=2), places, patches


class Leaves(nn.Module):
    """Distributions over the classes, learned without gradients, and which of them are pruned.

    All of it is in buffers, also what an epoch under way has summed up: a state that is taken
    between two steps is complete.

    Args:
        count: how many leaves.
        classes: how many.
    """

    def __init__(self, count: int, classes: int):
        super().__init__()
        self.register_buffer("evidence", torch.zeros(count, classes))  # c_l
        self.register_buffer("evidence_before", torch.zeros(count, classes))  # when the epoch began
        self.register_buffer("steps", torch.tensor(0))  # of this epoch, so far
        self.register_buffer("steps_before", torch.tensor(1))  # of the epoch before
        self.register_buffer("kept", torch.ones(count, dtype=torch.bool))

    def forward(self) -> Tensor:
        """The logarithms of the distributions, softmax(c_l): (leaves, classes)."""
        return self.evidence.log_softmax(dim=1)

    @torch.no_grad()
    def update(self, paths: Tensor, labels: Tensor) -> None:
        """One batch of the derivative-free update (equation 5 in algorithm 1).

        Over an epoch of B batches, what the last epoch found gives way to
        c_l = sum over images of softmax(c_l) * onehot(y) * path_l / prediction:
        each batch takes away 1/B of the old sum and adds its images' shares. The softmax is of the
        sum as it stands. An image's shares of the leaves are 1 in all: only its own class counts,
        and there the prediction is the sum over leaves of what it divides.

        Args:
            paths: (N, leaves), log probability of each path.
            labels: (N,).
        """
        shares = (paths + self()[:, labels].T).softmax(dim=1)
        self.evidence.sub_(self.evidence_before / self.steps_before).relu_()
        self.evidence.index_add_(1, labels, shares.T.to(self.evidence))
        self.steps += 1

    @torch.no_grad()
    def end_epoch(self) -> None:
        """The sum over an epoch is complete: the next one replaces it. Nothing, if none began."""
        if self.steps:
            self.evidence_before.copy_(self.evidence)
            self.steps_before.copy_(self.steps)
            self.steps.zero_()


class ProtoTree(nn.Module):
    """A tree of prototypes over a backbone; gradient descent trains all children but `leaves`.

    Args:
        backbone: where its features come from.
        classes: how many.
        depth: of the tree, with 2**depth leaves; by default from `choose_depth`.
        routing: how `forward` predicts, "soft", by all paths, as the published accuracies are, or
            "hard", by the greedy one.
    """

    def __init__(
        self, backbone: Backbone, classes: int, *, depth: int | None = None, routing: str = "soft"
    ):
        super().__init__()
        if routing not in ROUTINGS:
            raise UserError(f"routing: {routing!r} is none of {', '.join(ROUTINGS)}")
        depth = choose_depth(classes) if depth is None else depth
        channels = min(CHANNELS, backbone.channels)
        self.routing = routing
        self.backbone = backbone
        convolution = nn.Conv2d(backbone.channels, channels, 1, bias=False)
        nn.init.xavier_normal_(convolution.weight)
        self.add_on = nn.Sequential(convolution, nn.Sigmoid())
        self.prototypes = NodePrototypes(2**depth - 1, channels)
        self.leaves = Leaves(2**depth, classes)

    def train(self, mode: bool = True) -> "ProtoTree":
        """As of any module; and evaluation, which follows every epoch, ends one of the leaves'.

        The loss of a step cannot know to which epoch it belongs. A trainer that goes on within an
        epoch calls `train` of the children alone, and no epoch ends.
        """
        if not mode:
            self.leaves.end_epoch()
        return super().train(mode)

    def forward(self, images: Tensor) -> Tensor:
        """Logarithms of class probabilities (N, classes) of images (N, 3, H, W)."""
        return self.inspect(images).logits

    def inspect(self, images: Tensor, routing: str | None = None) -> Output:
        """All that the reasoning about images (N, 3, H, W) goes through."""
        z = self.locate(images)
        distances, places, _ = self.prototypes(z)
        branches = branch_probabilities(distances, self.leaves.kept)
        paths, ends = path_probabilities(branches), greedy_leaves(branches)
        if (routing or self.routing) == "soft":
            logits = mix(paths, self.leaves())
        else:
            logits = self.leaves()[ends]
        return Output(logits, (-distances).exp(), places, branches, paths, ends, z)

    def locate(self, images: Tensor) -> Tensor:
        """The patches (N, C, H, W) that prototypes are compared with, in single precision."""
        z = self.add_on(self.backbone(images))
        return z.to(torch.promote_types(z.dtype, torch.float32))

    def measure(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """`accuracy` (N,), 0 or 1, of each image, and `hard_accuracy`, that of the greedy path."""
        output = self.inspect(images)
        greedy = self.leaves.evidence[output.leaves]
        return {
            "accuracy": (output.logits.argmax(dim=1) == labels).float(),
            "hard_accuracy": (greedy.argmax(dim=1) == labels).float(),
        }

    find_parts = find_cells

    @property
    def forks(self) -> Tensor:
        """(nodes,), whether the node is left: both its sides have leaves that are not pruned."""
        return sides_left(self.leaves.kept).all(dim=1)


def sides_left(kept: Tensor) -> Tensor:
    """(nodes, 2), whether a leaf is left to the left and to the right, of leaves kept or not."""
    depth = len(kept).bit_length() - 1
    return torch.cat([kept.view(2**level, 2, -1).any(dim=2) for level in range(depth)])


def branch_probabilities(distances: Tensor, kept: Tensor) -> Tensor:
    """log p(left) = log(1 - exp(-distance)) and log p(right) = -distance (equation 2).

    A node with leaves on one side only is no longer one: that side is certain.

    Args:
        distances: (N, nodes).
        kept: (leaves,), whether the leaf is not pruned.

    Returns:
        (N, nodes, 2).
    """
    left = (-torch.expm1(-distances.clamp_min(FLOOR))).log()
    sides = sides_left(kept)
    certain = torch.zeros_like(sides, dtype=distances.dtype).masked_fill(~sides, -torch.inf)
    branches = torch.stack([left, -distances], dim=2)
    return torch.where(sides.all(dim=1, keepdim=True), branches, certain)


def path_probabilities(branches: Tensor) -> Tensor:
    """Equation 3: the product of the branches on the way to each leaf; logs, (N, leaves)."""
    paths = branches.new_zeros(len(branches), 1)
    for level in range((branches.shape[1] + 1).bit_length() - 1):
        nodes = slice(2**level - 1, 2 ** (level + 1) - 1)
        paths = (paths[:, :, None] + branches[:, nodes]).flatten(1)
    return paths


def greedy_leaves(branches: Tensor) -> Tensor:
    """(N,), the leaf at the end of the more probable branches: to the right if p(right) > 0.5."""
    right = (branches[:, :, 1] > branches[:, :, 0]).long()
    node = right.new_zeros(len(right))
    for _ in range((branches.shape[1] + 1).bit_length() - 1):
        node = 2 * node + 1 + right.gather(1, node[:, None])[:, 0]
    return node - branches.shape[1]


def mix(paths: Tensor, distributions: Tensor) -> Tensor:
    """Equation 4, (N, classes): distributions (leaves, classes) weighted by paths (N, leaves)."""
    return (paths[:, :, None] + distributions).logsumexp(dim=1)


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
    """Prunes leaves that know no class; nodes that then have one side left give way to it.

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
    found = torch.empty_like(vectors)
    for batch in batches:
        z = model.locate(to_device(batch.images, vectors.device))
        distances, places, patches = model.prototypes(z)
        distance, row = distances.min(dim=0)  # (nodes,), and which image
        better = (distance < nearest).nonzero().flatten()
        row = row[better]
        nearest[better], found[better] = distance[better], patches[row, better]
        indices = batch.indices.to(row.device)[row]
        source[better] = torch.stack([indices, places[row, better]], dim=1)
    forks = model.forks
    vectors[forks] = found[forks]
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
