"""Calls the CUDA kernels, compiled for the host, with the arguments of `torch.ops.dpp`."""

import ctypes
import subprocess
from pathlib import Path

import torch

HERE = Path(__file__).parent
FLAGS = "-std=c++20 -Wall -Wextra -Werror -Wno-unknown-pragmas -U_FORTIFY_SOURCE".split()

# driver.cpp has the same two lists, in the same order.
OPERATORS = (
    "max_similarity max_similarity_backward similarity_map similarity_map_backward sample_parts "
    "sample_parts_backward missed_barrier two_barriers missed_shuffle unwritten_shared neighbour"
).split()
INTEGERS = (
    "which images channels height width kernel_size dilation prototypes queries chunk_bytes "
    "most_blocks order"
).split()
POINTERS = ("z offsets weights grad location result grad_z grad_offsets grad_weights").split()


class Call(ctypes.Structure):
    _fields_ = (
        [(name, ctypes.c_int64) for name in INTEGERS]
        + [("outside", ctypes.c_double), ("floor", ctypes.c_double)]
        + [(name, ctypes.c_void_p) for name in POINTERS]
    )


def compile_host(source, target, compiler, *flags):
    """Compiles a file of this folder; the compiler's words in the error if it refuses."""
    command = [*compiler, *FLAGS, *flags, str(HERE / source), "-o", str(target), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def unwritten(like, grad):
    """A gradient that the kernels must write; where there is nothing to do, nothing is written."""
    return torch.full_like(like, torch.nan if grad.numel() else 0)


class Emulator:
    """The six operators as prototype_cuda.cu prepares them.

    Args:
        library: driver.cpp as a shared library.
        chunk_bytes: scratch memory of one chunk of images.
        most_blocks: a launch's blocks, at most; the kernels stride over the rest.
        order: of threads and blocks: "forwards", "backwards" or "random".
    """

    def __init__(self, library, chunk_bytes=2**28, most_blocks=11, order="forwards"):
        self.run = ctypes.CDLL(str(library)).dpp_run
        self.run.restype = ctypes.c_char_p
        order = ["forwards", "backwards", "random"].index(order)
        self.settings = dict(chunk_bytes=chunk_bytes, most_blocks=most_blocks, order=order)

    def call(self, operator, dtype=torch.float32, **arguments):
        call = Call(which=OPERATORS.index(operator), **self.settings)
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor):
                assert value.is_contiguous() and value.dtype in (dtype, torch.int64, torch.int32)
                value = value.data_ptr()
            setattr(call, name, value)
        if error := self.run(ctypes.byref(call), int(dtype == torch.float64)):
            raise RuntimeError(error.decode())

    def _apply(self, operator, z, offsets, kernel_size, dilation, outside, **arguments):
        images, channels, height, width = z.shape
        features = z.detach().permute(0, 2, 3, 1).contiguous()
        moved = None if offsets is None else offsets.detach().contiguous()
        sizes = dict(images=images, channels=channels, height=height, width=width)
        self.call(
            operator, z.dtype, z=features, offsets=moved, kernel_size=kernel_size,
            dilation=dilation, outside=outside, **sizes, **arguments,
        )  # fmt: skip

    def _backward(self, operator, grad, z, offsets, kernel_size, dilation, outside, **arguments):
        images, channels, height, width = z.shape
        grad_z = z.new_zeros(images, height, width, channels)
        grad_offsets = None if offsets is None else unwritten(offsets, grad)
        self._apply(
            operator, z, offsets, kernel_size, dilation, outside,
            grad=grad, grad_z=grad_z, grad_offsets=grad_offsets, **arguments,
        )  # fmt: skip
        return grad_z.permute(0, 3, 1, 2), grad_offsets

    def max_similarity(self, z, offsets, prototypes, dilation, outside):
        count, _, size, _ = prototypes.shape
        weights = prototypes.detach().permute(0, 2, 3, 1).contiguous()
        scores = z.new_full((len(z), count), torch.nan)
        argmax = torch.full(scores.shape, -1)
        self._apply(
            "max_similarity", z, offsets, size, dilation, outside,
            weights=weights, prototypes=count, result=scores, location=argmax,
        )  # fmt: skip
        return scores, argmax

    def max_similarity_backward(
        self, grad, argmax, z, offsets, prototypes, dilation, outside, floor
    ):
        count, _, size, _ = prototypes.shape
        weights = prototypes.detach().permute(0, 2, 3, 1).contiguous()
        grad_weights = unwritten(weights, grad)
        grad_z, grad_offsets = self._backward(
            "max_similarity_backward", grad.contiguous(), z, offsets, size, dilation, outside,
            floor=floor, weights=weights, prototypes=count, location=argmax,
            grad_weights=grad_weights,
        )  # fmt: skip
        return grad_z, grad_offsets, grad_weights.permute(0, 3, 1, 2)

    def similarity_map(self, z, offsets, prototypes, dilation, outside):
        count, _, size, _ = prototypes.shape
        weights = prototypes.detach().permute(0, 2, 3, 1).contiguous()
        similarity = z.new_full((len(z), *z.shape[2:], count), torch.nan)
        self._apply(
            "similarity_map", z, offsets, size, dilation, outside,
            weights=weights, prototypes=count, result=similarity,
        )  # fmt: skip
        return similarity.permute(0, 3, 1, 2)

    def similarity_map_backward(self, grad, z, offsets, prototypes, dilation, outside, floor):
        count, _, size, _ = prototypes.shape
        weights = prototypes.detach().permute(0, 2, 3, 1).contiguous()
        grad_weights = unwritten(weights, grad)
        grad_z, grad_offsets = self._backward(
            "similarity_map_backward", grad.permute(0, 2, 3, 1).contiguous(), z, offsets, size,
            dilation, outside, floor=floor, weights=weights, prototypes=count,
            grad_weights=grad_weights,
        )  # fmt: skip
        return grad_z, grad_offsets, grad_weights.permute(0, 3, 1, 2)

    def sample_parts(self, z, offsets, centres, kernel_size, dilation, outside):
        queries = centres.shape[1]
        parts = z.new_full((len(z), queries, kernel_size, kernel_size, z.shape[1]), torch.nan)
        self._apply(
            "sample_parts", z, offsets, kernel_size, dilation, outside,
            location=centres, queries=queries, result=parts,
        )  # fmt: skip
        return parts.permute(0, 1, 4, 2, 3)

    def sample_parts_backward(
        self, grad, z, offsets, centres, kernel_size, dilation, outside, floor
    ):
        return self._backward(
            "sample_parts_backward", grad.permute(0, 1, 3, 4, 2).contiguous(), z, offsets,
            kernel_size, dilation, outside, floor=floor, location=centres,
            queries=centres.shape[1],
        )  # fmt: skip
