// A button with a thumbnail that opens a panel of the browser, named by a class.

function render({ model, el }) {
  const small = thumbnails(model);
  const button = make("button", { class: "dpp-pick", type: "button", "aria-haspopup": "true" });
  const panel = () => el.closest(".dpp-browser")?.querySelector(`.${model.get("panel")}`);
  el.append(button);

  function draw() {
    const { title, note, picture } = model.get("data");
    const name = make("span", { class: "dpp-name" }, title || "");
    const below = make("span", { class: "dpp-below" }, note || "");
    const text = make("span", { class: "dpp-two-lines" }, name, below);
    const arrow = make("span", { class: "dpp-arrow", "aria-hidden": "true" }, "▾");
    button.replaceChildren(small.of(picture), text, arrow);
    button.setAttribute("aria-label", `${model.get("description")}: ${title}`);
    button.title = note ? `${title}, ${note}` : title || "";
  }
  function open(opened) {
    const one = panel();
    if (!one) return;
    one.classList.toggle("dpp-open", opened);
    button.setAttribute("aria-expanded", opened ? "true" : "false");
    if (opened) (one.querySelector("input, select, button") || one).focus();
  }
  const isOpen = () => panel()?.classList.contains("dpp-open");
  button.addEventListener("click", () => open(!isOpen()));
  const outside = (event) => {
    if (isOpen() && !panel().contains(event.target) && !button.contains(event.target)) open(false);
  };
  const leave = (event) => {
    if (event.key !== "Escape" || !isOpen() || !el.closest(".dpp-browser").contains(event.target)) return;
    open(false);
    button.focus();
  };
  const chosen = (event) => {
    if (isOpen() && panel().contains(event.target)) open(false);
  };
  document.addEventListener("pointerdown", outside);
  document.addEventListener("keydown", leave, true); // text fields keep keys to themselves
  document.addEventListener("dpp-chosen", chosen);
  model.on("change:data", draw);
  draw();
  keepKeys(el);
  return () => {
    document.removeEventListener("pointerdown", outside);
    document.removeEventListener("keydown", leave, true);
    document.removeEventListener("dpp-chosen", chosen);
    model.off("change:data", draw);
    small.close();
  };
}

export default { render };
