"""Reads and writes the files of finished runs: the only place that does.

A manifest has the SHA-256 of every other file of its run, and of itself without it, under `files`
(`familiarity.json`, which can be made again, has its own).
Manifests of earlier versions have those of `experiment.json` and `weights.safetensors` alone; such
runs open as ever, and `uncovered` names what nothing vouches for. What is read is checked: a
damaged, missing or wrong file is a `UserError` that names it.
"""

import io
import json
import math
from collections.abc import Callable
from dataclasses import fields
from numbers import Real
from pathlib import Path

import pandas as pd

from dpp.system import files
from dpp.system.errors import UserError, one_line
from dpp.training.experiments import Experiment
from dpp.training.projection import Origin

MANIFEST = "manifest.json"
COVERED = ("experiment.json", "metrics.csv", "prototypes.json", "weights.safetensors")
CHANGED = "was changed or damaged: it does not match the hash in manifest.json"
REMEDY = "restore the run's folder, or remove it and train again"
TEXTS = ("stage", "phase", "converged")  # columns of metrics.csv that are not numbers


class Manifest(dict):
    """A manifest, which names what it has not."""

    def __init__(self, content: dict, path: Path):
        super().__init__(content)
        self.path = path

    def __missing__(self, key: str):
        raise UserError(f"{self.path} has no {key}: {REMEDY}")


def write_manifest(folder: Path, content: dict) -> None:
    """Writes the manifest of a run whose other files are there: it vouches for them."""
    there = [name for name in COVERED if (folder / name).is_file()]
    content = content | {"files": {name: files.sha256(folder / name) for name in there}}
    content["files"][MANIFEST] = _own_digest(content)
    files.write_json(folder / MANIFEST, content)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a run; entries that it has are of the right kind."""
    path = folder / MANIFEST
    content = files.read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it holds no entries: {REMEDY}")
    for name, (is_right, kind) in KINDS.items():
        if name in content and not is_right(content[name]):
            raise UserError(f"{path} is damaged: its {name} should be {kind}: {REMEDY}")
    if MANIFEST in content.get("files", {}) and content["files"][MANIFEST] != _own_digest(content):
        raise UserError(f"{path} was changed or damaged: it does not match its own hash: {REMEDY}")
    return Manifest(content, path)


def _own_digest(manifest: dict) -> str:
    """The SHA-256 of a manifest without this hash."""
    others = {name: value for name, value in manifest["files"].items() if name != MANIFEST}
    return files.sha256_of_json(manifest | {"files": others})


def covered(manifest: Manifest) -> dict[str, str | None]:
    """The hashes of the files that a manifest vouches for."""
    if "files" in manifest:
        return {name: value for name, value in manifest["files"].items() if name != MANIFEST}
    names = ("experiment.json", "weights.safetensors")
    return {name: manifest.get(f"{Path(name).stem}_sha256") for name in names}


def uncovered(folder: Path) -> list[str]:
    """The files of a run that its manifest, of an earlier version, has no hash of."""
    known = covered(read_manifest(folder))
    return [name for name in COVERED if name not in known and (folder / name).is_file()]


def read(folder: Path, name: str) -> bytes:
    """The content of a run's file, as its manifest has it."""
    known = covered(read_manifest(folder))
    if not (folder / name).is_file():
        raise UserError(f"{folder / name} is missing: {REMEDY}")
    content = files.read_file(folder / name)
    if name in known and files.sha256_of_bytes(content) != known[name]:
        raise UserError(f"{folder / name} {CHANGED}")
    return content


def verify(folder: Path) -> None:
    """Raises a `UserError` if a file that the manifest vouches for is missing or damaged."""
    for name, known in covered(read_manifest(folder)).items():
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is missing: {REMEDY}")
        if files.sha256(folder / name) != known:
            raise UserError(f"{folder / name} {CHANGED}")


