"""The CUDA part: compiled by nvcc, executed by an emulation on the host, run on a GPU if any."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from cuda_emulation.emulator import HERE, OPERATORS, Emulator, compile_host
from cuda_emulation.problems import CASES, SHAPES, assert_close, gradients_of, problem, random_like

from dpp import ops, reference
from dpp.reference import ROOT_FLOOR
from dpp.system import toolchain

CSRC = Path(__file__).parents[1] / "csrc"
PYTHONPATH = os.pathsep.join([str(CSRC.parent), str(Path(__file__).parent)])
TORCH = Path(torch.__file__).parent


pytestmark = pytest.mark.usefixtures("one_thread")


# --- compiled by nvcc ---------------------------------------------------------------------------


def nvcc_command():
    home = toolchain.nvcc_home()
    if home is None:
        pytest.skip("no nvcc: pip install 'cuda-toolkit[nvcc,cccl]==13.0.*'")
    version, reason = toolchain.compiler()
    if version is None:
        pytest.skip(f"nvcc needs a host compiler: {reason}")
    return [str(home / "bin" / "nvcc"), "-std=c++20", "-O3", "-Werror", "all-warnings"]


def compile_kernels(folder, source=HERE / "instantiate.cu", architecture="sm_80"):
    """What ptxas says of each kernel: {name: (registers, bytes spilled)}."""
    output = str(folder / "kernels.cubin")
    target = ["-cubin", f"-arch={architecture}", "-Xptxas", "-v", "-o", output]
    command = [*nvcc_command(), *target, str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = re.findall(
        r"entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads"
        r".*?Used (\d+) registers",
        done.stderr,
        flags=re.DOTALL,
    )
    return {name: (int(used), int(stored) + int(loaded)) for name, stored, loaded, used in found}


def test_kernels_compile_without_spills(tmp_path):
    kernels = compile_kernels(tmp_path)
    source = (CSRC / "cuda/prototype_kernels.cuh").read_text()
    written = re.findall(r"__launch_bounds__\(kThreads[^)]*\)\s+(\w+)\(", source)
    assert len(written) == source.count("__global__")
    for name in written:
        assert sum(name in compiled for compiled in kernels) == (1 if name == "list_rows" else 2)
    assert {name: spilled for name, (_, spilled) in kernels.items() if spilled} == {}


@pytest.mark.slow
def test_kernels_compile_for_every_architecture(tmp_path):
    _, listed = toolchain.run([nvcc_command()[0], "--list-gpu-arch"])
    architectures = [f"sm_{number}" for number in re.findall(r"compute_(\d+)\b", listed)]
    assert "sm_80" in architectures
    for architecture in architectures:
        kernels = compile_kernels(tmp_path, architecture=architecture)
        assert kernels and all(spilled == 0 for _, spilled in kernels.values()), architecture


def test_spills_are_seen_when_registers_run_short(tmp_path):
    shutil.copytree(CSRC, tmp_path / "csrc")
    header = tmp_path / "csrc/cuda/prototype_kernels.cuh"
    fewer = "__launch_bounds__(1024, 2)"  # leaves 32 registers to a thread
    header.write_text(header.read_text().replace("__launch_bounds__(kThreads)", fewer))
    source = tmp_path / "tests/cuda_emulation/instantiate.cu"
    source.parent.mkdir(parents=True)
    shutil.copy(HERE / "instantiate.cu", source)
    kernels = compile_kernels(tmp_path, source)
    assert any(spilled for _, spilled in kernels.values())


def torch_headers():
    folders = [TORCH / "include", TORCH / "include/torch/csrc/api/include"]
    folders += [*TORCH.parent.glob("nvidia/cu*/include"), sysconfig.get_paths()["include"]]
    return [part for folder in folders for part in ("-isystem", str(folder))]


@pytest.mark.slow
def test_cuda_part_compiles_and_links_against_torch(tmp_path):
    if not torch.version.cuda:
        pytest.skip("this torch has no CUDA headers")
    library = tmp_path / "dpp_cuda.so"
    sources = [str(CSRC / "cuda/prototype_cuda.cu"), str(CSRC / "prototype_ops.cpp")]
    host = ["-arch=sm_80", "-shared", "-Xcompiler", "-fPIC,-Wall,-Wextra,-Werror"]
    link = [f"-L{TORCH / 'lib'}", "-lc10", "-lc10_cuda", "-ltorch_cpu", "-ltorch_cuda"]
    command = [*nvcc_command(), *host, *torch_headers(), *sources, *link, "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    # Every symbol must be found at once, and the operators be there.
    program = f"""
