"""Runs the numbered notebooks headlessly. Everything is checked before anything runs."""

import ast
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from dpp.errors import UserError
from dpp.paths import NOTEBOOKS, RESULTS
from dpp.profiles import check_profile

QUIET = ["--IPKernelApp.log_level=40"]  # errors alone: kernels warn about their transport


def find(names: Iterable[str] = ()) -> list[Path]:
    """The notebooks that the names mean, in their numbers' order; all of them without a name.

    Args:
        names: a file name with or without its ending, its number, or a part that only one has.
    """
    there = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    chosen = set()
    for name in names:
        stem = name.removesuffix(".ipynb")
        matches = [path for path in there if path.stem == stem]
        matches = matches or [path for path in there if stem and stem in path.stem]
        if len(matches) != 1:
            some = [path.stem for path in matches or there]
            what = "there is no" if not matches else "more than one"
            raise UserError(f"{what} notebook {name!r}: choose one of {', '.join(some)}")
        chosen.add(matches[0])
    return sorted(chosen) if chosen else there


def parameters(notebook: Path) -> dict:
    """The parameters of a notebook and their defaults, which are literals."""
    import papermill

    found = papermill.inspect_notebook(str(notebook))
    return {name: ast.literal_eval(entry["default"]) for name, entry in found.items()}


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


def reproduce(
    profile: str, only: Iterable[str] = (), settings: Mapping[str, str] = MappingProxyType({})
) -> list[Path]:
    """Runs notebooks with papermill; the executed copies go to `results/<profile>/notebooks/`.

    Args:
        profile: passed to every notebook that has a parameter of that name.
        only: see `find`.
        settings: parameters by name, as text; every chosen notebook must have them.

    Returns:
        The notebooks that failed; one that fails does not keep the others from running.
    """
    import papermill

    check_profile(profile)
    if "profile" in settings:
        raise UserError(f"the profile is not set with --set: use --profile {settings['profile']}")
    chosen = find(only)
    work = [(path, read_settings(path, settings)) for path in chosen]
    folder = RESULTS / profile / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for number, (path, values) in enumerate(work, start=1):
        if "profile" in parameters(path):
            values.setdefault("profile", profile)
        print(f"[{number}/{len(work)}] {path.stem}", flush=True)
        started = time.perf_counter()
        executed = folder / path.name
        try:
            papermill.execute_notebook(
                str(path), str(executed), values, cwd=str(NOTEBOOKS), extra_arguments=QUIET
            )
        except papermill.PapermillExecutionError as error:
            failed.append(path)
            print(f"      failed: {error.ename}: {error.evalue}; see {executed}", flush=True)
        else:
            print(f"      {time.perf_counter() - started:.0f} s -> {executed}", flush=True)
    return failed
