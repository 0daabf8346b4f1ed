"""The photo profile on real photographs with real weights, neither of which is ever committed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dpp import data, runs
from dpp.backbones.backbone import make_backbone
from dpp.backbones.pretrained import find_local
from dpp.backbones.trunks import TrunkFeatures
from dpp.data.batches import batches, make_loader, make_splits
from dpp.runs import ensembles
from dpp.system.paths import ROOT
from dpp.training.experiments import make_experiment

REALDATA = Path(os.environ.get("DPP_REALDATA") or ROOT.parent / "shared" / "realdata")
CUB, WEIGHTS = REALDATA / "CUB_200_2011", REALDATA / "weights"
pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(
        not (CUB.is_dir() and WEIGHTS.is_dir()),
        reason=f"no CUB subset and weights under {REALDATA}: set DPP_REALDATA to their folder",
    ),
]


def copy_few(target: Path, classes: int = 3, train: int = 10, test: int = 5) -> Path:
    """A few photographs of the first classes, in CUB's layout."""
    wanted = {}
    for record in (source := data.read_cub(CUB)).records:
        kind = "train" if record in source.train[: 30 * classes] else "test"
        wanted.setdefault((record.label, kind), []).append(record)
    few = [
        record
        for (label, kind), records in wanted.items()
        if label < classes
        for record in records[: train if kind == "train" else test]
    ]
    ids = {record.id for record in few}
    for record in few:
        copy = target / record.path.relative_to(CUB)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(record.path, copy)
    for name in ("images", "image_class_labels", "train_test_split", "bounding_boxes"):
        lines = (CUB / f"{name}.txt").read_text().splitlines()
        kept = [line for line in lines if line.split()[0] in ids]
        (target / f"{name}.txt").write_text("\n".join(kept) + "\n")
    names = (CUB / "classes.txt").read_text().splitlines()[:classes]
    (target / "classes.txt").write_text("\n".join(names) + "\n")
    return target


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return copy_few(tmp_path_factory.mktemp("real") / "birds")


@pytest.mark.parametrize("name", ["resnet34", "vgg16", "vgg19", "resnet50_v1"])
def test_real_weights_are_found_under_dpp_weights(name, monkeypatch):
    monkeypatch.setenv("DPP_WEIGHTS", str(WEIGHTS))
    assert find_local(name).name.startswith(name.removesuffix("_v1"))


def test_first_resnet50_sees_more_alike_with_its_own_strides(few, monkeypatch, tmp_path):
    """With torchvision's strides its activations are not those that its statistics are of."""
    monkeypatch.setenv("DPP_WEIGHTS", str(WEIGHTS))
    splits = make_splits(data.load(str(few)), 160, folder=tmp_path)
    images = next(batches(make_loader(splits.test, 6))).images
    off = {}
    for name, weights in (("resnet50_v1", "imagenet"), ("resnet50", find_local("resnet50_v1"))):
        backbone = make_backbone(name, weights).eval()
        seen = []
        norm = backbone.layer4[0].bn1
        handle = norm.register_forward_hook(lambda layer, given, _, seen=seen: seen.append(given))
        with torch.no_grad():
            backbone(images)
        handle.remove()
        variance = seen[0][0].var(dim=(0, 2, 3))
        off[name] = (variance / norm.running_var).log().abs().mean().item()
    assert off["resnet50_v1"] < off["resnet50"]


def test_half_precision_hardly_moves_the_last_block(few, monkeypatch, tmp_path):
    monkeypatch.setenv("DPP_WEIGHTS", str(WEIGHTS))
    splits = make_splits(data.load(str(few)), 112, folder=tmp_path)
    backbone = make_backbone("resnet34", "imagenet", frozen_trunk="layer3").eval()
    with torch.no_grad():
        maps = backbone.trunk(next(batches(make_loader(splits.test, 15))).images)
        exact = backbone(TrunkFeatures(maps, 112))
        rounded = backbone(TrunkFeatures(maps.half(), 112).to("cpu"))
    assert (exact - rounded).norm() < 5e-4 * exact.norm()


@pytest.mark.slow
def test_real_photographs_train_by_the_command_line(few, tmp_path):
    environment = os.environ | {"DPP_WEIGHTS": str(WEIGHTS), "DPP_DATA": str(tmp_path / "data")}
    environment |= {"DPP_RUNS": str(tmp_path / "runs")}
    command = [sys.executable, "-m", "dpp", "train", "--profile", "photo", "--data", str(few)]
    small = "--image-size 112 --views 2 --kernel-size 2 --per-class 2 --batch-size 9 --epochs 4"
    small += " --warm-epochs 1 --second-warm-epochs 1 --prototype-rate 0.01"
    done = subprocess.run(
        [*command, *small.split()], capture_output=True, text=True, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert "trunk features: 99 maps of 256 x 7 x 7" in done.stderr
    folder = Path(done.stdout.splitlines()[-1])
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["pretrained_file"] == "resnet34-imagenet-fp16.pth"
    assert manifest["results"]["test_accuracy"] > 0.5  # of three classes


@pytest.mark.slow
def test_own_photographs_from_training_to_report(tmp_path):
    """As a new user: a folder for each class, no flags but for the size."""
    for folder in sorted((CUB / "images").iterdir())[2:5]:
        (tmp_path / "photos" / folder.name).mkdir(parents=True)
        for path in sorted(folder.iterdir())[:12]:
            shutil.copy(path, tmp_path / "photos" / folder.name)
    environment = os.environ | {"DPP_WEIGHTS": str(WEIGHTS), "DPP_DATA": str(tmp_path / "data")}
    environment |= {"DPP_RUNS": str(tmp_path / "runs"), "PYTHONPATH": str(ROOT)}

    def dpp(*words) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "dpp", *map(str, words)]
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=1800
        )

    done = dpp("train", "--data", "photos", "--image-size", 112)
    assert done.returncode == 0, done.stderr
    assert "3 classes, 36 images: 24 to train on, 3 for validation, 9 for test" in done.stderr
    assert "expected: about" in done.stderr
    folder = Path(done.stdout.splitlines()[-1])
    run = runs.open_run(folder)
    assert run.manifest["results"]["test_accuracy"] > 0.6  # of three quite different birds
    assert (folder / "familiarity.json").is_file()
    weight = run.load_model().last_layer.weight
    assert not (weight == 1).any()  # the last layer was fitted
    for words in (["explain", run.source.test[0].path, "--run", folder], ["report", folder]):
        done = dpp(*words)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / f"{folder.name}.html").stat().st_size > 100_000


def test_accuracy_from_images_is_that_from_features(few, monkeypatch, tmp_path):
    for name, path in (("WEIGHTS", WEIGHTS), ("DATA", tmp_path / "data")):
        monkeypatch.setenv(f"DPP_{name}", str(path))
    changes = {"image_size": 112, "views": 2, "batch_size": 9, "epochs": 3, "warm_epochs": 1}
    experiment = make_experiment("photo", model="cnn", data=str(few), **changes)
    run = runs.run(experiment, root=tmp_path / "runs", progress=False)
    accuracy = ensembles.test_accuracy(run.load_model(), experiment)
    assert accuracy == pytest.approx(run.manifest["results"]["test_accuracy"], abs=0.07)
