// A file upload. Files that are too large are refused here: Jupyter's server closes a connection
// whose message is larger than its limit.

let made = 0;

function render({ model, el }) {
  const id = `dpp-upload-${++made}-${Date.now()}`;
  const input = make("input", { type: "file", accept: "image/*", id, class: "dpp-file" });
  const label = make("label", { class: "dpp-button", for: id }, model.get("description"));
  input.addEventListener("change", async () => {
    const file = input.files[0];
    if (!file) return;
    if (file.size > model.get("largest")) {
      model.send({ kind: "refused", name: file.name, size: file.size });
    } else {
      model.send({ kind: "file", name: file.name }, undefined, [await file.arrayBuffer()]);
    }
    input.value = ""; // so that the same file can be chosen again
  });
  el.classList.add("dpp-upload");
  el.append(input, label);
}

export default { render };
