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
    command.add_argument(
        "--again", action="store_true", help="measure again what the file has already"
    )
    command.add_argument("--device", default="cpu", help="auto, cpu (the default), cuda, cuda:1")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from dpp import runs
    from dpp.evaluation import stored, table

    options = {name: getattr(arguments, name) for name in ("images", "seed", "out", "again")}
    options["device"] = runs.choose_device(arguments.device)
    finished, chosen = runs.open_run(arguments.run_folder), table.choose(arguments.measures)
    path, bars = arguments.out or finished.folder / stored.FILE, {}

    def report(family: str, done: int, total: int) -> None:
        if family not in bars:  # the time left is that of this family
            close()
            bars[family] = tqdm(total=total, desc=family, unit="image", leave=False)
        bars[family].total = total
        bars[family].update(done - bars[family].n)

    def close() -> None:
        for bar in bars.values():
            bar.close()

    try:
        content = table.evaluate(finished, chosen, report=report, **options)
    except KeyboardInterrupt as stop:
        *ended, stopped = bars or chosen[:1]
        done = f"{', '.join(ended)} stored in {path}" if ended else "nothing new was stored"
        rest = " ".join(chosen[chosen.index(stopped) :])
        how = f"give --again --measures {rest}" if arguments.again else "run the same command"
        said = [*stop.args, f"stopped; {done}: {how} to resume"]
        raise KeyboardInterrupt("\n".join(said)) from None
    finally:
        close()
    print(table.as_text(content))
    if kept := [name for name in chosen if name not in bars]:
        print("", f"measured before: {', '.join(kept)} (--again measures anew)", sep="\n")
    print("", path, sep="\n")
    return 0