import ctypes, os, torch
ctypes.CDLL({str(library)!r}, os.RTLD_NOW)
for name in {OPERATORS[:6]}:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"dpp::{{name}}", "CUDA"), name
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- executed on the host -----------------------------------------------------------------------


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    version, reason = toolchain.compiler()
    if version is None:
        pytest.skip(reason)
    target = tmp_path_factory.mktemp("cuda") / "driver.so"
    return compile_host(
        "driver.cpp", target, toolchain.compiler_command(), "-O2", "-shared", "-fPIC"
    )


@pytest.fixture(scope="session")
def emulator(library):
    return Emulator(library)


@pytest.mark.parametrize(("shape", "offsets", "outside", "dtype"), CASES)
def test_emulated_max_similarity_equals_reference(emulator, shape, offsets, outside, dtype):
    inputs, dilation = problem(shape, offsets, dtype), shape[1]
    similarity = reference.similarity_map(*inputs, dilation=dilation, outside=outside)
    scores, argmax = emulator.max_similarity(*inputs, dilation, outside)
    assert_close(scores, similarity.flatten(2).max(2).values, dtype)
    at_argmax = similarity.flatten(2).gather(2, argmax[..., None])[..., 0]
    assert_close(scores, at_argmax, dtype)

    grad = random_like(scores)
    found = emulator.max_similarity_backward(grad, argmax, *inputs, dilation, outside, ROOT_FLOOR)
    for one, other in zip(found, gradients_of(at_argmax, grad, inputs), strict=True):
        assert_close(one, other, dtype)


@pytest.mark.parametrize(("shape", "offsets", "outside", "dtype"), CASES)
def test_emulated_similarity_map_equals_reference(emulator, shape, offsets, outside, dtype):
    inputs, dilation = problem(shape, offsets, dtype), shape[1]
    similarity = reference.similarity_map(*inputs, dilation=dilation, outside=outside)
    assert_close(emulator.similarity_map(*inputs, dilation, outside), similarity, dtype)

    grad = random_like(similarity)
    found = emulator.similarity_map_backward(grad, *inputs, dilation, outside, ROOT_FLOOR)
    for one, other in zip(found, gradients_of(similarity, grad, inputs), strict=True):
        assert_close(one, other, dtype)


