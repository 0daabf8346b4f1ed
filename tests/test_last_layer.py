"""Equation 16, fitted: against scipy, its optimality conditions, and plain loops."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from dpp.networks import losses
from dpp.training import last_layer

CLASSES, PER_CLASS = 4, 3
FITS = [last_layer.fit_to_convergence, last_layer.fit_by_passes]


def make_problem(noise=0.3, images=120, dtype=torch.float64, seed=0):
    """Scores that are higher for prototypes of the image's class; much noise makes classes mix."""
    generator = torch.Generator().manual_seed(seed)
    prototype_classes = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
    labels = torch.arange(images) % CLASSES
    own = losses.own_class(labels, prototype_classes)
    random = torch.rand(own.shape, generator=generator, dtype=torch.float64)
    scores = (0.4 + 0.2 * own + noise * random).to(dtype)
    own = losses.own_class(torch.arange(CLASSES), prototype_classes)
    weight = torch.where(own, 1.0, -0.5).to(dtype)
    return scores, labels, weight, prototype_classes


def off_class(weight, prototype_classes):
    return weight[~losses.own_class(torch.arange(len(weight)), prototype_classes)]


def violation(scores, labels, weight, prototype_classes, l1=1e-3):
    """The most by which a connection fails the optimality conditions, one by one."""
    weight = weight.clone().requires_grad_()
    losses.cross_entropy(scores, labels, lambda s: s @ weight.T, "mean").backward()
    own = losses.own_class(torch.arange(len(weight)), prototype_classes).flatten().tolist()
    values, gradients = weight.detach().flatten().tolist(), weight.grad.flatten().tolist()
    worst = 0.0
    for mine, value, gradient in zip(own, values, gradients, strict=True):
        penalty = 0.0 if mine else l1
        if value == 0:
            worst = max(worst, abs(gradient) - penalty)
        else:
            worst = max(worst, abs(gradient + penalty * np.sign(value)))
    return worst


def solve_with_scipy(scores, labels, weight, prototype_classes, l1):
    """The lowest loss L-BFGS-B finds over w = u - v; off-class u, v >= 0, own-class v = 0."""
    own = losses.own_class(torch.arange(len(weight)), prototype_classes).flatten().numpy()

    def loss_and_gradient(halves):
        u, v = halves.reshape(2, -1)
        w = torch.tensor(u - v).view_as(weight).requires_grad_()
        entropy = losses.cross_entropy(scores, labels, lambda s: s @ w.T, reduction="mean")
        (gradient,) = torch.autograd.grad(entropy, w)
        gradient = gradient.flatten().numpy()
        penalty = np.where(own, 0, l1)
        loss = entropy.item() + (penalty * (u + v)).sum()
        return loss, np.concatenate([gradient + penalty, penalty - gradient])

    bounds = [(None, None) if mine else (0, None) for mine in own]
    bounds += [(0, 0) if mine else (0, None) for mine in own]
    options = {"maxiter": 20000, "maxfun": 40000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30}
    return minimize(
        loss_and_gradient,
        np.zeros(2 * weight.numel()),
        jac=True,
        bounds=bounds,
        method="L-BFGS-B",
        options=options,
    ).fun


