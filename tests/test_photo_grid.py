"""The photo profile in the paper's tables: its backbones, and what can be trained where."""

import pytest
import torch
from tiny_data import write_cub, write_dogs

from dpp.paper import grid, photo, reproduce, tables
from dpp.runs.ensembles import Ensemble
from dpp.system import paths
from dpp.system.errors import UserError

FULL = "CUB-200-2011 (f)"


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """Results, data, weights and downloads of its own for each test; none at first."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setenv("DPP_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("DPP_WEIGHTS", raising=False)
    return tmp_path


def add_weights(machine, monkeypatch, *backbones: str) -> None:
    (machine / "weights").mkdir()
    for backbone in backbones:
        (machine / "weights" / f"{backbone}-imagenet-fp16.pth").touch()
    monkeypatch.setenv("DPP_WEIGHTS", str(machine / "weights"))


def planned(*names: str, **options) -> list:
    cells = [cell for name in names for cell in grid.cells(name, "photo", **options).values()]
    return [plan for cell in cells for plan in cell]


def test_tables_2_and_3_are_on_resnet34_and_share_runs_with_table_1():
    assert {plan.backbone for plan in planned("table2")} == {"resnet34"}
    one = grid.cells("table1", "photo")
    two = grid.cells("table2", "photo")
    three = grid.cells("table3", "photo")
    headline = one["Def. ProtoPNet (2x2)", "Res34"]
    assert headline == two[grid.ablation(0.1, 0.1, True), "Accuracy"]
    assert headline == three["Def. ProtoPNet [2p,10pc]", FULL] and len(headline) == 3
    assert len(one["Def. ProtoPNet (2x2)", "Res50"]) == 1
    [five] = three["Def. ProtoPNet** [2p,10pc]", FULL]
    assert [(member.backbone, member.seed) for member in five.members] == [
        ("resnet34", seed) for seed in range(5)
    ]
    own = [plan for (row, column), cell in three.items() if column == FULL for plan in cell]
    assert {plan.backbone for plan in own if not isinstance(plan, Ensemble)} == {"resnet34"}


def test_resnet50_is_version_1_unless_another_is_given(machine, monkeypatch):
    baseline = ("Baseline", "Res50")
    [first] = grid.cells("table1", "photo")[baseline]
    assert first.backbone == "resnet50_v1" and grid.column_of(first) == "Res50"
    for given in ("bbn.pth", "imagenet"):
        [other] = grid.cells("table1", "photo", resnet50=given)[baseline]
        assert (other.backbone, other.weights) == ("resnet50", given)
    assert photo.resnet50() == "imagenet"
    add_weights(machine, monkeypatch, "resnet50")
    assert photo.resnet50() == ""


def test_only_networks_with_local_weights_are_queued(machine, monkeypatch):
    write_cub(machine / "data" / "CUB_200_2011")
    write_dogs(machine / "data" / "StanfordDogs")
    add_weights(machine, monkeypatch, "resnet34", "vgg19")
    chosen, [line] = photo.trainable(planned(*tables.TITLES))
    networks = [plan for plan in grid.unfold(chosen) if not isinstance(plan, Ensemble)]
    assert {plan.backbone for plan in networks} == {"resnet34", "vgg19"}
    assert {plan.backbone for plan in networks if plan.data == "dogs"} == {"vgg19"}
    assert not any(plan.crop_to_box for plan in networks)
    missing = ("vgg16", "resnet50_v1", "resnet152", "densenet121", "densenet161")
    assert line.startswith("not queued: ") and all(name in line for name in missing)
    # of three mixed TesNets one has no weights: the ResNet-34 is trained alone
    assert [plan.backbone for plan in networks if plan.model == "tesnet"] == ["resnet34"]


def test_all_networks_are_queued_where_torchvision_downloads(machine):
    write_cub(machine / "data" / "CUB_200_2011")
    plans = planned("table1", "table2", resnet50="imagenet")
    chosen, lines = photo.trainable(plans)
    assert {plan.name for plan in chosen} == {plan.name for plan in plans} and lines == []
    _, [line] = photo.trainable(planned("table1"))  # nobody offers version 1
    assert line.startswith("not queued: 6 runs that need ImageNet weights of resnet50_v1")


def test_data_that_is_not_there_is_named(machine, monkeypatch):
    monkeypatch.setenv("DPP_RUNS", str(machine / "runs"))
    with pytest.raises(UserError, match='nothing can be trained .*"dpp data cub"'):
        reproduce.plan_photo(planned("table1"), jobs=1)
    write_cub(machine / "data" / "CUB_200_2011")
    chosen, [line] = photo.trainable(planned("table1", "dogs_backbones", resnet50="imagenet"))
    assert {plan.data for plan in chosen} == {"cub"}
    assert "runs on Stanford Dogs, which is not under" in line and '"dpp data dogs"' in line
