"""Kills and signals: nothing is lost, nobody is left behind, and the weights are the same."""

import signal
import sys
from pathlib import Path

from lab import Broken, Lab, Started, expect_clean, expect_same, facts, weights_of

from dpp import runs

QUEUE = """
import sys
from pathlib import Path
from dpp.paper import run_queue
from dpp.training.experiments import make_experiment
if __name__ == "__main__":
    small = {"weights": "none", "backbone": "slim_vgg16_bn", "image_size": 32, "epochs": 2}
    small |= {"warm_epochs": 0, "second_warm_epochs": 0, "project_after": (2,)}
    plans = [make_experiment("smoke", **small, seed=seed) for seed in range(2)]
    failed = run_queue.run_all(plans, jobs=2, root=Path(sys.argv[1]))
    sys.exit(str(failed) if failed else 0)
"""
CACHE = """
import sys
from pathlib import Path
from dpp import data
from dpp.data.cache import PixelStore
print("ready", flush=True)
for size in range(100, 400):
    PixelStore(data.load(sys.argv[1]).records, size, folder=Path(sys.argv[2]))
"""


def attack_training(lab: Lab) -> str:
    """Training that is killed at random moments ends in the same weights."""
    room, kills = lab.room(), lab.chance.randrange(1, 3)
    folder = room / lab.run.folder.name
    for _ in range(kills):
        started = Started(lab.train(room))
        seen = size(folder / "metrics.csv")
        started.wait_until(lambda seen=seen: size(folder / "metrics.csv") > seen)
        pause(started, lab.chance.uniform(0, 1))
        started.end(signal.SIGKILL, group=lab.chance.random() < 0.5)
    finish(Started(lab.train(room)))
    expect_same(facts(runs.Run(lab.experiment, folder)), lab.known, "a resumed run")
    expect_clean(room)
    return f"{kills} kills, the same weights"


def attack_group(lab: Lab) -> str:
    """A signal to the whole group saves, also with workers; the run is resumed."""
    room, workers = lab.room(), lab.chance.choice([0, 2])
    number = lab.chance.choice([signal.SIGTERM, signal.SIGINT])
    folder = room / lab.run.folder.name
    started = Started(lab.train(room, "--workers", str(workers)))
    started.wait_until(lambda: any(folder.glob("state-*.pt")))
    said = started.end(number, group=True)
    code = started.process.returncode
    if code not in (0, 128 + number) or code and "run the same command to resume" not in said:
        raise Broken(f"{signal.Signals(number).name}: code {code}, {said[-200:]!r}")
    finish(Started(lab.train(room)))
    expect_same(weights_of(room), lab.run.manifest["weights_sha256"], "a resumed run")
    return f"{signal.Signals(number).name}, {workers} workers"


def attack_queue(lab: Lab) -> str:
    """A killed or stopped queue of runs leaves no worker, and the same command finishes it."""
    room = lab.room()
    script = room / "queue_of_runs.py"
    script.write_text(QUEUE)
    number = lab.chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
    started = Started([sys.executable, str(script), str(room / "runs")])
    started.wait_until(lambda: any(room.glob("runs/*/metrics.csv")))
    pause(started, lab.chance.uniform(0, 2))
    try:
        started.end(number)
    except Broken as error:  # a script, unlike the command, shows its KeyboardInterrupt
        if "run the same command to resume" not in str(error):
            raise
    finish(Started([sys.executable, str(script), str(room / "runs")]))
    made = [runs.open_run(path.parent) for path in room.glob("runs/*/manifest.json")]
    for run in made:
        run.verify()
    expect_same(len(made), 2, "the number of runs")
    expect_clean(room)
    return signal.Signals(number).name


def attack_cache_building(lab: Lab) -> str:
    """A kill while images are decoded leaves a cache that is whole or absent."""
    room = lab.room()
    started = Started([sys.executable, "-c", CACHE, str(lab.images), str(room)])
    started.process.stdout.readline()
    pause(started, lab.chance.uniform(0, 1.5))
    started.end(signal.SIGKILL)
    pixels, _ = lab.store(room).get(lab.source.records)
    expect_same(pixels, lab.pixels, "pixels after a kill")
    expect_clean(room)
    return "killed"


def attack_report(lab: Lab) -> str:
    """A report that is killed is not there, or whole; the run stays as it is."""
    room = lab.room()
    run, page = lab.copy_run(room), room / "page.html"
    command = [sys.executable, "-m", "dpp", "report", str(run.folder), "--out", str(page)]
    started = Started(command)
    pause(started, lab.chance.uniform(5, 30))
    started.end(signal.SIGKILL)
    if page.exists() and not page.read_text().rstrip().endswith("</html>"):
        raise Broken("half a page was left")
    expect_same(facts(run), lab.known, "a run whose report was killed")
    return "killed"


def finish(started: Started) -> None:
    said = started.end()
    if started.process.returncode:
        raise Broken(f"the next command failed: {said[-300:]!r}")


def pause(started: Started, seconds: float) -> None:
    started.wait_until(lambda: False, seconds)


def size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