@pytest.mark.parametrize("l1", [1e-3, 1e-2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_convergence_reaches_the_loss_of_scipy(l1, dtype):
    problem = make_problem(noise=1.0)
    scores, labels, weight, prototype_classes = problem
    expected = solve_with_scipy(*problem, l1)
    fit = last_layer.fit_to_convergence(
        scores.to(dtype), labels, weight.to(dtype), prototype_classes, l1=l1
    )
    reached = losses.last_layer(scores, labels, fit.weight.double(), prototype_classes, l1)
    assert fit.converged
    assert fit.weight.dtype == dtype
    assert reached.item() <= expected + 1e-6
    assert reached.item() >= expected - 1e-6  # neither solver is below the minimum


def test_converged_weight_meets_the_optimality_conditions():
    l1, slack = 5e-3, 1e-6
    scores, labels, weight, prototype_classes = make_problem(noise=1.0)
    fit = last_layer.fit_to_convergence(scores, labels, weight, prototype_classes, l1=l1)
    connections = fit.weight.clone().requires_grad_()
    losses.cross_entropy(scores, labels, lambda s: s @ connections.T, "mean").backward()
    kinds = set()
    for c in range(CLASSES):
        for p in range(CLASSES * PER_CLASS):
            w, gradient = fit.weight[c, p].item(), connections.grad[c, p].item()
            if prototype_classes[p] == c:
                assert abs(gradient) <= slack
                kinds.add("own")
            elif w == 0:
                assert abs(gradient) <= l1 + slack
                kinds.add("zero")
            else:
                assert abs(gradient + l1 * np.sign(w)) <= slack
                kinds.add("kept")
    assert kinds == {"own", "zero", "kept"}


def test_broken_conditions_do_not_count_as_converged():
    """One condition is broken at a time; from there, no iteration may end the fit."""
    problem = make_problem(noise=1.0)
    scores, labels, _, prototype_classes = problem
    fit = last_layer.fit_to_convergence(*problem, l1=5e-3)

    def again(weight):
        given = (scores, labels, weight, prototype_classes)
        return last_layer.fit_to_convergence(*given, l1=5e-3, tolerance=1e-5, iterations=1)

    assert again(fit.weight).converged
    own = losses.own_class(torch.arange(CLASSES), prototype_classes)
    for which in (own, ~own & (fit.weight == 0), ~own & (fit.weight != 0)):
        broken = fit.weight.clone()
        broken[tuple(which.nonzero()[0])] += 0.1
        assert not again(broken).converged


def test_zeros_are_exact_when_the_penalty_is_large():
    problem = make_problem(noise=1.0, dtype=torch.float32)
    fit = last_layer.fit_to_convergence(*problem, l1=1.0)
    assert (off_class(fit.weight, problem[3]) == 0).all()
    fit = last_layer.fit_to_convergence(*problem, l1=1e-3)
    zeros = off_class(fit.weight, problem[3]) == 0
    assert zeros.any() and not zeros.all()


def test_no_penalty_leaves_plain_cross_entropy():
    problem = make_problem(noise=1.0)
    fit = last_layer.fit_to_convergence(*problem, l1=0.0)
    connections = fit.weight.clone().requires_grad_()
    losses.cross_entropy(*problem[:2], lambda s: s @ connections.T, "mean").backward()
    assert fit.converged
    assert connections.grad.abs().max() <= 1e-6


@pytest.mark.parametrize("iterations", [0, 1, 2, 5, 20, 100])
@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_loss_never_ends_above_the_start(iterations, noise):
    problem = make_problem(noise=noise, dtype=torch.float32)
    fit = last_layer.fit_to_convergence(*problem, iterations=iterations, tolerance=0)
    assert not fit.converged
    reached = losses.last_layer(*problem[:2], fit.weight, problem[3]).item()
    assert reached == pytest.approx(min(fit.losses), abs=1e-6)
    assert reached <= losses.last_layer(*problem).item()


def test_best_weight_is_returned_when_the_limit_falls_on_a_ripple():
    problem = make_problem(noise=1.0)
    history = last_layer.fit_to_convergence(*problem, iterations=300, tolerance=0).losses
    before = len(history) - 300  # losses that no iteration made
    ripple = next(k for k in range(before, len(history)) if history[k] > history[k - 1])
    fit = last_layer.fit_to_convergence(*problem, iterations=ripple + 1 - before, tolerance=0)
    assert fit.losses == history[: ripple + 1]
    reached = losses.last_layer(*problem[:2], fit.weight, problem[3]).item()
    assert reached == pytest.approx(min(fit.losses), abs=1e-14)
    assert min(fit.losses) < fit.losses[-1] - 1e-13


def test_restarts_keep_convergence_quick():
    fit = last_layer.fit_to_convergence(*make_problem(noise=1.0))
    assert fit.converged
    assert len(fit.losses) < 800  # about 400; 1800 without restarts


def test_rounding_does_not_make_the_step_vanish():
    problem = make_problem(noise=1.0, dtype=torch.float32)
    fit = last_layer.fit_to_convergence(*problem, tolerance=0, iterations=1000)
    assert len(fit.losses) > 1000
    assert violation(*problem[:2], fit.weight, problem[3]) < 1e-5


@pytest.mark.parametrize("fit_with", FITS)
def test_losses_are_equation_16_at_the_start_and_at_the_end(fit_with):
    problem = make_problem(noise=1.0)
    fit = fit_with(*problem, l1=5e-3)
    assert fit.losses[0] == pytest.approx(losses.last_layer(*problem, 5e-3).item())
    end = losses.last_layer(*problem[:2], fit.weight, problem[3], 5e-3).item()
    assert fit.losses[-1] == pytest.approx(end)


def test_solution_does_not_depend_on_the_start():
    scores, labels, weight, prototype_classes = make_problem(noise=1.0)
    ends = [
        last_layer.fit_to_convergence(
            scores, labels, start, prototype_classes, tolerance=1e-8, iterations=10000
        ).losses[-1]
        for start in (weight, torch.zeros_like(weight), -3 * weight)
    ]
    assert max(ends) - min(ends) < 1e-7


def test_start_at_the_solution_is_kept():
    problem = make_problem(noise=1.0)
    first = last_layer.fit_to_convergence(*problem)
    again = last_layer.fit_to_convergence(*problem[:2], first.weight, problem[3])
    assert again.converged
    assert torch.equal(again.weight, first.weight)
    assert len(again.losses) == 1


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1e2])
def test_scores_of_any_size_converge(scale):
    scores, labels, weight, prototype_classes = make_problem(noise=1.0)
    problem = scale * scores, labels, weight / max(scale, 1e-3), prototype_classes
    fit = last_layer.fit_to_convergence(*problem, l1=1e-3 * scale, tolerance=1e-6 * scale)
    assert fit.converged
    if scale:  # scaled all through, it is the same problem
        expected = last_layer.fit_to_convergence(scores, labels, weight, prototype_classes)
        assert fit.losses[-1] == pytest.approx(expected.losses[-1], abs=1e-5)


