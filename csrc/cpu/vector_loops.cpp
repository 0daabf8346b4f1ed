#include "vector_loops.h"

#include <algorithm>
#include <cmath>
#include <limits>

// One binary for every x86-64: the loader picks the clone that the machine can run. Sanitizers are
// not yet ready when it does, hence DPP_NO_TARGET_CLONES for their builds.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(DPP_NO_TARGET_CLONES)
#define DPP_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DPP_CLONES
#endif

namespace dpp {
namespace {

// The rows around a landing; those off the map are `outside`.
template <typename T, typename Element>
DPP_INLINE void find_corners(const Landing<T>& landing, Element* image, int64_t stride,
                             Element* outside, Element* corner[4]) {
  for (int k = 0; k < 4; ++k) {
    corner[k] = landing.corner[k] < 0 ? outside : image + landing.corner[k] * stride;
  }
}

template <typename T>
DPP_INLINE bool is_outside(const Landing<T>& landing) {
  return (landing.corner[0] & landing.corner[1] & landing.corner[2] & landing.corner[3]) < 0;
}

template <typename T>
DPP_INLINE void sample_row(const Landing<T>& landing, const T* const corner[4], int64_t channels,
                           T* __restrict root) {
  const T *z1 = corner[0], *z2 = corner[1], *z3 = corner[2], *z4 = corner[3];
  const T weight[4] = {landing.weight[0], landing.weight[1], landing.weight[2], landing.weight[3]};
#pragma omp simd
  for (int64_t c = 0; c < channels; ++c) {
    root[c] = std::sqrt(interpolate_squares(weight, z1[c], z2[c], z3[c], z4[c]));
  }
}

// Supplement, the derivatives of sqrt(zeta), for one centre: `root` is its sample, `grad` the
// sample's gradient. Rows of `spread` off the map are scratch, written and never read.
template <typename T>
DPP_INLINE void scatter_row(const Landing<T>& landing, const T* const corner[4],
                            const T* __restrict root, const T* __restrict grad, int64_t channels,
                            T floor, T* const spread[4], T* slopes) {
  const T *z1 = corner[0], *z2 = corner[1], *z3 = corner[2], *z4 = corner[3];
  T *spread1 = spread[0], *spread2 = spread[1], *spread3 = spread[2], *spread4 = spread[3];
  const T weight1 = landing.weight[0], weight2 = landing.weight[1];
  const T weight3 = landing.weight[2], weight4 = landing.weight[3];
  const T alpha = landing.alpha, beta = landing.beta;
  const T steepest = root_derivative(T(0), floor);
  T down = 0, right = 0;
#pragma omp simd reduction(+ : down, right)
  for (int64_t c = 0; c < channels; ++c) {
    const T inverse = share(root[c]);
    const T lift = grad[c] * (root[c] > floor ? T(0.5) * inverse : steepest);
    down += lift * slope_down(beta, z1[c], z2[c], z3[c], z4[c]);
    right += lift * slope_right(alpha, z1[c], z2[c], z3[c], z4[c]);
    const T shared = grad[c] * inverse;
    spread1[c] += weight1 * shared;
    spread2[c] += weight2 * shared;
    spread3[c] += weight3 * shared;
    spread4[c] += weight4 * shared;
  }
  slopes[0] = down;
  slopes[1] = right;
}

template <typename T>
DPP_INLINE void sample(const Sample<T>& job) {
  const int64_t image_stride = job.field.height * job.field.width * job.stride;
  for (int64_t row = 0; row < job.count; ++row) {
    const Landing<T> landing = find_landing(job.field, job.centres[row], job.part);
    const T* corner[4];
    find_corners(landing, job.z + job.centres[row].image * image_stride, job.stride, job.outside,
                 corner);
    sample_row(landing, corner, job.channels, job.samples + row * job.sample_stride);
  }
}

template <typename T>
DPP_INLINE void maximum(const Maximum<T>& job) {
  T* __restrict best = job.best;
  int64_t* __restrict argmax = job.argmax;
  for (int64_t place = 0; place < job.places; ++place) {
    const T* map = job.map + place * job.stride;
#pragma omp simd
    for (int64_t p = 0; p < job.width; ++p) {
      const bool better = (map[p] > best[p]) | ((map[p] != map[p]) & (best[p] == best[p]));
      best[p] = better ? map[p] : best[p];
      argmax[p] = better ? place : argmax[p];
    }
  }
}

DPP_INLINE void round_rows(const Round& job) {
  for (int64_t row = 0; row < job.count; ++row) {
    const float* __restrict from = job.rows + row * job.stride;
    uint16_t* __restrict to = job.rounded + row * kSlice;
    float kept = 0, lost = 0;
#pragma omp simd reduction(+ : kept, lost)
    for (int64_t c = 0; c < job.channels; ++c) {
      to[c] = round_to_bfloat16(from[c]);
      const float near = from_bfloat16(to[c]), rest = from[c] - near;
      kept += near * near;
      lost += rest * rest;
    }
    if (job.channels % 2) to[job.channels] = 0;
    job.kept[row] += kept;
    job.lost[row] += lost;
  }
}

DPP_INLINE void interleave(const Interleave& job) {
  for (int64_t pair = 0; pair < job.pairs; ++pair) {
    for (int64_t row = 0; row < kStrip; ++row) {
      __builtin_memcpy(job.strip + 2 * (pair * kStrip + row), job.rows + row * kSlice + 2 * pair,
                       2 * sizeof(uint16_t));
    }
  }
}

DPP_INLINE void sift(const Sift& job) {
  float slack[kGroup], least[kGroup];
  int32_t reaches[kGroup];
  const auto find_slack = [&](int64_t place) __attribute__((always_inline)) {
    const float kept = job.place_kept[place], lost = job.place_lost[place];
#pragma omp simd
    for (int64_t p = 0; p < job.width; ++p) {
      slack[p] = lost * job.prototype_kept[p] + kept * job.prototype_lost[p];
    }
  };
  std::fill_n(least, job.width, -std::numeric_limits<float>::infinity());
  for (int64_t place = 0; place < job.places; ++place) {
    const float* map = job.map + place * job.stride;
    find_slack(place);
#pragma omp simd
    for (int64_t p = 0; p < job.width; ++p) least[p] = std::max(least[p], map[p] - slack[p]);
  }
  std::vector<Candidate>& candidates = *job.candidates;
  size_t found = 0;
  for (int64_t place = 0; place < job.places; ++place) {
    const float* map = job.map + place * job.stride;
    find_slack(place);
#pragma omp simd
    for (int64_t p = 0; p < job.width; ++p) reaches[p] = map[p] + slack[p] >= least[p];
    candidates.resize(found + job.width);
    for (int64_t p = 0; p < job.width; ++p) {
      candidates[found] = {static_cast<int32_t>(place), static_cast<int32_t>(p)};
      found += reaches[p];
    }
  }
  candidates.resize(found);
}

DPP_INLINE void refine(const Refine& job) {
  for (int64_t i = 0; i < job.count; ++i) {
    const float* sample = job.samples + job.candidates[i].place * job.sample_stride;
    const float* prototype = job.prototypes + job.candidates[i].prototype * job.prototype_stride;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < job.channels; ++c) sum += sample[c] * prototype[c];
    job.similarities[i] += sum;
  }
}

template <typename T>
DPP_INLINE void scatter(const Scatter<T>& job) {
  T root[kWidestBlock], scratch[kWidestBlock] = {};
  for (int64_t row = 0; row < job.count; ++row) {
    const Landing<T>& landing = job.landings[row];
    T sums[2] = {0, 0};
    if (!is_outside(landing)) {
      const T* corner[4];
      T* spread[4];
      find_corners(landing, job.z, job.stride, job.outside, corner);
      find_corners(landing, job.spread, job.spread_stride, static_cast<T*>(scratch), spread);
      sample_row(landing, corner, job.channels, root);
      scatter_row(landing, corner, root, job.grad + row * job.grad_stride, job.channels, job.floor,
                  spread, sums);
    }
    if (job.slopes) std::copy(sums, sums + 2, job.slopes + 2 * row);
  }
}

// `width` is a constant in the common cases, so that a block of channels stays in registers.
template <typename T>
DPP_INLINE void scatter_hits(const ScatterHits<T>& job, int64_t width) {
  T root[kWidestBlock], grad[kWidestBlock], scratch[kWidestBlock] = {};
  for (int64_t row = 0; row < job.count; ++row) {
    const Landing<T>& landing = job.landings[row];
    const int64_t image = job.centres[row].image * job.places * width;
    const T* corner[4];
    find_corners(landing, job.z + image, width, job.outside, corner);
    sample_row(landing, corner, width, root);
    for (int64_t c = 0; c < width; ++c) grad[c] = 0;
    for (int64_t i = job.first[row]; i < job.first[row + 1]; ++i) {
      const T factor = job.hits[i].grad;
      const T* __restrict prototype = job.prototypes + job.hits[i].prototype * width;
      T* __restrict prototype_grad = job.prototype_grad + job.hits[i].prototype * width;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) {
        grad[c] += factor * prototype[c];
        prototype_grad[c] += factor * root[c];
      }
    }
    T sums[2] = {0, 0};
    if (!is_outside(landing)) {
      T* spread[4];
      find_corners(landing, job.spread + image, width, static_cast<T*>(scratch), spread);
      scatter_row(landing, corner, root, grad, width, job.floor, spread, sums);
    }
    if (job.slopes) std::copy(sums, sums + 2, job.slopes + 2 * row);
  }
}

