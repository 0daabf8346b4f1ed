"""One training by several processes, each with a part of every batch: `torchrun -m dpp train`.

Every process has the whole network. It runs its part of a batch through it; what the network says
of each image (scores, logits: a few numbers) is gathered, and every process computes the loss of
the whole batch from that. So any loss, sums and means and terms without images alike, is the one
that a single process computes. `DistributedDataParallel` averages the gradients. A process's own
images count in its own gradient alone, therefore times the number of processes; what all compute
alike, such as the orthogonality of prototypes, is its own average.

Batches that are only looked at (validation, test, projection, scores for the last layer) are dealt
out whole, see `dpp.data.batches.share`.
"""

import hashlib
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.nn.parallel import DistributedDataParallel

from dpp import __version__
from dpp.backbones.shared_batch_norm import share_batch_norm
from dpp.data.batches import part_of
from dpp.runs.finished import choose_device, load_source
from dpp.system import processes
from dpp.system.errors import UserError, one_line
from dpp.training.experiments import Experiment
from dpp.training.trainer import Objective, Phase, Trainer

MEETING = 300  # seconds in which all processes must have come
LONGEST_WAIT = timedelta(days=2)  # for what one process does alone: decoding, trunk features
NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # set by torchrun


@contextmanager
def joined(device: str) -> Iterator[str]:
    """Brings the processes together that torchrun has started.

    Args:
        device: auto, cpu or cuda; of GPUs each process takes that of its number on the machine.

    Yields:
        This process's own device.

    Raises:
        UserError: they do not meet, or there are fewer GPUs than processes.
    """
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        store=meet(),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=LONGEST_WAIT,
    )
    own = processes.in_turn(lambda: own_device(device))
    if own != "cpu":
        torch.cuda.set_device(own)
    # of 1x1 kernels, whose memory format has two names: nothing is slower
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    try:
        yield own
    except RuntimeError as error:
        if "peer" in str(error) or isinstance(error, distributed.DistError):
            raise UserError(
                "another process has ended; what was saved is kept: run the same command to "
                f"resume, or give torchrun --max-restarts ({one_line(error)[:100]})"
            ) from error
        raise
    distributed.destroy_process_group()


