"""Equations 9 to 14 and 16 against slow versions, written from the paper with loops."""

import math

import pytest
import torch

from dpp.networks import losses

CLASSES = torch.tensor([0, 0, 1, 1, 1, 2])  # of six prototypes: classes may differ in number


def make_scores(images: int = 7, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.rand(images, len(CLASSES), generator=generator, dtype=torch.float64) - 1
    return scores, torch.randint(3, (images,), generator=generator)


def make_connections() -> torch.Tensor:
    return torch.randn(3, len(CLASSES), generator=torch.Generator().manual_seed(1)).double()


def slow_cross_entropies(scores, labels, connections) -> list[float]:
    """Minus the logarithm of each image's share of its class."""
    found = []
    for i, label in enumerate(labels.tolist()):
        exponents = [
            math.exp(sum(float(connections[c, p] * scores[i, p]) for p in range(6)))
            for c in range(3)
        ]
        found.append(-math.log(exponents[label] / sum(exponents)))
    return found


def test_equation_9_cluster_is_minus_the_mean_best_own_score():
    scores, labels = make_scores()
    slow = 0
    for i in range(len(scores)):
        slow -= max(float(scores[i, p]) for p in range(6) if CLASSES[p] == labels[i]) / len(scores)
    assert float(losses.cluster(scores, labels, CLASSES)) == pytest.approx(slow, abs=1e-12)


def test_equation_10_separation_is_the_mean_best_score_of_another_class():
    scores, labels = make_scores()
    slow = 0
    for i in range(len(scores)):
        slow += max(float(scores[i, p]) for p in range(6) if CLASSES[p] != labels[i]) / len(scores)
    assert float(losses.separation(scores, labels, CLASSES)) == pytest.approx(slow, abs=1e-12)


@pytest.mark.parametrize("margin", [0.0, 0.1, 0.5])
def test_equation_12_margin_makes_angles_to_other_classes_smaller(margin):
    scores, labels = make_scores()
    scores[0] = torch.tensor([1.0, -1.0, math.cos(margin), math.cos(margin / 2), 0.0, 0.999])
    found = losses.subtractive_margin(scores, labels, CLASSES, margin)
    for i in range(len(scores)):
        for p in range(6):
            slow = float(scores[i, p])
            if CLASSES[p] != labels[i]:
                slow = math.cos(max(math.acos(slow) - margin, 0))
            assert float(found[i, p]) == pytest.approx(slow, abs=1e-9)


def test_equation_12_margin_may_follow_the_maximum_over_places():
    cosines = 2 * torch.rand(5, len(CLASSES), 20, dtype=torch.float64) - 1  # at 20 places
    labels = torch.tensor([0, 1, 2, 0, 1])
    everywhere = torch.stack(
        [losses.subtractive_margin(cosines[..., q], labels, CLASSES, 0.1) for q in range(20)], -1
    )
    after = losses.subtractive_margin(cosines.amax(dim=2), labels, CLASSES, 0.1)
    torch.testing.assert_close(everywhere.amax(dim=2), after)


def test_margin_gradient_is_that_of_finite_differences():
    scores, labels = make_scores()
    scores.requires_grad_()
    torch.autograd.gradcheck(lambda s: losses.subtractive_margin(s, labels, CLASSES, 0.1), scores)


def test_margin_gradient_is_finite_at_the_ends():
    ends = [1.0, -1.0, 1.0000001, -1.0000001, math.cos(0.1), 0.0]
    cosines = torch.tensor([ends] * 3, requires_grad=True)
    losses.subtractive_margin(cosines, torch.tensor([0, 1, 2]), CLASSES, 0.1).sum().backward()
    assert cosines.grad.isfinite().all()


def test_equation_11_cross_entropy_is_summed_over_images():
    scores, labels = make_scores()
    connections = make_connections()
    slow = sum(slow_cross_entropies(scores, labels, connections))
    found = losses.cross_entropy(scores, labels, lambda s: s @ connections.T)
    assert float(found) == pytest.approx(slow, abs=1e-10)


def make_parts(kernel_size: int = 2) -> torch.Tensor:
    vectors = torch.rand(len(CLASSES), 5, kernel_size, kernel_size, dtype=torch.float64)
    return vectors / vectors.norm(dim=1, keepdim=True) / kernel_size


@pytest.mark.parametrize("classes", [CLASSES, torch.tensor([0, 0, 1, 1, 2, 2])])
@pytest.mark.parametrize("kernel_size", [1, 2, 3])
def test_equation_13_orthogonality_is_over_all_parts_of_a_class(kernel_size, classes):
    prototypes, length = make_parts(kernel_size), 1 / kernel_size
    slow = 0
    for c in range(3):
        rows = [
            prototypes[p, :, m, n]
            for p in range(6)
            if classes[p] == c
            for m in range(kernel_size)
            for n in range(kernel_size)
        ]
        for i, one in enumerate(rows):
            for j, other in enumerate(rows):
                slow += (float(one @ other) - (length**2 if i == j else 0)) ** 2
    found = losses.orthogonality(prototypes, classes, length)
    assert float(found) == pytest.approx(slow, abs=1e-12)


def test_orthogonality_vanishes_where_parts_are_orthogonal():
    prototypes = torch.eye(24, dtype=torch.float64).reshape(6, 2, 2, 24).permute(0, 3, 1, 2) / 2
    assert float(losses.orthogonality(prototypes, CLASSES, 0.5)) == pytest.approx(0, abs=1e-20)


def test_orthogonality_gradient_is_that_of_finite_differences():
    prototypes = make_parts().requires_grad_()
    torch.autograd.gradcheck(lambda p: losses.orthogonality(p, CLASSES, 0.5), prototypes)


def test_equation_14_total_weighs_the_terms():
    terms = {"cross_entropy": 5.0, "separation": 3.0, "cluster": -2.0, "orthogonality": 10.0}
    weights = {"separation": 0.01, "cluster": 0.1, "orthogonality": 0.1}
    assert losses.total(terms, weights) == pytest.approx(5 + 0.03 - 0.2 + 1)


def test_equation_16_penalises_connections_to_other_classes_alone():
    scores, labels = make_scores()
    connections = make_connections()
    slow = sum(slow_cross_entropies(scores, labels, connections)) / len(labels)
    for p in range(6):
        for c in range(3):
            if c != CLASSES[p]:
                slow += 0.01 * abs(float(connections[c, p]))
    found = losses.last_layer(scores, labels, connections, CLASSES, 0.01)
    assert float(found) == pytest.approx(slow, abs=1e-10)


def test_released_orthogonality_mixes_classes():
    classes = torch.tensor([0, 0, 1, 1, 2, 2])  # three classes of two
    vectors = torch.rand(6, 5, 2, 2, dtype=torch.float64)
    slow = 0
    for group in ([0, 1, 2], [3, 4, 5]):  # as many groups as a class has prototypes
        rows = [vectors[p, :, m, n] for p in group for m in range(2) for n in range(2)]
        rows = [row / (math.sqrt(float(row @ row) + 1e-4) + 1e-4) for row in rows]
        for i, one in enumerate(rows):
            for j, other in enumerate(rows):
                slow += (float(one @ other) - (i == j)) ** 2
    found = losses.mixed_orthogonality(vectors, classes)
    assert float(found) == pytest.approx(math.sqrt(slow), abs=1e-10)
