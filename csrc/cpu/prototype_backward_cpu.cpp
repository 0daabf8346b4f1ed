// The operators on the CPU, backward.
//
// The maximum needs no matrix product: one centre for each (image, prototype) carries gradient, and
// what it needs is gathered, multiplied and scattered a block of channels at a time. Threads divide
// channels (or images) among themselves, never the terms of a sum, so the result does not depend on
// the number of threads. Many prototypes are taken slice by slice.
#include <torch/library.h>

#include <memory>

#include "chunks.h"

namespace dpp {
namespace {

// The gradient of prototypes is channels-last in memory, whatever they are.
Tensor empty_prototype_grad(const Tensor& prototypes) {
  return empty_in_large_pages(
      {prototypes.size(0), prototypes.size(2), prototypes.size(3), prototypes.size(1)},
      prototypes.options());
}

Tensor zero_offset_grad(const MaybeTensor& offsets, const Tensor& z) {
  return offsets.has_value()
             ? at::zeros(offsets->sizes(), z.options().memory_format(at::MemoryFormat::Contiguous))
             : at::empty({0}, z.options());
}

template <typename T>
T* data_or_null(const MaybeTensor& offsets, Tensor& grad) {
  return offsets.has_value() ? grad.mutable_data_ptr<T>() : nullptr;
}

template <typename T>
void find_landings(const Field<T>& field, const std::vector<Centre>& centres, int64_t part,
                   Landing<T>* landings) {
  at::parallel_for(0, centres.size(), 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) landings[i] = find_landing(field, centres[i], part);
  });
}

// Adds the blocks' slopes (blocks, centres, 2), in the order of the blocks, to the gradient of one
// part's offsets. `grad` begins at the image from which the centres count.
template <typename T>
void add_slopes(const T* slopes, int64_t blocks, int64_t block_stride,
                const std::vector<Centre>& centres, const Field<T>& field, int64_t part, T* grad) {
  for (size_t i = 0; i < centres.size(); ++i) {
    T* target =
        grad + (centres[i].image * field.parts() + part) * 2 * field.places() + centres[i].place;
    T down = 0, right = 0;
    for (int64_t block = 0; block < blocks; ++block) {
      down += slopes[block * block_stride + 2 * i];
      right += slopes[block * block_stride + 2 * i + 1];
    }
    target[0] += down;
    target[field.places()] += right;
  }
}

// Dense backward: gathers the gradients of the samples, part after part, for a chunk of images, and
// turns their sum into z's gradient.
template <typename T>
class Gatherer {
 public:
  Gatherer(const Tensor& z, double outside, double floor)
      : rows_(z),
        outside_(make_outside<T>(z.size(1), outside)),
        blocks_(split_channels(z.size(1))),
        channels_(z.size(1)),
        stride_(pad(z.size(1))),
        places_(z.size(2) * z.size(3)),
        floor_(static_cast<T>(floor)) {}

  const T* begin(const Chunk& chunk) {
    chunk_ = chunk;
    z_ = rows_.load(chunk);
    spread_.assign(chunk.images() * places_ * stride_, T(0));
    return z_;
  }

  int64_t z_stride() const { return rows_.stride(); }
  const std::vector<T>& outside() const { return outside_; }

  // `centres` holds the same number of centres for each image of the chunk, image after image.
  void add(const Field<T>& field, const std::vector<Centre>& centres, int64_t part, const T* grad,
           int64_t grad_stride, T* offset_grad) {
    const int64_t count = static_cast<int64_t>(centres.size()) / chunk_.images();
    const int64_t blocks = static_cast<int64_t>(blocks_.size());
    const int64_t block_stride = 2 * static_cast<int64_t>(centres.size());
    landings_.resize(centres.size());
    slopes_.resize(blocks * block_stride);
    find_landings(field, centres, part, landings_.data());
    const int64_t grain = grain_of(count * blocks_[0].count);
    at::parallel_for(0, chunk_.images() * blocks, grain, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t image = task / blocks, channel = blocks_[task % blocks].begin;
        run(Scatter<T>{landings_.data() + image * count, count,
                       z_ + image * places_ * rows_.stride() + channel, rows_.stride(),
                       outside_.data() + channel, blocks_[task % blocks].count,
                       grad + image * count * grad_stride + channel, grad_stride, floor_,
                       spread_.data() + image * places_ * stride_ + channel, stride_,
                       slopes_.data() + task % blocks * block_stride + 2 * image * count});
      }
    });
    if (offset_grad) {
      add_slopes(slopes_.data(), blocks, block_stride, centres, field, part, offset_grad);
    }
  }

  void finish(Tensor& z_grad) {
    const int64_t blocks = static_cast<int64_t>(blocks_.size());
    const int64_t grain = grain_of(places_ * blocks_[0].count);
    at::parallel_for(0, chunk_.images() * blocks, grain, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t image = task / blocks, channel = blocks_[task % blocks].begin;
        run(Unpack<T>{spread_.data() + image * places_ * stride_ + channel, stride_,
                      z_ + image * places_ * rows_.stride() + channel, rows_.stride(),
                      blocks_[task % blocks].count,
                      view_of_image<T>(z_grad, chunk_.begin + image, channel)});
      }
    });
  }

 private:
  Rows<T> rows_;
  std::vector<T> outside_;
  std::vector<Block> blocks_;
  int64_t channels_, stride_, places_;
  T floor_;
  Chunk chunk_{};
  const T* z_ = nullptr;
  std::vector<T> spread_, slopes_;
  std::vector<Landing<T>> landings_;
};

