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
    """The exit code and output of a short command; 127 and the reason if it cannot be started."""
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
        code, output = run([*command, "-fopenmp", str(source), "-o", str(source.with_suffix(""))])
    if code:
        lines = output.strip().splitlines()
        reason = f": {lines[0]}" if lines else ""
        return None, f"the C++ compiler {name!r} does not work{reason}"
    code, output = run([*command, "--version"])
    return output.splitlines()[0] if code == 0 and output else name, ""


def nvcc_home() -> Path | None:
    """The CUDA toolkit: `CUDA_HOME`, the `nvcc` on the path, or the one from PyPI (`dpp[cuda]`)."""
    candidates = []
    if os.environ.get("CUDA_HOME"):
        candidates.append(Path(os.environ["CUDA_HOME"]))
    if nvcc := shutil.which("nvcc"):
        # It may be a wrapper script: nvcc itself prints where it is installed.
        _, output = run([nvcc, "--dryrun", "-x", "cu", os.devnull])
        match = re.search(r"_HERE_=(.+)", output)
        candidates.append(Path(match[1]).parent if match else Path(nvcc).resolve().parent.parent)
    nvidia = find_spec("nvidia")
    for folder in nvidia.submodule_search_locations if nvidia else []:
        candidates.extend(sorted(Path(folder).glob("cu[0-9]*"), reverse=True))
    return next((home for home in candidates if (home / "bin" / "nvcc").is_file()), None)


def nvcc_version(home: Path) -> str:
    """For example "13.0"."""
    _, output = run([str(home / "bin" / "nvcc"), "--version"])
    match = re.search(r"release (\d+\.\d+)", output)
    return match[1] if match else "unknown"
