// Shows what is chosen and what the network makes of it (demo.js) in the page's panels.
"use strict";

function show() {
  const decision = seen.decisions[state.mode];
  const best = decision.centres[state.prototype];
  const centre = state.centre ?? best;
  showPicture(decision, centre);
  showModes();
  showPoints(decision);
  showParts(decision, centre);
  showSliders();
  const place = `row ${Math.floor(centre / cells) + 1}, column ${(centre % cells) + 1}`;
  byId("centre").textContent = `Centre: ${place}${centre === best ? ", its best place" : ""}`;
  byId("best").hidden = state.centre === null;
  byId("picture").setAttribute("aria-label", describePicture(place));
  for (const one of document.querySelectorAll("#prototypes input")) {
    const score = decision.scores[one.value].toFixed(2);
    one.parentElement.querySelector(".score").textContent = score;
  }
}

function showPicture(decision, centre) {
  const count = network.labels.length;
  const fit = (place) => decision.similarities[place * count + state.prototype];
  stage.show({
    pixels: seen.pixels,
    parts: network.partPlaces(decision, centre),
    rest: network.partPlaces({ z: decision.z, offsets: null }, centre),
    centre: [Math.floor(centre / cells), centre % cells],
    similarities: state.fit ? Array.from({ length: cells ** 2 }, (_, place) => fit(place)) : null,
    pinned: state.centre !== null,
  });
}

function describePicture(place) {
  const bird = state.own ? `Your picture ${state.own.name}` : `A drawn ${classes[state.bird]}`;
  return `${bird}${state.mirrored ? ", mirrored" : ""}. Prototype ${state.prototype} is centred at ${place}. The arrow keys move it.`;
}

function winner(points) {
  return points.indexOf(Math.max(...points));
}

function showModes() {
  for (const radio of document.querySelectorAll("#modes input")) {
    const label = winner(seen.decisions[radio.value].points);
    const right = state.own ? "" : label === state.bird ? "✓ " : "✗ ";
    radio.checked = radio.value === state.mode;
    radio.parentElement.querySelector(".says").textContent = right + classes[label];
    radio.parentElement.classList.toggle("wrong", !state.own && label !== state.bird);
  }
}

function showPoints({ points, scores }) {
  const first = winner(points);
  let verdict = `${classes[first]}`;
  if (!state.own) {
    verdict += first === state.bird ? ": correct." : `: wrong, it is a ${classes[state.bird]}.`;
  } else if (DEMO_NETWORK.familiar && Math.max(...scores) < DEMO_NETWORK.familiar) {
    verdict += ": a guess. Nothing in this picture is much like any prototype.";
  } else {
    verdict += ", of the ten that it knows. It cannot say “none of them”.";
  }
  if (byId("verdict").textContent !== verdict) byId("verdict").textContent = verdict;
  const low = Math.min(...points) - 2; // totals are all alike, so bars begin here
  for (const [label, row] of [...byId("classes").children].entries()) {
    const share = (points[label] - low) / (points[first] - low);
    row.querySelector(".bar").style.width = `${100 * share}%`;
    row.querySelector(".value").textContent = points[label].toFixed(2);
    row.classList.toggle("first", label === first);
    row.setAttribute("aria-pressed", label === state.label);
  }
}

function showParts(decision, centre) {
  const shares = network.partShares(decision, state.prototype, centre);
  const similarity = shares.reduce((a, b) => a + b, 0);
  const rest = network.partPlaces({ z: decision.z, offsets: null }, centre);
  const moved = network.partPlaces(decision, centre);
  for (const [part, row] of [...byId("parts").children].entries()) {
    const far = Math.hypot(moved[part][0] - rest[part][0], moved[part][1] - rest[part][1]);
    row.querySelector(".bar").style.width = `${100 * shares[part] * network.parts}%`;
    row.querySelector(".value").textContent = shares[part].toFixed(3);
    row.querySelector(".far").textContent = far ? `moved ${far.toFixed(1)} cells` : "at rest";
  }
  const weight = network.connections[state.label * network.labels.length + state.prototype];
  const product = similarity * weight;
  byId("sum").textContent =
    state.centre === null
      ? `Similarity ${similarity.toFixed(3)} × weight ${weight.toFixed(2)} = ${product.toFixed(2)} points`
      : `Similarity here ${similarity.toFixed(3)}, at its best place ${decision.scores[state.prototype].toFixed(3)}`;
}

