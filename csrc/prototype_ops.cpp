// The operators' schemas and the checks of their arguments. Kernels are in cpu/ and cuda/;
// autograd, autocast and fake kernels are registered from Python, in dpp/ops.py.
#include "prototype_ops.h"

#include <Python.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <string_view>

namespace dpp {
namespace {

constexpr int64_t kMostPlaces = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostPartsAcross = 1024;
constexpr int64_t kWidestPrototype = int64_t{1} << 30;

// "float32", as Python spells it.
std::string_view dtype_of(const Tensor& tensor) {
  return c10::getDtypeNames(tensor.scalar_type()).first;
}

void check_device(const char* name, const Tensor& tensor, const Tensor& z) {
  TORCH_CHECK(tensor.device() == z.device(), name, ": expected device ", z.device(),
              ", as z has, got ", tensor.device());
}

void check_like(const char* name, const Tensor& tensor, const Tensor& z) {
  check_device(name, tensor, z);
  TORCH_CHECK(tensor.scalar_type() == z.scalar_type(), name, ": expected dtype ", dtype_of(z),
              ", as z has, got ", dtype_of(tensor));
}

void check_indices(const char* name, const Tensor& z, const Tensor& indices) {
  check_device(name, indices, z);
  TORCH_CHECK(indices.scalar_type() == at::kLong, name, ": expected dtype int64, got ",
              dtype_of(indices));
  if (!indices.is_cpu() || indices.numel() == 0) return;
  const int64_t places = z.size(2) * z.size(3);
  const auto [least, most] = at::aminmax(indices);
  const int64_t low = least.item<int64_t>(), high = most.item<int64_t>();
  TORCH_CHECK(low >= 0 && high < places, name, ": expected values in [0, ", places,
              "), flat indices into the map, got values from ", low, " to ", high);
}

}  // namespace

void check_common(const Tensor& z, const MaybeTensor& offsets, int64_t kernel_size,
                  int64_t dilation) {
  TORCH_CHECK(z.dim() == 4, "z: expected shape (N, C, H, W), got ", z.sizes());
  TORCH_CHECK(z.scalar_type() == at::kFloat || z.scalar_type() == at::kDouble,
              "z: expected dtype float32 or float64, got ", dtype_of(z));
  TORCH_CHECK(z.size(1) >= 1 && z.size(2) >= 1 && z.size(3) >= 1,
              "z: expected at least one channel, row and column, got ", z.sizes());
  TORCH_CHECK(z.size(2) <= kMostPlaces / z.size(3), "z: expected a map of at most ", kMostPlaces,
              " places, got ", z.sizes());
  TORCH_CHECK(kernel_size >= 1, "kernel_size: expected at least 1, got ", kernel_size);
  TORCH_CHECK(kernel_size <= kMostPartsAcross, "kernel_size: expected at most ", kMostPartsAcross,
              ", got ", kernel_size);
  TORCH_CHECK(dilation >= 1, "dilation: expected at least 1, got ", dilation);
  TORCH_CHECK(kernel_size % 2 == 1 || dilation % 2 == 0,
              "dilation: expected an even number, since ", kernel_size, "x", kernel_size,
              " prototypes have no part at their centre, got ", dilation);
  TORCH_CHECK(dilation <= kWidestPrototype / kernel_size, "dilation: expected at most ",
              kWidestPrototype / kernel_size, ", got ", dilation);
  if (!offsets.has_value()) return;
  const int64_t expected[4] = {z.size(0), 2 * kernel_size * kernel_size, z.size(2), z.size(3)};
  TORCH_CHECK(offsets->sizes().equals(expected), "offsets: expected shape ",
              at::IntArrayRef(expected), ", got ", offsets->sizes());
  check_like("offsets", *offsets, z);
}

void check_outside(double outside) {
  TORCH_CHECK(std::isfinite(outside), "outside: expected a finite number, got ", outside);
}

void check_floor(double floor) {
  TORCH_CHECK(std::isfinite(floor) && floor > 0, "floor: expected a positive number, got ", floor);
}

void check_prototypes(const Tensor& z, const Tensor& prototypes) {
  TORCH_CHECK(z.dim() == 4, "z: expected shape (N, C, H, W), got ", z.sizes());
  TORCH_CHECK(prototypes.dim() == 4 && prototypes.size(1) == z.size(1) &&
                  prototypes.size(2) == prototypes.size(3) && prototypes.size(2) >= 1,
              "prototypes: expected shape (P, ", z.size(1), ", K, K), got ", prototypes.sizes());
  check_like("prototypes", prototypes, z);
}

void check_centres(const Tensor& z, const Tensor& centres) {
  TORCH_CHECK(centres.dim() == 2 && centres.size(0) == z.size(0), "centres: expected shape (",
              z.size(0), ", Q), got ", centres.sizes());
  check_indices("centres", z, centres);
}

void check_argmax(const Tensor& z, const Tensor& prototypes, const Tensor& argmax) {
  const int64_t expected[2] = {z.size(0), prototypes.size(0)};
  TORCH_CHECK(argmax.sizes().equals(expected), "argmax: expected shape ", at::IntArrayRef(expected),
              ", got ", argmax.sizes());
  check_indices("argmax", z, argmax);
}

void check_grad(const Tensor& z, const Tensor& grad, at::IntArrayRef expected) {
  TORCH_CHECK(grad.sizes().equals(expected), "grad: expected shape ", expected, ", got ",
              grad.sizes());
  check_like("grad", grad, z);
}

TORCH_LIBRARY(dpp, m) {
  m.def(
      "max_similarity(Tensor z, Tensor? offsets, Tensor prototypes, int dilation, float outside)"
      " -> (Tensor scores, Tensor argmax)");
  m.def(
      "max_similarity_backward(Tensor grad, Tensor argmax, Tensor z, Tensor? offsets,"
      " Tensor prototypes, int dilation, float outside, float floor) -> (Tensor, Tensor, Tensor)");
  m.def(
      "similarity_map(Tensor z, Tensor? offsets, Tensor prototypes, int dilation, float outside)"
      " -> Tensor");
  m.def(
      "similarity_map_backward(Tensor grad, Tensor z, Tensor? offsets, Tensor prototypes,"
      " int dilation, float outside, float floor) -> (Tensor, Tensor, Tensor)");
  m.def(
      "sample_parts(Tensor z, Tensor? offsets, Tensor centres, int kernel_size, int dilation,"
      " float outside) -> Tensor");
  m.def(
      "sample_parts_backward(Tensor grad, Tensor z, Tensor? offsets, Tensor centres,"
      " int kernel_size, int dilation, float outside, float floor) -> (Tensor, Tensor)");
}

}  // namespace dpp

// Importing dpp._C runs the registrations above; the module itself is empty.
extern "C" PyObject* PyInit__C() {
  static PyModuleDef definition = {
      PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&definition);
}
