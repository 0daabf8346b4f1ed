// The kernels of a deformable prototype, over prototype_math.h; no torch, no atomics.
//
// Features are channels-last, (N, H, W, C), so that neighbouring threads read neighbouring
// channels. A "row" is one place of one image: a row of the matrix of columns whose product with
// the prototypes is the similarity map. Every sum has one owner and a fixed order, so results never
// vary between runs. Every kernel strides over its grid: any number of blocks is correct, and so is
// any image count.
#pragma once

#include "../prototype_math.h"

namespace dpp {

constexpr int kThreads = 128;  // of every block
constexpr int kWarp = 32;

// What is sampled. `offsets` is null for rigid prototypes.
template <typename T>
struct Features {
  const T* z;        // (N, H, W, C)
  const T* offsets;  // (N, 2 * parts, H, W)
  int64_t channels, height, width, kernel_size, dilation;
  T outside;  // the last channel's value outside the map

  DPP_INLINE int64_t area() const { return height * width; }
  DPP_INLINE int64_t parts() const { return kernel_size * kernel_size; }
  DPP_INLINE Features from_image(int64_t image) const {
    Features rest = *this;
    rest.z += image * area() * channels;
    if (offsets) rest.offsets += image * 2 * parts() * area();
    return rest;
  }
};

// Places of the map, the same number in every image. `location` (images, per_image) holds flat
// indices into the map, and an index outside it marks a row that is not used; null: row i is
// location i.
struct Rows {
  const int64_t* location;
  int64_t images, per_image;

  DPP_INLINE int64_t count() const { return images * per_image; }
  DPP_INLINE int64_t at(int64_t row) const { return location ? location[row] : row % per_image; }
};

template <typename T>
__device__ __forceinline__ bool on_map(const Features<T>& features, int64_t location) {
  return location >= 0 && location < features.area();
}

// The landing of one part of a prototype centred at `location`; outside for a row that is not used.
template <typename T>
__device__ __forceinline__ Landing<T> land_part(const Features<T>& features, int64_t image,
                                                int64_t location, int64_t part) {
  if (!on_map(features, location)) {
    return {{-1, -1, -1, -1}, {T(1), T(0), T(0), T(0)}, T(0), T(0)};
  }
  // A map's places are counted in 32 bits, and 32-bit division is several times cheaper.
  const int32_t place = static_cast<int32_t>(location),
                width = static_cast<int32_t>(features.width);
  const int32_t index = static_cast<int32_t>(part),
                size = static_cast<int32_t>(features.kernel_size);
  const int64_t row = place / width + resting_place(index / size, size, features.dilation);
  const int64_t column = place % width + resting_place(index % size, size, features.dilation);
  T down = T(0), right = T(0);
  if (features.offsets) {
    const int64_t area = features.area();
    const T* moved = features.offsets + (image * features.parts() + part) * 2 * area + location;
    down = moved[0];
    right = moved[area];
  }
  return land(row, column, down, right, features.height, features.width);
}

// The four cells' values of one channel, and their norm-preserving interpolation.
template <typename T>
struct Sample {
  T z[4];
  T root;
};

template <typename T>
__device__ __forceinline__ Sample<T> sample(const Features<T>& features, int64_t image,
                                            const Landing<T>& landing, int64_t channel) {
  const T* map = features.z + image * features.area() * features.channels + channel;
  const T beyond = channel + 1 == features.channels ? features.outside : T(0);
  Sample<T> result;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int64_t corner = landing.corner[k];
    result.z[k] = corner >= 0 ? map[corner * features.channels] : beyond;
  }
  const T* z = result.z;
  result.root = std::sqrt(interpolate_squares(landing.weight, z[0], z[1], z[2], z[3]));
  return result;
}

// One part's samples: columns (rows, row_stride), of which C values are written. Blocks: rows.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    sample_columns(Features<T> features, Rows rows, int64_t part, T* columns, int64_t row_stride) {
  for (int64_t row = blockIdx.x; row < rows.count(); row += gridDim.x) {
    const int64_t image = row / rows.per_image;
    const Landing<T> landing = land_part(features, image, rows.at(row), part);
    for (int64_t channel = threadIdx.x; channel < features.channels; channel += kThreads) {
      columns[row * row_stride + channel] = sample(features, image, landing, channel).root;
    }
  }
}

// map (images, area, prototypes) -> the maximum over the places and the first place that has it.
// NaN counts as the largest, as in torch.max. Blocks: images x tiles of prototypes.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    find_maximum(const T* map, int64_t images, int64_t area, int64_t prototypes, T* scores,
                 int64_t* argmax) {
  for (int64_t image = blockIdx.x; image < images; image += gridDim.x) {
    const int64_t first = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
    for (int64_t p = first; p < prototypes; p += static_cast<int64_t>(gridDim.y) * kThreads) {
      const T* value = map + image * area * prototypes + p;
      T best = value[0];
      int64_t place = 0;
      for (int64_t location = 1; location < area; ++location) {
        const T next = value[location * prototypes];
        if (next > best || (next != next && best == best)) {
          best = next;
          place = location;
        }
      }
      scores[image * prototypes + p] = best;
      argmax[image * prototypes + p] = place;
    }
  }
}

