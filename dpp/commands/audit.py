"""`dpp audit`: checks of a run's prototypes, as text and JSON."""

import argparse
from pathlib import Path

ABOUT = (
    "Checks the prototypes of a run on their source images: how many are distinct, how alike those "
    "of a class are, what projection cost, and whether parts lie on the animal. Prints the counts; "
    "--out writes them as JSON."
)


def add_command(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "audit", help="are a run's prototypes distinct, and on the animal", description=ABOUT
    )
    command.add_argument("run_folder", type=Path, metavar="RUN", help="folder of a finished run")
    command.add_argument("--out", type=Path, metavar="FILE", help="for the same as JSON")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from dpp import explanations, runs
    from dpp.analysis import Network, audit
    from dpp.report import audit_text

    finished = runs.open_run(arguments.run_folder)
    network = Network.of(finished)
    checked = audit.audit(finished, network)
    if arguments.out:
        explanations.write(arguments.out, checked)
    print(audit_text.as_text(checked, network.source.class_names))
    if arguments.out:
        print("", arguments.out, sep="\n")
    return 0
