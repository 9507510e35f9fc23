// Small helpers: elements, numbers as people read them, colours, the tooltip. Names reach the page as text only.

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child);  // a string becomes a text node
  }
  return node;
}
const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

// Digits of what is packed into text.
const LEVELS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";

const MISSING = "–";
const significant = (value) => (Math.abs(value) >= 999.5 ? value.toFixed(0) : value.toPrecision(3));

function duration(ns) {
  if (ns === null || ns === undefined) return MISSING;
  for (const [step, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (Math.abs(ns) >= step) return `${significant(ns / step)} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}
function quantity(value, unit) {
  if (value === null || value === undefined) return MISSING;
  if (unit === "%") return `${value.toFixed(1)} %`;
  if (unit === "ns") return duration(value);
  unit = { byte: "B", "byte/s": "B/s", hz: "Hz" }[unit] ?? unit;
  for (const [step, prefix] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= step) return `${significant(value / step)} ${prefix}${unit}`;
  }
  return `${Number(value.toPrecision(4))} ${unit}`.trim();
}
const count = (value) => (value === null || value === undefined ? MISSING : value.toLocaleString("en-US"));
const percent = (part, whole) => (part === null || part === undefined || !whole ? MISSING : `${((100 * part) / whole).toFixed(1)} %`);
const plural = (n, noun) => `${count(n)} ${n === 1 ? noun : noun + (noun.endsWith("ch") ? "es" : "s")}`;

// The colour a CSS variable stands for in the present theme.
const probe = el("span", { hidden: "" });
document.body.append(probe);
let colours = new Map();
function colour(variable) {
  if (!colours.has(variable)) {
    probe.style.color = `var(${variable})`;
    colours.set(variable, getComputedStyle(probe).color);
  }
  return colours.get(variable);
}
const rgb = (text) => text.match(/[\d.]+/g).slice(0, 3).map(Number);
function mix(from, to, part) {
  const [a, b] = [rgb(from), rgb(to)];
  return `rgb(${a.map((value, i) => Math.round(value + (b[i] - value) * part)).join(" ")})`;
}
function readableOn(background) {
  const [r, g, b] = rgb(background).map((v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.3 ? "#14171b" : "#ffffff";
}
// Idle is orange, busy is blue, half of each is neutral: told apart with any kind of colour vision.
function busyColour(part) {
  if (part === null || Number.isNaN(part)) return colour("--line-strong");
  const middle = colour("--busy-middle");
  return part < 0.5 ? mix(colour("--idle"), middle, part * 2) : mix(middle, colour("--busy"), part * 2 - 1);
}

// Round numbers for an axis.
function ticks(from, to, wanted) {
  const raw = (to - from) / Math.max(wanted, 1);
  if (!(raw > 0)) return [];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to + step * 1e-6; at += step) found.push(at);
  return found;
}

// -- tooltip ------------------------------------------------------------------------------------

const tip = byId("tip");
function showTip(x, y, title, facts) {
  const list = el("dl");
  for (const [name, value] of facts) list.append(el("dt", {}, name), el("dd", {}, value));
  tip.replaceChildren(el("div", { class: "title" }, title), list);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, x + 14 + box.width > innerWidth - 8 ? x - box.width - 14 : x + 14)}px`;
  tip.style.top = `${Math.max(8, y + 14 + box.height > innerHeight - 8 ? y - box.height - 14 : y + 14)}px`;
}
const hideTip = () => { tip.hidden = true; };

async function copyText(text, button) {
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {  // from a file there may be no clipboard API
    const area = el("textarea", { readonly: "" });
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = done ? "copied" : "select it";
  setTimeout(() => { button.textContent = before; }, 1200);
}
