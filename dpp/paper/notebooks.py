"""Runs the numbered notebooks headlessly. Everything is checked before anything runs."""

import ast
import hashlib
import itertools
import logging
import os
import signal
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, wait
from pathlib import Path

import nbformat

from dpp.system import worker_pool
from dpp.system.errors import UserError
from dpp.system.paths import NOTEBOOKS, PACKAGE, RESULTS, results

# Nothing of a kernel's log: it warns about its transport, and logs errors when it is interrupted.
# A cell that fails is in the notebook, and a kernel that dies is papermill's error.
QUIET = ["--IPKernelApp.log_level=50"]
READ = (  # of results, by notebooks
    *("runs.csv", "epochs.csv", "operator_benchmark.csv", "following.csv", "following_epochs.csv"),
    *("receptive_fields.csv", "box_placements.csv", "search_benchmark.csv", "evaluation.csv"),
    *("steering.csv", "distinct_prototypes.csv", "scaling_benchmark.csv", "longer_training.csv"),
)
WIDGETS = "application/vnd.jupyter.widget-view+json"


def find(names: Iterable[str] = ()) -> list[Path]:
    """The notebooks that the names mean, in their numbers' order; all of them without a name.

    Args:
        names: a file name with or without its ending, its number, or a part that only one has.
    """
    numbered = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    chosen = set()
    for name in names:
        stem = name.removesuffix(".ipynb")
        matches = [path for path in numbered if path.stem == stem]
        matches = matches or [path for path in numbered if stem and stem in path.stem]
        if len(matches) != 1:
            some = [path.stem for path in matches or numbered]
            problem = "there is no" if not matches else "more than one"
            raise UserError(f"{problem} notebook {name!r}: choose one of {', '.join(some)}")
        chosen.add(matches[0])
    return sorted(chosen) if chosen else numbered


def parameters(notebook: Path) -> dict:
    """The parameters of a notebook and their defaults, which are literals."""
    import papermill

    inspected = papermill.inspect_notebook(str(notebook))
    return {name: ast.literal_eval(entry["default"]) for name, entry in inspected.items()}


def read_settings(notebook: Path, settings: Mapping[str, str]) -> dict:
    """Turns NAME=VALUE texts into values of the types that the notebook's defaults have."""
    defaults = parameters(notebook)
    values = {}
    for name, text in settings.items():
        if name not in defaults:
            has = ", ".join(defaults) or "none"
            raise UserError(f"{notebook.stem} has no parameter {name!r}; its parameters: {has}")
        wanted = type(defaults[name])
        try:
            values[name] = text if wanted is str else ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[name] = None
        if wanted is float and type(values[name]) is int:
            values[name] = float(values[name])
        if type(values[name]) is not wanted:
            raise UserError(
                f"{notebook.stem}: parameter {name} must be {wanted.__name__}, like "
                f"{defaults[name]!r}, not {text!r}"
            )
    return values


def values(notebook: Path, profile: str, settings: Mapping[str, str]) -> dict:
    """All parameters of a notebook: its defaults, the profile, and what is set."""
    defaults = parameters(notebook)
    named = {"profile": profile} if "profile" in defaults else {}
    return defaults | named | read_settings(notebook, settings)


def execute(work: Mapping[Path, dict], folder: Path, jobs: int = 1) -> list[Path]:
    """Runs notebooks with papermill; the executed copies go to a folder.

    One that was executed before with the same parameters, code and records is left as it is; one
    that fails does not keep the others from running.

    Args:
        work: parameters by notebook.
        folder: for the copies.
        jobs: notebooks at a time.

    Returns:
        The notebooks that failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    failed, running, todo = [], {}, iter(work)
    numbers = itertools.count(1)
    threads = max(1, worker_pool.count_cores() // jobs)
    print(f"{len(work)} notebook{'s' * (len(work) > 1)}", flush=True)
    with worker_pool.pool(jobs, _begin, threads, kept="finished notebooks are kept") as pool:
        while True:
            for path in itertools.islice(todo, jobs - len(running)):
                started = pool.submit(_execute_one, path, work[path], folder / path.name)
                running[started] = path
            if not running:
                return failed
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                path, (worked, message) = running.pop(done), done.result()
                print(f"[{next(numbers)}/{len(work)}] {path.stem}: {message}", flush=True)
                failed += [] if worked else [path]


def _begin(threads: int) -> None:
    """Sets up a worker process: notebooks share the cores; only the first SIGINT counts."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    logging.disable(logging.CRITICAL)  # a kernel that dies is said once, in its notebook's line

    def stop(number, frame):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)


def _execute_one(path: Path, given: dict, executed: Path) -> tuple[bool, str]:
    """Executes a notebook in a worker process; returns whether it worked, and a message."""
    import papermill

    if _stamp_of(executed) == _stamp(path, given):
        return True, f"unchanged -> {executed}"
    started = time.perf_counter()
    options = {"cwd": str(NOTEBOOKS), "extra_arguments": QUIET, "progress_bar": False}
    try:
        done = papermill.execute_notebook(str(path), str(executed), given, **options)
    except papermill.PapermillExecutionError as error:
        return False, f"failed: {error.ename}: {error.evalue}; see {executed}"
    except Exception as error:  # such as a kernel that died: the other notebooks continue
        return False, f"failed: {type(error).__name__}: {error}"
    done.metadata["dpp"] = _stamp(path, given)  # what it read, it may have written itself
    nbformat.write(keep_pictures(done)[0], executed)
    return True, f"{time.perf_counter() - started:.0f} s -> {executed}"


def keep_pictures(notebook: nbformat.NotebookNode, resources: dict | None = None):
    """Leaves out widgets that come with a picture of themselves, as nbconvert's preprocessors do.

    Their kernel is gone when a stored notebook is opened, and where JupyterLab has a choice it
    shows an error in their place, not the picture.
    """
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data.pop(WIDGETS, None)
    return notebook, resources


def _stamp(notebook: Path, given: dict) -> str:
    """A digest of all that an executed notebook depends on."""
    code = [notebook, *sorted(PACKAGE.rglob("*.py")), *sorted(PACKAGE.glob("*.so"))]
    profile = given.get("profile", "mini")
    names = dict.fromkeys((profile, "photo", "mini"))  # tables show these beside one another
    folders = dict.fromkeys(folder for n in names for folder in (results(n), RESULTS / n))
    candidates = (folder / name for folder in folders for name in READ)
    read = [path for path in candidates if path.exists()]
    digest = hashlib.sha256(repr(sorted(given.items())).encode())
    for path in (*code, *read):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _stamp_of(executed: Path) -> str | None:
    if not executed.is_file():
        return None
    try:
        return nbformat.read(executed, as_version=4).metadata.get("dpp")
    except Exception:  # not a notebook any more: it is executed again
        return None
