"""Random attacks on what dpp reads, writes and starts: `make chaos SEED=1 ATTACKS=1000`.

Prints a line for each kind of attack with the outcomes and their counts, and each defect with the
number of its attack; the same seed makes the same attacks. Exits with 1 if there was a defect.
"""

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the tests' own helpers

import damage  # noqa: E402
import hostile  # noqa: E402
import processes  # noqa: E402
from lab import Lab  # noqa: E402

QUICK = [
    damage.attack_run_files,
    damage.attack_pixels,
    damage.attack_features,
    damage.attack_hashes,
    damage.attack_exchange,
    damage.attack_states,
    damage.attack_records,
    damage.attack_lists,
    hostile.attack_images,
    hostile.attack_archives,
    hostile.attack_names,
    hostile.attack_full_disk,
]
SLOW = [
    processes.attack_training,
    processes.attack_group,
    processes.attack_queue,
    processes.attack_cache_building,
    processes.attack_report,
]
SLOW_SHARE = 0.03  # of the attacks start processes, which takes seconds each


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attacks", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=60, help="stop after so many")
    parser.add_argument("--only", default="", help="attacks whose name has this in it")
    parser.add_argument("--slow-share", type=float, default=SLOW_SHARE)
    chosen = parser.parse_args()
    begun, outcomes, defects = time.monotonic(), defaultdict(Counter), []
    kinds = [[kind for kind in some if chosen.only in kind.__name__] for some in (QUICK, SLOW)]
    with tempfile.TemporaryDirectory(prefix="dpp-chaos-", ignore_cleanup_errors=True) as home:
        lab = Lab(Path(home).resolve(), random.Random(chosen.seed))
        print(f"seed {chosen.seed}, {chosen.attacks} attacks", flush=True)
        for number in range(1, chosen.attacks + 1):
            if time.monotonic() - begun > 60 * chosen.minutes:
                break
            lab.chance = random.Random(f"{chosen.seed} {number}")
            slow = lab.chance.random() < chosen.slow_share
            attack = lab.chance.choice(kinds[slow] or kinds[not slow])
            name = attack.__name__.removeprefix("attack_")
            outcome = carry_out(attack, lab)
            outcomes[name][outcome] += 1
            if outcome.startswith("DEFECT"):
                defects.append(f"attack {number}, {name}: {outcome}")
                print(defects[-1], flush=True)
    for name, counts in sorted(outcomes.items()):
        parts = ", ".join(f"{outcome}: {count}" for outcome, count in counts.most_common(6))
        print(f"{name:16} {sum(counts.values()):5}  {parts}")
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
