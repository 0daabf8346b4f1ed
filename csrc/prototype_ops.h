// What every backend shares: the checks of its arguments, and the sizes read from them.
//
// z (N, C, H, W); offsets (N, 2*parts, H, W) or none; prototypes (P, C, K, K); `outside` is the
// last channel's value outside the map; `floor` bounds the derivative of the square root. A backend
// calls the checks first in each of its operators, so that a raw torch.ops.dpp call is as safe as
// dpp.ops. Errors are RuntimeErrors that name the argument, what was seen and what was expected;
// dpp/reference.py says the same in the same words.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>

namespace dpp {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

// z, offsets and the scalars. Batches of 0 pass; empty maps do not, a maximum over nothing is
// undefined.
void check_common(const Tensor& z, const MaybeTensor& offsets, int64_t kernel_size,
                  int64_t dilation);
void check_outside(double outside);
void check_floor(double floor);

// (P, C, K, K), square, of z's channels, dtype and device.
void check_prototypes(const Tensor& z, const Tensor& prototypes);

// int64 (N, Q) on z's device. Values are checked here on the CPU only: reading them elsewhere would
// wait for the device, so a device's kernels must skip what lies outside [0, H*W).
void check_centres(const Tensor& z, const Tensor& centres);

// The same for the argmax of max_similarity, (N, P).
void check_argmax(const Tensor& z, const Tensor& prototypes, const Tensor& argmax);

// An incoming gradient: the given shape, z's dtype and device.
void check_grad(const Tensor& z, const Tensor& grad, at::IntArrayRef expected);

}  // namespace dpp
