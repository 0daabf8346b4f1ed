"""How long a run will take, and how much memory and disk, from a few steps that are timed first."""

import resource
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from dpp.backbones.trunks import TrunkFeatures
from dpp.data.batches import Splits, to_device
from dpp.data.image_records import Source
from dpp.runs import checkpoints, limits
from dpp.runs.finished import load_splits
from dpp.runs.making import load_backbone
from dpp.runs.method_of import method_of
from dpp.runs.precision import choose_precision
from dpp.runs.trunk_cache import Missing, find_missing
from dpp.training.experiments import Experiment
from dpp.training.trainer import Phase, Schedule, autocast, freeze_all_but, make_optimiser


class Forecast(NamedTuple):
    """What a run will take, about."""

    seconds: float  # in all
    features: Missing  # what of it goes into trunk features, and their disk space
    memory: int  # bytes: the most that the trial took, of the GPU where there is one
    disk: int  # bytes, of the run's folder while it trains
    share: float  # of the processor that the trial had; other programs have the rest


def measure(experiment: Experiment, source: Source, device: str = "cpu") -> Forecast:
    """Times one step of each phase of a run, on a network that is thrown away.

    All images are decoded and resized here, unless they are kept already.

    Args:
        experiment: that is about to be trained; not from base weights.
        source: its data.
        device: that trains it.

    Raises:
        UserError: an image cannot be decoded, or the backbone's weights are not to be had.
    """
    limits.check_epochs(experiment)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(experiment.seed)  # as the run: a trunk without weights is the same
        backbone = load_backbone(experiment, None).to(device).eval()
        splits = load_splits(experiment, source)
        method, classes = method_of(experiment), len(source.class_names)
        limits.check_memory(experiment, backbone.channels, classes)
        limits.check_reach(experiment, experiment.image_size // backbone.stride)
        model = method.build(experiment, backbone, classes).to(device)
        precision = choose_precision(experiment.precision, device)
        missing = Missing(0, 0, 0.0)
        if experiment.views:
            missing = find_missing(splits, backbone, precision)
        count = min(experiment.batch_size, len(splits.train))
        images = splits.projection.show([(0, index) for index in range(count)])
        images, labels = to_device(images, device), splits.train.labels[:count].to(device)
        if experiment.views:
            with torch.no_grad():
                images = TrunkFeatures(backbone.trunk(images), experiment.image_size)
        schedule, objective = method.schedule(experiment), method.objective(experiment)

        def step(phase: Phase) -> None:
            optimiser = make_optimiser(model, phase, schedule.weight_decay)
            freeze_all_but(model, phase.rates)
            with autocast(precision, device):
                loss = objective(model, images, labels, phase)["loss"]
            loss.backward()
            optimiser.step()

        @torch.inference_mode()
        def look() -> None:
            model.eval().measure(images, labels)

        per_epoch = len(splits.train) // experiment.batch_size
        wall, processor = time.perf_counter(), time.process_time()
        training = sum(
            timed(lambda phase=phase: step(phase)) * phase.epochs * per_epoch
            for phase in schedule.phases
            if phase.epochs
        )
        looking = timed(look) / count * images_looked_at(schedule, splits)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())
    moments = 2 * sum(one.nbytes for one in model.parameters() if one.requires_grad)  # Adam's
    seconds = missing.seconds + training + looking
    disk = checkpoints.KEPT * (weights + moments)
    share = min(processor / (wall * torch.get_num_threads()), 1.0)
    return Forecast(seconds, missing, peak_memory(device), disk, share)


def timed(work: Callable[[], None]) -> float:
    """The seconds that something takes the second time: the first also sets things up."""
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def images_looked_at(schedule: Schedule, splits: Splits) -> int:
    """How many images a run scores without training on them.

    Validation images after each task, training images in each later stage, and test images from
    the last epoch on and once more at the end.
    """
    tasks = schedule.tasks()
    stages = [task.stage for task in tasks]
    later = sum(stage != "train" for stage in stages)
    final = len(stages) - max(n for n, stage in enumerate(stages) if stage == "train")
    validation, test = len(splits.validation), len(splits.test)
    return len(stages) * validation + later * len(splits.projection) + (final + 1) * test


def peak_memory(device: str) -> int:
    """The most memory that this process has had, of a GPU or of the machine, in bytes."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
