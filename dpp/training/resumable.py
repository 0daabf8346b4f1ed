"""Training that can be stopped at any moment: signals, states, figures, a bar."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from tqdm.auto import tqdm

from dpp.system import files
from dpp.system.errors import UserError
from dpp.training import checkpoints
from dpp.training.trainer import NotFinite, Trainer

SAVE_EVERY = 600  # seconds, within an epoch


class Stopped(KeyboardInterrupt):
    """A signal ended the run between two steps, and its state is saved."""

    def __init__(self, number: int, message: str):
        super().__init__(message)
        self.exit_code = 128 + number


def supervise(
    trainer: Trainer,
    folder: Path,
    identity: str,
    *,
    title: str | None = None,
    tensorboard: bool = False,
) -> list[dict]:
    """Leads a trainer to its end, saving after each task, at intervals, and when it is stopped.

    Args:
        trainer: at its beginning; if the folder has a state, it goes on from there.
        folder: of the run.
        identity: of the experiment; a state of another one is refused.
        title: of a bar that counts the steps; None for no bar.
        tensorboard: write its events to the folder.

    Returns:
        The trainer's records, those before a stop too.
    """
    writer = make_writer(folder) if tensorboard else None
    history: list[dict] = []

    def save() -> None:
        steps = trainer.place * 10**6 + trainer.step
        state = {"experiment": identity, "history": history, "trainer": trainer.state()}
        checkpoints.save_state(folder, steps, state)

    if state := checkpoints.latest_state(folder):
        if state.get("experiment") != identity:
            raise UserError(
                f"the state in {folder} is of another experiment ({state.get('experiment')}, not "
                f"{identity}): remove it, or give the experiment that it is of"
            )
        trainer.restore(state["trainer"])
        history += state["history"]

    saved = time.monotonic()
    with signals() as received, progress_bar(trainer, title) as bar:

        def after_step(trainer: Trainer) -> None:
            nonlocal saved
            bar.update()
            if received or time.monotonic() - saved > SAVE_EVERY:
                save()
                saved = time.monotonic()
            leave_if(received, trainer, folder)

        try:
            for record in trainer.run(after_step):
                history.append(record)
                save()
                saved = time.monotonic()
                write_metrics(folder, history)
                report(bar, writer, record, len(history))
                leave_if(received, trainer, folder)
        except NotFinite as error:
            raise UserError(explain_not_finite(error, trainer, folder)) from error
    write_metrics(folder, history)  # once more, should it have been killed before the last time
    return history


def leave_if(received: list[int], trainer: Trainer, folder: Path) -> None:
    if received and trainer.place < len(trainer.tasks):
        task = trainer.tasks[trainer.place]
        where = f"epoch {task.epoch}, step {trainer.step}"
        message = f"stopped and saved in {folder} ({where}): the same command goes on from there"
        raise Stopped(received[0], message)


def explain_not_finite(error: NotFinite, trainer: Trainer, folder: Path) -> str:
    """Writes down the batch that made the loss infinite, and says where."""
    records = trainer.splits.train.records
    path = folder / "not_finite.json"
    batch = [records[index].id for index in error.indices]
    found = {name: str(value) for name, value in error.terms.items()}
    files.write_json(
        path, {"epoch": error.epoch, "step": error.step, "terms": found, "images": batch}
    )
    return (
        f"{error}. The batch's images are listed in {path}; what was saved before is kept. "
        "Lower the rates, or look at these images"
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
    """A bar over all training steps, from where the trainer stands."""
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
    """A list that the first Ctrl-C or SIGTERM puts its number into; the second interrupts."""
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
