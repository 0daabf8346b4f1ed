// A figure: PNG bytes with alternative text. If it is interactive ("pointed"), a click sends its
// position, in fractions of the figure's sides, and the arrow keys move the centre by a cell.

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

// JupyterLab's own shortcuts would take the arrow keys away from lists, sliders and figures, except
// from elements that carry this attribute themselves; an attribute on a parent is not enough.
const spare = (event) => (event.target.dataset.lmSuppressShortcuts = "true");

function keepKeys(el, times = 100) {
  const browser = el.closest(".dpp-browser");
  if (browser) browser.addEventListener("focusin", spare); // the same one is added once
  else if (times) setTimeout(() => keepKeys(el, times - 1), 100);
}

function render({ model, el }) {
  const image = document.createElement("img");
  image.className = "dpp-figure";
  image.draggable = false;
  let address = "";

  function draw() {
    const bytes = model.get("value");
    const shown = bytes && bytes.byteLength > 0;
    const before = address;
    address = shown ? URL.createObjectURL(new Blob([bytes], { type: "image/png" })) : "";
    image.hidden = !shown;
    if (shown) image.src = address;
    if (before) URL.revokeObjectURL(before);
  }

  function describe() {
    image.alt = model.get("words");
    const active = model.get("pointed");
    image.classList.toggle("dpp-pointed", active);
    if (active) image.tabIndex = 0;
    else image.removeAttribute("tabindex");
  }

  image.addEventListener("click", (event) => {
    if (!model.get("pointed")) return;
    const box = image.getBoundingClientRect();
    const across = (event.clientX - box.left) / box.width;
    const down = (event.clientY - box.top) / box.height;
    model.send({ kind: "click", across, down });
  });
  image.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (!step || !model.get("pointed")) return;
    event.preventDefault();
    event.stopPropagation();
    model.send({ kind: "step", rows: step[0], columns: step[1] });
  });

  model.on("change:value", draw);
  model.on("change:words change:pointed", describe);
  draw();
  describe();
  el.appendChild(image);
  keepKeys(el);
  return () => {
    model.off("change:value", draw);
    model.off("change:words change:pointed", describe);
    if (address) URL.revokeObjectURL(address);
  };
}

export default { render };
