// Deformable ProtoPNet in evaluation mode, in plain JavaScript.
//
// Every map is {height, width, channels, data}: a Float32Array, row by row, each place with all its
// channels. A layer gathers what each output place sees into one row of numbers, and multiplies all
// rows by the weights. The deformable prototypes do the same: what their parts see is sampled where
// the parts have moved to, with an interpolation that keeps every vector's length (Theorem 3.1).
"use strict";

class Network {
  // steps: from dpp/site/weights.py; weights: the Float32Array that they refer to.
  constructor(steps, weights) {
    this.steps = steps;
    this.labels = steps.labels;
    this.parts = steps.kernel ** 2;
    this.take = ({ start, shape }) =>
      weights.subarray(start, start + shape.reduce((a, b) => a * b, 1));
    this.prototypes = this.take(steps.prototypes); // (P, parts, channels + 1)
    this.connections = this.take(steps.connections); // (classes, P)
    this.classes = steps.connections.shape[0];
    const middle = (steps.kernel - 1) / 2;
    this.rest = Array.from({ length: this.parts }, (_, part) => [
      (Math.floor(part / steps.kernel) - middle) * steps.dilation,
      ((part % steps.kernel) - middle) * steps.dilation,
    ]); // where parts rest beside the centre, row and column, in cells
  }

  // What does not depend on how parts move: features of fixed length, and the predicted offsets.
  // pixels: size * size * 3 numbers from 0 to 255.
  locate(pixels, size) {
    let map = normalise(pixels, size, this.steps);
    for (const layer of this.steps.layers) map = this.apply(layer, map);
    const z = fixLength(map, this.steps.length, this.steps.epsilon);
    let offsets = z;
    for (const layer of this.steps.offsets) offsets = this.apply(layer, offsets);
    return { z, offsets: offsets.data }; // per place: down and right of part 1, of part 2, ...
  }

  // The prototypes on features: what a decision is made of.
  // offsets: numbers as `locate` gives them, or null for parts that stay at rest.
  decide(z, offsets) {
    const count = this.labels.length;
    const places = z.height * z.width;
    const samples = this.sample(z, offsets);
    const similarities = new Float32Array(places * count);
    multiply(samples, this.prototypes, null, places, count, this.parts * z.channels, similarities);
    const scores = new Float32Array(count).fill(-Infinity);
    const centres = new Int32Array(count);
    for (let place = 0; place < places; place++) {
      for (let p = 0; p < count; p++) {
        if (similarities[place * count + p] > scores[p]) {
          scores[p] = similarities[place * count + p];
          centres[p] = place;
        }
      }
    }
    const points = new Float32Array(this.classes);
    multiply(scores, this.connections, null, 1, this.classes, count, points);
    return { z, offsets, samples, similarities, scores, centres, points };
  }

  // Where the parts of a prototype lie if it is centred at a place: [row, column] in cells.
  partPlaces(decision, place) {
    const { z, offsets } = decision;
    const [row, column] = [Math.floor(place / z.width), place % z.width];
    return this.rest.map(([down, right], part) => {
      const at = (place * this.parts + part) * 2;
      const [moved, aside] = offsets ? [offsets[at], offsets[at + 1]] : [0, 0];
      return [row + down + moved, column + right + aside];
    });
  }

  // What each part adds to the similarity of a prototype at a place (equation 7).
  partShares(decision, prototype, place) {
    const { channels } = decision.z;
    return this.rest.map((_, part) => {
      const sample = (place * this.parts + part) * channels;
      const vector = (prototype * this.parts + part) * channels;
      let sum = 0;
      for (let c = 0; c < channels; c++) {
        sum += decision.samples[sample + c] * this.prototypes[vector + c];
      }
      return sum;
    });
  }

  // The features under every part of a prototype at every place: (places, parts, channels).
  sample(z, offsets) {
    const { height, width, channels } = z;
    const samples = new Float32Array(height * width * this.parts * channels);
    let target = 0;
    for (let place = 0; place < height * width; place++) {
      for (const [row, column] of this.partPlaces({ z, offsets: null }, place)) {
        const at = (target / channels) * 2;
        const [down, right] = offsets ? [offsets[at], offsets[at + 1]] : [0, 0];
        const [top, left] = [row + Math.floor(down), column + Math.floor(right)];
        const [alpha, beta] = [down - Math.floor(down), right - Math.floor(right)];
        const corners = [
          [top, left, (1 - alpha) * (1 - beta)],
          [top, left + 1, (1 - alpha) * beta],
          [top + 1, left, alpha * (1 - beta)],
          [top + 1, left + 1, alpha * beta],
        ];
        for (const [y, x, weight] of corners) {
          if (weight === 0) continue;
          if (y < 0 || y >= height || x < 0 || x >= width) {
            // beyond the map every place is the vector (0, ..., 0, length)
            samples[target + channels - 1] += weight * this.steps.length ** 2;
            continue;
          }
          const source = (y * width + x) * channels;
          for (let c = 0; c < channels; c++) {
            samples[target + c] += weight * z.data[source + c] * z.data[source + c];
          }
        }
        for (let c = 0; c < channels; c++) samples[target + c] = Math.sqrt(samples[target + c]);
        target += channels;
      }
    }
    return samples;
  }

