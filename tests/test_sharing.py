"""`dpp export-maps`, `pack` and `unpack`: what they write, and how they refuse."""

import gzip
import json
import shutil
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch

from dpp import runs
from dpp.analysis import Network, explain
from dpp.data.batches import batches, make_loader
from dpp.runs import open_run
from dpp.sharing import packages, places
from dpp.system.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")


# Places


def test_table_has_every_image_and_prototype(dpp, trained, tmp_path):
    code, out, err = dpp("export-maps", trained.folder, "--out", tmp_path / "places.csv")
    assert code == 0, err
    table = pd.read_csv(tmp_path / "places.csv", dtype={"image": str})
    network, tested = Network.of(trained), trained.source.test
    assert len(table) == len(tested) * len(network.prototypes)
    assert f"{len(table):,} rows" in out
    assert set(table.image) == {record.id for record in tested}
    assert not table.isna().any(axis=None)


def test_rows_are_what_explanations_say(trained, tmp_path):
    network = Network.of(trained)
    dataset = runs.load_splits(trained.experiment, trained.source).test
    places.export_places(network, dataset, tmp_path / "all.csv.gz", progress=False)
    table = pd.read_csv(gzip.open(tmp_path / "all.csv.gz"), dtype={"image": str})
    table = table.set_index(["image", "prototype"])
    record = dataset.records[3]
    explanation = explain(network, network.picture(record))
    for scored in explanation.classes:
        for match in scored.matches:
            row = table.loc[record.id, match.prototype]
            assert row.similarity == pytest.approx(match.similarity, abs=2e-4)
            assert (row["row"], row["column"]) == match.centre
            assert row["class"] == network.source.class_names[match.label]
            assert row.predicted == network.source.class_names[explanation.predicted]
            shares = [row[f"part{part}_share"] for part in range(len(match.parts))]
            assert sum(shares) == pytest.approx(row.similarity, abs=1e-4)
            for number, part in enumerate(match.parts):
                box = [row[f"part{number}_{side}"] for side in ("left", "top", "right", "bottom")]
                np.testing.assert_allclose(box, part.box, atol=0.2)


def test_own_prototypes_only(trained, tmp_path):
    network = Network.of(trained)
    dataset = runs.load_splits(trained.experiment, trained.source).validation
    count = places.export_places(network, dataset, tmp_path / "own.csv", own=True, progress=False)
    table = pd.read_csv(tmp_path / "own.csv")
    assert len(table) == count == len(dataset) * trained.experiment.per_class
    assert (table.label == table["class"]).all()


def test_estimated_size_is_of_the_right_order(trained, tmp_path):
    network = Network.of(trained)
    dataset = runs.load_splits(trained.experiment, trained.source).test
    for name, least in {"places.csv": 0.5, "places.csv.gz": 0.05}.items():  # so few rows are alike
        path = tmp_path / name
        places.export_places(network, dataset, path, progress=False)
        expected = places.estimate_bytes(network, dataset, path, own=False)
        assert least < path.stat().st_size / expected < 1.6, name


