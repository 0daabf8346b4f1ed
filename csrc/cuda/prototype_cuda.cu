// The operators on CUDA: tensors become pointers, and prototype_steps.h gives the order of
// launches.
//
// No atomics: the backward is deterministic whatever torch.use_deterministic_algorithms says.
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <limits>
#include <tuple>
#include <vector>

#include "../prototype_ops.h"
#include "prototype_steps.h"

namespace dpp {
namespace {

// The device of z, at its current stream: the Machine of prototype_steps.h.
class Cuda {
 public:
  static constexpr int64_t chunk_bytes = int64_t{256} << 20;

  explicit Cuda(const Tensor& z)
      : guard_(z.device()), stream_(at::cuda::getCurrentCUDAStream()), options_(z.options()) {}

  template <typename T>
  T* buffer(int64_t count) {
    held_.push_back(at::empty({count}, options_.dtype(c10::CppTypeToScalarType<T>::value)));
    return held_.back().template mutable_data_ptr<T>();
  }

  template <typename... Parameters, typename... Arguments>
  void launch(Grid grid, void (*kernel)(Parameters...), Arguments... arguments) {
    constexpr int64_t most_x = std::numeric_limits<int32_t>::max(), most_y = 65535;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(std::min(grid.x, most_x)),
                          static_cast<unsigned>(std::min(grid.y, most_y)));
    config.blockDim = dim3(kThreads);
    config.stream = stream_;
    // Rather than <<< >>>, which only nvcc reads: the tests compile this file for the host, too.
    C10_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }

  template <typename T>
  void multiply(const Matrix<T>& result, const Matrix<const T>& left, const Matrix<const T>& right,
                bool add) {
    Tensor out = view(result.data, result);
    at::addmm_out(out, out, view(const_cast<T*>(left.data), left),
                  view(const_cast<T*>(right.data), right), add ? 1 : 0, 1);
  }

 private:
  template <typename T, typename Shape>
  Tensor view(T* data, const Shape& shape) const {
    return at::from_blob(data, {shape.rows, shape.columns}, {shape.row_stride, shape.column_stride},
                         options_);
  }

  c10::cuda::CUDAGuard guard_;
  cudaStream_t stream_;
  at::TensorOptions options_;
  std::vector<Tensor> held_;
};

Tensor channels_last(const Tensor& images) { return images.permute({0, 2, 3, 1}).contiguous(); }
Tensor channels_first(const Tensor& images) { return images.permute({0, 3, 1, 2}); }

// The gradient of z, from channels-last memory to that of z.
Tensor in_memory_of(const Tensor& z, const Tensor& gradient) {
  Tensor result = at::empty_like(z), found = channels_first(gradient);
  return result.strides() == found.strides() ? found : result.copy_(found);
}

// The arguments in the layout of the kernels; holds the copies, where a copy was needed.
struct Arguments {
  Tensor z, offsets;
  int64_t kernel_size, dilation;
  double outside;

  Arguments(const Tensor& z, const MaybeTensor& offsets, int64_t kernel_size, int64_t dilation,
            double outside)
      : z(channels_last(z)),
        offsets(offsets ? offsets->contiguous() : Tensor()),
        kernel_size(kernel_size),
        dilation(dilation),
        outside(outside) {}

  int64_t images() const { return z.size(0); }
  int64_t area() const { return z.size(1) * z.size(2); }

  template <typename T>
  Features<T> features() const {
    const T* moved = offsets.defined() ? offsets.const_data_ptr<T>() : nullptr;
    return {z.const_data_ptr<T>(),  moved, z.size(3), z.size(1), z.size(2), kernel_size, dilation,
            static_cast<T>(outside)};
  }
};

// Gradients of an Arguments, and of prototypes (P, K, K, C) where there are any.
struct Results {
  Tensor z, offsets, prototypes;

  explicit Results(const Arguments& arguments, const Tensor& like = {})
      : z(at::zeros_like(arguments.z)),
        offsets(arguments.offsets.defined() ? at::zeros_like(arguments.offsets)
                                            : at::empty({0}, arguments.z.options())),
        prototypes(like.defined() ? at::zeros_like(like) : Tensor()) {}

