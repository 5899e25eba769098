// A canvas with a horizontal axis that can be zoomed and moved; the base of timelines and curves.

const plots = [];

// The visible range of an axis; several plots may share it.
class View {
  constructor(low, high) {
    this.bounds = [low, high > low ? high : low + 1e-9];
    this.members = [];
    this.reset();
  }
  reset() { [this.from, this.to] = this.bounds; }
  get span() { return this.to - this.from; }
  zoom(factor, at) {
    const whole = this.bounds[1] - this.bounds[0];
    const span = Math.min(whole, Math.max(whole / 1e7, this.span * factor));
    const share = (at - this.from) / this.span;
    this.moveTo(at - share * span, span);
  }
  move(distance) { this.moveTo(this.from + distance, this.span); }
  moveTo(from, span) {
    this.from = Math.max(this.bounds[0], Math.min(from, this.bounds[1] - span));
    this.to = this.from + span;
    this.redraw();
  }
  redraw() { for (const plot of this.members) plot.redraw(); }
}

class Plot {
  constructor(parent, view, height, label, margin) {
    this.view = view;
    this.height = height;
    this.margin = margin;
    this.canvas = element("canvas", { tabindex: 0, role: "img", "aria-label": label });
    this.canvas.style.height = `${height}px`;
    parent.append(element("div", { class: "plot" }, this.canvas));
    view.members.push(this);
    plots.push(this);
    this.pointers = new Map();
    this.listen();
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
  }

  get left() { return this.margin(); }
  get inner() { return Math.max(10, this.canvas.clientWidth - this.left - 8); }
  x(value) { return this.left + ((value - this.view.from) / this.view.span) * this.inner; }
  value(x) { return this.view.from + ((x - this.left) / this.inner) * this.view.span; }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.prepare();
    });
  }

  prepare() {
    const width = this.canvas.clientWidth, scale = devicePixelRatio || 1;
    if (!width) return;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(this.height * scale);
    const ink = this.canvas.getContext("2d");
    ink.scale(scale, scale);
    ink.font = "12px system-ui, sans-serif";
    ink.textBaseline = "middle";
    ink.clearRect(0, 0, width, this.height);
    this.draw(ink, width);
    this.canvas.dataset.drawn = Number(this.canvas.dataset.drawn || 0) + 1;
  }

  axis(ink, unit, bottom) {
    const count = Math.max(2, Math.floor(this.inner / 95));
    ink.fillStyle = colour("soft");
    ink.strokeStyle = colour("line");
    ink.textAlign = "center";
    for (const tick of ticks(this.view.from, this.view.to, count, unit)) {
      const x = this.x(tick);
      ink.beginPath();
      ink.moveTo(x, 20);
      ink.lineTo(x, bottom);
      ink.stroke();
      ink.fillText(tickText(tick, this.view.span, unit), Math.min(x, this.left + this.inner - 16), 10);
    }
  }

  listen() {
    const canvas = this.canvas;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("wheel", (event) => {
      // Plain scrolling scrolls the page.
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
      event.preventDefault();
      const amount = event.deltaY || event.deltaX;
      this.view.zoom(Math.exp(amount * 0.004), this.value(at(event)[0]));
    }, { passive: false });
    canvas.addEventListener("dblclick", (event) => this.view.zoom(0.4, this.value(at(event)[0])));
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, at(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = at(event);
      const before = this.pointers.get(event.pointerId);
      if (before) {
        if (this.pointers.size === 2) this.pinch(event.pointerId, x);
        else if (Math.abs(x - before[0]) > 0) this.view.move((-(x - before[0]) / this.inner) * this.view.span);
        this.pointers.set(event.pointerId, [x, y]);
      }
      this.hover(x, y, event);
    });
    for (const kind of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(kind, (event) => this.pointers.delete(event.pointerId));
    }
    canvas.addEventListener("pointerleave", () => { tip.hide(); this.leave(); });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  pinch(moved, x) {
    const [[own, now], [, other]] = [...this.pointers].sort(([id]) => (id === moved ? -1 : 1));
    if (own !== moved) return;
    const before = Math.abs(now[0] - other[0]), after = Math.abs(x - other[0]);
    if (before > 4 && after > 4) this.view.zoom(before / after, this.value((x + other[0]) / 2));
  }

  key(event) {
    const middle = (this.view.from + this.view.to) / 2;
    const actions = {
      "+": () => this.view.zoom(0.5, middle), "=": () => this.view.zoom(0.5, middle),
      "-": () => this.view.zoom(2, middle), "0": () => { this.view.reset(); this.view.redraw(); },
      "ArrowLeft": () => this.view.move(-this.view.span / 5), "ArrowRight": () => this.view.move(this.view.span / 5),
    };
    if (actions[event.key]) {
      event.preventDefault();
      actions[event.key]();
    }
  }

  leave() {}
}

function zoomTools(view, ...more) {
  const middle = () => (view.from + view.to) / 2;
  return element("div", { class: "tools" },
    element("button", { type: "button", "aria-label": "Zoom in", onclick: () => view.zoom(0.5, middle()) }, "+"),
    element("button", { type: "button", "aria-label": "Zoom out", onclick: () => view.zoom(2, middle()) }, "−"),
    element("button", { type: "button", onclick: () => { view.reset(); view.redraw(); } }, "all"),
    element("span", {}, "drag to move; Ctrl and wheel, a pinch or + and − to zoom"), ...more);
}

// Round numbers between two values; bytes are round in their unit, counts are integers.
function ticks(from, to, count, unit) {
  const size = unit === "bytes" ? 1024 ** Math.max(0, Math.floor(Math.log(to) / Math.log(1024))) : 1;
  const rough = (to - from) / count / size, power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999) * size;
  if (unit === "count" || unit === "bytes") step = Math.max(1, step);
  const found = [];
  for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) found.push(tick);
  return found;
}

function tickText(tick, span, unit) {
  if (unit !== "seconds") return format(Math.abs(tick) < span * 1e-9 ? 0 : tick, unit);
  const [size, name] = span >= 2 ? [1, "s"] : span >= 2e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
  return `${Number((tick / size).toPrecision(8)).toLocaleString("en")} ${name}`;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colours.clear();
  for (const plot of plots) plot.redraw();
});
