#include "screening.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>

namespace dpp {
namespace {

constexpr int64_t kLeastWeights = int64_t{1} << 20;  // the whole map of fewer is soon computed
constexpr int64_t kLeastProducts = int64_t{1} << 29;
constexpr int64_t kOneIn = 6;  // with more candidates than that, the whole map costs less
constexpr int64_t kTilesOfTask = 14, kStripsOfTask = 8;

// Of even size, but for the last, and of about the same.
std::vector<Block> split_into_slices(int64_t channels) {
  const int64_t count = divide_up(channels, kSlice);
  const int64_t size = divide_up(divide_up(channels, count), 2) * 2;
  std::vector<Block> slices;
  for (int64_t begin = 0; begin < channels; begin += size) {
    slices.push_back({begin, std::min(size, channels - begin)});
  }
  return slices;
}

uint16_t* bits_of(Tensor& tensor) { return static_cast<uint16_t*>(tensor.mutable_data_ptr()); }

}  // namespace

Screening::Choice Screening::read_choice() {
  const char* given = std::getenv("DPP_SCREENING");
  const std::string_view choice = given ? given : "";
  TORCH_CHECK(choice.empty() || choice == "always" || choice == "never",
              "DPP_SCREENING: expected always or never, got ", choice);
  return choice.empty() ? Choice::kAuto : choice == "always" ? Choice::kAlways : Choice::kNever;
}

std::optional<Screening> Screening::prepare(const Placement<float>& placement, Choice choice) {
  if (choice == Choice::kAlways) return Screening(placement, 1);
  const int64_t weights = placement.prototypes.numel();
  const int64_t products = weights * placement.count();
  if (choice == Choice::kNever || !multiplies_rounded() || weights < kLeastWeights ||
      products < kLeastProducts) {
    return std::nullopt;
  }
  // A strip of prototypes on the first image usually shows whether candidates are few.
  const std::vector<Centre> centres(placement.centres.begin(),
                                    placement.centres.begin() + placement.field.places());
  const Tensor prototypes =
      placement.prototypes.narrow(0, 0, std::min(kStrip, placement.prototypes.size(0)));
  const Placement<float> taste{placement.field,  centres,           placement.z,
                               placement.stride, placement.outside, prototypes};
  if (!Screening(taste, kOneIn).find_candidates(taste)) return std::nullopt;
  return Screening(placement, kOneIn);
}

Screening::Screening(const Placement<float>& largest, int64_t one_in)
    : one_in_(one_in),
      prototypes_(largest.prototypes.size(0)),
      strips_(divide_up(prototypes_, kStrip)),
      groups_(divide_up(prototypes_, kGroup)),
      slices_(split_into_slices(largest.prototypes.size(1))),
      sample_lengths_(largest.count()),
      prototype_lengths_(prototypes_) {
  const int64_t centres = largest.count();
  const at::TensorOptions options = largest.prototypes.options(),
                          rounded = options.dtype(at::kBFloat16);
  const int64_t rows = divide_up(centres, kTileRows) * kTileRows;
  const int64_t slices = static_cast<int64_t>(slices_.size());
  map_ = empty_in_large_pages({centres, prototypes_}, options);
  samples_ = empty_in_large_pages({centres, kSlice}, options);
  rounded_samples_ = at::zeros({rows, kSlice}, rounded);
  rounded_prototypes_ = empty_in_large_pages({slices, strips_, kSlice / 2, kStrip, 2}, rounded);
}

void Screening::Lengths::clear() {
  std::fill(kept.begin(), kept.end(), 0.f);
  std::fill(lost.begin(), lost.end(), 0.f);
}

// From squares to lengths, rounded up: the sums were rounded, and each channel may lack something.
// Values whose square underflows, below 1.1e-19, are not counted; the rest is for numbers and
// products that the processor flushes to zero. False if a length is NaN, or so large that its
// products might overflow.
bool Screening::Lengths::take_roots(int64_t depth) {
  const float missing = 2e-19f * std::sqrt(static_cast<float>(depth));
  bool is_sane = true;
  for (std::vector<float>* lengths : {&kept, &lost}) {
    for (float& length : *lengths) {
      length = 1.001f * std::sqrt(length) + missing;
      is_sane &= length < 1e18f;
    }
  }
  return is_sane;
}

bool Screening::find_candidates(const Placement<float>& placement) {
  const int64_t centres = placement.count(), parts = placement.field.parts();
  const int64_t slices = static_cast<int64_t>(slices_.size());
  sample_lengths_.clear();
  prototype_lengths_.clear();
  for (int64_t part = 0; part < parts; ++part) {
    round_prototypes(placement.prototypes, part);
    for (int64_t slice = 0; slice < slices; ++slice) {
      round_samples(placement, part, slices_[slice]);
      add_products(centres, slice, part == 0 && slice == 0);
    }
  }
  const int64_t depth = placement.prototypes.size(1) * parts;
  if (!sample_lengths_.take_roots(depth) || !prototype_lengths_.take_roots(depth)) return false;
  // The map's sums were rounded, too: a term at most this often, by half an epsilon each time. The
  // other half, and a few more, are for the lengths and the bound itself.
  const float roundings = static_cast<float>(kSlice + parts * slices + 8);
  const float share = roundings * std::numeric_limits<float>::epsilon();
  for (int64_t i = 0; i < centres; ++i) sample_lengths_.lost[i] += share * sample_lengths_.kept[i];
  for (int64_t i = 0; i < prototypes_; ++i) {  // |b| <= |b'| + |b - b'|
    prototype_lengths_.kept[i] += prototype_lengths_.lost[i];
  }
  return sift(placement.images(), placement.field.places());
}

void Screening::round_prototypes(const Tensor& prototypes, int64_t part) {
  const Tensor weights = part_of(prototypes, part);
  at::parallel_for(0, strips_, 1, [&](int64_t begin, int64_t end) {
    uint16_t rows[kStrip][kSlice];
    for (int64_t strip = begin; strip < end; ++strip) {
      const int64_t first = strip * kStrip, count = std::min(kStrip, prototypes_ - first);
      std::fill(rows[0] + count * kSlice, rows[0] + kStrip * kSlice, uint16_t{0});
      for (size_t i = 0; i < slices_.size(); ++i) {
        run(Round{weights.const_data_ptr<float>() + first * weights.stride(0) + slices_[i].begin,
                  weights.stride(0), count, slices_[i].count, rows[0],
                  prototype_lengths_.kept.data() + first, prototype_lengths_.lost.data() + first});
        run(Interleave{rows[0], divide_up(slices_[i].count, 2),
                       bits_of(rounded_prototypes_) + (i * strips_ + strip) * kStrip * kSlice});
      }
    }
  });
}

void Screening::round_samples(const Placement<float>& placement, int64_t part, const Block& slice) {
  const int64_t centres = placement.count();
  at::parallel_for(0, centres, 8 * kTileRows, [&](int64_t begin, int64_t end) {
    float samples[kTileRows * kSlice];
    for (int64_t first = begin; first < end; first += kTileRows) {
      const int64_t count = std::min(kTileRows, end - first);
      Sample<float> some = placement.sample(part, slice, samples, kSlice);
      some.centres += first;
      some.count = count;
      run(some);
      run(Round{samples, kSlice, count, slice.count, bits_of(rounded_samples_) + first * kSlice,
                sample_lengths_.kept.data() + first, sample_lengths_.lost.data() + first});
    }
  });
}

// Adds a slice's products to the map, a tile at a time.
void Screening::add_products(int64_t centres, int64_t slice, bool is_first) {
  const uint16_t* samples = bits_of(rounded_samples_);
  const uint16_t* prototypes = bits_of(rounded_prototypes_) + slice * strips_ * kStrip * kSlice;
  const int64_t pairs = divide_up(slices_[slice].count, 2);
  const auto add_tile = [&](int64_t row, int64_t column) {
    float product[kTileRows][kStrip];
    multiply(samples + row * kSlice, prototypes + column * kSlice, pairs, product);
    const int64_t width = std::min(kStrip, prototypes_ - column);
    for (int64_t i = 0; i < std::min(kTileRows, centres - row); ++i) {
      float* sums = map_.mutable_data_ptr<float>() + (row + i) * prototypes_ + column;
      for (int64_t p = 0; p < width; ++p) sums[p] = (is_first ? 0 : sums[p]) + product[i][p];
    }
  };
  constexpr int64_t kRows = kTilesOfTask * kTileRows, kColumns = kStripsOfTask * kStrip;
  const int64_t down = divide_up(centres, kRows), across = divide_up(prototypes_, kColumns);
  at::parallel_for(0, down * across, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t top = task / across * kRows, left = task % across * kColumns;
      for (int64_t column = left; column < std::min(left + kColumns, prototypes_);
           column += kStrip) {
        for (int64_t row = top; row < std::min(top + kRows, centres); row += kTileRows) {
          add_tile(row, column);
        }
      }
    }
  });
}

