// A file upload. Files that are too large are refused here: Jupyter's server closes a connection
// whose message is larger than its limit.

let made = 0;

function render({ model, el }) {
  const label = document.createElement("label");
  label.className = "dpp-upload-label";
  label.textContent = model.get("description");
  const input = document.createElement("input");
  input.type = "file";
  input.accept = "image/*";
  input.id = `dpp-upload-${++made}-${Date.now()}`;
  label.htmlFor = input.id;
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
  el.append(label, input);
}

export default { render };