template <typename T>
DPP_INLINE void scatter_hits(const ScatterHits<T>& job) {
  if (job.width == 64) {
    scatter_hits(job, 64);
  } else if (job.width == 32) {
    scatter_hits(job, 32);
  } else {
    scatter_hits(job, job.width / kLanes * kLanes);
  }
}

template <typename T>
DPP_INLINE void pack(const Pack<T>& job) {
  const Strided<const T>& from = job.from;
  T* rows = job.rows;
  for (int64_t h = 0; h < from.height; ++h, rows += from.width * job.stride) {
    const T* source = from.data + h * from.row_stride;
    if (from.channel_stride == 1) {
      for (int64_t w = 0; w < from.width; ++w) {
        std::copy_n(source + w * from.column_stride, job.channels, rows + w * job.stride);
      }
    } else {
      for (int64_t c = 0; c < job.channels; ++c) {
        for (int64_t w = 0; w < from.width; ++w) {
          rows[w * job.stride + c] = source[w * from.column_stride + c * from.channel_stride];
        }
      }
    }
    for (int64_t w = 0; w < from.width; ++w) {
      std::fill(rows + w * job.stride + job.channels, rows + w * job.stride + job.padded, T(0));
    }
  }
}

// `channel_stride` is a constant where channels lie side by side, so that the loop becomes wide.
template <typename T>
DPP_INLINE void unpack_row(const T* __restrict row, const T* __restrict factors, int64_t channels,
                           T* __restrict target, int64_t channel_stride) {
  if (factors) {
    for (int64_t c = 0; c < channels; ++c) target[c * channel_stride] = row[c] * factors[c];
  } else {
    for (int64_t c = 0; c < channels; ++c) target[c * channel_stride] = row[c];
  }
}

