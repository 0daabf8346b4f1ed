// Enough of CUDA for the host compiler to run a kernel: the threads of a block are fibers on one
// core.
//
// A fiber runs until it waits at a barrier or a shuffle, or ends. What a GPU leaves undefined is an
// error here: a barrier that some threads never reach, two different barriers met at once, a
// shuffle that part of a warp skips. Shared memory is filled with ones before every block, so that
// a value which was never written shows, and threads and blocks can run backwards or in a random
// order, so that a missing barrier shows.
#pragma once

#include <dlfcn.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace cuda_on_host {

constexpr int kWarp = 32;
constexpr size_t kStack = 48 << 10;

struct Index {
  unsigned x, y, z;
};

enum class Order { forwards, backwards, random };
enum class State { ready, at_barrier, at_shuffle, done };

// A fiber starts once, on a stack of its own, and runs the kernel of block after block. Jumps
// switch between fibers: swapcontext asks the operating system each time, and is ten times slower.
struct Fiber {
  ucontext_t start;
  jmp_buf place;
  bool started = false;
  std::vector<char> stack = std::vector<char>(kStack);
  State state;
  int line;            // of the barrier or shuffle where it waits
  int shuffles;        // met so far
  uint64_t posted[2];  // to the warp; two, since a lane may post again before the last one has read
};

struct Block {
  std::vector<Fiber> fibers;
  jmp_buf scheduler;
  std::function<void()> kernel;
  int current = 0;
  std::string error;
  bool broken = false;
};

inline Block block;

}  // namespace cuda_on_host

inline cuda_on_host::Index threadIdx, blockIdx, gridDim;

// The linker names the ends of a section whose name is an identifier.
extern "C" char __start_dpp_shared[] __attribute__((weak));
extern "C" char __stop_dpp_shared[] __attribute__((weak));

namespace cuda_on_host {

// AddressSanitizer's own longjmp asks the operating system for the stack's bounds and forgets what
// it knows of it. Here no frame is ever left behind, so the C library's serves, found past the
// sanitizer's.
inline void jump(jmp_buf place) {
#if defined(__SANITIZE_ADDRESS__)
  static const auto plain =
      reinterpret_cast<void (*)(jmp_buf, int)>(dlsym(dlopen("libc.so.6", RTLD_LAZY), "_longjmp"));
  plain(place, 1);
#else
  _longjmp(place, 1);
#endif
}

inline void wait(State state, int line) {
  Fiber& fiber = block.fibers[block.current];
  fiber.state = state;
  fiber.line = line;
  if (_setjmp(fiber.place) == 0) jump(block.scheduler);
}

inline void enter() {
  for (;;) {
    block.kernel();
    wait(State::done, 0);
  }
}

inline __attribute__((noinline)) void resume(Fiber& fiber) {
  if (_setjmp(block.scheduler) != 0) return;
  if (fiber.started) jump(fiber.place);
  fiber.started = true;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.data();
  fiber.start.uc_stack.ss_size = fiber.stack.size();
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, enter, 0);
  setcontext(&fiber.start);
}

template <typename T>
T shuffle_down(unsigned mask, T value, int step, int line) {
  const int thread = block.current;
  Fiber& fiber = block.fibers[thread];
  const int slot = fiber.shuffles++ % 2;
  std::memcpy(&fiber.posted[slot], &value, sizeof(T));
  if (mask != 0xffffffffu)
    block.error = "a shuffle of part of a warp, line " + std::to_string(line);
  wait(State::at_shuffle, line);
  if (thread % kWarp + step < kWarp) {
    std::memcpy(&value, &block.fibers[thread + step].posted[slot], sizeof(T));
  }
  return value;
}

// Frees the fibers [first, last) when all of them wait at the same barrier or shuffle.
inline bool release(State state, int first, int last) {
  const auto begin = block.fibers.begin() + first, end = block.fibers.begin() + last;
  const bool together = std::all_of(begin, end, [&](const Fiber& fiber) {
    return fiber.state == state && fiber.line == begin->line;
  });
  if (together) std::for_each(begin, end, [](Fiber& fiber) { fiber.state = State::ready; });
  return together;
}

// A warp runs on through its shuffles, as far ahead of the other warps as the barriers let it.
inline void run_block(int threads, const std::vector<int>& warps, const std::vector<int>& lanes) {
  block.fibers.resize(threads);
  for (Fiber& fiber : block.fibers) {
    fiber.state = State::ready;
    fiber.shuffles = 0;
  }
  if (__start_dpp_shared) {
    std::memset(__start_dpp_shared, 0xff, __stop_dpp_shared - __start_dpp_shared);
  }
  for (;;) {
    for (const int warp : warps) {
      const int first = warp * kWarp, last = std::min(first + kWarp, threads);
      do {
        for (const int lane : lanes) {
          const int thread = first + lane;
          if (thread >= last || block.fibers[thread].state != State::ready) continue;
          block.current = thread;
          threadIdx = {static_cast<unsigned>(thread), 0, 0};
          resume(block.fibers[thread]);
        }
      } while (release(State::at_shuffle, first, last));
    }
    if (!block.error.empty()) throw std::runtime_error(block.error);
    const auto waits = [](const Fiber& fiber) { return fiber.state != State::done; };
    const auto waiting = std::find_if(block.fibers.begin(), block.fibers.end(), waits);
    if (waiting == block.fibers.end()) return;
    if (!release(State::at_barrier, 0, threads)) {
      throw std::runtime_error("threads of a block went separate ways: one waits at line " +
                               std::to_string(waiting->line));
    }
  }
}

inline void run(unsigned blocks_x, unsigned blocks_y, int threads, Order order,
                std::function<void()> kernel) {
  block.kernel = std::move(kernel);
  block.error.clear();
  if (block.broken) block.fibers.clear();  // fibers that an error left in the middle of a kernel
  block.broken = true;
  gridDim = {blocks_x, blocks_y, 1};
  std::vector<int> warps((threads + kWarp - 1) / kWarp), lanes(kWarp);
  for (std::vector<int>* turns : {&warps, &lanes}) {
    std::iota(turns->begin(), turns->end(), 0);
    if (order == Order::backwards) std::reverse(turns->begin(), turns->end());
  }
  std::mt19937 random(20220619);
  const uint64_t blocks = uint64_t{blocks_x} * blocks_y;
  for (uint64_t i = 0; i < blocks; ++i) {
    const uint64_t index = order == Order::backwards ? blocks - 1 - i : i;
    blockIdx = {static_cast<unsigned>(index % blocks_x), static_cast<unsigned>(index / blocks_x),
                0};
    if (order == Order::random) {
      std::shuffle(warps.begin(), warps.end(), random);
      std::shuffle(lanes.begin(), lanes.end(), random);
    }
    run_block(threads, warps, lanes);
  }
  block.broken = false;
}

}  // namespace cuda_on_host

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#if defined(__SANITIZE_ADDRESS__)
#define __shared__ static  // which AddressSanitizer guards, unlike variables of a named section
#else
#define __shared__ static __attribute__((section("dpp_shared")))
#endif
#define __syncthreads() cuda_on_host::wait(cuda_on_host::State::at_barrier, __LINE__)
#define __shfl_down_sync(mask, value, step) cuda_on_host::shuffle_down(mask, value, step, __LINE__)