def read_experiment(folder: Path) -> Experiment:
    """What a run was made from."""
    path, described = folder / "experiment.json", _parsed(folder, "experiment.json")
    if not isinstance(described, dict):
        raise UserError(f"{path} is damaged: it holds no fields: {REMEDY}")
    known = {entry.name for entry in fields(Experiment)}
    if unknown := sorted(set(described) - known):
        raise UserError(
            f"{path} was written by a newer version of dpp: it has the field {unknown[0]!r}, which "
            "this version does not know: update dpp"
        )
    try:
        return Experiment(**described)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def read_metrics(folder: Path) -> pd.DataFrame:
    """A row for each epoch and each later stage."""
    path, content = folder / "metrics.csv", read(folder, "metrics.csv")
    try:
        table = pd.read_csv(io.BytesIO(content))
    except ValueError as error:
        raise UserError(f"{path} is damaged, or is not a table: {one_line(error)}") from error
    if not {"stage", "epoch", "seconds"} <= set(table) or table.empty:
        raise UserError(f"{path} is damaged: it has no stage, epoch or seconds: {REMEDY}")
    numbers = [name for name in table.columns if name not in TEXTS]
    if wrong := [name for name in numbers if not pd.api.types.is_numeric_dtype(table[name])]:
        raise UserError(f"{path} is damaged: its column {wrong[0]} has other than numbers")
    return table


def read_origins(folder: Path) -> list[dict]:
    """Where each prototype comes from (see `projection.Origin`)."""
    path, origins = folder / "prototypes.json", _parsed(folder, "prototypes.json")
    listed = isinstance(origins, list) and all(isinstance(one, dict) for one in origins)
    names = {entry.name for entry in fields(Origin)}
    if not listed or any(set(one) != names for one in origins):
        raise UserError(f"{path} is damaged: it does not list {', '.join(sorted(names))}")
    for one in origins:
        if wrong := [name for name, is_right in ORIGIN.items() if not is_right(one[name])]:
            raise UserError(f"{path} is damaged: it has a {wrong[0]} of {one[wrong[0]]!r}")
    return origins


def _parsed(folder: Path, name: str):
    try:
        return json.loads(read(folder, name))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{folder / name} is damaged, or is not JSON: {error}") from error


# ---- What is right


def is_text(value) -> bool:
    return isinstance(value, str)


def is_count(value) -> bool:
    return type(value) is int and value >= 0


def is_number(value) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def is_place(value) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value))


def each(is_right: Callable, kind: type = list) -> Callable:
    """Whether a list or the values of a dictionary are right."""

    def check(value) -> bool:
        values = value.values() if isinstance(value, dict) else value
        return isinstance(value, kind) and all(map(is_right, values))

    return check


KINDS = {  # of a manifest's entries
    "results": (each(is_number, dict), "numbers by name"),
    "seconds": (is_number, "a number"),
    "classes": (is_count, "a number"),
    "images": (each(is_count, dict), "numbers by name"),
    "kept": (each(is_count), "numbers"),
    "removed": (each(each(lambda value: True, dict)), "entries"),
    "before": (each(is_number, dict), "numbers by name"),
    "pruned_from": (each(lambda value: True, dict), "entries"),
    "imported_from": (each(lambda value: True, dict), "entries"),
    "steered_from": (each(lambda value: True, dict), "entries"),
    "steps": (each(each(lambda value: True, dict)), "entries"),
    "files": (each(is_text, dict), "hashes by name"),
} | {
    name: (is_text, "a text")
    for name in ("run", "pretrained", "pretrained_file", "pretrained_sha256", "weights_sha256")
    + ("experiment_sha256", "commit", "device", "operator", "torch")
}
ORIGIN = {
    "prototype": is_count,
    "label": is_count,
    "image": is_text,
    "sha256": is_text,
    "similarity": is_number,
    "cells": is_place,
    "centre": is_place,
    "parts": each(is_place),
}
