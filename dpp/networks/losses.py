"""The paper's losses, equations 9 to 14 and 16, each as it is written.

Everywhere: `cosines` or `scores` (N, P) are the similarities of N images to P prototypes, `labels`
(N,) the images' classes and `prototype_classes` (P,) the prototypes'.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence


def own_class(labels: Tensor, prototype_classes: Tensor) -> Tensor:
    """(N, P), whether a prototype is of the image's class."""
    return labels[:, None] == prototype_classes


def cluster(scores: Tensor, labels: Tensor, prototype_classes: Tensor) -> Tensor:
    """Equation 9: minus the mean, over images, of the best score of an own-class prototype."""
    others = ~own_class(labels, prototype_classes)
    return -scores.masked_fill(others, -math.inf).max(dim=1).values.mean()


def separation(scores: Tensor, labels: Tensor, prototype_classes: Tensor) -> Tensor:
    """Equation 10: the mean, over images, of the best score of a prototype of another class."""
    own = own_class(labels, prototype_classes)
    return scores.masked_fill(own, -math.inf).max(dim=1).values.mean()


def subtractive_margin(
    cosines: Tensor, labels: Tensor, prototype_classes: Tensor, margin: float
) -> Tensor:
    """Equation 12: cosines to other classes as if their angles were smaller by `margin`, phi.

    cos is monotone on [0, pi], so the margin may follow the maximum over places. cos(theta - phi)
    is written out, since the derivative of arccos has poles: where theta > phi its root stays above
    sin(phi), and where theta <= phi the result is 1.

    Returns:
        (N, P): own-class cosines as they are, the others cos(max(theta - phi, 0)).
    """
    sine = (1 - cosines.square()).clamp_min(torch.finfo(cosines.dtype).tiny).sqrt()
    inflated = math.cos(margin) * cosines + math.sin(margin) * sine
    inflated = torch.where(cosines < math.cos(margin), inflated, torch.ones_like(cosines))
    return torch.where(own_class(labels, prototype_classes), cosines, inflated)


def cross_entropy(
    scores: Tensor, labels: Tensor, connect: Callable[[Tensor], Tensor], reduction: str = "sum"
) -> Tensor:
    """Equation 11, of scores that have their margin (equation 12): summed over images.

    Args:
        connect: the last layer, from scores to logits by its connections w_h.
    """
    return functional.cross_entropy(connect(scores), labels, reduction=reduction)


def orthogonality(prototypes: Tensor, prototype_classes: Tensor, length: float) -> Tensor:
    """Equation 13: how far the parts of each class are from orthogonal, squared and summed.

    Args:
        prototypes: (P, C, K, K), in order of their classes, every part of the same length.
        length: that length, r.
    """
    parts = prototypes.permute(0, 2, 3, 1).flatten(1, 2)  # (P, K*K, C)
    counts = torch.bincount(prototype_classes).tolist()
    if len(set(counts)) == 1:  # as long as none is pruned: a view
        rows = parts.unflatten(0, (len(counts), -1))
    else:
        rows = pad_sequence(parts.split(counts), batch_first=True)
    rows = rows.flatten(1, 2)  # (classes, L*K*K, C), zeros where a class has fewer prototypes
    with torch.autocast(rows.device.type, enabled=False):
        return _SquaredResidual.apply(rows, length**2 * rows.detach().any(dim=2))


class _SquaredResidual(torch.autograd.Function):
    """|P P^T - D|^2 of matrices P and diagonal D; its gradient, 4 (P P^T - D) P, is one product."""

    @staticmethod
    def forward(ctx, rows, diagonal):
        residual = torch.bmm(rows, rows.transpose(1, 2))
        residual.diagonal(dim1=1, dim2=2).sub_(diagonal)
        ctx.save_for_backward(rows, residual)
        return residual.square().sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        rows, residual = ctx.saved_tensors
        return torch.bmm(4 * grad * residual, rows), None


def mixed_orthogonality(vectors: Tensor, prototype_classes: Tensor, slack: float = 1e-4) -> Tensor:
    """What the released code has for equation 13.

    Its reshape takes the prototypes in as many groups as a class has prototypes, each as large as
    there are classes; parts are scaled to unit length without the extra channels; the norm is not
    squared.

    Args:
        vectors: (P, C, K, K), not normalised.
    """
    lengths = (vectors.square().sum(dim=1, keepdim=True) + slack).sqrt() + slack
    parts = (vectors / lengths).permute(0, 2, 3, 1).flatten(1, 2)  # (P, K*K, C)
    classes = int(prototype_classes.max()) + 1
    groups = parts.unflatten(0, (-1, classes)).flatten(1, 2)
    gram = torch.bmm(groups, groups.transpose(1, 2))
    return (gram - torch.eye(gram.shape[-1]).to(gram)).norm()


def total(terms: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Equation 14: cross entropy plus the other terms, each times its weight."""
    return terms["cross_entropy"] + sum(weight * terms[name] for name, weight in weights.items())


def last_layer(
    scores: Tensor, labels: Tensor, connections: Tensor, prototype_classes: Tensor, l1: float = 1e-3
) -> Tensor:
    """Equation 16: cross entropy, and the connections of prototypes to other classes in L1.

    Args:
        connections: (classes, P).
        l1: lambda_1 of stage 3.
    """
    own = own_class(torch.arange(len(connections)).to(labels), prototype_classes)
    entropy = functional.cross_entropy(scores @ connections.T, labels)
    return entropy + l1 * connections.masked_fill(own, 0).abs().sum()
