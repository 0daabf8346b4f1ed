"""The deformable prototype: one entry point to its implementations.

`max_similarity` is what training and scoring use; its backward touches only the places where a
maximum was. `similarity_map` gives the whole map, for figures and tests; `sample_parts` the
features under a prototype's parts, for projection. The compiled operators (`dpp/_C.so`, from
`csrc/`) serve the devices they were built for, `dpp.reference` serves the rest; `backend` and `why`
say which and why. `DPP_BACKEND=reference` or `=extension`, set before the import, selects one.

Compiled, they work in float32 under autocast, under `torch.compile` and `torch.export`, and are
differentiable once. Keep prototypes in channels-last memory format: others are copied. On the CPU,
large maxima are found by screening (`csrc/cpu/screening.h`), up to float32 rounding;
`DPP_SCREENING=never` or `=always`, read at each call, turns it off or on.
"""

import json
import os
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from dpp import reference
from dpp.reference import (
    ROOT_FLOOR,
    check_centres,
    check_common,
    check_prototypes,
    refuse_second_backward,
)
from dpp.system.paths import BUILD_REPORT, PACKAGE

EXTENSION = PACKAGE / "_C.so"
CHOICES = ("", "auto", "reference", "extension")


def max_similarity(
    z: Tensor,
    offsets: Tensor | None,
    prototypes: Tensor,
    *,
    dilation: int = 1,
    outside: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The highest similarity over all places, and where it is (equation 8).

    Arguments as for `similarity_map`.

    Returns:
        scores (N, P), and argmax (N, P), int64, a flat index into H*W; the first of equals. The
        argmax has no gradient.
    """
    kernel_size = prototypes.shape[-1] if prototypes.dim() else 1
    tensors = (z, offsets, prototypes)
    return _dispatch("max_similarity", tensors, {"dilation": dilation}, kernel_size, outside)


def similarity_map(
    z: Tensor,
    offsets: Tensor | None,
    prototypes: Tensor,
    *,
    dilation: int = 1,
    outside: float | None = None,
) -> Tensor:
    """The similarity of each prototype at each place, g(z)_{a,b} (equation 5).

    Args:
        z: (N, C, H, W) features, non-negative, float32 or float64.
        offsets: (N, 2*K*K, H, W), channels 2i and 2i+1 how far part i moves down and to the right,
            in cells; None for rigid prototypes (equation 4). A part that moves off the map, or by
            an infinite or NaN value, lies outside and has no gradient.
        prototypes: (P, C, K, K).
        dilation: cells between neighbouring parts; even if K is.
        outside: the last channel's value off the map, where all others are 0; None for r = 1/K.

    Returns:
        (N, P, H, W).
    """
    kernel_size = prototypes.shape[-1] if prototypes.dim() else 1
    tensors = (z, offsets, prototypes)
    return _dispatch("similarity_map", tensors, {"dilation": dilation}, kernel_size, outside)


def sample_parts(
    z: Tensor,
    offsets: Tensor | None,
    centres: Tensor,
    *,
    kernel_size: int,
    dilation: int = 1,
    outside: float | None = None,
) -> Tensor:
    """The interpolated features under every part of prototypes at given centres (Theorem 3.1).

    Args:
        z, offsets, dilation, outside: as for `similarity_map`, K being `kernel_size`.
        centres: (N, Q), int64, flat indices into H*W.

    Returns:
        (N, Q, C, K, K): `result[n, q]` has the shape of a prototype.
    """
    sizes = {"kernel_size": kernel_size, "dilation": dilation}
    return _dispatch("sample_parts", (z, offsets, centres), sizes, kernel_size, outside)


def backend(device: torch.device | str = "cpu") -> str:
    """Which implementation serves a device: "cpu", "cuda" or "reference"."""
    kind = torch.device(device).type
    return kind if kind in _SERVED else "reference"


def why() -> str:
    """The reason for the choice of `backend`, in one line."""
    return _REASON


def _dispatch(
    name: str,
    tensors: tuple[Tensor | None, ...],
    sizes: dict[str, int],
    kernel_size: int,
    outside: float | None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Calls the operator of this name in the implementation that serves the tensors' device.

    Args:
        tensors: z first, in the order of the operator's schema, as are `sizes`.
        outside: None for r = 1/K.
    """
    if backend(tensors[0].device) == "reference":
        return _in_float32(getattr(reference, name), tensors, {**sizes, "outside": outside})
    _refuse_tangents(tensors)
    outside = 1 / max(kernel_size, 1) if outside is None else outside
    return getattr(torch.ops.dpp, name)(*tensors, *sizes.values(), outside)


def _refuse_tangents(tensors: tuple[Tensor | None, ...]) -> None:
    """Refuses forward-mode differentiation, which would otherwise give zero derivatives."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    if any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise RuntimeError(
            "the deformable prototype has no forward-mode derivative: use backward() instead"
        )


def _in_float32(function, tensors: tuple[Tensor | None, ...], keywords: dict):
    """Calls a function of the reference in float32 under autocast, as the compiled ones do."""
    kind = tensors[0].device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return function(*tensors, **keywords)
    halves = (torch.float16, torch.bfloat16)
    tensors = [t.float() if t is not None and t.dtype in halves else t for t in tensors]
    with torch.autocast(kind, enabled=False):
        return function(*tensors, **keywords)


def _choose(choice: str) -> tuple[frozenset[str], str]:
    """The device types that the extension serves, and the reason."""
    if choice not in CHOICES:
        raise RuntimeError(
            f"DPP_BACKEND={choice}: expected auto (the default), reference or extension"
        )
    if choice == "reference":
        return frozenset(), "DPP_BACKEND=reference"
    served, reason = _load()
    if choice == "extension" and not served:
        raise RuntimeError(f"DPP_BACKEND=extension, but {reason}: run make setup")
    return served, reason


def _load() -> tuple[frozenset[str], str]:
    """Loads the extension and registers what the C++ side leaves to Python."""
    report = json.loads(BUILD_REPORT.read_text()) if BUILD_REPORT.is_file() else {}
    if not EXTENSION.is_file():
        return frozenset(), f"extension not built: {report.get('reason') or 'run make setup'}"
    try:
        torch.ops.load_library(EXTENSION)
    except OSError as error:
        reason = str(error).splitlines()[0]
        return frozenset(), f"extension built for another torch or Python: {reason}"
    _register()
    keys = {"cpu": "CPU", "cuda": "CUDA"}
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    served = frozenset(kind for kind in keys if has_kernel("dpp::max_similarity", keys[kind]))
    return served, f"built with {report.get('compiler') or 'an unrecorded compiler'}"


class _Rules(NamedTuple):
    """What Python adds to one operator of csrc/prototype_ops.cpp and to its backward."""

    fake: Callable
    backward_fake: Callable
    context: Callable  # keeps what backward needs
    backward: Callable


def _register() -> None:
    """Registers fake kernels, autograd and autocast of the operators."""
    library = torch.library
    for name, rules in _RULES.items():
        operator, backward = f"dpp::{name}", f"dpp::{name}_backward"
        library.register_fake(operator, rules.fake)
        library.register_fake(backward, rules.backward_fake)
        library.register_autograd(operator, rules.backward, setup_context=rules.context)
        library.register_autograd(backward, refuse_second_backward)
        for kind in ("cpu", "cuda"):
            library.register_autocast(operator, kind, torch.float32)


# Fake kernels: shapes and memory formats without the work.


def _max_similarity_fake(z, offsets, prototypes, dilation, outside):
    check_prototypes(z, prototypes)
    check_common(z, offsets, prototypes.shape[2], dilation, outside)
    shape = (z.shape[0], prototypes.shape[0])
    return z.new_empty(shape), z.new_empty(shape, dtype=torch.int64)


def _similarity_map_fake(z, offsets, prototypes, dilation, outside):
    check_prototypes(z, prototypes)
    check_common(z, offsets, prototypes.shape[2], dilation, outside)
    return z.new_empty(z.shape[0], *z.shape[2:], prototypes.shape[0]).permute(0, 3, 1, 2)


def _sample_parts_fake(z, offsets, centres, kernel_size, dilation, outside):
    check_common(z, offsets, kernel_size, dilation, outside)
    check_centres(z, centres)
    shape = (*centres.shape, kernel_size, kernel_size, z.shape[1])
    return z.new_empty(shape).permute(0, 1, 4, 2, 3)


def _offsets_grad_fake(z, offsets):
    return z.new_empty(0 if offsets is None else offsets.shape)


def _prototypes_grad_fake(prototypes):
    count, channels, height, width = prototypes.shape
    return prototypes.new_empty(count, height, width, channels).permute(0, 3, 1, 2)


def _max_similarity_backward_fake(grad, argmax, z, offsets, prototypes, dilation, outside, floor):
    grads = _offsets_grad_fake(z, offsets), _prototypes_grad_fake(prototypes)
    return torch.empty_like(z), *grads


def _similarity_map_backward_fake(grad, z, offsets, prototypes, dilation, outside, floor):
    grads = _offsets_grad_fake(z, offsets), _prototypes_grad_fake(prototypes)
    return torch.empty_like(z), *grads


def _sample_parts_backward_fake(grad, z, offsets, centres, kernel_size, dilation, outside, floor):
    return torch.empty_like(z), _offsets_grad_fake(z, offsets)


# Autograd: what forward keeps, and which operator goes backward.


def _max_similarity_context(ctx, inputs, output):
    z, offsets, prototypes, ctx.dilation, ctx.outside = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1], z, offsets, prototypes)


def _max_similarity_backward(ctx, grad, _):
    argmax, z, offsets, prototypes = ctx.saved_tensors
    z_grad, offsets_grad, prototypes_grad = torch.ops.dpp.max_similarity_backward(
        grad, argmax, z, offsets, prototypes, ctx.dilation, ctx.outside, ROOT_FLOOR
    )
    return z_grad, None if offsets is None else offsets_grad, prototypes_grad, None, None


def _similarity_map_context(ctx, inputs, output):
    z, offsets, prototypes, ctx.dilation, ctx.outside = inputs
    ctx.save_for_backward(z, offsets, prototypes)


def _similarity_map_backward(ctx, grad):
    z, offsets, prototypes = ctx.saved_tensors
    z_grad, offsets_grad, prototypes_grad = torch.ops.dpp.similarity_map_backward(
        grad, z, offsets, prototypes, ctx.dilation, ctx.outside, ROOT_FLOOR
    )
    return z_grad, None if offsets is None else offsets_grad, prototypes_grad, None, None


def _sample_parts_context(ctx, inputs, output):
    z, offsets, centres, ctx.kernel_size, ctx.dilation, ctx.outside = inputs
    ctx.save_for_backward(z, offsets, centres)


def _sample_parts_backward(ctx, grad):
    z, offsets, centres = ctx.saved_tensors
    z_grad, offsets_grad = torch.ops.dpp.sample_parts_backward(
        grad, z, offsets, centres, ctx.kernel_size, ctx.dilation, ctx.outside, ROOT_FLOOR
    )
    return z_grad, None if offsets is None else offsets_grad, None, None, None, None


_RULES = {
    "max_similarity": _Rules(
        _max_similarity_fake,
        _max_similarity_backward_fake,
        _max_similarity_context,
        _max_similarity_backward,
    ),
    "similarity_map": _Rules(
        _similarity_map_fake,
        _similarity_map_backward_fake,
        _similarity_map_context,
        _similarity_map_backward,
    ),
    "sample_parts": _Rules(
        _sample_parts_fake,
        _sample_parts_backward_fake,
        _sample_parts_context,
        _sample_parts_backward,
    ),
}

# Decided once, when the module is imported: a compiled graph may then rely on it.
_SERVED, _REASON = _choose(os.environ.get("DPP_BACKEND", ""))
