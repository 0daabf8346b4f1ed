"""What the live demo is made of, without a browser."""

import base64
import re
import zlib
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import torch
from demo_site import FEW, committed_run
from tiny_analysis import make_model
from torch import nn
from torch.nn import functional

import dpp.site.demo
from dpp import runs
from dpp.backbones.backbone import make_backbone
from dpp.drawn import posebirds
from dpp.drawn.species import kinds
from dpp.networks.model import DeformableProtoPNet
from dpp.site import findings, frames, weights
from dpp.site.demo import STATIC, demo_experiment, spoken
from dpp.system import paths
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment

PAGE = paths.PACKAGE / "site" / "page"


def taken(values: np.ndarray, where: dict) -> torch.Tensor:
    size = int(np.prod(where["shape"]))
    return torch.from_numpy(values[where["start"] :][:size].reshape(where["shape"]))


def apply(layer: dict, values: np.ndarray, images: torch.Tensor) -> torch.Tensor:
    """A described layer in plain PyTorch, (N, C, H, W)."""
    if layer["kind"] == "pool":
        sizes = (layer["kernel"], layer["stride"], layer["padding"])
        return functional.max_pool2d(images, *sizes)
    if layer["kind"] == "block":
        beside = layer["shortcut"]
        beside = images if beside is None else apply(beside, values, images)
        first = apply(layer["first"], values, images)
        return (apply(layer["second"], values, first) + beside).relu()
    kernel = taken(values, layer["weight"]).permute(0, 3, 1, 2)
    bias = taken(values, layer["bias"])
    sizes = {"stride": layer["stride"], "padding": layer["padding"]}
    result = functional.conv2d(images, kernel, bias, **sizes)
    return result.relu() if layer["relu"] else result


def make_local_network() -> DeformableProtoPNet:
    """The demo's kind of network, random, with batch norms that change something."""
    torch.manual_seed(0)
    backbone = make_backbone("slim_resnet34", cut_after="layer3.0")
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
    model = DeformableProtoPNet(backbone, 3, per_class=2, kernel_size=2).eval()
    model.offsets.reset_parameters(0.1)
    return model


@torch.no_grad()
def test_described_layers_give_the_network_s_features_and_offsets():
    model = make_local_network()
    steps, values = weights.describe_network(model)
    images = torch.randn(2, 3, 64, 64)
    features = images
    for layer in steps["layers"]:
        features = apply(layer, values, features)
    expected = model.backbone(images)
    assert (features - expected).abs().max() < 1e-4 * expected.abs().max()
    z, offsets = model.locate(images)
    found = z
    for layer in steps["offsets"]:
        found = apply(layer, values, found)
    assert torch.allclose(found, offsets, atol=1e-5)
    vectors = taken(values, steps["prototypes"])  # (P, parts, channels + 1)
    assert torch.allclose(vectors.norm(dim=2), torch.tensor(0.5))
    expected = model.prototypes.normalised().permute(0, 2, 3, 1).flatten(1, 2)
    assert torch.equal(vectors, expected)
    assert torch.equal(taken(values, steps["connections"]), model.last_layer.weight)


@pytest.mark.parametrize(
    "kind, words",
    [
        ("rigid", "predicts its offsets"),
        ("protopnet", "predicts its offsets"),
        ("released", "--variant paper"),
    ],
)
def test_networks_that_the_page_cannot_compute_are_refused(kind, words):
    with pytest.raises(UserError, match=words):
        weights.describe_network(make_model(kind))


def test_layers_that_the_page_cannot_compute_are_refused():
    with pytest.raises(UserError, match="cannot compute a Sigmoid"):
        weights.list_layers([nn.Sigmoid()], weights.Weights())


def test_differences_sum_to_every_pixel_of_every_frame():
    kind = kinds(10, base=False)[3]
    drawn = frames.draw_frames(kind, FEW, 32)
    assert drawn.shape == (3, 2, 3, 32, 32, 3) and drawn.dtype == np.uint8
    changes = frames.differences(drawn)
    assert (changes[1:, 1:, 1:] != 0).mean() < 0.2  # what makes it small
    summed = changes
    for axis in range(3):
        summed = summed.cumsum(axis=axis, dtype=np.uint8)
    assert np.array_equal(summed, drawn)
    packed = frames.pack(changes)
    assert zlib.decompress(base64.b64decode(packed)) == changes.tobytes()


