"""`dpp cache`: what is kept is listed, verified and removed."""

import sys

import numpy as np
import pytest
from tiny_data import write_cub

from dpp import __main__ as command_line
from dpp import data
from dpp.data import caches
from dpp.data.batches import make_splits
from dpp.data.feature_store import FeatureStore
from dpp.system.errors import UserError


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A data root with resized images, a complete store, and one that was stopped."""
    monkeypatch.setenv("DPP_DATA", str(tmp_path))
    make_splits(data.read_cub(write_cub(tmp_path / "birds")), 16)
    trunk = tmp_path / "cache" / "trunk"

    def compute(rows):
        if rows.start:
            raise KeyboardInterrupt
        return np.zeros((len(rows), 5))

    store = FeatureStore(trunk, "whole", {}, 60, (5,), what="resnet18 up to layer3: 60 images")
    store.build(compute)
    with pytest.raises(KeyboardInterrupt, match="run the same command to resume"):
        FeatureStore(trunk, "half", {}, 128, (5,), what="resnet18: 128 images").build(compute)
    return store


def run(*arguments, monkeypatch) -> int:
    monkeypatch.setattr(sys, "argv", ["dpp", "cache", *arguments])
    return command_line.main()


def test_caches_are_listed_with_what_they_are(kept, capsys, monkeypatch):
    assert run(monkeypatch=monkeypatch) == 0
    said = capsys.readouterr().out
    assert "resized images, 16 px" in said and "resnet18 up to layer3: 60 images" in said
    assert "50% done: the command that was stopped resumes it" in said and "GB in all" in said


def test_cache_is_removed_by_name_or_all(kept, capsys, monkeypatch):
    assert run("--remove", kept.folder.name, monkeypatch=monkeypatch) == 0
    assert not kept.folder.exists() and len(caches.find_caches()) == 2
    assert run("--remove", "all", monkeypatch=monkeypatch) == 0
    assert caches.find_caches() == []
    with pytest.raises(UserError, match="there is no cache 'nonsense': choose all or one of none"):
        caches.remove("nonsense")


def test_damage_is_found_by_verifying(kept, capsys, monkeypatch):
    assert run("--verify", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out.count("all of it matches its hashes") == 2
    path = kept.folder / "features.bin"
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    assert run("--verify", monkeypatch=monkeypatch) == 1
    assert f'damaged: run "dpp cache --remove {kept.folder.name}' in capsys.readouterr().out


@pytest.mark.parametrize("name", ["pixels.bin", "about.json"])
def test_damaged_pixels_are_found_by_verifying(kept, tmp_path, name):
    [path] = (tmp_path / "cache").glob(f"16px-*/{name}")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert [line for line in caches.verify() if "damaged" in line and path.parent.name in line]
