// How the CPU's operators divide their work: images in chunks, channels in blocks, maps as rows.
#pragma once

#include <ATen/Parallel.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <vector>

#include "../prototype_ops.h"
#include "vector_loops.h"

namespace dpp {

constexpr int64_t kChunkRows = 4096;  // centres whose samples are held at once

// Prototypes that are worked on at once: the maps or weights of more would leave the caches, and
// memory would grow with them. A multiple of the vectors' lanes, so that rows of a map are aligned.
constexpr int64_t kMostPrototypes = 2048;

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int64_t pad(int64_t channels) { return divide_up(channels, kLanes) * kLanes; }

template <typename T>
Field<T> make_field(const Tensor& z, const MaybeTensor& offsets, int64_t kernel_size,
                    int64_t dilation) {
  return {offsets.has_value() ? offsets->const_data_ptr<T>() : nullptr, z.size(2), z.size(3),
          kernel_size, dilation};
}

template <typename T>
Field<T> from_image(Field<T> field, int64_t image) {
  if (field.offsets) field.offsets += image * 2 * field.parts() * field.places();
  return field;
}

inline MaybeTensor make_contiguous(const MaybeTensor& tensor) {
  return tensor.has_value() ? MaybeTensor(tensor->contiguous()) : std::nullopt;
}

// The row for every place off the map: zeros, and `outside` in the last channel.
template <typename T>
inline std::vector<T> make_outside(int64_t channels, double outside) {
  std::vector<T> row(pad(channels), T(0));
  row[channels - 1] = static_cast<T>(outside);
  return row;
}

// How many tasks of so many elements are worth a thread.
inline int64_t grain_of(int64_t elements) {
  return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, elements));
}

// Memory that is about to be written for the first time. Where it is large, its first touch costs
// as much as the arithmetic; pages of 2 MB make that cheap. Only a hint, and without effect
// elsewhere.
inline Tensor empty_in_large_pages(at::IntArrayRef sizes, const at::TensorOptions& options) {
  Tensor tensor = at::empty(sizes, options);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = uintptr_t{1} << 21;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.mutable_data_ptr());
  const uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  const uintptr_t last = (begin + tensor.nbytes()) / kPage * kPage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
  return tensor;
}

// Images [begin, end) that are worked on together, of about the same number each time.
struct Chunk {
  int64_t begin, end;
  int64_t images() const { return end - begin; }
};

inline std::vector<Chunk> split_images(int64_t images, int64_t rows_of_an_image) {
  std::vector<Chunk> chunks;
  if (images == 0) return chunks;
  const int64_t most = std::max<int64_t>(1, kChunkRows / std::max<int64_t>(1, rows_of_an_image));
  const int64_t size = divide_up(images, divide_up(images, most));
  for (int64_t begin = 0; begin < images; begin += size) {
    chunks.push_back({begin, std::min(images, begin + size)});
  }
  return chunks;
}

// Channels [begin, begin + count), about 64 of them: a block of all prototypes then fits a core's
// cache. The division depends on nothing but the channels. The ε channel makes their number 2^k +
// 1, so that the last block takes the remainder rather than leave a block of one channel.
struct Block {
  int64_t begin, count;
};

inline std::vector<Block> split_channels(int64_t channels) {
  const int64_t size = channels >= 512 ? 64 : channels >= 64 ? 32 : 16;
  const int64_t blocks = std::max<int64_t>(1, channels / size);
  std::vector<Block> result;
  for (int64_t i = 0; i < blocks; ++i) {
    result.push_back({i * size, i + 1 < blocks ? size : channels - i * size});
  }
  return result;
}

template <typename T>
Strided<const T> view_of_image(const Tensor& z, int64_t image, int64_t channel) {
  return {z.const_data_ptr<T>() + image * z.stride(0) + channel * z.stride(1),
          z.size(2),
          z.size(3),
          z.stride(2),
          z.stride(3),
          z.stride(1)};
}

template <typename T>
Strided<T> view_of_image(Tensor& z, int64_t image, int64_t channel) {
  return {z.mutable_data_ptr<T>() + image * z.stride(0) + channel * z.stride(1),
          z.size(2),
          z.size(3),
          z.stride(2),
          z.stride(3),
          z.stride(1)};
}

// One part of all prototypes, as a map of one row and P columns.
template <typename T>
Strided<const T> view_of_part(const Tensor& prototypes, int64_t part, int64_t channel) {
  const int64_t place = part / prototypes.size(3) * prototypes.stride(2) +
                        part % prototypes.size(3) * prototypes.stride(3);
  return {prototypes.const_data_ptr<T>() + place + channel * prototypes.stride(1),
          1,
          prototypes.size(0),
          0,
          prototypes.stride(0),
          prototypes.stride(1)};
}

