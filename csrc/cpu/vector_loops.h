// The CPU's inner loops, compiled once for each instruction set and chosen at run time; no torch.
//
// All of them work on rows of channels: a row is a place of an image's map, and its channels lie
// side by side. A `stride` is the distance between rows, in elements. Each loop is a struct of
// arguments and an overload of `run`, for float and, but for those of the screening, for double.
#pragma once

#include <cstdint>
#include <vector>

#include "../prototype_math.h"
#include "rounded_product.h"

namespace dpp {

constexpr int64_t kLanes = 16;         // packed rows are padded to a multiple of this
constexpr int64_t kWidestBlock = 128;  // channels that Scatter and ScatterHits take at most
constexpr int64_t kGroup = 256;        // prototypes whose places are compared at once, at most

// Where a prototype is applied. Images count from the first one that `offsets` and `z` point to.
struct Centre {
  int64_t image;
  int64_t place;  // flat index into the map
};

// How a prototype lies on the maps of a batch.
template <typename T>
struct Field {
  const T* offsets;  // (images, 2 * parts, places), or null for rigid prototypes
  int64_t height, width, kernel_size, dilation;

  int64_t places() const { return height * width; }
  int64_t parts() const { return kernel_size * kernel_size; }
};

template <typename T>
DPP_INLINE Landing<T> find_landing(const Field<T>& field, const Centre& centre, int64_t part) {
  const int64_t places = field.height * field.width;
  const int64_t parts = field.kernel_size * field.kernel_size;
  const int64_t row = resting_place(part / field.kernel_size, field.kernel_size, field.dilation);
  const int64_t column = resting_place(part % field.kernel_size, field.kernel_size, field.dilation);
  T down = 0, right = 0;
  if (field.offsets) {
    const T* moved = field.offsets + (centre.image * parts + part) * 2 * places + centre.place;
    down = moved[0];
    right = moved[places];
  }
  return land<T>(centre.place / field.width + row, centre.place % field.width + column, down, right,
                 field.height, field.width);
}

// A map (or a stack of prototypes: one row, P columns) with any strides.
template <typename T>
struct Strided {
  T* data;
  int64_t height, width;
  int64_t row_stride, column_stride, channel_stride;
};

// Copies channels into rows of `padded` channels; the padding is zero.
template <typename T>
struct Pack {
  Strided<const T> from;
  int64_t channels, padded;
  T* rows;
  int64_t stride;
};

// to = rows * factors, or to = rows where `factors` is null.
template <typename T>
struct Unpack {
  const T* rows;
  int64_t stride;
  const T* factors;
  int64_t factor_stride;
  int64_t channels;
  Strided<T> to;
};

// One part's samples (supplement, z_interp), a row for each centre. `outside` is the row that
// stands for every place off the map.
template <typename T>
struct Sample {
  Field<T> field;
  const Centre* centres;
  int64_t count, part;
  const T* z;
  int64_t stride;
  const T* outside;
  int64_t channels;
  T* samples;
  int64_t sample_stride;
};

// Equation 8: the best of an image's places, for `width` prototypes. `best` starts at -infinity,
// `argmax` at 0. The first of equals wins, NaN beats every number, as in torch.max.
template <typename T>
struct Maximum {
  const T* map;
  int64_t stride, places, width;
  T* best;
  int64_t* argmax;
};

// For the screening (screening.h): rounds rows to bfloat16, in rows of kSlice, and adds to each
// row's sums of squares, of what is kept and of what is lost. After an odd channel comes a zero.
struct Round {
  const float* rows;
  int64_t stride, count, channels;
  uint16_t* rounded;
  float *kept, *lost;
};

// Turns kStrip rounded rows into a strip: pairs of channels, and side by side the rows' pairs.
struct Interleave {
  const uint16_t* rows;
  int64_t pairs;
  uint16_t* strip;
};

// A place that may be a prototype's best.
struct Candidate {
  int32_t place, prototype;
};

// The candidates among an image's places for `width` prototypes, in the order of places: those that
// may reach the best. A similarity is off by place_lost * prototype_kept + place_kept *
// prototype_lost at most.
struct Sift {
  const float* map;
  int64_t stride, places, width;
  const float *place_kept, *place_lost, *prototype_kept, *prototype_lost;
  std::vector<Candidate>* candidates;
};

// Adds to each candidate's similarity the inner product of its sample and its prototype.
struct Refine {
  const Candidate* candidates;
  int64_t count;
  const float* samples;
  int64_t sample_stride;
  const float* prototypes;
  int64_t prototype_stride, channels;
  float* similarities;
};

// Backward of Sample for centres of one image and a block of channels. `spread` gathers
// weight * grad / root, which times z is z's gradient; `slopes` (count, 2) takes the offset
// derivatives summed over the block, or is null.
template <typename T>
struct Scatter {
  const Landing<T>* landings;
  int64_t count;
  const T* z;
  int64_t stride;
  const T* outside;
  int64_t channels;
  const T* grad;
  int64_t grad_stride;
  T floor;
  T* spread;
  int64_t spread_stride;
  T* slopes;
};

// A prototype whose maximum lies at some centre, and the gradient of its score.
template <typename T>
struct Hit {
  int64_t prototype;
  T grad;
};

// Backward of the maximum for one part and a block of channels: centre i was hit by
// hits[first[i] .. first[i + 1]). Everything is packed in rows of `width`, a multiple of kLanes.
// Adds to `spread` and `prototype_grad`.
template <typename T>
struct ScatterHits {
  const Landing<T>* landings;
  const Centre* centres;
  const int64_t* first;
  const Hit<T>* hits;
  int64_t count, places, width;
  const T* z;
  const T* outside;
  const T* prototypes;
  T floor;
  T* spread;
  T* prototype_grad;
  T* slopes;
};

#define DPP_DECLARE(Loop)       \
  void run(const Loop<float>&); \
  void run(const Loop<double>&);
DPP_DECLARE(Pack)
DPP_DECLARE(Unpack)
DPP_DECLARE(Sample)
DPP_DECLARE(Maximum)
DPP_DECLARE(Scatter)
DPP_DECLARE(ScatterHits)
#undef DPP_DECLARE
void run(const Round&);
void run(const Interleave&);
void run(const Sift&);
void run(const Refine&);

}  // namespace dpp
