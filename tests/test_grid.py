"""The runs of the paper's tables: all that can be trained is planned, and nothing twice."""

from collections import Counter

import pytest

from dpp.paper import grid, tables
from dpp.runs.ensembles import Ensemble
from dpp.system.errors import UserError


def planned(table, *arguments, **options):
    cells = grid.cells(table, *arguments, **options)
    return [plan for experiments in cells.values() for plan in experiments]


@pytest.mark.parametrize("profile", ["smoke", "mini", "paper"])
@pytest.mark.parametrize("table", tables.TITLES)
def test_every_cell_that_is_not_quoted_is_planned(table, profile):
    printed = tables.reported(table)
    wanted = printed[~printed.row.isin(tables.ELSEWHERE)]
    cells = grid.cells(table, profile)
    assert set(cells) == set(zip(wanted.row, wanted.column, strict=True))
    assert all(cells.values())


def test_mini_is_about_ninety_runs_and_pretrains_each_family_once():
    work = grid.unfold(plan for table in tables.TITLES for plan in planned(table))
    trained = [plan for plan in work if not isinstance(plan, Ensemble)]
    bases = [plan for plan in trained if plan.base_classes]
    assert len({plan.name for plan in work}) == len(work)
    assert Counter(plan.backbone for plan in bases).most_common(1)[0][1] == 1 and len(bases) == 7
    assert 80 <= len(trained) - len(bases) <= 100


def test_what_a_run_needs_comes_before_it():
    work = grid.unfold(planned("table3", "smoke"))
    place = {plan.name: number for number, plan in enumerate(work)}
    for plan in work:
        assert all(place[needed.name] < place[plan.name] for needed in grid.needs(plan))


def test_headline_rows_are_the_same_runs_in_three_tables():
    options = {"seeds": (0, 1, 2, 3)}
    one = grid.cells("table1", **options)["Def. ProtoPNet (2x2)", "Res50"]
    two = grid.cells("table2", **options)[grid.ablation(0.1, 0.1, True), "Accuracy"]
    three = grid.cells("table3", **options)["Def. ProtoPNet [2p,10pc]", "CUB-200-2011 (f)"]
    assert one == two == three and len(one) == 4


def test_ablations_differ_in_what_their_names_say():
    for (row, _), experiments in grid.cells("table2").items():
        for experiment in experiments:
            assert row == grid.ablation(
                experiment.margin, experiment.orthogonality, experiment.deformable
            )
    assert {len(experiments) for experiments in grid.cells("table2").values()} == {3}


def test_ensembles_have_as_many_members_as_stars_say():
    cells = grid.cells("table3")
    for (row, column), experiments in cells.items():
        stars = row.count("*")
        if stars:
            assert [len(ensemble.members) for ensemble in experiments] == [2 * stars + 1]
            assert all(m.crop_to_box == ("(bb)" in column) for m in experiments[0].members)


def test_paper_profile_has_the_papers_data_and_networks():
    experiments = planned("table1", "paper") + planned("dogs_backbones", "paper")
    assert {experiment.data for experiment in experiments} == {"cub", "dogs"}
    assert {experiment.backbone for experiment in experiments} == set(grid.BACKBONES.values())
    assert all(experiment.weights == "imagenet" for experiment in experiments)


def test_file_of_weights_is_for_resnet50_alone():
    experiments = planned("table1", "paper", resnet50="bbn.pth")
    assert {e.backbone for e in experiments if e.weights == "bbn.pth"} == {"resnet50"}
    assert {e.weights for e in experiments if e.backbone == "resnet50"} == {"bbn.pth"}


def test_cells_of_other_backbones_are_empty():
    cells = grid.cells("table1", backbones=["Res34"])
    assert {column for (_, column), experiments in cells.items() if experiments} == {"Res34"}
    ensembles = grid.cells("table3", backbones=["Res34"])
    assert ensembles["ProtoPNet*", "CUB-200-2011 (f)"] == []


def test_changes_and_data_reach_every_experiment():
    experiments = planned("table2", data="posedogs", changes={"epochs": 4})
    assert {(e.data, e.epochs, e.project_after) for e in experiments} == {("posedogs", 4, (4,))}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backbones": ["resnet50"]}, "no backbone 'resnet50': choose one of VGG16"),
        ({"seeds": []}, "at least one"),
        ({"seeds": ["one"]}, "whole number from 0"),
        ({"seeds": [-1]}, "whole number from 0"),
        ({"changes": {"sharpness": 3}}, "no 'sharpness'"),
    ],
)
def test_bad_options_are_named(options, said):
    with pytest.raises(UserError, match=said):
        grid.cells("table1", **options)