// Which prototypes have their maximum at which place, as compressed rows: row i of an image lies at
// location[i] and belongs to members[start[i]] .. members[start[i + 1] - 1], in ascending order;
// rows that are not needed get location -1. location (images, rows), start (images, rows + 1),
// members (images, prototypes), rows = min(area, prototypes). Blocks: images; a thread owns a
// place.
static __global__ void __launch_bounds__(kThreads)
    list_rows(const int64_t* argmax, int64_t images, int64_t area, int64_t prototypes, int64_t rows,
              int64_t* location, int32_t* start, int32_t* members) {
  __shared__ int32_t used[kThreads], counted[kThreads];  // running totals over the block's places
  const int thread = threadIdx.x;
  for (int64_t image = blockIdx.x; image < images; image += gridDim.x) {
    const int64_t* place_of = argmax + image * prototypes;
    int32_t rows_before = 0, members_before = 0;
    for (int64_t base = 0; base < area; base += kThreads) {
      const int64_t place = base + thread;
      int32_t count = 0;
      for (int64_t p = 0; place < area && p < prototypes; ++p) count += place_of[p] == place;
      used[thread] = count > 0;
      counted[thread] = count;
      for (int step = 1; step < kThreads; step *= 2) {
        __syncthreads();
        const int32_t more_used = thread >= step ? used[thread - step] : 0;
        const int32_t more_counted = thread >= step ? counted[thread - step] : 0;
        __syncthreads();
        used[thread] += more_used;
        counted[thread] += more_counted;
      }
      __syncthreads();
      if (count > 0) {
        const int64_t row = rows_before + used[thread] - 1;
        int64_t member = members_before + counted[thread] - count;
        location[image * rows + row] = place;
        start[image * (rows + 1) + row] = static_cast<int32_t>(member);
        for (int64_t p = 0; p < prototypes; ++p) {
          if (place_of[p] == place)
            members[image * prototypes + member++] = static_cast<int32_t>(p);
        }
      }
      rows_before += used[kThreads - 1];
      members_before += counted[kThreads - 1];
      __syncthreads();
    }
    for (int64_t row = rows_before + thread; row <= rows; row += kThreads) {
      if (row < rows) location[image * rows + row] = -1;
      start[image * (rows + 1) + row] = members_before;
    }
  }
}

// The gradient of a row's samples: the sum of its members' gradient x prototype. Rows that are not
// used are left as they are. weights: part 0 of prototype 0, prototypes `stride` apart; gradient
// (rows, C). Blocks: rows x tiles of channels.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    gather_gradient(const T* grad, Rows rows, const int32_t* start, const int32_t* members,
                    int64_t prototypes, const T* weights, int64_t stride, int64_t channels,
                    T* gradient) {
  for (int64_t row = blockIdx.x; row < rows.count(); row += gridDim.x) {
    const int64_t image = row / rows.per_image;
    const int32_t* range = start + row + image;  // every image has one more bound than rows
    const int32_t* member = members + image * prototypes;
    const int64_t first = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
    if (rows.at(row) < 0) continue;
    for (int64_t c = first; c < channels; c += static_cast<int64_t>(gridDim.y) * kThreads) {
      T sum = T(0);
      for (int32_t i = range[0]; i < range[1]; ++i) {
        const int64_t p = member[i];
        sum += grad[image * prototypes + p] * weights[p * stride + c];
      }
      gradient[row * channels + c] = sum;
    }
  }
}

// The gradient of every part of every prototype: grad x sample, summed over the images in their
// order. grad, argmax (images, prototypes); gradient (prototypes, parts, C). Blocks: parts of
// prototypes x tiles of channels; the landings are found once for the block.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    prototype_gradient(Features<T> features, const T* grad, const int64_t* argmax, int64_t images,
                       int64_t prototypes, T* gradient) {
  __shared__ Landing<T> landings[kThreads];
  __shared__ T factor[kThreads];
  const int64_t parts = features.parts();
  for (int64_t row = blockIdx.x; row < prototypes * parts; row += gridDim.x) {
    const int64_t p = row / parts;
    for (int64_t tile = blockIdx.y; tile * kThreads < features.channels; tile += gridDim.y) {
      const int64_t channel = tile * kThreads + threadIdx.x;
      T sum = T(0);
      for (int64_t base = 0; base < images; base += kThreads) {
        const int64_t mine = base + threadIdx.x;
        if (mine < images) {
          const int64_t location = argmax[mine * prototypes + p];
          landings[threadIdx.x] = land_part(features, mine, location, row % parts);
          factor[threadIdx.x] = on_map(features, location) ? grad[mine * prototypes + p] : T(0);
        }
        __syncthreads();
        for (int i = 0; channel < features.channels && i < kThreads && base + i < images; ++i) {
          if (factor[i] == T(0)) continue;
          sum += factor[i] * sample(features, base + i, landings[i], channel).root;
        }
        __syncthreads();
      }
      if (channel < features.channels) gradient[row * features.channels + channel] = sum;
    }
  }
}

