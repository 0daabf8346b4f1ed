"""What `dpp train` says about a folder of one's own images: before it starts, and at the end."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from scipy.stats import binomtest

from dpp import data, runs
from dpp.analysis.collapse import SHARED, run_duplicates
from dpp.data.folders import skipped_files
from dpp.data.image_records import ImageRecord, Source, images_per_class, split_validation
from dpp.runs import Run, checkpoints, forecast, own_images
from dpp.runs.forecast import Forecast
from dpp.runs.own_images import Choice
from dpp.system import paths
from dpp.system.errors import UserError
from dpp.training.experiments import Experiment, base_experiment, make_experiment

NAMED = 3  # files in a line
BUSY = 0.5  # a smaller share of the processor is worth a word
STILL = 0.05  # cells: parts that move less are as good as rigid


def prepare(profile: str | None, given: dict, root: Path | None, device: str) -> Experiment:
    """Looks at a folder, chooses what was not given, and says so on stderr.

    Args:
        profile: whose values are taken as they are; None for photo's, scaled to the folder.
        given: fields of the experiment; `data` is the folder.
        root: of the runs.
        device: that will train.

    Raises:
        UserError: the folder cannot be trained on, or an image in it cannot be decoded.
    """
    source = data.load(given["data"])
    if len(source.class_names) < 2:
        raise UserError(
            f"{source.root} has one class, {source.class_names[0]}: training needs at least two, "
            "each in a folder of its own"
        )
    given = given | {"data": str(source.root.resolve())}  # found from any folder later
    usual = make_experiment(profile or "photo", **{"data": given["data"]} | _split_fields(given))
    train, validation = split_validation(source, usual.validation_fraction, usual.seed)
    counts = images_per_class(train, len(source.class_names)).tolist()
    if profile:
        experiment, choices = make_experiment(profile, **given), ()
    else:
        experiment, choices = own_images.choose("photo", counts, given)
    if experiment.weights == "base":
        base_experiment(experiment)  # refuses: they are for drawn data
    own_images.check_batch(experiment.batch_size, sum(counts))
    say(*describe_folder(source, train, validation))
    say(*describe_choices(experiment, choices))
    say(*(f"warning: {w}" for w in own_images.warnings(counts, len(validation), experiment)))
    if not runs.find(experiment, root):
        say(describe_forecast(forecast.measure(experiment, source, device)))
        if checkpoints.find_states((root or paths.runs_root()) / experiment.name):
            say("it was stopped before and is resumed, which takes less")
    return experiment


def _split_fields(given: dict) -> dict:
    return {name: given[name] for name in ("validation_fraction", "seed") if name in given}


def say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)


def describe_folder(
    source: Source, train: Sequence[ImageRecord], validation: Sequence[ImageRecord]
) -> list[str]:
    """What was found in a folder."""
    plain = source.records[0].box is None  # not in the layout of a published data set
    parted = not plain or (source.root / "test").is_dir()
    split = "" if parted else ", split by dpp: it has no train/ and test/"
    lines = [
        f"{source.root}: {len(source.class_names)} classes, {len(source.records)} images: "
        f"{len(train)} to train on, {len(validation)} for validation, {len(source.test)} for test"
        f"{split}"
    ]
    if plain and (skipped := skipped_files(source.root)):
        names = ", ".join(str(path.relative_to(source.root)) for path in skipped[:NAMED])
        more = f" and {len(skipped) - NAMED} more" if len(skipped) > NAMED else ""
        lines.append(f"skipped, not images by their ending: {names}{more}")
    return lines


def describe_choices(experiment: Experiment, choices: Sequence[Choice]) -> list[str]:
    """What was chosen, flag by flag, and why."""
    what = f"{experiment.model} on {experiment.backbone}, {experiment.profile} profile"
    if not choices:
        return [f"{what}, as it is: leave out --profile for values that fit the folder's size"]
    flags = [f"--{choice.name.replace('_', '-')} {choice.value}" for choice in choices]
    width = max(map(len, flags))
    rows = zip(flags, choices, strict=True)
    return [
        f"{what}; chosen for this folder, unless you give:",
        *(f"  {flag:<{width}}  {choice.why}" for flag, choice in rows),
    ]


def describe_forecast(expected: Forecast) -> str:
    """About how long it will take, and how much memory and disk."""
    features = expected.features
    cached = f"{amount(features.bytes)} for trunk features under {paths.data_root() / 'cache'}"
    within = f", {duration(features.seconds)} of it for trunk features" if features.maps else ""
    busy = f": other programs leave it {expected.share:.0%} of the processor"
    return (
        f"expected: about {duration(expected.seconds)}{within}; {amount(expected.memory)} of "
        f"memory; on disk {f'{cached}, ' if features.maps else ''}{amount(expected.disk)} for the "
        f"run (a few steps were timed just now{busy if expected.share < BUSY else ''})"
    )


def duration(seconds: float) -> str:
    """A time in words, as exact as an estimate can be."""
    if seconds < 90:
        return f"{max(round(seconds, -1), 10):.0f} seconds"
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"


def amount(size: int) -> str:
    """A number of bytes in words."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{max(size / 1e6, 1):.0f} MB"


