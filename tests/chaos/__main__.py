"""Random attacks on what dpp reads, writes and starts: `make chaos SEED=1 ATTACKS=1000`.

Prints a line for each kind of attack with the outcomes and their counts, and each defect with the
number of its attack; the same seed makes the same attacks. Exits with 1 if there was a defect.
"""

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the tests' own helpers

import damage  # noqa: E402
import disks  # noqa: E402
import hostile  # noqa: E402
import processes  # noqa: E402
from lab import Lab  # noqa: E402

OFTEN, SOMETIMES, SELDOM = 70, 20, 3  # milliseconds, tenths of a second, and seconds each
KINDS = {
    damage.attack_run_files: OFTEN,
    damage.attack_pixels: OFTEN,
    damage.attack_features: OFTEN,
    damage.attack_hashes: OFTEN,
    damage.attack_exchange: OFTEN,
    damage.attack_states: OFTEN,
    damage.attack_records: OFTEN,
    damage.attack_lists: OFTEN,
    hostile.attack_images: OFTEN,
    hostile.attack_archives: OFTEN,
    hostile.attack_names: OFTEN,
    disks.attack_file_limit: SOMETIMES,
    disks.attack_full_disk: SOMETIMES,
    disks.attack_read_only: SOMETIMES,
    processes.attack_pixel_cache: SOMETIMES,
    processes.attack_feature_cache: SOMETIMES,
    processes.attack_drawing: SOMETIMES,
    disks.attack_full_training: SELDOM,
    processes.attack_training: 3 * SELDOM,
    processes.attack_group: 2 * SELDOM,
    processes.attack_queue: SELDOM,
    processes.attack_two_queues: SELDOM,
    processes.attack_reader: SELDOM,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attacks", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=60, help="stop after so many")
    parser.add_argument("--only", default="", help="attacks whose name has this in it")
    parser.add_argument("--first", type=int, default=1, help="the number of the first attack")
    chosen = parser.parse_args()
    begun, outcomes, defects = time.monotonic(), defaultdict(Counter), []
    seconds = Counter()
    kinds = {kind: share for kind, share in KINDS.items() if chosen.only in kind.__name__}
    with tempfile.TemporaryDirectory(prefix="dpp-chaos-", ignore_cleanup_errors=True) as home:
        lab = Lab(Path(home).resolve(), random.Random(chosen.seed))
        print(f"seed {chosen.seed}, {chosen.attacks} attacks", flush=True)
        with contextlib.suppress(KeyboardInterrupt):  # the summary is of what was done
            for number in range(chosen.first, chosen.attacks + 1):
                if time.monotonic() - begun > 60 * chosen.minutes:
                    break
                lab.chance = random.Random(f"{chosen.seed} {number}")
                [attack] = lab.chance.choices(list(kinds), kinds.values())
                name = attack.__name__.removeprefix("attack_")
                before = time.monotonic()
                outcome = carry_out(attack, lab)
                seconds[name] += time.monotonic() - before
                outcomes[name][outcome] += 1
                if outcome.startswith("DEFECT"):
                    defects.append(f"attack {number}, {name}: {outcome}")
                    print(defects[-1], flush=True)
                shutil.rmtree(lab.home / "rooms", ignore_errors=True)
                if number % 100 == 0:
                    print(
                        f"{number} attacks, {(time.monotonic() - begun) / 60:.1f} minutes",
                        flush=True,
                    )
    for name, counts in sorted(outcomes.items()):
        parts = ", ".join(f"{outcome}: {count}" for outcome, count in counts.most_common(6))
        print(f"{name:16} {sum(counts.values()):5} {seconds[name]:6.0f} s  {parts}")
    total = sum(sum(counts.values()) for counts in outcomes.values())
    minutes = (time.monotonic() - begun) / 60
    print(f"{total} attacks, {len(defects)} defects, {minutes:.1f} minutes, seed {chosen.seed}")
    return int(bool(defects) or not total)


def carry_out(attack, lab: Lab) -> str:
    """The outcome of an attack; an exception of any kind is a defect."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        try:
            return attack(lab)
        except Exception as error:
            return f"DEFECT {type(error).__name__}: {str(error)[:300]}"


if __name__ == "__main__":
    sys.exit(main())