template <typename T>
DPP_INLINE void unpack(const Unpack<T>& job) {
  const Strided<T>& to = job.to;
  for (int64_t h = 0, row = 0; h < to.height; ++h) {
    for (int64_t w = 0; w < to.width; ++w, ++row) {
      T* target = to.data + h * to.row_stride + w * to.column_stride;
      const T* source = job.rows + row * job.stride;
      const T* factors = job.factors ? job.factors + row * job.factor_stride : nullptr;
      if (to.channel_stride == 1) {
        unpack_row(source, factors, job.channels, target, 1);
      } else {
        unpack_row(source, factors, job.channels, target, to.channel_stride);
      }
    }
  }
}

}  // namespace

#define DPP_DEFINE(Loop, body)                               \
  DPP_CLONES void run(const Loop<float>& job) { body(job); } \
  DPP_CLONES void run(const Loop<double>& job) { body(job); }
DPP_DEFINE(Pack, pack)
DPP_DEFINE(Unpack, unpack)
DPP_DEFINE(Sample, sample)
DPP_DEFINE(Maximum, maximum)
DPP_DEFINE(Scatter, scatter)
DPP_DEFINE(ScatterHits, scatter_hits)
#undef DPP_DEFINE
DPP_CLONES void run(const Round& job) { round_rows(job); }
DPP_CLONES void run(const Interleave& job) { interleave(job); }
DPP_CLONES void run(const Sift& job) { sift(job); }
DPP_CLONES void run(const Refine& job) { refine(job); }

}  // namespace dpp