def test_each_joint_moves_something_and_the_grid_is_as_drawn():
    kind = kinds(10, base=False)[3]
    drawn = frames.draw_frames(kind, FEW, 32)
    assert np.array_equal(drawn[2, 1, 0], frames.draw_frame(kind, 50, 1, -48, 32))
    for axis in range(3):
        first, last = np.take(drawn, 0, axis), np.take(drawn, -1, axis)
        assert (first != last).any(axis=(2, 3, 4)).all()


def test_demo_network_is_committed_with_the_row_of_notebook_13():
    run = committed_run()
    run.verify()
    rows = pd.read_csv(paths.RESULTS / "mini" / "following.csv").set_index("run")
    assert rows.weights_sha256[run.experiment.name] == run.manifest["weights_sha256"]
    committed = paths.RESULTS / "mini" / "networks" / run.experiment.name
    assert sum(file.stat().st_size for file in committed.iterdir()) < 1.5e6


def test_findings_are_those_of_the_records():
    found = findings.findings()
    rows = pd.read_csv(paths.RESULTS / "mini" / "following.csv")
    names = [findings.moving_parts.design("predicted", 2.0, seed).name for seed in range(5)]
    own = rows[rows.run.isin(names)]
    assert found.networks == len(own) == 5
    assert found.shares["moved"] == pytest.approx(100 * own["share moved"].mean())
    assert found.accuracies["at rest"] == pytest.approx(100 * own["accuracy at rest"].mean())
    gap = found.shares["moved"] - found.shares["at mean"]
    assert found.followed.mean == pytest.approx(gap)
    assert all(re.fullmatch(r"\d\d\.\d %|not run", text) for text in found.photo.values())


def test_missing_records_are_said_in_one_line(monkeypatch):
    monkeypatch.setattr(findings.moving_parts, "collect", lambda wanted: pd.DataFrame())
    with pytest.raises(UserError, match="following.csv has no rows"):
        findings.findings()


def test_command_says_what_is_wrong_in_one_line(monkeypatch, capsys, tmp_path):
    def refuse(*words, **options):
        raise UserError("no such network")

    monkeypatch.setattr(runs, "get", refuse)
    monkeypatch.setattr("sys.argv", ["demo", str(tmp_path / "out")])
    assert dpp.site.demo.main() == 2
    assert capsys.readouterr().err == "dpp: no such network\n"
    assert not (tmp_path / "out").exists()


def test_experiment_of_the_demo_is_the_study_s_first():
    experiment = demo_experiment()
    assert (experiment.pose, experiment.seed, experiment.deformation) == (2.0, 0, "predicted")
    assert experiment != make_experiment("mini")


def test_class_names_are_spoken():
    names = [spoken(name) for name in posebirds.class_names(10)]
    assert names[:2] == ["Ivory-billed Sunbird", "Bar-winged Shrike"]
    assert len(set(names)) == 10


class Ids(HTMLParser):
    """The ids of a page, and what refers to them."""

    def __init__(self, text: str):
        super().__init__()
        self.ids, self.references = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids += [given["id"]] if "id" in given else []
        for name in ("for", "aria-labelledby", "aria-describedby"):
            self.references += given.get(name, "").split()


def test_scripts_and_labels_refer_to_what_is_on_the_page():
    page = Ids((PAGE / "index.html").read_text())
    scripts = "".join((PAGE / name).read_text() for name in STATIC if name.endswith(".js"))
    used = re.findall(r'byId\("([\w-]+)"\)', scripts) + page.references
    assert len(page.ids) == len(set(page.ids)) and len(used) > 20
    assert set(used) <= set(page.ids)


def test_page_loads_nothing_from_elsewhere():
    for path in PAGE.iterdir():
        text = path.read_text()
        assert not re.search(r"https?://|fetch\(|XMLHttpRequest|import\(", text), path.name
    assert {path.name for path in PAGE.iterdir()} == {*STATIC, "index.html"}


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(one: str, other: str) -> float:
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def test_text_has_contrast_in_light_and_dark():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    themes = re.findall(r":root \{(.*?)\}", (PAGE / "demo.css").read_text(), re.DOTALL)
    assert len(themes) == 2
    for theme in themes:
        colour = dict(re.findall(r"--([\w-]+): (#\w{6});", theme))
        for text in ("ink", "soft", "accent", "wrong"):
            for behind in ("paper", "card", "tint"):
                assert contrast(colour[text], colour[behind]) >= 4.5, (text, behind)
        assert contrast(colour["accent-ink"], colour["accent"]) >= 4.5
