"""`dpp evaluate`: its arguments, its progress bar, its table."""

import argparse
from pathlib import Path

ABOUT = (
    "Measures the explanations of a run as published: consistency, stability, purity, spatial "
    "misalignment and others, each with a 95 % interval, beside the same measure of random "
    "weights and of random places, and by the original script where that behaves differently. "
    "Lengths that were published in pixels of 224 are scaled to the size of the network's input."
)


def add_command(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "evaluate", help="published measures of a run's explanations", description=ABOUT
    )
    command.add_argument("run_folder", type=Path, metavar="RUN", help="folder of a finished run")
    command.add_argument(
        "--measures", nargs="+", default=[], metavar="NAME", help="some families (default: all)"
    )
    command.add_argument(
        "--images", type=int, metavar="N", help="at most so many of each class (default: all)"
    )
    command.add_argument("--seed", type=int, default=0, help="of all that is random (default: 0)")
    command.add_argument(
        "--out", type=Path, metavar="FILE", help="default: evaluation.json in the run's folder"
    )
    command.add_argument("--device", default="cpu", help="auto, cpu (the default), cuda, cuda:1")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from dpp import runs
    from dpp.evaluation import table

    options = {name: getattr(arguments, name) for name in ("images", "seed", "out")}
    options["device"] = runs.choose_device(arguments.device)
    finished, chosen = runs.open_run(arguments.run_folder), table.choose(arguments.measures)
    with tqdm(unit="image", leave=False, delay=0.1) as bar:  # nothing before an error

        def report(family: str, done: int, total: int) -> None:
            if bar.desc != f"{family}: ":
                bar.reset()  # the time left is that of this family
                bar.set_description(family, refresh=False)
            bar.total, bar.n = total, done
            bar.refresh()

        content = table.evaluate(finished, chosen, report=report, **options)
    print(table.as_text(content))
    print("", arguments.out or finished.folder / table.FILE, sep="\n")
    return 0
