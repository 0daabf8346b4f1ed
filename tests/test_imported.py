"""`dpp import`: the authors' checkpoints as runs, with the same logits, and what is refused."""

from pathlib import Path

import pytest
import torch
from authors_networks import AuthorsDeformable, AuthorsProtoPNet, AuthorsTesNet, make_checkpoint
from tiny_data import write_cub

from dpp import runs
from dpp.runs import steered
from dpp.sharing import checkpoint_layout, imported, packages
from dpp.system.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")
NETWORKS = [
    (AuthorsDeformable, "resnet18"),
    (AuthorsDeformable, "densenet121"),
    (AuthorsProtoPNet, "resnet18"),
    (AuthorsProtoPNet, "vgg11_bn"),
    (AuthorsProtoPNet, "densenet121"),
    (AuthorsTesNet, "resnet18"),
    (AuthorsTesNet, "vgg11"),
]


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    return write_cub(tmp_path_factory.mktemp("data") / "birds", classes=3, train=3, test=2)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A small ProtoPNet's file."""
    path = tmp_path_factory.mktemp("files") / "small.pth"
    torch.save(make_checkpoint(AuthorsProtoPNet, "resnet18").state_dict(), path)
    return path


@pytest.fixture
def state(checkpoint):
    return torch.load(checkpoint, weights_only=True)


@torch.no_grad()
@pytest.mark.parametrize(
    "kind,backbone", NETWORKS, ids=lambda value: getattr(value, "__name__", value)
)
def test_logits_are_the_authors(kind, backbone):
    theirs = make_checkpoint(kind, backbone)
    state = theirs.state_dict()
    layout = checkpoint_layout.read_layout(state, "a file")
    model = kind.__name__.removeprefix("Authors").lower()
    assert layout == (model, backbone, False, 3, 2, 2 if model == "deformable" else 1)
    experiment = imported.describe(layout, None, "birds", None, 64)
    ours = imported.fill(experiment, 3, state, "a file").eval()
    images = torch.randn(4, 3, 64, 64)
    expected = theirs(images)
    assert expected.std() > 1e-3
    torch.testing.assert_close(ours(images), expected, atol=1e-5, rtol=0)


