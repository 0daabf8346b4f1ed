"""The command line: `dpp --help`, or `python -m dpp --help`."""

import argparse
import sys

from dpp import __version__
from dpp.commands import audit, evaluate, finished, importing, work
from dpp.system import processes
from dpp.system.errors import ReportedError, UserError


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dpp", description="Deformable ProtoPNet")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="command")
    work.add_commands(commands)
    finished.add_commands(commands)
    audit.add_command(commands)
    evaluate.add_command(commands)
    importing.add_command(commands)
    return parser


def main() -> int:
    arguments = build_parser().parse_args()
    try:
        if processes.launched() and arguments.run is not work.run_train:
            raise UserError("torchrun is for dpp train: give this command without it")
        return arguments.run(arguments)
    except KeyboardInterrupt as stop:
        if processes.is_first():
            print(*stop.args or ("stopped",), file=sys.stderr)
        return getattr(stop, "exit_code", 130)
    except ReportedError:
        return 2
    except UserError as error:
        print(f"dpp: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
