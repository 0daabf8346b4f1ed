"""Builds the operator ahead of time. Without a compiler the install still succeeds, and says so.

The CPU part is always built; the CUDA part when torch has CUDA and nvcc is found, and a GPU is
visible or FORCE_CUDA=1. What was built, or why nothing was, is left in `dpp/_build.json`, which
`dpp doctor` reads. Environment: CXX, CUDA_HOME, FORCE_CUDA, TORCH_CUDA_ARCH_LIST, and,
for developers, DPP_SANITIZE=1: AddressSanitizer, UBSan and warnings as errors.
"""

import json
import os
import sys
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from dpp.system import toolchain  # noqa: E402
from dpp.system.paths import BUILD_REPORT  # noqa: E402

forced_cuda = os.environ.get("FORCE_CUDA") == "1"
cuda_home = toolchain.nvcc_home()
if cuda_home:  # torch reads it when it is imported
    os.environ["CUDA_HOME"] = str(cuda_home)

try:
    import torch
    from torch.utils import cpp_extension

    Build = cpp_extension.BuildExtension.with_options(no_python_abi_suffix=True)
except ImportError:
    from setuptools.command.build_ext import build_ext as Build

    torch = None

HOST_FLAGS = ["-O3", "-g0", "-std=c++20", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]
WARNINGS = ["-Wall", "-Wextra"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
# Without a GPU to ask: Turing and later, and what comes after through PTX.
DEFAULT_ARCHITECTURES = "7.5;8.0;9.0+PTX"


def why_no_cuda() -> str:
    """Empty if the CUDA part can and should be built."""
    if not torch.version.cuda:
        return "this torch has no CUDA"
    if not cuda_home:
        return "no nvcc: install one with pip install 'cuda-toolkit[nvcc,cccl]==13.0.*'"
    major = toolchain.nvcc_version(cuda_home).split(".")[0]
    if major != torch.version.cuda.split(".")[0]:
        return f"nvcc is from CUDA {major}, but torch is built for CUDA {torch.version.cuda}"
    if not (forced_cuda or torch.cuda.is_available()):
        return "no GPU is visible; FORCE_CUDA=1 builds it anyway"
    return ""


def sources_in(folder: str, pattern: str) -> list[str]:
    return sorted(str(path.relative_to(HERE)) for path in (HERE / folder).glob(pattern))


def plan_extension(with_cuda: bool) -> Extension:
    """The sources and flags of `dpp/_C.so`."""
    sources = ["csrc/prototype_ops.cpp", *sources_in("csrc/cpu", "*.cpp")]
    # As system headers, torch's own are exempt from our warnings.
    system = [f"-isystem{folder}" for folder in cpp_extension.include_paths()]
    host = HOST_FLAGS + WARNINGS + system
    link = ["-fopenmp"]
    if os.environ.get("DPP_SANITIZE") == "1":
        host += SANITIZERS + ["-O1", "-g1", "-Werror", "-DDPP_NO_TARGET_CLONES"]
        link += SANITIZERS
    if not with_cuda:
        return cpp_extension.CppExtension(
            "dpp._C", sources, include_dirs=["csrc"], extra_compile_args=host, extra_link_args=link
        )
    if not torch.cuda.is_available():
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", DEFAULT_ARCHITECTURES)
    headers = [str(folder) for folder in Path(torch.__file__).parents[1].glob("nvidia/cu*/include")]
    device = ["-O3", "-std=c++20", "--Werror", "all-warnings", "-Xcompiler", "-Wall,-Werror"]
    return cpp_extension.CUDAExtension(
        "dpp._C",
        [*sources, *sources_in("csrc/cuda", "*.cu")],
        include_dirs=[str(HERE / "csrc"), *headers],
        extra_compile_args={"cxx": host, "nvcc": device},
        extra_link_args=link,
    )


class BuildOperator(Build):
    """Builds what can be built here. What cannot is reported, and is not an error."""

    def finalize_options(self) -> None:
        self.report = {"built": False, "cuda": False, "reason": "", "compiler": "", "torch": ""}
        self.distribution.ext_modules = self.wanted()
        super().finalize_options()

    def run(self) -> None:
        # setuptools clears `inplace` while it builds
        package = HERE / "dpp" if self.inplace else Path(self.build_lib) / "dpp"
        try:
            super().run()
        except (Exception, SystemExit) as error:
            if forced_cuda:
                raise
            message = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.report["reason"] = f"the build failed: {message}"
            self.extensions = []
        self.report["built"] = bool(self.extensions)
        self.report["cuda"] &= self.report["built"]
        self.write_report(package)

    def wanted(self) -> list[Extension]:
        if torch is None:
            self.report["reason"] = (
                "torch was not installed at build time: install it, then pip install "
                "--no-build-isolation -e ."
            )
            return []
        self.report["torch"] = torch.__version__
        version, reason = toolchain.compiler()
        without_cuda = why_no_cuda()
        if forced_cuda and (reason or without_cuda):
            raise SystemExit(f"FORCE_CUDA=1, but {reason or without_cuda}")
        self.report |= {
            "compiler": version or "",
            "cuda": not without_cuda,
            "reason": reason or without_cuda,
        }
        return [] if reason else [plan_extension(with_cuda=not without_cuda)]

    def write_report(self, package: Path) -> None:
        package.mkdir(parents=True, exist_ok=True)
        if not self.report["built"]:
            if torch is not None:  # pip's isolated builds lack it, and must not break a checkout
                (package / "_C.so").unlink(missing_ok=True)
            print(f"dpp: the plain-PyTorch operator will be used ({self.report['reason']})")
        (package / BUILD_REPORT.name).write_text(json.dumps(self.report, indent=2) + "\n")


setup(ext_modules=[Extension("dpp._C", [])], cmdclass={"build_ext": BuildOperator})
