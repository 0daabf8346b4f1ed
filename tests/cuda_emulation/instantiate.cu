// Every kernel, as the steps launch it, for float and double: what nvcc compiles without torch.
#include "../../csrc/cuda/prototype_steps.h"

namespace {

struct Machine {
  int64_t chunk_bytes = 0;

  template <typename T>
  T* buffer(int64_t) {
    return nullptr;
  }
  template <typename... Parameters, typename... Arguments>
  void launch(dpp::Grid grid, void (*kernel)(Parameters...), Arguments... arguments) {
    const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
    kernel<<<blocks, dpp::kThreads>>>(static_cast<Parameters>(arguments)...);
  }
  template <typename Result, typename Left, typename Right>
  void multiply(Result, Left, Right, bool) {}
};

template <typename T>
void instantiate() {
  Machine machine;
  const dpp::Features<T> features{};
  const dpp::Prototypes<const T> prototypes{};
  const dpp::Gradients<T> gradients{};
  const dpp::Rows rows{};
  T* values = nullptr;
  const T* grad = nullptr;
  int64_t* argmax = nullptr;
  dpp::max_similarity(machine, features, 0, prototypes, values, argmax);
  dpp::similarity_map(machine, features, 0, prototypes, values);
  dpp::sample_parts(machine, features, rows, values);
  dpp::max_similarity_backward(machine, features, 0, prototypes, grad, argmax, gradients);
  dpp::similarity_map_backward(machine, features, 0, prototypes, grad, gradients);
  dpp::sample_parts_backward(machine, features, rows, grad, gradients);
}

}  // namespace

void instantiate_all() {
  instantiate<float>();
  instantiate<double>();
}