std::tuple<Tensor, Tensor, Tensor> similarity_map_backward(const Tensor& grad, const Tensor& z,
                                                           const MaybeTensor& offsets,
                                                           const Tensor& prototypes,
                                                           int64_t dilation, double outside,
                                                           double floor) {
  check_prototypes(z, prototypes);
  check_common(z, offsets, prototypes.size(2), dilation);
  check_outside(outside);
  check_floor(floor);
  check_grad(z, grad, {z.size(0), prototypes.size(0), z.size(2), z.size(3)});
  at::AutoDispatchBelowADInplaceOrView guard;
  const int64_t places = z.size(2) * z.size(3), channels = z.size(1);
  Tensor z_grad = at::empty_like(z);
  Tensor prototype_grad = empty_prototype_grad(prototypes).zero_();
  const MaybeTensor moved = make_contiguous(offsets);
  Tensor offset_grad = zero_offset_grad(offsets, z);
  const Tensor weights = with_adjacent_channels(prototypes);
  AT_DISPATCH_FLOATING_TYPES(z.scalar_type(), "similarity_map_backward", [&] {
    using T = scalar_t;
    const Field<T> field = make_field<T>(z, moved, prototypes.size(2), dilation);
    const std::vector<Chunk> chunks = split_images(z.size(0), places);
    Gatherer<T> gatherer(z, outside, floor);
    Tensor buffer, sample_grads;
    for (const Chunk& chunk : chunks) {
      const T* data = gatherer.begin(chunk);
      const Field<T> mine = from_image(field, chunk.begin);
      const std::vector<Centre> centres = all_centres(chunk.images(), places);
      const int64_t count = static_cast<int64_t>(centres.size());
      if (!buffer.defined()) {
        buffer = at::empty({count, pad(channels)}, z.options());
        sample_grads = at::empty({count, pad(channels)}, z.options());
      }
      Tensor samples = buffer.narrow(0, 0, count).narrow(1, 0, channels);
      Tensor into = sample_grads.narrow(0, 0, count).narrow(1, 0, channels);
      const Tensor from = grad.narrow(0, chunk.begin, chunk.images())
                              .permute({0, 2, 3, 1})
                              .reshape({count, prototypes.size(0)});
      T* offset_target = data_or_null<T>(offsets, offset_grad);
      if (offset_target) offset_target += chunk.begin * 2 * field.parts() * places;
      for (int64_t part = 0; part < field.parts(); ++part) {
        sample_in_parallel(Sample<T>{mine, centres.data(), count, part, data, gatherer.z_stride(),
                                     gatherer.outside().data(), channels,
                                     samples.mutable_data_ptr<T>(), samples.stride(0)});
        Tensor part_grad = prototype_grad.select(1, part / prototypes.size(3))
                               .select(1, part % prototypes.size(3));
        at::addmm_out(part_grad, part_grad, from.t(), samples);
        at::mm_out(into, from, part_of(weights, part));
        gatherer.add(mine, centres, part, into.const_data_ptr<T>(), into.stride(0), offset_target);
      }
      gatherer.finish(z_grad);
    }
  });
  return {z_grad, offset_grad, prototype_grad.permute({0, 3, 1, 2})};
}

