"""All measures of one run in one row: whether its parts follow, and what its cells see."""

import copy
from collections import Counter
from collections.abc import Sequence

import pandas as pd

from dpp.analysis import joint_study, offset_effect, part_following, receptive_field
from dpp.analysis.intervals import Interval, interval
from dpp.analysis.network import Network
from dpp.analysis.part_following import held_at_rest, summarise
from dpp.data.batches import ImageDataset, Splits
from dpp.networks.prototypes import OffsetBranch
from dpp.runs import Run, load_splits
from dpp.runs.precision import choose_precision
from dpp.runs.trunk_cache import CachedDataset, cache_splits

NEAR = 1 / 8  # of the image's side: how far a part may be from a true part that it lands on


def study(
    run: Run,
    *,
    near: float = NEAR,
    birds: int = 3,
    images: int = 6,
    per_class: int = 0,
    gain: pd.DataFrame | None = None,
) -> dict[str, float]:
    """Measures a run of Deformable ProtoPNet, or of its extension, on its test images.

    Args:
        run: finished, on data with marked parts.
        near: how far a part may be from a true part that it lands on, as a share of the image's
            side, so that maps of any resolution can be compared.
        birds: of each class, whose joints are turned; PoseBirds only.
        images: of the effective receptive field.
        per_class: images of each class and split on which parts are followed; 0 for all.
        gain: of `part_following.gain_by_moving` on all test images, if it is computed already.

    Returns:
        `accuracy`, `accuracy at rest`; `offset`, the median in cells; `share`, `elsewhere` and
        `distance` of `part_following.follow`, each `moved` and `at rest`, distances in pixels of
        the network's input; `share gained`, its `low` and `high`, of `share_gained`; `gain own` and
        `gain others`; `slope` and `R2` of the one-joint test, and how far true parts and parts
        `went` there in pixels, `moved` and `at rest`; `half` and `most` of the effective receptive
        field, in pixels. Of predicted offsets also `active`, the share of the branch's units;
        `spread common`, `place` and `image` of `offset_effect.offset_spread`; and the measures of
        the same network with each part `at mean` offset (`part_following.held_at_mean`).
    """
    network, splits = Network.of(run), splits_of(run)
    pace = network.size / len(network.cell_centres)  # pixels of a cell
    within = near * network.size / pace
    row = {"offset": run.manifest["results"].get("test_offset", 0.0), "cell": pace}
    shown = [first_of_classes(one, per_class) for one in (splits.projection, splits.test)]
    followed = part_following.follow(network, *shown, within=within)
    row |= share_gained(followed).named("share gained")
    for kind, means in summarise(followed).iterrows():
        row |= {f"share {kind}": means["share"], f"elsewhere {kind}": means["elsewhere"]}
        row[f"distance {kind}"] = means["distance"] * pace
    gain = part_following.gain_by_moving(network, splits.test) if gain is None else gain
    row |= {
        "accuracy": gain["correct moved"].mean(),
        "accuracy at rest": gain["correct at rest"].mean(),
    }
    row |= {"gain own": gain.own.mean(), "gain others": gain.others.mean()}
    if isinstance(network.model.offsets, OffsetBranch):
        row |= _measure_branch(network, *shown, within, pace)
        row["active"] = run.manifest["results"]["test_active"]
    if run.experiment.data == "posebirds":
        given = {"birds": birds, "pose": run.experiment.pose, "within": within}
        for kind, one in {"moved": network, "at rest": held_at_rest(network)}.items():
            line = joint_study.slope_of(joint_study.answer_to_joints(one, **given))
            row |= {f"slope {kind}": line["slope"], f"R2 {kind}": line["R2"]}
            row |= {f"true went {kind}": line["true"] * pace, f"went {kind}": line["own"] * pace}
    field = receptive_field.field_of(network, load_splits(run.experiment, run.source).test, images)
    return {
        name: float(value) for name, value in (row | dict(field[["half", "most"]].mean())).items()
    }


def _measure_branch(
    network: Network, reference: ImageDataset, dataset: ImageDataset, within: float, pace: float
) -> dict[str, float]:
    """What predicted offsets depend on, and what constant ones would do as well."""
    spread = offset_effect.offset_spread(network, dataset).mean()
    same = part_following.held_at_mean(network, reference)
    means = summarise(part_following.follow(same, reference, dataset, within=within))
    gain = part_following.gain_by_moving(same, dataset)
    return {
        "spread common": spread["common"],
        "spread place": spread["with_place"],
        "spread image": spread["with_image"],
        "share at mean": means.share["moved"],
        "elsewhere at mean": means.elsewhere["moved"],
        "distance at mean": means.distance["moved"] * pace,
        "accuracy at mean": gain["correct moved"].mean(),
    }


def share_gained(followed: pd.DataFrame) -> Interval:
    """How much larger the share of `follow` is moved than at rest; the interval is over classes."""
    shares = followed.groupby(["label", "kind"]).share.mean().unstack("kind")
    return interval(shares["moved"] - shares["at rest"])


def first_of_classes(dataset: ImageDataset, count: int) -> ImageDataset:
    """The first images of each class, so many or all (0), of a data set or a cached one."""
    if not count:
        return dataset
    seen, kept = Counter(), []
    for index, record in enumerate(dataset.records):
        seen[record.label] += 1
        if seen[record.label] <= count:
            kept.append(index)
    return select_images(dataset, kept)


def select_images(dataset: ImageDataset, indices: Sequence[int]) -> ImageDataset:
    """Some images of a data set or a cached one, as another."""
    few, indices = copy.copy(dataset), list(indices)
    few.records = tuple(dataset.records[index] for index in indices)
    few.labels = dataset.labels[indices]
    if isinstance(dataset, CachedDataset):
        few.rows = tuple(dataset.rows[index] for index in indices)
    return few


def splits_of(run: Run) -> Splits:
    """The images of a run, or what its frozen trunk made of them, if that is kept."""
    splits = load_splits(run.experiment, run.source)
    if not run.experiment.views:
        return splits
    precision = choose_precision(run.experiment.precision)
    return cache_splits(splits, run.load_model().backbone, precision=precision)
