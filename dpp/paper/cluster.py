"""What the machines of a cluster must have in common, and how each is checked before runs are made.

All must see the same folders, with locks that hold across machines, and have the same code, data
and weights: otherwise runs are lost, or made twice, or have other numbers.
"""

import os
import platform
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import torch
import torchvision

from dpp import __version__, ops
from dpp.backbones.pretrained import find_local
from dpp.data import catalogue
from dpp.data.folder_digest import folder_digest
from dpp.paper import photo
from dpp.paper.photo import Plan
from dpp.system import files, paths
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment

TOKEN = "token"
NOT_SHARED = "{variable}={folder} is not shared: all machines must see one folder there"


class Cluster(NamedTuple):
    """What every machine is told before it makes runs."""

    token: str
    shared: dict[str, str]  # folders by what they are for, each with a folder named by the token
    variables: dict[str, str]  # of the environment
    directory: str  # relative paths begin there
    inputs: tuple[Experiment, ...]  # of whose data and weights all must have the same
    facts: dict[str, str]  # that must be the same everywhere, see `describe`
    gpus: bool  # whether runs are made on GPUs


@contextmanager
def assembled(plans: Sequence[Plan], root: Path, gpus: bool) -> Iterator[Cluster]:
    """What machines are told, as it is here; see `find_problem`.

    Args:
        plans: that they are to make.
        root: where runs live.
        gpus: whether runs are made on GPUs.
    """
    folders = {"DPP_RUNS": root, "DPP_DATA": paths.data_root(), "DPP_RESULTS": paths.results("")}
    inputs = choose_inputs(plans)
    with shared_folders(folders) as (token, shared):
        variables = {k: v for k, v in os.environ.items() if k.startswith("DPP_")} | shared
        yield Cluster(token, shared, variables, os.getcwd(), inputs, describe(inputs), gpus)


@contextmanager
def shared_folders(folders: dict[str, Path]) -> Iterator[tuple[str, dict[str, str]]]:
    """Puts a token into each folder, by which others can tell that they see the same one.

    Yields:
        The token, and the folders' absolute paths.
    """
    token = secrets.token_hex(8)
    shared = {name: str(folder.expanduser().resolve()) for name, folder in folders.items()}
    with ExitStack() as stack:
        for folder in dict.fromkeys(shared.values()):
            for left in Path(folder).glob(".shared-*"):  # by a process that was killed
                if not files.is_locked(left):
                    shutil.rmtree(left, ignore_errors=True)
            mine = token_folder(folder, token)
            stack.callback(shutil.rmtree, mine, ignore_errors=True)
            stack.enter_context(files.locked(mine))
            files.write_file(mine / TOKEN, token.encode())
        yield token, shared


def token_folder(folder: str, token: str) -> Path:
    return Path(folder) / f".shared-{token}"


def find_unseen(cluster: Cluster, identity: str) -> str:
    """What is wrong if a machine's `check_here` left no file that is seen here."""
    unseen = (
        NOT_SHARED.format(variable=variable, folder=folder)
        for variable, folder in cluster.shared.items()
        if not (token_folder(folder, cluster.token) / identity).is_file()
    )
    return next(unseen, "")


def choose_inputs(plans: Sequence[Plan]) -> tuple[Experiment, ...]:
    """Experiments that have all data and weights which some plans have."""
    experiments = [one for plan in plans for one in photo.members(plan)]
    return tuple({(one.data, one.weights, one.backbone): one for one in experiments}.values())


def describe(inputs: Sequence[Experiment]) -> dict[str, str]:
    """What the numbers of runs depend on and machines may differ in."""
    code = {
        str(path.relative_to(paths.PACKAGE)): files.sha256(path)
        for path in sorted(paths.PACKAGE.rglob("*.py"))
    }
    facts = {
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "dpp": f"{__version__} with code {files.sha256_of_json(code)[:12]}",
        "the operator": ops.backend("cpu"),
    }
    for one in inputs:
        if one.data not in catalogue.NAMES:
            facts[f"the data {one.data}"] = folder_digest(catalogue.find_folder(one.data))[:12]
        file = None
        if one.weights == "imagenet":
            file = find_local(one.backbone)
        elif one.weights not in ("none", "base"):
            file = Path(one.weights)
        if file and file.is_file():
            facts[f"the file {file}"] = f"SHA-256 {files.known_sha256(file)[:12]}"
    return facts


def compare(here: dict[str, str], there: dict[str, str]) -> str:
    """How facts of two machines differ, for a message; empty if they do not."""
    missing = "not known"
    different = (
        f"{name} is {there.get(name, missing)} there and {here.get(name, missing)} here: all "
        "machines need the same"
        for name in dict.fromkeys((*here, *there))
        if here.get(name) != there.get(name)
    )
    return next(different, "")


# ---- On another machine


def check_here(cluster: Cluster, identity: str) -> str:
    """What keeps this machine from making runs; if nothing does, leaves a file in each folder."""
    problem = find_problem(cluster)
    for folder in set(cluster.shared.values()) if not problem else ():
        files.write_file(token_folder(folder, cluster.token) / identity, b"seen")
    return problem


def find_problem(cluster: Cluster) -> str:
    """What keeps this machine from making runs, if anything."""
    for variable, folder in cluster.shared.items():
        mine = token_folder(folder, cluster.token)
        if not (mine / TOKEN).is_file():
            return NOT_SHARED.format(variable=variable, folder=folder)
        if not files.is_locked(mine):
            return f"{variable}={folder} has no locks across machines: mount it with flock"
    os.environ.update(cluster.variables)
    with suppress(OSError):
        os.chdir(cluster.directory)
    try:
        return compare(cluster.facts, describe(cluster.inputs))
    except UserError as error:
        return str(error)
