"""The operator's tests once more, on a build with AddressSanitizer and UBSan.

A few hundred random cases here; `make sanitize` runs 10,000.
"""

import os
import shutil
import subprocess
import sys

import pytest

from dpp.system import toolchain
from dpp.system.paths import ROOT


def runtimes() -> str | None:
    """What must be loaded before Python: AddressSanitizer, and the library whose throw it wraps."""
    if not toolchain.compiler()[0]:
        return None
    ask = toolchain.compiler_command()
    names = ("libasan.so", "libstdc++.so")
    paths = [toolchain.run([*ask, f"-print-file-name={name}"])[1].strip() for name in names]
    return " ".join(paths) if all(os.path.isabs(path) for path in paths) else None


needs_runtimes = pytest.mark.skipif(not runtimes(), reason="no C++ compiler with AddressSanitizer")


def python(folder, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, *arguments]
    environment = os.environ | environment
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def check(sources, folder, *tests: str) -> tuple[int, str]:
    """Builds with the sanitizers and runs tests on that: exit code, and what was found."""
    built = folder / "package"
    command = ["setup.py", "--quiet", "build", f"--build-base={folder}", f"--build-lib={built}"]
    done = python(sources, *command, DPP_SANITIZE="1")
    assert done.returncode == 0 and (built / "dpp" / "_C.so").exists(), done.stdout + done.stderr
    sanitized = {
        "PYTHONPATH": str(built),
        "LD_PRELOAD": runtimes(),
        "ASAN_OPTIONS": f"detect_leaks=0:log_path={folder}/found",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={folder}/found",
        "DPP_FUZZ": os.environ.get("DPP_FUZZ", "300"),
        "DPP_BACKEND": "extension",
    }
    where = python(ROOT, "-P", "-c", "import dpp; print(dpp.__file__)", **sanitized)
    assert where.stdout.startswith(str(built)), where.stdout + where.stderr
    command = ["-P", "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests]
    done = python(ROOT, *command, **sanitized)
    found = "".join(path.read_text()[:4000] for path in folder.glob("found.*"))
    return done.returncode, found + done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.slow
@needs_runtimes
def test_operator_is_clean_under_the_sanitizers(tmp_path):
    names = ("test_ops", "test_ops_fuzz", "test_screening")
    code, said = check(ROOT, tmp_path, *(f"tests/{name}.py" for name in names))
    assert code == 0, said


@pytest.mark.slow
@needs_runtimes
def test_sanitizers_find_a_buffer_that_is_too_small(tmp_path):
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("dpp", "csrc"):
        shutil.copytree(ROOT / name, tmp_path / name)
    source = tmp_path / "csrc" / "cpu" / "chunks.h"
    whole = "chunk.images() * places * stride_)"
    assert source.read_text().count(whole) == 1
    source.write_text(source.read_text().replace(whole, whole[:-1] + " - stride_)"))
    code, said = check(tmp_path, tmp_path / "built", "tests/test_ops_fuzz.py")
    assert code != 0 and "heap-buffer-overflow" in said, said
