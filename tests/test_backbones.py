"""Feature extractors: their maps, their likeness to torchvision's networks, their weights."""

import os
import pickle
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision import models
from torchvision.models.resnet import Bottleneck

from dpp.backbones.backbone import NAMES, SLIM, Backbone, make_backbone
from dpp.backbones.pretrained import load_weights
from dpp.backbones.trunks import local_cut
from dpp.system.errors import UserError
from dpp.system.paths import ROOT

REALDATA = Path(os.environ.get("DPP_REALDATA") or ROOT.parent / "shared" / "realdata")
FULL = {
    **{"vgg16": 512, "vgg16_bn": 512, "vgg19": 512, "vgg19_bn": 512},
    **{"resnet34": 512, "resnet50": 2048, "resnet152": 2048},
    **{"densenet121": 1024, "densenet161": 2208},
}
OTHERS = (
    *("mobilenet_v2", "resnext50_32x4d", "mnasnet0_5", "regnet_y_400mf"),
    *("shufflenet_v2_x0_5", "squeezenet1_1", "alexnet"),
)
pytestmark = pytest.mark.usefixtures("one_thread")


def on_meta(make, *arguments, **keywords):
    """A network without memory: enough for shapes, and quick."""
    with torch.device("meta"):
        return make(*arguments, **keywords)


def pictures(size: int, count: int = 1) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def convolutions(network: nn.Module) -> list[tuple]:
    """What a slim network keeps of each layer of the full one; the stem has its own."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)][1:]
    return [(layer.kernel_size, layer.stride, layer.bias is None) for layer in layers]


@torch.no_grad()
def shake(network: nn.Module) -> nn.Module:
    """Random statistics, so that no BatchNorm is the identity and no two blocks are alike."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.uniform_(module.bias, -0.2, 0.2)
    return network.eval()


