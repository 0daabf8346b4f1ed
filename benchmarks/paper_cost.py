"""What the paper profile would need of a GPU: an estimate, counted and not measured on one.

    python benchmarks/paper_cost.py [--tflops 19.5] [--utilisation 0.5] [--seeds 3] [--results DIR]

- Operations of a training step of each phase, and of a pass over an image, are counted on the real
  network at the real batch size, with tensors that have shapes and no values. Matrix products and
  convolutions count, a multiplication and an addition each; nothing else does.
- The real schedule of each experiment says how many steps and passes there are, and
  `dpp.paper.grid` which experiments the tables need.
- Hours are operations / (a GPU's peak x utilisation). The utilisation is the one that a training
  step reaches on this machine's CPU, against a plain matrix product in the same minute: no GPU was
  there to measure. What is not a product is in it only as far as a CPU spends time on it; a GPU
  waits for its memory more, so that hours are rather too few. Reading images is not in it. On the
  other side, PyTorch lets a GPU's convolutions use TF32, whose peak is higher, unless told not to.
- Memory is that of a training step: what is kept for the backward pass, weights, gradients, Adam's
  two moments and the batch. Work space and what lives for an instant come on top.
"""

import argparse
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import pandas as pd
import torch
from bench_training import training_step
from timing import machine, measure
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from dpp import ops
from dpp.backbones.backbone import make_backbone
from dpp.data.batches import EpochBatches
from dpp.data.catalogue import PUBLISHED
from dpp.data.image_records import ImageRecord, split_by_class
from dpp.methods.table import METHODS
from dpp.networks import prototypes
from dpp.networks.soft_tree import ProtoTree
from dpp.paper import grid, tables
from dpp.runs.ensembles import Ensemble
from dpp.system import paths
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment, make_experiment
from dpp.training.trainer import Schedule, Trainer, freeze_all_but

CLASSES = {"cub": 200, "dogs": 120}
A100 = 19.5  # TFLOP/s in float32, outside its tensor cores
NEITHER = {"seed": 0, "margin": 0.1, "orthogonality": 0.1, "crop_to_box": False}  # costs anything
PHASE = "joint"  # the one that utilisation is measured in
IMAGES, SIDE = 4, 2048  # in the measured step; of the measured matrix product
SHOWN = ["model", "backbone", "data", "kernel_size", "per_class", "deformable"]
SHOWN += ["margin", "orthogonality", "crop_to_box", "epochs", "batch_size"]
OF_PATCHES = {"kernel_size", "deformable", "margin"}  # fields that say nothing of other models
UNUSED = {
    "cnn": OF_PATCHES | {"per_class", "orthogonality"},
    "prototree": OF_PATCHES | {"per_class", "orthogonality"},
    "protopnet": OF_PATCHES | {"orthogonality"},
    "tesnet": OF_PATCHES,
    "deformable": set(),
}


class Count(NamedTuple):
    """What one network needs."""

    steps: dict[str, int]  # operations of a training step, by phase
    look: float  # operations of scoring one image
    search: float  # of looking for the prototypes of its class in one image
    fit: float  # of one pass of the last layer over one image's scores
    memory: int  # bytes, of the phase that needs most


def similarity_flops(z, offsets, prototypes, *rest, **also) -> int:
    """Of `max_similarity`, from shapes: a product of every place's samples with all prototypes."""
    (images, _, height, width), (count, channels, side, _) = z, prototypes
    return 2 * images * count * channels * side**2 * height * width


def similarity_backward_flops(grad, argmax, z, offsets, prototypes, *rest, **also) -> int:
    """The samples' gradient and the prototypes', at one place for each image and prototype."""
    height, width = z[2:]
    return 2 * similarity_flops(z, offsets, prototypes) // (height * width)


def counter() -> FlopCounterMode:
    """Counts the products of all within it, those of the compiled operator too."""
    known = {
        torch.ops.dpp.max_similarity: similarity_flops,
        torch.ops.dpp.max_similarity_backward: similarity_backward_flops,
    }
    return FlopCounterMode(display=False, custom_mapping=known)


