"""Trains many runs side by side, with one display; finished runs are not trained again.

An engine (`dpp.paper.engines`) makes them, in processes of this machine or on a cluster.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from pathlib import Path

from tqdm import tqdm

from dpp import runs
from dpp.data import catalogue
from dpp.paper import engines
from dpp.paper.engines import Engine, Finished
from dpp.paper.grid import needs, unfold
from dpp.paper.photo import Plan, members
from dpp.runs import ensembles, run_files
from dpp.runs.ensembles import Ensemble
from dpp.runs.method_of import method_of
from dpp.system import files, paths
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment

LOOK_EVERY = 1.0  # seconds between two looks at the runs under way


def run_all(
    plans: Iterable[Plan],
    *,
    jobs: int = 0,
    root: Path | None = None,
    keep: Callable[..., None] = lambda *finished: None,
    engine: Engine | None = None,
) -> dict[str, str]:
    """Finds or trains runs, and whatever they need.

    A run that another process is making is waited for, and taken over if that process ends without
    finishing it.

    Args:
        plans: experiments and ensembles.
        jobs: processes on this machine; 0 for one for each core or GPU.
        root: where runs live, instead of `runs/` or `DPP_RUNS`.
        keep: called with runs as soon as they are finished.
        engine: that makes the runs, instead of processes on this machine.

    Returns:
        By the name of each run that failed, the reason.
    """
    root = Path(root) if root else paths.runs_root()
    engine = engine or engines.LocalEngine(jobs)
    work = {plan.name: plan for plan in unfold(plans)}  # a name costs a digest of weights and data
    needed = {name: {one.name for one in needs(plan)} for name, plan in work.items()}
    finished = {name: run for name, plan in work.items() if (run := find_verified(plan, root))}
    keep(*finished.values())
    done = set(finished)
    waiting = [name for name in work if name not in done]
    if work:
        print(f"{len(work)} runs, {len(done)} already finished", flush=True)
    if not waiting:
        return {}
    running: dict[Future, str] = {}
    with engine.started([work[name] for name in waiting], root):
        failed = prepare_data((work[name] for name in waiting), engine)
        waiting = [name for name in waiting if name not in failed]
        with Display(work, done | failed.keys(), root) as display:
            while waiting or running:
                for name in [name for name in waiting if failed.keys() & needed[name]]:
                    waiting.remove(name)
                    failed[name] = "a run that it needs failed"
                ready = (name for name in list(waiting) if needed[name] <= done)
                slots = engine.slots()
                while len(running) < slots and (name := next(ready, None)):
                    if files.is_locked(root / name):
                        display.say_once(f"{name}: another process is making it: waiting")
                        continue
                    waiting.remove(name)
                    running[engine.submit(work[name], root)] = name
                if slots == 0:
                    display.say_once("no machine is left to make runs: waiting for one")
                if not running:  # only what other processes are making is left
                    time.sleep(LOOK_EVERY)
                for future in wait(running, LOOK_EVERY, FIRST_COMPLETED).done:
                    name = running.pop(future)
                    try:
                        run = future.result()
                    except files.BusyError:  # it was quicker
                        waiting.append(name)
                        continue
                    except BrokenExecutor:  # the pool cannot run the others either
                        raise
                    except UserError as error:
                        failed[name] = str(error)
                    except Exception as error:  # of any kind: the other runs continue
                        failed[name] = f"{type(error).__name__}: {error}"
                    else:
                        keep(run)
                        done.add(name)
                    display.end(name, failed.get(name, ""))
                display.show(running.values())
    return failed


def find_verified(plan: Plan, root: Path) -> Finished | None:
    """The finished run of a plan; one with damaged files is set aside, with a message."""
    run = ensembles.module_of(plan).find(plan, root)
    if run is None:
        return None
    try:
        run.verify()
    except UserError as error:
        aside = runs.set_aside(run.folder)
        print(f"damaged: {error}. Moved to {aside.name}; training it again", flush=True)
        return None
    return run


def prepare_data(plans: Iterable[Plan], engine: Engine) -> dict[str, str]:
    """Draws, reads and caches what runs share, before several processes need it at the same time.

    Returns:
        By the name of each run whose trunk features cannot be had, the reason.
    """
    read: set[tuple] = set()
    cached: dict[tuple, str] = {}  # what is wrong with it
    failed: dict[str, str] = {}
    for plan in plans:
        for experiment in members(plan):
            images = engines.values_of(experiment, engines.IMAGES)
            if images not in read:
                read.add(images)
                runs.load_splits(experiment, runs.load_source(experiment))
            if not experiment.views or isinstance(plan, Ensemble):  # whose members are plans too
                continue
            if experiment.weights == "base":  # not trained yet: the first run on it computes them
                continue
            features = engines.values_of(experiment, engines.FEATURES)
            if features not in cached:
                cached[features] = engine.cache_features(experiment)
            if cached[features]:
                failed[plan.name] = cached[features]
    return failed


# ---- Progress on the terminal


class Display:
    """One line for each run that ends, and on a terminal a bar over all of them.

    Args:
        work: all runs, by their names.
        done: names of those that were finished before.
        root: where runs live.
    """

    def __init__(self, work: Mapping[str, Plan], done: set[str], root: Path):
        self.root, self.count = root, len(work)
        self.tasks = {name: tasks(plan) for name, plan in work.items()}
        self.costs = {name: cost(plan) for name, plan in work.items()}
        self.finished = sum(self.costs[name] for name in done)
        self.before, self.ended = self.finished, len(done)
        self.started = time.monotonic()
        self.said: set[str] = set()

    def __enter__(self):
        self.bar = tqdm(total=sum(self.costs.values()), initial=self.before, disable=None)
        self.bar.bar_format = "{percentage:3.0f}%|{bar:20}| {elapsed}{postfix}"
        return self

    def __exit__(self, *_):
        self.bar.close()

    def show(self, running: Iterable[str]) -> None:
        """Shows how far the runs in progress are."""
        share, texts = 0.0, []
        for name in running:
            rows, last = read_progress(self.root / name)
            share += min(rows / self.tasks[name], 1.0) * self.costs[name]
            texts.append(f"{name.rpartition('-')[0]} {last}")
        self.bar.n = self.finished + share
        self.bar.set_postfix_str(
            f"{self.ended}/{self.count} runs, {self.left(share)}: {'; '.join(texts)}"
        )

    def say_once(self, line: str) -> None:
        """Prints a line, such as that another process is making a run, unless it was before."""
        if line not in self.said:
            self.said.add(line)
            self.bar.write(line)
            sys.stdout.flush()

    def end(self, name: str, failed: str) -> None:
        """Prints the outcome of a run; `failed` is the reason if it failed."""
        self.finished += self.costs[name]
        self.ended += 1
        if failed:
            outcome = f"failed: {failed}"
        else:
            manifest = run_files.read_manifest(self.root / name)
            outcome = f"{manifest['results']['test_accuracy']:.1%} in {manifest['seconds']:.0f} s"
        line = f"[{self.ended:>{len(str(self.count))}}/{self.count}] {name}: {outcome}"
        self.bar.write(f"{line}; {self.left()}")
        sys.stdout.flush()  # a log is read while it grows

    def left(self, share: float = 0.0) -> str:
        """Estimates the time left from the time taken so far."""
        advanced = self.finished + share - self.before
        rest = sum(self.costs.values()) - self.finished - share
        if advanced <= 0:
            return "time left unknown"
        seconds = (time.monotonic() - self.started) * rest / advanced
        return f"about {tqdm.format_interval(seconds)} left"


def tasks(plan: Plan) -> int:
    """Epochs and later stages."""
    return len(method_of(plan).schedule(plan).tasks()) if isinstance(plan, Experiment) else 1


def cost(plan: Plan) -> float:
    """Relative cost of a run: epochs and stages, times the images of each."""
    if isinstance(plan, Ensemble):
        return 1.0
    drawn = plan.data in catalogue.DRAWN
    return tasks(plan) * (plan.classes * plan.train_per_class if drawn else 1.0)


def read_progress(folder: Path) -> tuple[int, str]:
    """How many tasks of a run are done, and the last of them."""
    try:
        lines = (folder / "metrics.csv").read_text().splitlines()
    except OSError:
        lines = []
    if len(lines) < 2:
        return 0, "starting"
    stage, epoch, *_ = lines[-1].split(",")
    return len(lines) - 1, f"{stage} {epoch}"
