"""The estimate of what the paper profile costs: what it counts, against counts by hand and by run.

No times here: those are of a machine.
"""

import importlib
import sys
from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from dpp import ops, reference
from dpp.backbones.backbone import make_backbone
from dpp.data.batches import Batch
from dpp.methods.table import METHODS
from dpp.system import paths
from dpp.training import last_layer, projection
from dpp.training.experiments import MODELS, make_experiment
from dpp.training.trainer import freeze_all_but

sys.path.insert(0, str(paths.ROOT / "benchmarks"))
cost = importlib.import_module("paper_cost")

compiled = pytest.mark.skipif(
    ops.backend() == "reference", reason=f"counts the compiled operator's work: {ops.why()}"
)
SMALL = {"backbone": "slim_vgg16", "image_size": 32, "batch_size": 4, "per_class": 2}


def make_inputs(side: int, moving: bool) -> tuple:
    z = torch.rand(2, 5, 4, 6, requires_grad=True)
    offsets = torch.rand(2, 2 * side**2, 4, 6, requires_grad=True) if moving else None
    return z, offsets, torch.rand(7, 5, side, side, requires_grad=True)


def shapes(tensors) -> list:
    return [None if tensor is None else tensor.shape for tensor in tensors]


@pytest.mark.parametrize("moving", [True, False])
@pytest.mark.parametrize("side", [1, 2, 3])
def test_operations_of_the_operator_are_the_products_of_plain_pytorch(side, moving):
    inputs = make_inputs(side, moving)
    with FlopCounterMode(display=False) as forward:
        scores, _ = reference.max_similarity(*inputs, dilation=2)
    assert cost.similarity_flops(*shapes(inputs), 2, 1.0) == forward.get_total_flops()
    with FlopCounterMode(display=False) as backward:
        scores.sum().backward()
    # plain PyTorch goes backward at all 4 x 6 places, the operator at one
    sparse = cost.similarity_backward_flops(scores.shape, scores.shape, *shapes(inputs), 2, 1.0)
    assert 4 * 6 * sparse == backward.get_total_flops() > 0


@compiled
def test_counter_sees_the_compiled_operator():
    inputs = make_inputs(2, True)
    with cost.counter() as counted:
        ops.max_similarity(*inputs, dilation=2)[0].sum().backward()
    forward = 2 * 2 * 7 * 5 * 4 * 24  # images, prototypes, channels, parts, places
    assert counted.get_total_flops() == forward + 2 * forward // 24


class TinyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 4, 1, bias=False)
        self.classifier = nn.Linear(4 * 8 * 8, 5, bias=False)

    def forward(self, images):
        return self.classifier(self.features(images).relu().flatten(1))


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("trained", [("features", "classifier"), ("classifier",)])
def test_memory_of_a_step_is_that_by_hand(trained, fake):
    model, mode = TinyNet(), FakeTensorMode()
    images = torch.rand(10, 3, 8, 8)
    if fake:
        cost.make_fake(model, mode)
        images = mode.from_tensor(images)
    freeze_all_but(model, dict.fromkeys(trained, 1.0))
    with mode if fake else torch.enable_grad():
        found = cost.step_memory(model, images, lambda: model(images).square().sum())
    weights = {"features": 3 * 4, "classifier": 256 * 5}
    # Kept: what ReLU gave, once though its derivative and the classifier both want it, and the
    # logits, which the square wants. A gradient and two moments for each weight that is trained.
    values = 10 * 3 * 64 + sum(weights.values()) + 3 * sum(weights[name] for name in trained)
    assert found == 4 * (values + 10 * 256 + 10 * 5)


@compiled
@pytest.mark.parametrize("model", MODELS)
def test_operations_counted_by_shapes_are_those_of_a_step_with_values(model):
    experiment = replace(make_experiment("paper", model=model), **SMALL)
    counted, method = cost.count(experiment), METHODS[model]
    network = method.build(experiment, make_backbone(experiment.backbone), 200)
    images, labels = torch.rand(4, 3, 32, 32), torch.tensor([3, 5, 5, 199])
    for phase in method.schedule(experiment).phases:
        freeze_all_but(network, phase.rates)
        with cost.counter() as real:
            method.objective(experiment)(network, images, labels, phase)["loss"].backward()
        assert counted.steps[phase.name] == real.get_total_flops() > 0
    network.eval()
    with cost.counter() as real, torch.no_grad():
        network.measure(images, labels)
    assert 4 * counted.look == real.get_total_flops()


