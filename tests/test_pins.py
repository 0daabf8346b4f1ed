"""The lock, the conda file and the package's own metadata must name the same versions."""

import re
import tomllib
from importlib import metadata

import yaml

from dpp import __version__
from dpp.system.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)")


def pins(lines) -> dict[str, str]:
    """Package -> version; a line without an exact pin is left out."""
    matches = (PIN.match(line.strip()) for line in lines)
    return {match[1].lower().replace("_", "-"): match[2] for match in matches if match}


LOCK = pins((ROOT / "requirements.txt").read_text().splitlines())
DIRECT = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]


CLUSTER = PROJECT["optional-dependencies"]["cluster"]


def conda_pip_lines() -> list[str]:
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    return next(entry["pip"] for entry in entries if isinstance(entry, dict))


def test_every_direct_dependency_is_pinned_exactly():
    assert len(pins(DIRECT)) == len(DIRECT)


def test_lock_holds_every_direct_dependency_at_its_version():
    assert pins(DIRECT).items() <= LOCK.items()


def test_conda_file_names_the_same_versions():
    assert pins(conda_pip_lines()) == pins(DIRECT)


def test_lock_pins_every_line():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert len(LOCK) == sum(not line.startswith("#") for line in lines)


def test_cluster_extra_is_pinned_beside_the_lock_which_has_what_else_it_needs():
    assert len(pins(CLUSTER)) == len(CLUSTER) and not pins(CLUSTER).keys() & LOCK.keys()
    needs = ("click", "filelock", "jsonschema", "packaging", "protobuf", "pyyaml", "requests")
    assert set(needs) <= LOCK.keys()
    assert f"ray=={pins(CLUSTER)['ray']}" in (ROOT / "docs" / "cluster.md").read_text()


def test_citation_carries_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert citation["preferred-citation"]["title"].startswith("Deformable ProtoPNet")


def test_installed_versions_are_the_locked_ones():
    installed = {name: metadata.version(name) for name in pins(DIRECT)}
    assert {name: version.partition("+")[0] for name, version in installed.items()} == pins(DIRECT)
