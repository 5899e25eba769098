// Formatting of values, and helpers to create elements.

function pick(value, scales) {
  for (const [size, name] of scales) if (Math.abs(value) >= size) return [value / size, name];
  return [value, scales[scales.length - 1][1]];
}

function digits(value) {
  if (value === 0) return "0";
  const text = Math.abs(value) >= 1000 ? value.toFixed(0) : value.toPrecision(3);
  return text.includes("e") ? String(Number(text)) : text.replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

const show = {
  "seconds": (v) => {
    if (v >= 120) return `${Math.floor(v / 60)} min ${Math.round(v % 60)} s`;
    const [n, unit] = v === 0 ? [0, "s"] : pick(v, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]);
    return `${digits(n)} ${unit}`;
  },
  "bytes": (v) => {
    const [n, unit] = pick(v, [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]]);
    return `${digits(n)} ${unit}`;
  },
  "share": (v) => `${(100 * v).toFixed(1)} %`,
  "count": (v) => Math.round(v).toLocaleString("en"),
  "per second": (v) => `${v >= 1000 ? Math.round(v).toLocaleString("en") : digits(v)} /s`,
  "flops": (v) => {
    const [n, unit] = pick(v, [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]]);
    return `${digits(n)} ${unit}FLOP`;
  },
  "flops per second": (v) => `${show["flops"](v)}/s`,
  "": (v) => (Math.abs(v) < 1e-3 && v !== 0 ? v.toExponential(2) : String(Number(v.toPrecision(4)))),
};

function format(value, unit) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  return (show[unit] || show[""])(value);
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") made.style.cssText = value;
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) made.append(child);
  return made;
}

const colours = new Map();
function colour(name) {
  if (!colours.has(name)) {
    colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  }
  return colours.get(name);
}

const tip = {
  show(text, event) {
    const box = document.getElementById("tip");
    if (box.textContent !== text) box.textContent = text;
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - width - 6);
    const below = event.clientY + 16;
    box.style.left = `${Math.max(6, left)}px`;
    box.style.top = `${below + height > innerHeight - 6 ? Math.max(6, event.clientY - height - 12) : below}px`;
  },
  hide() {
    document.getElementById("tip").hidden = true;
  },
};

function legend(entries) {
  return element("div", { class: "legend" }, entries.map(([name, hue, dashed]) =>
    element("span", {}, element("i", {
      class: dashed ? "dashed" : "", style: `background:var(--${hue});border-color:var(--${hue})`,
    }), name)));
}

// A table: columns are [title, whether it holds numbers], rows are lists of texts or elements.
function tableOf(columns, rows, attributes = {}) {
  const kind = (place) => (columns[place][1] ? { class: "n" } : {});
  const body = element("tbody", {}, rows.map((cells) =>
    element("tr", {}, cells.map((cell, place) => element("td", kind(place), cell)))));
  const head = element("tr", {}, columns.map(([name], place) => element("th", kind(place), name)));
  return element("div", { class: "wide" }, element("table", attributes, element("thead", {}, head), body));
}
