"""Five minutes of random attacks; `make chaos` makes more of them."""

import random
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_attacks_find_no_defect():
    seed = random.SystemRandom().randrange(10**6)
    words = ["--seed", str(seed), "--minutes", "5", "--attacks", "100000"]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "chaos"), *words],
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
