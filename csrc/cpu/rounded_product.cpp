#include "rounded_product.h"

// Builds with sanitizers test the portable code.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(DPP_NO_TARGET_CLONES)
#define DPP_HAS_AVX512
#include <immintrin.h>
#endif

namespace dpp {
namespace {

void multiply_anywhere(const uint16_t* rows, const uint16_t* strip, int64_t pairs,
                       float tile[kTileRows][kStrip]) {
  for (int64_t row = 0; row < kTileRows; ++row) {
    for (int64_t column = 0; column < kStrip; ++column) {
      float sum = 0;
      for (int64_t c = 0; c < 2 * pairs; ++c) {
        sum += from_bfloat16(rows[row * kSlice + c]) *
               from_bfloat16(strip[(c / 2 * kStrip + column) * 2 + c % 2]);
      }
      tile[row][column] = sum;
    }
  }
}

#if defined(DPP_HAS_AVX512)
__attribute__((target("avx512f,avx512bf16"))) void multiply_avx512(const uint16_t* rows,
                                                                   const uint16_t* strip,
                                                                   int64_t pairs,
                                                                   float tile[kTileRows][kStrip]) {
  __m512 left[kTileRows], right[kTileRows];
#pragma GCC unroll 14
  for (int64_t row = 0; row < kTileRows; ++row) left[row] = right[row] = _mm512_setzero_ps();
  for (int64_t i = 0; i < pairs; ++i) {
    const __m512bh first = (__m512bh)_mm512_loadu_si512(strip + 2 * kStrip * i);
    const __m512bh second = (__m512bh)_mm512_loadu_si512(strip + 2 * kStrip * i + kStrip);
#pragma GCC unroll 14
    for (int64_t row = 0; row < kTileRows; ++row) {
      int32_t pair;
      __builtin_memcpy(&pair, rows + row * kSlice + 2 * i, sizeof pair);
      const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
      left[row] = _mm512_dpbf16_ps(left[row], both, first);
      right[row] = _mm512_dpbf16_ps(right[row], both, second);
    }
  }
#pragma GCC unroll 14
  for (int64_t row = 0; row < kTileRows; ++row) {
    _mm512_storeu_ps(tile[row], left[row]);
    _mm512_storeu_ps(tile[row] + kStrip / 2, right[row]);
  }
}
#endif

}  // namespace

bool multiplies_rounded() {
#if defined(DPP_HAS_AVX512)
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

void multiply(const uint16_t* rows, const uint16_t* strip, int64_t pairs,
              float tile[kTileRows][kStrip]) {
#if defined(DPP_HAS_AVX512)
  if (multiplies_rounded()) return multiply_avx512(rows, strip, pairs, tile);
#endif
  multiply_anywhere(rows, strip, pairs, tile);
}

}  // namespace dpp
