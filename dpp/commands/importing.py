"""The command that makes runs of the authors' checkpoints."""

import argparse
from pathlib import Path


def run_import(arguments: argparse.Namespace) -> int:
    from dpp.sharing import imported

    names = ("model", "backbone", "data", "crop_to_box", "image_size", "out", "device")
    options = {name: getattr(arguments, name) for name in names}
    print(imported.as_text(imported.import_checkpoint(arguments.file, **options)))
    return 0


def add_command(commands: argparse._SubParsersAction) -> None:
    """Adds import."""
    command = commands.add_parser(
        "import",
        help="make a run of an authors' checkpoint",
        description="Reads a state dict of the authors' Deformable ProtoPNet, ProtoPNet or TesNet, "
        "infers the network from the shapes, measures it on the test images, and writes a run. "
        "Nothing is unpickled but tensors: a whole pickled network is refused, with what to do.",
    )
    command.add_argument("file", type=Path, metavar="FILE", help="a state dict, saved by torch")
    command.add_argument(
        "--model", default="", help="deformable, protopnet or tesnet (default: by the shapes)"
    )
    command.add_argument("--backbone", default="", help="such as resnet34 (default: by the shapes)")
    command.add_argument(
        "--data",
        default="",
        help="that it was trained on: a name or folder (default: cub or dogs, by the classes)",
    )
    command.add_argument(
        "--crop-to-box",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="trained on cropped images (default: all but deformable, as in the authors' settings)",
    )
    command.add_argument(
        "--image-size", type=int, default=224, help="side of its images (default: 224)"
    )
    command.add_argument("--out", type=Path, metavar="DIR", help="default: among the runs")
    command.add_argument("--device", default="cpu", help="auto, cpu (the default), cuda, cuda:1")
    command.set_defaults(run=run_import)
