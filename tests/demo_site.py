"""The live demo with few poses, written once, and the Python network to compare it with."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dpp import runs
from dpp.analysis import Network, following_study, part_following
from dpp.data.transforms import normalise
from dpp.runs import Run
from dpp.site.demo import demo_experiment, write_demo
from dpp.site.frames import Grid

FEW = Grid(head=(-50, 0, 50), wing=(0, 1), tail=(-48, 0, 48))
START = (1, 0, 1)  # the poses in the middle


class Demo(NamedTuple):
    folder: Path
    run: Run
    networks: dict[str, Network]  # by the page's names of the modes

    def decide(self, pixels: np.ndarray) -> dict:
        """What the Python network makes of pixels (size, size, 3), by mode."""
        images = normalise(torch.from_numpy(pixels.transpose(2, 0, 1).copy()))[None]
        return {mode: network.inspect(images) for mode, network in self.networks.items()}


def committed_run() -> Run:
    run = runs.find_or_committed(demo_experiment())
    assert run is not None, "the demo's network is not committed"
    return run


def make_demo(folder: Path) -> Demo:
    run = committed_run()
    write_demo(folder, run, grid=FEW, home="../")
    network = Network.of(run)
    at_mean = part_following.held_at_mean(network, following_study.splits_of(run).projection)
    at_rest = part_following.held_at_rest(network)
    return Demo(folder, run, {"moved": network, "mean": at_mean, "rest": at_rest})
