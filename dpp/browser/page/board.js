// A prototype on an image and on its source image. Its centre is dragged on the image; a part that
// is pointed at lights up on both; pairs of patches can be enlarged.

const HEAT = ["#352a87", "#0567b0", "#12a6a0", "#a5be3c", "#f9fb0e"]; // low to high

function heatColour(value) {
  return HEAT[Math.min(HEAT.length - 1, Math.floor(value * HEAT.length))];
}

function outline(part, box, place) {
  const [left, top, right, bottom] = box;
  const sides = { x: left, y: top, width: right - left, height: bottom - top };
  const dash = part.dashed ? "5 3" : null;
  return make(
    "g",
    { "data-part": place, class: "dpp-part" },
    make("rect", { ...sides, class: "dpp-halo", stroke: part.halo }),
    make("rect", { ...sides, class: "dpp-box", stroke: part.colour, "stroke-dasharray": dash }),
    make("title", {}, part.name),
  );
}

// A picture in an SVG that is kept while what is drawn on it changes.
function stage(label) {
  const image = make("image", { x: 0, y: 0, preserveAspectRatio: "none" });
  const heat = make("g", { class: "dpp-heat", visibility: "hidden" });
  const marks = make("g");
  const svg = make("svg", { class: "dpp-picture", role: "img" }, image, heat, marks);
  const title = make("figcaption");
  const figure = make("figure", { class: `dpp-side dpp-${label}` }, title, svg);
  return { image, heat, marks, svg, title, figure };
}

function size(image, svg, width, height) {
  image.setAttribute("width", width);
  image.setAttribute("height", height);
  svg.classList.toggle("dpp-pixelated", Math.min(width, height) < PIXELATED);
}

