// A grid of thumbnails to choose from. Only those in sight are asked for.

const PAGE = 120; // thumbnails at a time

function render({ model, el }) {
  const small = thumbnails(model);
  const grid = make("div", { class: "dpp-grid", role: "listbox" });
  const more = make("button", { class: "dpp-button", type: "button" });
  const empty = make("div", { class: "dpp-note" });
  let shown = PAGE;
  el.append(grid, empty, more);

  function tile(item) {
    const own = item.key === model.get("value");
    const kind = item.mark ? `dpp-tile dpp-${item.mark}` : "dpp-tile";
    const label = { class: kind, type: "button", role: "option", "aria-label": item.words || item.title };
    const one = make(
      "button",
      { ...label, title: item.words || item.title, "aria-selected": own ? "true" : "false" },
      small.of(item.picture),
      make("span", { class: "dpp-name" }, item.title),
    );
    if (item.note) one.append(make("span", { class: "dpp-below" }, item.note));
    if (item.badge) one.append(make("span", { class: "dpp-badge" }, item.badge));
    one.dataset.key = item.key;
    one.addEventListener("click", () => {
      if (model.get("value") !== item.key) {
        model.set("value", item.key);
        model.save_changes();
      }
      if (model.get("closes")) el.dispatchEvent(new Event("dpp-chosen", { bubbles: true }));
    });
    return one;
  }
  function draw() {
    const items = model.get("items");
    const focused = grid.contains(document.activeElement) && document.activeElement.dataset.key;
    grid.setAttribute("aria-label", model.get("description"));
    grid.replaceChildren(...items.slice(0, shown).map(tile));
    more.hidden = items.length <= shown;
    more.textContent = `Show more of the ${items.length}`;
    empty.textContent = items.length ? "" : model.get("none");
    if (focused) [...grid.children].find((one) => one.dataset.key === focused)?.focus();
  }
  function choose() {
    for (const one of grid.children) {
      const own = String(model.get("value")) === one.dataset.key;
      one.setAttribute("aria-selected", own ? "true" : "false");
    }
  }
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const every = [...grid.children];
    every[every.indexOf(document.activeElement) + step]?.focus();
  });
  more.addEventListener("click", () => {
    shown += PAGE;
    draw();
  });
  model.on("change:items", draw);
  model.on("change:none", draw);
  model.on("change:value", choose);
  draw();
  keepKeys(el);
  return () => {
    model.off("change:items", draw);
    model.off("change:none", draw);
    model.off("change:value", choose);
    small.close();
  };
}

export default { render };
