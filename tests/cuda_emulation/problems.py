"""Problems for the CUDA kernels, and how their results are compared."""

import itertools

import pytest
import torch

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}

# kernel size, dilation, images, channels, height, width, prototypes
SHAPES = [(3, 1, 3, 5, 4, 6, 7), (2, 2, 1, 33, 5, 5, 140), (3, 2, 2, 70, 6, 3, 9)]
EDGES = [
    (1, 1, 3, 130, 3, 4, 5),
    (2, 2, 2, 3, 12, 13, 4),  # more places than threads
    (3, 1, 1, 1, 1, 1, 1),
    (1, 1, 130, 2, 2, 2, 3),  # more images than threads
    (3, 1, 0, 5, 4, 6, 7),
    (2, 2, 2, 5, 3, 3, 0),
]
OFFSETS = ["none", "whole", "small", "across", "far", "odd"]
CASES = [
    pytest.param(shape, offsets, *rest, id=f"{'-'.join(map(str, shape))}-{offsets}-{name}")
    for shape, offsets in [
        *itertools.product(SHAPES, OFFSETS),
        *((edge, "across") for edge in EDGES),
    ]
    for name, *rest in [("double", 1 / shape[0], torch.float64), ("float", 0.0, torch.float32)]
]


def problem(shape, offsets="small", dtype=torch.float64, seed=0):
    """Features, half of them zero, offsets of a kind, and prototypes; all with gradients."""
    size, _, images, channels, height, width, count = shape
    random = torch.Generator().manual_seed(seed)

    def uniform(*sizes):
        return torch.rand(*sizes, generator=random, dtype=torch.float64).to(dtype)

    z = torch.relu(uniform(images, channels, height, width) - 0.5)
    z[:, -1] += 1e-5
    moved = 2 * uniform(images, 2 * size**2, height, width) - 1
    if offsets == "whole":
        moved = moved.round()
    elif offsets == "across":
        moved = moved * max(height, width)
    elif offsets == "far":
        moved = moved * 1e6
    elif offsets == "odd":
        odd = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, -(2.0**40)], dtype=dtype)
        moved.flatten()[::3] = odd.repeat(moved.numel())[: moved.flatten()[::3].numel()]
    prototypes = uniform(count, channels, size, size) - 0.3
    tensors = [z, None if offsets == "none" else moved, prototypes]
    return [tensor if tensor is None else tensor.requires_grad_() for tensor in tensors]


def gradients_of(result, grad, inputs):
    """Autograd's gradients; None for an input that is None, zeros for one without influence."""
    wanted = [tensor for tensor in inputs if tensor is not None]
    found = iter(torch.autograd.grad(result, wanted, grad, allow_unused=True, retain_graph=True))
    pairs = [(tensor, None if tensor is None else next(found)) for tensor in inputs]
    return [
        torch.zeros_like(tensor) if found is None and tensor is not None else found
        for tensor, found in pairs
    ]


def assert_close(found, expected, dtype):
    assert (found is None) == (expected is None)
    if found is not None:
        scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
        tolerance = TOLERANCE[dtype] * scale
        torch.testing.assert_close(found, expected.detach(), rtol=0, atol=tolerance)


def random_like(tensor, seed=1):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(tensor.shape, generator=random, dtype=torch.float64).to(tensor.dtype)
