"""A finished run without the prototypes that someone rejected, as a new run; `dpp steer RUN`.

Someone who knows the images says which prototypes should not count, and why: they lie on the
background, or on a mark that one class happens to have. They are removed and the last layer is
fitted again; or the network is trained further so that what they stood for is not found again
(`dpp.extensions.forgetting`, after ProtoPDebug). The old run stays as it is, so that to undo is to
use it; the new run's manifest has every step since the run that was trained.
"""

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from dpp.extensions import forgetting
from dpp.runs import derived, pruning
from dpp.runs.finished import Run, choose_device, open_run
from dpp.runs.making import trainer_of
from dpp.runs.method_of import method_of
from dpp.system import files, paths
from dpp.system.errors import UserError
from dpp.training import last_layer, prototype_start
from dpp.training.trainer import NotFinite, Trainer

SUFFIX = re.compile(r"-steered-[0-9a-f]{6}$")


def steer(
    run: Run,
    forget: Mapping[int, str],
    *,
    who: str = "",
    fine_tune: int = 0,
    out: Path | None = None,
    device: str = "cpu",
) -> Run:
    """Makes a new run without some prototypes, or finds it if the same was done before.

    Without fine-tuning a class must keep a prototype, or nothing could explain it. With it, a class
    of which all are forgotten begins anew, with as many patches of its training images.

    Args:
        run: of one of `derived.MODELS`; it may be steered or pruned itself.
        forget: why each prototype is to be forgotten, by its number in this run.
        who: said so.
        fine_tune: epochs of joint training with the forgetting loss, then projection and last
            layer; 0 only fits the last layer again.
        out: the new run's folder; by default beside the old one, with a name of its own.
        device: see `choose_device`.

    Raises:
        UserError: the run cannot be steered so, or the folder holds something else.
    """
    forget = check(run, forget, fine_tune)
    manifest = run.manifest
    described = {
        "run": run.folder.name,
        "weights_sha256": manifest["weights_sha256"],
        "forget": {str(number): reason for number, reason in forget.items()},
        "who": who,
        "fine_tune": fine_tune,
    }
    folder = Path(out).expanduser() if out else default_folder(run, described)
    if existing := derived.find_same(folder, "steered_from", described):
        return existing

    model, source = run.load_model(choose_device(device)), run.source
    classes = model.prototypes.classes.tolist()
    kept, renewed = choose_kept(classes, forget, fine_tune, run, source.class_names)
    trainer = trainer_of(run.experiment, model, source)
    before = derived.measure_before(trainer)
    if fine_tune:
        trainer, rows = train_further(run, trainer, forget, kept, renewed, fine_tune)
    else:
        rows = fit_again(run, trainer, kept)

    removed = [
        {"prototype": number, "class": source.class_names[classes[number]], "reason": reason}
        for number, reason in forget.items()
    ]
    after = {"prototypes": len(kept)}
    after |= {name: rows[-1][name] for name in before if name in rows[-1]}
    step = {"run": run.folder.name, "removed": removed, "who": who, "fine_tune": fine_tune}
    steps = [*manifest.get("steps", []), step | {"before": before, "after": after}]
    facts = {"steered_from": described, "before": before, "removed": removed, "steps": steps}
    return derived.write(run, trainer, folder, rows, kept, **facts)


def check(run: Run, forget: Mapping[int, str], fine_tune: int) -> dict[int, str]:
    """The prototypes to forget in order, with reasons, of a run that can be steered.

    Raises:
        UserError: in any other case, but for what only the network shows.
    """
    derived.check_kind(run, "steered")
    if not forget:
        raise UserError("no prototype is named: say which ones to forget")
    if fine_tune < 0:
        raise UserError(f"fine-tuning: expected a number of epochs, not negative, got {fine_tune}")
    if silent := [number for number, reason in forget.items() if not reason.strip()]:
        raise UserError(f"prototype {silent[0]} has no reason: say why it is to be forgotten")
    run.verify()
    return {number: " ".join(forget[number].split()) for number in sorted(forget)}


def default_folder(run: Run, described: dict) -> Path:
    """Beside the old run, named by what is done; of a run that is committed, among the runs."""
    name = SUFFIX.sub("", run.folder.name)
    committed = paths.RESULTS in run.folder.resolve().parents
    parent = paths.runs_root() if committed else run.folder.parent
    return parent / f"{name}-steered-{files.sha256_of_json(described)[:6]}"


def choose_kept(
    classes: Sequence[int],
    forget: Mapping[int, str],
    fine_tune: int,
    run: Run,
    names: Sequence[str],
) -> tuple[list[int], list[int]]:
    """The numbers of prototypes that stay, and which of them begin anew.

    Args:
        classes: of all prototypes.
        forget: by number.
        fine_tune: epochs.
        run: that they belong to.
        names: of the classes.
    """
    if wrong := [number for number in forget if not 0 <= number < len(classes)]:
        raise UserError(
            f"{run.folder} has no prototype {wrong[0]}: its prototypes are 0 to {len(classes) - 1}"
        )
    left = {label for number, label in enumerate(classes) if number not in forget}
    renewed = [number for number in forget if classes[number] not in left]
    if renewed and not fine_tune:
        raise UserError(
            f"no prototype of {names[classes[renewed[0]]]} would be left: keep one, or fine-tune, "
            "which begins that class anew"
        )
    kept = [number for number in range(len(classes)) if number not in forget or number in renewed]
    return kept, renewed


def fit_again(run: Run, trainer: Trainer, kept: list[int]) -> list[dict]:
    """Removes the other prototypes and fits the last layer; rows of `metrics.csv`."""
    scores, labels = last_layer.cache_scores(trainer)
    rows = [take_out(trainer, kept)]
    rows.append(derived.fit_last_layer(run.experiment, trainer, scores[:, kept], labels))
    derived.keep_origins(run, trainer, kept)
    return rows


