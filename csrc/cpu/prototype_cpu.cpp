// The operators on the CPU, forward.
//
// Similarity is added up part by part: one part's samples for a chunk of images fill one buffer,
// and a matrix product adds its share to the chunk's map. So the memory does not grow with the
// batch. The maximum over a large map is found faster, see screening.h.
#include <torch/library.h>

#include <limits>

#include "chunks.h"
#include "screening.h"

namespace dpp {
namespace {

// Adds up a chunk's similarity map (equation 5), (centres, P), part by part. `samples` is memory
// for one part's.
template <typename T>
void add_up_similarity(const Placement<T>& placement, const Tensor& samples, Tensor& map) {
  const int64_t count = placement.count(), channels = placement.prototypes.size(1);
  Tensor columns = samples.narrow(0, 0, count).narrow(1, 0, channels);
  for (int64_t part = 0; part < placement.field.parts(); ++part) {
    sample_in_parallel(
        placement.sample(part, {0, channels}, columns.mutable_data_ptr<T>(), columns.stride(0)));
    const Tensor weights = part_of(placement.prototypes, part).t();
    if (part == 0) {
      at::mm_out(map, columns, weights);
    } else {
      at::addmm_out(map, map, columns, weights);
    }
  }
}

// Calls use(chunk, its placement) for each chunk of images.
template <typename T, typename Use>
void for_each_chunk(const Tensor& z, const MaybeTensor& offsets, const Tensor& prototypes,
                    int64_t dilation, double outside, const Use& use) {
  const MaybeTensor moved = make_contiguous(offsets);
  const Tensor weights = with_adjacent_channels(prototypes);
  const Field<T> field = make_field<T>(z, moved, prototypes.size(2), dilation);
  const std::vector<T> border = make_outside<T>(z.size(1), outside);
  if (prototypes.size(0) == 0) return;
  Rows<T> rows(z);
  for (const Chunk& chunk : split_images(z.size(0), field.places())) {
    const T* data = rows.load(chunk);
    const std::vector<Centre> centres = all_centres(chunk.images(), field.places());
    use(chunk, Placement<T>{from_image(field, chunk.begin), centres, data, rows.stride(), border,
                            weights});
  }
}

// Memory for as many rows as the first chunk has, which is the largest; made when it is needed.
class RowMemory {
 public:
  RowMemory(int64_t columns, const at::TensorOptions& options)
      : columns_(columns), options_(options) {}

  Tensor rows(int64_t count) {
    if (!memory_.defined()) memory_ = empty_in_large_pages({count, columns_}, options_);
    return memory_.narrow(0, 0, count);
  }

 private:
  int64_t columns_;
  at::TensorOptions options_;
  Tensor memory_;
};

template <typename T>
void keep_maximum(const Tensor& map, int64_t places, T* scores, int64_t* argmax) {
  const int64_t count = map.size(1), strips = divide_up(count, kGroup);
  const int64_t tasks = map.size(0) / places * strips;
  at::parallel_for(0, tasks, grain_of(places * kGroup), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t image = task / strips, first = task % strips * kGroup;
      run(Maximum<T>{map.const_data_ptr<T>() + image * places * count + first, count, places,
                     std::min(kGroup, count - first), scores + image * count + first,
                     argmax + image * count + first});
    }
  });
}

template <typename T>
void find_maximum(const Tensor& z, const MaybeTensor& offsets, const Tensor& prototypes,
                  int64_t dilation, double outside, T* scores, int64_t* argmax) {
  const int64_t places = z.size(2) * z.size(3), count = prototypes.size(0);
  const Screening::Choice choice = Screening::read_choice();
  std::optional<Screening> screening;
  RowMemory samples(pad(z.size(1)), z.options()), maps(count, z.options());
  const auto find = [&](const Chunk& chunk, const Placement<T>& placement) {
    T* best = scores + chunk.begin * count;
    int64_t* where = argmax + chunk.begin * count;
    if constexpr (std::is_same_v<T, float>) {
      if (chunk.begin == 0) screening = Screening::prepare(placement, choice);
      if (screening && screening->find_candidates(placement)) {
        return screening->decide(placement, best, where);
      }
      screening.reset();
    }
    Tensor map = maps.rows(placement.count());
    add_up_similarity(placement, samples.rows(placement.count()), map);
    keep_maximum(map, places, best, where);
  };
  for_each_chunk<T>(z, offsets, prototypes, dilation, outside, find);
}

