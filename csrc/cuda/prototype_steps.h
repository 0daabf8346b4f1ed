// The order of launches behind each operator, over a Machine that owns a device; no torch.
//
// The Machine is CUDA in prototype_cuda.cu and an emulation in the tests, which run these same
// steps. It has:
//
// - T* buffer<T>(count): scratch memory that lives as long as the machine;
//
// - launch(grid, kernel, arguments...): launches blocks of kThreads; a smaller grid than asked for
//   is correct too;
//
// - multiply(result, left, right, add): result = left x right, added to result if `add`;
//
// - chunk_bytes: how much scratch memory one chunk of images may take.
//
// Work is done part by part, so that only one part's columns are held at a time. Where there are no
// images, prototypes or centres, nothing is launched and nothing is written.
#pragma once

#include <algorithm>

#include "prototype_kernels.cuh"

namespace dpp {

struct Grid {
  int64_t x, y;
};

template <typename T>
struct Matrix {
  T* data;
  int64_t rows, columns, row_stride, column_stride;

  Matrix transposed() const { return {data, columns, rows, column_stride, row_stride}; }
};

// (P, K, K, C), or their gradient
template <typename T>
struct Prototypes {
  T* data;
  int64_t count;

  template <typename U>
  Matrix<T> part(const Features<U>& features, int64_t part) const {
    const int64_t channels = features.channels;
    return {data + part * channels, count, channels, features.parts() * channels, 1};
  }
};

// What a backward writes. `z` (N, H, W, C) starts at zero; `offsets` is null for rigid prototypes.
template <typename T>
struct Gradients {
  T* z;
  T* offsets;
  T* prototypes;
  T floor;  // of the root's derivative

  Gradients from_image(const Features<T>& features, int64_t image) const {
    Gradients rest = *this;
    rest.z += image * features.area() * features.channels;
    if (offsets) rest.offsets += image * 2 * features.parts() * features.area();
    return rest;
  }
};

inline int64_t tiles(int64_t count) { return (count + kThreads - 1) / kThreads; }

template <typename T>
Matrix<T> rows_of(T* data, int64_t rows, int64_t columns) {
  return {data, rows, columns, columns, 1};
}

// How many images, of so many scratch elements each, keep to the machine's scratch memory.
template <typename T, typename Machine>
int64_t images_at_once(const Machine& machine, int64_t images, int64_t elements) {
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(T));
  return std::clamp<int64_t>(machine.chunk_bytes / bytes, 1, images);
}

// map (images, area, P)
template <typename Machine, typename T>
void fill_map(Machine& machine, const Features<T>& features, int64_t images,
              const Prototypes<const T>& prototypes, T* columns, T* map) {
  const Rows rows{nullptr, images, features.area()};
  const int64_t channels = features.channels;
  for (int64_t part = 0; part < features.parts(); ++part) {
    machine.launch(Grid{rows.count(), 1}, sample_columns<T>, features, rows, part, columns,
                   channels);
    machine.multiply(rows_of(map, rows.count(), prototypes.count),
                     rows_of<const T>(columns, rows.count(), channels),
                     prototypes.part(features, part).transposed(), part > 0);
  }
}

template <typename Machine, typename T>
void max_similarity(Machine& machine, const Features<T>& features, int64_t images,
                    const Prototypes<const T>& prototypes, T* scores, int64_t* argmax) {
  if (images == 0 || prototypes.count == 0) return;
  const int64_t area = features.area(), channels = features.channels, count = prototypes.count;
  const int64_t chunk = images_at_once<T>(machine, images, area * (channels + count));
  T* columns = machine.template buffer<T>(chunk * area * channels);
  T* map = machine.template buffer<T>(chunk * area * count);
  for (int64_t image = 0; image < images; image += chunk) {
    const int64_t some = std::min(chunk, images - image);
    fill_map(machine, features.from_image(image), some, prototypes, columns, map);
    machine.launch(Grid{some, tiles(count)}, find_maximum<T>, static_cast<const T*>(map), some,
                   area, count, scores + image * count, argmax + image * count);
  }
}

template <typename Machine, typename T>
void similarity_map(Machine& machine, const Features<T>& features, int64_t images,
                    const Prototypes<const T>& prototypes, T* map) {
  if (images == 0 || prototypes.count == 0) return;
  const int64_t area = features.area(), channels = features.channels;
  const int64_t chunk = images_at_once<T>(machine, images, area * channels);
  T* columns = machine.template buffer<T>(chunk * area * channels);
  for (int64_t image = 0; image < images; image += chunk) {
    fill_map(machine, features.from_image(image), std::min(chunk, images - image), prototypes,
             columns, map + image * area * prototypes.count);
  }
}

// From the gradient of one part's samples to the gradients of z, still to be multiplied by z, and
// of the part's offsets.
template <typename Machine, typename T>
void scatter_part(Machine& machine, const Features<T>& features, const Rows& rows, int64_t part,
                  const T* gradient, int64_t stride, T* products, const Gradients<T>& gradients) {
  machine.launch(Grid{rows.images, tiles(features.channels)}, scatter_rows<T>, features, rows, part,
                 gradient, stride, gradients.z);
  if (!gradients.offsets) return;
  machine.launch(Grid{rows.count(), 1}, offset_products<T>, features, rows, part, gradient, stride,
                 gradients.floor, products);
  machine.launch(Grid{tiles(rows.images * features.area()), 1}, place_products<T>, features, rows,
                 part, static_cast<const T*>(products), gradients.offsets);
}

