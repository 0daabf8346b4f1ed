"""Fewer prototypes, and what must not change by it."""

import torch
from tiny_network import make_network

from dpp.runs import pruning

IMAGES = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(2)).double()


@torch.no_grad()
def test_merging_duplicates_leaves_every_logit_as_it_was():
    network = make_network(per_class=3)
    network.prototypes.vectors[2] = network.prototypes.vectors[0]
    network.prototypes.vectors[7] = network.prototypes.vectors[8]
    network.last_layer.weight.normal_()
    before = network(IMAGES)
    kept = pruning.merge_duplicates(network)
    assert kept.tolist() == [0, 1, 3, 4, 5, 6, 7]
    torch.testing.assert_close(network(IMAGES), before)


@torch.no_grad()
def test_equal_prototypes_of_two_classes_stay():
    network = make_network(per_class=1)
    network.prototypes.vectors[1] = network.prototypes.vectors[0]
    assert pruning.merge_duplicates(network).tolist() == [0, 1, 2]


def test_unused_prototypes_have_neighbours_of_other_classes():
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    classes = torch.tensor([0, 0, 1])
    scores = torch.tensor(
        [
            [0.9, 0.1, 0.1],
            [0.8, 0.2, 0.9],
            [0.7, 0.3, 0.8],
            [0.1, 0.9, 0.7],
            [0, 0.8, 0],
            [0, 0.7, 0],
        ]
    )
    found = pruning.find_unused(scores, labels, classes, nearest=3, least=2)
    assert found.tolist() == [False, True, True]


def test_a_class_keeps_its_first_prototype():
    network = make_network(per_class=2)
    unused = torch.tensor([True, True, False, True, False, False])
    origins = [{"prototype": number, "image": f"i{number}"} for number in range(6)]
    kept = pruning.prune(network, unused)
    assert kept.tolist() == [0, 2, 4, 5]
    assert network.prototypes.classes.tolist() == [0, 1, 2, 2]
    left = pruning.keep_origins(origins, kept)
    assert [(o["prototype"], o["image"]) for o in left] == [
        (0, "i0"),
        (1, "i2"),
        (2, "i4"),
        (3, "i5"),
    ]


def test_tolerance_of_zero_merges_nothing_else():
    prototypes = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    classes = torch.zeros(4, dtype=torch.long)
    assert pruning.find_duplicates(prototypes, classes, 0.0).tolist() == [0, 1, 2, 3]


def test_prototype_that_equals_a_duplicate_alone_is_none():
    angles = torch.tensor([0.0, 0.1, 0.2])
    prototypes = torch.stack([angles.cos(), angles.sin()], dim=1)
    classes = torch.zeros(3, dtype=torch.long)
    assert pruning.find_duplicates(prototypes, classes, 0.01).tolist() == [0, 0, 2]
