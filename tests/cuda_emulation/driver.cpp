// The steps and kernels of csrc/cuda, run on the host: called from tests/test_cuda.py through
// ctypes.
#include <memory>

#include "cuda_on_host.h"
// The kernels must see the names above.
#include "../../csrc/cuda/prototype_steps.h"

namespace {

enum Operator : int64_t {
  kMaxSimilarity,
  kMaxSimilarityBackward,
  kSimilarityMap,
  kSimilarityMapBackward,
  kSampleParts,
  kSamplePartsBackward,
  kMissedBarrier,
  kTwoBarriers,
  kMissedShuffle,
  kUnwrittenShared,
  kNeighbour,
};

}  // namespace

// One call, with the union of all arguments; tests/test_cuda.py has the same list.
extern "C" struct Call {
  int64_t which, images, channels, height, width, kernel_size, dilation, prototypes, queries;
  int64_t chunk_bytes, most_blocks, order;
  double outside, floor;
  const void *z, *offsets, *weights, *grad;
  int64_t* location;  // argmax or centres
  void *result, *grad_z, *grad_offsets, *grad_weights;
};

namespace {

using cuda_on_host::Order;

class Host {
 public:
  explicit Host(const Call& call)
      : chunk_bytes(call.chunk_bytes),
        most_blocks_(call.most_blocks),
        order_(static_cast<Order>(call.order)) {}

  const int64_t chunk_bytes;

  // Exactly as long as asked for, which lets AddressSanitizer see a step too far, and full of ones:
  // not a number, and an index that is on no map.
  template <typename T>
  T* buffer(int64_t count) {
    held_.push_back(std::make_unique<char[]>(count * sizeof(T)));
    std::memset(held_.back().get(), 0xff, count * sizeof(T));
    return reinterpret_cast<T*>(held_.back().get());
  }

  template <typename... Parameters, typename... Arguments>
  void launch(dpp::Grid grid, void (*kernel)(Parameters...), Arguments... arguments) {
    if (grid.x < 1 || grid.y < 1) throw std::runtime_error("an empty launch");
    const auto clamp = [&](int64_t blocks) {
      return static_cast<unsigned>(std::min(blocks, most_blocks_));
    };
    cuda_on_host::run(clamp(grid.x), clamp(grid.y), dpp::kThreads, order_,
                      [&] { kernel(static_cast<Parameters>(arguments)...); });
  }

  template <typename T>
  void multiply(const dpp::Matrix<T>& result, const dpp::Matrix<const T>& left,
                const dpp::Matrix<const T>& right, bool add) {
    if (left.columns != right.rows || result.rows != left.rows || result.columns != right.columns) {
      throw std::runtime_error("matrices that do not fit");
    }
    for (int64_t i = 0; i < result.rows; ++i) {
      for (int64_t j = 0; j < result.columns; ++j) {
        T& cell = result.data[i * result.row_stride + j * result.column_stride];
        double sum = add ? cell : T(0);
        for (int64_t k = 0; k < left.columns; ++k) {
          sum += double(left.data[i * left.row_stride + k * left.column_stride]) *
                 right.data[k * right.row_stride + j * right.column_stride];
        }
        cell = static_cast<T>(sum);
      }
    }
  }

 private:
  int64_t most_blocks_;
  Order order_;
  std::vector<std::unique_ptr<char[]>> held_;
};

// Kernels with a fault each, which the emulation must report or show.
__global__ void missed_barrier(int*) {
  if (threadIdx.x != 5) __syncthreads();
}
__global__ void two_barriers(int*) {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void missed_shuffle(int* result) {
  if (threadIdx.x > 0) *result += __shfl_down_sync(0xffffffffu, 1, 1);
}
__global__ void unwritten_shared(int* result) {
  __shared__ int values[dpp::kThreads];
  if (threadIdx.x > 0) values[threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x == 0) *result = values[0];
}
__global__ void neighbour(int* result) {  // no barrier between writing and reading
  __shared__ int values[dpp::kThreads];
  values[threadIdx.x] = 1;
  if (threadIdx.x == 1) *result = values[0];
}

template <typename T>
void run(const Call& call) {
  Host host(call);
  const auto read = [](const void* data) { return static_cast<const T*>(data); };
  const auto write = [](void* data) { return static_cast<T*>(data); };
  const dpp::Features<T> features{
      read(call.z), read(call.offsets), call.channels, call.height,
      call.width,   call.kernel_size,   call.dilation, static_cast<T>(call.outside)};
  const dpp::Prototypes<const T> prototypes{read(call.weights), call.prototypes};
  const dpp::Gradients<T> gradients{write(call.grad_z), write(call.grad_offsets),
                                    write(call.grad_weights), static_cast<T>(call.floor)};
  const dpp::Rows rows{call.location, call.images, call.queries};
  int* integer = static_cast<int*>(call.result);
  const dpp::Grid one{1, 1};
  switch (static_cast<Operator>(call.which)) {
    case kMaxSimilarity:
      return max_similarity(host, features, call.images, prototypes, write(call.result),
                            call.location);
    case kMaxSimilarityBackward:
      return max_similarity_backward(host, features, call.images, prototypes, read(call.grad),
                                     call.location, gradients);
    case kSimilarityMap:
      return similarity_map(host, features, call.images, prototypes, write(call.result));
    case kSimilarityMapBackward:
      return similarity_map_backward(host, features, call.images, prototypes, read(call.grad),
                                     gradients);
    case kSampleParts:
      return sample_parts(host, features, rows, write(call.result));
    case kSamplePartsBackward:
      return sample_parts_backward(host, features, rows, read(call.grad), gradients);
    case kMissedBarrier:
      return host.launch(one, missed_barrier, integer);
    case kTwoBarriers:
      return host.launch(one, two_barriers, integer);
    case kMissedShuffle:
      return host.launch(one, missed_shuffle, integer);
    case kUnwrittenShared:
      return host.launch(one, unwritten_shared, integer);
    case kNeighbour:
      return host.launch(one, neighbour, integer);
  }
}

}  // namespace

// Null, or what went wrong.
extern "C" const char* dpp_run(const Call* call, int is_double) {
  static std::string error;
  try {
    is_double ? run<double>(*call) : run<float>(*call);
    return nullptr;
  } catch (const std::exception& exception) {
    error = exception.what();
    return error.c_str();
  }
}