def take_out(trainer: Trainer, kept: list[int]) -> dict:
    """Removes the other prototypes; a row of `metrics.csv`."""
    begun = time.perf_counter()
    trainer.model.keep(torch.tensor(kept, device=trainer.device))
    return derived.record("steer", trainer, begun, prototypes=len(kept))


def train_further(
    run: Run,
    trainer: Trainer,
    forget: Mapping[int, str],
    kept: list[int],
    renewed: list[int],
    epochs: int,
) -> tuple[Trainer, list[dict]]:
    """Removes prototypes and trains the network without finding them again.

    Args:
        run: that is steered.
        trainer: of its network, which is changed.
        forget: what to forget, by number.
        kept: the numbers that stay...
        renewed: ...of which these begin anew.
        epochs: of training.

    Returns:
        The trainer at its end, and rows of `metrics.csv`.
    """
    experiment, model = run.experiment, trainer.model
    sightings = forgetting.find_sightings(trainer, list(forget))
    rows = [take_out(trainer, kept)]
    method = forgetting.make_method(
        method_of(experiment), trainer.splits.projection, sightings, epochs
    )
    further = trainer_of(experiment, model, run.source, method=method)
    torch.manual_seed(experiment.seed)
    if renewed:
        begin_anew(further, [kept.index(number) for number in renewed])
    try:
        records = list(further.run())
    except NotFinite as error:
        raise UserError(f"{error}: fine-tune for fewer epochs, or not at all") from error
    last = rows[0]["epoch"]
    return further, rows + [row | {"epoch": last + row["epoch"]} for row in records]


@torch.no_grad()
def begin_anew(trainer: Trainer, numbers: list[int]) -> None:
    """Makes some prototypes patches of their classes' training images, as before training."""
    vectors = trainer.model.prototypes.vectors
    others = torch.ones(len(vectors), dtype=torch.bool, device=vectors.device)
    others[numbers] = False
    before = vectors[others].clone()
    prototype_start.stage(trainer)
    vectors[others] = before


def read_request(
    run: Run, forget: Sequence[str], keep: str, reasons: Sequence[str]
) -> dict[int, str]:
    """What to forget and why, as `steer` takes it, from the words of a command line.

    Args:
        run: to be steered.
        forget: numbers with commas between, as given one or more times.
        keep: the same of those to keep, if all others are to be forgotten.
        reasons: one for all, or one for each of `forget`.
    """
    if bool(forget) == bool(keep):
        raise UserError(
            "say which prototypes to forget with --forget, or which to keep with --keep: not both"
        )
    derived.check_kind(run, "steered")
    groups = [read_numbers(text) for text in forget]
    if keep:
        kept = read_numbers(keep)
        count = len(run.load_model().prototypes.classes)
        if wrong := [number for number in kept if number >= count]:
            raise UserError(
                f"{run.folder} has no prototype {wrong[0]}: its prototypes are 0 to {count - 1}"
            )
        groups = [[number for number in range(count) if number not in kept]]
    if len(reasons) not in (1, len(groups)):
        raise UserError(
            f"expected one --reason, or one for each --forget, got {len(reasons)} for {len(groups)}"
        )
    said = reasons if len(reasons) == len(groups) else [*reasons] * len(groups)
    return {
        number: reason for numbers, reason in zip(groups, said, strict=True) for number in numbers
    }


def read_numbers(text: str) -> list[int]:
    """Prototypes' numbers from a text such as 3,7."""
    words = text.split(",")
    if wrong := [word for word in words if not re.fullmatch(r"\s*[0-9]{1,9}\s*", word)]:
        raise UserError(f"expected numbers of prototypes with commas between, got {wrong[0]!r}")
    return list(map(int, words))


def find_parent(run: Run) -> Run | None:
    """The run that one was steered from, if it is where it was: beside it, or committed."""
    described = run.manifest.get("steered_from")
    if not described:
        return None
    committed = paths.RESULTS / run.experiment.profile / "networks"
    for root in (run.folder.parent, paths.runs_root(), committed):
        folder = root / described["run"]
        if (folder / "manifest.json").is_file():
            parent = open_run(folder)
            if parent.manifest["weights_sha256"] == described["weights_sha256"]:
                return parent
    return None


def find_twins(parent: Run, removed: Sequence[dict]) -> list[tuple[int, int]]:
    """Forgotten prototypes and those that equal them and were kept, by their numbers before."""
    model = parent.load_model()
    first = pruning.find_duplicates(pruning.compared(model), model.prototypes.classes).tolist()
    gone = {one["prototype"] for one in removed}
    return [
        (number, twin)
        for number in sorted(gone)
        for twin, other in enumerate(first)
        if other == first[number] and twin not in gone
    ]


def as_text(run: Run) -> str:
    """What was forgotten and why, the accuracies before and after, and where the runs are."""
    manifest = run.manifest
    described, removed = manifest["steered_from"], manifest["removed"]
    lines = [f"forgotten {one['prototype']} of {one['class']}: {one['reason']}" for one in removed]
    trained = f", then {described['fine_tune']} epochs" if described["fine_tune"] else ""
    lines.append(derived.describe_change(manifest, f"forgotten: {len(removed)}{trained}"))
    parent = find_parent(run)
    for number, twin in find_twins(parent, removed) if parent else ():
        lines.append(f"warning: {twin} is still there and equals {number}: forget it, too")
    lines.append(f"to undo, use the run before: {parent.folder if parent else described['run']}")
    return "\n".join([*lines, str(run.folder)])
