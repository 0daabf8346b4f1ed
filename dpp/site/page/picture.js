// A visitor's own picture as the network sees it: a square of few pixels, on white.
"use strict";

const Picture = {
  // Reads a file. Returns a promise of size * size * 3 bytes; it fails with a line for the visitor.
  async read(file, size) {
    let image;
    try {
      // colours as they are in the file, turned upright, as Python reads it
      image = await createImageBitmap(file, { colorSpaceConversion: "none" });
    } catch {
      throw new Error(
        `${file.name} is not a picture that this browser can read: choose a PNG, JPEG, WebP or GIF file.`,
      );
    }
    const shrink = Math.min(1, 4096 / Math.max(image.width, image.height)); // canvases are limited
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(image.width * shrink));
    canvas.height = Math.max(1, Math.round(image.height * shrink));
    const pen = canvas.getContext("2d", { willReadFrequently: true });
    pen.fillStyle = "white";
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(image, 0, 0, canvas.width, canvas.height);
    const { data, width, height } = pen.getImageData(0, 0, canvas.width, canvas.height);
    return Picture.squeeze(data, width, height, size);
  },

  // Pixels (height, width, 4) resized to a square (size, size, 3); the proportions are not kept.
  // It is Pillow's bilinear filter, rounded as Pillow rounds: the same bytes as in Python.
  squeeze(pixels, width, height, size) {
    const across = Picture.filter(width, size);
    const rows = new Uint8Array(height * size * 3);
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < size; x++) {
        const { start, weights } = across[x];
        for (let c = 0; c < 3; c++) {
          let sum = 1 << 21;
          for (let k = 0; k < weights.length; k++) {
            sum += pixels[(y * width + start + k) * 4 + c] * weights[k];
          }
          rows[(y * size + x) * 3 + c] = sum >> 22;
        }
      }
    }
    const down = Picture.filter(height, size);
    const square = new Uint8Array(size * size * 3);
    for (let y = 0; y < size; y++) {
      const { start, weights } = down[y];
      for (let x = 0; x < size * 3; x++) {
        let sum = 1 << 21;
        for (let k = 0; k < weights.length; k++) {
          sum += rows[(start + k) * size * 3 + x] * weights[k];
        }
        square[y * size * 3 + x] = sum >> 22;
      }
    }
    return square;
  },

  // For each of `size` outputs, the first of `length` inputs that it sees, and their weights as
  // whole numbers of 2^-22.
  filter(length, size) {
    const scale = length / size;
    const reach = Math.max(1, scale);
    return Array.from({ length: size }, (_, place) => {
      const centre = (place + 0.5) * scale;
      const start = Math.max(0, Math.trunc(centre - reach + 0.5));
      const end = Math.min(length, Math.trunc(centre + reach + 0.5));
      const weights = [];
      for (let i = start; i < end; i++) {
        weights.push(Math.max(0, 1 - Math.abs((i - centre + 0.5) / reach)));
      }
      const sum = weights.reduce((a, b) => a + b, 0);
      return { start, weights: weights.map((one) => Math.trunc(0.5 + (one / sum) * (1 << 22))) };
    });
  },

  mirrored(pixels, size) {
    const result = new Uint8Array(pixels.length);
    for (let y = 0; y < size; y++) {
      for (let x = 0; x < size; x++) {
        for (let c = 0; c < 3; c++) {
          result[(y * size + x) * 3 + c] = pixels[(y * size + size - 1 - x) * 3 + c];
        }
      }
    }
    return result;
  },
};
