"""The network of ProtoTree (Nauta, van Bree and Seifert, CVPR 2021): a soft tree of prototypes.

At each inner node of a full binary tree an image goes right with the probability that it has the
node's prototype, and left otherwise; each leaf has a distribution over the classes. Equations are
those of that paper. Nodes are numbered as in a heap: the children of node n are 2n + 1, to the
left, and 2n + 2; leaves are numbered from left to right. Probabilities are logarithms throughout.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from dpp.backbones.backbone import Backbone
from dpp.networks.model import find_cells
from dpp.system.errors import UserError

CHANNELS = 256  # of the patches that prototypes are compared with; as the backbone, if it has fewer
FLOOR = 1e-6  # a smaller distance counts as this one for going left, whose logarithm stays finite
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
        index = places[:, None].expand(-1, cells.shape[1], -1)
        patches = cells.gather(2, index).transpose(1, 2)
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
        self.copies = 1  # of each image, as which it counts
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
        self.evidence.index_add_(1, labels, shares.T.to(self.evidence), alpha=self.copies)
        self.steps += 1

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Ends the sum over an epoch, which the next one replaces; without effect if none began."""
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
            raise UserError(f"routing: {routing!r} is not one of {', '.join(ROUTINGS)}")
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
        """As of any module; evaluation, after every epoch, also ends the leaves' epoch.

        The loss of a step cannot know to which epoch it belongs. A trainer that resumes within an
        epoch calls `train` of the children alone, and no epoch ends.
        """
        if not mode:
            self.leaves.end_epoch()
        return super().train(mode)

    def forward(self, images: Tensor) -> Tensor:
        """Logarithms of class probabilities (N, classes) of images (N, 3, H, W)."""
        return self.inspect(images).logits

    def inspect(self, images: Tensor, routing: str | None = None) -> Output:
        """The logits of images (N, 3, H, W), and every intermediate result."""
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
        """(nodes,), whether both sides of the node have leaves that are not pruned."""
        return sides_left(self.leaves.kept).all(dim=1)


def sides_left(kept: Tensor) -> Tensor:
    """(nodes, 2), whether a leaf is left to the left and to the right, of leaves kept or not."""
    depth = len(kept).bit_length() - 1
    return torch.cat([kept.view(2**level, 2, -1).any(dim=2) for level in range(depth)])


def branch_probabilities(distances: Tensor, kept: Tensor) -> Tensor:
    """log p(left) = log(1 - exp(-distance)) and log p(right) = -distance (equation 2).

    A node with leaves on one side only decides nothing: that side has probability 1.

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
