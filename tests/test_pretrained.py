"""ImageNet weights from a folder, and runs that know which file they began from."""

import hashlib
import shutil

import pytest
import torch
from test_trunk_cache import birds, photo_experiment, root  # noqa: F401
from torchvision import models

from dpp import runs
from dpp.backbones import pretrained
from dpp.backbones.backbone import make_backbone
from dpp.system.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of weights; nothing can be downloaded."""
    monkeypatch.setenv("DPP_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))

    def fail(*arguments, **keywords):
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "urlopen", fail)
    (tmp_path / "weights").mkdir()
    return tmp_path / "weights"


def save_weights(path, name: str = "resnet18", seed: int = 1):
    torch.manual_seed(seed)
    state = make_backbone(name).half().state_dict()
    torch.save(state, path)
    return state


def test_imagenet_weights_are_taken_from_the_folder(folder):
    state = save_weights(folder / "resnet18-imagenet-fp16.pth")
    backbone = make_backbone("resnet18", "imagenet")
    assert backbone.conv1.weight.equal(state["conv1.weight"].float())


def test_torchvisions_own_file_comes_first_and_must_match_its_name(folder):
    save_weights(folder / "resnet18-imagenet.pth")
    own = folder / models.ResNet18_Weights.IMAGENET1K_V1.url.rpartition("/")[2]
    save_weights(own, seed=2)
    assert pretrained.find_local("resnet18") == own
    with pytest.raises(UserError, match="does not match the hash in its name"):
        make_backbone("resnet18", "imagenet")


def test_weights_of_another_network_are_refused_in_one_line(folder):
    save_weights(folder / "resnet34-imagenet.pth")
    with pytest.raises(UserError, match="resnet34-imagenet.pth does not fit resnet34: it lacks"):
        make_backbone("resnet34", "imagenet")


def test_absent_weights_say_where_to_put_them(folder):
    with pytest.raises(UserError, match="put it into the folder DPP_WEIGHTS"):
        make_backbone("resnet18", "imagenet")
    shutil.rmtree(folder)
    with pytest.raises(UserError, match="DPP_WEIGHTS is .* which is no folder"):
        make_backbone("resnet18", "imagenet")


def test_first_resnet50_has_its_strides_on_the_1x1_convolutions(folder):
    with torch.device("meta"):
        first, later = make_backbone("resnet50_v1"), make_backbone("resnet50")
    for network, expected in ((first, [(2, 2), (1, 1)]), (later, [(1, 1), (2, 2)])):
        block = network.layer3[0]
        assert [block.conv1.stride, block.conv2.stride] == expected
    assert {k: v.shape for k, v in first.state_dict().items()} == {
        k: v.shape for k, v in later.state_dict().items()
    }


def test_file_of_the_first_resnet50_is_not_given_to_torchvisions(folder):
    path = folder / "resnet50-imagenet-fp16.pth"
    path.write_bytes(b"weights")
    assert pretrained.find_local("resnet50_v1") == path
    assert pretrained.find_local("resnet50") is None
    with pytest.raises(UserError, match="is of the backbone resnet50_v1"):
        make_backbone("resnet50", "imagenet")
    path.unlink()
    with pytest.raises(UserError, match="put resnet50-imagenet-fp16.pth into the folder"):
        make_backbone("resnet50_v1", "imagenet")


def test_run_knows_its_weights_and_is_not_taken_for_one_of_others(
    folder,
    birds,  # noqa: F811
    root,  # noqa: F811
    tmp_path,
):
    path = folder / "resnet18-imagenet.pth"
    save_weights(path)
    plain = {"model": "cnn", "project_after": (), "weights": "imagenet"}
    experiment = photo_experiment(birds, **plain, epochs=2)
    run = runs.run(experiment, root=tmp_path / "runs", progress=False)
    assert run.manifest["pretrained_file"] == path.name
    assert run.manifest["pretrained_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert runs.run(experiment, root=tmp_path / "runs").folder == run.folder

    save_weights(path, seed=3)
    with pytest.raises(UserError, match="was trained from resnet18-imagenet.pth .* not from"):
        runs.run(experiment, root=tmp_path / "runs")
    path.unlink()  # who has no weights at all may look at the run
    assert runs.run(experiment, root=tmp_path / "runs").folder == run.folder