template <typename T>
Strided<T> view_of_part(Tensor& prototypes, int64_t part, int64_t channel) {
  const Strided<const T> view = view_of_part<T>(std::as_const(prototypes), part, channel);
  return {prototypes.mutable_data_ptr<T>() + (view.data - prototypes.const_data_ptr<T>()),
          view.height,
          view.width,
          view.row_stride,
          view.column_stride,
          view.channel_stride};
}

// The maps of a chunk as rows of channels: a view where z is channels-last, else a copy in
// `buffer`.
template <typename T>
class Rows {
 public:
  explicit Rows(const Tensor& z) : z_(z), channels_(z.size(1)) {
    is_view_ = z.stride(1) == 1 && z.stride(2) == z.size(3) * z.stride(3) &&
               z.stride(0) == z.size(2) * z.stride(2);
    stride_ = is_view_ ? z.stride(3) : pad(channels_);
  }

  int64_t stride() const { return stride_; }

  const T* load(const Chunk& chunk) {
    if (is_view_) return z_.const_data_ptr<T>() + chunk.begin * z_.stride(0);
    const int64_t places = z_.size(2) * z_.size(3);
    buffer_.resize(std::max<size_t>(buffer_.size(), chunk.images() * places * stride_));
    const std::vector<Block> blocks = split_channels(channels_);
    const int64_t tasks = chunk.images() * static_cast<int64_t>(blocks.size());
    at::parallel_for(0, tasks, grain_of(places * blocks[0].count), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t image = task / static_cast<int64_t>(blocks.size());
        const Block& block = blocks[task % blocks.size()];
        run(Pack<T>{view_of_image<T>(z_, chunk.begin + image, block.begin), block.count,
                    block.count, buffer_.data() + image * places * stride_ + block.begin, stride_});
      }
    });
    return buffer_.data();
  }

 private:
  const Tensor z_;
  int64_t channels_, stride_;
  bool is_view_;
  std::vector<T> buffer_;
};

// Every place of each image of a chunk.
inline std::vector<Centre> all_centres(int64_t images, int64_t places) {
  std::vector<Centre> centres(images * places);
  for (int64_t i = 0; i < images * places; ++i) centres[i] = {i / places, i % places};
  return centres;
}

// The centres (N, Q) that were asked for, those of a chunk.
inline std::vector<Centre> given_centres(const Tensor& places, const Chunk& chunk) {
  const int64_t count = places.size(1);
  const int64_t* place = places.const_data_ptr<int64_t>() + chunk.begin * count;
  std::vector<Centre> centres(chunk.images() * count);
  for (int64_t i = 0; i < chunk.images() * count; ++i) centres[i] = {i / count, place[i]};
  return centres;
}

// A chunk of images and the prototypes that are laid on it.
template <typename T>
struct Placement {
  Field<T> field;  // from the chunk's first image
  const std::vector<Centre>& centres;
  const T* z;
  int64_t stride;
  const std::vector<T>& outside;
  const Tensor& prototypes;  // their channels lie side by side

  int64_t count() const { return static_cast<int64_t>(centres.size()); }
  int64_t images() const { return count() / field.places(); }

  // What samples some channels of one part, at all centres.
  Sample<T> sample(int64_t part, const Block& channels, T* samples, int64_t sample_stride) const {
    return {field,
            centres.data(),
            count(),
            part,
            z + channels.begin,
            stride,
            outside.data() + channels.begin,
            channels.count,
            samples,
            sample_stride};
  }
};

// Runs a Sample in parallel over its centres.
template <typename T>
void sample_in_parallel(const Sample<T>& job) {
  at::parallel_for(0, job.count, grain_of(job.channels), [&](int64_t begin, int64_t end) {
    Sample<T> mine = job;
    mine.centres += begin;
    mine.count = end - begin;
    mine.samples += begin * job.sample_stride;
    run(mine);
  });
}

// (P, C) of one part, its channels side by side: what a matrix product can read.
inline Tensor part_of(const Tensor& prototypes, int64_t part) {
  return prototypes.select(2, part / prototypes.size(3)).select(2, part % prototypes.size(3));
}

inline Tensor with_adjacent_channels(const Tensor& prototypes) {
  const bool readable = prototypes.stride(1) == 1 || prototypes.size(1) == 1;
  return readable ? prototypes : prototypes.contiguous(at::MemoryFormat::ChannelsLast);
}

}  // namespace dpp
