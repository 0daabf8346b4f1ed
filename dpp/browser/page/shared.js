// What the widgets share; it stands before each of their scripts.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "g", "image", "rect", "line", "circle", "title"]);
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const PIXELATED = 200; // a picture with a shorter side is enlarged without blur

function make(tag, attributes = {}, ...children) {
  const one = DRAWN.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) one.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) one.setAttribute(name, value);
  }
  one.append(...children); // text is never taken for HTML
  return one;
}

// JupyterLab's own shortcuts would take the arrow keys away from lists, sliders and figures, except
// from elements that carry this attribute themselves; an attribute on a parent is not enough.
const spare = (event) => (event.target.dataset.lmSuppressShortcuts = "true");

function keepKeys(el, times = 100) {
  const browser = el.closest(".dpp-browser");
  if (browser) browser.addEventListener("focusin", spare); // the same one is added once
  else if (times) setTimeout(() => keepKeys(el, times - 1), 100);
}

// An address for the bytes of a picture; the one before is given back.
function addressOf(bytes, before) {
  if (before) URL.revokeObjectURL(before);
  return bytes && bytes.byteLength ? URL.createObjectURL(new Blob([bytes])) : "";
}

// Thumbnails: the page asks for those that come into sight, and keeps them.
function thumbnails(model) {
  const addresses = new Map();
  const waiting = new Map(); // elements by the key of the picture that they wait for
  let asked = [];
  let timer = 0;

  function ask() {
    timer = 0;
    if (asked.length) model.send({ kind: "want", pictures: asked });
    asked = [];
  }
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      asked.push(JSON.parse(entry.target.dataset.key));
      timer ||= setTimeout(ask, 30);
    }
  });
  function receive(content, buffers) {
    if (content.kind !== "thumbnail") return;
    const key = JSON.stringify(content.picture);
    if (!addresses.has(key)) addresses.set(key, addressOf(buffers[0]));
    for (const image of waiting.get(key) || []) show(image, addresses.get(key));
    waiting.delete(key);
  }
  function show(image, address) {
    if (address) image.src = address;
    image.classList.toggle("dpp-empty", !address);
  }
  model.on("msg:custom", receive);

  return {
    of(picture, alt = "") {
      const image = make("img", { class: "dpp-thumb dpp-empty", alt, draggable: "false" });
      const key = JSON.stringify(picture);
      if (!picture) return image;
      if (addresses.has(key)) {
        show(image, addresses.get(key));
      } else {
        image.dataset.key = key;
        waiting.set(key, [...(waiting.get(key) || []), image]);
        seen.observe(image);
      }
      return image;
    },
    close() {
      seen.disconnect();
      clearTimeout(timer);
      model.off("msg:custom", receive);
      for (const address of addresses.values()) if (address) URL.revokeObjectURL(address);
    },
  };
}