std::tuple<Tensor, Tensor> max_similarity(const Tensor& z, const MaybeTensor& offsets,
                                          const Tensor& prototypes, int64_t dilation,
                                          double outside) {
  check_prototypes(z, prototypes);
  check_common(z, offsets, prototypes.size(2), dilation);
  check_outside(outside);
  at::AutoDispatchBelowADInplaceOrView guard;
  if (prototypes.size(0) > kMostPrototypes) {
    std::vector<Tensor> scores, argmax;
    for (const Tensor& some : prototypes.split(kMostPrototypes)) {
      auto [score, place] = max_similarity(z, offsets, some, dilation, outside);
      scores.push_back(score);
      argmax.push_back(place);
    }
    return {at::cat(scores, 1), at::cat(argmax, 1)};
  }
  const std::vector<int64_t> size{z.size(0), prototypes.size(0)};
  Tensor scores = at::full(size, -std::numeric_limits<double>::infinity(), z.options());
  Tensor argmax = at::zeros(size, z.options().dtype(at::kLong));
  AT_DISPATCH_FLOATING_TYPES(z.scalar_type(), "max_similarity", [&] {
    find_maximum<scalar_t>(z, offsets, prototypes, dilation, outside,
                           scores.mutable_data_ptr<scalar_t>(), argmax.mutable_data_ptr<int64_t>());
  });
  return {scores, argmax};
}

// The result is channels-last in memory: the matrix products write straight into it.
Tensor similarity_map(const Tensor& z, const MaybeTensor& offsets, const Tensor& prototypes,
                      int64_t dilation, double outside) {
  check_prototypes(z, prototypes);
  check_common(z, offsets, prototypes.size(2), dilation);
  check_outside(outside);
  at::AutoDispatchBelowADInplaceOrView guard;
  const int64_t places = z.size(2) * z.size(3), count = prototypes.size(0);
  Tensor result = at::empty({z.size(0), z.size(2), z.size(3), count}, z.options());
  const Tensor map = result.view({z.size(0) * places, count});
  AT_DISPATCH_FLOATING_TYPES(z.scalar_type(), "similarity_map", [&] {
    using T = scalar_t;
    RowMemory samples(pad(z.size(1)), z.options());
    for_each_chunk<T>(z, offsets, prototypes, dilation, outside,
                      [&](const Chunk& chunk, const Placement<T>& placement) {
                        const int64_t rows = placement.count();
                        Tensor mine = map.narrow(0, chunk.begin * places, rows);
                        add_up_similarity(placement, samples.rows(rows), mine);
                      });
  });
  return result.permute({0, 3, 1, 2});
}

Tensor sample_parts(const Tensor& z, const MaybeTensor& offsets, const Tensor& centres,
                    int64_t kernel_size, int64_t dilation, double outside) {
  check_common(z, offsets, kernel_size, dilation);
  check_centres(z, centres);
  check_outside(outside);
  at::AutoDispatchBelowADInplaceOrView guard;
  const int64_t channels = z.size(1), count = centres.size(1), parts = kernel_size * kernel_size;
  Tensor result = at::empty({z.size(0), count, kernel_size, kernel_size, channels}, z.options());
  const MaybeTensor moved = make_contiguous(offsets);
  const Tensor places = centres.contiguous();
  AT_DISPATCH_FLOATING_TYPES(z.scalar_type(), "sample_parts", [&] {
    using T = scalar_t;
    const Field<T> field = make_field<T>(z, moved, kernel_size, dilation);
    const std::vector<T> border = make_outside<T>(channels, outside);
    Rows<T> rows(z);
    for (const Chunk& chunk : split_images(z.size(0), std::max(field.places(), count))) {
      const T* data = rows.load(chunk);
      const std::vector<Centre> mine = given_centres(places, chunk);
      T* target = result.mutable_data_ptr<T>() + chunk.begin * count * parts * channels;
      for (int64_t part = 0; part < parts; ++part) {
        sample_in_parallel(Sample<T>{from_image(field, chunk.begin), mine.data(),
                                     static_cast<int64_t>(mine.size()), part, data, rows.stride(),
                                     border.data(), channels, target + part * channels,
                                     parts * channels});
      }
    }
  });
  return result.permute({0, 1, 4, 2, 3});
}

TORCH_LIBRARY_IMPL(dpp, CPU, m) {
  m.impl("max_similarity", max_similarity);
  m.impl("similarity_map", similarity_map);
  m.impl("sample_parts", sample_parts);
}

}  // namespace
}  // namespace dpp
