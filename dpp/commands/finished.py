"""Commands that show, change and share a finished run."""

import argparse
from dataclasses import replace
from pathlib import Path

from dpp.data import catalogue
from dpp.system.errors import UserError
from dpp.training.experiments import example_experiment

SPLITS = {"train": "projection", "validation": "validation", "test": "test"}  # un-augmented
EXAMPLE = (
    "No --run is given: this is the example network, which knows drawn birds only and gives any "
    "picture one of their classes.\n"
)


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Adds explain, report, prune, steer, export-maps, export, pack and unpack."""
    add_explain_command(commands)
    add_report_command(commands)
    add_prune_command(commands)
    add_steer_command(commands)
    add_sharing_commands(commands)


def run_explain(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from dpp import runs
    from dpp.analysis import Network, explain
    from dpp.report import explanation_files
    from dpp.runs import familiarity

    run = runs.choose(arguments.run_folder, example_experiment())
    device = runs.choose_device(arguments.device)
    explanation_files.check_folder(arguments.out)
    with tqdm(total=4, unit="step", leave=False, disable=None) as bar:
        bar.set_description("loading the network")
        network = Network.of(run, device)
        picture = explanation_files.find_picture(network, arguments.image)
        bar.update()
        bar.set_description("measuring test images, once")
        known = familiarity.ensure(run, device)
        network = replace(network, familiarity=known)
        bar.update()
        bar.set_description("explaining")
        explanation = explain(network, picture, arguments.classes)
        bar.update()
        bar.set_description("drawing")
        written = explanation_files.write(network, picture, explanation, arguments.out)
        bar.update()
    shown = len(arguments.classes) or explanation_files.SHOWN
    if not arguments.run_folder and explanation.label is None:
        print(EXAMPLE)
    print(explanation_files.as_text(explanation, network.source.class_names, shown))
    if known is None:
        print(f"whether it is far from the training images is unknown: {run.folder} is read-only")
    print("", *written, sep="\n")
    return 0


def run_prune(arguments: argparse.Namespace) -> int:
    from dpp import runs
    from dpp.runs import pruned

    run = runs.open_run(arguments.run_folder)
    options = {name: getattr(arguments, name) for name in ("tolerance", "keep_unused", "out")}
    print(pruned.as_text(pruned.prune(run, **options, device=arguments.device)))
    return 0


def run_steer(arguments: argparse.Namespace) -> int:
    from dpp import runs
    from dpp.runs import steered

    run = runs.open_run(arguments.run_folder)
    forget = steered.read_request(run, arguments.forget, arguments.keep, arguments.reason)
    options = {name: getattr(arguments, name) for name in ("who", "fine_tune", "out", "device")}
    print(steered.as_text(steered.steer(run, forget, **options)))
    return 0


def run_report(arguments: argparse.Namespace) -> int:
    from dpp import runs
    from dpp.report import run_report

    run = runs.choose(arguments.run_folder, example_experiment())
    path = arguments.out or Path(f"{run.folder.name}.html")
    options = {name: getattr(arguments, name) for name in ("classes", "images", "examples")}
    options["device"] = runs.choose_device(arguments.device)
    try:
        print(run_report.write_report(run, path, **options))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
    return 0


def run_export_places(arguments: argparse.Namespace) -> int:
    from dpp import runs
    from dpp.analysis import Network
    from dpp.sharing import places

    run = runs.open_run(arguments.run_folder)
    network = Network.of(run, runs.choose_device(arguments.device))
    dataset = getattr(runs.load_splits(run.experiment, run.source), SPLITS[arguments.split])
    path = arguments.out or Path(f"{run.folder.name}-{arguments.split}.csv.gz")
    size = places.estimate_bytes(network, dataset, path, arguments.own)
    shown = f"{len(network.prototypes):,} prototypes{' of 1 class each' * arguments.own}"
    print(f"{len(dataset):,} images, {shown}: about {size / 1e6:,.1f} MB")
    count = places.export_places(network, dataset, path, own=arguments.own)
    print(f"{count:,} rows", path, sep="\n")
    return 0


def run_export(arguments: argparse.Namespace) -> int:
    from dpp import runs
    from dpp.sharing import standard

    run = runs.open_run(arguments.run_folder)
    written = standard.export(run, arguments.format, arguments.out)
    print(
        f"largest difference of a logit on {written.images} test images: {written.difference:.1e}"
    )
    print(written.path, written.path.with_suffix(".json"), sep="\n")
    return 0


def run_pack(arguments: argparse.Namespace) -> int:
    from dpp import runs
    from dpp.sharing import packages

    run = runs.open_run(arguments.run_folder)
    path = packages.pack(run, arguments.out, arguments.licence)
    if run.experiment.data not in catalogue.NAMES:
        print(f"experiment.json in it names your folder of images: {run.experiment.data}")
    print(path)
    return 0


def run_unpack(arguments: argparse.Namespace) -> int:
    from dpp.sharing import packages

    print(packages.unpack(arguments.package, arguments.root).folder)
    return 0


def add_explain_command(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "explain",
        help="why a network gives a picture its class",
        description="Prints which prototypes give a class how many points, and writes the figure "
        "and the same as JSON.",
    )
    command.add_argument("image", help="a file, or the id of an image of the run's data set")
    command.add_argument(
        "--run",
        dest="run_folder",
        default="",
        metavar="DIR",
        help="of a finished run (default: the example network)",
    )
    command.add_argument(
        "--class",
        dest="classes",
        action="append",
        default=[],
        metavar="NAME",
        help="to explain the score of; repeatable (default: those with the highest)",
    )
    command.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="for the files (default: here)"
    )
    command.add_argument("--device", default="cpu", help="auto, cpu (the default), cuda, cuda:1")
    command.set_defaults(run=run_explain)


def add_report_command(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "report",
        help="write a run's card, one page of HTML",
        description="Writes one page that needs no other file: examples of decisions, every "
        "prototype on its source image, an audit, mistakes, training and measures.",
    )
    command.add_argument(
        "run_folder",
        nargs="?",
        default="",
        metavar="RUN",
        help="folder of a finished run (default: the example network)",
    )
    command.add_argument(
        "--out", type=Path, metavar="FILE", help="default: the run's name with .html, here"
    )
    command.add_argument(
        "--class",
        dest="classes",
        action="append",
        default=[],
        metavar="NAME",
        help="whose prototypes and test images are shown; repeatable (default: all)",
    )
    command.add_argument(
        "--images", type=int, metavar="N", help="at most so many test images of a class"
    )
    command.add_argument(
        "--examples",
        type=int,
        default=4,
        metavar="N",
        help="correct decisions, and as many incorrect ones (default: 4)",
    )
    command.add_argument("--device", default="cpu", help="auto, cpu (the default), cuda, cuda:1")
    command.set_defaults(run=run_report)


def add_prune_command(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "prune",
        help="remove duplicate and unused prototypes of a run",
        description="Merges equal prototypes of a class, removes those whose nearest training "
        "images are mostly of other classes, fits the last layer again, and writes a new run "
        "beside the old one, which stays as it is.",
    )
    command.add_argument("run_folder", type=Path, metavar="RUN", help="folder of a finished run")
    command.add_argument(
        "--tolerance",
        type=float,
        default=1e-6,
        help="how far the cosine of equal prototypes may be from 1 (default: 1e-6)",
    )
    command.add_argument("--keep-unused", action="store_true", help="merge duplicates only")
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="default: the run's folder with -pruned"
    )
    command.add_argument("--device", default="cpu", help="auto, cpu (the default), cuda, cuda:1")
    command.set_defaults(run=run_prune)


def add_steer_command(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "steer",
        help="forget prototypes that should not count, and say why",
        description="Removes prototypes that someone rejects and fits the last layer again, or "
        "trains further so that what they stood for is not found again. Writes a new run beside "
        "the old one, which stays as it is; the new run records who forgot what, and why.",
    )
    command.add_argument("run_folder", type=Path, metavar="RUN", help="folder of a finished run")
    command.add_argument(
        "--forget",
        action="append",
        default=[],
        metavar="NUMBERS",
        help="prototypes of the run, as 3,7; repeatable, each with a --reason of its own",
    )
    command.add_argument(
        "--keep", default="", metavar="NUMBERS", help="instead: forget all but these"
    )
    command.add_argument(
        "--reason",
        action="append",
        default=[],
        metavar="TEXT",
        help="why; one for all, or one for each --forget",
    )
    command.add_argument("--who", default="", help="who decided it (default: not said)")
    command.add_argument(
        "--fine-tune",
        type=int,
        default=0,
        metavar="EPOCHS",
        help="train so many more (default: 0, only the last layer is fitted again)",
    )
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="default: the run's folder with -steered-..."
    )
    command.add_argument("--device", default="cpu", help="auto, cpu (the default), cuda, cuda:1")
    command.set_defaults(run=run_steer)


def add_sharing_commands(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "export-maps",
        help="every prototype's place, parts and boxes on every image, as a table",
        description="Writes a row for each image and prototype of a run: similarity, centre, and "
        "place, share and box of each part.",
    )
    command.add_argument("run_folder", type=Path, metavar="RUN", help="folder of a finished run")
    command.add_argument(
        "--split", choices=SPLITS, default="test", help="of the images (default: test)"
    )
    command.add_argument("--own", action="store_true", help="only prototypes of the image's class")
    command.add_argument(
        "--out", type=Path, metavar="FILE", help="ends in .csv or .csv.gz (default: the run's name)"
    )
    command.add_argument("--device", default="cpu", help="auto, cpu (the default), cuda, cuda:1")
    command.set_defaults(run=run_export_places)

    command = commands.add_parser(
        "export",
        help="a run's network in standard operators, as ONNX or a PyTorch program",
        description="Writes the network so that other programs can run it, with a JSON file of its "
        "classes and normalisation, and compares its logits with the original's on test images.",
    )
    command.add_argument("run_folder", type=Path, metavar="RUN", help="folder of a finished run")
    command.add_argument(
        "--format", default="onnx", help="onnx (the default; needs dpp[onnx]) or torch"
    )
    command.add_argument(
        "--out", type=Path, metavar="FILE", help="ends in .onnx or .pt2 (default: the run's name)"
    )
    command.set_defaults(run=run_export)

    command = commands.add_parser(
        "pack",
        help="a run as one zip file or folder, with a card, for others",
        description="Verifies a run and packs its weights, experiment, origins and metrics with a "
        "model card and the hash of every file.",
    )
    command.add_argument("run_folder", type=Path, metavar="RUN", help="folder of a finished run")
    command.add_argument(
        "--out", type=Path, help="a folder, or a file that ends in .zip (default: the run's name)"
    )
    command.add_argument("--licence", default="mit", help="of the weights (default: mit)")
    command.set_defaults(run=run_pack)

    command = commands.add_parser("unpack", help="verify a package and put its run among the runs")
    command.add_argument("package", type=Path, help="zip file or folder, from dpp pack")
    command.add_argument("--root", type=Path, metavar="DIR", help="instead of DPP_RUNS, or runs/")
    command.set_defaults(run=run_unpack)
