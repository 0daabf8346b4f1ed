"""The network: its parts, the released code's switches, and what it says of images."""

import math

import pytest
import torch
from loop_oracle import cell, places_of_parts, zeta
from tiny_network import TinyBackbone, make_network

from dpp import ops
from dpp.networks import released
from dpp.networks.model import DeformableProtoPNet, offsets_at
from dpp.networks.prototypes import OffsetBranch, Prototypes
from dpp.networks.released import ReleasedSwitches
from dpp.system.errors import UserError

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(5)).double()


def test_equation_1_of_vectors_with_fixed_length_is_equation_4():
    network = make_network(moving=0)
    z, _ = network.locate(IMAGES[:1])
    z, prototypes = z.detach(), network.prototypes.normalised().detach()
    similarity = ops.similarity_map(z, None, prototypes, dilation=2)
    for a, b in [(0, 0), (1, 2), (3, 3)]:
        distance = 0.0
        for part, (i, j) in enumerate(places_of_parts(None, 0, a, b, 2, 2)):
            there = cell(z, 0, int(i), int(j), outside=0.5)
            distance += float((prototypes[3, :, part // 2, part % 2] - there).square().sum())
        assert float(similarity[0, 3, a, b]) == pytest.approx(-(distance / 2 - 1), abs=1e-9)


def test_equation_7_shares_of_the_parts_add_up_to_the_score():
    network = make_network()
    output = network.inspect(IMAGES)
    prototypes = network.prototypes.normalised()
    samples = ops.sample_parts(
        output.z, output.offsets, output.places, kernel_size=2, **network.prototypes.geometry
    )
    shares = (samples * prototypes).sum(dim=2)  # (N, P, K, K): r^2 times each part's cosine
    cosines = torch.cosine_similarity(samples, prototypes[None], dim=2)
    torch.testing.assert_close(shares, cosines / 4)
    torch.testing.assert_close(shares.sum(dim=(2, 3)), output.scores)


@pytest.mark.parametrize("kernel_size,per_class", [(3, 6), (2, 10), (1, 2)])
def test_output_has_the_shapes_it_says(kernel_size, per_class):
    network = make_network(kernel_size=kernel_size, per_class=per_class)
    output = network.inspect(IMAGES)
    prototypes = 3 * per_class
    assert output.logits.shape == (2, 3)
    assert output.scores.shape == output.places.shape == (2, prototypes)
    assert output.offsets.shape == (2, 2 * kernel_size**2, 4, 4)
    assert output.z.shape == (2, TinyBackbone.channels + 1, 4, 4)
    torch.testing.assert_close(network(IMAGES), output.logits)


def test_logits_are_connections_times_scores():
    network = make_network()
    output = network.inspect(IMAGES)
    torch.testing.assert_close(output.logits, output.scores @ network.last_layer.weight.T)


def test_connections_start_at_1_for_the_own_class_and_a_half_against_the_others():
    weight = make_network(classes=3, per_class=2).last_layer.weight
    expected = torch.full((3, 6), -0.5, dtype=torch.float64)
    for label in range(3):
        expected[label, 2 * label : 2 * label + 2] = 1
    assert torch.equal(weight, expected)


def test_prototypes_are_rigid_until_the_offset_branch_is_drawn():
    network = make_network(moving=0)
    assert not network.inspect(IMAGES).offsets.any()
    network.offsets.reset_parameters(0.5)
    assert network.inspect(IMAGES).offsets.any()


def test_rigid_network_is_the_same_network_with_offsets_at_zero():
    rigid, still = make_network(deformable=False), make_network(moving=0)
    still.load_state_dict(rigid.state_dict(), strict=False)
    assert rigid.inspect(IMAGES).offsets is None
    torch.testing.assert_close(rigid.inspect(IMAGES).scores, still.inspect(IMAGES).scores)


def test_prototype_vectors_start_uniform_and_channels_last():
    vectors = Prototypes(50, 4, 3, 2).vectors.detach()
    assert vectors.is_contiguous(memory_format=torch.channels_last)
    assert 0 <= vectors.min() and vectors.max() < 1
    assert float(vectors.mean()) == pytest.approx(0.5, abs=0.05)
    assert Prototypes(50, 4, 3, 2).normalised().is_contiguous(memory_format=torch.channels_last)


def test_offset_branch_keeps_the_size_of_the_map_and_draws_its_weights():
    branch = OffsetBranch(7, 3)
    assert branch(torch.rand(1, 7, 5, 4)).shape == (1, 18, 5, 4)
    branch.reset_parameters(2e-5)
    for layer in (branch[0], branch[2]):
        assert float(layer.weight.detach().std()) == pytest.approx(2e-5, rel=0.1)
        assert not layer.bias.any()


def test_offsets_at_gives_each_part_its_pair():
    offsets = torch.arange(2 * 8 * 12.0).reshape(2, 8, 3, 4)
    places = torch.tensor([[0, 5], [11, 2]])
    found = offsets_at(offsets, places)
    assert found.shape == (2, 2, 4, 2)
    for image in range(2):
        for prototype in range(2):
            place = int(places[image, prototype])
            for part in range(4):
                for axis in range(2):
                    expected = offsets[image, 2 * part + axis, place // 4, place % 4]
                    assert found[image, prototype, part, axis] == expected


def test_measure_counts_hits_and_how_far_parts_moved():
    network = make_network()
    output = network.inspect(IMAGES)
    labels = torch.tensor(
        [int(output.logits[0].argmax()), (int(output.logits[1].argmax()) + 1) % 3]
    )
    found = network.measure(IMAGES, labels)
    assert found["accuracy"].tolist() == [1, 0]
    moved = offsets_at(output.offsets, output.places).norm(dim=-1)
    for image in range(2):
        assert found["offset"][image] == moved[image].flatten().median()
        units = network.offsets[1](network.offsets[0](output.z[image : image + 1]))
        assert found["active"][image] == pytest.approx(float((units > 0).double().mean()))
    assert 0 < found["active"].min() and found["active"].max() < 1
    assert not network.offsets[1]._forward_hooks
    assert "offset" not in make_network(deformable=False).measure(IMAGES, labels)


def test_keep_leaves_the_other_prototypes_as_they_were():
    network = make_network()
    before = network.inspect(IMAGES).scores
    network.keep(torch.tensor([5, 0, 3]))
    kept = [0, 3, 5]
    assert network.prototypes.classes.tolist() == [0, 1, 2]
    torch.testing.assert_close(network.inspect(IMAGES).scores, before[:, kept])
    assert network.prototypes.vectors.is_contiguous(memory_format=torch.channels_last)


def released_scores(network: DeformableProtoPNet, images: torch.Tensor) -> torch.Tensor:
    """Scores of the released code, in loops, from what is known of it."""
    features = network.backbone(images).detach()
    vectors = network.prototypes.vectors.detach()
    rows, parts = features.shape[-1], vectors.shape[-1] ** 2
    extra = torch.full((len(features), 2, rows, rows), 1e-4, dtype=features.dtype)
    z = torch.cat([features, extra], dim=1)
    z = 64 * z / (z.square().sum(dim=1, keepdim=True) + 1e-4).sqrt() / math.sqrt(parts)
    extra = torch.full((len(vectors), 2, *vectors.shape[2:]), 1e-4, dtype=features.dtype)
    p = torch.cat([vectors, extra], dim=1)
    p = p / ((p.square().sum(dim=1, keepdim=True) + 1e-4).sqrt() + 1e-4) / math.sqrt(parts)
    offsets = torch.nn.Sequential.forward(network.offsets, z).detach()
    scores = torch.zeros(len(features), len(vectors), dtype=features.dtype)
    for image in range(len(features)):
        for prototype in range(len(vectors)):
            for a in range(rows):
                for b in range(rows):
                    dot = 0.0
                    places = places_of_parts(offsets, image, a, b, 2, 2)
                    for part, (y, x) in enumerate(places):
                        sample = zeta(z, image, y, x, outside=0.0).sqrt()
                        dot += float(sample @ p[prototype, :, part // 2, part % 2])
                    score = max(dot / (64 * 1.01), 0.0)
                    scores[image, prototype] = max(float(scores[image, prototype]), score)
    return scores


def test_all_switches_on_give_the_released_network():
    network = make_network(moving=0.3, switches=released.EVERY, per_class=1)
    with torch.no_grad():
        network.offsets[0].weight /= 64  # its features are that much longer
        network.prototypes.vectors[1] *= -1  # whose score the ReLU clips
    output = network.inspect(IMAGES)
    slow = released_scores(network, IMAGES)
    assert slow[:, 1].max() == 0 < slow[:, 0].min()
    torch.testing.assert_close(output.scores, slow, atol=1e-9, rtol=0)
    torch.testing.assert_close(output.logits, slow @ network.last_layer.weight.T)


@pytest.mark.parametrize(
    "switch",
    ["two_channels", "loose_length", "zero_outside", "large_features", "damped_cosine"],
)
def test_each_switch_alone_changes_the_scores(switch):
    paper, released = make_network(), make_network(switches=ReleasedSwitches(**{switch: True}))
    if switch == "two_channels":  # the branch sees one channel more
        released = make_network(switches=ReleasedSwitches(**{switch: True}), deformable=False)
        paper = make_network(deformable=False)
        assert released.inspect(IMAGES).z.shape[1] == paper.inspect(IMAGES).z.shape[1] + 1
    released.load_state_dict(paper.state_dict())
    assert not torch.equal(paper.inspect(IMAGES).scores, released.inspect(IMAGES).scores)


def test_damped_and_clipped_cosines():
    paper, released = make_network(), make_network(switches=ReleasedSwitches(damped_cosine=True))
    torch.testing.assert_close(released.inspect(IMAGES).scores, paper.inspect(IMAGES).scores / 1.01)
    switches = ReleasedSwitches(clipped_cosine=True, zero_outside=True)
    clipped = make_network(switches=switches, deformable=False)
    with torch.no_grad():
        clipped.prototypes.vectors.neg_()
    output = clipped.inspect(IMAGES)
    assert output.cosines.min() < 0 == output.scores.min()


def test_samples_of_the_released_network_are_short_outside_and_the_papers_are_not():
    paper, released = make_network(), make_network(switches=ReleasedSwitches(zero_outside=True))
    centres = torch.tensor([[0], [0]])
    lengths = []
    for network in (paper, released):
        z, _ = network.locate(IMAGES)
        geometry = network.prototypes.geometry
        samples = ops.sample_parts(z, None, centres, kernel_size=2, **geometry)
        lengths.append(samples.norm(dim=2))
    torch.testing.assert_close(lengths[0], torch.full_like(lengths[0], 0.5))
    assert lengths[1].min() == 0


def test_released_offset_kernels_are_for_2x2_alone():
    branch = OffsetBranch(7, 2, ReleasedSwitches(offset_kernels=True))
    assert branch(torch.rand(1, 7, 6, 6)).shape == (1, 8, 6, 6)
    branch = OffsetBranch(7, 3, ReleasedSwitches(offset_kernels=True))
    assert branch(torch.rand(1, 7, 6, 6)).shape == (1, 18, 6, 6)


def test_variants_are_parsed_and_wrong_names_refused():
    assert released.parse("paper") == ReleasedSwitches()
    assert all(vars(released.parse("released")).values())
    some = ReleasedSwitches(zero_outside=True, damped_cosine=True)
    assert released.parse("released:zero_outside, damped_cosine") == some
    for wrong in ("", "Released", "released:", "released:nonsense", "paper:zero_outside"):
        with pytest.raises(UserError, match="variant"):
            released.parse(wrong)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_similarity_in_float32(dtype):
    network = make_network().float()
    with torch.autocast("cpu", dtype):
        output = network.inspect(IMAGES.float())
    exact = network.inspect(IMAGES.float())
    assert output.scores.dtype == torch.float32
    torch.testing.assert_close(output.scores, exact.scores, atol=0.03, rtol=0)


def test_misspelled_switch_fails_at_once():
    with pytest.raises(TypeError, match="zero_outsid"):
        ReleasedSwitches(zero_outsid=True)
    with pytest.raises(AttributeError, match="zero_outsid"):
        _ = released.PAPER.zero_outsid