  template <typename T>
  Gradients<T> gradients(double floor) {
    return {z.mutable_data_ptr<T>(), offsets.numel() > 0 ? offsets.mutable_data_ptr<T>() : nullptr,
            prototypes.defined() ? prototypes.mutable_data_ptr<T>() : nullptr,
            static_cast<T>(floor)};
  }
};

template <typename T>
Prototypes<const T> pointers(const Tensor& prototypes) {
  return {prototypes.const_data_ptr<T>(), prototypes.size(0)};
}

void check(const Tensor& z, const MaybeTensor& offsets, const Tensor& prototypes, int64_t dilation,
           double outside) {
  check_prototypes(z, prototypes);
  check_common(z, offsets, prototypes.size(3), dilation);
  check_outside(outside);
}

std::tuple<Tensor, Tensor> max_similarity_cuda(const Tensor& z, const MaybeTensor& offsets,
                                               const Tensor& prototypes, int64_t dilation,
                                               double outside) {
  check(z, offsets, prototypes, dilation, outside);
  Cuda cuda(z);
  const Arguments arguments(z, offsets, prototypes.size(3), dilation, outside);
  const Tensor weights = channels_last(prototypes);
  Tensor scores = at::empty({z.size(0), prototypes.size(0)}, z.options());
  Tensor argmax = at::empty(scores.sizes(), z.options().dtype(at::kLong));
  AT_DISPATCH_FLOATING_TYPES(z.scalar_type(), "max_similarity", [&] {
    max_similarity(cuda, arguments.features<scalar_t>(), arguments.images(),
                   pointers<scalar_t>(weights), scores.mutable_data_ptr<scalar_t>(),
                   argmax.mutable_data_ptr<int64_t>());
  });
  return {scores, argmax};
}

std::tuple<Tensor, Tensor, Tensor> max_similarity_backward_cuda(
    const Tensor& grad, const Tensor& argmax, const Tensor& z, const MaybeTensor& offsets,
    const Tensor& prototypes, int64_t dilation, double outside, double floor) {
  check(z, offsets, prototypes, dilation, outside);
  check_floor(floor);
  check_argmax(z, prototypes, argmax);
  check_grad(z, grad, {z.size(0), prototypes.size(0)});
  Cuda cuda(z);
  const Arguments arguments(z, offsets, prototypes.size(3), dilation, outside);
  const Tensor weights = channels_last(prototypes);
  const Tensor upstream = grad.contiguous(), places = argmax.contiguous();
  Results results(arguments, weights);
  AT_DISPATCH_FLOATING_TYPES(z.scalar_type(), "max_similarity_backward", [&] {
    max_similarity_backward(cuda, arguments.features<scalar_t>(), arguments.images(),
                            pointers<scalar_t>(weights), upstream.const_data_ptr<scalar_t>(),
                            places.const_data_ptr<int64_t>(), results.gradients<scalar_t>(floor));
  });
  return {in_memory_of(z, results.z), results.offsets, channels_first(results.prototypes)};
}

Tensor similarity_map_cuda(const Tensor& z, const MaybeTensor& offsets, const Tensor& prototypes,
                           int64_t dilation, double outside) {
  check(z, offsets, prototypes, dilation, outside);
  Cuda cuda(z);
  const Arguments arguments(z, offsets, prototypes.size(3), dilation, outside);
  const Tensor weights = channels_last(prototypes);
  Tensor map = at::empty({z.size(0), z.size(2), z.size(3), prototypes.size(0)}, z.options());
  AT_DISPATCH_FLOATING_TYPES(z.scalar_type(), "similarity_map", [&] {
    similarity_map(cuda, arguments.features<scalar_t>(), arguments.images(),
                   pointers<scalar_t>(weights), map.mutable_data_ptr<scalar_t>());
  });
  return channels_first(map);
}

std::tuple<Tensor, Tensor, Tensor> similarity_map_backward_cuda(const Tensor& grad, const Tensor& z,
                                                                const MaybeTensor& offsets,
                                                                const Tensor& prototypes,
                                                                int64_t dilation, double outside,
                                                                double floor) {
  check(z, offsets, prototypes, dilation, outside);
  check_floor(floor);
  check_grad(z, grad, {z.size(0), prototypes.size(0), z.size(2), z.size(3)});
  Cuda cuda(z);
  const Arguments arguments(z, offsets, prototypes.size(3), dilation, outside);
  const Tensor weights = channels_last(prototypes), upstream = channels_last(grad);
  Results results(arguments, weights);
  AT_DISPATCH_FLOATING_TYPES(z.scalar_type(), "similarity_map_backward", [&] {
    similarity_map_backward(cuda, arguments.features<scalar_t>(), arguments.images(),
                            pointers<scalar_t>(weights), upstream.const_data_ptr<scalar_t>(),
                            results.gradients<scalar_t>(floor));
  });
  return {in_memory_of(z, results.z), results.offsets, channels_first(results.prototypes)};
}

// Reading the centres back would stall the device: an index outside the map is reported as CUDA
// reports any, at the next synchronisation, and the kernels read nothing there.
void assert_on_map(const Tensor& centres, int64_t area) {
  at::_assert_async(centres.ge(0).logical_and_(centres.lt(area)).all(),
                    "centres must be flat indices into the feature map's H * W");
}

Tensor sample_parts_cuda(const Tensor& z, const MaybeTensor& offsets, const Tensor& centres,
                         int64_t kernel_size, int64_t dilation, double outside) {
  check_common(z, offsets, kernel_size, dilation);
  check_centres(z, centres);
  check_outside(outside);
  Cuda cuda(z);
  const Arguments arguments(z, offsets, kernel_size, dilation, outside);
  const Tensor places = centres.contiguous();
  const int64_t images = z.size(0), queries = centres.size(1);
  Tensor parts = at::empty({images, queries, kernel_size, kernel_size, z.size(1)}, z.options());
  assert_on_map(places, arguments.area());
  const Rows rows{places.const_data_ptr<int64_t>(), images, queries};
  AT_DISPATCH_FLOATING_TYPES(z.scalar_type(), "sample_parts", [&] {
    sample_parts(cuda, arguments.features<scalar_t>(), rows, parts.mutable_data_ptr<scalar_t>());
  });
  return parts.permute({0, 1, 4, 2, 3});
}

std::tuple<Tensor, Tensor> sample_parts_backward_cuda(const Tensor& grad, const Tensor& z,
                                                      const MaybeTensor& offsets,
                                                      const Tensor& centres, int64_t kernel_size,
                                                      int64_t dilation, double outside,
                                                      double floor) {
  check_common(z, offsets, kernel_size, dilation);
  check_centres(z, centres);
  check_outside(outside);
  check_floor(floor);
  check_grad(z, grad, {z.size(0), centres.size(1), z.size(1), kernel_size, kernel_size});
  Cuda cuda(z);
  const Arguments arguments(z, offsets, kernel_size, dilation, outside);
  const Tensor places = centres.contiguous(), upstream = grad.permute({0, 1, 3, 4, 2}).contiguous();
  Results results(arguments);
  assert_on_map(places, arguments.area());
  const Rows rows{places.const_data_ptr<int64_t>(), z.size(0), centres.size(1)};
  AT_DISPATCH_FLOATING_TYPES(z.scalar_type(), "sample_parts_backward", [&] {
    sample_parts_backward(cuda, arguments.features<scalar_t>(), rows,
                          upstream.const_data_ptr<scalar_t>(), results.gradients<scalar_t>(floor));
  });
  return {in_memory_of(z, results.z), results.offsets};
}

}  // namespace

TORCH_LIBRARY_IMPL(dpp, CUDA, m) {
  m.impl("max_similarity", &max_similarity_cuda);
  m.impl("max_similarity_backward", &max_similarity_backward_cuda);
  m.impl("similarity_map", &similarity_map_cuda);
  m.impl("similarity_map_backward", &similarity_map_backward_cuda);
  m.impl("sample_parts", &sample_parts_cuda);
  m.impl("sample_parts_backward", &sample_parts_backward_cuda);
}

}  // namespace dpp
