"""Equations 2 and 3: every spatial vector has the length r."""

import pytest
import torch

from dpp.networks.prototypes import EPSILON, fix_length


@pytest.mark.parametrize("length", [1 / 3, 1 / 2, 1.0])
def test_equations_2_and_3_fixed_length_holds_everywhere(length):
    features = torch.relu(torch.randn(2, 6, 4, 5, dtype=torch.float64))
    features[:, :, 1, 2] = 0
    lengths = torch.linalg.vector_norm(fix_length(features, length), dim=1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, length))


def test_zero_vector_becomes_the_uniform_channel():
    fixed = fix_length(torch.zeros(1, 3, 1, 1), 0.5)
    assert fixed.flatten().tolist() == [0, 0, 0, 0.5]


def test_direction_is_kept_and_the_extra_channel_appended():
    features = torch.rand(1, 3, 2, 2, dtype=torch.float64)
    fixed = fix_length(features, 0.5)
    extended = torch.cat([features, torch.full((1, 1, 2, 2), EPSILON, dtype=torch.float64)], dim=1)
    cosine = torch.cosine_similarity(fixed, extended, dim=1)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))


def test_gradient_is_finite_at_zero_vectors():
    features = torch.zeros(1, 3, 2, 2, requires_grad=True)
    fix_length(features, 0.5).sum().backward()
    assert features.grad.isfinite().all()


@pytest.mark.parametrize("options", [{}, {"extra": 2, "slack": 1e-2, "added": 0.1}])
def test_gradient_of_fixed_length_is_that_of_finite_differences(options):
    features = torch.relu(torch.randn(2, 5, 3, 2, dtype=torch.float64)).requires_grad_()
    torch.autograd.gradcheck(lambda f: fix_length(f, 0.5, 0.3, **options), features)


def test_fixed_length_is_channels_last_whatever_the_features_are():
    for layout in (torch.contiguous_format, torch.channels_last):
        features = torch.rand(2, 5, 3, 4).contiguous(memory_format=layout)
        fixed = fix_length(features, 0.5)
        assert fixed.is_contiguous(memory_format=torch.channels_last)
        extended = torch.cat([features, torch.full((2, 1, 3, 4), EPSILON)], dim=1)
        expected = extended / extended.norm(dim=1, keepdim=True) / 2
        torch.testing.assert_close(fixed, expected)
