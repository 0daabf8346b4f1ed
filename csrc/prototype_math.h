// Per-element mathematics of a deformable prototype, for the host and for the device; no torch.
//
// A part of a prototype rests at a cell of the feature map and is moved by a fractional offset.
// `land` finds the four cells around the place where it lands, and the functions after it are the
// paper's interpolation (Theorem 3.1) and the terms of its derivative (supplement,
// "Backpropagation through a deformable prototype"), one channel at a time.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define DPP_INLINE __host__ __device__ __forceinline__
#else
#define DPP_INLINE inline __attribute__((always_inline))
#endif

namespace dpp {

// The part's resting place relative to the prototype's centre: K=3, D=1 gives -1, 0, 1; K=2, D=2
// gives -1, 1.
DPP_INLINE int64_t resting_place(int64_t index, int64_t kernel_size, int64_t dilation) {
  return (2 * index - (kernel_size - 1)) * dilation / 2;
}

// The four cells around a place, in the order of the supplement's z1..z4 (rows first), and their
// shares.
template <typename T>
struct Landing {
  int32_t corner[4];  // flat index into the map, or -1 where the cell lies outside it
  T weight[4];        // they sum to 1
  T alpha, beta;      // fractions of a cell below and to the right of corner 0
};

// Where a part that rests at (row, column) lands when it moves by (down, right).
// The fraction is computed from the offset alone, so that it is exact however large the map is. A
// place that touches no cell, or is infinite or NaN, lies outside: four corners of -1. Integers are
// compared, since float32 cannot tell neighbouring rows apart on maps of 2^24 rows and more.
template <typename T>
DPP_INLINE Landing<T> land(int64_t row, int64_t column, T down, T right, int64_t height,
                           int64_t width) {
  const T whole_down = std::floor(down);
  const T whole_right = std::floor(right);
  const T far = T(2147483648);  // 2^31: beyond every map, and exact in float32
  const bool sane =
      whole_down >= -far && whole_down <= far && whole_right >= -far && whole_right <= far;
  const int64_t top = sane ? row + static_cast<int64_t>(whole_down) : -2;
  const int64_t left = sane ? column + static_cast<int64_t>(whole_right) : -2;
  if (top < -1 || top >= height || left < -1 || left >= width) {
    return {{-1, -1, -1, -1}, {T(1), T(0), T(0), T(0)}, T(0), T(0)};
  }
  const T alpha = down - whole_down;
  const T beta = right - whole_right;
  const bool has_top = top >= 0, has_bottom = top + 1 < height;
  const bool has_left = left >= 0, has_right = left + 1 < width;
  const int64_t first = top * width + left;
  const int64_t below = first + width;
  return {
      {has_top && has_left ? static_cast<int32_t>(first) : -1,
       has_top && has_right ? static_cast<int32_t>(first + 1) : -1,
       has_bottom && has_left ? static_cast<int32_t>(below) : -1,
       has_bottom && has_right ? static_cast<int32_t>(below + 1) : -1},
      {(T(1) - alpha) * (T(1) - beta), (T(1) - alpha) * beta, alpha * (T(1) - beta), alpha * beta},
      alpha,
      beta};
}

// zeta: bilinear interpolation of the squares. The sample is its square root.
template <typename T>
DPP_INLINE T interpolate_squares(const T weight[4], T z1, T z2, T z3, T z4) {
  return weight[0] * (z1 * z1) + weight[1] * (z2 * z2) + weight[2] * (z3 * z3) +
         weight[3] * (z4 * z4);
}

// d zeta / d offset, downwards and to the right. At whole offsets: the right-hand derivative. A
// difference of squares as a product is exactly 0 between equal cells, also where the compiler
// fuses multiply and add.
template <typename T>
DPP_INLINE T slope_down(T beta, T z1, T z2, T z3, T z4) {
  return (T(1) - beta) * ((z3 - z1) * (z3 + z1)) + beta * ((z4 - z2) * (z4 + z2));
}
template <typename T>
DPP_INLINE T slope_right(T alpha, T z1, T z2, T z3, T z4) {
  return (T(1) - alpha) * ((z2 - z1) * (z2 + z1)) + alpha * ((z4 - z3) * (z4 + z3));
}

// d sqrt(zeta) / d zeta as the offsets see it. It is singular at zeta = 0, hence the floor.
template <typename T>
DPP_INLINE T root_derivative(T root, T floor) {
  return T(0.5) / (root > floor ? root : floor);
}

// d sqrt(zeta) / d z_k = weight_k * z_k * share(root). Since |z_k| * weight_k <= root, it needs no
// floor; 0 at 0.
template <typename T>
DPP_INLINE T share(T root) {
  return root > T(0) ? T(1) / root : T(0);
}

}  // namespace dpp
