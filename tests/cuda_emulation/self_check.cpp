// Random problems in buffers of exactly their size, for a build with AddressSanitizer and UBSan.
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "driver.cpp"

namespace {

template <typename T>
void check(unsigned seed) {
  std::mt19937 random(seed);
  const auto upto = [&](int64_t most) { return static_cast<int64_t>(random() % (most + 1)); };
  const auto values = [&](int64_t count, double least, double most) {
    std::vector<T> result(count);
    std::uniform_real_distribution<double> between(least, most);
    for (T& value : result) value = upto(3) ? static_cast<T>(between(random)) : T(0);
    return result;
  };
  Call call{};
  call.images = upto(3);
  call.channels = 1 + upto(upto(9) ? 40 : 300);
  call.height = 1 + upto(7);
  call.width = 1 + upto(upto(9) ? 7 : 40);
  call.kernel_size = 1 + upto(2);
  call.dilation = 1 + upto(2);
  if (call.kernel_size % 2 == 0) call.dilation = 2;
  call.prototypes = upto(upto(9) ? 20 : 300);
  call.queries = upto(12);
  call.chunk_bytes = upto(1) ? 1 : 1 << 20;
  call.most_blocks = 1 + upto(3);  // few: starting a block is what takes the time
  call.order = upto(2);
  call.outside = upto(1) ? 0.5 : 0;
  call.floor = 1e-4;

  const int64_t area = call.height * call.width, parts = call.kernel_size * call.kernel_size;
  const int64_t features = call.images * area * call.channels;
  const int64_t weights = call.prototypes * parts * call.channels;
  const int64_t scores = call.images * call.prototypes;
  const int64_t samples = call.images * call.queries * parts * call.channels;
  const auto z = values(features, 0, 1), prototypes = values(weights, 0, 1);
  auto offsets = values(call.images * 2 * parts * area, -4, 4);
  const T odd[] = {T(1e6), T(-1e30), std::numeric_limits<T>::infinity(),
                   std::numeric_limits<T>::quiet_NaN()};
  for (size_t i = upto(50); i < offsets.size(); i += 51) offsets[i] = odd[upto(3)];
  const bool rigid = upto(4) == 0;
  call.z = z.data();
  call.weights = prototypes.data();
  call.offsets = rigid ? nullptr : offsets.data();

  const auto forward = [&](Operator which, int64_t count, std::vector<int64_t>& location) {
    std::vector<T> result(count);
    call.which = which;
    call.result = result.data();
    call.location = location.data();
    if (const char* error = dpp_run(&call, sizeof(T) == 8)) {
      std::printf("seed %u: %s\n", seed, error);
      std::exit(1);
    }
  };
  const auto backward = [&](Operator which, int64_t count, std::vector<int64_t>& location) {
    const auto grad = values(count, -1, 1);
    std::vector<T> grad_z(features), grad_offsets(rigid ? 0 : offsets.size()),
        grad_weights(weights);
    call.grad = grad.data();
    call.grad_z = grad_z.data();
    call.grad_offsets = rigid ? nullptr : grad_offsets.data();
    call.grad_weights = grad_weights.data();
    forward(which, 0, location);
    for (const auto* gradient : {&grad_z, &grad_offsets, &grad_weights}) {
      for (const T value : *gradient) {
        if (std::isfinite(value)) continue;
        std::printf("seed %u: a gradient that is not finite\n", seed);
        std::exit(1);
      }
    }
  };
  std::vector<int64_t> argmax(scores), centres(call.images * call.queries);
  for (int64_t& centre : centres) centre = upto(9) ? upto(area - 1) : upto(1) ? -1 : area;
  forward(kMaxSimilarity, scores, argmax);
  if (scores > 0 && upto(3) == 0) argmax[upto(scores - 1)] = upto(1) ? -1 : area;
  backward(kMaxSimilarityBackward, scores, argmax);
  forward(kSimilarityMap, scores * area, argmax);
  backward(kSimilarityMapBackward, scores * area, argmax);
  forward(kSampleParts, samples, centres);
  backward(kSamplePartsBackward, samples, centres);
}

}  // namespace

int main(int count, char** arguments) {
  const unsigned problems = count > 1 ? std::atoi(arguments[1]) : 100;
  for (unsigned seed = 0; seed < problems; ++seed) {
    check<float>(seed);
    check<double>(seed);
  }
  std::printf("%u problems, float and double\n", problems);
}
