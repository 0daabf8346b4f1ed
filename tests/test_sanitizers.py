"""The operator's tests once more, on a build with AddressSanitizer and UBSan.

A few hundred random cases here; `make sanitize` runs 10,000.
"""

import os
import subprocess
import sys

import pytest

from dpp import toolchain
from dpp.paths import ROOT


def runtime() -> str | None:
    """The compiler's AddressSanitizer library, which must be loaded before Python."""
    if not toolchain.compiler()[0]:
        return None
    _, path = toolchain.run([*toolchain.compiler_command(), "-print-file-name=libasan.so"])
    return path.strip() if os.path.isabs(path.strip()) else None


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.skipif(not runtime(), reason="no C++ compiler with AddressSanitizer")
def test_operator_is_clean_under_the_sanitizers(tmp_path):
    built = tmp_path / "package"
    done = python("setup.py", "--quiet", "build", f"--build-base={tmp_path}",
                  f"--build-lib={built}", DPP_SANITIZE="1")  # fmt: skip
    assert done.returncode == 0 and (built / "dpp" / "_C.so").exists(), done.stdout + done.stderr
    sanitized = {
        "PYTHONPATH": str(built),
        "LD_PRELOAD": runtime(),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "DPP_FUZZ": os.environ.get("DPP_FUZZ", "300"),
        "DPP_BACKEND": "extension",
    }
    where = python("-P", "-c", "import dpp; print(dpp.__file__)", **sanitized)
    assert where.stdout.startswith(str(built)), where.stdout + where.stderr
    done = python(
        "-P", "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider",
        "tests/test_ops.py", "tests/test_ops_fuzz.py", **sanitized,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
