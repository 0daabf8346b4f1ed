"""The file of an evaluation, to which families of measures are added one by one."""

import math
import sys
from pathlib import Path
from types import NoneType

from dpp.evaluation.scores import Score
from dpp.system import files
from dpp.system.errors import UserError

FILE = "evaluation.json"
FORMAT = 1
FIELDS = {  # of an evaluation, and their types
    "format": int,
    "run": str,
    "model": str,
    "weights_sha256": str,
    "seed": int,
    "images_per_class": (int, NoneType),
    "images": dict,
    "size": int,
    "seconds": dict,
    "scores": dict,
}
# What families must agree in to stand in one file; not the run's name: folders are renamed
SHARED = ("seed", "images_per_class", "images", "size")


def as_entry(score: Score) -> dict:
    """A score as JSON has it: null for NaN, and for what divided by zero."""
    fields = score._asdict().items()
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields}


def from_entry(entry: dict) -> Score:
    """Undoes `as_entry`."""
    if any(isinstance(v, (int, float)) and not math.isfinite(v) for v in entry.values()):
        raise TypeError("a number of a score is not finite")
    score = Score(**{k: math.nan if v is None else v for k, v in entry.items()})
    for value, default in zip(score, Score(""), strict=True):
        if not isinstance(value, (int, float) if isinstance(default, float) else str):
            raise TypeError(f"{value!r} is no value of a score")
    return score


def scores_of(content: dict) -> list[Score]:
    """All scores of an evaluation, in the order of their families."""
    return [from_entry(entry) for entries in content["scores"].values() for entry in entries]


def read(path: Path) -> dict:
    """A stored evaluation; empty if there is none, or none of this version that can be read."""
    if not path.is_file():
        return {}
    try:
        content = files.read_json(path)
        scores_of(content)
        numbers = [*content["seconds"].values(), *content["images"].values()]
        typed = all(isinstance(content[name], kind) for name, kind in FIELDS.items())
        timed = content["seconds"].keys() == content["scores"].keys()
        whole = all(content["scores"].values())
        counted = all(isinstance(number, (int, float)) for number in numbers)
        known = content["format"] == FORMAT
        return content if known and typed and timed and whole and counted else {}
    except (UserError, KeyError, TypeError, AttributeError, OverflowError):
        return {}


def find(path: Path, about: dict, own: bool) -> dict:
    """What a file has of an evaluation.

    Args:
        path: of the file, which need not be there.
        about: the evaluation: `FIELDS` without seconds and scores.
        own: whether it is the run's own file, which is made anew if it is damaged, or of weights
            that the run had before.

    Returns:
        The stored evaluation; empty if there is none that can be added to.

    Raises:
        UserError: the file has something else, which would be lost.
    """
    content, advice = read(path), "name another file with --out"
    if not content:
        if path.is_file() and not own:
            raise UserError(f"{path} is there already and is no evaluation: {advice}")
        return {}
    if content["weights_sha256"] != about["weights_sha256"]:
        if own:
            return {}
        raise UserError(f"{path} is of another network ({content['run']}): {advice}")
    for name in SHARED:
        if content[name] != about[name]:
            raise UserError(f"{path} is of {_describe(name, content)}: {advice}, or remove it")
    return content


def add(path: Path, about: dict, family: str, scores: list[Score], seconds: float, own: bool):
    """Adds a family to a file; another process may have added others.

    A run's own file that cannot be added to is set aside, with a message.

    Args:
        path, about, own: see `find`.
        family: its name.
        scores: of the family, measured in so many `seconds`.

    Returns:
        The whole evaluation, as it is stored.
    """
    waiting = f"another process is writing to {path.parent}: waiting for it"
    with files.locked(path.parent, waiting=waiting):
        before = find(path, about, own)
        if path.is_file() and not before:
            aside = path.replace(path.with_suffix(".before.json"))
            what = f"{path} is damaged, of other weights or of another version"
            print(f"{what}: set aside as {aside.name}", file=sys.stderr)
        before = before or {"seconds": {}, "scores": {}}
        content = about | {
            "seconds": before["seconds"] | {family: round(seconds, 1)},
            "scores": before["scores"] | {family: [as_entry(score) for score in scores]},
        }
        files.write_json(path, content)
    return content


def _describe(name: str, content: dict) -> str:
    """What an evaluation differs in, in words."""
    value = content[name]
    if name == "images":
        return f"{value.get('training')} training and {value.get('test')} test images"
    if name == "images_per_class":
        return f"{'all' if value is None else value} images of each class"
    return f"images of {value} pixels" if name == "size" else f"{name} {value}"
