"""Kills and signals: nothing is lost, nobody is left behind, and the weights are the same."""

import signal
import zipfile
from pathlib import Path

import victims
from lab import Lab, contents, expect_clean, expect_same, facts, size, weights_of
from started import Broken

from dpp import runs

RESUME = "run the same command to resume"


def attack_training(lab: Lab) -> str:
    """Training that is killed at random moments ends in the same weights."""
    room, kills = lab.room(), lab.chance.randrange(1, 3)
    folder = room / lab.run.folder.name
    for _ in range(kills):
        started = lab.train(room)
        seen = size(folder / "metrics.csv")
        if lab.chance.random() < 0.7:
            started.wait_until(lambda seen=seen: size(folder / "metrics.csv") > seen)
        started.pause(lab.chance.uniform(0, 1))
        started.end(signal.SIGKILL, group=lab.chance.random() < 0.5)
    lab.train(room).finish()
    expect_same(facts(runs.Run(lab.experiment, folder)), lab.known, "a resumed run")
    expect_clean(room)
    return f"{kills} kills, the same weights"


def attack_group(lab: Lab) -> str:
    """A signal to the whole group saves, also with workers; the run is resumed."""
    room, workers = lab.room(), lab.chance.choice([0, 2])
    number = lab.chance.choice([signal.SIGTERM, signal.SIGINT])
    folder = room / lab.run.folder.name
    started = lab.train(room, "--workers", str(workers))
    started.wait_until(lambda: any(folder.glob("state-*.pt")))
    said = started.end(number, group=True)
    if started.code not in (0, 128 + number) or started.code and RESUME not in said:
        raise Broken(f"{signal.Signals(number).name}: code {started.code}, {said[-200:]!r}")
    lab.train(room).finish()
    expect_same(weights_of(room), lab.weights, "a resumed run")
    expect_clean(room)
    return f"{signal.Signals(number).name}, {workers} workers"


def attack_queue(lab: Lab) -> str:
    """A killed or stopped queue of runs leaves no worker, and the same command finishes it."""
    room, jobs = lab.room(), lab.chance.choice("12")
    number = lab.chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
    started = lab.queue(room / "runs", jobs)
    started.wait_until(lambda: any(room.glob("runs/*/metrics.csv")))
    started.pause(lab.chance.uniform(0, 2))
    said = started.end(number, group=number != signal.SIGKILL and lab.chance.random() < 0.5)
    # When its last run is made, a queue no longer handles signals: there is nothing left to save.
    fine = {0, 130} | ({-number} if "[2/2]" in said else set())
    if number != signal.SIGKILL and started.code not in fine:
        raise Broken(f"SIGTERM: code {started.code}, {said[-200:]!r}")
    lab.queue(room / "runs", "1").finish()
    expect_same(weights_of(room / "runs"), lab.queued, "a queue's runs")
    expect_clean(room)
    return f"{signal.Signals(number).name}, {jobs} jobs"


def attack_two_queues(lab: Lab) -> str:
    """Two queues of the same runs, one of which is killed: the other makes what is left."""
    room = lab.room()
    one = lab.queue(room / "runs", "1")
    one.wait_until(lambda: any(room.glob("runs/*/.lock")))
    other = lab.queue(room / "runs", "1")
    one.pause(lab.chance.uniform(0, 8))
    one.end(signal.SIGKILL)
    other.finish()
    expect_same(weights_of(room / "runs"), lab.queued, "a queue's runs")
    expect_clean(room)
    return "finished by the other"


def attack_pixel_cache(lab: Lab) -> str:
    """A kill while images are decoded leaves a cache that is whole or absent."""
    room = lab.room()
    started = lab.start("pixels", str(lab.images), str(room), "16")
    started.pause(lab.chance.uniform(0, 0.3))
    started.end(signal.SIGKILL)
    expect_same(victims.pixels(str(lab.images), str(room), "16"), lab.pixels, "pixels after a kill")
    expect_clean(room)
    return "killed" if started.code else "too late"


def attack_feature_cache(lab: Lab) -> str:
    """A kill while a trunk's features are computed: the next one resumes."""
    room = lab.room()
    started = lab.start("features", str(room))
    started.pause(lab.chance.uniform(0, 0.4))
    started.end(signal.SIGKILL)
    known = lab.made["features"]
    expect_same(victims.features(str(room)), known, "features after a kill")
    expect_clean(room)
    return "killed" if started.code else "too late"


def attack_drawing(lab: Lab) -> str:
    """A kill while data is drawn leaves nothing once it is drawn again."""
    room = lab.room()
    started = lab.start("drawing", str(room), lab.chance.choice("12"))
    started.wait_until(lambda: any(room.iterdir()))
    started.pause(lab.chance.uniform(0, 0.6))
    started.end(signal.SIGKILL, group=lab.chance.random() < 0.3)
    expect_same(contents(victims.drawing(str(room), "1")), lab.made["drawing"], "drawn images")
    expect_clean(room)
    return "killed" if started.code else "too late"


READERS = {  # commands that read a run: the file that each writes, its options
    "report": ("page.html", []),
    "evaluate": ("measures.json", ["--measures", "compactness", "consistency"]),
    "export-maps": ("places.csv", []),
    "pack": ("run.zip", []),
}


def is_whole(path: Path) -> bool:
    """Whether a file of one of `READERS` ends as it should."""
    if path.suffix == ".zip":
        return zipfile.is_zipfile(path)  # the list of its files comes last
    content = path.read_bytes()
    if path.suffix == ".csv":
        lines = content.split(b"\n")
        return not lines.pop() and lines[-1].count(b",") == lines[0].count(b",")
    return content.rstrip().endswith(b"}" if path.suffix == ".json" else b"</html>")


def attack_reader(lab: Lab) -> str:
    """A command that reads a run is killed: its file is absent or whole; the run is as it was."""
    room = lab.room()
    run, command = lab.copy_run(room), lab.chance.choice(list(READERS))
    name, options = READERS[command]
    words = [command, str(run.folder), *options, "--out", str(room / name)]
    started = lab.start(*words)
    started.pause(lab.chance.choice([0.1, 1]) * lab.chance.uniform(0, 1))
    started.end(signal.SIGKILL)
    if (room / name).exists():
        if not is_whole(room / name):
            raise Broken(f"half a file of {command} was left")
        (room / name).unlink()  # pack would refuse to replace it
    lab.start(*words).finish()
    expect_same(facts(run), lab.known, f"a run whose {command} was killed")
    expect_clean(room)
    return f"{command} killed" if started.code else f"{command}, too late"
