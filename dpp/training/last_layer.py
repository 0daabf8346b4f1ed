"""Stage 3: the connections from prototype scores to classes, all else fixed (equation 16).

The scores are computed once and kept; no network runs here. The problem is convex, and
`fit_to_convergence` solves it; `fit_by_passes` takes a fixed number of Adam passes, as the released
code does. Adam moves a connection by at most about its rate in a step: 20 passes at 1e-4 over the
paper's 5994 images in batches of 80 are 1500 steps, and cannot bring -0.5 to zero.

Own-class connections are not penalised. Where they alone can tell every image's class, they lower
the loss by growing for ever: it has an infimum, 0, and no minimum, and the tolerance decides how
large they become (see `_violation`).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpp.data.batches import merge, share
from dpp.networks import losses
from dpp.system import processes
from dpp.training.experiments import Experiment
from dpp.training.trainer import Trainer

STEP_GROWTH = 1.1  # at every iteration: curvature falls as the classes become certain
STEP_CUT = 0.5  # at every step that proves too long


class Fit(NamedTuple):
    """Fitted connections, and how they came about."""

    weight: Tensor  # (classes, P), without gradient
    losses: list[float]  # equation 16 over all images: at the start, then after each iteration
    converged: bool  # the optimality conditions were checked and hold to the tolerance


@torch.no_grad()
def fit_to_convergence(
    scores: Tensor,
    labels: Tensor,
    weight: Tensor,
    prototype_classes: Tensor,
    *,
    l1: float = 1e-3,
    tolerance: float = 1e-6,
    iterations: int = 3000,
) -> Fit:
    """Minimises equation 16 (see `minimise`).

    Args:
        scores: (N, P), each image's prototype scores, float32 or float64; computes in the same.
        labels: (N,) int64, the images' classes.
        weight: (classes, P), where to start.
        prototype_classes: (P,) int64, the prototypes' classes.
        l1: lambda_1.
        tolerance: stop where no optimality condition is violated by more (see `_violation`).
        iterations: the most to take.
    """
    _check(scores, labels, weight, prototype_classes, l1)
    penalty = _penalty(weight, prototype_classes, l1)
    maps = (lambda w: scores @ w.T), (lambda r: r.T @ scores / len(scores))
    problem = (*maps, labels, weight.detach().clone(), penalty)
    return minimise(*problem, shortest_step(scores), tolerance, iterations)


def minimise(
    connect: Callable[[Tensor], Tensor],
    pull_back: Callable[[Tensor], Tensor],
    labels: Tensor,
    weight: Tensor,
    penalty: Tensor,
    shortest: float,
    tolerance: float,
    iterations: int,
) -> Fit:
    """Cross entropy plus an L1 penalty, by accelerated proximal gradient steps (FISTA, restarts).

    The step grows a little at each iteration and is cut until the loss lies below the quadratic
    that the method relies on, so that it follows the curvature where it is; the bound that holds
    everywhere, half the mean squared length of the scores, is far too careful for many classes.
    Soft thresholding makes zeros exact. A first step drops all connections to other classes if
    that lowers the loss: from the network's -0.5 it spares about a hundred iterations.

    Args:
        connect: from a weight to logits (N, classes), linear.
        pull_back: from the logits' residuals (N, classes) to the gradient of the weight.
        labels: (N,).
        weight: where to start, of any shape.
        penalty: of each connection.
        shortest: a step that is short enough everywhere (see `shortest_step`).
        tolerance, iterations: as in `fit_to_convergence`.

    Returns:
        Where the tolerance was met, the weight that met it, its loss the last; otherwise
        `converged` is False and the weight is the one with the lowest loss.
    """
    current, logits = weight, connect(weight)
    targets = functional.one_hot(labels, logits.shape[1]).to(logits)
    step = shortest * logits.shape[1] / 2  # an undecided softmax curves by 1/classes, not 1/2
    history = [_loss(logits, labels, current, penalty)]
    trimmed = current.masked_fill(penalty > 0, 0)
    logits_trimmed = connect(trimmed)
    loss_trimmed = _loss(logits_trimmed, labels, trimmed, penalty)
    if loss_trimmed < history[0]:
        current, logits = trimmed, logits_trimmed
        history.append(loss_trimmed)

    best, ahead, logits_ahead = current, current, logits  # `ahead` is where momentum leads
    momentum = 1.0
    for _ in range(iterations):
        probabilities = logits_ahead.softmax(dim=1)
        gradient = pull_back(probabilities - targets)
        if _violation(ahead, gradient, penalty) <= tolerance:
            history[-1] = _loss(connect(ahead), labels, ahead, penalty)
            return Fit(ahead, history, True)
        step *= STEP_GROWTH
        while True:
            following = _shrink(ahead - step * gradient, step * penalty)
            logits_following = connect(following)
            excess = _divergence(probabilities, logits_following - logits_ahead)
            if excess <= (following - ahead).square().sum() / (2 * step) or step <= shortest:
                break
            step = max(step * STEP_CUT, shortest)
        if ((ahead - following) * (following - current)).sum() > 0:  # momentum leads uphill
            momentum = 1.0
        previous, momentum = momentum, (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        carry = (previous - 1) / momentum
        ahead = following + carry * (following - current)
        logits_ahead = logits_following + carry * (logits_following - logits)
        current, logits = following, logits_following
        history.append(_loss(logits, labels, current, penalty))
        if history[-1] <= min(history):
            best = current
    return Fit(best, history, False)


def shortest_step(scores: Tensor) -> float:
    """Of equation 16 over scores (N, P): the softmax curves by at most 1/2."""
    return 2 / max(scores.square().sum(dim=1).mean().item(), 1e-12)


def fit_by_passes(
    scores: Tensor,
    labels: Tensor,
    weight: Tensor,
    prototype_classes: Tensor,
    *,
    l1: float = 1e-3,
    passes: int = 20,
    rate: float = 1e-4,
    batch_size: int = 80,
    seed: int = 0,
) -> Fit:
    """Lowers equation 16 as the released code does: Adam over shuffled mini-batches.

    The penalty enters by its subgradient, so that connections pass through zero and none stays
    there. Nothing checks for a solution: `converged` is always False.

    Args:
        scores, labels, weight, prototype_classes, l1: as in `fit_to_convergence`.
        passes: over all images.
        rate: Adam's.
        batch_size: images in a mini-batch; the last of a pass may be smaller.
        seed: of the order.

    Returns:
        The weight after the last pass; a loss for the start, and one for each pass.
    """
    _check(scores, labels, weight, prototype_classes, l1)
    if passes < 0 or batch_size < 1:
        raise ValueError(f"expected passes >= 0 and batch_size >= 1, got {passes} and {batch_size}")
    generator = torch.Generator().manual_seed(seed)
    penalty = _penalty(weight, prototype_classes, l1)
    with torch.inference_mode(False), torch.enable_grad():
        scores, connections = scores.detach(), weight.detach().clone().requires_grad_()
        fitted = connections.detach()  # the same memory
        optimiser = torch.optim.Adam([connections], lr=rate)
        history = [_loss(scores @ fitted.T, labels, fitted, penalty)]
        for _ in range(passes):
            order = torch.randperm(len(scores), generator=generator).to(scores.device)
            for batch in order.split(batch_size):
                optimiser.zero_grad()
                losses.last_layer(
                    scores[batch], labels[batch], connections, prototype_classes, l1
                ).backward()
                optimiser.step()
            history.append(_loss(scores @ fitted.T, labels, fitted, penalty))
    return Fit(fitted, history, False)


def stage(experiment: Experiment) -> Callable[[Trainer], dict[str, float]]:
    """Stage 3 as an experiment wants it, for any network with scores and a last layer."""

    def fit(trainer: Trainer) -> dict[str, float]:  # of several processes, the first one fits
        problem = (experiment, trainer.model, *cache_scores(trainer))
        return processes.from_first(lambda: refit(*problem))

    return fit


def refit(
    experiment: Experiment, model: nn.Module, scores: Tensor, labels: Tensor
) -> dict[str, float]:
    """Replaces a network's last layer by one fitted on scores (N, P) and labels (N,).

    Returns:
        Metrics: the loss, the share of zero connections, and whether the fit converged.
    """
    problem = (scores, labels, model.last_layer.weight.detach(), model.prototypes.classes)
    if experiment.last_layer == "converged":
        tolerance = experiment.last_layer_tolerance
        fit = fit_to_convergence(*problem, l1=experiment.l1, tolerance=tolerance)
    else:
        fit = fit_by_passes(
            *problem,
            l1=experiment.l1,
            passes=experiment.last_layer_passes,
            rate=experiment.last_layer_rate,
            batch_size=experiment.batch_size,
            seed=experiment.seed,
        )
    with torch.no_grad():
        model.last_layer.weight.copy_(fit.weight)
    zeros = float((fit.weight == 0).double().mean())
    loss = fit.losses[-1] if fit.converged else min(fit.losses)
    return {"loss": loss, "zero_connections": zeros, "converged": fit.converged}


@torch.no_grad()
def cache_scores(trainer: Trainer) -> tuple[Tensor, Tensor]:
    """Scores (N, P) and labels (N,) of the un-augmented training images."""
    trainer.model.eval()
    found = []
    for batch in share(trainer.loaders["projection"]):
        scores = trainer.model.inspect(trainer.to_device(batch.images)).scores
        found.append({"scores": scores, "labels": batch.labels})
    whole = merge(found)
    return whole["scores"].to(trainer.device), whole["labels"].to(trainer.device)


def _violation(weight: Tensor, gradient: Tensor, penalty: Tensor) -> Tensor:
    """The most by which a connection fails the optimality conditions of equation 16.

    With g the gradient of the cross entropy, they are g = 0 for a prototype's own class, and for
    another class g = -l1 sign(w), or |g| <= l1 where w = 0. By convexity no weight has a loss lower
    by more than the violation times the L1 distance to it. Where no minimum exists, g still
    vanishes on the way, and a smaller violation needs larger connections.
    """
    at_zero = (gradient.abs() - penalty).clamp_min(0)
    elsewhere = (gradient + penalty * weight.sign()).abs()
    return torch.where(weight == 0, at_zero, elsewhere).max()


def _penalty(weight: Tensor, prototype_classes: Tensor, l1: float) -> Tensor:
    """(classes, P): lambda_1 for connections to other classes, 0 for own ones."""
    classes = torch.arange(len(weight), device=weight.device)
    own = losses.own_class(classes, prototype_classes)
    return torch.full_like(weight, l1, requires_grad=False).masked_fill(own, 0)


def _loss(logits: Tensor, labels: Tensor, weight: Tensor, penalty: Tensor) -> float:
    """Equation 16, of logits that are there already."""
    return (functional.cross_entropy(logits, labels) + (penalty * weight.abs()).sum()).item()


def _shrink(weight: Tensor, threshold: Tensor) -> Tensor:
    """The proximal operator of the penalty: towards zero by the threshold, and no further."""
    return weight - weight.clamp(-threshold, threshold)


def _divergence(probabilities: Tensor, change: Tensor) -> Tensor:
    """How far the cross entropy lies above its tangent, from the change of the logits.

    A difference of losses would drown in their rounding errors near the solution.
    """
    change = change - (probabilities * change).sum(dim=1, keepdim=True)
    return (probabilities * (change.expm1() - change)).sum(dim=1).log1p().mean()


@torch.no_grad()
def _check(scores, labels, weight, prototype_classes, l1) -> None:
    if scores.dim() != 2 or not len(scores):
        raise ValueError(f"scores: expected shape (N, P) with N > 0, got {list(scores.shape)}")
    if scores.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"scores: expected dtype float32 or float64, got {scores.dtype}")
    images, prototypes = scores.shape
    if weight.shape[1:] != scores.shape[1:] or not len(weight) or weight.dtype != scores.dtype:
        raise ValueError(
            f"weight: expected {scores.dtype}, as scores, of shape (classes, {prototypes}), "
            f"got {weight.dtype} of shape {list(weight.shape)}"
        )
    _check_classes("labels", labels, images, len(weight))
    _check_classes("prototype_classes", prototype_classes, prototypes, len(weight))
    if not (scores.isfinite().all() and weight.isfinite().all()):
        raise ValueError("scores and weight: expected finite numbers, got NaN or infinity")
    if not 0 <= l1 < float("inf"):
        raise ValueError(f"l1: expected a finite number, not negative, got {l1}")


def _check_classes(name: str, values: Tensor, length: int, classes: int) -> None:
    if list(values.shape) != [length] or values.dtype != torch.int64:
        given = f"got {values.dtype} of shape {list(values.shape)}"
        raise ValueError(f"{name}: expected int64 of shape [{length}], {given}")
    if len(values) and not 0 <= values.min() <= values.max() < classes:
        given = f"as weight has {classes} rows, got {values.min()} to {values.max()}"
        raise ValueError(f"{name}: expected classes from 0 to {classes - 1}, {given}")