std::tuple<Tensor, Tensor> sample_parts_backward(const Tensor& grad, const Tensor& z,
                                                 const MaybeTensor& offsets, const Tensor& centres,
                                                 int64_t kernel_size, int64_t dilation,
                                                 double outside, double floor) {
  check_common(z, offsets, kernel_size, dilation);
  check_centres(z, centres);
  check_outside(outside);
  check_floor(floor);
  const int64_t channels = z.size(1), count = centres.size(1), parts = kernel_size * kernel_size;
  check_grad(z, grad, {z.size(0), count, channels, kernel_size, kernel_size});
  at::AutoDispatchBelowADInplaceOrView guard;
  Tensor z_grad = at::empty_like(z);
  Tensor offset_grad = zero_offset_grad(offsets, z);
  const MaybeTensor moved = make_contiguous(offsets);
  const Tensor from = grad.permute({0, 1, 3, 4, 2}).contiguous();
  const Tensor places = centres.contiguous();
  AT_DISPATCH_FLOATING_TYPES(z.scalar_type(), "sample_parts_backward", [&] {
    using T = scalar_t;
    const Field<T> field = make_field<T>(z, moved, kernel_size, dilation);
    Gatherer<T> gatherer(z, outside, floor);
    for (const Chunk& chunk : split_images(z.size(0), std::max(field.places(), count))) {
      gatherer.begin(chunk);
      const std::vector<Centre> mine = given_centres(places, chunk);
      T* offset_target = data_or_null<T>(offsets, offset_grad);
      if (offset_target) offset_target += chunk.begin * 2 * parts * field.places();
      const T* sample_grad = from.const_data_ptr<T>() + chunk.begin * count * parts * channels;
      for (int64_t part = 0; part < parts; ++part) {
        gatherer.add(from_image(field, chunk.begin), mine, part, sample_grad + part * channels,
                     parts * channels, offset_target);
      }
      gatherer.finish(z_grad);
    }
  });
  return {z_grad, offset_grad};
}

// The centres that some prototype's maximum hit with a gradient, image after image, and their hits.
template <typename T>
struct Hits {
  std::vector<Centre> centres;
  std::vector<int64_t> first{0};
  std::vector<Hit<T>> hits;
};

template <typename T>
Hits<T> find_hits(const Tensor& grad, const Tensor& argmax, int64_t places) {
  const int64_t images = grad.size(0), prototypes = grad.size(1);
  Hits<T> found;
  found.hits.reserve(images * prototypes);
  std::vector<int64_t> next(places + 1);
  for (int64_t image = 0; image < images; ++image) {
    const T* factor = grad.const_data_ptr<T>() + image * prototypes;
    const int64_t* place = argmax.const_data_ptr<int64_t>() + image * prototypes;
    std::fill(next.begin(), next.end(), 0);
    for (int64_t p = 0; p < prototypes; ++p) next[place[p] + 1] += factor[p] != 0;
    int64_t total = static_cast<int64_t>(found.hits.size());
    for (int64_t a = 0; a < places; ++a) {
      const int64_t count = next[a + 1];
      next[a] = total;
      total += count;
      if (count == 0) continue;
      found.centres.push_back({image, a});
      found.first.push_back(total);
    }
    found.hits.resize(total);
    for (int64_t p = 0; p < prototypes; ++p) {
      if (factor[p] != 0) found.hits[next[place[p]]++] = {p, factor[p]};
    }
  }
  return found;
}

// Prototypes whose gradients are gathered at once: those of many more would leave the outer cache,
// and each time costs a pass over the maps.
constexpr int64_t kMostGathered = 4 * kMostPrototypes;