def test_interrupted_table_leaves_nothing(trained, tmp_path, monkeypatch):
    network = Network.of(trained)
    dataset = runs.load_splits(trained.experiment, trained.source).test
    monkeypatch.setattr(type(network.model), "find_parts", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        places.export_places(network, dataset, tmp_path / "places.csv", progress=False)
    assert not any(tmp_path.iterdir())


def test_table_of_another_kind_is_refused(dpp, trained):
    code, _, err = dpp("export-maps", trained.folder, "--out", "places.xlsx")
    assert code == 2 and "places.xlsx: the table's name must end in .csv or .csv.gz" in err


# Packages


@pytest.mark.parametrize("name", ["network.zip", "network"])
def test_unpacked_run_has_the_same_logits(dpp, trained, tmp_path, name):
    code, out, err = dpp("pack", trained.folder, "--out", tmp_path / name)
    assert code == 0 and out.splitlines()[-1] == str(tmp_path / name), err
    code, out, err = dpp("unpack", tmp_path / name, "--root", tmp_path / "runs")
    assert code == 0, err
    run = open_run(tmp_path / "runs" / trained.folder.name)
    assert out.splitlines()[-1] == str(run.folder)
    images = next(batches(make_loader(runs.load_splits(run.experiment, run.source).test, 4))).images
    with torch.no_grad():
        assert run.load_model()(images).equal(trained.load_model()(images))
    assert run.origins == trained.origins
    assert packages.unpack(tmp_path / name, tmp_path / "runs").folder == run.folder  # again


def test_two_packages_of_a_run_are_equal(trained, tmp_path):
    one, other = (packages.pack(trained, tmp_path / name) for name in ("a.zip", "b.zip"))
    assert one.read_bytes() == other.read_bytes()


def test_card_has_front_matter_and_results(trained, tmp_path):
    folder = packages.pack(trained, tmp_path / "packed", "cc-by-nc-4.0")
    _, matter, text = (folder / "README.md").read_text().split("---\n", 2)
    pairs = dict(line.split(": ", 1) for line in matter.splitlines())
    assert json.loads(pairs["license"]) == "cc-by-nc-4.0"
    (model,) = json.loads(pairs["model-index"])
    value = model["results"][0]["metrics"][0]["value"]
    assert value == pytest.approx(trained.manifest["results"]["test_accuracy"], abs=1e-6)
    assert f"| test accuracy | {value:.4f} |" in text and "weights.safetensors" in text


def damage(archive, name: str, content: bytes) -> None:
    """Replaces a file of a zip archive, or adds one."""
    with zipfile.ZipFile(archive) as before:
        kept = {one: before.read(one) for one in before.namelist()}
    with zipfile.ZipFile(archive, "w") as after:
        for one, value in (kept | {name: content}).items():
            after.writestr(one, value)


@pytest.mark.parametrize(
    "name,content,message",
    [
        ("weights.safetensors", b"other", "weights.safetensors does not match its hash"),
        ("../escape", b"x", "'../escape' is missing or does not belong there"),
        ("more.py", b"x", "'more.py' is missing or does not belong there"),
        ("package.json", b"{", "its package.json cannot be read"),
        ("package.json", b"[]", "its package.json cannot be read"),
        ("package.json", b'{"format": 2, "run": "a", "files": {}}', "newer version"),
        ("package.json", b'{"format": 1, "run": "../a", "files": {}}', "does not describe a run"),
    ],
)
def test_damaged_package_is_refused_and_nothing_is_left(trained, tmp_path, name, content, message):
    archive = packages.pack(trained, tmp_path / "network.zip")
    damage(archive, name, content)
    with pytest.raises(UserError, match=message) as caught:
        packages.unpack(archive, tmp_path / "runs")
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 and then nothing"])
def test_what_is_no_zip_file_is_refused(tmp_path, content):
    (tmp_path / "network.zip").write_bytes(content)
    with pytest.raises(UserError, match="not a whole zip file"):
        packages.unpack(tmp_path / "network.zip", tmp_path / "runs")


def test_truncated_package_is_refused(trained, tmp_path):
    archive = packages.pack(trained, tmp_path / "network.zip")
    archive.write_bytes(archive.read_bytes()[:-500])
    with pytest.raises(UserError, match="not a whole zip file"):
        packages.unpack(archive, tmp_path / "runs")


def test_another_run_of_that_name_stays(trained, tmp_path):
    archive = packages.pack(trained, tmp_path / "network.zip")
    there = tmp_path / "runs" / trained.folder.name
    there.mkdir(parents=True)
    (there / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match="exists and holds another run"):
        packages.unpack(archive, tmp_path / "runs")
    assert (there / "manifest.json").read_text() == "{}"


def test_damaged_run_is_not_packed(trained, tmp_path):
    copy = shutil.copytree(trained.folder, tmp_path / trained.folder.name)
    (copy / "metrics.csv").write_text("stage\n")
    with pytest.raises(UserError, match="metrics.csv was changed or damaged"):
        packages.pack(open_run(copy), tmp_path / "network.zip")
    assert not (tmp_path / "network.zip").exists()


def test_package_that_exists_stays(dpp, trained, tmp_path):
    (tmp_path / "network.zip").write_text("mine")
    code, _, err = dpp("pack", trained.folder, "--out", tmp_path / "network.zip")
    assert code == 2 and "network.zip exists already" in err
    assert (tmp_path / "network.zip").read_text() == "mine"
