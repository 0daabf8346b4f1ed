// Matrix products of numbers rounded to bfloat16 and added up in float32; no torch.
//
// Where the processor multiplies pairs of bfloat16 (AVX512-BF16), they take half the time of
// float32's. Both factors come in slices of channels: rows side by side, and columns in strips of
// kStrip in which the channels 2i and 2i + 1 of a column are neighbours.
#pragma once

#include <bit>
#include <cstdint>

namespace dpp {

// Channels of a slice at most: 512 and the ε channel, and rows that begin at multiples of 16 bytes.
constexpr int64_t kSlice = 520;
constexpr int64_t kTileRows = 14;  // 14 rows of a strip are what the processor's registers hold
constexpr int64_t kStrip = 32;

// Whether the processor has the instructions. Without them, `multiply` is correct but slow.
bool multiplies_rounded();

// The bits of the nearest bfloat16.
inline uint16_t round_to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float from_bfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// tile = rows (kTileRows, kSlice) times strip (pairs, kStrip, 2), the first 2 * pairs channels.
void multiply(const uint16_t* rows, const uint16_t* strip, int64_t pairs,
              float tile[kTileRows][kStrip]);

}  // namespace dpp