def test_iteration_limit_is_reported():
    problem = make_problem(noise=1.0)
    fit = last_layer.fit_to_convergence(*problem, iterations=3)
    assert not fit.converged
    assert violation(*problem[:2], fit.weight, problem[3]) > 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_separable_classes_stop_at_the_tolerance(dtype):
    """There is no minimum: a tighter tolerance gives a lower loss and larger connections."""
    problem = make_problem(noise=0.1, dtype=dtype)
    loose, tight = (
        last_layer.fit_to_convergence(*problem, tolerance=tolerance) for tolerance in (1e-4, 1e-6)
    )
    assert loose.converged and tight.converged
    for fit, tolerance in ((loose, 1e-4), (tight, 1e-6)):
        rounding = 1e-8
        assert violation(*problem[:2], fit.weight, problem[3]) <= tolerance + rounding
        assert fit.weight.isfinite().all()
    assert tight.losses[-1] < loose.losses[-1] / 10 < 0.01
    assert tight.weight.abs().max() > loose.weight.abs().max() + 1
    assert not last_layer.fit_to_convergence(*problem, iterations=10).converged


def test_passes_equal_a_plain_loop():
    l1, passes, rate, batch_size, seed = 1e-2, 3, 1e-2, 50, 7
    scores, labels, weight, prototype_classes = make_problem(noise=1.0)
    fit = last_layer.fit_by_passes(
        scores,
        labels,
        weight,
        prototype_classes,
        l1=l1,
        passes=passes,
        rate=rate,
        batch_size=batch_size,
        seed=seed,
    )
    generator = torch.Generator().manual_seed(seed)
    first, second, steps = torch.zeros_like(weight), torch.zeros_like(weight), 0
    for _ in range(passes):
        order = torch.randperm(len(scores), generator=generator).tolist()
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            gradient = torch.zeros_like(weight)
            for image in batch:
                wrong = (weight @ scores[image]).softmax(dim=0)
                wrong[labels[image]] -= 1
                gradient += torch.outer(wrong, scores[image]) / len(batch)
            for p, own in enumerate(prototype_classes.tolist()):
                for c in range(CLASSES):
                    if c != own:
                        gradient[c, p] += l1 * weight[c, p].sign()
            steps += 1
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            corrected = second / (1 - 0.999**steps)
            weight = weight - rate * first / (1 - 0.9**steps) / (corrected.sqrt() + 1e-8)
    torch.testing.assert_close(fit.weight, weight)


