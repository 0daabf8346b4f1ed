"""Disks that are full or read-only, from the beginning or from some moment on."""

import os
import resource
from pathlib import Path

import victims
from lab import Lab, contents, expect_clean, expect_same, facts, mount, weights_of
from started import Broken, Started

from dpp.runs import checkpoints, run_files
from dpp.system import files
from dpp.system.errors import UserError

LARGE = 2 * 10**8  # bytes: enough for everything
NO_MOUNTS = "not tried: this user may not mount"


def attack_file_limit(lab: Lab) -> str:
    """A disk that is full in the middle of a write leaves what was there."""
    room = lab.room()
    files.write_json(room / "file.json", {"old": 1})
    state = checkpoints.save_state(room, 1, {"old": list(range(100))})
    run = lab.copy_run(room)
    most = lab.chance.randrange(0, 3000)
    child = os.fork()
    if child == 0:  # a limit cannot be had back
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        os._exit(write_too_much(room, run.folder))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise Broken(f"a full disk was not refused as it should be ({code})")
    expect_same(files.read_json(room / "file.json"), {"old": 1}, "a file on a full disk")
    expect_same(checkpoints.find_states(room), [state], "states on a full disk")
    run.verify()
    expect_clean(room)
    return "refused"


def write_too_much(room: Path, run: Path) -> int:
    large = {"text": "x" * 5000}
    writes = [
        lambda: files.write_json(room / "file.json", large),
        lambda: checkpoints.save_state(room, 2, large),
        lambda: run_files.write_manifest(run, large),
    ]
    for number, write in enumerate(writes, start=1):
        try:
            write()
            return number  # it fitted
        except UserError:
            continue
        except BaseException:
            return 10 + number
    return 0


def attack_full_disk(lab: Lab) -> str:
    """Caches and drawings on a disk that is too small are refused, and made once there is room."""
    if not lab.can_mount:
        return NO_MOUNTS
    what = lab.chance.choice(["pixels", "features", "drawing"])
    size = lab.chance.randrange(4096, {"pixels": 10**6, "features": 3 * 10**5}.get(what, 10**6))
    with lab.disk(size) as disk:
        if what == "pixels":
            words = (str(lab.images), str(disk), "100")
        else:
            words = (str(disk), "2")[: 1 + (what == "drawing")]
        said = expect_refused(lab.start(what, *words))
        mount("mount", "-o", f"remount,size={LARGE}", str(disk))
        made, known = getattr(victims, what)(*words), lab.made[what]
        expect_same(contents(made) if what == "drawing" else made, known, f"{what} after {said}")
        expect_clean(disk)
    return f"{what} {said}"


def attack_full_training(lab: Lab) -> str:
    """Training on a disk that is or becomes full is refused, and resumed once there is room."""
    if not lab.can_mount:
        return NO_MOUNTS
    later = lab.chance.random() < 0.5
    with lab.disk(LARGE if later else lab.chance.randrange(4096, 25 * 10**6)) as disk:
        root, changes = disk / "runs", {}
        if lab.chance.random() < 0.5:
            changes["DPP_DATA"] = str(disk / "data")
        started = lab.train(root, **changes)
        if later:
            started.wait_until(lambda: any(root.glob("*/metrics.csv")))
            fill(disk / "filling")
        said = expect_refused(started)
        (disk / "filling").unlink(missing_ok=True)
        mount("mount", "-o", f"remount,size={LARGE}", str(disk))
        lab.train(root, **changes).finish()
        expect_same(weights_of(root), lab.weights, "a run after a full disk")
        expect_clean(disk)
    return f"{'later' if later else 'at once'}: {said}"


def attack_read_only(lab: Lab) -> str:
    """On a read-only disk a finished run can be read, and anything else is refused."""
    if not lab.can_mount:
        return NO_MOUNTS
    what = lab.chance.choice(["run", "train", "pixels", "features", "drawing"])
    with lab.disk(LARGE) as disk:
        run = lab.copy_run(disk)
        mount("mount", "-o", "remount,ro", str(disk))
        if what == "run":
            expect_same(facts(run), lab.known, "a run on a read-only disk")
            said = expect_refused(lab.train(disk))
            if said != "fitted":
                raise Broken("a finished run on a read-only disk was not found")
        elif what == "train":
            changes = lab.chance.choice([{}, {"DPP_DATA": str(disk / "data")}])
            said = expect_refused(lab.train(disk / "runs", **changes))
        else:
            words = {"pixels": [str(lab.images), str(disk), "100"], "drawing": [str(disk), "2"]}
            said = expect_refused(lab.start(what, *words.get(what, [str(disk)])))
        if what != "run" and said == "fitted":
            raise Broken(f"{what} on a read-only disk was not refused")
    return f"{what} {said}"


def expect_refused(started: Started) -> str:
    """The outcome of a command that may find no room: refused in one line, or it fitted."""
    said = started.end()
    if started.code == 0:
        return "fitted"
    lines = said.replace("\r", "\n").strip().splitlines()
    if started.code not in (1, 2) or not lines or not lines[-1].startswith(("dpp: ", "refused: ")):
        raise Broken(f"code {started.code}: {said[-300:]!r}")
    return "refused"


def fill(path: Path) -> None:
    """Fills the disk to the last byte."""
    with path.open("wb", buffering=0) as file:
        for size in (10**6, 4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