class KnownClasses(TorchFunctionMode):
    """Answers what the losses ask of values, which tensors of shapes alone cannot."""

    def __init__(self, classes: int, per_class: int):
        super().__init__()
        self.classes, self.per_class = classes, per_class

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.bincount:
            return SimpleNamespace(tolist=lambda: [self.per_class] * self.classes)
        if function is nn.functional.one_hot and len(args) == 1:
            args = (*args, self.classes)
        return function(*args, **(kwargs or {}))


def make_fake(model: nn.Module, mode: FakeTensorMode) -> None:
    """Takes the values out of a network in place, and leaves shapes and memory formats."""
    for module in model.modules():
        for name, value in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(mode.from_tensor(value.detach())))
        for name, value in module.named_buffers(recurse=False):
            setattr(module, name, mode.from_tensor(value))


def storage_bytes(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes of the tensors' memory, by its number: views and shared weights count once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {storage._cdata: storage.nbytes() for storage in storages}


def step_memory(model: nn.Module, images: Tensor, loss: Callable[[], Tensor]) -> int:
    """Bytes of a training step: kept for the backward pass, weights and what Adam adds, images.

    Args:
        model: its frozen weights have neither gradient nor moments.
        images: the batch.
        loss: the forward pass; the backward pass follows it.
    """
    kept: list[Tensor] = []  # keeps them alive, so that no two have the same number

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        value = loss()
    weights = list(model.parameters())
    own = storage_bytes([*weights, *model.buffers(), images])
    activations = {n: size for n, size in storage_bytes(kept).items() if n not in own}
    trained = storage_bytes(weight for weight in weights if weight.requires_grad)
    value.backward()
    return sum(own.values()) + sum(activations.values()) + 3 * sum(trained.values())


@contextmanager
def shapes_alone(model: nn.Module, experiment: Experiment, classes: int):
    """Within it, a network and all that is computed have shapes and no values."""
    if ops.backend() == "reference":
        raise UserError(f"only the compiled operator's work is counted, and {ops.why()}")
    mode = FakeTensorMode()
    make_fake(model, mode)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(prototypes, "PIECE", sys.maxsize))  # as on a GPU
        stack.enter_context(KnownClasses(classes, experiment.per_class))
        stack.enter_context(mode)
        yield


def count(experiment: Experiment) -> Count:
    """Operations and memory of an experiment's network."""
    return _count(replace(experiment, **NEITHER))


@cache
def _count(experiment: Experiment) -> Count:
    method, classes = METHODS[experiment.model], CLASSES[experiment.data]
    backbone = make_backbone(experiment.backbone, stacked_branch=experiment.stacked_branch)
    model = method.build(experiment, backbone, classes)
    schedule, objective = method.schedule(experiment), method.objective(experiment)
    number, side = experiment.batch_size, experiment.image_size
    steps, memory, search = {}, 0, 0.0
    with shapes_alone(model, experiment, classes):
        images = torch.empty(number, 3, side, side).to(memory_format=torch.channels_last)
        labels = torch.empty(number, dtype=torch.long)
        alike = {}  # phases that train the same children cost the same
        for phase in schedule.phases:
            trained = frozenset(phase.rates).intersection(dict(model.named_children()))
            if trained not in alike:
                freeze_all_but(model, phase.rates)
                model.zero_grad(set_to_none=True)
                with counter() as counted:
                    needed = step_memory(
                        model,
                        images,
                        lambda phase=phase: objective(model, images, labels, phase)["loss"],
                    )
                memory = max(memory, needed)
                alike[trained] = counted.get_total_flops()
            steps[phase.name] = alike[trained]
        freeze_all_but(model, {})
        with counter() as counted, torch.no_grad():
            model.measure(images, labels)
        look = counted.get_total_flops() / number
        if "project" in schedule.stages:
            with counter() as counted, torch.no_grad():
                search_images(model, images, classes)
            search = counted.get_total_flops() / number
    fit = last_layer_flops(model) if "last layer" in schedule.stages else 0.0
    return Count(steps, look, search, fit, memory)


