// Browsers start no worker from file://. There, one that runs in a hidden frame takes its place,
// with the little of a worker that the search needs: scripts, messages, errors.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      this.ready = new Promise((resolve) => {
        this.frame.onload = () => resolve(this.start(new URL(url, location.href).href));
      });
      document.body.append(this.frame);
    }

    start(url) {
      const inside = this.frame.contentWindow;
      const load = (address) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script");
          script.src = new URL(address, url).href;
          script.onload = resolve;
          script.onerror = () => reject(new Error(`${address} could not be loaded`));
          inside.document.body.append(script);
        });
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => load(address)), Promise.resolve());
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      return load(url).then(() => inside);
    }

    postMessage(data) {
      this.ready.then((inside) =>
        inside.dispatchEvent(new inside.MessageEvent("message", { data })),
      );
    }

    terminate() {
      this.frame.remove();
    }
  };
}