def as_bbn(state: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> dict:
    """The keys of BBN's file: the last block of `state` as its first branch, `second` beside it."""
    named = {
        f"module.backbone.{key.replace('layer4.2.', 'cb_block.')}": value
        for key, value in state.items()
        if not key.startswith("fc.")
    }
    named |= {f"module.backbone.rb_block.{key}": value for key, value in second.items()}
    return {"state_dict": named | {"module.classifier.weight": torch.zeros(5, 4096)}}


def assert_alike(found: torch.Tensor, expected: torch.Tensor) -> None:
    """But for what another memory format makes of the order of sums."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


# Maps


@pytest.mark.parametrize("name", FULL)
def test_map_is_14x14_at_224(name):
    backbone = on_meta(make_backbone, name)
    features = backbone(torch.empty(2, 3, 224, 224, device="meta"))
    assert features.shape == (2, FULL[name], 14, 14)
    assert (backbone.name, backbone.channels, backbone.stride) == (name, FULL[name], 16)


@pytest.mark.parametrize("name", OTHERS)
def test_map_of_other_classifier_has_stride_16_and_is_non_negative(name):
    backbone = shake(make_backbone(name))
    with torch.no_grad():
        features = backbone(pictures(96))
    assert features.shape == (1, backbone.channels, 6, 6) and backbone.stride == 16
    assert features.min() >= 0 and features.max() > 0


@pytest.mark.parametrize("name", SLIM)
def test_slim_map_is_8x8_at_64(name):
    backbone = shake(make_backbone(name))
    with torch.no_grad():
        features = backbone(pictures(64, 2))
    assert features.shape == (2, backbone.channels, 8, 8) and backbone.stride == 8
    assert features.min() >= 0 and features.max() > 0
    assert 64 <= backbone.channels <= 256


@pytest.mark.parametrize("name", ["vgg16", "densenet121"])
def test_map_is_non_negative_and_channels_last(name):
    backbone = shake(make_backbone(name))
    with torch.no_grad():
        features = backbone(pictures(64))
    assert features.shape == (1, FULL[name], 4, 4)
    assert features.min() >= 0 and features.max() > 0
    assert features.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", SLIM)
def test_slim_network_has_the_layers_of_the_full_one(name):
    slim = on_meta(make_backbone, name)
    full = on_meta(models.get_model, name.removeprefix("slim_"))
    assert convolutions(slim) == convolutions(full)
    assert sum(p.numel() for p in slim.parameters()) < 2e6


def test_slim_names_are_the_families_of_table_1():
    assert {name.removeprefix("slim_") for name in SLIM} == set(FULL)
    assert set(FULL) | set(OTHERS) < set(NAMES)


@pytest.mark.parametrize("name", ["slim_vgg16", "slim_resnet34"])
def test_backbone_compiles_whole(name):
    backbone = make_backbone(name).eval()
    compiled = torch.compile(backbone, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert_alike(compiled(pictures(32)), backbone(pictures(32)))


@pytest.mark.parametrize("name", ["slim_vgg16", "slim_resnet50", "slim_densenet121"])
def test_every_parameter_has_a_gradient(name):
    backbone = make_backbone(name)
    backbone(pictures(32, 2)).square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in backbone.parameters())


@pytest.mark.parametrize("name", ["slim_resnet34", "regnet_y_400mf"])
def test_initialisation_follows_the_global_generator(name):
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(next(make_backbone(name).parameters()).detach())
    assert states[0].equal(states[1]) and not states[0].equal(states[2])


def test_convolutions_have_the_spread_of_he():
    state = make_backbone("slim_resnet34").state_dict()["layer1.0.conv1.weight"]
    assert abs(state.std() / (2 / (9 * 16)) ** 0.5 - 1) < 0.1


def test_default_dtype_is_that_of_the_moment():
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            assert next(make_backbone("slim_vgg16").parameters()).dtype == dtype
    finally:
        torch.set_default_dtype(before)


# What cells look at

# Where a cell of the middle looks, in cells from its own centre.
LOOKS = {
    **dict.fromkeys(("vgg16", "vgg19_bn", "slim_vgg16_bn"), 0.0),
    **dict.fromkeys(("resnet34", "resnet50", "resnet152", "mobilenet_v2"), -0.96875),
    **dict.fromkeys(("slim_resnet34", "slim_resnet50", "slim_resnet152"), -0.9375),
    **{"densenet161": -0.09375, "slim_densenet121": -0.0625},
}


@pytest.mark.parametrize("name", LOOKS)
def test_cell_looks(name):
    backbone = on_meta(make_backbone, name)
    centres = backbone.cell_centres(14 * backbone.stride if name not in SLIM else 64)
    middle = len(centres) // 2
    assert centres[middle] == pytest.approx((middle + 0.5 + LOOKS[name]) * backbone.stride)


def test_first_and_last_cells_of_an_upsampled_map_look_no_further_than_its_native_cells():
    centres = on_meta(make_backbone, "resnet34").cell_centres(96)
    assert centres == (0.5, 8.5, 24.5, 40.5, 56.5, 64.5)


@pytest.mark.parametrize("name", [*FULL, *OTHERS, *SLIM])
def test_side_of_the_native_map_follows_from_the_layers(name):
    backbone = on_meta(make_backbone, name).eval()  # which has checked it at 224
    assert backbone._walk(100)[0] == backbone._native_map(100)[1]
    assert len(backbone.cell_centres(100)) == 100 // backbone.stride


def test_layer_that_is_not_understood_is_refused():
    layers = OrderedDict(mix=nn.Conv2d(3, 2, 1), pool=nn.AdaptiveAvgPool2d(14))
    with pytest.raises(ValueError, match="odd: a layer"):
        Backbone("odd", layers, stride=16)


@torch.no_grad()
def weigh_evenly(backbone: nn.Module) -> nn.Module:
    """Random weights, but positive ones: gradients then do not cancel where cells look."""
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.abs_().div_(module.weight.sum(dim=(1, 2, 3), keepdim=True))
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
    return backbone.eval()


@pytest.mark.parametrize(
    "name, size",
    [
        ("slim_vgg16_bn", 128),
        ("slim_resnet34", 128),
        ("slim_resnet50", 128),
        ("slim_densenet121", 128),
        ("resnet18", 224),
        ("squeezenet1_1", 224),
    ],
)
def test_gradients_of_a_cell_lie_around_where_it_looks(name, size):
    torch.manual_seed(0)
    backbone = weigh_evenly(make_backbone(name))
    images = torch.rand(2, 3, size, size, requires_grad=True)
    row = size // backbone.stride // 2
    backbone(images)[:, :, row, row + 1].sum().backward()
    weight = images.grad.abs().sum(dim=(0, 1))
    pixels = torch.arange(size) + 0.5
    found = torch.stack([weight.sum(dim=1) @ pixels, weight.sum(dim=0) @ pixels]) / weight.sum()
    centres = backbone.cell_centres(size)
    expected = torch.tensor([centres[row], centres[row + 1]])
    assert (found - expected).abs().max() < 0.25 * backbone.stride


# Likeness to torchvision's networks, and files


@pytest.fixture(scope="module")
def resnet18():
    torch.manual_seed(0)
    return shake(models.resnet18())


def layer4(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    maps = []
    handle = network.layer4.register_forward_hook(lambda *call: maps.append(call[2]))
    with torch.no_grad():
        network(images)
    handle.remove()
    return maps[0]


def doubled(features: torch.Tensor) -> torch.Tensor:
    return nn.functional.interpolate(features, scale_factor=2, mode="bilinear", align_corners=False)


@pytest.mark.parametrize("form", ["pth", "safetensors"])
def test_features_equal_those_of_torchvision_resnet(resnet18, tmp_path, form):
    path = tmp_path / f"weights.{form}"
    (save_file if form == "safetensors" else torch.save)(resnet18.state_dict(), path)
    backbone = make_backbone("resnet18", path).eval()
    expected = {k: v for k, v in resnet18.state_dict().items() if not k.startswith("fc.")}
    assert backbone.state_dict().keys() == expected.keys()
    assert all(value.equal(expected[key]) for key, value in backbone.state_dict().items())
    with torch.no_grad():
        features = backbone(pictures(96))
    assert_alike(features, doubled(layer4(resnet18, pictures(96))))


def test_features_equal_those_of_torchvision_densenet(tmp_path):
    network = shake(models.densenet121())
    old = {  # the keys of the files that torchvision downloads
        key.replace("norm1.", "norm.1.").replace("conv2.", "conv.2."): value
        for key, value in network.state_dict().items()
        if not key.endswith("num_batches_tracked")
    }
    torch.save(old, tmp_path / "old.pth")
    backbone = make_backbone("densenet121", tmp_path / "old.pth").eval()
    with torch.no_grad():
        expected = doubled(network.features(pictures(64)).relu())
        assert_alike(backbone(pictures(64)), expected)


@pytest.mark.parametrize("name", ["vgg16", "vgg16_bn"])
def test_features_equal_those_of_torchvision_vgg_before_its_last_pooling(name, tmp_path):
    features = on_meta(models.get_model, name).features
    assert isinstance(features[-1], nn.MaxPool2d)
    backbone = shake(make_backbone(name))
    features.load_state_dict(
        {k.removeprefix("features."): v for k, v in backbone.state_dict().items()}, assign=True
    )
    with torch.no_grad():
        expected = features.eval()[:-1](pictures(64))
        assert_alike(backbone(pictures(64)), expected)


def test_half_precision_weights_become_float32(tmp_path):
    source = make_backbone("slim_resnet34")
    torch.save(source.half().state_dict(), tmp_path / "half.pth")
    backbone = make_backbone("slim_resnet34", tmp_path / "half.pth")
    for key, value in backbone.state_dict().items():
        assert value.dtype in (torch.float32, torch.int64)
        assert value.equal(source.state_dict()[key].to(value.dtype))
    assert backbone.layer1[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)


def test_head_in_the_file_is_ignored(tmp_path):
    state = make_backbone("slim_vgg16").state_dict()
    state |= {"classifier.0.weight": torch.zeros(3), "fc.bias": torch.zeros(3)}
    torch.save(state, tmp_path / "with_head.pth")
    assert (
        make_backbone("slim_vgg16", tmp_path / "with_head.pth")
        .features[0]
        .weight.equal(state["features.0.weight"])
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"conv1.weight": None, "bn1.bias": None}, r"lacks conv1.weight, bn1.bias$"),
        ({f"extra.{i}": torch.zeros(1) for i in range(5)}, r"has extra.0, .* and 2 more"),
        ({"bn1.bias": torch.zeros(17)}, r"has another shape of bn1.bias"),
        ({"epoch": 3}, "not a state dict"),
        ({3: torch.zeros(1)}, "not a state dict"),
    ],
)
def test_file_that_does_not_fit_is_refused_whole(tmp_path, change, said):
    backbone = make_backbone("slim_resnet34")
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    state = make_backbone("slim_resnet34").state_dict() | change
    torch.save({k: v for k, v in state.items() if v is not None}, tmp_path / "wrong.pth")
    with pytest.raises(UserError, match=said) as caught:
        load_weights(backbone, tmp_path / "wrong.pth")
    assert "wrong.pth" in str(caught.value)
    assert all(value.equal(before[key]) for key, value in backbone.state_dict().items())


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


@pytest.mark.parametrize(
    "write", [torch.save, lambda v, p: p.write_bytes(pickle.dumps(v, protocol=2))]
)
def test_file_that_would_run_code_is_refused_and_does_not_run(tmp_path, write):
    planted, proof = tmp_path / "planted.pth", tmp_path / "it_ran"
    write({"features.0.weight": Payload(proof)}, planted)
    with pytest.raises(UserError, match="more than tensors"):
        make_backbone("slim_vgg16", planted)
    assert not proof.exists()
    if write is torch.save:
        torch.load(planted, weights_only=False)  # the payload is live
        assert proof.exists()


@pytest.mark.parametrize("name", ["damaged.pth", "damaged.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not weights", bytes(range(256)) * 4])
def test_damaged_file_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} is damaged"):
        make_backbone("slim_vgg16", tmp_path / name)


# BBN


@pytest.fixture(scope="module")
def bbn(tmp_path_factory):
    """A ResNet-50, a second last block, and the file that BBN would have written of them."""
    torch.manual_seed(0)
    network, second = shake(models.resnet50(num_classes=2)), shake(Bottleneck(2048, 512))
    path = tmp_path_factory.mktemp("bbn") / "bbn.pth"
    torch.save(as_bbn(network.state_dict(), second.state_dict()), path)
    return network, second, path


def test_bbn_file_gives_the_resnet50_of_its_first_branch(bbn):
    network, _, path = bbn
    backbone = make_backbone("resnet50", path).eval()
    assert len(backbone.layer4) == 3
    with torch.no_grad():
        features = backbone(pictures(64))
    assert_alike(features, doubled(layer4(network, pictures(64))))


def test_bbn_file_gives_both_branches_in_series_when_stacked(bbn):
    network, second, path = bbn
    backbone = make_backbone("resnet50", path, stacked_branch=True).eval()
    assert len(backbone.layer4) == 4
    with torch.no_grad():
        expected = doubled(second(layer4(network, pictures(64))))
        assert_alike(backbone(pictures(64)), expected)


def test_bbn_file_is_refused_by_another_network(bbn):
    with pytest.raises(UserError, match="BBN's, a resnet50: it does not fit slim_resnet50"):
        make_backbone("slim_resnet50", bbn[2])


def test_stacked_branch_needs_no_weights():
    backbone = on_meta(make_backbone, "resnet50", stacked_branch=True)
    assert len(backbone.layer4) == 4
    assert backbone(torch.empty(1, 3, 224, 224, device="meta")).shape == (1, 2048, 14, 14)


def test_stacked_branch_is_refused_without_its_block(bbn, tmp_path):
    torch.save(bbn[0].state_dict(), tmp_path / "resnet50.pth")
    with pytest.raises(UserError, match="lacks layer4.3.conv1.weight"):
        make_backbone("resnet50", tmp_path / "resnet50.pth", stacked_branch=True)
    with pytest.raises(UserError, match="only resnet50"):
        make_backbone("resnet152", stacked_branch=True)
    with pytest.raises(UserError, match="BBN file"):
        make_backbone("resnet50", "imagenet", stacked_branch=True)


# What is refused, and downloads


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("efficientnet_b0", "may be negative"),
        ("convnext_tiny", "may be negative"),
        ("mobilenet_v3_small", "may be negative"),
        ("vit_b_16", "may be negative"),
        ("inception_v3", "normalised in its own way"),
        ("nonsense", "no backbone nonsense"),
        ("slim_alexnet", "no backbone slim_alexnet"),
    ],
)
def test_unsuitable_name_is_refused_with_choices(name, said):
    with pytest.raises(UserError, match=said) as caught:
        make_backbone(name)
    assert "resnet50" in str(caught.value) and "slim_vgg16" in str(caught.value)


def test_slim_network_has_no_imagenet_weights():
    with pytest.raises(UserError, match="slim_resnet50 has no ImageNet weights"):
        make_backbone("slim_resnet50", "imagenet")


def test_absent_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="no weights at .*absent.pth"):
        make_backbone("slim_resnet50", tmp_path / "absent.pth")


def test_imagenet_weights_are_the_first_ones_and_loaded_safely(resnet18, monkeypatch):
    asked = {}

    def fetch(url, **keywords):
        asked.update(keywords, url=url)
        return resnet18.state_dict()

    monkeypatch.setattr(models._api, "load_state_dict_from_url", fetch)
    backbone = make_backbone("resnet18", "imagenet")
    assert backbone.conv1.weight.equal(resnet18.conv1.weight)
    assert asked["url"] == models.ResNet18_Weights.IMAGENET1K_V1.url
    assert asked["weights_only"] and asked["check_hash"]


def test_failed_download_says_where_from_and_what_to_do(monkeypatch, tmp_path):
    def fail(*arguments, **keywords):
        raise OSError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "urlopen", fail)
    with pytest.raises(UserError, match=r"resnet18-.*\.pth \(no route to host\).*give its path"):
        make_backbone("resnet18", "imagenet")


@pytest.mark.slow
def test_network_without_imagenet_1k_weights_is_refused():
    with pytest.raises(UserError, match="no ImageNet-1k weights of regnet_y_128gf"):
        make_backbone("regnet_y_128gf", "imagenet")


# Real weights


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["resnet50", "vgg19"])
def test_real_weights_load_and_give_living_features(name):
    path = REALDATA / "weights" / f"{name}-imagenet-fp16.pth"
    if not path.is_file():
        pytest.skip(f"no weights at {path}: set DPP_REALDATA to the folder of weights/")
    backbone = make_backbone(name, path).eval()
    with torch.no_grad():
        features = backbone(pictures(224))
    assert features.shape == (1, FULL[name], 14, 14) and features.isfinite().all()
    assert features.min() >= 0 and 0.01 < (features > 0).float().mean() < 1


@pytest.mark.parametrize(
    "name, last, channels, stride",
    [
        ("slim_resnet34", "layer3", 64, 8),
        ("slim_resnet34", "layer2", 32, 4),
        ("slim_vgg16_bn", "features.22", 48, 4),
        ("resnet18", "layer3", 256, 16),
    ],
)
def test_cut_backbone_has_the_map_of_its_last_layer(name, last, channels, stride):
    torch.manual_seed(0)
    whole = make_backbone(name).eval()
    torch.manual_seed(0)
    cut = make_backbone(name, cut_after=last).eval()
    assert (cut.channels, cut.stride) == (channels, stride)
    image = torch.rand(1, 3, 64, 64)
    expected = image
    for _, layer in whole.steps()[: len(cut.steps())]:
        expected = layer(expected)
    with torch.no_grad():
        found = cut(image)
    torch.testing.assert_close(found, expected.detach())
    assert found.shape[1:] == (channels, 64 // stride, 64 // stride)
    assert found.min() >= 0 and len(cut.cell_centres(64)) == 64 // stride
    state = whole.state_dict()
    assert len(cut.state_dict()) < len(state)
    assert all(value.equal(state[key]) for key, value in cut.state_dict().items())


@pytest.mark.parametrize("name", SLIM)
def test_local_cut_gives_a_map_of_eight_cells_whose_last_layers_are_trained(name):
    trunk, last = local_cut(name)
    cut = make_backbone(name, frozen_trunk=trunk, cut_after=last).eval()
    with torch.no_grad():
        found = cut(torch.rand(2, 3, 64, 64))
    assert found.shape == (2, cut.channels, 8, 8) and cut.stride == 8
    assert found.min() == 0 and found.max() > 0
    assert cut.trained_parameters() and cut.frozen_steps < len(cut.steps())


def test_cut_densenet_keeps_its_last_relu():
    torch.manual_seed(0)
    whole = make_backbone("slim_densenet121").eval()
    torch.manual_seed(0)
    cut = make_backbone("slim_densenet121", cut_after="features.transition2").eval()
    image = expected = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        for name, layer in whole.steps():
            expected = layer(expected)
            if name == "features.transition2.pool":
                break
        found = cut(image)
    assert expected.min() < 0
    torch.testing.assert_close(found, expected.relu())


def test_cut_that_leaves_a_negative_map_or_names_no_layer_is_refused():
    with pytest.raises(UserError, match="may be negative"):
        make_backbone("slim_vgg16_bn", cut_after="features.21")
    with pytest.raises(UserError, match="cut_after: resnet18 has no layer 'layer9'"):
        make_backbone("resnet18", cut_after="layer9")
