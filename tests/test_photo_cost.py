"""What photo runs are estimated to take: counts against real passes, sizes against real files."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from tiny_data import write_cub
from torch.utils.flop_counter import FlopCounterMode

from dpp import ops, runs
from dpp.backbones.backbone import make_backbone
from dpp.methods.table import METHODS
from dpp.paper import cost
from dpp.runs import records
from dpp.system import paths
from dpp.training.experiments import make_experiment

CLASSES, SIZE = 2, 64


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """Tiny birds, and no results."""
    write_cub(tmp_path / "data" / "CUB_200_2011", train=5)
    monkeypatch.setenv("DPP_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    return tmp_path


def tiny(**changes):
    small = {"backbone": "slim_resnet34", "weights": "none", "frozen_trunk": "layer3"}
    small |= {"views": 2, "image_size": SIZE, "per_class": 2, "batch_size": 4}
    return make_experiment("photo", **(small | changes))


def store(experiment, seconds: float, threads: int = 1) -> None:
    results = {"test_accuracy": 0.5}
    manifest = {"run": experiment.name, "results": results, "seconds": seconds, "threads": threads}
    metrics = pd.DataFrame([{"stage": "test", "test_accuracy": 0.5}])
    records.store(SimpleNamespace(experiment=experiment, manifest=manifest, metrics=metrics))


@pytest.mark.parametrize("model", ["cnn", "protopnet", "tesnet", "deformable"])
def test_operations_of_an_image_are_those_of_a_real_pass(model, monkeypatch):
    monkeypatch.setattr(ops, "_SERVED", frozenset())  # plain PyTorch, whose products are counted
    experiment = tiny(model=model)
    counted = cost.count(experiment, CLASSES)
    backbone = make_backbone(experiment.backbone, frozen_trunk=experiment.frozen_trunk)
    network = METHODS[model].build(experiment, backbone, CLASSES).eval()
    with FlopCounterMode(display=False) as real, torch.no_grad():
        network.measure(torch.rand(1, 3, SIZE, SIZE), torch.zeros(1, dtype=torch.long))
    assert counted.trunk + counted.head + counted.rest == real.get_total_flops()
    assert counted.trunk > counted.head > 0
    assert counted.bytes == sum(
        value.numel() * value.element_size() for value in network.state_dict().values()
    )


def test_epochs_that_train_the_backbone_cost_three_passes_of_its_head():
    short = tiny(model="cnn", epochs=1, warm_epochs=0)
    source = runs.load_source(short)
    counted = cost.count(replace(short, **cost.ANY), CLASSES)
    look, (_, images, test) = counted.head + counted.rest, source.counts()
    by_hand = 9 * (look + 2 * counted.head) + 1 * look + test * look
    assert images == 10 and cost.operations(short, source) == by_hand
    warm = replace(short, warm_epochs=1)
    assert cost.operations(warm, source) == by_hand - 9 * 2 * counted.head
    whole = replace(warm, views=0)  # which has no cache: all images pass the trunk
    more = cost.operations(whole, source) - cost.operations(warm, source)
    assert more == (10 + test) * counted.trunk


def test_size_of_the_cache_is_exact_and_what_is_there_is_left_out(machine):
    experiment, estimator = tiny(), cost.Estimator()
    expected = estimator.trunk_cache(experiment), estimator.pixels(experiment)
    assert all(one.bytes > 0 for one in expected) and expected[0].seconds > 0
    runs.prepare(experiment, progress=False)
    stores = (machine / "data" / "cache" / "trunk").glob("*/features.bin")
    assert sum(path.stat().st_size for path in stores) == expected[0].bytes
    pixels = (machine / "data" / "cache").glob("*px-*/pixels.bin")
    assert sum(path.stat().st_size for path in pixels) == expected[1].bytes
    assert estimator.trunk_cache(experiment).bytes == estimator.pixels(experiment).bytes == 0
    assert estimator.trunk_cache(replace(experiment, views=3)).bytes > 0


def test_seconds_of_a_stored_run_are_those_of_other_seeds(machine):
    estimator = cost.Estimator()
    estimator.learn([tiny(seed=3)])
    assert not estimator.run(tiny()).measured
    store(tiny(seed=3), 50.0, threads=2)
    estimator = cost.Estimator()
    estimator.learn([tiny(seed=3)])
    assert estimator.run(tiny(seed=4)) == cost.Estimate(100.0, estimator.run(tiny()).bytes, True)


def test_pace_is_of_the_stored_runs_that_are_most_like_a_run():
    for experiment, seconds in ((tiny(model="cnn"), 1.0), (tiny(), 10.0)):
        store(experiment, seconds)
    estimator = cost.Estimator()
    estimator.learn([tiny(model="cnn"), tiny()])
    [quick], [slow] = estimator.paces.values()
    assert estimator.pace("cnn", "slim_resnet34") == quick
    assert estimator.pace("tesnet", "slim_resnet34") == (quick + slow) / 2
    larger = tiny(kernel_size=2, per_class=7)
    expected = cost.operations(larger, runs.load_source(larger)) / slow
    assert estimator.run(larger).seconds == pytest.approx(expected)


def test_estimate_says_hours_gigabytes_and_where_they_are_from(machine):
    plans = [tiny(), tiny(seed=1), tiny(model="cnn")]
    said = cost.estimate(plans, jobs=1)
    assert "Estimate for 3 runs that are not finished, on 1 core:" in said
    assert "0 runs from the seconds of stored ones, 3 from counted operations" in said
    assert "(assumed)" in said and str(machine / "data" / "cache") in said
    store(tiny(), 7200.0)
    runs.prepare(tiny(), progress=False)
    said = cost.estimate(plans[1:2], plans[:1], jobs=1)
    assert "1 runs      2.0 hours" in said and "1 runs from the seconds of stored" in said
