"""What is killed or gets no room: `python victims.py queue|pixels|features|drawing ...`."""

import multiprocessing
import sys
import time
from pathlib import Path

import numpy as np

from dpp import data
from dpp.data import feature_store
from dpp.data.cache import PixelStore
from dpp.data.feature_store import FeatureStore
from dpp.drawn.posebirds import BIRDS
from dpp.paper import run_queue
from dpp.report import own_folder  # noqa: F401  what commands import late is here for copies
from dpp.system import worker_pool
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment, make_experiment

SMALL = {"weights": "none", "backbone": "slim_vgg16_bn", "image_size": 32, "epochs": 2}
SMALL |= {"warm_epochs": 0, "second_warm_epochs": 0, "project_after": (2,)}


def plans() -> list[Experiment]:
    return [make_experiment("smoke", **SMALL, seed=seed) for seed in range(2)]


def queue(root: str, jobs: str, method: str) -> None:
    """Workers that are forked begin seconds earlier than those that are spawned, as is usual."""
    worker_pool.SPAWN = multiprocessing.get_context(method)
    failed = run_queue.run_all(plans(), jobs=int(jobs), root=Path(root))
    if failed:
        raise UserError(str(failed))


def pixels(images: str, folder: str, size: str) -> np.ndarray:
    records = data.load(images).records
    return PixelStore(records, int(size), folder=Path(folder)).get(records)[0]


def features(folder: str) -> np.ndarray:
    """Forty rows, four at a time, some milliseconds for each."""

    def compute(rows: range) -> np.ndarray:
        time.sleep(0.01)
        return np.array([[row, row + 0.5] * 500 for row in rows], np.float32)

    feature_store.CHUNK = 4
    store = FeatureStore(Path(folder), "some", {}, 40, (1000,), "float32")
    if store.open():
        store.build(compute)
    return store.get(range(40))


def drawing(folder: str, workers: str) -> Path:
    counts = {"classes": 5, "train_per_class": 18, "test_per_class": 4, "image_size": 32}
    return BIRDS.make(Path(folder), **counts, workers=int(workers))


if __name__ == "__main__":
    try:
        globals()[sys.argv[1]](*sys.argv[2:])
    except UserError as error:
        sys.exit(f"refused: {error}")
    except KeyboardInterrupt as stop:
        print(stop)
        sys.exit(130)
