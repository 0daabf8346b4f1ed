"""A last layer for thousands of classes, of which a matrix of connections would not fit.

10,000 classes with 10 prototypes each have 10^9 connections; equation 16 leaves few of them to
other classes. So each prototype's connection to its own class is kept, one number for all others,
and those of the others that differ from it, by their places. `fit` minimises equation 16 as
`last_layer.fit_to_convergence` does, over the connections that may differ from zero: those to other
classes join where the optimality conditions ask for them, until they hold for every connection.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpp.backbones.backbone import Backbone
from dpp.methods import deformable
from dpp.networks.model import OTHER_CONNECTION, OWN_CONNECTION, DeformableProtoPNet
from dpp.system import processes
from dpp.system.errors import UserError
from dpp.training import last_layer
from dpp.training.experiments import Experiment
from dpp.training.trainer import Trainer

PIECE = 2**22  # values that are computed at a time


class ClassConnections(nn.Module):
    """What `make_last_layer` makes, without its matrix.

    Args:
        classes: how many.
        prototype_classes: (P,).
    """

    def __init__(self, classes: int, prototype_classes: Tensor):
        super().__init__()
        self.out_features, self.in_features = classes, len(prototype_classes)
        self.own = nn.Parameter(torch.full((len(prototype_classes),), OWN_CONNECTION))
        self.register_buffer("classes", prototype_classes.clone(), persistent=False)
        self.register_buffer("other", torch.tensor(OTHER_CONNECTION))
        for name in ("rows", "columns"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.long))
        self.register_buffer("values", torch.zeros(0))

    def forward(self, scores: Tensor) -> Tensor:
        """Logits (N, classes) of scores (N, P)."""
        logits = self.other * (scores.sum(dim=1, keepdim=True) - self._by_class(scores))
        logits = logits + self._by_class(self.own * scores)
        if len(self.values):
            logits = logits.index_add(1, self.rows, scores[:, self.columns] * self.values)
        return logits

    def _by_class(self, values: Tensor) -> Tensor:
        """(N, classes), the sums of values (N, P) over the prototypes of each class."""
        sums = values.new_zeros(len(values), self.out_features)
        return sums.index_add(1, self.classes, values)

    @property
    def weight(self) -> Tensor:
        """(classes, P), all connections: a copy, for what reads them, as large as they are."""
        weight = self.own.new_full((self.out_features, self.in_features), float(self.other))
        weight[self.rows, self.columns] += self.values
        weight[self.classes, torch.arange(self.in_features)] = self.own.detach()
        return weight

    @torch.no_grad()
    def take(self, fit: "SparseFit") -> None:
        """Replaces the connections by fitted ones."""
        self.own.copy_(fit.own)
        self.other.zero_()
        self.rows, self.columns, self.values = fit.rows, fit.columns, fit.values

    def _load_from_state_dict(self, state, prefix, *rest):
        for name in ("rows", "columns", "values"):  # as many as were stored
            if prefix + name in state:
                setattr(self, name, torch.empty_like(state[prefix + name], device=self.own.device))
        super()._load_from_state_dict(state, prefix, *rest)


class SparseFit(NamedTuple):
    """Fitted connections; those that are not listed are zero."""

    own: Tensor  # (P,), of each prototype to its own class
    rows: Tensor  # (S,), classes of other connections...
    columns: Tensor  # (S,), ...their prototypes...
    values: Tensor  # (S,), ...and how strong they are
    losses: list[float]  # equation 16, after each round
    converged: bool  # the optimality conditions hold for every connection, to the tolerance


@torch.no_grad()
def fit(
    scores: Tensor,
    labels: Tensor,
    classes: int,
    prototype_classes: Tensor,
    *,
    l1: float = 1e-3,
    tolerance: float = 1e-6,
    iterations: int = 3000,
    rounds: int = 50,
) -> SparseFit:
    """Minimises equation 16 over all connections, of which only those in use are in memory.

    Args:
        scores: (N, P), each image's prototype scores.
        labels: (N,) int64.
        classes: how many.
        prototype_classes: (P,) int64.
        l1, tolerance: as in `last_layer.fit_to_convergence`.
        iterations: the most to take in a round.
        rounds: of looking for connections that should join, at most.
    """
    count = len(prototype_classes)
    rows, columns = prototype_classes, torch.arange(count, device=scores.device)
    weight = torch.full_like(scores[0], OWN_CONNECTION)
    steps = (last_layer.shortest_step(scores), tolerance, iterations)
    targets = functional.one_hot(labels, classes).to(scores)
    history, converged = [], False
    for _ in range(rounds):
        entries = Entries(scores, classes, rows, columns)
        penalty = torch.full_like(weight, l1)
        penalty[:count] = 0
        given = (entries.connect, entries.pull_back, labels, weight, penalty)
        found = last_layer.minimise(*given, *steps)
        weight = found.weight
        history.append(min(found.losses))
        residuals = entries.connect(weight).softmax(dim=1) - targets
        taken = (rows * count + columns).sort().values
        joining = _missing(scores, residuals, taken, l1 + tolerance)
        if not len(joining):
            converged = found.converged
            break
        rows = torch.cat([rows, joining // count])
        columns = torch.cat([columns, joining % count])
        weight = torch.cat([weight, weight.new_zeros(len(joining))])
    used = count + weight[count:].nonzero().flatten()
    return SparseFit(weight[:count], rows[used], columns[used], weight[used], history, converged)


class Entries:
    """Some connections of a last layer, by their places, as a linear map of their weights.

    Args:
        scores: (N, P).
        classes: how many.
        rows, columns: (E,), classes and prototypes.
    """

    def __init__(self, scores: Tensor, classes: int, rows: Tensor, columns: Tensor):
        self.scores, self.classes, self.rows, self.columns = scores, classes, rows, columns

    def connect(self, weight: Tensor) -> Tensor:
        """Logits (N, classes) by weights (E,)."""
        logits = self.scores.new_zeros(len(self.scores), self.classes)
        for few in _pieces(len(weight), len(self.scores)):
            values = self.scores[:, self.columns[few]] * weight[few]
            logits.index_add_(1, self.rows[few], values)
        return logits

    def pull_back(self, residuals: Tensor) -> Tensor:
        """The gradient (E,) of the weights, from the residuals (N, classes) of the logits."""
        parts = [
            torch.einsum(
                "ne,ne->e", residuals[:, self.rows[few]], self.scores[:, self.columns[few]]
            )
            for few in _pieces(len(self.rows), len(self.scores))
        ]
        return torch.cat(parts) / len(self.scores)


def _missing(scores: Tensor, residuals: Tensor, taken: Tensor, bound: float) -> Tensor:
    """Which connections that are not taken have a gradient beyond a bound, as row * P + column.

    As many of the largest as are taken already: a few rounds find all that count.

    Args:
        taken: places in use, in order.
    """
    classes, count = residuals.shape[1], scores.shape[1]
    places, sizes = [], []
    for few in _pieces(classes, count):
        gradient = (residuals[:, few].T @ scores / len(scores)).abs()  # (some classes, P)
        beyond = (gradient > bound).nonzero()
        place = (beyond[:, 0] + few.start) * count + beyond[:, 1]
        at = torch.searchsorted(taken, place).clamp_max(len(taken) - 1)
        fresh = taken[at] != place
        places.append(place[fresh])
        sizes.append(gradient[beyond[fresh, 0], beyond[fresh, 1]])
    places, sizes = torch.cat(places), torch.cat(sizes)
    return places[sizes.topk(min(len(sizes), len(taken))).indices]


def _pieces(count: int, size: int) -> Iterator[slice]:
    """Slices of `count` things of some size each, so many that they stay small in memory."""
    step = max(PIECE // max(size, 1), 1)
    return (slice(first, first + step) for first in range(0, count, step))


class SparselyConnected(DeformableProtoPNet):
    """The paper's network with `ClassConnections`; arguments as of `DeformableProtoPNet`."""

    def __init__(self, backbone: Backbone, classes: int, **shape):
        super().__init__(backbone, classes, **shape, connect=ClassConnections)

    def keep(self, prototypes: Tensor) -> None:
        raise UserError(
            "a network with sparse connections keeps all its prototypes: train it with "
            "last_layer=converged to prune or steer it"
        )


def build(experiment: Experiment, backbone: Backbone, classes: int) -> SparselyConnected:
    """The network of an experiment whose last layer is sparse."""
    if experiment.deformation == "search":
        raise UserError("parts that search have no sparse last layer: choose another last_layer")
    names = ("per_class", "kernel_size", "deformable", "switches")
    return SparselyConnected(backbone, classes, **{n: getattr(experiment, n) for n in names})


def stages(experiment: Experiment) -> dict:
    """As the paper's, but for the last layer's."""

    def fit_last_layer(trainer: Trainer) -> dict[str, float]:
        layer, tolerance = trainer.model.last_layer, experiment.last_layer_tolerance
        problem = (*last_layer.cache_scores(trainer), layer.out_features, layer.classes)
        found = processes.from_first(lambda: fit(*problem, l1=experiment.l1, tolerance=tolerance))
        layer.take(found)
        zeros = 1 - (len(found.own) + len(found.values)) / (layer.out_features * layer.in_features)
        return {"loss": found.losses[-1], "zero_connections": zeros, "converged": found.converged}

    return {**deformable.METHOD.stages(experiment), "last layer": fit_last_layer}


METHOD = deformable.METHOD._replace(build=build, stages=stages)
