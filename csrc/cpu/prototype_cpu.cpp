// The operators on the CPU, forward.
//
// Similarity is added up part by part: one part's samples for a chunk of images fill one buffer,
// and a matrix product adds its share to the chunk's map. So the memory does not grow with the
// batch.
#include <torch/library.h>

#include <limits>

#include "chunks.h"

namespace dpp {
namespace {

// Adds up a chunk's similarity map (equation 5), (rows, P), part by part.
template <typename T>
void similarity_of_chunk(const Field<T>& field, const std::vector<Centre>& centres, const T* z,
                         int64_t stride, const std::vector<T>& outside, const Tensor& prototypes,
                         const Tensor& samples, Tensor& map) {
  const int64_t count = static_cast<int64_t>(centres.size());
  const int64_t channels = prototypes.size(1);
  Tensor columns = samples.narrow(0, 0, count).narrow(1, 0, channels);
  for (int64_t part = 0; part < field.parts(); ++part) {
    sample_in_parallel(Sample<T>{field, centres.data(), count, part, z, stride, outside.data(),
                                 channels, columns.mutable_data_ptr<T>(), columns.stride(0)});
    const Tensor weights = part_of(prototypes, part).t();
    if (part == 0) {
      at::mm_out(map, columns, weights);
    } else {
      at::addmm_out(map, map, columns, weights);
    }
  }
}

// Calls use(chunk, map of the chunk) for each chunk of images; `map_of` provides the map's memory.
template <typename T, typename MapOf, typename Use>
void for_each_chunk(const Tensor& z, const MaybeTensor& offsets, const Tensor& prototypes,
                    int64_t dilation, double outside, const MapOf& map_of, const Use& use) {
  const MaybeTensor moved = make_contiguous(offsets);
  const Tensor weights = with_adjacent_channels(prototypes);
  const Field<T> field = make_field<T>(z, moved, prototypes.size(2), dilation);
  const std::vector<T> border = make_outside<T>(z.size(1), outside);
  const std::vector<Chunk> chunks = split_images(z.size(0), field.places());
  if (chunks.empty() || prototypes.size(0) == 0) return;
  const int64_t most = chunks.front().images() * field.places();
  const Tensor samples = empty_in_large_pages({most, pad(z.size(1))}, z.options());
  const std::vector<Centre> centres = all_centres(chunks.front().images(), field.places());
  Rows<T> rows(z);
  for (const Chunk& chunk : chunks) {
    const T* data = rows.load(chunk);
    Tensor map = map_of(chunk);
    const std::vector<Centre> mine(centres.begin(),
                                   centres.begin() + chunk.images() * field.places());
    similarity_of_chunk(from_image(field, chunk.begin), mine, data, rows.stride(), border, weights,
                        samples, map);
    use(chunk, map);
  }
}

std::tuple<Tensor, Tensor> max_similarity(const Tensor& z, const MaybeTensor& offsets,
                                          const Tensor& prototypes, int64_t dilation,
                                          double outside) {
  check_prototypes(z, prototypes);
  check_common(z, offsets, prototypes.size(2), dilation);
  check_outside(outside);
  at::AutoDispatchBelowADInplaceOrView guard;
  const int64_t places = z.size(2) * z.size(3), count = prototypes.size(0);
  Tensor scores =
      at::full({z.size(0), count}, -std::numeric_limits<double>::infinity(), z.options());
  Tensor argmax = at::zeros({z.size(0), count}, z.options().dtype(at::kLong));
  Tensor buffer;
  AT_DISPATCH_FLOATING_TYPES(z.scalar_type(), "max_similarity", [&] {
    const auto map_of = [&](const Chunk& chunk) {
      const int64_t rows = chunk.images() * places;
      if (!buffer.defined()) buffer = empty_in_large_pages({rows, count}, z.options());
      return buffer.narrow(0, 0, rows);
    };
    const auto keep_maximum = [&](const Chunk& chunk, const Tensor& map) {
      constexpr int64_t kWidth = 256;
      const int64_t strips = divide_up(count, kWidth);
      at::parallel_for(
          0, chunk.images() * strips, grain_of(places * kWidth), [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; ++task) {
              const int64_t image = task / strips, first = task % strips * kWidth;
              const int64_t target = (chunk.begin + image) * count + first;
              run(Maximum<scalar_t>{map.const_data_ptr<scalar_t>() + image * places * count + first,
                                    count, places, std::min(kWidth, count - first),
                                    scores.mutable_data_ptr<scalar_t>() + target,
                                    argmax.mutable_data_ptr<int64_t>() + target});
            }
          });
    };
    for_each_chunk<scalar_t>(z, offsets, prototypes, dilation, outside, map_of, keep_maximum);
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
    for_each_chunk<scalar_t>(
        z, offsets, prototypes, dilation, outside,
        [&](const Chunk& chunk) {
          return map.narrow(0, chunk.begin * places, chunk.images() * places);
        },
        [](const Chunk&, const Tensor&) {});
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
