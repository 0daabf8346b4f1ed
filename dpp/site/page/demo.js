// What is chosen, and what the network makes of it. panels.js shows it, controls.js changes it.
"use strict";

const byId = (id) => document.getElementById(id);
const { size, cells, classes, colours } = DEMO_NETWORK;
const { grid, start: START } = DEMO_BIRDS; // where the sliders begin, and the first bird
const JOINTS = ["head", "wing", "tail"];
const MODES = ["moved", "mean", "rest"];
const view = { size, cells, first: DEMO_NETWORK.first, pace: size / cells };

const state = {
  ...START,
  mirrored: false,
  own: null, // {name, pixels} of the visitor's own picture
  mode: "moved",
  label: START.bird, // the class whose prototypes are shown
  prototype: 0,
  centre: null, // a cell that the visitor chose; null for the best one
  fit: false,
};
let network, frames, sources; // what is unpacked; frames of the chosen bird
let seen = null; // what the network makes of the picture: pixels, and a decision for each mode
let stage, source;

async function start() {
  network = new Network(DEMO_NETWORK.steps, await Unpack.floats(DEMO_NETWORK.weights));
  sources = await Unpack.bytes(DEMO_PROTOTYPES.pixels);
  stage = new Stage(byId("picture"), view, colours);
  source = new Stage(byId("source"), view, colours);
  makeRows();
  connect();
  await chooseBird(START.bird);
  await drawBirds();
  byId("demo").setAttribute("aria-busy", "false");
}

async function unpackBird(bird) {
  const bytes = await Unpack.bytes(DEMO_BIRDS.frames[bird]);
  return Unpack.sum(bytes, JOINTS.map((joint) => grid[joint].length), size * size * 3);
}

let wanted = null; // the bird that was chosen last: unpacking takes a moment

async function chooseBird(bird) {
  wanted = bird;
  const unpacked = await unpackBird(bird);
  if (wanted !== bird) return;
  frames = unpacked;
  Object.assign(state, { bird, own: null, centre: null, label: bird });
  see();
  choosePrototype(bestPrototype(bird));
}

// The prototype of a class that is most similar to the picture.
function bestPrototype(label) {
  const { scores } = seen.decisions[state.mode];
  return prototypesOf(label).reduce((best, p) => (scores[p] > scores[best] ? p : best));
}

function prototypesOf(label) {
  return network.labels.flatMap((one, p) => (one === label ? [p] : []));
}

function choosePrototype(prototype) {
  Object.assign(state, { prototype, label: network.labels[prototype], centre: null });
  showPrototypes();
  show();
}

function pixelsNow() {
  const length = size * size * 3;
  const place = (state.head * grid.wing.length + state.wing) * grid.tail.length + state.tail;
  const pixels = state.own?.pixels ?? frames.subarray(place * length, (place + 1) * length);
  return state.mirrored ? Picture.mirrored(pixels, size) : pixels;
}

// Runs the network on the picture.
function see() {
  const begin = performance.now();
  const pixels = pixelsNow();
  seen = { pixels, decisions: decide(pixels) };
  seen.milliseconds = performance.now() - begin;
}

// What the network makes of pixels: a decision for each mode.
function decide(pixels) {
  const { z, offsets } = network.locate(pixels, size);
  const fixed = new Float32Array(offsets.length);
  for (let i = 0; i < fixed.length; i++) {
    fixed[i] = DEMO_NETWORK.meanOffsets[i % DEMO_NETWORK.meanOffsets.length];
  }
  const given = { moved: offsets, mean: fixed, rest: null };
  return Object.fromEntries(MODES.map((mode) => [mode, network.decide(z, given[mode])]));
}

let waiting = false;

// After a change of the picture: once a frame, however many changes there are.
function changed() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    see();
    show();
  });
}
