// The embedded arrays: base64 of bytes that zlib compressed (dpp/site/frames.py).
"use strict";

const Unpack = {
  // The bytes of a packed array, as a promise of a Uint8Array.
  async bytes(text) {
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  },

  async floats(text) {
    return new Float32Array((await Unpack.bytes(text)).buffer);
  },

  // Frames from their differences along the first axes, modulo 256, summed in place.
  // shape: of the frames' axes, such as [13, 7, 9]; size: bytes of one frame.
  sum(bytes, shape, size) {
    let step = bytes.length; // of the axis before
    for (const length of shape) {
      const whole = step;
      step /= length;
      for (let start = 0; start < bytes.length; start += whole) {
        for (let i = start + step; i < start + whole; i++) bytes[i] += bytes[i - step];
      }
    }
    if (step !== size) throw new Error(`a frame has ${step} bytes, not ${size}`);
    return bytes;
  },
};