function showSliders() {
  const texts = {
    head: degrees(grid.head[state.head]),
    wing: `${Math.round(100 * grid.wing[state.wing])} % up`,
    tail: degrees(grid.tail[state.tail]),
  };
  for (const joint of JOINTS) {
    byId(joint).value = state[joint];
    byId(joint).disabled = Boolean(state.own);
    byId(joint).setAttribute("aria-valuetext", texts[joint]);
    byId(`${joint}-value`).textContent = texts[joint];
  }
  byId("mirror").setAttribute("aria-pressed", state.mirrored);
  byId("fit").setAttribute("aria-pressed", state.fit);
  for (const one of document.querySelectorAll("#birds input")) {
    one.checked = !state.own && Number(one.value) === state.bird;
  }
}

function degrees(angle) {
  return angle ? `${Math.abs(angle)}° ${angle > 0 ? "up" : "down"}` : "0°";
}

function imageOf(prototype) {
  const length = size * size * 3;
  const { image } = DEMO_PROTOTYPES.sources[prototype];
  return sources.subarray(image * length, (image + 1) * length);
}

// The prototypes of the chosen class, and the source image of the chosen one.
function showPrototypes() {
  const own = prototypesOf(state.label);
  byId("others-title").textContent = `${classes[state.label]}: all ${own.length} prototypes`;
  const shown = [...document.querySelectorAll("#prototypes input")].map((one) => Number(one.value));
  if (shown.join() !== own.join()) {
    byId("prototypes").replaceChildren(...own.map(prototypeButton));
    for (const canvas of document.querySelectorAll("#prototypes canvas")) {
      const prototype = Number(canvas.previousElementSibling.value);
      new Stage(canvas, view, colours).show(sceneOf(prototype, true), false);
    }
  }
  for (const one of document.querySelectorAll("#prototypes input")) {
    one.checked = Number(one.value) === state.prototype;
  }
  source.show(sceneOf(state.prototype, false), false);
  const text = `Training picture of a ${classes[state.label]}, with the four parts of prototype ${state.prototype}`;
  byId("source").setAttribute("aria-label", text);
  byId("origin").textContent =
    `Prototype ${state.prototype} is this piece of a training picture of a ${classes[state.label]}. Its parts have the same colours in both pictures.`;
}

// A prototype in its source image; small, only the piece around it.
function sceneOf(prototype, small) {
  const { parts, centre } = DEMO_PROTOTYPES.sources[prototype];
  const scene = { pixels: imageOf(prototype), parts, centre, rest: null, plain: small };
  if (small) {
    const side = 38;
    const corner = [1, 0].map((axis) => {
      const places = parts.map((part) => part[axis]);
      const centre = view.first + (view.pace * (Math.min(...places) + Math.max(...places))) / 2;
      return Math.min(size - side, Math.max(0, Math.round(centre - side / 2)));
    });
    scene.crop = [...corner, side];
  }
  return scene;
}

function prototypeButton(prototype) {
  const label = document.createElement("label");
  label.innerHTML = `<input type="radio" name="prototype" value="${prototype}"
    aria-label="Prototype ${prototype}"><canvas aria-hidden="true"></canvas><span class="score"></span>`;
  return label;
}

// The rows and buttons that are always there.
function makeRows() {
  byId("classes").innerHTML = classes
    .map(
      (name, label) => `<button type="button" value="${label}"><span class="name">${name}</span>
        <span class="track"><span class="bar"></span></span><span class="value"></span></button>`,
    )
    .join("");
  byId("parts").innerHTML = colours
    .map(
      (colour, part) => `<tr><th scope="row"><span class="swatch" style="background:${colour}">${part + 1}</span></th>
        <td class="far"></td><td class="value"></td>
        <td><span class="track"><span class="bar" style="background:${colour}"></span></span></td></tr>`,
    )
    .join("");
  byId("birds").innerHTML = classes
    .map(
      (name, bird) => `<label title="${name}"><input type="radio" name="bird" value="${bird}"
        aria-label="${name}"><canvas aria-hidden="true"></canvas></label>`,
    )
    .join("");
}

async function drawBirds() {
  const all = await Unpack.bytes(DEMO_BIRDS.portraits);
  const length = size * size * 3;
  for (const [bird, canvas] of [...document.querySelectorAll("#birds canvas")].entries()) {
    const pixels = all.subarray(bird * length, (bird + 1) * length);
    new Stage(canvas, view, colours).show({ pixels, parts: [], centre: [0, 0], plain: true }, false);
  }
}