template <typename Machine, typename T>
void finish_features(Machine& machine, const Features<T>& features, int64_t images,
                     const Gradients<T>& gradients) {
  const int64_t count = images * features.area() * features.channels;
  machine.launch(Grid{tiles(count), 1}, multiply<T>, features.z, count, gradients.z);
}

// Only the rows that are some prototype's maximum carry gradient.
template <typename Machine, typename T>
void max_similarity_backward(Machine& machine, const Features<T>& features, int64_t images,
                             const Prototypes<const T>& prototypes, const T* grad,
                             const int64_t* argmax, const Gradients<T>& gradients) {
  if (images == 0 || prototypes.count == 0) return;
  const int64_t area = features.area(), channels = features.channels, count = prototypes.count;
  const int64_t per_image = std::min(area, count);
  int64_t* location = machine.template buffer<int64_t>(images * per_image);
  int32_t* start = machine.template buffer<int32_t>(images * (per_image + 1));
  int32_t* members = machine.template buffer<int32_t>(images * count);
  T* products = machine.template buffer<T>(images * per_image * 2);
  machine.launch(Grid{images, 1}, list_rows, argmax, images, area, count, per_image, location,
                 start, members);
  const int64_t chunk = images_at_once<T>(machine, images, per_image * channels);
  T* gradient = machine.template buffer<T>(chunk * per_image * channels);
  for (int64_t image = 0; image < images; image += chunk) {
    const Features<T> here = features.from_image(image);
    const Rows rows{location + image * per_image, std::min(chunk, images - image), per_image};
    for (int64_t part = 0; part < features.parts(); ++part) {
      const Matrix<const T> weights = prototypes.part(features, part);
      machine.launch(Grid{rows.count(), tiles(channels)}, gather_gradient<T>, grad + image * count,
                     rows, static_cast<const int32_t*>(start + image * (per_image + 1)),
                     static_cast<const int32_t*>(members + image * count), count, weights.data,
                     weights.row_stride, channels, gradient);
      scatter_part(machine, here, rows, part, static_cast<const T*>(gradient), channels, products,
                   gradients.from_image(features, image));
    }
  }
  finish_features(machine, features, images, gradients);
  machine.launch(Grid{count * features.parts(), tiles(channels)}, prototype_gradient<T>, features,
                 grad, argmax, images, count, gradients.prototypes);
}

// grad (N, area, P)
template <typename Machine, typename T>
void similarity_map_backward(Machine& machine, const Features<T>& features, int64_t images,
                             const Prototypes<const T>& prototypes, const T* grad,
                             const Gradients<T>& gradients) {
  if (images == 0 || prototypes.count == 0) return;
  const int64_t area = features.area(), channels = features.channels, count = prototypes.count;
  const Prototypes<T> to_prototypes{gradients.prototypes, count};
  const int64_t chunk = images_at_once<T>(machine, images, area * channels);
  T* columns = machine.template buffer<T>(chunk * area * channels);
  T* products = machine.template buffer<T>(chunk * area * 2);
  for (int64_t image = 0; image < images; image += chunk) {
    const Features<T> here = features.from_image(image);
    const Rows rows{nullptr, std::min(chunk, images - image), area};
    const auto map = rows_of(grad + image * area * count, rows.count(), count);
    const auto whole = rows_of(columns, rows.count(), channels);
    const auto read = rows_of<const T>(columns, rows.count(), channels);
    for (int64_t part = 0; part < features.parts(); ++part) {
      machine.launch(Grid{rows.count(), 1}, sample_columns<T>, here, rows, part, columns, channels);
      machine.multiply(to_prototypes.part(features, part), map.transposed(), read, image > 0);
      machine.multiply(whole, map, prototypes.part(features, part), false);
      scatter_part(machine, here, rows, part, read.data, channels, products,
                   gradients.from_image(features, image));
    }
  }
  finish_features(machine, features, images, gradients);
}

// parts (N, per_image, K, K, C)
template <typename Machine, typename T>
void sample_parts(Machine& machine, const Features<T>& features, const Rows& rows, T* parts) {
  if (rows.count() == 0) return;
  const int64_t stride = features.parts() * features.channels;
  for (int64_t part = 0; part < features.parts(); ++part) {
    machine.launch(Grid{rows.count(), 1}, sample_columns<T>, features, rows, part,
                   parts + part * features.channels, stride);
  }
}

template <typename Machine, typename T>
void sample_parts_backward(Machine& machine, const Features<T>& features, const Rows& rows,
                           const T* grad, const Gradients<T>& gradients) {
  if (rows.count() == 0) return;
  const int64_t stride = features.parts() * features.channels;
  T* products = machine.template buffer<T>(rows.count() * 2);
  for (int64_t part = 0; part < features.parts(); ++part) {
    scatter_part(machine, features, rows, part, grad + part * features.channels, stride, products,
                 gradients);
  }
  finish_features(machine, features, rows.images, gradients);
}

}  // namespace dpp
