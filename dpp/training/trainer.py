"""The paper's three stages as a list of tasks, and stage 1 itself.

A `Schedule` says which children of a network are trained in which epochs at which rates, and after
which epochs prototypes are projected and the last layer is fitted. A `Trainer` runs it for any
network; it can stop between any two steps and be resumed from its `state`.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from dpp.backbones.backbone import Backbone
from dpp.data.batches import Splits, batches, make_loader, merge, share, to_device
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment


@dataclass(frozen=True)
class Phase:
    """Some epochs that train the same children of a network.

    Args:
        name: shown in records.
        epochs: how many.
        rates: learning rate of each child that is trained; all others are frozen, their
            batch-norm statistics too.
        weights: of the terms of the loss (equation 14).
        resets: children whose weights are drawn when the phase begins, and what their
            `reset_parameters` takes: a deviation, or None for He's initialisation.
        decay: what the rates are multiplied by...
        decay_every: ...after so many epochs of the phase.
    """

    name: str
    epochs: int
    rates: Mapping[str, float]
    weights: Mapping[str, float] = field(default_factory=dict)
    resets: Mapping[str, float | None] = field(default_factory=dict)
    decay: float = 1.0
    decay_every: int = 5


class Task(NamedTuple):
    """One entry of a schedule: an epoch of training, or a later stage."""

    stage: str  # "train", or the name of another stage
    epoch: int  # counted from 1; 0 before the first
    phase: Phase
    epoch_of_phase: int  # counted from 0


@dataclass(frozen=True)
class Schedule:
    """The tasks of a training, in order.

    Args:
        phases: of stage 1, in order.
        stages: what follows the epochs in `after`, by name.
        after: epochs, counted from 1.
        weight_decay: of the children that have one.
        before: stages that come before the first epoch, by name; they count as epoch 0.
    """

    phases: tuple[Phase, ...]
    stages: tuple[str, ...] = ()
    after: tuple[int, ...] = ()
    weight_decay: Mapping[str, float] = field(default_factory=dict)
    before: tuple[str, ...] = ()

    def __post_init__(self):
        epochs = sum(phase.epochs for phase in self.phases)
        if wrong := [epoch for epoch in self.after if not 1 <= epoch <= epochs]:
            raise UserError(f"no stage can follow epoch {wrong[0]}: the schedule has {epochs}")

    def table(self) -> pd.DataFrame:
        """A row for each phase; a child that it does not train has no rate."""
        return pd.DataFrame(
            {"phase": phase.name, "epochs": phase.epochs, **phase.rates, "decay": phase.decay}
            for phase in self.phases
        )

    def tasks(self) -> list[Task]:
        tasks, epoch = [Task(stage, 0, self.phases[0], 0) for stage in self.before], 0
        for phase in self.phases:
            for place in range(phase.epochs):
                epoch += 1
                stages = ("train", *(self.stages if epoch in self.after else ()))
                tasks += [Task(stage, epoch, phase, place) for stage in stages]
        return tasks


Objective = Callable[[nn.Module, Tensor, Tensor, Phase], dict[str, Tensor]]


class NotFinite(Exception):
    """A loss or a metric is infinite or NaN; carries the terms and the batch."""

    def __init__(self, epoch: int, step: int, terms: dict[str, float], indices: list[int]):
        bad = ", ".join(f"{name} {value}" for name, value in terms.items())
        super().__init__(f"training is not finite in epoch {epoch}, step {step}: {bad}")
        self.epoch, self.step, self.terms, self.indices = epoch, step, terms, indices


class Trainer:
    """Trains a network by a schedule.

    Args:
        model: on its device.
        schedule: its tasks.
        splits: the data.
        objective: of stage 1; gives at least "loss".
        stages: the functions of the schedule's other stages; each returns metrics.
        batch_size: images in a training batch.
        seed: of the batches' order.
        workers: processes that prepare batches.
        precision: float32, or bfloat16 or float16 for autocast while training; what is trained is
            measured in float32, as it will be used.
    """

    def __init__(
        self,
        model: nn.Module,
        schedule: Schedule,
        splits: Splits,
        objective: Objective,
        stages: Mapping[str, Callable[["Trainer"], dict[str, float]]],
        *,
        batch_size: int,
        seed: int = 0,
        workers: int = 0,
        precision: str = "float32",
    ):
        self.model, self.splits, self.objective, self.stages = model, splits, objective, stages
        self.schedule, self.tasks = schedule, schedule.tasks()
        self.device = next(model.parameters()).device
        self.precision = precision
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "float16")
        self.loaders = {
            name: make_loader(dataset, batch_size, workers=workers)
            for name, dataset in splits._asdict().items()
            if name != "train"
        }
        self.loaders["train"] = make_loader(
            splits.train, batch_size, shuffle=True, drop_last=True, workers=workers, seed=seed
        )
        self.place = 0  # in `tasks`, of what is to be done next
        self.step = 0  # of the epoch under way, how many are done
        self.sums: dict[str, float] = {}  # over these steps
        self.seconds = 0.0  # that these steps took
        self.optimiser: torch.optim.Optimizer | None = None
        self.provenance: list[dict] | None = None  # of the prototypes, since they were projected

    def run(self, after_step: Callable[["Trainer"], None] = lambda trainer: None) -> Iterator[dict]:
        """Runs the remaining tasks; yields a record of each.

        Args:
            after_step: called between steps; may take the state, and may raise to stop.
        """
        while self.place < len(self.tasks):
            task = self.tasks[self.place]
            begun = time.perf_counter() - self.seconds
            if task.stage == "train":
                record = self._train_epoch(task, after_step)
            else:
                record = self.stages[task.stage](self)
            record |= self.evaluate("validation")
            if "train" not in [later.stage for later in self.tasks[self.place + 1 :]]:
                record |= self.evaluate("test")
            if not all(map(math.isfinite, record.values())):
                raise NotFinite(task.epoch, self.step, record, [])
            self.place, self.step, self.sums, self.seconds = self.place + 1, 0, {}, 0.0
            seconds = round(time.perf_counter() - begun, 3)
            named = {"stage": task.stage, "epoch": task.epoch, "phase": task.phase.name}
            yield named | record | {"seconds": seconds}

    def _train_epoch(self, task: Task, after_step: Callable[["Trainer"], None]) -> dict[str, float]:
        self.begin(task)
        started = time.perf_counter() - self.seconds
        for batch in batches(self.loaders["train"], task.epoch, start=self.step):
            terms = self._train_step(batch.images, batch.labels, task.phase)
            values = dict(zip(terms, torch.stack(list(terms.values())).tolist(), strict=True))
            if not all(map(math.isfinite, values.values())):
                raise NotFinite(task.epoch, self.step + 1, values, batch.indices.tolist())
            self._update()
            self.step += 1
            self.sums = {name: self.sums.get(name, 0) + value for name, value in values.items()}
            self.seconds = time.perf_counter() - started
            after_step(self)
        return {name: total / self.step for name, total in self.sums.items()}

    def begin(self, task: Task) -> None:
        """Freezes or unfreezes children and sets the rates for a task."""
        fresh = task.epoch_of_phase == 0 and self.step == 0
        if fresh or self.optimiser is None:
            self.optimiser = make_optimiser(self.model, task.phase, self.schedule.weight_decay)
        if fresh:
            for name, deviation in task.phase.resets.items():
                if name in dict(self.model.named_children()):
                    self.model.get_submodule(name).reset_parameters(deviation)
        freeze_all_but(self.model, task.phase.rates)
        self.provenance = None  # further training moves prototypes away from their images
        decay = task.phase.decay ** (task.epoch_of_phase // task.phase.decay_every)
        for group in self.optimiser.param_groups:
            group["lr"] = task.phase.rates[group["child"]] * decay

    def _train_step(self, images: Tensor, labels: Tensor, phase: Phase) -> dict[str, Tensor]:
        """Computes the gradients of one batch; returns the terms of its loss."""
        self.optimiser.zero_grad(set_to_none=True)
        images, labels = self.to_device(images), labels.to(self.device)
        with autocast(self.precision, self.device):
            terms = self.objective(self.model, images, labels, phase)
        self.scaler.scale(terms["loss"]).backward()
        return {name: value.detach() for name, value in terms.items()} | self._offset_gradient()

    def _offset_gradient(self) -> dict[str, Tensor]:
        """The norm of the gradient of what moves the parts, while it is trained.

        Not in float16, whose scaled gradients overflow now and then: such steps are left out.
        """
        moves = getattr(self.model, "offsets", None)
        gradients = [one.grad for one in moves.parameters()] if moves else []
        if self.scaler.is_enabled() or not gradients or gradients[0] is None:
            return {}
        return {
            "offset_gradient": torch.linalg.vector_norm(
                torch.stack([torch.linalg.vector_norm(one) for one in gradients])
            )
        }

    def _update(self) -> None:
        self.scaler.step(self.optimiser)
        self.scaler.update()

    def evaluate(self, split: str) -> dict[str, float]:
        """The mean over a split of each metric of `model.measure`; of offsets the median.

        Metrics of the test split are only recorded: nothing is chosen by them.
        """
        self.model.eval()
        measured = []
        for batch in share(self.loaders[split]):
            images, labels = self.to_device(batch.images), batch.labels.to(self.device)
            with torch.inference_mode():
                values = self.model.measure(images, labels)
            measured.append({name: value.cpu().double() for name, value in values.items()})
        return {
            f"{split}_{name}": float(values.median() if name == "offset" else values.mean())
            for name, values in merge(measured).items()
        }

    def to_device(self, images: Tensor) -> Tensor:
        return to_device(images, self.device)

    def state(self) -> dict:
        """All that is needed to resume from here, bit for bit on a CPU."""
        return {
            "place": self.place,
            "step": self.step,
            "sums": self.sums,
            "seconds": self.seconds,
            "provenance": self.provenance,
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict() if self.optimiser else None,
            "scaler": self.scaler.state_dict(),
            "generator": torch.get_rng_state(),
        }

    def restore(self, state: dict) -> None:
        """Returns to a `state`, of this process or of another."""
        self.place, self.step = state["place"], state["step"]
        self.sums, self.seconds = dict(state["sums"]), state["seconds"]
        self.provenance = state["provenance"]
        self.model.load_state_dict(state["model"])
        self.optimiser = None
        if state["optimiser"] is not None:
            # it belongs to the phase of the last epoch that was begun
            done = self.place if self.step else self.place - 1
            phase = self.tasks[done].phase
            self.optimiser = make_optimiser(self.model, phase, self.schedule.weight_decay)
            self.optimiser.load_state_dict(state["optimiser"])
            for parameter, moments in self.optimiser.state.items():
                for name in ("exp_avg", "exp_avg_sq"):  # laid out in memory as the fused Adam wants
                    moments[name] = torch.empty_like(parameter).copy_(moments[name])
        self.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["generator"])


def autocast(precision: str, device: str | torch.device) -> AbstractContextManager:
    """Computes in float32, or in bfloat16 or float16 where autocast allows it."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(torch.device(device).type, getattr(torch, precision))


def freeze_all_but(model: nn.Module, children: Mapping[str, float]) -> None:
    """Trains these children; the others keep their weights and their batch-norm statistics."""
    for name, child in model.named_children():
        child.requires_grad_(name in children).train(name in children)


def make_optimiser(
    model: nn.Module, phase: Phase, weight_decay: Mapping[str, float]
) -> torch.optim.Optimizer:
    """Adam over the children that a phase trains, as the released code has it."""
    present = dict(model.named_children())
    groups = [
        {
            # a backbone keeps those of its frozen trunk
            "params": list(getattr(child, "trained_parameters", child.parameters)()),
            "lr": rate,
            "weight_decay": weight_decay.get(name, 0.0),
            "child": name,
        }
        for name, rate in phase.rates.items()
        if (child := present.get(name)) is not None
    ]
    return torch.optim.Adam(groups, fused=True)


class Method(NamedTuple):
    """How a kind of network is built and trained from an experiment."""

    build: Callable[[Experiment, Backbone, int], nn.Module]  # of a number of classes
    objective: Callable[[Experiment], Objective]
    schedule: Callable[[Experiment], Schedule]
    stages: Callable[[Experiment], Mapping[str, Callable[[Trainer], dict[str, float]]]]
