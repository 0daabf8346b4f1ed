"""The command line: `python -m dpp --help`."""

import argparse
import sys
from pathlib import Path

from dpp import __version__, doctor, notebooks
from dpp.data import catalogue
from dpp.errors import UserError
from dpp.profiles import PROFILES


def run_doctor(arguments: argparse.Namespace) -> int:
    checks = doctor.examine(arguments.checks or doctor.CHECKS)
    print(doctor.as_text(checks))
    return int(any(check.status == doctor.MISSING for check in checks))


def run_reproduce(arguments: argparse.Namespace) -> int:
    failed = notebooks.reproduce(arguments.profile, arguments.only, dict(arguments.set))
    return int(bool(failed))


def run_data(arguments: argparse.Namespace) -> int:
    from dpp.data import install

    print(install.prepare(arguments.name, arguments.archive, arguments.root))
    return 0


def setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dpp", description="Deformable ProtoPNet")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="command")

    command = commands.add_parser("doctor", help="what works on this machine, and what to do")
    command.add_argument(
        "checks", nargs="*", metavar="check", help=f"by default all of {', '.join(doctor.CHECKS)}"
    )
    command.set_defaults(run=run_doctor)

    command = commands.add_parser("reproduce", help="run the notebooks, headlessly")
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
    command.set_defaults(run=run_reproduce)

    add_data_command(commands)
    return parser


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


def main() -> int:
    arguments = build_parser().parse_args()
    try:
        return arguments.run(arguments)
    except KeyboardInterrupt:
        return 130
    except UserError as error:
        print(f"dpp: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
