"""The schedule as data, frozen parts, the loss of stage 1, and going on from a state."""

import pytest
import torch
from tiny_network import Enough, make_network, make_tiny_splits, stop_after

from dpp.methods.deformable import stage_one
from dpp.methods.table import METHODS
from dpp.networks import losses
from dpp.networks.released import ReleasedSwitches
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment
from dpp.training.trainer import NotFinite, Phase, Schedule, Trainer

WEIGHTS = {"separation": 0.01, "cluster": 0.1, "orthogonality": 0.1}
SCHEDULE = Schedule(
    phases=(
        Phase("warm", 1, {"prototypes": 1e-2}, WEIGHTS),
        Phase("second warm", 1, {"prototypes": 1e-2, "backbone": 1e-3}, WEIGHTS),
        Phase(
            "joint",
            2,
            {"prototypes": 1e-2, "backbone": 1e-3, "offsets": 1e-3},
            WEIGHTS,
            resets={"offsets": 0.1},
            decay=0.1,
            decay_every=1,
        ),
    ),
    stages=("project", "last layer"),
    after=(4,),
    weight_decay={"backbone": 1e-3},
)


@pytest.fixture
def splits(tmp_path):
    return make_tiny_splits(tmp_path / "cub")


def make_trainer(splits, schedule: Schedule = SCHEDULE, **options) -> Trainer:
    network = make_network(moving=0).float()
    stages = METHODS["deformable"].stages(make_experiment("mini"))
    given = {"batch_size": 5} | options
    return Trainer(network, schedule, splits, stage_one(0.1), stages, **given)


def weights_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_schedule_lists_epochs_with_later_stages_after_those_named():
    tasks = SCHEDULE.tasks()
    assert [(task.stage, task.epoch, task.phase.name) for task in tasks] == [
        ("train", 1, "warm"),
        ("train", 2, "second warm"),
        ("train", 3, "joint"),
        ("train", 4, "joint"),
        ("project", 4, "joint"),
        ("last layer", 4, "joint"),
    ]


def test_schedule_refuses_a_stage_after_an_epoch_that_there_is_not():
    with pytest.raises(UserError, match="epoch 9"):
        Schedule(SCHEDULE.phases, ("project",), (9,))


def test_supplement_schedule_of_the_paper_profile():
    schedule = METHODS["deformable"].schedule(make_experiment("paper"))
    warm, second, joint = schedule.phases
    assert (warm.epochs, second.epochs, joint.epochs) == (5, 5, 20)
    assert warm.rates == {"prototypes": 3e-3}
    assert second.rates == {"prototypes": 3e-3, "backbone": 1e-4}
    assert joint.rates == {"prototypes": 3e-3, "backbone": 1e-4, "offsets": 5e-4}
    assert joint.resets == {"offsets": 2e-5}
    assert (joint.decay, joint.decay_every, warm.decay) == (0.1, 5, 1)
    assert joint.weights == warm.weights == WEIGHTS
    assert schedule.after == (20, 30) and schedule.weight_decay == {"backbone": 1e-3}


@pytest.mark.parametrize("backbone,warm", [("vgg19", 7), ("densenet161", 7), ("resnet34", 5)])
def test_vgg_and_densenet_have_seven_warm_epochs_on_cub(backbone, warm):
    experiment = make_experiment("paper", backbone=backbone)
    phases = METHODS["deformable"].schedule(experiment).phases
    assert phases[0].epochs == warm and sum(phase.epochs for phase in phases) == 30


def test_released_switches_change_weights_and_rates():
    experiment = make_experiment("paper", variant="released", kernel_size=2)
    warm, _, joint = METHODS["deformable"].schedule(experiment).phases
    assert joint.weights == {"separation": 0.08, "cluster": 0.8, "orthogonality": 0.1}
    assert warm.weights["orthogonality"] == 0
    assert joint.rates["offsets"] == pytest.approx(1e-4) and joint.decay == 0.2


def test_frozen_children_keep_weights_and_batch_norm_statistics(splits, one_thread):
    trainer = make_trainer(splits)
    before = {name: weights_of(child) for name, child in trainer.model.named_children()}
    moved = []
    for _, record in zip(range(3), trainer.run(), strict=False):
        now = {name: weights_of(child) for name, child in trainer.model.named_children()}
        moved.append({name for name in now if not same(before[name], now[name])})
        before = now
        assert record["stage"] == "train"
    assert moved == [
        {"prototypes"},
        {"prototypes", "backbone"},
        {"prototypes", "backbone", "offsets"},
    ]


def test_batch_norm_statistics_move_where_the_backbone_is_trained(splits, one_thread):
    trainer = make_trainer(splits)
    run = trainer.run()
    next(run)
    statistics = trainer.model.backbone.layers[1].running_mean.clone()
    next(run)
    assert not torch.equal(statistics, trainer.model.backbone.layers[1].running_mean)


def test_last_layer_is_fixed_in_stage_1_and_moves_in_stage_3(splits, one_thread):
    trainer = make_trainer(splits)
    start = trainer.model.last_layer.weight.detach().clone()
    moved = {
        record["stage"]: not torch.equal(start, trainer.model.last_layer.weight)
        for record in trainer.run()
    }
    assert moved == {"train": False, "project": False, "last layer": True}


def test_rates_decay_within_a_phase(splits, one_thread):
    trainer = make_trainer(splits)
    rates = []
    trainer_run = trainer.run(
        lambda t: rates.append(tuple(group["lr"] for group in t.optimiser.param_groups))
    )
    list(trainer_run)
    assert rates[0] == (1e-2,)
    assert rates[-1] == pytest.approx((1e-3, 1e-4, 1e-4))


