"""What photo runs will take: hours and gigabytes, estimated before any of it is begun.

- A run takes as long as a stored one of the same experiment, whatever its seed. Where there is
  none, operations are counted on the real network, on tensors that have shapes and no values, and
  divided by the pace of the stored runs that are most like it: of the same model and backbone, of
  the same backbone, or of any. Without any stored run the pace is `PACE`.
- Counted are the layers that are trained and what follows them, for every image of every epoch and
  stage, and the frozen layers once for every row of a cache. Matrix products and convolutions
  count, a multiplication and an addition each.
- The sizes of caches and networks are exact.
"""

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from dpp import runs
from dpp.backbones.backbone import make_backbone
from dpp.backbones.trunks import TrunkFeatures
from dpp.data import cache as pixel_cache
from dpp.data.feature_store import allocated
from dpp.data.image_records import Source
from dpp.runs import records
from dpp.runs.method_of import method_of
from dpp.system import files, paths
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment

# Operations a second of one core in float32. Two cores with AVX-512, busy with other work too, made
# 16 to 18 maps a second with the frozen layers of a ResNet-34, 6.0e9 operations each.
PACE = 50e9
ITEM = 2  # bytes of a cached feature
ANY = {"seed": 0, "margin": 0.1, "orthogonality": 0.1}  # what costs nothing
CACHED = ("data", "image_size", "crop_to_box", "backbone", "weights", "frozen_trunk", "views")


class Operations(NamedTuple):
    """What one image costs, and how large the network is."""

    trunk: float  # of the frozen layers
    head: float  # of the backbone's trained layers
    rest: float  # of what follows the backbone
    shape: tuple[int, ...]  # of the trunk's map: channels, rows, columns
    bytes: int  # of all weights


@dataclass(frozen=True)
class Estimate:
    """Of one run, or of what several share."""

    seconds: float  # of one core
    bytes: int  # that will be written
    measured: bool = False  # whether the seconds are of a stored run


@cache
def count(experiment: Experiment, classes: int) -> Operations:
    """Counts the operations of an experiment's network for one image."""
    with torch.device("meta"), torch.no_grad():
        layers = {name: getattr(experiment, name) for name in ("frozen_trunk", "cut_after")}
        backbone = make_backbone(experiment.backbone, **layers)
        model = method_of(experiment).build(experiment, backbone, classes)
        maps = torch.empty(1, 3, experiment.image_size, experiment.image_size)
        with FlopCounterMode(display=False) as trunk:
            for _, layer in backbone.steps()[: backbone.frozen_steps]:
                maps = layer(maps)
        features = TrunkFeatures(maps, experiment.image_size)
        with FlopCounterMode(display=False) as head:
            backbone(features)
        with FlopCounterMode(display=False) as whole:
            if experiment.model == "prototree":  # whose few prototypes cost next to nothing
                model.locate(features)
            else:
                model.measure(features, torch.empty(1, dtype=torch.long))
    totals = [counter.get_total_flops() for counter in (trunk, head, whole)]
    size = sum(p.numel() * p.element_size() for p in (*model.parameters(), *model.buffers()))
    return Operations(*totals[:2], totals[2] - totals[1], tuple(maps.shape[1:]), size)


def operations(experiment: Experiment, source: Source) -> float:
    """Of a run: every image of every epoch, validation and stage. Its cache is not in it."""
    counted = count(replace(experiment, **ANY), len(source.class_names))
    look = counted.head + counted.rest + (0 if experiment.views else counted.trunk)
    _, images, test = source.counts()
    validation = round(images * experiment.validation_fraction)
    train = images - validation
    schedule = method_of(experiment).schedule(experiment)
    total = test * look
    for phase in schedule.phases:
        # The gradient of what follows the backbone is sparse, and left out.
        step = look + (2 * counted.head if "backbone" in phase.rates else 0)
        total += phase.epochs * (train * step + validation * look)
    return total + len(schedule.after) * len(schedule.stages) * (train + validation) * look


