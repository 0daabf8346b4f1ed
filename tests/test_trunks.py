"""A frozen trunk: where it ends, that nothing trains it, and that a head takes its features."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from dpp.backbones.backbone import make_backbone
from dpp.backbones.trunks import TrunkFeatures, usual_trunk
from dpp.methods.deformable import METHOD as DEFORMABLE
from dpp.methods.table import METHODS
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment
from dpp.training.trainer import freeze_all_but, make_optimiser

pytestmark = pytest.mark.usefixtures("one_thread")


def pictures(size: int = 64, count: int = 2) -> torch.Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ["vgg16", "vgg16_bn", "vgg19", "vgg19_bn"])
def test_usual_trunk_of_a_vgg_ends_with_the_fourth_pooling(name):
    with torch.device("meta"):
        backbone = make_backbone(name, frozen_trunk=usual_trunk(name))
    frozen = [layer for _, layer in backbone.steps()[: backbone.frozen_steps]]
    assert sum(isinstance(layer, nn.MaxPool2d) for layer in frozen) == 4
    assert isinstance(frozen[-1], nn.MaxPool2d)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("resnet34", (256, 14, 14)),
        ("resnet50_v1", (1024, 14, 14)),
        ("densenet121", (512, 7, 7)),
        ("vgg19", (512, 14, 14)),
    ],
)
def test_usual_trunk_gives_the_map_before_the_last_block(name, shape):
    with torch.device("meta"):
        backbone = make_backbone(name, frozen_trunk=usual_trunk(name))
        features = [torch.empty(1, 3, 224, 224)]
        for _, layer in backbone.steps()[: backbone.frozen_steps]:
            features.append(layer(features[-1]))
    assert features[-1].shape[1:] == shape


def test_unknown_layer_is_refused_with_the_layers_there_are():
    with pytest.raises(UserError, match="resnet18 has no layer 'layer9'.*layer1, layer2, layer3"):
        make_backbone("resnet18", frozen_trunk="layer9")
    with pytest.raises(UserError, match="vgg16 has no layer 'layer3'.*features.23, "):
        make_backbone("vgg16", frozen_trunk="layer3")
    with pytest.raises(UserError, match="features.denseblock3, features.transition3"):
        make_backbone("densenet121", frozen_trunk="features.transition9")


@pytest.mark.parametrize("trunk", ["layer1", "layer3", "layer3.0", "layer4"])
def test_head_of_trunk_features_equals_the_whole_network(trunk):
    torch.manual_seed(0)
    whole = make_backbone("resnet18").eval()
    split = make_backbone("resnet18", frozen_trunk=trunk).eval()
    assert list(split.state_dict()) == list(whole.state_dict())
    split.load_state_dict(whole.state_dict())
    with torch.no_grad():
        expected = whole(pictures())
        features = TrunkFeatures(split.trunk(pictures()), 64)
        assert split(pictures()).equal(expected) and split(features).equal(expected)


@pytest.mark.parametrize("model", METHODS)
def test_every_network_takes_trunk_features(model):
    torch.manual_seed(0)
    experiment = make_experiment("paper", model=model, per_class=2, kernel_size=2)
    backbone = make_backbone("resnet18", frozen_trunk="layer3")
    network = METHODS[model].build(experiment, backbone, 3).eval()
    labels = torch.tensor([0, 2])
    with torch.no_grad():
        features = TrunkFeatures(backbone.trunk(pictures()), 64)
        assert network(features).equal(network(pictures()))
        measured = network.measure(features, labels)
        for name, value in network.measure(pictures(), labels).items():
            assert value.equal(measured[name])


def test_trunk_is_frozen_in_every_phase_and_no_optimiser_has_its_parameters():
    torch.manual_seed(0)
    experiment = make_experiment("paper", per_class=1, kernel_size=2)
    backbone = make_backbone("resnet18", frozen_trunk="layer2")
    network = DEFORMABLE.build(experiment, backbone, 2)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    for phase in DEFORMABLE.schedule(experiment).phases:
        optimiser = make_optimiser(network, phase, {"backbone": 0.1})
        freeze_all_but(network, phase.rates)
        held = {id(p) for group in optimiser.param_groups for p in group["params"]}
        frozen = [backbone.conv1, backbone.bn1, backbone.layer1, backbone.layer2]
        assert not held & {id(p) for layer in frozen for p in layer.parameters()}
        assert not any(p.requires_grad for layer in frozen for p in layer.parameters())
        parts = [part for layer in frozen for part in layer.modules()]
        assert not any(part.training for part in parts if not isinstance(part, nn.Sequential))
        assert backbone.layer3.training == ("backbone" in phase.rates)
        loss = functional.cross_entropy(network(pictures()), torch.tensor([0, 1]))
        loss.backward()
        optimiser.step()
        network.zero_grad()
        network.train()
    moved = {name for name, value in backbone.state_dict().items() if not value.equal(before[name])}
    assert moved and all(name.startswith(("layer3", "layer4")) for name in moved)


def test_trunk_follows_autocast_and_gives_full_precision():
    backbone = make_backbone("resnet18", frozen_trunk="layer1").eval()
    with torch.no_grad():
        full = backbone.trunk(pictures())
        with torch.autocast("cpu", torch.bfloat16):
            half = backbone.trunk(pictures())
            assert backbone(pictures()).dtype == torch.bfloat16
    assert half.dtype == full.dtype == torch.float32
    assert half.equal(half.bfloat16().float()) and not half.equal(full)
    torch.testing.assert_close(half, full, rtol=0.05, atol=0.05)


def test_head_compiles_whole():
    backbone = make_backbone("slim_resnet34", frozen_trunk="layer3").eval()
    compiled = torch.compile(backbone, backend="eager", fullgraph=True)
    with torch.no_grad():
        features = TrunkFeatures(backbone.trunk(pictures()), 64)
        torch.testing.assert_close(compiled(features), backbone(features))


def test_half_precision_features_become_float32_on_their_device():
    features = TrunkFeatures(torch.ones(2, 3, 4, 4, dtype=torch.float16), 64)
    moved = features.to("cpu", memory_format=torch.channels_last)
    assert moved.maps.dtype == torch.float32 and len(moved) == 2
    assert moved.maps.is_contiguous(memory_format=torch.channels_last)
