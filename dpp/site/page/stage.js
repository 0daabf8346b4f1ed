// A canvas with a picture and the parts of a prototype on it.
"use strict";

class Stage {
  // view: size of the picture in pixels, `first`: where the first cell looks, `pace`: pixels of a
  // cell; colours: of the parts.
  constructor(canvas, view, colours) {
    Object.assign(this, { canvas, view, colours, shown: null, frame: 0 });
    this.picture = document.createElement("canvas");
    this.picture.width = this.picture.height = view.size;
    new ResizeObserver(() => this.scene && this.draw()).observe(canvas);
  }

  // scene: pixels; parts, rest and centre in cells, [row, column]; crop: [left, top, side] in
  // pixels; similarities of every centre or null; pinned: whether the visitor chose the centre.
  show(scene, glide = true) {
    const image = new ImageData(this.view.size, this.view.size);
    for (let i = 0, j = 0; j < scene.pixels.length; i += 4, j += 3) {
      image.data[i] = scene.pixels[j];
      image.data[i + 1] = scene.pixels[j + 1];
      image.data[i + 2] = scene.pixels[j + 2];
      image.data[i + 3] = 255;
    }
    this.picture.getContext("2d").putImageData(image, 0, 0);
    this.scene = scene;
    const wanted = [...scene.parts, ...(scene.rest ?? scene.parts), scene.centre];
    cancelAnimationFrame(this.frame);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (!glide || still || !this.shown) {
      this.shown = wanted;
      this.draw();
      return;
    }
    const from = this.shown;
    const begin = performance.now();
    const step = (now) => {
      const share = Math.min(1, Math.max(0, (now - begin) / 180));
      const eased = 1 - (1 - share) ** 3;
      this.shown = wanted.map(([row, column], i) => [
        from[i][0] + (row - from[i][0]) * eased,
        from[i][1] + (column - from[i][1]) * eased,
      ]);
      this.draw();
      if (share < 1) this.frame = requestAnimationFrame(step);
    };
    step(begin);
  }

  // The picture's own coordinates of a place of the map, in pixels of the canvas.
  point([row, column]) {
    const { first, pace, size } = this.view;
    const [left, top, side] = this.scene.crop ?? [0, 0, size];
    const scale = this.canvas.width / side;
    return [(first + pace * column - left) * scale, (first + pace * row - top) * scale];
  }

  // The nearest cell to a place of the screen.
  cellAt(clientX, clientY) {
    const box = this.canvas.getBoundingClientRect();
    const { first, pace, size, cells } = this.view;
    const nearest = (share) =>
      Math.min(cells - 1, Math.max(0, Math.round((share * size - first) / pace)));
    const row = nearest((clientY - box.top) / box.height);
    return row * cells + nearest((clientX - box.left) / box.width);
  }

  draw() {
    const { canvas, scene, view } = this;
    const side = Math.round(canvas.clientWidth * (window.devicePixelRatio || 1));
    if (!side) return;
    if (canvas.width !== side) canvas.width = canvas.height = side;
    const pen = canvas.getContext("2d");
    const [left, top, shown] = scene.crop ?? [0, 0, view.size];
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.picture, left, top, shown, shown, 0, 0, side, side);
    const unit = side / Math.max(220, canvas.clientWidth); // a line of one pixel
    const cell = (view.pace * side) / shown;
    if (scene.similarities) this.drawFit(pen, cell, unit);
    const count = scene.parts.length;
    const parts = this.shown.slice(0, count);
    if (scene.rest) this.drawPaths(pen, parts, this.shown.slice(count, 2 * count), unit);
    parts.forEach((place, part) => this.drawPart(pen, place, part, cell, unit));
    this.drawCentre(pen, this.point(this.shown.at(-1)), unit);
  }

  // How well the prototype fits at every centre: a disc for each, the larger the better.
  drawFit(pen, cell, unit) {
    const values = this.scene.similarities;
    const [low, high] = [Math.min(...values), Math.max(...values)];
    values.forEach((value, place) => {
      const [x, y] = this.point([Math.floor(place / this.view.cells), place % this.view.cells]);
      pen.beginPath();
      pen.arc(x, y, Math.max(1, 0.4 * cell * ((value - low) / (high - low || 1)) ** 1.5), 0, 7);
      pen.fillStyle = "rgb(255 255 255 / 50%)";
      pen.fill();
      pen.lineWidth = unit;
      pen.strokeStyle = "rgb(0 0 0 / 55%)";
      pen.stroke();
    });
  }

  // From where each part rests to where it moved.
  drawPaths(pen, parts, rest, unit) {
    parts.forEach((place, part) => {
      const [from, to] = [this.point(rest[part]), this.point(place)];
      for (const [width, colour] of [[5, "rgb(0 0 0 / 60%)"], [2.5, this.colours[part]]]) {
        pen.beginPath();
        pen.moveTo(...from);
        pen.lineTo(...to);
        pen.lineWidth = width * unit;
        pen.strokeStyle = colour;
        pen.stroke();
      }
      pen.beginPath();
      pen.arc(...from, 4 * unit, 0, 7);
      pen.fillStyle = "white";
      pen.fill();
      pen.lineWidth = 2 * unit;
      pen.strokeStyle = "black";
      pen.stroke();
    });
  }

  // A part sees about one cell: a box of that size, with its number.
  drawPart(pen, place, part, cell, unit) {
    const [x, y] = this.point(place);
    const corner = [x - cell / 2, y - cell / 2, cell, cell, 0.16 * cell];
    for (const [width, colour] of [[6, "rgb(0 0 0 / 65%)"], [3.2, this.colours[part]]]) {
      pen.beginPath();
      pen.roundRect(...corner);
      pen.lineWidth = width * unit;
      pen.strokeStyle = colour;
      pen.stroke();
    }
    if (this.scene.plain) return;
    const radius = Math.max(8.5 * unit, 0.17 * cell);
    const outward = ([0, 1].includes(part) ? -1 : 1) * 0.5 * cell;
    const aside = (part % 2 ? 1 : -1) * 0.5 * cell;
    pen.beginPath();
    pen.arc(x + aside, y + outward, radius, 0, 7);
    pen.fillStyle = this.colours[part];
    pen.fill();
    pen.lineWidth = 1.5 * unit;
    pen.strokeStyle = "rgb(0 0 0 / 75%)";
    pen.stroke();
    pen.fillStyle = "black";
    pen.font = `700 ${1.3 * radius}px system-ui, sans-serif`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(part + 1, x + aside, y + outward + 0.08 * radius);
  }

  drawCentre(pen, [x, y], unit) {
    if (this.scene.plain) return;
    const arm = 9 * unit;
    for (const [width, colour] of [[5, "rgb(0 0 0 / 75%)"], [2, "white"]]) {
      pen.beginPath();
      pen.moveTo(x - arm, y);
      pen.lineTo(x + arm, y);
      pen.moveTo(x, y - arm);
      pen.lineTo(x, y + arm);
      if (this.scene.pinned) pen.roundRect(x - arm, y - arm, 2 * arm, 2 * arm, 3 * unit);
      pen.lineWidth = width * unit;
      pen.strokeStyle = colour;
      pen.stroke();
    }
  }
}
