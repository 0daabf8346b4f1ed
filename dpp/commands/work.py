"""Commands that set up, train and reproduce."""

import argparse
import dataclasses
import shlex
import sys
from pathlib import Path

from dpp import doctor
from dpp.data import catalogue
from dpp.system import processes
from dpp.system.profiles import PROFILES
from dpp.training.experiments import PRESETS, Experiment, make_experiment


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Adds doctor, reproduce, status, data, cache and train."""
    add_doctor_command(commands)
    add_reproduce_command(commands)
    add_data_command(commands)
    add_cache_command(commands)
    add_train_command(commands)
    command = commands.add_parser("status", help="renew the README's status table")
    command.set_defaults(run=run_status)


def run_doctor(arguments: argparse.Namespace) -> int:
    checks = doctor.examine(arguments.checks or doctor.CHECKS)
    print(doctor.as_text(checks))
    return int(any(check.status == doctor.MISSING for check in checks))


def run_reproduce(arguments: argparse.Namespace) -> int:
    from dpp.paper import reproduce

    settings = dict(arguments.set)
    where = {name: getattr(arguments, name) for name in ("jobs", "engine", "address")}
    worked = reproduce.reproduce(arguments.profile, arguments.only, settings, **where)
    return int(not worked)


def run_status(arguments: argparse.Namespace) -> int:
    from dpp.paper import readme_table

    readme_table.write()
    return 0


def run_data(arguments: argparse.Namespace) -> int:
    from dpp.data import install

    print(install.prepare(arguments.name, arguments.archive, arguments.root))
    return 0


def run_cache(arguments: argparse.Namespace) -> int:
    from dpp.data import caches

    if arguments.remove:
        for cache in caches.remove(arguments.remove):
            print(f"removed {cache.name}, {cache.bytes / 1e9:.3f} GB")
    elif arguments.verify:
        lines = caches.verify()
        print(*lines, sep="\n")
        return int(any("damaged" in line for line in lines))
    else:
        print(caches.as_text(caches.find_caches()))
    return 0


def run_train(arguments: argparse.Namespace) -> int:
    if not processes.launched():
        return train(arguments)
    from dpp.runs import several_processes

    with several_processes.joined(arguments.device) as arguments.device:
        several_processes.compare({"commands": shlex.join(sys.argv[1:])})
        return train(arguments)


def train(arguments: argparse.Namespace) -> int:
    from dpp import runs

    given = {name: value for name, value in vars(arguments).items() if name in arguments.fields}
    changes = {name: value for name, value in given.items() if value is not None}
    own = "data" in changes and changes["data"] not in catalogue.NAMES
    if own:
        from dpp.report import own_folder
        from dpp.runs import limits

        def prepare() -> Experiment:
            device = runs.choose_device(arguments.device)
            limits.check_workers(arguments.workers)  # before images are read and steps are timed
            return own_folder.prepare(arguments.profile, changes, arguments.root, device)

        experiment = processes.from_first(prepare)
    else:
        experiment = processes.in_turn(
            lambda: make_experiment(arguments.profile or "mini", **changes)
        )
    run = runs.run(
        experiment,
        root=arguments.root,
        device=arguments.device,
        workers=arguments.workers,
        tensorboard=arguments.tensorboard,
    )
    if not processes.is_first():
        return 0
    if own:
        print(own_folder.summarise(run))
    else:
        for name, value in run.manifest["results"].items():
            print(f"{name:24} {value:.4f}")
    print(run.folder)
    return 0


def setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def add_doctor_command(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("doctor", help="what works on this machine, and what to do")
    command.add_argument(
        "checks", nargs="*", metavar="check", help=f"by default all of {', '.join(doctor.CHECKS)}"
    )
    command.set_defaults(run=run_doctor)


def add_reproduce_command(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "reproduce",
        help="make the paper's tables and figures: train, then run the notebooks",
        description="Makes every run that the chosen notebooks want, runs the notebooks, and "
        "prints the paper's tables. Stop it at any time; run the same command to resume.",
    )
    profiles = "; ".join(f"{name}: {what}" for name, what in PROFILES.items())
    command.add_argument("--profile", default="mini", help=f"{profiles} (default: mini)")
    command.add_argument(
        "--only", action="append", default=[], metavar="NOTEBOOK", help="number or name; repeatable"
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        type=setting,
        metavar="NAME=VALUE",
        help="a parameter of the chosen notebooks; repeatable",
    )
    command.add_argument(
        "--jobs",
        type=int,
        default=0,
        help="runs, then notebooks, at a time (default: one for each core or GPU)",
    )
    command.add_argument(
        "--engine",
        default="local",
        help="where runs are made: local, this machine, or ray, a cluster (default: local)",
    )
    command.add_argument(
        "--address",
        default="",
        metavar="HOST:PORT",
        help="of the Ray cluster (default: RAY_ADDRESS, or port 6379 of this machine)",
    )
    command.set_defaults(run=run_reproduce)


def add_data_command(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("data", help="get a data set: download, unpack or draw it")
    command.add_argument("name", choices=catalogue.NAMES)
    command.add_argument(
        "--archive",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="an archive that is already here; repeatable; the others are downloaded",
    )
    command.add_argument(
        "--root", type=Path, metavar="DIR", help="instead of DPP_DATA, or data/ in the repository"
    )
    command.set_defaults(run=run_data)


def add_cache_command(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "cache",
        help="list what is kept to save time: resized images, trunk features",
        description="Lists what is kept under cache/ in the data root. All of it is made again "
        "when it is needed.",
    )
    command.add_argument("--remove", metavar="NAME", help="a cache by its name, or all")
    command.add_argument("--verify", action="store_true", help="check every byte")
    command.set_defaults(run=run_cache)


def add_train_command(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "train",
        help="train a network, or resume a stopped one",
        description="Trains what the fields below describe, unless that run is there already; a "
        "stopped run is resumed. Fields that are not given are the profile's.",
    )
    command.add_argument(
        "--profile",
        choices=PRESETS,
        help="default: mini; for a folder of images, photo with what fits the folder's size",
    )
    command.add_argument("--root", type=Path, metavar="DIR", help="instead of DPP_RUNS, or runs/")
    command.add_argument("--device", default="auto", help="auto (the default), cpu, cuda, cuda:1")
    command.add_argument("--workers", type=int, default=0, help="processes that prepare batches")
    command.add_argument("--tensorboard", action="store_true", help="write its events too")
    group = command.add_argument_group("fields of the experiment, with their usual values")
    experiments = {profile: make_experiment(profile) for profile in PRESETS}
    fields = [entry for entry in dataclasses.fields(Experiment) if entry.name != "profile"]
    for entry in fields:
        kind = type(entry.default)
        options = {"type": kind, "metavar": kind.__name__.upper()}
        if kind is bool:
            options = {"action": argparse.BooleanOptionalAction}
        elif kind is tuple:
            options = {"type": int, "nargs": "*", "metavar": "EPOCH"}
        usual = {name: getattr(made, entry.name) for name, made in experiments.items()}
        same = usual["paper"] == usual["mini"]
        shown = usual["paper"] if same else "paper: {paper}, mini: {mini}".format(**usual)
        help = f"{entry.metadata['help']} ({shown})"
        flag = "--" + entry.name.replace("_", "-")
        group.add_argument(flag, dest=entry.name, default=None, help=help, **options)
    command.set_defaults(run=run_train, fields={entry.name for entry in fields})
