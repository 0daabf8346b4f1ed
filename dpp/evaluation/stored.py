"""The file of an evaluation, to which families of measures are added one by one."""

import math
import sys
from pathlib import Path

from dpp.evaluation.scores import Score
from dpp.system import files
from dpp.system.errors import UserError

FILE = "evaluation.json"
FORMAT = 1
# What families must agree in to stand in one file; not the run's name: folders are renamed
SHARED = ("format", "weights_sha256", "seed", "images_per_class", "images", "size")


def as_entry(score: Score) -> dict:
    """A score as JSON has it: null for NaN."""
    fields = score._asdict().items()
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in fields}


def from_entry(entry: dict) -> Score:
    """Undoes `as_entry`."""
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
        known = content["format"] == FORMAT and {"run", *SHARED} <= content.keys()
        timed = content["seconds"].keys() >= set(content["scores"])
        counted = all(isinstance(number, (int, float)) for number in numbers)
        return content if known and timed and counted else {}
    except (UserError, KeyError, TypeError, AttributeError):
        return {}


def fits(content: dict, about: dict) -> bool:
    """Whether a stored evaluation is of the same network, images and seed as another."""
    return bool(content) and all(content[name] == about[name] for name in SHARED)


def open_for(path: Path, about: dict) -> dict:
    """What a file has already of an evaluation, before hours are spent on the rest.

    Args:
        path: of the file, which need not be there.
        about: the evaluation, `SHARED` and its `run`.

    Returns:
        The stored evaluation; empty if there is none, or one of weights that the run had before.

    Raises:
        UserError: the file cannot be written, or has something else that would be lost.
    """
    advice = "name another file with --out"
    files.check_writable(path)
    content = read(path)
    if path.exists() and not content:
        if path.name != FILE:
            raise UserError(f"{path} is there already and is no evaluation: {advice}")
        print(f"{path} is damaged, or of another version: measuring again", file=sys.stderr)
    if not content or fits(content, about):
        return content
    if content["weights_sha256"] != about["weights_sha256"]:
        if content["run"] != about["run"]:
            raise UserError(f"{path} is the evaluation of {content['run']}: {advice}")
        return {}
    for name, told in (("seed", "seed {}"), ("images_per_class", "{} images of each class")):
        if (stored := content[name]) != about[name]:
            what = told.format("all" if stored is None else stored)
            raise UserError(f"{path} is of {what}: {advice}, or remove it")
    return {}


def add(path: Path, about: dict, family: str, scores: list[Score], seconds: float) -> dict:
    """Adds a family to a file; another process may have added others.

    Returns:
        The whole evaluation, as it is stored.
    """
    with files.locked(path.parent):
        before = read(path)
        if not fits(before, about):
            before = {"seconds": {}, "scores": {}}
        content = about | {
            "seconds": before["seconds"] | {family: round(seconds, 1)},
            "scores": before["scores"] | {family: [as_entry(score) for score in scores]},
        }
        files.write_json(path, content)
    return content