class Estimator:
    """Estimates runs of the photo profile from what is stored and counted.

    Args:
        profile: whose records are looked at, those of `DPP_RESULTS` and the committed ones.
    """

    def __init__(self, profile: str = "photo"):
        folders = dict.fromkeys((paths.results(profile), paths.RESULTS / profile))
        self.tables = [records.read(folder / records.RUNS) for folder in folders]
        self.sources: dict[str, Source] = {}
        self.stored: dict[Experiment, float] = {}  # seconds of one core, whatever the seed
        self.paces: dict[tuple[str, str], list[float]] = {}

    def source(self, experiment: Experiment) -> Source:
        if experiment.data not in self.sources:
            self.sources[experiment.data] = runs.load_source(experiment)
        return self.sources[experiment.data]

    def learn(self, experiments: Iterable[Experiment]) -> None:
        """Takes the pace from the records of some experiments, where there are any."""
        for experiment in experiments:
            seconds = self._seconds(experiment.name)
            if seconds:
                self.stored.setdefault(replace(experiment, seed=0), seconds)
                pace = operations(experiment, self.source(experiment)) / seconds
                key = (experiment.model, experiment.backbone)
                self.paces.setdefault(key, []).append(pace)

    def _seconds(self, name: str) -> float:
        """Seconds of one core that a run took; 0 if none is stored."""
        for table in self.tables:
            mine = table[table.run == name] if "seconds" in table else ()
            if len(mine):
                return float(mine.seconds.iloc[0]) * float(mine.get("threads", [1]).iloc[0])
        return 0.0

    def pace(self, model: str = "", backbone: str = "") -> float:
        """Operations a second of one core, of the stored runs that are most like some."""
        exact = self.paces.get((model, backbone), [])
        near = [p for (_, other), mine in self.paces.items() if other == backbone for p in mine]
        every = [pace for mine in self.paces.values() for pace in mine]
        return next((median(mine) for mine in (exact, near, every) if mine), PACE)

    def run(self, experiment: Experiment) -> Estimate:
        """Of one run, without its cache."""
        source = self.source(experiment)
        size = count(replace(experiment, **ANY), len(source.class_names)).bytes
        known = self.stored.get(replace(experiment, seed=0))
        if known:
            return Estimate(known, size, True)
        pace = self.pace(experiment.model, experiment.backbone)
        return Estimate(operations(experiment, source) / pace, size)

    def trunk_cache(self, experiment: Experiment) -> Estimate:
        """Of the cache that runs like this one share, as far as it is not on the disk."""
        source = self.source(experiment)
        counted = count(replace(experiment, **ANY), len(source.class_names))
        total, train, _ = source.counts()
        row, missing = prod(counted.shape) * ITEM, 0
        for rows, views in ((total, 0), (train * experiment.views, experiment.views)):
            missing += max(rows * row - kept_bytes(experiment, rows, views), 0)
        return Estimate(missing / row * counted.trunk / self.pace(), missing)

    def pixels(self, experiment: Experiment) -> Estimate:
        """Of the resized images, which runs on the same data share."""
        source = self.source(experiment)
        name = pixel_cache.digest(source.records, experiment.image_size, experiment.crop_to_box)
        there = (paths.data_root() / "cache" / name).is_dir()
        return Estimate(0.0, 0 if there else 3 * experiment.image_size**2 * len(source.records))


def kept_bytes(experiment: Experiment, rows: int, views: int) -> int:
    """How much of a store of trunk features is on the disk, by what it says that it is."""
    wanted = {"backbone": experiment.backbone, "frozen_trunk": experiment.frozen_trunk}
    wanted |= {"size": experiment.image_size, "crop_to_box": experiment.crop_to_box, "rows": rows}
    for about in (paths.data_root() / "cache" / "trunk").glob("[!.]*/about.json"):
        with suppress(UserError, KeyError, TypeError, OSError):
            key = files.read_json(about)["key"]
            if wanted.items() <= key.items() and key.get("views", 0) == views:
                return allocated(about.with_name("features.bin"))
    return 0


def estimate(
    unfinished: Sequence[Experiment], known: Iterable[Experiment] = (), jobs: int = 1
) -> str:
    """Hours and gigabytes of runs, as a table by backbone and data.

    Args:
        unfinished: what will be trained.
        known: experiments whose records say how quick this is, besides these.
        jobs: how many are trained at a time, one core each.
    """
    estimator = Estimator()
    estimator.learn({one.name: one for one in (*known, *unfinished)}.values())
    groups: dict[tuple[str, str], list[Estimate]] = {}
    shared: set[tuple] = set()
    for experiment in unfinished:
        mine = groups.setdefault((experiment.backbone, Path(experiment.data).name), [])
        mine.append(estimator.run(experiment))
        images = tuple(getattr(experiment, name) for name in CACHED[:3])
        features = tuple(getattr(experiment, name) for name in CACHED)
        if images not in shared:
            mine.append(estimator.pixels(experiment))
        if features not in shared and experiment.views:
            mine.append(estimator.trunk_cache(experiment))
        shared |= {images, features}
    every = [one for mine in groups.values() for one in mine]
    cores = min(jobs, os.cpu_count() or 1)
    lines = [f"Estimate for {len(unfinished)} runs that are not finished, {_cores(cores)}:"]
    for (backbone, data), mine in groups.items():
        number = sum(one.backbone == backbone and Path(one.data).name == data for one in unfinished)
        lines.append(_line(f"{backbone}, {data}", number, mine, cores))
    lines.append(_line("in all", len(unfinished), every, cores))
    measured = sum(one.measured for one in every)
    others = f"counted operations at {estimator.pace() / 1e9:.0f} GFLOP/s a core"
    origin = f"the pace of {len(estimator.stored)} stored runs" if estimator.paces else "assumed"
    free = shutil.disk_usage(_existing(paths.data_root())).free / 1e9
    lines.append(
        f"Hours: {measured} runs from the seconds of stored ones, {len(unfinished) - measured} "
        f"from {others} ({origin}). Gigabytes: caches under {paths.data_root() / 'cache'}, which "
        f"has {free:.0f} GB free, and networks under {paths.runs_root()}."
    )
    return "\n".join(lines)


def _line(name: str, number: int, estimates: Sequence[Estimate], cores: int) -> str:
    hours = sum(one.seconds for one in estimates) / 3600 / cores
    size = sum(one.bytes for one in estimates) / 1e9
    return f"  {name:24} {number:4} runs {hours:8.1f} hours {size:8.1f} GB"


def _cores(cores: int) -> str:
    return f"on {cores} core{'s' * (cores > 1)}"


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
