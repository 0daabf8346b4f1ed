// A score sheet: a row for each prototype of a class, whose bars add up to the class's score.

function render({ model, el }) {
  const small = thumbnails(model);
  const rows = make("div", { class: "dpp-rows", role: "listbox" });
  rows.setAttribute("aria-label", "Prototype, similarity × connection = points");
  const sums = make("div", { class: "dpp-sums" });
  el.append(make("div", { class: "dpp-sheet" }, rows, sums));

  function track(bar, zero, kind) {
    const [start, end] = bar;
    const one = make("span", { class: `dpp-bar ${kind}` });
    one.style.left = `${Math.min(start, end) * 100}%`;
    one.style.width = `${Math.max(Math.abs(end - start) * 100, 0.4)}%`;
    one.classList.toggle("dpp-negative", end < start);
    const line = make("span", { class: "dpp-zero" });
    line.style.left = `${zero * 100}%`;
    return make("span", { class: "dpp-track" }, one, line);
  }

  function choose(prototype) {
    model.set("value", prototype);
    model.save_changes();
  }

  function draw() {
    const data = model.get("data");
    const chosen = rows.contains(document.activeElement);
    sums.replaceChildren();
    if (!data.rows) return rows.replaceChildren();
    rows.replaceChildren(
      ...data.rows.map((row) => {
        const own = row.prototype === model.get("value");
        const words = `Prototype ${row.prototype}: ${row.product} = ${row.points} points`;
        const label = { class: "dpp-row", type: "button", role: "option", "aria-label": words };
        const one = make(
          "button",
          { ...label, "aria-selected": own ? "true" : "false", tabindex: own ? 0 : -1 },
          small.of(row.picture),
          make("span", { class: "dpp-number" }, String(row.prototype)),
          make("span", { class: "dpp-product" }, row.product),
          track(row.bar, data.zero, "dpp-own"),
          make("span", { class: "dpp-points" }, row.points),
        );
        one.addEventListener("click", () => choose(row.prototype));
        if (own && chosen) setTimeout(() => one.focus());
        return one;
      }),
    );
    for (const [name, kind] of [["own", ""], ["others", "dpp-other"], ["score", "dpp-total"]]) {
      const { words, points, bar } = data[name];
      const middle = bar ? track(bar, data.zero, kind) : make("span");
      const text = make("span", { class: "dpp-words" }, words);
      const end = make("span", { class: "dpp-points" }, points);
      sums.append(make("div", { class: `dpp-sum dpp-sum-${name}` }, text, middle, end));
    }
    sums.append(make("div", { class: "dpp-said" }, data.said));
  }

  rows.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const every = [...rows.children];
    const place = every.indexOf(document.activeElement) + step;
    if (place < 0 || place >= every.length) return;
    every[place].focus();
    choose(model.get("data").rows[place].prototype);
  });
  model.on("change:data", draw);
  model.on("change:value", draw);
  draw();
  keepKeys(el);
  return () => {
    model.off("change:data", draw);
    model.off("change:value", draw);
    small.close();
  };
}

export default { render };