def test_passes_lower_the_loss_and_claim_no_convergence():
    problem = make_problem(noise=1.0, dtype=torch.float32)
    fit = last_layer.fit_by_passes(*problem, passes=5, rate=1e-2)
    assert len(fit.losses) == 6
    assert fit.losses[-1] < fit.losses[0]
    assert not fit.converged
    assert fit.losses[-1] > last_layer.fit_to_convergence(*problem).losses[-1]


@pytest.mark.parametrize("fit_with", FITS)
def test_fit_repeats_to_the_byte_and_leaves_the_global_generator_alone(fit_with):
    problem = make_problem(noise=1.0, dtype=torch.float32)
    before = torch.get_rng_state()
    first = fit_with(*problem)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    second = fit_with(*problem)
    assert torch.equal(first.weight, second.weight)
    assert first.losses == second.losses


def test_passes_depend_on_the_seed():
    problem = make_problem(noise=1.0)
    first, second = (last_layer.fit_by_passes(*problem, passes=2, seed=seed) for seed in (0, 1))
    assert not torch.equal(first.weight, second.weight)


@pytest.mark.parametrize("fit_with", FITS)
@pytest.mark.parametrize("guard", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_fit_does_not_mind_where_gradients_are_wanted(fit_with, guard, requires_grad):
    scores, labels, weight, prototype_classes = make_problem(noise=1.0)
    expected = fit_with(scores, labels, weight, prototype_classes).weight
    kept = weight.clone()
    with guard():
        cached = scores.clone().requires_grad_(requires_grad) * 1  # as from a network
        leaf = weight.clone().requires_grad_(requires_grad)
        problem = cached, labels.clone(), leaf, prototype_classes.clone()
        inside = fit_with(*problem)
    outside = fit_with(*problem)
    for fit in (inside, outside):
        assert torch.equal(fit.weight, expected)
        assert not fit.weight.requires_grad
    assert leaf.grad is None
    assert torch.equal(leaf, kept)


@pytest.mark.gpu
@pytest.mark.parametrize("fit_with", FITS)
def test_fit_stays_on_its_device(fit_with):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    problem = make_problem(noise=1.0)
    fit = fit_with(*(tensor.cuda() for tensor in problem))
    assert fit.weight.is_cuda
    assert fit.losses[-1] == pytest.approx(fit_with(*problem).losses[-1], abs=1e-6)


@pytest.mark.parametrize("fit_with", FITS)
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"scores": torch.rand(12)}, "scores: expected shape"),
        ({"scores": torch.rand(0, 12), "labels": torch.arange(0)}, "scores: expected shape"),
        ({"scores": torch.ones(120, 12).long()}, "scores: expected dtype"),
        ({"scores": torch.full((120, 12), torch.nan)}, "expected finite numbers"),
        ({"weight": torch.full((4, 12), torch.inf)}, "expected finite numbers"),
        ({"weight": torch.rand(12, 4)}, r"weight: .*shape \(classes, 12\), got .* \[12, 4\]"),
        ({"weight": torch.rand(4, 12).double()}, "weight: expected torch.float32, as scores"),
        ({"labels": torch.zeros(5).long()}, r"labels: expected int64 of shape \[120\]"),
        ({"labels": torch.zeros(120)}, "labels: expected int64"),
        ({"labels": torch.full((120,), 4)}, "labels: expected classes from 0 to 3"),
        ({"prototype_classes": torch.zeros(4).long()}, r"prototype_classes: .* shape \[12\]"),
        ({"prototype_classes": torch.full((12,), -1)}, "prototype_classes: expected classes"),
        ({"l1": -1.0}, "l1: expected"),
        ({"l1": float("nan")}, "l1: expected"),
    ],
)
def test_bad_arguments_raise(fit_with, broken, message):
    names = ("scores", "labels", "weight", "prototype_classes")
    arguments = dict(zip(names, make_problem(dtype=torch.float32), strict=True))
    with pytest.raises(ValueError, match=message):
        fit_with(**arguments | broken)


@pytest.mark.parametrize("wrong", [{"passes": -1}, {"batch_size": 0}])
def test_bad_passes_raise(wrong):
    with pytest.raises(ValueError, match="passes >= 0 and batch_size >= 1"):
        last_layer.fit_by_passes(*make_problem(), **wrong)