@compiled
def test_operations_of_projection_and_last_layer_are_those_of_the_stages():
    experiment = replace(make_experiment("paper"), **SMALL)
    counted = cost.count(experiment)
    network = METHODS["deformable"].build(experiment, make_backbone(experiment.backbone), 200)
    labels = torch.tensor([3, 5, 5, 199])
    with cost.counter() as real:
        projection.search(network.eval(), [Batch(torch.rand(4, 3, 32, 32), labels, labels)])
    assert 4 * counted.search == real.get_total_flops()
    weight, classes = network.last_layer.weight.detach(), network.prototypes.classes
    with cost.counter() as real:
        last_layer.fit_by_passes(torch.rand(4, 400), labels, weight, classes, passes=3)
    first_loss = 2 * 4 * weight.numel()
    assert 4 * 3 * counted.fit + first_loss == real.get_total_flops()


def test_work_is_that_of_the_supplement():
    done = cost.work(METHODS["deformable"].schedule(make_experiment("paper")))
    assert [done["train", name] for name in ("warm", "second warm", "joint")] == [5, 5, 20]
    assert done["project", ""] == done["last layer", ""] == 2
    assert done["evaluate", "validation"] == 34 and 1 <= done["evaluate", "test"] <= 34


def test_images_are_those_of_the_data_sets():
    assert cost.image_counts("cub", 0.1) == {"train": 5394, "validation": 600, "test": 5794}
    assert cost.image_counts("dogs", 0.1) == {"train": 10800, "validation": 1200, "test": 8580}


def test_estimate_is_the_sum_by_hand(monkeypatch):
    counted = cost.Count({"warm": 7e9, "second warm": 8e9, "joint": 9e9}, 1e6, 1e5, 1e3, 5)
    monkeypatch.setattr(cost, "count", lambda experiment: counted)
    epochs = {("train", "warm"): 5, ("train", "second warm"): 5, ("train", "joint"): 20}
    passes = {("evaluate", "validation"): 34, ("evaluate", "test"): 3}
    done = epochs | passes | {("project", ""): 2, ("last layer", ""): 2}
    monkeypatch.setattr(cost, "work", lambda schedule: done)
    found = cost.estimate(make_experiment("paper"))
    assert found["steps"] == 30 * 67 and found["memory_gb"] == 5e-9
    flops = 67 * (5 * 7e9 + 5 * 8e9 + 20 * 9e9)  # 5394 images in batches of 80
    flops += 34 * 600 * 1e6 + 3 * 5794 * 1e6  # validation after each task, and some tests
    flops += 2 * 5394 * (1e5 + 1e6 + 20 * 1e3)
    assert found["pflop"] == pytest.approx(flops / 1e15)


def test_run_of_several_tables_counts_once_in_the_sum(monkeypatch):
    monkeypatch.setattr(cost, "estimate", lambda run: {"steps": 1, "pflop": 2.0, "memory_gb": 3.0})
    first, second = make_experiment("paper"), make_experiment("paper", seed=1)
    runs = {"table1": [first], "table2": [first, second]}
    frame = cost.as_frame(runs)
    assert list(frame.tables) == ["table1 table2"] and list(frame.runs) == [2]
    sums = cost.summary(runs, hours=lambda pflop: 10 * pflop)
    assert list(sums.runs) == [1, 2, 2] and list(sums.gpu_hours) == [20.0, 40.0, 40.0]


def test_rows_say_none_where_a_model_has_no_such_field(monkeypatch):
    monkeypatch.setattr(cost, "estimate", lambda run: {"steps": 1, "pflop": 2.0, "memory_gb": 3.0})
    frame = cost.as_frame({"table1": [make_experiment("paper", model=model) for model in MODELS]})
    frame = frame.set_index("model")
    assert set(frame.kernel_size.drop("deformable")) == {"none"}
    assert (frame.kernel_size["deformable"], frame.per_class["tesnet"]) == (3, 10)


def test_every_table_is_planned_without_ensembles():
    runs = cost.planned(range(2))
    assert set(runs) == set(cost.tables.TITLES) and all(runs.values())
    assert {run.seed for run in runs["table2"]} == {0, 1}
    assert {run.model for run in runs["table3"]} == set(MODELS) - {"cnn"}


def test_docs_have_the_estimates_of_the_file():
    text = (paths.ROOT / "docs" / "paper_profile.md").read_text()
    by_table = pd.read_csv(paths.RESULTS / "estimates" / "paper_cost_by_table.csv")
    for row in by_table.itertuples(index=False):
        assert f"| {' | '.join(map(str, row))} |" in text