// Backward of the maximum over some prototypes: writes the gradients of z and of the prototypes,
// adds to that of the offsets, which is null for rigid prototypes.
template <typename T>
void scatter_maximum(const Tensor& grad, const Tensor& argmax, const Tensor& z,
                     const Field<T>& field, const Tensor& prototypes, double outside, double floor,
                     Tensor& z_grad, T* offset_grad, Tensor& prototype_grad) {
  const int64_t images = z.size(0), channels = z.size(1), prototype_count = prototypes.size(0);
  const int64_t places = field.places(), parts = field.parts();
  const Hits<T> found = find_hits<T>(grad.contiguous(), argmax.contiguous(), places);
  const int64_t count = static_cast<int64_t>(found.centres.size());
  std::vector<Landing<T>> landings(parts * count);
  for (int64_t part = 0; part < parts; ++part) {
    find_landings(field, found.centres, part, landings.data() + part * count);
  }
  const std::vector<Block> blocks = split_channels(channels);
  const std::vector<T> border = make_outside<T>(channels, outside);
  const int64_t block_stride = parts * count * 2;
  std::vector<T> slopes(offset_grad ? blocks.size() * block_stride : 0);

  const int64_t work = (images * places + parts * static_cast<int64_t>(found.hits.size()));
  at::parallel_for(
      0, blocks.size(), grain_of(work * blocks[0].count), [&](int64_t begin, int64_t end) {
        const int64_t widest = pad(blocks.back().count);
        const auto features = std::make_unique_for_overwrite<T[]>(images * places * widest);
        const auto spread = std::make_unique_for_overwrite<T[]>(images * places * widest);
        const auto weights = std::make_unique_for_overwrite<T[]>(prototype_count * widest);
        const auto weight_grads = std::make_unique_for_overwrite<T[]>(prototype_count * widest);
        for (int64_t i = begin; i < end; ++i) {
          const Block& block = blocks[i];
          const int64_t width = pad(block.count);
          for (int64_t image = 0; image < images; ++image) {
            run(Pack<T>{view_of_image<T>(z, image, block.begin), block.count, width,
                        features.get() + image * places * width, width});
          }
          std::fill_n(spread.get(), images * places * width, T(0));
          T outside_row[kWidestBlock] = {};
          std::copy_n(border.data() + block.begin, block.count, outside_row);
          for (int64_t part = 0; part < parts; ++part) {
            run(Pack<T>{view_of_part<T>(prototypes, part, block.begin), block.count, width,
                        weights.get(), width});
            std::fill_n(weight_grads.get(), prototype_count * width, T(0));
            run(ScatterHits<T>{
                landings.data() + part * count, found.centres.data(), found.first.data(),
                found.hits.data(), count, places, width, features.get(), outside_row, weights.get(),
                static_cast<T>(floor), spread.get(), weight_grads.get(),
                slopes.empty() ? nullptr : slopes.data() + i * block_stride + part * count * 2});
            run(Unpack<T>{weight_grads.get(), width, nullptr, 0, block.count,
                          view_of_part<T>(prototype_grad, part, block.begin)});
          }
          for (int64_t image = 0; image < images; ++image) {
            run(Unpack<T>{spread.get() + image * places * width, width,
                          features.get() + image * places * width, width, block.count,
                          view_of_image<T>(z_grad, image, block.begin)});
          }
        }
      });
  for (int64_t part = 0; part < parts && !slopes.empty(); ++part) {
    add_slopes(slopes.data() + part * count * 2, static_cast<int64_t>(blocks.size()), block_stride,
               found.centres, field, part, offset_grad);
  }
}

std::tuple<Tensor, Tensor, Tensor> max_similarity_backward(
    const Tensor& grad, const Tensor& argmax, const Tensor& z, const MaybeTensor& offsets,
    const Tensor& prototypes, int64_t dilation, double outside, double floor) {
  check_prototypes(z, prototypes);
  check_common(z, offsets, prototypes.size(2), dilation);
  check_outside(outside);
  check_floor(floor);
  check_argmax(z, prototypes, argmax);
  check_grad(z, grad, {z.size(0), prototypes.size(0)});
  at::AutoDispatchBelowADInplaceOrView guard;
  Tensor z_grad = at::empty_like(z), more;
  Tensor prototype_grad = empty_prototype_grad(prototypes).permute({0, 3, 1, 2});
  Tensor offset_grad = zero_offset_grad(offsets, z);
  const MaybeTensor moved = make_contiguous(offsets);
  AT_DISPATCH_FLOATING_TYPES(z.scalar_type(), "max_similarity_backward", [&] {
    using T = scalar_t;
    const Field<T> field = make_field<T>(z, moved, prototypes.size(2), dilation);
    int64_t first = 0;
    do {
      const int64_t count = std::min(kMostGathered, prototypes.size(0) - first);
      if (first > 0 && !more.defined()) more = at::empty_like(z);
      Tensor slice_grad = prototype_grad.narrow(0, first, count);
      scatter_maximum<T>(grad.narrow(1, first, count), argmax.narrow(1, first, count), z, field,
                         prototypes.narrow(0, first, count), outside, floor,
                         first > 0 ? more : z_grad, data_or_null<T>(offsets, offset_grad),
                         slice_grad);
      if (first > 0) z_grad.add_(more);
      first += count;
    } while (first < prototypes.size(0));
  });
  return {z_grad, offset_grad, prototype_grad};
}

TORCH_LIBRARY_IMPL(dpp, CPU, m) {
  m.impl("max_similarity_backward", max_similarity_backward);
  m.impl("similarity_map_backward", similarity_map_backward);
  m.impl("sample_parts_backward", sample_parts_backward);
}

}  // namespace
}  // namespace dpp