def meet() -> distributed.Store:
    """The store that all processes know, once all have come to it."""
    if lacking := [name for name in NEEDED if name not in os.environ]:
        raise UserError(
            f"the environment has RANK but no {lacking[0]}: start the processes with torchrun"
        )
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    count = int(os.environ["WORLD_SIZE"])
    patience = timedelta(seconds=MEETING)
    try:
        if os.environ["RANK"] != "0":
            wait_for_port(address, int(port))
        shared, own, _ = next(distributed.rendezvous("env://", timeout=patience))
        store = distributed.PrefixStore(attempt(), shared)
        store.set(f"came {own}", "")
        store.wait([f"came {number}" for number in range(count)], patience)
    except (OSError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(
            f"the {count} processes did not meet at {address}:{port} within {MEETING} seconds: "
            f"check MASTER_ADDR, MASTER_PORT (or torchrun's --rdzv-endpoint), and that all were "
            f"started ({one_line(error)[:100]})"
        ) from error
    store.set_timeout(LONGEST_WAIT)
    return store


def attempt() -> str:
    """What tells this start of the processes from those before it.

    Restarted processes find the store of those that ended, with addresses that nobody listens at.
    """
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"start {restarts} of {os.environ['WORLD_SIZE']} processes"


def wait_for_port(address: str, port: int) -> None:
    """Waits until something listens there; the store's own attempts fill the screen."""
    end = time.monotonic() + MEETING
    while True:
        try:
            socket.create_connection((address, port), timeout=MEETING).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(min(0.5, MEETING))


def own_device(device: str) -> str:
    """The device of this process, of auto, cpu or cuda."""
    kind = choose_device("auto") if device == "auto" else device
    if ":" in kind:
        raise UserError(f"--device {kind} is for one process: give cuda, and each takes its own")
    number, gpus = processes.local_rank(), torch.cuda.device_count()
    if kind == "cuda" and number >= gpus > 0:
        raise UserError(
            f"there is no GPU for process {number} of this machine, which has {gpus}: give "
            f"torchrun --nproc-per-node {gpus}, or --device cpu"
        )
    return choose_device(f"cuda:{number}" if kind == "cuda" else kind)


def check(experiment: Experiment) -> None:
    """Raises a `UserError` if the processes cannot train an experiment together.

    A batch needs an image for each process, and all need the same experiment, data and versions.
    """
    count = processes.count()
    if experiment.batch_size < count:
        processes.raise_together(
            f"a batch of {experiment.batch_size} has no image for each of {count} processes: "
            f"start at most {experiment.batch_size}, or raise --batch-size"
        )
    compare(processes.in_turn(lambda: describe(experiment)))


def describe(experiment: Experiment) -> dict[str, str]:
    """What must be the same in all processes, by name."""
    source = load_source(experiment)
    listed = hashlib.sha256(str(source.counts()).encode())
    for record in source.records:
        size = record.path.stat().st_size
        listed.update(f"{record.id} {record.label} {record.box} {size}\n".encode())
    return {
        "experiments": experiment.identity,
        "images": f"digest {listed.hexdigest()[:12]}",
        "versions of dpp": __version__,
        "versions of torch": torch.__version__,
    }


def compare(own: dict[str, str]) -> None:
    """Raises a `UserError` in all processes if one has another value than the first process.

    Args:
        own: this process's values, by name.
    """
    everybody = processes.gather(own)
    first, problem = everybody[0], ""
    if different := [name for name in own if own[name] != first[name]]:
        name = different[0]
        problem = f"{name} differ from the first process's: {own[name]}, not {first[name]}"
    processes.raise_together(problem)


def share_work(trainer: Trainer, experiment: Experiment) -> None:
    """Makes a trainer, at its beginning, one of several that train one network.

    Args:
        trainer: the same in all processes.
        experiment: what it trains.
    """
    compare({"pixels": f"digest {trainer.splits.train.store.content_digest()[:12]}"})
    number, count = processes.rank(), processes.count()
    parts = [part_of(range(experiment.batch_size), place, count) for place in range(count)]
    share_batch_norm(trainer.model)
    trainer.loaders["train"].sampler.part = (number, count)
    trainer.objective = share_objective(trainer.objective, [len(part) for part in parts])
    trainer.stages = {name: equalised(stage) for name, stage in trainer.stages.items()}


def equalised(stage: Callable[[Trainer], dict]) -> Callable[[Trainer], dict]:
    """A stage after which all processes have the first one's network."""

    def run(trainer: Trainer) -> dict:
        record = stage(trainer)
        for value in trainer.model.state_dict().values():
            dense = value.contiguous()
            distributed.broadcast(dense, 0)
            value.copy_(dense)
        return record

    return run


def share_objective(objective: Objective, sizes: list[int]) -> Objective:
    """The loss of a whole batch, from a part of its images and labels.

    Args:
        objective: of a whole batch.
        sizes: of the parts, in the order of the processes.
    """
    parallel: dict[tuple, nn.Module] = {}  # one: that of the children which are trained now

    def shared(model: nn.Module, images, labels: Tensor, phase: Phase) -> dict[str, Tensor]:
        trained = tuple(id(p) for p in model.parameters() if p.requires_grad)
        if trained not in parallel:
            parallel.clear()
            step = Step(model, objective, sizes)
            options = {"forward_sync_buffers": False, "gradient_as_bucket_view": True}  # no copies
            parallel[trained] = DistributedDataParallel(step, **options)
        return parallel[trained](images, labels, phase)

    return shared


class Step(nn.Module):
    """A network with its loss, as `DistributedDataParallel` takes it: images in, terms out."""

    def __init__(self, model: nn.Module, objective: Objective, sizes: list[int]):
        super().__init__()
        self.model, self.objective, self.sizes = model, objective, sizes

    def forward(self, images, labels: Tensor, phase: Phase) -> dict[str, Tensor]:
        labels = GatherRows.apply(labels, self.sizes)
        return self.objective(WholeBatch(self.model, self.sizes), images, labels, phase)


class WholeBatch:
    """A network that takes a part of a batch, and says what all processes see in all of it.

    It has the attributes of the network. Of an output, what has a row (N, ...) for each image is
    gathered; maps, too large for that, are replaced by their sum over each image, which shows
    whether they are finite; the rest is None.

    Args:
        model: the network.
        sizes: of the parts, in the order of the processes.
    """

    def __init__(self, model: nn.Module, sizes: list[int]):
        self._model, self._sizes = model, sizes

    def __getattr__(self, name: str):
        return getattr(self._model, name)

    def __call__(self, images) -> Tensor:
        return GatherRows.apply(self._model(images), self._sizes)

    def inspect(self, images, *options):
        """As the network's own."""
        output = self._model.inspect(images, *options)
        rows = {
            name: value.detach().flatten(1).sum(dim=1, keepdim=True) if value.dim() == 4 else value
            for name, value in output._asdict().items()
            if value is not None and value.is_floating_point() and value.dim() in (2, 4)
        }
        joined = torch.cat([row.to(output.scores.dtype) for row in rows.values()], dim=1)
        widths = [row.shape[1] for row in rows.values()]
        whole = GatherRows.apply(joined, self._sizes).split(widths, dim=1)
        nothing = dict.fromkeys(output._fields)
        return output._replace(**nothing | dict(zip(rows, whole, strict=True)))


class GatherRows(torch.autograd.Function):
    """The rows of all processes, in their order; gradients are for an average over processes."""

    @staticmethod
    def forward(ctx, rows: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        padded = rows.new_zeros(max(sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        own = gradient.split(ctx.sizes)[processes.rank()]
        return len(ctx.sizes) * own, None
