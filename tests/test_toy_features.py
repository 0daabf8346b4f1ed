"""The hand-drawn feature map of notebooks 00 and 01."""

import pytest
import torch

from dpp.drawn import toy_features


@pytest.mark.parametrize("width", [1.0, 2.0])
def test_bird_has_a_blob_for_each_part_and_a_background(width):
    places = torch.tensor([[2, 3], [5, 1]])
    features = toy_features.draw_bird(places, 8, width=width)
    assert features.shape == (1, 3, 8, 8)
    for channel, (row, column) in enumerate(places.tolist()):
        assert features[0, channel].argmax() == row * 8 + column
        assert features[0, channel, row, column] == 1
        assert features[0, channel, row, column + 1] == pytest.approx(2.718281828 ** (-1 / width))
    assert (features[0, 2] == toy_features.BACKGROUND).all()


def test_bird_at_fractional_places_is_what_the_formula_says():
    places = torch.tensor([[1.5, 2.25]])
    features = toy_features.draw_bird(places, 4)
    assert features[0, 0, 1, 2] == pytest.approx(2.718281828 ** -(0.5**2 + 0.25**2))
