"""Experiments of the photo profile, and that fields which came later leave older names alone."""

import dataclasses

import pandas as pd
import pytest
import torch

from dpp.methods.table import METHODS
from dpp.networks.prototypes import OffsetBranch
from dpp.paper import grid
from dpp.paper.tables import TITLES
from dpp.runs import precision
from dpp.system.errors import UserError
from dpp.system.paths import RESULTS
from dpp.training.experiments import MODELS, PRESETS, Experiment, make_experiment

LATER = {"frozen_trunk": "layer3", "offset_start": "he"}


def from_row(row: dict) -> Experiment:
    """The experiment of a row of runs.csv, which has no column for fields that came later."""
    values = {}
    for entry in dataclasses.fields(Experiment):
        if entry.name in row and not (entry.metadata["later"] and pd.isna(row[entry.name])):
            kind, value = type(entry.default), row[entry.name]
            text = "" if pd.isna(value) else str(value)
            if kind is tuple:
                values[entry.name] = tuple(int(float(epoch)) for epoch in text.split())
            else:
                values[entry.name] = kind(float(value)) if kind in (int, float) else kind(value)
    return Experiment(**values)


def test_committed_runs_keep_their_names():
    table = pd.read_csv(RESULTS / "mini" / "runs.csv")
    assert len(table) == 105
    alone = table[table.members.isna()]
    names = [from_row(row).name for row in alone.to_dict("records")]
    assert names == alone.run.tolist()
    together = set(table.run) - set(names)
    cells = [cell for name in TITLES for cell in grid.cells(name, "mini").values()]
    assert together and together <= {plan.name for cell in cells for plan in cell}


@pytest.mark.parametrize("field", LATER)
def test_field_that_came_later_counts_once_it_is_set(field):
    before = make_experiment("paper")
    after = make_experiment("paper", **{field: LATER[field]})
    assert field not in before.row and after.row[field] == LATER[field]
    assert before.name != after.name


def test_views_without_a_frozen_trunk_are_refused():
    with pytest.raises(UserError, match="views are of a frozen trunk: name its last layer"):
        make_experiment("paper", views=2)


def test_offset_branch_from_he_moves_nothing_at_first_and_has_a_gradient():
    torch.manual_seed(0)
    branch = OffsetBranch(5, 2)
    branch.reset_parameters(None)
    z = torch.rand(2, 5, 4, 4)
    offsets = branch(z)
    assert not offsets.any()
    offsets.sum().backward()
    assert branch[2].weight.grad.abs().max() > 0.1
    assert abs(branch[0].weight.std() / (2 / (5 * 9)) ** 0.5 - 1) < 0.05


# The profile


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("backbone", "trunk"),
    [
        ("resnet34", "layer3"),
        ("resnet50_v1", "layer3"),
        ("vgg19", "features.27"),
        ("vgg16_bn", "features.33"),
        ("densenet161", "features.transition3"),
    ],
)
@pytest.mark.parametrize("data", ["cub", "dogs"])
def test_photo_freezes_all_blocks_but_the_last(model, backbone, trunk, data):
    experiment = make_experiment("photo", model=model, backbone=backbone, data=data)
    assert (experiment.frozen_trunk, experiment.views) == (trunk, 3)
    assert experiment.weights == "imagenet" and experiment.image_size == 224
    assert experiment.warm_epochs == PRESETS["photo"][model]["warm_epochs"] < 7  # not a VGG's 7
    published = make_experiment("paper", model=model)
    assert experiment.epochs <= 0.6 * published.epochs
    assert METHODS[model].schedule(experiment).tasks()


def test_photo_trains_a_backbone_whole_of_which_no_trunk_is_known():
    experiment = make_experiment("photo", backbone="mobilenet_v2")
    assert (experiment.frozen_trunk, experiment.views) == ("", 0)


@pytest.mark.parametrize("table", TITLES)
def test_photo_has_the_papers_cells(table):
    plans = [plan for cell in grid.cells(table, "photo").values() for plan in cell]
    assert plans and {plan.profile for plan in plans} == {"photo"}


def test_bfloat16_pays_where_the_processor_has_it(monkeypatch):
    monkeypatch.setattr(precision, "INSTRUCTIONS", {"AMX": lambda: True})
    assert precision.bfloat16_pays() == (True, "the processor has AMX")
    assert precision.choose_precision("auto") == "bfloat16"
    monkeypatch.setattr(precision, "INSTRUCTIONS", {"AMX": lambda: False})
    assert precision.bfloat16_pays()[0] is False
    assert precision.choose_precision("auto") == "float32"
    assert precision.choose_precision("float16") == "float16"


@pytest.mark.parametrize("model", PRESETS["photo"])
def test_photo_trains_in_what_the_processor_has(model):
    assert make_experiment("photo", model=model).precision == "auto"