// False if they are too many.
bool Screening::sift(int64_t images, int64_t places) {
  candidates_.resize(images * groups_);
  similarities_.resize(images * groups_);
  at::parallel_for(0, images * groups_, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / groups_ * places, first = task % groups_ * kGroup;
      run(Sift{map_.const_data_ptr<float>() + row * prototypes_ + first, prototypes_, places,
               std::min(kGroup, prototypes_ - first), sample_lengths_.kept.data() + row,
               sample_lengths_.lost.data() + row, prototype_lengths_.kept.data() + first,
               prototype_lengths_.lost.data() + first, &candidates_[task]});
      similarities_[task].assign(candidates_[task].size(), 0.f);
    }
  });
  int64_t total = 0;
  for (const std::vector<Candidate>& some : candidates_) total += static_cast<int64_t>(some.size());
  return total <= images * places * prototypes_ / one_in_;
}

// Adds a slice's share to the candidates' similarities, in float32.
void Screening::refine(const Placement<float>& placement, int64_t part, const Block& slice) {
  const Tensor weights = part_of(placement.prototypes, part);
  float* samples = samples_.mutable_data_ptr<float>();
  sample_in_parallel(placement.sample(part, slice, samples, kSlice));
  at::parallel_for(0, candidates_.size(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / groups_ * placement.field.places();
      const int64_t first = task % groups_ * kGroup;
      run(Refine{candidates_[task].data(), static_cast<int64_t>(candidates_[task].size()),
                 samples + row * kSlice, kSlice,
                 weights.const_data_ptr<float>() + first * weights.stride(0) + slice.begin,
                 weights.stride(0), slice.count, similarities_[task].data()});
    }
  });
}

// The best of the candidates; the first of equals.
void Screening::decide(const Placement<float>& placement, float* scores, int64_t* argmax) {
  for (int64_t part = 0; part < placement.field.parts(); ++part) {
    for (const Block& slice : slices_) refine(placement, part, slice);
  }
  for (size_t task = 0; task < candidates_.size(); ++task) {
    const int64_t target = task / groups_ * prototypes_ + task % groups_ * kGroup;
    for (size_t i = 0; i < candidates_[task].size(); ++i) {
      const Candidate& candidate = candidates_[task][i];
      if (similarities_[task][i] > scores[target + candidate.prototype]) {
        scores[target + candidate.prototype] = similarities_[task][i];
        argmax[target + candidate.prototype] = candidate.place;
      }
    }
  }
}

}  // namespace dpp