@pytest.mark.parametrize(("shape", "offsets", "outside", "dtype"), CASES)
def test_emulated_sample_parts_equals_reference(emulator, shape, offsets, outside, dtype):
    size, dilation, images, _, height, width, queries = shape
    z, moved, _ = problem(shape, offsets, dtype)
    random = torch.Generator().manual_seed(2)
    centres = torch.randint(height * width, (images, queries), generator=random)
    centres[:, : queries // 2] = centres[:, queries - queries // 2 :]  # repeated places add up
    parts = reference.sample_parts(
        z, moved, centres, kernel_size=size, dilation=dilation, outside=outside
    )
    assert_close(emulator.sample_parts(z, moved, centres, size, dilation, outside), parts, dtype)

    grad = random_like(parts)
    found = emulator.sample_parts_backward(
        grad, z, moved, centres, size, dilation, outside, ROOT_FLOOR
    )
    for one, other in zip(found, gradients_of(parts, grad, [z, moved]), strict=True):
        assert_close(one, other, dtype)


def every_result(emulator, shape):
    z, moved, prototypes = problem(shape, "across", torch.float32)
    size, dilation, images, _, height, width, queries = shape
    common = (dilation, 1 / size)
    scores, argmax = emulator.max_similarity(z, moved, prototypes, *common)
    similarity = emulator.similarity_map(z, moved, prototypes, *common)
    centres = argmax.contiguous()
    parts = emulator.sample_parts(z, moved, centres, size, *common)
    inputs = (z, moved, prototypes, *common, ROOT_FLOOR)
    return [
        *(scores, argmax, similarity, parts),
        *emulator.max_similarity_backward(random_like(scores), argmax, *inputs),
        *emulator.similarity_map_backward(random_like(similarity), *inputs),
        *emulator.sample_parts_backward(
            random_like(parts), z, moved, centres, size, *common, ROOT_FLOOR
        ),
    ]


@pytest.mark.parametrize(
    "settings",
    [
        dict(order="backwards"),
        dict(order="random"),
        dict(most_blocks=1),
        dict(most_blocks=10**6, order="random"),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(3, 1, 3, 5, 12, 13, 7), (2, 2, 2, 140, 3, 4, 140)])
def test_emulated_results_same_bits_whatever_the_schedule(library, emulator, shape, settings):
    results = every_result(Emulator(library, **settings), shape)
    for one, other in zip(results, every_result(emulator, shape), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("chunk_bytes", [1, 5000])
def test_emulated_results_same_in_chunks_of_images(library, emulator, chunk_bytes):
    shape = (3, 1, 5, 6, 4, 5, 30)
    results = every_result(Emulator(library, chunk_bytes=chunk_bytes), shape)
    for one, other in zip(results, every_result(emulator, shape), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_emulated_maximum_first_of_ties_and_not_a_number(emulator):
    z = torch.tensor([[0.5, 1.0, 1.0, 0.5, 1.0]]).expand(3, 1, 1, 5).clone()
    z[1, 0, 0, 3] = torch.nan
    z[2, 0, 0, ::2] = torch.nan
    prototypes = torch.ones(1, 1, 1, 1)
    scores, argmax = emulator.max_similarity(z, None, prototypes, 1, 0.0)
    expected = reference.max_similarity(z, None, prototypes, dilation=1, outside=0.0)
    assert torch.equal(argmax, expected[1]) and argmax[0].item() == 1
    torch.testing.assert_close(scores, expected[0], equal_nan=True)


def test_emulated_kernels_skip_places_off_the_map(emulator):
    shape = (3, 1, 2, 4, 3, 3, 5)
    z, moved, prototypes = problem(shape)
    _, argmax = emulator.max_similarity(z, moved, prototypes, 1, 0.5)
    grad = random_like(argmax.double())
    wrong, without = argmax.clone(), grad.clone()
    wrong[0, 1], wrong[1, 3] = -7, 9
    without[0, 1], without[1, 3] = 0, 0
    found = emulator.max_similarity_backward(grad, wrong, z, moved, prototypes, 1, 0.5, ROOT_FLOOR)
    right = emulator.max_similarity_backward(
        without, argmax, z, moved, prototypes, 1, 0.5, ROOT_FLOOR
    )
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kernel", ["missed_barrier", "two_barriers", "missed_shuffle"])
def test_emulation_reports_threads_that_went_separate_ways(emulator, kernel):
    result = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="separate ways"):
        emulator.call(kernel, result=result)
    emulator.max_similarity(*problem(SHAPES[0]), 1, 0.5)  # it still works afterwards


def test_emulation_shows_shared_memory_that_was_never_written(emulator):
    result = torch.zeros(1, dtype=torch.int32)
    emulator.call("unwritten_shared", result=result)
    assert result.item() == -1


def test_emulation_shows_a_missing_barrier_when_run_backwards(library):
    result = torch.zeros(1, dtype=torch.int32)
    seen = []
    for order in ("forwards", "backwards"):
        Emulator(library, order=order).call("neighbour", result=result)
        seen.append(result.item())
    assert seen == [1, -1]


def test_emulated_kernels_stay_in_their_buffers_under_sanitizers(tmp_path):
    version, reason = toolchain.compiler()
    if version is None:
        pytest.skip(reason)
    compiler, probe = toolchain.compiler_command(), tmp_path / "probe.cpp"
    flags = ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    probe.write_text("int main() {}\n")
    code, _ = toolchain.run([*compiler, *flags, str(probe), "-o", str(tmp_path / "probe")])
    if code:
        pytest.skip(f"{compiler[0]} has no sanitizer libraries")
    program = compile_host("self_check.cpp", tmp_path / "self_check", compiler, *flags)
    done = subprocess.run([str(program), "30"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "" and done.stdout == "30 problems, float and double\n"


@pytest.mark.slow
def test_launches_emulated_behind_torch_pass_the_operator_tests(tmp_path):
    """prototype_cuda.cu itself, compiled as operators of the CPU, under the tests of both."""
    version, reason = toolchain.compiler()
    if version is None:
        pytest.skip(reason)
    for name in ("ATen/cuda/CUDAContext.h", "c10/cuda/CUDAException.h", "c10/cuda/CUDAGuard.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("#pragma once\n")
    library = compile_host(
        "extension.cpp",
        tmp_path / "_C.so",
        toolchain.compiler_command(),
        *("-O1", "-shared", "-fPIC", f"-I{tmp_path}", *torch_headers()),
        *(str(CSRC / "prototype_ops.cpp"), f"-L{TORCH / 'lib'}", "-lc10", "-ltorch_cpu"),
    )
    chosen = "test_ops or test_gpu_operators or same_bits_twice or batch_of_zero"
    files = [__file__, str(Path(__file__).with_name("test_ops.py"))]
    command = [sys.executable, "-m", "pytest", "-p", "cuda_emulation.plugin", *files]
    command += ["-q", "-m", "not slow", "-k", chosen]
    environment = os.environ | {"DPP_EMULATED_CUDA": str(library.parent), "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert " passed" in done.stdout and "skipped" not in done.stdout


# --- run on a GPU -------------------------------------------------------------------------------


@pytest.fixture
def device():
    if folder := os.environ.get("DPP_EMULATED_CUDA"):
        assert str(Path(folder) / "_C.so") in torch.ops.loaded_libraries
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if ops.backend("cuda") != "cuda":
        pytest.skip(f"the operator has no CUDA part: {ops.why()}")
    return torch.device("cuda", torch.cuda.device_count() - 1)  # not the current one, if it can


def on(device, inputs):
    moved = [None if tensor is None else tensor.detach().to(device) for tensor in inputs]
    return [tensor if tensor is None else tensor.requires_grad_() for tensor in moved]


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("shape", "offsets", "outside", "dtype"), CASES)
def test_gpu_operators_equal_reference(device, shape, offsets, outside, dtype, layout):
    size, dilation, images, _, height, width, _ = shape
    inputs = problem(shape, offsets, dtype)
    common = dict(dilation=dilation, outside=outside)
    z, moved, prototypes = on(device, inputs)
    z = z.detach().contiguous(memory_format=layout).requires_grad_()
    scores, argmax = ops.max_similarity(z, moved, prototypes, **common)
    centres = argmax.cpu()

    similarity = reference.similarity_map(*inputs, **common)
    best = similarity.flatten(2).gather(2, centres[..., None])[..., 0]
    parts = reference.sample_parts(*inputs[:2], centres, kernel_size=size, **common)
    assert_close(scores.cpu(), similarity.flatten(2).amax(2), dtype)
    results = [
        (scores, best, 3),
        (ops.similarity_map(z, moved, prototypes, **common), similarity, 3),
        (ops.sample_parts(z, moved, argmax, kernel_size=size, **common), parts, 2),
    ]
    for found, expected, count in results:
        assert found.device == device
        assert_close(found.cpu(), expected, dtype)
        grad = random_like(expected)
        ours = gradients_of(found, grad.to(device), [z, moved, prototypes][:count])
        theirs = gradients_of(expected, grad, inputs[:count])
        for one, other in zip(ours, theirs, strict=True):
            assert_close(None if one is None else one.cpu(), other, dtype)


def trained(z, moved, prototypes):
    scores, _ = ops.max_similarity(z, moved, prototypes)
    return torch.autograd.grad(scores.square().sum(), [z, moved, prototypes])


@pytest.mark.gpu
def test_gpu_backward_same_bits_twice(device):
    inputs = on(device, problem((3, 1, 3, 150, 7, 7, 150), dtype=torch.float32))
    for one, other in zip(trained(*inputs), trained(*inputs), strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
def test_gpu_work_waits_for_the_current_stream(device):
    inputs = on(device, problem((3, 1, 8, 300, 14, 14, 500), dtype=torch.float32))
    expected, late = trained(*inputs), on(device, problem((3, 1, 8, 300, 14, 14, 500), seed=1))
    late = [tensor.detach().float().requires_grad_() for tensor in late]
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)  # work that ignored the stream would read the inputs too early
        for tensor, value in zip(late, inputs, strict=True):
            tensor.data.copy_(value)
        found = trained(*late)
    stream.synchronize()
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gpu_autocast_computes_in_float32(device, dtype):
    inputs = on(device, problem((3, 1, 2, 16, 7, 7, 10), dtype=torch.float32))
    halves = [tensor.detach().to(dtype) for tensor in inputs]
    with torch.autocast("cuda", dtype):
        scores, _ = ops.max_similarity(*halves)
    expected, _ = ops.max_similarity(*(tensor.float() for tensor in halves))
    assert scores.dtype == torch.float32
    assert torch.equal(scores, expected)


@pytest.mark.gpu
def test_gpu_samples_beyond_two_to_the_31(device):
    queries, channels = 120_000, 2049  # 9 parts each: 2.2e9 values
    if torch.cuda.mem_get_info(device)[0] < 11 * 2**30:
        pytest.skip("needs 11 GB of free GPU memory")
    z, moved, _ = on(device, problem((3, 1, 1, channels, 5, 5, 1), dtype=torch.float32))
    centres = (torch.arange(queries, device=device) % 25)[None]
    with torch.no_grad():
        parts = ops.sample_parts(z, moved, centres, kernel_size=3)
    assert parts.numel() > 2**31
    assert torch.equal(parts[:, :25], parts[:, -25:])


@pytest.mark.gpu
def test_gpu_batch_of_zero_launches_nothing(device):
    z, moved, prototypes = on(device, problem((3, 1, 0, 5, 4, 6, 7), dtype=torch.float32))
    scores, argmax = ops.max_similarity(z, moved, prototypes)
    scores.sum().backward()
    assert scores.shape == argmax.shape == (0, 7)
    assert torch.equal(prototypes.grad, torch.zeros_like(prototypes))
