"""The plain CNN: pooling, cross entropy, and what an evaluation sees of it."""

import torch
from tiny_network import TinyBackbone
from torch.nn import functional

from dpp.methods.plain_cnn import PlainCNN, objective
from dpp.training.trainer import Phase

IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 2, 1, 1])


def test_logits_are_linear_in_the_mean_of_the_map():
    network = PlainCNN(TinyBackbone(), 3).eval()
    features = network.backbone(IMAGES)
    pooled = torch.zeros(4, 6)
    for row in range(4):
        for column in range(4):
            pooled += features[:, :, row, column] / 16
    expected = pooled @ network.classifier.weight.T + network.classifier.bias
    torch.testing.assert_close(network(IMAGES), expected)


def test_objective_is_mean_cross_entropy():
    network = PlainCNN(TinyBackbone(), 3).eval()
    terms = objective(network, IMAGES, LABELS, Phase("joint", 1, {}))
    expected = functional.cross_entropy(network(IMAGES), LABELS)
    torch.testing.assert_close(terms["loss"], expected)
    hits = (network(IMAGES).argmax(dim=1) == LABELS).float()
    assert terms["accuracy"] == hits.mean()
    assert torch.equal(network.measure(IMAGES, LABELS)["accuracy"], hits)