def summarise(run: Run) -> str:
    """What came out of a run on someone's own images, and what to do next."""
    manifest, source = run.manifest, run.source
    results, images = manifest["results"], manifest["images"]
    lines = [f"trained in {duration(manifest['seconds'])}; {accuracy_text(results, images)}"]
    metrics = run.metrics
    if "converged" in metrics and not metrics.converged.dropna().astype(bool).iloc[-1]:
        lines.append("warning: the last layer did not converge; its connections may be far off")
    prototypes = (run.folder / "prototypes.json").is_file()
    if prototypes:
        lines += describe_prototypes(run)
    lines += describe_moving(results)
    folder, example = (shlex.quote(str(path)) for path in (run.folder, source.test[0].path))
    report = f"  dpp report {folder}"
    if not prototypes:
        return "\n".join([*lines, "next:", report])
    explain = f"  dpp explain {example} --run {folder}"
    browse = f'  make lab, open 12_browse_prototypes.ipynb, set run = "{run.folder.resolve()}"'
    return "\n".join([*lines, "next:", explain, report, browse])


def accuracy_text(results: dict, images: dict) -> str:
    """The accuracies as counts, and how far that of the test images can be trusted."""
    count, of = round(results["test_accuracy"] * images["test"]), images["test"]
    low, high = binomtest(count, of).proportion_ci(method="wilson")
    validated = round(results["validation_accuracy"] * images["validation"])
    return (
        f"{count} of {of} test images correct, {count / of:.1%} (95 % interval {low:.0%} to "
        f"{high:.0%}); {validated} of {images['validation']} validation images"
    )


def describe_moving(results: dict) -> list[str]:
    """A warning where the parts of deformable prototypes have stayed where they were."""
    offset = results.get("test_offset", STILL)
    if offset >= STILL:
        return []
    active = results.get("test_active")
    units = "" if active is None else f"; {active:.1%} of the offset branch's units are active"
    return [
        f"warning: parts hardly move (median {offset:.3f} cells{units}), so the network is as good "
        "as a rigid one: its explanations hold, but say nothing about moving parts"
    ]


def describe_prototypes(run: Run) -> list[str]:
    """Where the prototypes come from, and how many repeat others."""
    repeated, per_class = run_duplicates(run), run.experiment.per_class
    images = {origin["image"] for origin in run.origins}
    lines = [f"{repeated.of} prototypes from {len(images)} training images"]
    if repeated.count:
        fewer = f", or train with --per-class {per_class - 1}" if per_class > 1 else ""
        lines.append(
            f"warning: {repeated.count} of {repeated.of} prototypes repeat another of their class "
            f"({SHARED}): read them as one{fewer}"
        )
    return lines