def test_equation_14_of_a_network_is_the_sum_of_its_terms(splits):
    network = make_network()
    images = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 0])
    terms = stage_one(0.1)(network, images, labels, SCHEDULE.phases[0])
    output, prototypes = network.inspect(images), network.prototypes
    margined = losses.subtractive_margin(output.scores, labels, prototypes.classes, 0.1)
    expected = (
        losses.cross_entropy(margined, labels, network.last_layer)
        + 0.01 * losses.separation(output.scores, labels, prototypes.classes)
        + 0.1 * losses.cluster(output.scores, labels, prototypes.classes)
        + 0.1 * losses.orthogonality(prototypes.normalised(), prototypes.classes, 0.5)
    )
    torch.testing.assert_close(terms["loss"], expected)


def test_released_objective_differs_in_its_terms():
    images = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 0])

    def terms(*switches: str) -> dict[str, torch.Tensor]:
        network = make_network(switches=ReleasedSwitches(**dict.fromkeys(switches, True)))
        return stage_one(0.1)(network, images, labels, SCHEDULE.phases[0])

    paper = terms()
    torch.testing.assert_close(
        terms("mean_cross_entropy")["cross_entropy"] * 4, paper["cross_entropy"]
    )
    assert terms("margin_in_separation")["separation"] > paper["separation"]
    assert terms("margin_in_separation")["cluster"] == paper["cluster"]
    assert terms("mixed_orthogonality")["orthogonality"] != paper["orthogonality"]


def test_loss_falls_and_figures_are_recorded(splits, one_thread):
    phases = (Phase("joint", 6, {"prototypes": 3e-2, "backbone": 1e-2}, WEIGHTS),)
    records = list(make_trainer(splits, Schedule(phases)).run())
    assert records[-1]["loss"] < records[0]["loss"]
    assert {"cross_entropy", "cluster", "separation", "orthogonality"} <= records[0].keys()
    assert "test_accuracy" in records[-1] and "test_accuracy" not in records[0]
    assert all(record["seconds"] > 0 for record in records)


def test_gradient_of_the_offset_branch_is_recorded_while_it_is_trained(splits, one_thread):
    """With the two phases' one step each, its norm is that of the gradients which are left."""
    warm = Phase("warm", 1, {"prototypes": 1e-2}, WEIGHTS)
    joint = Phase("joint", 1, {"offsets": 1e-2}, WEIGHTS, resets={"offsets": 0.3})
    trainer = make_trainer(splits, Schedule((warm, joint)))
    norms = []

    def note(trainer):
        gradients = [one.grad for one in trainer.model.offsets.parameters()]
        if gradients[0] is not None:
            norms.append(float(torch.cat([one.flatten() for one in gradients]).norm()))

    records = list(trainer.run(note))
    assert "offset_gradient" not in records[0] and len(norms) > 1
    assert records[1]["offset_gradient"] == pytest.approx(sum(norms) / len(norms))
    assert records[0]["validation_active"] == 0 < records[1]["validation_active"]


@pytest.mark.parametrize("stop", [1, 3, 4, 9])
def test_state_taken_between_steps_leads_to_the_same_weights(splits, stop, one_thread):
    torch.manual_seed(3)
    undisturbed = make_trainer(splits)
    torch.manual_seed(7)
    for _ in undisturbed.run():
        pass
    expected = weights_of(undisturbed.model)

    torch.manual_seed(3)
    first = make_trainer(splits)
    torch.manual_seed(7)
    with pytest.raises(Enough):
        for _ in first.run(stop_after(stop)):
            pass
    state = first.state()
    torch.manual_seed(99)
    second = make_trainer(splits)
    second.restore(state)
    for _ in second.run():
        pass
    assert same(expected, weights_of(second.model))


def test_same_seed_gives_the_same_weights_and_another_gives_others(splits, one_thread):
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(3)
        trainer = make_trainer(splits, seed=seed)
        list(trainer.run())
        found.append(weights_of(trainer.model))
    assert same(found[0], found[1]) and not same(found[0], found[2])


def test_loss_that_is_not_a_number_names_its_batch(splits, one_thread):
    trainer = make_trainer(splits)
    with torch.no_grad():
        trainer.model.prototypes.vectors[0] = float("nan")
    before = weights_of(trainer.model.backbone)
    with pytest.raises(NotFinite, match="epoch 1, step 1") as caught:
        list(trainer.run())
    assert len(caught.value.indices) == 5
    assert same(before, weights_of(trainer.model.backbone))


def test_features_that_are_no_numbers_do_not_hide_behind_parts_outside(splits, one_thread):
    trainer = make_trainer(splits)
    with torch.no_grad():
        trainer.model.backbone.layers[0].weight.fill_(float("nan"))
    with pytest.raises(NotFinite):
        list(trainer.run())


def test_origins_are_forgotten_when_training_goes_on(splits, one_thread):
    trainer = make_trainer(splits, Schedule(SCHEDULE.phases, ("project",), (3,)))
    known = [(record["stage"], trainer.provenance is not None) for record in trainer.run()]
    assert known[-2:] == [("project", True), ("train", False)]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_trains(splits, precision, one_thread):
    phases = (Phase("joint", 9, {"prototypes": 3e-2, "backbone": 1e-2}, WEIGHTS),)
    trainer = make_trainer(splits, Schedule(phases), precision=precision)
    records = list(trainer.run())
    assert records[-1]["loss"] < records[0]["loss"]