def test_imported_checkpoint_is_a_run(dpp, checkpoint, birds, tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RUNS", str(tmp_path / "runs"))
    code, out, err = dpp("import", checkpoint, "--data", birds, "--image-size", 64)
    assert code == 0, err
    assert "protopnet on resnet18: 6 prototypes of 3 classes" in out
    assert "no source images of the prototypes are known" in out
    run = runs.open_run(out.splitlines()[-1])
    run.verify()
    assert run.experiment.cut_after == "layer4" and run.experiment.crop_to_box
    assert not run.projected and run.folder.parent == tmp_path / "runs"
    assert run.manifest["imported_from"]["file"] == "small.pth"
    with torch.no_grad():
        images = torch.randn(2, 3, 64, 64)
        theirs = make_checkpoint(AuthorsProtoPNet, "resnet18")
        torch.testing.assert_close(run.load_model()(images), theirs(images), atol=1e-5, rtol=0)
    again = imported.import_checkpoint(checkpoint, data=str(birds), image_size=64)
    assert again.folder == run.folder

    packages.unpack(packages.pack(run, tmp_path / "it.zip"), tmp_path / "elsewhere")
    assert len(steered.steer(run, {0: "a test"}).load_model().prototypes.classes) == 5
    code, out, err = dpp("explain", run.source.test[0].id, "--run", run.folder)
    assert code == 0, err
    code, out, err = dpp("report", run.folder)
    assert code == 0, err


def test_parallel_and_wrapped_state_dicts_are_read(state, tmp_path):
    wrapped = {"state_dict": {f"module.{key}": value.half() for key, value in state.items()}}
    torch.save(wrapped, tmp_path / "wrapped.pth")
    found = checkpoint_layout.read_state(tmp_path / "wrapped.pth")
    assert found.keys() == state.keys()
    layout = checkpoint_layout.read_layout(found, "a file")
    experiment = imported.describe(layout, None, "birds", None, 64)
    network = imported.fill(experiment, 3, found, "a file")
    assert network.prototypes.vectors.dtype == torch.float32


def test_released_resnet50_with_a_further_block_is_known():
    with torch.device("meta"):
        backbone = checkpoint_layout.make_backbone("resnet50", stacked_branch=True)
    state = {f"features.{key}": value for key, value in backbone.state_dict().items()}
    assert checkpoint_layout.find_backbone(state, "a file") == ("resnet50", True)
    layout = checkpoint_layout.Layout("deformable", "resnet50", True, 200, 6, 2)
    experiment = imported.describe(layout, Path("released.pth"), "", None, 224)
    assert experiment.stacked_branch and experiment.data == "cub" and not experiment.crop_to_box


def save(tmp_path, state) -> str:
    torch.save(state, tmp_path / "bad.pth")
    return str(tmp_path / "bad.pth")


def test_whole_pickled_network_is_refused_and_not_opened(dpp, tmp_path):
    path = save(tmp_path, torch.nn.Linear(2, 2))
    code, _, err = dpp("import", path)
    assert code == 2 and "whole pickled network and is not opened" in err
    assert "torch.save(model.state_dict()" in err and err.count("\n") == 1


def test_files_that_are_no_checkpoint_are_refused_in_one_line(dpp, tmp_path, checkpoint):
    (tmp_path / "text.pth").write_text("no tensors")
    (tmp_path / "empty.pth").write_bytes(b"")
    (tmp_path / "half.pth").write_bytes(checkpoint.read_bytes()[:5000])
    names = ("text.pth", "empty.pth", "half.pth", "nothing.pth", ".")
    for name in names:
        code, _, err = dpp("import", tmp_path / name)
        assert code == 2 and err.count("\n") == 1, err
        assert "is damaged, or was not saved by torch" in err or "there is no file" in err


def without(state, key):
    return {name: value for name, value in state.items() if name != key}


BAD = {
    "a list": (lambda state: [1, 2], "holds no state dict"),
    "numbers": (lambda state: {"epoch": 3}, "its 'epoch' is not a tensor"),
    "no prototypes": (lambda state: without(state, "prototype_vectors"), "no prototype_vectors"),
    "no last layer": (lambda state: without(state, "last_layer.weight"), "no last_layer.weight"),
    "NaN": (lambda s: s | {"ones": torch.tensor([torch.nan])}, "NaN or infinite"),
    "no add-on": (lambda s: without(s, "add_on_layers.2.bias"), "it lacks add_on.2.bias"),
    "further layer": (
        lambda s: s | {"add_on_layers.4.weight": torch.ones(2)},
        "it has add_on.4.weight",
    ),
    "another backbone": (
        lambda s: without(s, "features.conv1.weight"),
        "tensors under features are not those of any of resnet18",
    ),
    "channels": (
        lambda s: s | {"prototype_vectors": torch.rand(6, 512, 1, 1)},
        "ProtoPNet with 128 and TesNet with 64",
    ),
    "parts": (
        lambda s: s | {"prototype_vectors": torch.rand(6, 128, 3, 3)},
        "prototypes of 3x3 parts",
    ),
    "pruned": (
        lambda s: s | {"prototype_vectors": torch.rand(5, 128, 1, 1)},
        "expected equally many of each class; was it pruned?",
    ),
    "reordered": (
        lambda s: s | {"last_layer.weight": s["last_layer.weight"].flip(0)},
        "another class than their number says",
    ),
}


@pytest.mark.parametrize("change,message", BAD.values(), ids=BAD.keys())
def test_checkpoint_that_does_not_fit_is_refused(dpp, state, birds, tmp_path, change, message):
    code, _, err = dpp("import", save(tmp_path, change(state)), "--data", birds)
    assert code == 2 and message in err and err.count("\n") == 1, err


@pytest.mark.parametrize(
    "words,message",
    [
        ((), "has 3 classes: name the data that it was trained on with --data"),
        (("--data", "elsewhere"), "no data set 'elsewhere'"),
        (("--model", "tesnet", "--data", "."), "dpp builds tesnet with 64"),
        (("--model", "prototree"), "no model 'prototree' to import"),
        (("--backbone", "resnet34"), "are not those of resnet34"),
        (("--backbone", "alexnet"), "no backbone 'alexnet' to import"),
    ],
)
def test_flags_that_do_not_fit_are_refused(dpp, checkpoint, words, message):
    code, _, err = dpp("import", checkpoint, *words)
    assert code == 2 and message in err and err.count("\n") == 1, err


def test_data_of_other_classes_is_refused(dpp, checkpoint, tmp_path):
    other = write_cub(tmp_path / "other", classes=2)
    code, _, err = dpp("import", checkpoint, "--data", other)
    assert code == 2 and "has 3 classes and other under" in err


def test_deformable_vgg_is_refused():
    theirs = make_checkpoint(AuthorsDeformable, "vgg11")
    with pytest.raises(UserError, match="28x28"):
        checkpoint_layout.read_layout(theirs.state_dict(), "a file")
