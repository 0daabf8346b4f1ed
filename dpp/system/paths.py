"""Where things are. Nothing else in the package builds a path from `__file__`."""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parent
NOTEBOOKS = ROOT / "notebooks"
RESULTS = ROOT / "results"  # what is committed
BUILD_REPORT = PACKAGE / "_build.json"


def data_root() -> Path:
    """The folder that holds the data sets: `DPP_DATA`, or `data/` in the repository."""
    return Path(os.environ.get("DPP_DATA") or ROOT / "data").expanduser()


def runs_root() -> Path:
    """The folder that holds trained networks: `DPP_RUNS`, or `runs/` in the repository."""
    return Path(os.environ.get("DPP_RUNS") or ROOT / "runs").expanduser()


def weights_root() -> Path | None:
    """The folder that is searched for ImageNet weights before a download, `DPP_WEIGHTS`."""
    folder = os.environ.get("DPP_WEIGHTS")
    return Path(folder).expanduser() if folder else None


def results(profile: str) -> Path:
    """The folder that holds a profile's results, under `DPP_RESULTS` or the committed ones."""
    return Path(os.environ.get("DPP_RESULTS") or RESULTS).expanduser() / profile


def stored_file(profile: str, name: str) -> Path:
    """A file of a profile's results: the one under `DPP_RESULTS`, or else the committed one."""
    own = results(profile) / name
    return own if own.is_file() else RESULTS / profile / name
