"""Finds the compilers. Standard library only: `setup.py` asks before anything is installed."""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

PROBE = "#include <vector>\nint main() { return static_cast<int>(std::vector<int>().size()); }\n"


def compiler_command() -> list[str]:
    """The C++ compiler that PyTorch's extension builder would call."""
    return shlex.split(os.environ.get("CXX") or "c++")


def run(command: list[str]) -> tuple[int, str]:
    """Exit code and first lines of what a short command prints; 127 if it cannot be started."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, done.stdout + done.stderr


def compiler() -> tuple[str | None, str]:
    """Tries the C++ compiler on a program of two lines, with OpenMP.

    Returns:
        (its version line, "") if it works, else (None, the reason).
    """
    command = compiler_command()
    name = " ".join(command)
    if not shutil.which(command[0]):
        return None, f"no C++ compiler: {name!r} is not on the path"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text(PROBE)
        code, said = run([*command, "-fopenmp", str(source), "-o", str(source.with_suffix(""))])
    if code:
        why = said.strip().splitlines()
        return None, f"the C++ compiler {name!r} does not work" + (f": {why[0]}" if why else "")
    code, said = run([*command, "--version"])
    return said.splitlines()[0] if code == 0 and said else name, ""


def nvcc_home() -> Path | None:
    """The CUDA toolkit: `CUDA_HOME`, the `nvcc` on the path, or the one from PyPI (`dpp[cuda]`)."""
    candidates = []
    if os.environ.get("CUDA_HOME"):
        candidates.append(Path(os.environ["CUDA_HOME"]))
    if found := shutil.which("nvcc"):
        # It may be a wrapper script: nvcc itself knows where it lives.
        _, said = run([found, "--dryrun", "-x", "cu", os.devnull])
        told = re.search(r"_HERE_=(.+)", said)
        candidates.append(Path(told[1]).parent if told else Path(found).resolve().parent.parent)
    nvidia = find_spec("nvidia")
    for folder in nvidia.submodule_search_locations if nvidia else []:
        candidates.extend(sorted(Path(folder).glob("cu[0-9]*"), reverse=True))
    return next((home for home in candidates if (home / "bin" / "nvcc").is_file()), None)


def nvcc_version(home: Path) -> str:
    """For example "13.0"."""
    _, said = run([str(home / "bin" / "nvcc"), "--version"])
    found = re.search(r"release (\d+\.\d+)", said)
    return found[1] if found else "unknown"
