// prototype_cuda.cu against torch, as the operators of the CPU: its own code, with launches
// emulated.
//
// Found before torch's headers of the same names, empty ones stand in for those of CUDA
// (test_cuda.py writes them); what prototype_cuda.cu takes from them is below.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "cuda_on_host.h"

using cudaStream_t = int;
struct dim3 {
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  unsigned x, y, z;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  cudaStream_t stream;
};

template <typename... Parameters, typename... Arguments>
bool cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                        Arguments... arguments) {
  if (config->gridDim.x < 1 || config->gridDim.y < 1) return false;
  // Few blocks: starting one takes the emulation longer than its work.
  cuda_on_host::run(std::min(config->gridDim.x, 16u), std::min(config->gridDim.y, 16u),
                    static_cast<int>(config->blockDim.x), cuda_on_host::Order::forwards,
                    [&] { kernel(arguments...); });
  return true;
}

namespace at::cuda {
inline cudaStream_t getCurrentCUDAStream() { return 0; }
}  // namespace at::cuda
namespace c10::cuda {
struct CUDAGuard {
  explicit CUDAGuard(const at::Device&) {}
};
}  // namespace c10::cuda

#define C10_CUDA_CHECK(call) TORCH_CHECK(call, "an empty launch")
#define C10_CUDA_KERNEL_LAUNCH_CHECK()
#define CUDA CPU  // the dispatch key of TORCH_LIBRARY_IMPL
#include "../../csrc/cuda/prototype_cuda.cu"
