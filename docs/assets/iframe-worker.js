/* Search without a server. A browser refuses to start a Web Worker from a file:// page, so on such pages
   `Worker` is replaced by a hidden frame that runs the same script and exchanges the same messages. */
(function () {
  if (location.protocol !== "file:") return;
  class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.handler = null;
      const start = (event) => event.source === this.frame.contentWindow && this.receive(event.data);
      addEventListener("message", start);
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      const script = new URL(url, location.href).href.replace(/"/g, "%22");
      this.frame.srcdoc =
        "<script>" +
        "var postMessage = function (data) { parent.dispatchEvent(new MessageEvent('message'," +
        "{ data: data, source: window })); };" +
        "var importScripts = function () { return Array.prototype.slice.call(arguments).reduce(function (done, src) {" +
        "return done.then(function () { return new Promise(function (resolve, reject) {" +
        "var s = document.createElement('script'); s.src = src; s.onload = resolve; s.onerror = reject;" +
        "document.head.appendChild(s); }); }); }, Promise.resolve()); };" +
        "<\/script><script src=\"" + script + "\"><\/script>" +
        "<script>postMessage({ frameIsReady: true });<\/script>";
      const append = () => document.body.appendChild(this.frame);
      if (document.body) append();
      else addEventListener("DOMContentLoaded", append);
    }
    receive(data) {
      if (data && data.frameIsReady) {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((one) => this.send(one));
        return;
      }
      const event = new MessageEvent("message", { data: data });
      this.dispatchEvent(event);
      if (this.handler) this.handler(event);
    }
    send(data) {
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: data }));
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.send(data);
    }
    set onmessage(handler) { this.handler = handler; }
    get onmessage() { return this.handler; }
    terminate() { this.frame.remove(); }
  }
  window.Worker = FrameWorker;
})();
