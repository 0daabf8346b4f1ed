"""Last layers without a matrix: the same logits, the same fit, the same training."""

import pytest
import torch
from test_last_layer import make_problem
from test_runs import tiny

from dpp import runs
from dpp.extensions import many_classes
from dpp.extensions.many_classes import ClassConnections
from dpp.networks.model import make_last_layer
from dpp.system.errors import UserError
from dpp.training import last_layer
from dpp.training.experiments import make_experiment


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(many_classes, "PIECE", 1000)


def connected(problem, fit) -> ClassConnections:
    scores, _, weight, prototype_classes = problem
    layer = ClassConnections(len(weight), prototype_classes).to(scores.dtype)
    layer.take(fit)
    return layer


def test_before_a_fit_it_equals_the_dense_layer():
    scores, _, weight, prototype_classes = make_problem(noise=1.0, dtype=torch.float32)
    dense = make_last_layer(len(weight), prototype_classes)
    sparse = ClassConnections(len(weight), prototype_classes)
    assert torch.equal(sparse.weight, dense.weight)
    torch.testing.assert_close(sparse(scores), dense(scores))
    one, other = (scores.clone().requires_grad_() for _ in range(2))
    dense(one).square().sum().backward()
    sparse(other).square().sum().backward()
    torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("l1", [1e-3, 5e-3, 5e-2])
def test_fit_equals_the_dense_one(l1, small_pieces):
    problem = make_problem(noise=1.0)
    scores, labels, weight, prototype_classes = problem
    dense = last_layer.fit_to_convergence(*problem, l1=l1, tolerance=1e-8, iterations=20_000)
    given = (scores, labels, len(weight), prototype_classes)
    sparse = many_classes.fit(*given, l1=l1, tolerance=1e-8, iterations=20_000)
    assert dense.converged and sparse.converged
    assert sparse.losses[-1] == pytest.approx(dense.losses[-1], abs=1e-9)
    layer = connected(problem, sparse)
    torch.testing.assert_close(layer.weight, dense.weight, atol=1e-3, rtol=1e-3)
    assert torch.equal(layer.weight == 0, dense.weight == 0)
    torch.testing.assert_close(layer(scores), scores @ layer.weight.T)


def test_a_fit_that_may_not_end_says_so():
    scores, labels, weight, prototype_classes = make_problem(noise=1.0)
    given = (scores, labels, len(weight), prototype_classes)
    assert not many_classes.fit(*given, tolerance=1e-8, iterations=1).converged


def test_no_matrix_is_made():
    """Ten thousand classes, a hundred thousand prototypes: 4 GB of connections otherwise."""
    classes = torch.arange(10_000).repeat_interleave(10)
    layer = ClassConnections(10_000, classes)
    assert sum(values.numel() for values in layer.state_dict().values()) < 200_000
    scores = torch.rand(2, len(classes), requires_grad=True)
    logits = layer(scores)
    logits.logsumexp(dim=1).sum().backward()
    assert logits.shape == (2, 10_000) and scores.grad.isfinite().all()


def test_stored_connections_come_back(small_pieces):
    problem = make_problem(noise=1.0)
    scores, labels, weight, prototype_classes = problem
    layer = connected(problem, many_classes.fit(scores, labels, len(weight), prototype_classes))
    assert len(layer.values)
    other = ClassConnections(len(weight), prototype_classes).double()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(scores), layer(scores))


def test_a_run_ends_as_the_dense_one_does(tmp_path):
    """But for the last digits: sums have another order. Rigid: an offset branch would be drawn from
    other random numbers, as a matrix takes some of them."""

    def make(name):
        given = {"deformable": False, "project_after": (4,), "last_layer_tolerance": 1e-4}
        experiment = tiny(last_layer=name, **given)
        return runs.run(experiment, root=tmp_path, device="cpu", progress=False)

    dense, sparse = make("converged"), make("sparse")
    model = sparse.load_model()
    assert isinstance(model.last_layer, ClassConnections)
    for stage, tolerance in (("train", 1e-4), ("last layer", 1e-2)):
        losses = [run.metrics[run.metrics.stage == stage].loss.tolist() for run in (sparse, dense)]
        assert losses[0] and losses[0] == pytest.approx(losses[1], rel=tolerance)
    with pytest.raises(UserError, match="keeps all its prototypes"):
        model.keep(torch.arange(3))


def test_other_networks_are_refused():
    with pytest.raises(UserError, match="last_layer sparse is for deformable, not for protopnet"):
        make_experiment("smoke", model="protopnet", last_layer="sparse")
    experiment = make_experiment("smoke", deformation="search", last_layer="sparse")
    with pytest.raises(UserError, match="no sparse last layer"):
        many_classes.build(experiment, None, 3)