def search_images(model: nn.Module, images: Tensor, classes: int) -> None:
    """What stage 2 does with images: each is compared with the prototypes of its class."""
    if isinstance(model, ProtoTree):  # whose prototypes have no class
        model.prototypes(model.locate(images))
        return
    z, offsets = model.locate(images)
    own = model.prototypes.normalised()
    ops.max_similarity(z, offsets, own[: len(own) // classes], **model.prototypes.geometry)


def last_layer_flops(model: nn.Module) -> float:
    """Of `fit_by_passes`, for an image and pass: logits, their gradient, and the loss after it."""
    return 3 * 2 * model.last_layer.weight.numel()


@cache
def image_counts(data: str, validation_fraction: float) -> dict[str, int]:
    """How many images there are to train on, to choose by and to test, as `Splits` has them."""
    _, train, test = PUBLISHED[data].counts
    # CUB's classes have 29 or 30 training images, those of Dogs 100.
    records = [ImageRecord(f"{place:05}", Path(), place % CLASSES[data]) for place in range(train)]
    left, taken = split_by_class(records, validation_fraction, seed=0)
    return {"train": len(left), "validation": len(taken), "test": test}


class DryTrainer(Trainer):
    """Goes through a schedule as any trainer does, and notes what there would be to do."""

    def __init__(self, schedule: Schedule):
        self.done: Counter = Counter()  # (stage, phase) of tasks, ("evaluate", split)
        self.tasks, self.place, self.step, self.seconds = schedule.tasks(), 0, 0, 0.0
        self.stages = {
            name: lambda trainer, name=name: trainer.note(name, "") for name in schedule.stages
        }

    def note(self, *what: str) -> dict:
        self.done[what] += 1
        return {}

    def _train_epoch(self, task, after_step) -> dict:
        return self.note("train", task.phase.name)

    def evaluate(self, split: str) -> dict:
        return self.note("evaluate", split)


def work(schedule: Schedule) -> Counter:
    """How often a trainer does what: (stage, phase) of its tasks, ("evaluate", split) after."""
    trainer = DryTrainer(schedule)
    for _ in trainer.run():
        pass
    return trainer.done


def estimate(experiment: Experiment) -> dict[str, float]:
    """Steps, operations in 10^15 and memory in 10^9 bytes of one run."""
    counted, size = count(experiment), experiment.batch_size
    images = image_counts(experiment.data, experiment.validation_fraction)
    of_epoch = len(EpochBatches(images["train"], size, shuffle=True, drop_last=True, seed=0))
    steps = flops = 0
    for (stage, what), times in work(METHODS[experiment.model].schedule(experiment)).items():
        if stage == "train":
            steps += times * of_epoch
            flops += times * of_epoch * counted.steps[what]
        elif stage == "evaluate":
            flops += times * images[what] * counted.look
        elif stage == "project":
            flops += times * images["train"] * counted.search
        elif stage == "last layer":
            passes = experiment.last_layer_passes
            flops += times * images["train"] * (counted.look + passes * counted.fit)
    return {"steps": steps, "pflop": flops / 1e15, "memory_gb": counted.memory / 1e9}


def planned(seeds: Sequence[int]) -> dict[str, list[Experiment]]:
    """The runs that each table needs, members of ensembles in their place."""
    of_table = {name: grid.cells(name, "paper", seeds=seeds) for name in tables.TITLES}
    return {
        name: [
            plan
            for plan in grid.unfold(plan for cell in cells.values() for plan in cell)
            if not isinstance(plan, Ensemble)  # its own pass over the test images is not counted
        ]
        for name, cells in of_table.items()
    }


def as_frame(runs: dict[str, list[Experiment]]) -> pd.DataFrame:
    """A row for each experiment, whatever its seed, with the tables and runs that have it."""
    alike: dict[Experiment, dict[str, list[str]]] = {}  # tables, and in each the runs
    for table, mine in runs.items():
        for run in mine:
            alike.setdefault(replace(run, seed=0), {}).setdefault(table, []).append(run.name)
    rows = []
    for experiment, used in alike.items():
        names = {name for mine in used.values() for name in mine}
        row = {name: getattr(experiment, name) for name in SHOWN}
        row |= dict.fromkeys(UNUSED[experiment.model], "none")
        row |= {"tables": " ".join(used), "runs": len(names)}
        rows.append(row | estimate(experiment))
    return pd.DataFrame(rows)


def measure_utilisation(backbone: str, rounds: int) -> dict[str, float]:
    """Operations a second of a training step and of a matrix product, on one core, in turn."""
    experiment = make_experiment("paper", backbone=backbone, batch_size=IMAGES)
    method, classes = METHODS[experiment.model], CLASSES[experiment.data]
    flops = count(experiment).steps[PHASE]
    torch.manual_seed(0)
    model = method.build(experiment, make_backbone(backbone), classes)
    model.offsets.reset_parameters(1e-3)
    side = experiment.image_size
    images = torch.randn(IMAGES, 3, side, side).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(classes, (IMAGES,))
    phase = next(p for p in method.schedule(experiment).phases if p.name == PHASE)
    one, other = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    contenders = {
        "step": training_step(model, method.objective(experiment), images, labels, phase),
        "product": lambda: one @ other,
    }
    seconds = {name: statistics.median(s) for name, s in measure(contenders, rounds).items()}
    rates = {"step": flops / seconds["step"], "product": 2 * SIDE**3 / seconds["product"]}
    return rates | {"seconds": seconds["step"], "utilisation": rates["step"] / rates["product"]}


def summary(runs: dict[str, list[Experiment]], hours: Callable[[float], float]) -> pd.DataFrame:
    """Sums over the runs of each table, and over all of them with each run once."""
    every = {run.name: run for mine in runs.values() for run in mine}
    rows = []
    for name, mine in (runs | {"all, each run once": list(every.values())}).items():
        estimates = pd.DataFrame(map(estimate, mine))
        pflop, largest = estimates.pflop.sum(), estimates.pflop.max()
        row = {"table": name, "runs": len(mine), "pflop": pflop, "gpu_hours": hours(pflop)}
        row |= {"longest_run_hours": hours(largest), "most_memory_gb": estimates.memory_gb.max()}
        rows.append(row)
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tflops", type=float, default=A100, help="peak; 19.5: A100, float32")
    parser.add_argument("--utilisation", type=float, help="share of the peak; else as measured")
    parser.add_argument("--backbone", default="resnet50", help="whose step it is measured on")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3, help="of the headline rows and ablations")
    parser.add_argument("--results", type=Path, default=paths.RESULTS / "estimates")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    print("AN ESTIMATE: operations are counted, nothing was run on a GPU.")
    utilisation, origin = arguments.utilisation, "given"
    if utilisation is None:
        found = measure_utilisation(arguments.backbone, arguments.rounds)
        utilisation, origin = found["utilisation"], f"of a {arguments.backbone} step on this CPU"
        print(
            f"On one core of {machine()['processor']}: a {PHASE} step of {IMAGES} images with "
            f"{arguments.backbone} takes {found['seconds']:.2f} s, {found['step'] / 1e9:.1f} "
            f"GFLOP/s; a plain matrix product reaches {found['product'] / 1e9:.1f} GFLOP/s."
        )
    print(
        f"Utilisation {utilisation:.2f} ({origin}) is taken for a GPU of {arguments.tflops:g} "
        "TFLOP/s: hours go as its inverse, and a GPU may well reach less than a CPU. Operations "
        "are products and convolutions; memory is without work space; reading images is left out."
    )

    def hours(pflop: float) -> float:
        return pflop * 1e3 / (arguments.tflops * utilisation) / 3600

    runs = planned(range(arguments.seeds))
    frame = as_frame(runs)
    frame.insert(frame.columns.get_loc("memory_gb"), "gpu_hours", hours(frame.pflop))
    frame = frame.assign(peak_tflops=arguments.tflops, utilisation=utilisation)
    frame = frame.assign(utilisation_is=origin, kind="estimate", **machine())
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / "paper_cost.csv"
    frame.round(3).to_csv(path, index=False, lineterminator="\n")
    print(f"\nGPU hours of each table ({len(frame)} experiments, one row each in {path}):")
    by_table = summary(runs, hours).round(1)
    by_table.to_csv(arguments.results / "paper_cost_by_table.csv", index=False, lineterminator="\n")
    print(by_table.to_string(index=False))


if __name__ == "__main__":
    main()