// Adds weight x gradient x share to every cell that a row's part touches: what the cell's own value
// is later multiplied by. gradient: C values for each row, `stride` apart; cells (images, area, C).
// A thread owns a channel of an image and takes the rows in their order. Blocks: images x tiles of
// channels.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    scatter_rows(Features<T> features, Rows rows, int64_t part, const T* gradient, int64_t stride,
                 T* cells) {
  __shared__ Landing<T> landings[kThreads];
  __shared__ bool used[kThreads];
  const int64_t channels = features.channels;
  for (int64_t image = blockIdx.x; image < rows.images; image += gridDim.x) {
    for (int64_t tile = blockIdx.y; tile * kThreads < channels; tile += gridDim.y) {
      const int64_t channel = tile * kThreads + threadIdx.x;
      T* cell = cells + image * features.area() * channels + channel;
      for (int64_t base = 0; base < rows.per_image; base += kThreads) {
        const int64_t first = image * rows.per_image + base;
        if (base + threadIdx.x < rows.per_image) {
          const int64_t location = rows.at(first + threadIdx.x);
          landings[threadIdx.x] = land_part(features, image, location, part);
          used[threadIdx.x] = on_map(features, location);
        }
        __syncthreads();
        for (int i = 0; channel < channels && i < kThreads && base + i < rows.per_image; ++i) {
          if (!used[i]) continue;
          const Landing<T>& landing = landings[i];
          const T root = sample(features, image, landing, channel).root;
          const T shared_out = gradient[(first + i) * stride + channel] * share(root);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            if (landing.corner[k] < 0 || landing.weight[k] == T(0)) continue;
            cell[landing.corner[k] * channels] += landing.weight[k] * shared_out;
          }
        }
        __syncthreads();
      }
    }
  }
}

// cells *= z, which makes them the gradient of z.
template <typename T>
__global__ void __launch_bounds__(kThreads) multiply(const T* z, int64_t count, T* cells) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t i = first; i < count; i += static_cast<int64_t>(gridDim.x) * kThreads) {
    cells[i] *= z[i];
  }
}

template <typename T>
__device__ __forceinline__ T sum_over_warp(T value) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value += __shfl_down_sync(0xffffffffu, value, step);
  }
  return value;  // in the first lane
}

// products (rows, 2): the derivative of each row by the part's offset, down and right, summed over
// the channels. 0 for a row that is not used. Blocks: rows; the 4 of them on a multiprocessor leave
// ptxas 128 registers, without which doubles spill on sm_90.
template <typename T>
__global__ void __launch_bounds__(kThreads, 4)
    offset_products(Features<T> features, Rows rows, int64_t part, const T* gradient,
                    int64_t stride, T floor, T* products) {
  __shared__ T of_warp[2][kThreads / kWarp];
  for (int64_t row = blockIdx.x; row < rows.count(); row += gridDim.x) {
    const int64_t image = row / rows.per_image, location = rows.at(row);
    const Landing<T> landing = land_part(features, image, location, part);
    T down = T(0), right = T(0);
    for (int64_t c = threadIdx.x; c < features.channels && on_map(features, location);
         c += kThreads) {
      const Sample<T> s = sample(features, image, landing, c);
      const T slope = gradient[row * stride + c] * root_derivative(s.root, floor);
      down += slope * slope_down(landing.beta, s.z[0], s.z[1], s.z[2], s.z[3]);
      right += slope * slope_right(landing.alpha, s.z[0], s.z[1], s.z[2], s.z[3]);
    }
    down = sum_over_warp(down);
    right = sum_over_warp(right);
    if (threadIdx.x % kWarp == 0) {
      of_warp[0][threadIdx.x / kWarp] = down;
      of_warp[1][threadIdx.x / kWarp] = right;
    }
    __syncthreads();
    if (threadIdx.x < 2) {
      T sum = T(0);
      for (int warp = 0; warp < kThreads / kWarp; ++warp) sum += of_warp[threadIdx.x][warp];
      products[row * 2 + threadIdx.x] = sum;
    }
    __syncthreads();
  }
}

// Puts the products at their places, where rows that repeat a place add up in their order: writes
// the part's two planes of the gradient (images, 2 * parts, H, W). Threads: places.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    place_products(Features<T> features, Rows rows, int64_t part, const T* products, T* gradient) {
  const int64_t area = features.area();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = first; i < rows.images * area; i += step) {
    const int64_t image = i / area, location = i % area;
    const int64_t begin = image * rows.per_image + (rows.location ? 0 : location);
    const int64_t end = rows.location ? begin + rows.per_image : begin + 1;
    T down = T(0), right = T(0);
    for (int64_t row = begin; row < end; ++row) {
      if (rows.at(row) != location) continue;
      down += products[row * 2];
      right += products[row * 2 + 1];
    }
    T* plane = gradient + (image * features.parts() + part) * 2 * area + location;
    plane[0] = down;
    plane[area] = right;
  }
}

}  // namespace dpp
