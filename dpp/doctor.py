"""Checks what works on this machine, and advises on what does not."""

import os
import platform
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata

from dpp.data import catalogue
from dpp.system import toolchain
from dpp.system.errors import UserError
from dpp.system.paths import ROOT, data_root

OK, OPTIONAL, MISSING = "ok", "optional", "missing"
GIGABYTE = 1024**3
PACKAGES = ("jupyterlab", "ipywidgets", "papermill", "matplotlib", "pandas")


@dataclass(frozen=True)
class Check:
    """One row of the doctor's table. `MISSING` means that something required does not work."""

    name: str
    status: str
    found: str
    advice: str = ""


def check_machine() -> Check:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIGABYTE
    system = f"{platform.system()} {platform.machine()}"
    return Check("machine", OK, f"{system}, {os.cpu_count()} cores, {memory:.0f} GB of memory")


def check_python() -> Check:
    version = f"{platform.python_version()} at {sys.executable}"
    tested = sys.version_info[:2] == (3, 11)
    return Check("python", OK, version, "" if tested else "tested with Python 3.11")


def check_package(name: str) -> Check:
    """Imports a package for real: an installed one may still be broken."""
    import_module(name)
    return Check(name, OK, metadata.version(name))


def check_gpu() -> Check:
    import torch

    if torch.cuda.is_available():
        return Check("gpu", OK, torch.cuda.get_device_name())
    built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "CPU torch"
    return Check("gpu", OPTIONAL, f"none visible ({built})", "the mini profile needs none")


def check_compiler() -> Check:
    version, reason = toolchain.compiler()
    if version:
        return Check("compiler", OK, version)
    return Check("compiler", OPTIONAL, reason, "install g++ (Debian: apt install g++), make setup")


def check_nvcc() -> Check:
    home = toolchain.nvcc_home()
    if home:
        return Check("nvcc", OK, f"{toolchain.nvcc_version(home)} at {home}")
    return Check(
        "nvcc",
        OPTIONAL,
        "none",
        "for CUDA: .venv/bin/pip install 'cuda-toolkit[nvcc,cccl]==13.0.*', make setup",
    )


def check_operator() -> Check:
    """Runs the operator that `dpp.ops` has chosen and compares it with the reference."""
    import torch

    from dpp import ops, reference

    generator = torch.Generator().manual_seed(0)
    features = torch.rand(1, 5, 4, 4, generator=generator)
    prototypes = torch.rand(2, 5, 3, 3, generator=generator)
    offsets = torch.randn(1, 18, 4, 4, generator=generator)
    scores, _ = ops.max_similarity(features, offsets, prototypes)
    expected, _ = reference.max_similarity(features, offsets, prototypes)
    torch.testing.assert_close(scores, expected)
    served = ops.backend()
    backends = {"cpu": "C++ on the CPU"}.get(served, "plain PyTorch")
    if ops.backend("cuda") == "cuda":
        backends += " and CUDA"
    if served == "reference":
        return Check("operator", OPTIONAL, f"{backends}, {ops.why()}", "works, but slower")
    return Check("operator", OK, f"{backends}, {ops.why()}")


def check_data(key: str) -> Check:
    data_set, folder = catalogue.PUBLISHED[key], catalogue.find(key)
    if folder:
        return Check(data_set.title, OK, str(folder))
    wanted = f"no {data_set.folder}/{data_set.marker} under {data_root()}"
    return Check(data_set.title, OPTIONAL, wanted, f"dpp data {key}, or set DPP_DATA")


def check_disk() -> Check:
    free = shutil.disk_usage(ROOT).free / GIGABYTE
    advice = "CUB-200-2011 needs 3 GB, Stanford Dogs 2 GB" if free < 8 else ""
    return Check("disk", OK if free > 1 else MISSING, f"{free:.0f} GB free at {ROOT}", advice)


CHECKS = {
    "machine": check_machine,
    "python": check_python,
    "torch": partial(check_package, "torch"),
    "torchvision": partial(check_package, "torchvision"),
    "gpu": check_gpu,
    "compiler": check_compiler,
    "nvcc": check_nvcc,
    "operator": check_operator,
    **{name: partial(check_package, name) for name in PACKAGES},
    **{entry.title: partial(check_data, key) for key, entry in catalogue.PUBLISHED.items()},
    "disk": check_disk,
}


def examine(names: Iterable[str] = CHECKS) -> list[Check]:
    """Runs the named checks, by default all. One that raises becomes a row that is missing."""
    names = list(names)
    if unknown := [name for name in names if name not in CHECKS]:
        raise UserError(f"there is no check {unknown[0]!r}: choose from {', '.join(CHECKS)}")
    checks = []
    for name in names:
        try:
            checks.append(CHECKS[name]())
        except Exception as error:  # a broken binary raises OSError, RuntimeError, ...
            message = f"{type(error).__name__}: {error}".splitlines()[0]
            checks.append(Check(name, MISSING, message, "fix that, or make clean and make setup"))
    return checks


def as_text(checks: list[Check]) -> str:
    """The table, in columns; advice on a line of its own under its check."""
    names = max(len(check.name) for check in checks)
    statuses = max(len(check.status) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.name:{names}}  {check.status:{statuses}}  {check.found}")
        if check.advice:
            lines.append(f"{'':{names + statuses + 4}}-> {check.advice}")
    return "\n".join(lines)
