"""Networks in standard operators: the same logits, scores, centres and parts as the original."""

import json
import sys

import numpy as np
import pytest
import torch
from test_runs import tiny
from tiny_network import make_network

from dpp import runs
from dpp.networks import released
from dpp.sharing import standard
from dpp.system.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT = {"epochs": 1, "warm_epochs": 1, "second_warm_epochs": 0, "project_after": (1,)}
RELEASED = "released:damped_cosine,clipped_cosine,zero_outside,two_channels,large_features"


@pytest.mark.parametrize("kernel_size", [1, 2, 3])
@pytest.mark.parametrize("moving", [0.0, 0.4, 3.0])
@pytest.mark.parametrize("variant", ["paper", RELEASED])
@torch.no_grad()
def test_standard_operators_give_what_the_operator_gives(kernel_size, moving, variant):
    switches = released.parse(variant)
    network = make_network(kernel_size=kernel_size, moving=moving, switches=switches)
    if not moving:
        network.offsets = None
    images = torch.randn(3, 3, 24, 24, dtype=torch.float64)
    logits, scores, centres, parts = standard.StandardNetwork(network)(images)
    expected = network.inspect(images)
    torch.testing.assert_close(logits, expected.logits, rtol=0, atol=1e-10)
    torch.testing.assert_close(scores, expected.scores, rtol=0, atol=1e-10)
    assert centres.equal(expected.places)
    places = network.part_places(expected, torch.arange(scores.shape[1]))
    torch.testing.assert_close(parts, places.to(parts), rtol=0, atol=1e-10)


@pytest.mark.parametrize("form", standard.FORMATS)
def test_command_writes_a_network_with_the_same_logits(dpp, trained, tmp_path, form):
    path = tmp_path / f"network{standard.FORMATS[form]}"
    code, out, err = dpp("export", trained.folder, "--format", form, "--out", path)
    assert code == 0, err
    assert float(out.splitlines()[0].rsplit(" ", 1)[1]) < 1e-4
    about = json.loads(path.with_suffix(".json").read_text())
    assert about["classes"] == list(trained.source.class_names)
    images = standard.real_images(trained)[:3]  # another number of images than it was traced with
    logits = standard.RUNNERS[form](path, images)
    with torch.no_grad():
        expected = trained.load_model()(images)
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_missing_extra_is_named(dpp, trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    code, _, err = dpp("export", trained.folder, "--out", tmp_path / "network.onnx")
    assert code == 2 and "onnxscript is not installed: run pip install 'dpp[onnx]'" in err
    assert not (tmp_path / "network.onnx").exists()


@pytest.mark.parametrize(
    "words,message",
    [
        (("--format", "tflite"), "format: 'tflite' is not one of onnx, torch"),
        (("--out", "network.bin"), "network.bin: a network as onnx must end in .onnx"),
    ],
)
def test_wrong_format_is_refused(dpp, trained, words, message):
    code, _, err = dpp("export", trained.folder, *words)
    assert code == 2 and message in err


def test_other_networks_are_refused(trained, monkeypatch):
    monkeypatch.setattr(runs.Run, "load_model", lambda self: torch.nn.Identity())
    with pytest.raises(UserError, match="only deformable and cnn can be exported"):
        standard.standard(trained)


@pytest.mark.slow
def test_full_network_as_onnx(tmp_path):
    experiment = tiny(**SHORT, backbone="resnet34", image_size=224)
    run = runs.run(experiment, root=tmp_path, device="cpu", progress=False)
    assert standard.export(run, "onnx", tmp_path / "network.onnx").difference < 1e-4
