"""Ways to damage a file, and attacks on every file that is read."""

import json
import shutil
import warnings
from pathlib import Path
from random import Random

import numpy as np
from lab import Lab, expect_clean, expect_same, facts, refused
from started import Broken
from tiny_data import write_cub

from dpp import data
from dpp.data import feature_store, folder_digest
from dpp.data.feature_store import FeatureStore
from dpp.report import run_report
from dpp.runs import checkpoints, familiarity, records
from dpp.system import paths
from dpp.system.errors import UserError

JSONS = ["{}", "[]", "null", "7", '"text"', "[[[[", '{"a": [1]}', "NaN", "[" * 100_000, "[7]"]
TABLES = ["", "a,b\n1,2\n", '"', "run\n", "stage,epoch,seconds\nx,y,z\n", "\0", ",,,\n,,\n"]


def damage(path: Path, chance: Random) -> str:
    """Damages a file in one of many ways; returns which."""
    content = path.read_bytes()
    kinds = ["flip", "cut", "empty", "missing", "noise", "wrong kind", "twice", "folder", "edit"]
    kind = chance.choice(kinds)
    place = chance.randrange(len(content) or 1)
    if kind in ("missing", "folder"):
        path.unlink()
        if kind == "folder":
            path.mkdir()
    elif kind == "flip" and content:
        changed = bytearray(content)
        changed[place] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
    elif kind == "cut":
        path.write_bytes(content[:place])
    elif kind == "noise":
        path.write_bytes(chance.randbytes(chance.randrange(1, 5000)))
    elif kind == "twice":
        path.write_bytes(content + content)
    elif kind == "wrong kind":
        path.write_text(chance.choice(JSONS + TABLES))
    elif kind == "edit":
        path.write_bytes(edit(content, chance))
    else:
        path.write_bytes(b"")
    return kind


def edit(content: bytes, chance: Random) -> bytes:
    """Valid JSON with one value of another kind; a digit of anything else changed."""
    try:
        value = json.loads(content)
    except ValueError:
        digits = [place for place, byte in enumerate(content) if chr(byte).isdigit()]
        if not digits:
            return content + b"7"
        place = chance.choice(digits)
        return content[:place] + chance.choice(b"0123456789x").to_bytes() + content[place + 1 :]
    inner = value
    while isinstance(inner, dict | list) and inner:
        key = chance.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
        if not isinstance(inner[key], dict | list) or not inner[key] or chance.random() < 0.3:
            inner[key] = chance.choice([None, "x", -1, 7, [], {}, 1e300, True, inner[key]])
            break
        inner = inner[key]
    return json.dumps(value).encode()


def attack_run_files(lab: Lab) -> str:
    """A damaged file of a run is refused, or was not needed."""
    room = lab.room()
    run = lab.copy_run(room)
    path = lab.chance.choice([path for path in run.folder.iterdir() if path.name[0] != "."])
    kind = damage(path, lab.chance)
    try:
        expect_same(facts(run), lab.known, f"{path.name}, {kind}")
        run_report.describe(run)
        known = familiarity.find(run)
        if known and known != familiarity.find(lab.run):
            raise Broken(f"silently wrong: {path.name}, {kind}")
    except UserError as error:
        return refused(error)
    return "harmless"


def attack_pixels(lab: Lab) -> str:
    """Damaged pixels are decoded again."""
    room = lab.room()
    shutil.copytree(lab.home / "cache", room / "cache")
    path = lab.chance.choice([path for path in (room / "cache").rglob("*") if path.is_file()])
    kind = damage(path, lab.chance)
    try:
        pixels, _ = lab.store(room / "cache").get(lab.source.records)
    except UserError as error:
        return refused(error)
    expect_same(pixels, lab.pixels, f"pixels, {path.name}, {kind}")
    expect_clean(room)
    return "repaired"


def attack_features(lab: Lab) -> str:
    """Damaged trunk features are computed again."""
    room, chunk = lab.room(), feature_store.CHUNK
    feature_store.CHUNK = 7

    def compute(rows: range) -> np.ndarray:
        return np.array([[row, row + 0.5] for row in rows], np.float32)

    try:
        FeatureStore(room, "some", {}, 40, (2,), "float32").build(compute)
        [folder] = room.glob("some-*")
        path = lab.chance.choice([path for path in folder.iterdir() if path.is_file()])
        kind = damage(path, lab.chance)
        store = FeatureStore(room, "some", {}, 40, (2,), "float32")
        if store.open():
            store.build(compute)
        expect_same(store.get(range(40)), compute(range(40)), f"features, {path.name}, {kind}")
    except UserError as error:
        return refused(error)
    finally:
        feature_store.CHUNK = chunk
    expect_clean(room)
    return "repaired"


def attack_hashes(lab: Lab) -> str:
    """Damaged hashes of a folder's files are computed again; the run's name stays."""
    known = folder_digest.folder_digest(lab.images)
    kept = lab.chance.choice(list((paths.data_root() / "cache" / "hashes").glob("*.json")))
    damage(kept, lab.chance)
    folder_digest._digest.cache_clear()
    try:
        expect_same(folder_digest.folder_digest(lab.images), known, "identity of a folder")
    finally:
        shutil.rmtree(kept) if kept.is_dir() else kept.unlink(missing_ok=True)
        folder_digest._digest.cache_clear()
        folder_digest.folder_digest(lab.images)
    return "repaired"


def attack_exchange(lab: Lab) -> str:
    """Two images that change places are another data set."""
    room = lab.room()
    folder = shutil.copytree(lab.images, room / "images")
    known = folder_digest.folder_digest(folder)
    one, other = lab.chance.sample(sorted(folder.rglob("*.png")), 2)
    contents = one.read_bytes(), other.read_bytes()
    other.write_bytes(contents[0])
    one.write_bytes(contents[1])
    if folder_digest.folder_digest(folder) == known:
        raise Broken("silently wrong: exchanged images have the same identity")
    return "noticed"


def attack_states(lab: Lab) -> str:
    """A damaged resume state is never resumed from."""
    room = lab.room()
    for step in (1, 2):
        checkpoints.save_state(room, step, {"step": step, "numbers": list(range(1000))})
    path = lab.chance.choice(checkpoints.find_states(room))
    damage(path, lab.chance)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = checkpoints.latest_state(room)
    except UserError as error:
        return refused(error)
    if state is not None:
        expect_same(state["numbers"], list(range(1000)), "a state")
    return "the other was used"


def attack_records(lab: Lab) -> str:
    """A damaged table of records is refused, or says the same."""
    records.store(lab.run)
    folder = paths.results("smoke")
    known = records.stored(lab.run.experiment)
    path = folder / lab.chance.choice([records.RUNS, records.EPOCHS])
    whole = path.read_bytes()
    kind = damage(path, lab.chance)
    try:
        found = records.stored(lab.run.experiment)
        if found:  # a number that is another number cannot be told
            for name in ("seconds", "test_accuracy", "seed"):
                float(found.summary[name])
        return "read" if found and found.summary == known.summary else f"read, {kind}"
    except UserError as error:
        return refused(error)
    finally:
        shutil.rmtree(path) if path.is_dir() else None
        path.write_bytes(whole)


def attack_lists(lab: Lab) -> str:
    """Damaged lists of a data set are refused or read."""
    root = write_cub(lab.room() / "cub")
    damage(lab.chance.choice(sorted(root.rglob("*.txt"))), lab.chance)
    try:
        data.read_cub(root)
    except UserError as error:
        return refused(error)
    return "read"