  apply(layer, map) {
    if (layer.kind === "pool") return pool(layer, map);
    if (layer.kind === "convolution") return this.convolve(layer, map);
    const beside = layer.shortcut ? this.convolve(layer.shortcut, map) : map;
    const sum = this.convolve(layer.second, this.convolve(layer.first, map));
    for (let i = 0; i < sum.data.length; i++) {
      sum.data[i] = Math.max(0, sum.data[i] + beside.data[i]);
    }
    return sum;
  }

  convolve(layer, map) {
    const channels = layer.weight.shape[0];
    const [height, width] = outputSize(layer, map);
    const data = new Float32Array(height * width * channels);
    const seen = gather(layer, map, height, width);
    const length = layer.kernel ** 2 * map.channels;
    const [weight, bias] = [this.take(layer.weight), this.take(layer.bias)];
    multiply(seen, weight, bias, height * width, channels, length, data);
    if (layer.relu) for (let i = 0; i < data.length; i++) data[i] = Math.max(0, data[i]);
    return { height, width, channels, data };
  }
}

function normalise(pixels, size, { mean, deviation }) {
  const data = new Float32Array(size * size * 3);
  for (let i = 0; i < data.length; i++) data[i] = (pixels[i] - mean[i % 3]) / deviation[i % 3];
  return { height: size, width: size, channels: 3, data };
}

function outputSize({ kernel, stride, padding }, { height, width }) {
  return [height, width].map((side) => Math.floor((side + 2 * padding - kernel) / stride) + 1);
}

// What each place of a convolution's output sees: (places, kernel * kernel * channels), zero beyond
// the map.
function gather({ kernel, stride, padding }, map, height, width) {
  const { channels, data } = map;
  const seen = new Float32Array(height * width * kernel * kernel * channels);
  let target = 0;
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      for (let i = 0; i < kernel; i++) {
        const y = row * stride - padding + i;
        for (let j = 0; j < kernel; j++, target += channels) {
          const x = column * stride - padding + j;
          if (y < 0 || y >= map.height || x < 0 || x >= map.width) continue;
          const source = (y * map.width + x) * channels;
          for (let c = 0; c < channels; c++) seen[target + c] = data[source + c];
        }
      }
    }
  }
  return seen;
}

// result (rows, columns) = left (rows, length) times right (columns, length), transposed, plus a
// bias for each column. Four columns, whose numbers are put side by side, and two rows at a time:
// each number that is read is used more than once.
function multiply(left, right, bias, rows, columns, length, result) {
  const side = new Float32Array(4 * length);
  for (let c = 0; c < columns; c += 4) {
    for (let i = 0; i < 4; i++) {
      const from = Math.min(c + i, columns - 1) * length;
      for (let k = 0; k < length; k++) side[4 * k + i] = right[from + k];
    }
    for (let r = 0; r < rows; r += 2) {
      const first = r * length;
      const second = Math.min(r + 1, rows - 1) * length;
      let s0 = 0, s1 = 0, s2 = 0, s3 = 0; // of the first row
      let t0 = 0, t1 = 0, t2 = 0, t3 = 0; // of the second
      for (let k = 0, at = 0; k < length; k++, at += 4) {
        const u = left[first + k];
        const v = left[second + k];
        s0 += u * side[at];
        s1 += u * side[at + 1];
        s2 += u * side[at + 2];
        s3 += u * side[at + 3];
        t0 += v * side[at];
        t1 += v * side[at + 1];
        t2 += v * side[at + 2];
        t3 += v * side[at + 3];
      }
      const sums = [s0, s1, s2, s3, t0, t1, t2, t3];
      for (let i = 0; i < 4 && c + i < columns; i++) {
        const added = bias ? bias[c + i] : 0;
        result[r * columns + c + i] = sums[i] + added;
        if (r + 1 < rows) result[(r + 1) * columns + c + i] = sums[4 + i] + added;
      }
    }
  }
}

function pool(layer, map) {
  const [height, width] = outputSize(layer, map);
  const { channels } = map;
  const data = new Float32Array(height * width * channels).fill(-Infinity);
  for (let place = 0; place < height * width; place++) {
    const top = Math.floor(place / width) * layer.stride - layer.padding;
    const left = (place % width) * layer.stride - layer.padding;
    for (let y = Math.max(0, top); y < Math.min(map.height, top + layer.kernel); y++) {
      for (let x = Math.max(0, left); x < Math.min(map.width, left + layer.kernel); x++) {
        const source = (y * map.width + x) * channels;
        for (let c = 0; c < channels; c++) {
          const value = map.data[source + c];
          if (value > data[place * channels + c]) data[place * channels + c] = value;
        }
      }
    }
  }
  return { height, width, channels, data };
}

// A uniform extra channel, then every place's vector scaled to one length (equation 3).
function fixLength(map, length, epsilon) {
  const { height, width, channels } = map;
  const data = new Float32Array(height * width * (channels + 1));
  for (let place = 0; place < height * width; place++) {
    const source = place * channels;
    const target = place * (channels + 1);
    let squares = epsilon * epsilon;
    for (let c = 0; c < channels; c++) squares += map.data[source + c] ** 2;
    const scale = length / Math.sqrt(squares);
    for (let c = 0; c < channels; c++) data[target + c] = map.data[source + c] * scale;
    data[target + channels] = epsilon * scale;
  }
  return { height, width, channels: channels + 1, data };
}
