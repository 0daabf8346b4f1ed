"""What profiles give models: a complete section for each, rules of the supplement, stable names."""

from dataclasses import fields

import pandas as pd
import pytest

from dpp.paper import grid, tables
from dpp.runs import records
from dpp.system import paths
from dpp.system.errors import UserError
from dpp.training.experiments import CHOICES, MODELS, Experiment, base_experiment, make_experiment
from dpp.training.presets import PRESETS


@pytest.mark.parametrize("profile", PRESETS)
def test_every_model_has_a_section_of_known_fields(profile):
    sections, known = PRESETS[profile], {entry.name for entry in fields(Experiment)}
    assert set(sections) - {"base"} == set(MODELS)
    assert set().union(*sections.values()) <= known
    for model in MODELS:
        made = make_experiment(profile, model=model)
        values = {name: getattr(made, name) for name in sections[model]}
        assert values == {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in sections[model].items()
        }


@pytest.mark.parametrize(
    "changes,expected",
    [
        ({"kernel_size": 2}, {"per_class": 10}),
        ({"data": "dogs"}, {"per_class": 10, "backbone_rate": 1e-4}),
        ({"data": "dogs", "backbone": "resnet152"}, {"backbone_rate": 1e-5}),
        ({"backbone": "vgg16_bn"}, {"warm_epochs": 7}),
        ({"backbone": "vgg16_bn", "data": "dogs"}, {"warm_epochs": 5}),
        ({"backbone": "vgg16_bn", "model": "protopnet"}, {"warm_epochs": 5}),
        ({"kernel_size": 2, "per_class": 3}, {"per_class": 3}),
        ({"backbone": "densenet121", "warm_epochs": 4}, {"warm_epochs": 4}),
        ({"epochs": 25}, {"project_after": (20, 25)}),
        ({"epochs": 25, "model": "cnn"}, {"project_after": ()}),
    ],
)
def test_rules_of_the_supplement_and_changes_in_the_paper_profile(changes, expected):
    made = make_experiment("paper", **changes)
    assert {name: getattr(made, name) for name in expected} == expected


@pytest.mark.parametrize(
    "changes,expected",
    [
        ({}, ("layer2", "layer3.0", 4)),
        ({"backbone": "slim_vgg19_bn"}, ("features.26", "features.29", 4)),
        ({"backbone": "slim_densenet161"}, ("features.transition1", "features.transition2", 4)),
        ({"weights": "none"}, ("", "layer3.0", 0)),  # random layers are not frozen
        ({"frozen_trunk": ""}, ("", "layer3.0", 0)),
        ({"cut_after": "", "frozen_trunk": "layer3"}, ("layer3", "", 4)),
    ],
)
def test_mini_has_local_features_on_a_pretrained_trunk(changes, expected):
    made = make_experiment("mini", **changes)
    assert (made.frozen_trunk, made.cut_after, made.views) == expected
    assert not base_experiment(make_experiment("mini")).cut_after  # which is trained whole


def test_epochs_of_another_type_are_refused():
    with pytest.raises(UserError, match="epochs: expected int, got 'many'"):
        make_experiment("mini", epochs="many")


def test_base_weights_are_for_drawn_data_of_profiles_that_pretrain():
    with pytest.raises(UserError, match="base weights are for drawn data in mini or smoke"):
        base_experiment(make_experiment("paper"))


def test_names_of_all_committed_runs_are_those_of_the_grid():
    committed = set(pd.read_csv(paths.RESULTS / "mini" / records.RUNS).run)
    cells = (plans for table in tables.TITLES for plans in grid.cells(table).values())
    planned = {plan.name for plan in grid.unfold(plan for plans in cells for plan in plans)}
    assert len(committed) > 100 and committed <= planned


def test_help_names_every_choice():
    helps = {entry.name: entry.metadata["help"] for entry in fields(Experiment)}
    for name, choices in CHOICES.items():
        assert [choice for choice in choices if choice not in helps[name]] == [], name
