// The maximum of equation 8, up to float32 rounding, without the whole map in float32.
//
// The map is first computed from numbers rounded to bfloat16, which the processor multiplies twice
// as fast. How far that can be off follows from the lengths of what rounding took away, by the
// Cauchy-Schwarz inequality:
//
//   |a·b - a'·b'| <= |a - a'| |b| + |a'| |b - b'|.
//
// Only places that may reach the maximum within that bound are candidates, a few of an image's;
// their similarities are computed in float32, and the best of those is the maximum. Where the bound
// leaves too many candidates, or is not finite, the caller computes the whole map instead.
#pragma once

#include "chunks.h"
#include "rounded_product.h"

namespace dpp {

class Screening {
 public:
  // DPP_SCREENING: always, never, or decided by size.
  enum class Choice { kAuto, kAlways, kNever };
  static Choice read_choice();

  // What screens placements of this size and smaller; nothing where the whole map is expected to be
  // faster, or was chosen.
  static std::optional<Screening> prepare(const Placement<float>& placement, Choice choice);

  // False if computing the whole map is faster.
  bool find_candidates(const Placement<float>& placement);

  // Scores and argmax (images, P), after find_candidates. Scores start at -infinity.
  void decide(const Placement<float>& placement, float* scores, int64_t* argmax);

 private:
  // One similarity in `one_in` may be a candidate.
  Screening(const Placement<float>& largest, int64_t one_in);

  // Of every row, the length of what rounding kept and of what it took away: their squares while
  // they are added up, and at last what each contributes to the bound.
  struct Lengths {
    std::vector<float> kept, lost;
    explicit Lengths(int64_t rows) : kept(rows), lost(rows) {}
    void clear();
    bool take_roots(int64_t depth);
  };

  void round_prototypes(const Tensor& prototypes, int64_t part);
  void round_samples(const Placement<float>& placement, int64_t part, const Block& slice);
  void add_products(int64_t centres, int64_t slice, bool is_first);
  bool sift(int64_t images, int64_t places);
  void refine(const Placement<float>& placement, int64_t part, const Block& slice);

  int64_t one_in_, prototypes_, strips_, groups_;
  std::vector<Block> slices_;  // of a part's channels
  Tensor map_, samples_, rounded_samples_, rounded_prototypes_;
  Lengths sample_lengths_, prototype_lengths_;
  // For each image, and each group of kGroup prototypes:
  std::vector<std::vector<Candidate>> candidates_;
  std::vector<std::vector<float>> similarities_;
};

}  // namespace dpp