function render({ model, el }) {
  const addresses = { here: "", there: "" };
  const stages = { here: stage("here"), there: stage("there") };
  const caption = make("div", { class: "dpp-caption", role: "status" });
  const warm = make("input", { type: "checkbox" });
  const warmLabel = make("label", { class: "dpp-check" }, warm, "Similarity map");
  const ends = make("span", { class: "dpp-ends" });
  const best = make("button", { class: "dpp-button", type: "button" }, "Go to the best place");
  const tools = make("div", { class: "dpp-tools" }, caption, best, warmLabel);
  const pair = make("div", { class: "dpp-pair" }, stages.here.figure, stages.there.figure);
  const cards = make("div", { class: "dpp-cards" });
  const hint = make("div", { class: "dpp-hint" }, make("b", {}, "This patch looks like that patch."));
  hint.append(" Bars: each part’s share of the similarity. Click to enlarge.", ends);
  const dialog = make("dialog", { class: "dpp-zoom" });
  const board = make("div", { class: "dpp-board" }, pair, tools, hint, cards, dialog);

  function patch(side, part, reach) {
    const scene = model.get("scene");
    const box = part[side];
    const frame = scene[side];
    if (!box || !frame) return make("div", { class: "dpp-patch dpp-none" }, "no source image");
    const [left, top, right, bottom] = box;
    const across = (right - left) * reach;
    const down = (bottom - top) * reach;
    const x = (left + right - across) / 2;
    const y = (top + bottom - down) / 2;
    const image = make("image", { x: 0, y: 0, preserveAspectRatio: "none", href: addresses[side] });
    const svg = make("svg", { viewBox: `${x} ${y} ${across} ${down}`, class: "dpp-patch" }, image);
    svg.setAttribute("preserveAspectRatio", "xMidYMid slice");
    size(image, svg, ...frame.size);
    const off = right <= 0 || bottom <= 0 || left >= frame.size[0] || top >= frame.size[1];
    if (off && reach === 1) return make("div", { class: "dpp-patch dpp-none" }, "off the image");
    if (reach > 1) svg.append(outline(part, box, -1));
    svg.style.setProperty("--part", part.colour);
    return svg;
  }

  function light(place) {
    board.classList.toggle("dpp-lighting", place !== null);
    for (const one of board.querySelectorAll("[data-part]"))
      one.classList.toggle("dpp-lit", one.dataset.part === String(place));
  }

  function zoom(place) {
    const scene = model.get("scene");
    const part = scene.parts[(place + scene.parts.length) % scene.parts.length];
    const at = scene.parts.indexOf(part);
    const close = make("button", { class: "dpp-button", type: "button" }, "Close");
    const next = make("button", { class: "dpp-button", type: "button" }, "Next part");
    close.addEventListener("click", () => dialog.close());
    next.addEventListener("click", () => zoom(at + 1));
    const shown = scene.alone ? ["here"] : ["here", "there"];
    const sides = shown.map((side) =>
      make(
        "figure",
        { class: "dpp-large" },
        patch(side, part, 2.4),
        make("figcaption", {}, (scene[side] || {}).title || "no source image"),
      ),
    );
    const share = part.text ? `: ${part.text} of the similarity ${scene.total}` : "";
    dialog.replaceChildren(
      make("h4", {}, `${part.name[0].toUpperCase()}${part.name.slice(1)}${share}`),
      make("div", { class: "dpp-pair" }, ...sides),
      make("div", { class: "dpp-tools" }, next, close),
    );
    dialog.style.setProperty("--part", part.colour);
    if (!dialog.open) dialog.showModal();
    next.focus();
  }

  function card(part, place) {
    const bar = make("span", { class: "dpp-bar" });
    bar.style.width = `${Math.abs(part.share) * 100}%`;
    bar.classList.toggle("dpp-negative", part.share < 0);
    const words = `Enlarge ${part.name}${part.text ? `, contribution ${part.text}` : ""}`;
    const label = { class: "dpp-card", type: "button", "data-part": place, "aria-label": words };
    const sides = model.get("scene").alone ? ["here"] : ["here", "there"];
    const patches = make("span", { class: "dpp-two" }, ...sides.map((side) => patch(side, part, 1)));
    patches.classList.toggle("dpp-single", sides.length === 1);
    const track = make("span", { class: "dpp-track" }, bar);
    const foot = make("span", { class: "dpp-foot" }, track, make("b", {}, part.text));
    const one = make("button", label, patches, ...(part.text ? [foot] : []));
    one.style.setProperty("--part", part.colour);
    one.addEventListener("click", () => zoom(place));
    return one;
  }

  function drawSide(side) {
    const scene = model.get("scene");
    const frame = scene[side];
    const { image, marks, svg, title, figure } = stages[side];
    figure.classList.toggle("dpp-missing", !frame);
    title.textContent = frame ? frame.title : "not projected: no source image";
    marks.replaceChildren();
    if (!frame) return image.removeAttribute("href");
    svg.setAttribute("viewBox", frame.view.join(" "));
    svg.setAttribute("aria-label", `${frame.title}: ${scene.parts.length} parts`);
    size(image, svg, ...frame.size);
    if (frame.centre) {
      const [x, y] = frame.centre;
      for (const part of scene.parts) {
        const [left, top, right, bottom] = part[side];
        const across = (left + right) / 2 - x;
        const down = (top + bottom) / 2 - y;
        const reach = Math.min(
          across ? (right - left) / 2 / Math.abs(across) : Infinity,
          down ? (bottom - top) / 2 / Math.abs(down) : Infinity,
        );
        if (reach >= 1) continue;
        const to = { x1: x, y1: y, x2: x + (1 - reach) * across, y2: y + (1 - reach) * down };
        marks.append(make("line", { ...to, class: "dpp-tie-halo" }));
        marks.append(make("line", { ...to, class: "dpp-tie" }));
      }
    }
    scene.parts.forEach((part, place) => marks.append(outline(part, part[side], place)));
    if (frame.centre) {
      const [cx, cy] = frame.centre;
      const r = Math.max(...frame.view.slice(2)) / 75;
      const movable = side === "here" && scene.cell;
      marks.append(make("circle", { cx, cy, r: movable ? 1.4 * r : r, class: "dpp-centre" }));
    }
  }

  function draw() {
    const scene = model.get("scene");
    board.hidden = !scene.parts;
    if (!scene.parts) return;
    drawSide("here");
    drawSide("there");
    caption.textContent = scene.caption;
    board.classList.toggle("dpp-alone", Boolean(scene.alone));
    tools.hidden = Boolean(scene.alone);
    const movable = Boolean(scene.cell);
    stages.here.svg.classList.toggle("dpp-movable", movable);
    if (movable) stages.here.svg.setAttribute("tabindex", "0");
    else stages.here.svg.removeAttribute("tabindex");
    for (const one of [best, warmLabel, ends]) one.hidden = !movable;
    const count = scene.parts.length;
    const across = scene.alone ? Math.ceil(Math.sqrt(count)) : Math.min(count, 5);
    cards.style.setProperty("--cards", across);
    hint.hidden = Boolean(scene.alone) || !scene.there;
    cards.replaceChildren(...scene.parts.map(card));
    if (dragged) sendCell();
  }

  function drawHeat() {
    const heat = model.get("heat");
    stages.here.heat.replaceChildren(
      ...(heat.boxes || []).map(([left, top, right, bottom], place) => {
        const sides = { x: left, y: top, width: right - left, height: bottom - top };
        return make("rect", { ...sides, fill: heatColour(heat.values[place]) });
      }),
    );
    showHeat();
  }
  function showHeat() {
    const heat = model.get("heat");
    stages.here.heat.setAttribute("visibility", warm.checked ? "visible" : "hidden");
    ends.textContent = warm.checked && heat.ends ? `blue ${heat.ends[0]}, yellow ${heat.ends[1]}` : "";
  }

  function load(side) {
    addresses[side] = addressOf(model.get(`${side}_picture`), addresses[side]);
    stages[side].image.setAttribute("href", addresses[side]);
    if (model.get("scene").parts) cards.replaceChildren(...model.get("scene").parts.map(card));
  }

  // Dragging: one question at a time; the newest cell waits until the kernel has answered.
  let dragged = null; // the newest cell under the pointer, until it is asked for
  let asked = "";
  let patience = 0;
  let again = 0;
  function cellAt(event) {
    const heat = model.get("heat");
    const to = stages.here.svg.getScreenCTM().inverse();
    const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(to);
    const away = (heat.boxes || []).map(([left, top, right, bottom]) =>
      Math.hypot((left + right) / 2 - x, (top + bottom) / 2 - y),
    );
    const place = away.indexOf(Math.min(...away));
    return [Math.floor(place / heat.cells[1]), place % heat.cells[1]];
  }
  function sendCell() {
    const shown = String(model.get("scene").cell);
    const left = patience - performance.now();
    clearTimeout(again);
    if (asked && shown !== asked && left > 0) {
      again = setTimeout(sendCell, left + 1);
      return;
    }
    asked = "";
    if (dragged && String(dragged) !== shown) {
      asked = String(dragged);
      patience = performance.now() + 1000;
      model.send({ kind: "centre", row: dragged[0], column: dragged[1] });
    }
    dragged = null;
  }
  function follow(event) {
    const [row, column] = (dragged = cellAt(event));
    const heat = model.get("heat");
    const [left, top, right, bottom] = heat.boxes[row * heat.cells[1] + column];
    const dot = stages.here.marks.querySelector(".dpp-centre");
    if (dot) {
      dot.setAttribute("cx", (left + right) / 2);
      dot.setAttribute("cy", (top + bottom) / 2);
    }
    sendCell();
  }
  const movable = () => Boolean(model.get("scene").cell) && Boolean(model.get("heat").boxes);
  let pressed = null;
  stages.here.svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pressed = { x: event.clientX, y: event.clientY, part: partOf(event), moved: false };
    if (!movable()) return;
    stages.here.svg.setPointerCapture(event.pointerId);
    stages.here.svg.focus({ preventScroll: true });
    event.preventDefault();
    if (pressed.part === null) follow(event);
  });
  stages.here.svg.addEventListener("pointermove", (event) => {
    if (!pressed || !movable()) return;
    if (Math.hypot(event.clientX - pressed.x, event.clientY - pressed.y) > 4) pressed.moved = true;
    if (pressed.moved) follow(event);
  });
  stages.here.svg.addEventListener("pointerup", (event) => {
    if (pressed && !pressed.moved && pressed.part !== null) zoom(pressed.part);
    else if (pressed && movable()) follow(event);
    pressed = null;
  });
  stages.there.svg.addEventListener("click", (event) => {
    if (partOf(event) !== null) zoom(partOf(event));
  });
  stages.here.svg.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (!step || !movable()) return;
    event.preventDefault();
    event.stopPropagation();
    model.send({ kind: "step", rows: step[0], columns: step[1] });
  });

  function partOf(event) {
    const found = event.target.closest("[data-part]");
    return found ? Number(found.dataset.part) : null;
  }
  for (const kind of ["pointerover", "focusin"])
    board.addEventListener(kind, (event) => !pressed?.moved && light(partOf(event)));
  for (const kind of ["pointerleave", "focusout"]) board.addEventListener(kind, () => light(null));
  dialog.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "ArrowRight") dialog.querySelector("button").click();
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  best.addEventListener("click", () => model.send({ kind: "best" }));
  warm.addEventListener("change", showHeat);

  const loads = { here: () => load("here"), there: () => load("there") };
  model.on("change:scene", draw);
  model.on("change:heat", drawHeat);
  model.on("change:here_picture", loads.here);
  model.on("change:there_picture", loads.there);
  loads.here();
  loads.there();
  draw();
  drawHeat();
  el.appendChild(board);
  keepKeys(el);
  return () => {
    model.off("change:scene", draw);
    model.off("change:heat", drawHeat);
    model.off("change:here_picture", loads.here);
    model.off("change:there_picture", loads.there);
    for (const address of Object.values(addresses)) if (address) URL.revokeObjectURL(address);
  };
}

export default { render };
