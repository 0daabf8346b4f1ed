// Sliders, buttons, keys, the pointer, files: each changes the state and has it shown.
"use strict";

function connect() {
  for (const joint of JOINTS) {
    const slider = byId(joint);
    Object.assign(slider, { min: 0, max: grid[joint].length - 1, step: 1, value: state[joint] });
    slider.addEventListener("input", () => turn({ [joint]: Number(slider.value) }));
  }
  byId("birds").addEventListener("change", ({ target }) => {
    say("");
    chooseBird(Number(target.value));
  });
  byId("modes").addEventListener("change", ({ target }) => chooseMode(target.value));
  byId("prototypes").addEventListener("change", ({ target }) => choosePrototype(Number(target.value)));
  byId("classes").addEventListener("click", ({ target }) => {
    const row = target.closest("button");
    if (row) choosePrototype(bestPrototype(Number(row.value)));
  });
  byId("mirror").addEventListener("click", () => turn({ mirrored: !state.mirrored }));
  byId("fit").addEventListener("click", () => {
    state.fit = !state.fit;
    show();
  });
  byId("reset").addEventListener("click", () => reset());
  byId("best").addEventListener("click", () => {
    chooseCentre(null);
    byId("picture").focus();
  });
  for (const button of document.querySelectorAll("[data-try]")) {
    button.addEventListener("click", () => attempt(button.dataset.try));
  }
  for (const name of ["pointerdown", "keydown"]) addEventListener(name, () => attempts++, true);
  connectPicture(byId("picture"));
  connectFiles(byId("file"), byId("drop"));
}

function chooseMode(mode) {
  state.mode = mode;
  show();
}

function chooseCentre(place) {
  state.centre = place;
  show();
}

async function reset(bird = state.bird) {
  say("");
  Object.assign(state, START, { mirrored: false, mode: "moved", fit: false });
  await chooseBird(bird);
}

function say(text, wrong = false) {
  byId("message").textContent = text;
  byId("message").classList.toggle("wrong", wrong);
}

// The prototype's centre by pointer and arrow keys.
function connectPicture(canvas) {
  const drag = ({ clientX, clientY }) => chooseCentre(stage.cellAt(clientX, clientY));
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    if (event.pointerType !== "touch") drag(event); // a finger may want to scroll the page
  });
  canvas.addEventListener("pointerup", drag); // not after scrolling, which cancels the pointer
  canvas.addEventListener("pointermove", (event) => {
    if (canvas.hasPointerCapture(event.pointerId)) drag(event);
  });
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Escape") chooseCentre(null);
    if (!steps[event.key]) return;
    event.preventDefault();
    const now = state.centre ?? seen.decisions[state.mode].centres[state.prototype];
    const within = (value) => Math.min(cells - 1, Math.max(0, value));
    const row = within(Math.floor(now / cells) + steps[event.key][0]);
    chooseCentre(row * cells + within((now % cells) + steps[event.key][1]));
  });
}

// The visitor's own picture, chosen or dropped.
function connectFiles(input, area) {
  input.addEventListener("change", () => {
    if (input.files.length) open(input.files[0]);
    input.value = ""; // so that the same file can be chosen again
  });
  for (const name of ["dragover", "drop"]) {
    area.addEventListener(name, (event) => {
      event.preventDefault();
      if (name === "drop" && event.dataTransfer.files.length) open(event.dataTransfer.files[0]);
    });
  }
}

async function open(file) {
  try {
    const pixels = await Picture.read(file, size);
    Object.assign(state, { own: { name: file.name, pixels }, mirrored: false, centre: null });
  } catch (error) {
    say(error.message, true);
    return;
  }
  see();
  choosePrototype(bestPrototype(winner(seen.decisions[state.mode].points)));
  say(
    `${file.name}, squeezed to ${size} × ${size} pixels. The network knows ten kinds of drawn birds and nothing else: ` +
      "it names one of them whatever it sees. Choose a bird above to go back.",
  );
}

// The four things to try: steps, each after some milliseconds, from the first bird as it was.
const TRIES = {
  rest: () => [[700, () => chooseMode("rest")]],
  mirror: () => [[700, () => turn({ mirrored: true })]],
  head: () =>
    grid.head.slice(START.head + 1).map((_, i) => [250, () => turn({ head: START.head + 1 + i })]),
  fit: () => {
    const best = seen.decisions[state.mode].centres[state.prototype];
    const aside = best % cells >= cells / 2 ? -1 : 1; // towards the middle
    return [
      [0, () => show((state.fit = true))],
      [600, () => chooseCentre(best + aside)],
      [600, () => chooseCentre(best + 2 * aside)],
    ];
  },
};
let attempts = 0; // whatever the visitor does ends what is being shown

async function attempt(name) {
  const mine = ++attempts;
  await reset(START.bird);
  byId("demo").scrollIntoView({ behavior: "smooth", block: "start" });
  for (const [milliseconds, step] of TRIES[name]()) {
    await new Promise((done) => setTimeout(done, milliseconds));
    if (mine !== attempts) return;
    step();
  }
}

function turn(joints) {
  Object.assign(state, joints);
  changed();
}

start().catch((error) => {
  say(`The network cannot run in this browser: ${error.message}. Try a newer one.`, true);
  throw error;
});
