// Sliders, buttons, keys, the pointer, files: each changes the state and has it shown.
"use strict";

function connect() {
  for (const joint of JOINTS) {
    const slider = byId(joint);
    Object.assign(slider, { min: 0, max: grid[joint].length - 1, step: 1, value: state[joint] });
    slider.addEventListener("input", () => {
      state[joint] = Number(slider.value);
      changed();
    });
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
  byId("mirror").addEventListener("click", () => {
    state.mirrored = !state.mirrored;
    changed();
  });
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
    button.addEventListener("click", () => TRIES[button.dataset.try]());
  }
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

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// The four things to try: each begins with the first bird as it was.
const TRIES = {
  async rest() {
    await beginTry();
    await pause(700);
    chooseMode("rest");
  },
  async mirror() {
    await beginTry();
    await pause(700);
    state.mirrored = true;
    changed();
  },
  async head() {
    await beginTry();
    for (let head = START.head; head < grid.head.length; head++) {
      await pause(250);
      state.head = head;
      changed();
    }
  },
  async fit() {
    await beginTry();
    state.fit = true;
    const best = seen.decisions[state.mode].centres[state.prototype];
    const row = Math.floor(best / cells);
    for (const step of [1, 2]) {
      await pause(500);
      chooseCentre(Math.max(0, row - step) * cells + (best % cells));
    }
  },
};

async function beginTry() {
  await reset(START.bird);
  byId("demo").scrollIntoView({ behavior: "smooth", block: "start" });
}

start();
