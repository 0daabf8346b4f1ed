"""Training that can be stopped at any moment and resumed: signals, states, metrics, a bar."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from tqdm.auto import tqdm

from dpp.runs import checkpoints
from dpp.system import files, processes
from dpp.system.errors import UserError
from dpp.training.trainer import NotFinite, Trainer

SAVE_EVERY = 600  # seconds, within an epoch
SLOW_SAVE = 0.3  # seconds; slower saves are made less often...
SAVE_SHARE = 0.1  # ...and take at most this share of the time: epochs of few images are short


class Stopped(KeyboardInterrupt):
    """A signal stopped the run between two steps, and its state is saved."""

    def __init__(self, number: int, message: str):
        super().__init__(message)
        self.exit_code = 128 + number


def train_resumably(
    trainer: Trainer,
    folder: Path,
    identity: str,
    *,
    title: str | None = None,
    tensorboard: bool = False,
) -> list[dict]:
    """Runs a trainer to its end; saves its state after tasks, at intervals, and on a signal.

    Args:
        trainer: at its beginning; if the folder has a state, it is resumed from there.
        folder: of the run.
        identity: of the experiment; a state of another one is refused.
        title: of a bar that counts the steps; None for no bar.
        tensorboard: write its events to the folder.

    Returns:
        The trainer's records, those before a stop too.
    """
    first = processes.is_first()  # of several, it alone writes
    writer = make_writer(folder) if tensorboard and first else None
    history: list[dict] = []
    saved, cost = time.monotonic(), 0.0

    def save() -> None:
        nonlocal saved, cost
        if not first:
            return
        begun = time.monotonic()
        steps = trainer.place * 10**6 + trainer.step
        state = {"experiment": identity, "history": history, "trainer": trainer.state()}
        checkpoints.save_state(folder, steps, state)
        saved = time.monotonic()
        cost = saved - begun

    if state := processes.from_first(lambda: find_state(folder, identity)):
        trainer.restore(state["trainer"])
        history += state["history"]

    with signals() as received, progress_bar(trainer, title) as bar:

        def after_step(trainer: Trainer) -> None:
            bar.update()
            signalled = in_any_process(received)
            if signalled or time.monotonic() - saved > SAVE_EVERY:
                save()
            stop_if_signalled(signalled, trainer, folder)

        try:
            for record in trainer.run(after_step):
                history.append(record)
                signalled = in_any_process(received)
                if signalled or cost < SLOW_SAVE or time.monotonic() - saved > cost / SAVE_SHARE:
                    save()
                if first:
                    write_metrics(folder, history)
                report(bar, writer, record, len(history))
                stop_if_signalled(signalled, trainer, folder)
        except NotFinite as error:
            processes.raise_together(explain_not_finite(error, trainer, folder) if first else "")
    if first:
        write_metrics(folder, history)  # again, in case it was killed before the last time
    return history


def in_any_process(received: list[int]) -> list[int]:
    """The signal that this or another process has received, if there is one."""
    number = processes.largest(received[0] if received else 0)
    return [number] if number else []


def stop_if_signalled(received: list[int], trainer: Trainer, folder: Path) -> None:
    """Raises `Stopped` if a signal was received and something is left to do."""
    if received and trainer.place < len(trainer.tasks):
        task = trainer.tasks[trainer.place]
        where = f"epoch {task.epoch}, step {trainer.step}"
        message = f"stopped and saved in {folder} ({where}): run the same command to resume"
        raise Stopped(received[0], message)


def find_state(folder: Path, identity: str) -> dict | None:
    """The newest state in a folder, if there is one; that of another experiment is refused."""
    state = checkpoints.latest_state(folder)
    if state and state.get("experiment") != identity:
        raise UserError(
            f"the state in {folder} belongs to another experiment "
            f"({state.get('experiment')}, not {identity}): remove it, or train that experiment"
        )
    return state


def explain_not_finite(error: NotFinite, trainer: Trainer, folder: Path) -> str:
    """Writes the batch whose loss is not finite to a file; returns a message that names it."""
    records = trainer.splits.train.records
    path = folder / "not_finite.json"
    whole = trainer.loaders["train"].sampler.keys(error.epoch)  # not one process's part
    keys = whole[error.step - 1] if error.indices else []
    batch = [records[index].id for _, index in keys]
    terms = {name: str(value) for name, value in error.terms.items()}
    files.write_json(
        path, {"epoch": error.epoch, "step": error.step, "terms": terms, "images": batch}
    )
    return (
        f"{error}. The images of the batch are listed in {path}; the last saved state is kept. "
        "Lower the learning rates, or check these images"
    )


def write_metrics(folder: Path, history: list[dict]) -> None:
    files.write_file(folder / "metrics.csv", pd.DataFrame(history).to_csv(index=False).encode())


def make_writer(folder: Path):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError("TensorBoard is not installed: pip install tensorboard") from error
    return SummaryWriter(folder / "tensorboard")


def report(bar: tqdm, writer, record: dict, place: int) -> None:
    """Shows a record on the bar, and to TensorBoard."""
    shown = {"validation": f"{record['validation_accuracy']:.1%}"}
    if "loss" in record:
        shown["loss"] = f"{record['loss']:.3g}"
    bar.set_postfix(shown)
    if writer:
        for name, value in record.items():
            if isinstance(value, int | float):
                writer.add_scalar(name, value, place)
        writer.flush()


@contextmanager
def progress_bar(trainer: Trainer, title: str | None) -> Iterator[tqdm]:
    """A bar over all training steps, which begins at the trainer's step."""
    steps = len(trainer.loaders["train"])
    done = sum(task.stage == "train" for task in trainer.tasks[: trainer.place])
    total = sum(task.stage == "train" for task in trainer.tasks)
    with tqdm(
        total=total * steps,
        initial=done * steps + trainer.step,
        desc=title,
        unit="step",
        disable=title is None,
    ) as bar:
        yield bar


@contextmanager
def signals() -> Iterator[list[int]]:
    """A list to which the first SIGINT or SIGTERM is appended; the second interrupts."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    watched = (signal.SIGINT, signal.SIGTERM)
    before: dict[int, Callable | int] = {}

    def note(number: int, frame) -> None:
        received.append(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before |= {number: signal.signal(number, note) for number in watched}
    try:
        yield received
    finally:
        restore()
