// Files that the kernel sends are offered as downloads, and a link to the last one stays.

function render({ model, el }) {
  const link = make("a", { class: "dpp-download", hidden: true });
  let address = "";
  function receive(content, buffers) {
    address = addressOf(buffers[0], address);
    link.href = address;
    link.download = content.name;
    link.textContent = `Save ${content.name} again`;
    link.title = content.path;
    link.hidden = false;
    link.click();
  }
  model.on("msg:custom", receive);
  el.append(link);
  return () => {
    model.off("msg:custom", receive);
    if (address) URL.revokeObjectURL(address);
  };
}

export default { render };
