"""The live demo: a folder with one page in which a trained network runs in the visitor's browser.

    python -m dpp.site.demo OUT        # OUT/index.html opens from disk, without a server

The network is the first of notebook 13's study, `moving_parts.design("predicted", 2.0, 0)`, and is
committed under `results/mini/networks`; `runs.get` would train it anew, in minutes. `page/` has the
page: `network.js` computes what the network computes, `demo.js` connects it with the controls.
Browsers do not let a page on disk fetch files, so all data come as scripts.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from dpp import runs
from dpp.analysis import Network, following_study, part_following
from dpp.analysis.network import check_origin
from dpp.drawn import posebirds
from dpp.drawn.species import kinds
from dpp.figures import PART_COLOURS
from dpp.paper import moving_parts
from dpp.runs import Run
from dpp.site.findings import findings
from dpp.site.frames import GRID, Grid, differences, draw_frames, pack
from dpp.site.weights import describe_network
from dpp.system.errors import UserError
from dpp.system.files import write_file
from dpp.system.paths import PACKAGE
from dpp.training.experiments import Experiment

PAGE = "index.html"
STATIC = (
    *("demo.css", "unpack.js", "network.js", "picture.js", "stage.js"),
    *("demo.js", "panels.js", "controls.js"),
)
FIRST_BIRD = 8  # of ten, the one on which moving matters most


def demo_experiment() -> Experiment:
    """Of the network that the page shows: its cells see parts of a bird, birds bend strongly."""
    return moving_parts.design("predicted", pose=2.0, seed=0)


def write_demo(folder: Path, run: Run | None = None, *, grid: Grid = GRID, home: str = "") -> None:
    """Writes the page and all that it needs.

    Args:
        folder: is made if missing; files of an earlier page are replaced.
        run: of a Deformable ProtoPNet on PoseBirds; None for the committed one.
        grid: the poses in which birds can be seen.
        home: address of the site's first page, for a link; empty for no link.
    """
    run = run or runs.get(demo_experiment(), progress=False)
    network = Network.of(run)
    if list(network.source.class_names) != posebirds.class_names(len(network.source.class_names)):
        raise UserError(f"{network.source.name} is not PoseBirds: only its birds can be drawn anew")
    steps, weights = describe_network(network.model)
    scripts = {
        "network": describe(network, run) | {"steps": steps, "weights": pack(weights)},
        "prototypes": describe_prototypes(network),
        "birds": describe_birds(network, grid),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in scripts.items():
        text = f"const DEMO_{name.upper()} = {json.dumps(content, separators=(',', ':'))};\n"
        write_file(folder / f"{name}_data.js", text.encode())
    for name in STATIC:
        write_file(folder / name, (PACKAGE / "site" / "page" / name).read_bytes())
    write_file(folder / PAGE, render(network, run, home).encode())


def describe(network: Network, run: Run) -> dict:
    """What the page says and draws besides the network's own numbers."""
    centres = np.array(network.cell_centres)
    paces = np.diff(centres)
    if not np.allclose(paces, network.size / len(centres)):
        raise UserError("the demo page needs cells that are evenly spaced: cut the backbone")
    same = part_following.held_at_mean(network, following_study.splits_of(run).projection)
    known = network.familiarity
    return {
        "name": run.experiment.name,
        "size": network.size,
        "cells": len(centres),
        "first": centres[0],  # where the first cell looks, in pixels
        "classes": [spoken(name) for name in network.source.class_names],
        "colours": PART_COLOURS[: network.model.prototypes.kernel_size**2],
        "meanOffsets": same.model.offsets.moved.flatten().tolist(),
        "familiar": None if known is None else known.threshold,
    }


def spoken(name: str) -> str:
    """A class's folder as people say it: 002.Bar_winged_Shrike is a Bar-winged Shrike."""
    *words, last = name.partition(".")[2].split("_")
    return f"{'-'.join(words)} {last}" if words else last


def describe_prototypes(network: Network) -> dict:
    """Where each prototype comes from, and the pixels of those images, each once."""
    origins = [network.origins[number] for number in range(len(network.labels))]
    names = sorted({origin.image for origin in origins})
    records = {origin.image: check_origin(network, origin) for origin in origins}
    pictures = [network.picture(records[name]).pixels for name in names]
    sources = [
        {
            "image": names.index(origin.image),
            "centre": origin.centre,
            "parts": np.round(origin.parts, 4).tolist(),
        }
        for origin in origins
    ]
    return {"sources": sources, "images": len(names), "pixels": pack(np.stack(pictures))}


def describe_birds(network: Network, grid: Grid) -> dict:
    """The first bird of each class that is in no data set, in all poses."""
    chosen = kinds(len(network.source.class_names), base=False)
    start = {"head": len(grid.head) // 2, "wing": 0, "tail": len(grid.tail) // 2}
    packed, portraits = [], []
    for kind in chosen:
        frames = draw_frames(kind, grid, network.size)
        packed.append(pack(differences(frames)))
        portraits.append(frames[*start.values()])
    return {
        "grid": grid._asdict(),
        "start": start | {"bird": FIRST_BIRD % len(chosen)},
        "frames": packed,
        "portraits": pack(np.stack(portraits)),
    }


def render(network: Network, run: Run, home: str) -> str:
    """The page, with the numbers of notebook 13 in its text."""
    options = {"trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    loader = PackageLoader("dpp.site", "page")
    template = Environment(loader=loader, autoescape=True, **options).get_template(PAGE)
    return template.render(
        home=home,
        classes=len(network.source.class_names),
        size=network.size,
        accuracy=run.manifest["results"]["test_accuracy"],
        found=findings(),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dpp.site.demo", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the page is written")
    parser.add_argument("--home", default="", help="address of the site's first page, for a link")
    arguments = parser.parse_args()
    try:
        write_demo(arguments.folder, home=arguments.home)
    except UserError as error:
        print(f"dpp: {error}", file=sys.stderr)
        return 2
    print(f"written: {arguments.folder / PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
