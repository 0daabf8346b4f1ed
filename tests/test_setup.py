"""The build of the extension where something is missing. Each test builds a copy of the sources."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from dpp.system import toolchain
from dpp.system.paths import BUILD_REPORT, ROOT

USE_THE_COPY = """
import torch, dpp
from dpp import ops
assert dpp.__file__.startswith({folder!r}), dpp.__file__
scores, _ = ops.max_similarity(torch.rand(1, 3, 4, 4), None, torch.rand(2, 3, 3, 3))
print(ops.backend(), "|", ops.why())
"""


@pytest.fixture
def copy(tmp_path):
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    ignore = shutil.ignore_patterns("_C.so", BUILD_REPORT.name, "__pycache__")
    for name in ("dpp", "csrc"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    return tmp_path


def build(folder, **environment) -> tuple[dict, subprocess.CompletedProcess]:
    """Builds in the folder; returns the report and what was printed."""
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    report = folder / "dpp" / BUILD_REPORT.name
    return json.loads(report.read_text()) if report.exists() else {}, done


def use(folder, **environment) -> str:
    done = subprocess.run(
        [sys.executable, "-c", USE_THE_COPY.format(folder=str(folder))],
        cwd=folder,
        env=os.environ | {"DPP_BACKEND": ""} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "condition",
    [pytest.param("CXX=/bin/false", marks=pytest.mark.slow), "no compiler on the path"],
)
def test_build_without_a_compiler_succeeds_and_says_so(copy, tmp_path, condition):
    (copy / "dpp" / "_C.so").write_bytes(b"stale")
    if condition == "CXX=/bin/false":
        environment = {"CXX": "/bin/false"}
    else:
        (tmp_path / "bin").mkdir()
        environment = {"PATH": str(tmp_path / "bin"), "CXX": ""}
    report, done = build(copy, **environment)
    assert done.returncode == 0, done.stderr
    assert "the plain-PyTorch operator will be used" in done.stdout
    assert not report["built"] and "compiler" in report["reason"]
    assert not (copy / "dpp" / "_C.so").exists()
    assert use(copy).startswith("reference |") and report["reason"] in use(copy)


@pytest.mark.skipif(not toolchain.compiler()[0], reason="no C++ compiler")
def test_build_that_fails_leaves_the_plain_operator(copy):
    for source in (copy / "csrc").rglob("*.cpp"):  # all, so that none takes its time to compile
        source.write_text("this is not C++\n")
    report, done = build(copy)
    assert done.returncode == 0
    assert report["reason"].startswith("the build failed")
    assert use(copy).startswith("reference |")


def test_forced_cuda_without_nvcc_is_an_error(copy, tmp_path):
    (tmp_path / "bin").mkdir()
    environment = {"PATH": str(tmp_path / "bin"), "FORCE_CUDA": "1", "CUDA_HOME": ""}
    report, done = build(copy, **environment)
    assert done.returncode != 0
    assert "FORCE_CUDA=1, but" in done.stderr and not report


@pytest.mark.skipif(not toolchain.compiler()[0], reason="no C++ compiler")
def test_extension_is_built_where_there_is_a_compiler():
    report = json.loads(BUILD_REPORT.read_text())
    assert report["built"], report["reason"]


@pytest.mark.slow
@pytest.mark.skipif(not toolchain.compiler()[0], reason="no C++ compiler")
@pytest.mark.skipif(not toolchain.nvcc_home(), reason="no nvcc")
def test_forced_cuda_builds_and_loads_without_a_gpu(copy):
    report, done = build(copy, FORCE_CUDA="1", TORCH_CUDA_ARCH_LIST="8.0")
    assert done.returncode == 0, done.stderr + done.stdout
    assert report["built"] and report["cuda"]
    assert use(copy).startswith("cpu |")
