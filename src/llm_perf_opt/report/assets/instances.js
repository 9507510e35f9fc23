// All instances of a region as a strip of bars: warm-up shaded, the steady median, and where most of them lie.

const instanceBox = byId("instances");
const BARS = 88, ROOM = 10, FOOT = 12, SCALE = 62, WIDEST = 36;
const strips = { region: NONE, bars: [] };

// Two characters a duration, on a logarithmic scale from the shortest to the longest; of many instances a bar has
// three: the shortest, the median, the longest.
function unpackInstances(region) {
  const packed = data.instances?.[region];
  if (!packed) return null;
  const [instances, alone, low, high, text, warm = [], own = null] = packed;
  const { median, p10, p90 } = own ? { median: own[0], p10: own[1] ?? null, p90: own[2] ?? null } : timingOf(region);
  const digit = (at) => LEVELS.indexOf(text[at]);
  const value = (i) => low * (high / low) ** ((digit(2 * i) * 64 + digit(2 * i + 1)) / 4095);
  const single = alone === instances;
  const size = text.length / (single ? 2 : 6);
  const first = (bar) => (bar < alone ? bar : alone + Math.floor(((bar - alone) * (instances - alone)) / (size - alone)));
  const isWarm = new Set(warm);
  const bars = Array.from({ length: size }, (_, bar) => ({
    first: first(bar),
    after: bar + 1 < size ? first(bar + 1) : instances,
    shortest: value(single ? bar : 3 * bar),
    median: value(single ? bar : 3 * bar + 1),
    longest: value(single ? bar : 3 * bar + 2),
    warm: isWarm.has(bar),
  }));
  return { instances, single, bars, p10, median, p90 };
}
const barOf = (bars, number) => Math.max(bars.findIndex((bar) => number < bar.after), 0);

// Without a selection: what ran repeatedly and took the longest.
function stripRegion() {
  if (state.region !== NONE) return state.region;
  const found = regions.key.map((_, number) => number).filter((number) => data.instances?.[number] && !library.has(number));
  const working = found.filter((number) => regions.gpu[number]);
  return (working.length ? working : found).sort((a, b) => regions.wall[b] - regions.wall[a])[0] ?? NONE;
}

// The instance of some that are kept (rows of `recorded.instances`) that stands best for its region.
function typicalOf(kept) {
  const list = recorded.instances;
  const heaviest = [...kept].sort((a, b) => (regions.gpu[list.region[b]] ?? 0) - (regions.gpu[list.region[a]] ?? 0))[0];
  const strip = unpackInstances(list.region[heaviest]);
  if (!strip) return heaviest;
  const off = (i) => [strip.bars[barOf(strip.bars, list.number[i])].warm, Math.abs(list.length[i] - (strip.median ?? list.length[i]))];
  const mine = kept.filter((i) => list.region[i] === list.region[heaviest]);
  return mine.sort((a, b) => off(a)[0] - off(b)[0] || off(a)[1] - off(b)[1])[0];
}

const runsAhead = (region) => Boolean(data.evaluated?.[region]?.ahead);

function barName(bar) {
  const total = count(strips.instances);
  if (bar.after - bar.first === 1) return `instance ${count(bar.first + 1)} of ${total}: ${duration(bar.median)}${bar.warm ? ", warm-up" : ""}`;
  return `instances ${count(bar.first + 1)} to ${count(bar.after)} of ${total}: median ${duration(bar.median)}, ${duration(bar.shortest)} to ${duration(bar.longest)}${bar.warm ? ", some of it warm-up" : ""}`;
}

function drawInstances() {
  if (!instanceBox) return;
  const region = stripRegion();
  const strip = region === NONE ? null : unpackInstances(region);
  instanceBox.hidden = !strip;
  if (!strip) return;
  const focused = instanceBox.contains(document.activeElement) ? document.activeElement.dataset?.bar : undefined;
  Object.assign(strips, strip, { region });
  const chart = byId("instance-strip");
  const width = Math.max(instanceBox.clientWidth - 34, 200);
  const step = Math.min((width - SCALE) / strip.bars.length, WIDEST);
  const longest = Math.max(...strip.bars.map((bar) => bar.longest));
  // A first instance that compiles takes a thousand times as long: such bars are cut, and marked.
  const top = strip.median === null ? longest : Math.min(longest, 1.6 * Math.max(strip.p90 ?? 0, strip.median));
  const y = (time) => ROOM + (BARS - ROOM) * (1 - Math.min(time / top, 1));
  const nodes = strip.bars.map((bar, i) => drawBar(bar, i, step, y, top));
  const across = SCALE + step * strip.bars.length;
  if (strip.median !== null) {
    if (strip.p10 !== null) nodes.push(svg("rect", { class: "usual", x: SCALE, width: across - SCALE, y: y(strip.p90), height: Math.max(y(strip.p10) - y(strip.p90), 1) }));
    nodes.push(svg("line", { class: "median", x1: SCALE, x2: across, y1: y(strip.median), y2: y(strip.median) }));
  }
  const label = (time, at) => svg("text", { x: SCALE - 8, y: at, "text-anchor": "end" }, duration(time));
  const scale = svg("g", { class: "axis", "aria-hidden": "true" }, svg("line", { x1: SCALE, x2: across, y1: BARS, y2: BARS }));
  const middle = strip.median === null ? BARS : Math.min(y(strip.median) + 4, BARS);
  if (strip.median !== null) scale.append(label(strip.median, middle));
  if (middle > 28) scale.append(label(top, 14));
  chart.replaceChildren(scale, ...nodes);
  chart.setAttribute("viewBox", `0 0 ${width} ${BARS + FOOT}`);
  chart.setAttribute("height", BARS + FOOT);
  strips.step = step;
  describeInstances(strip, longest > top);
  markInstance();
  if (focused) focusBar(focused);  // it is not lost by redrawing
}
function focusBar(i) {
  for (const node of instanceBox.querySelectorAll('[tabindex="0"]')) node.setAttribute("tabindex", "-1");
  const node = instanceBox.querySelector(`[data-bar="${i}"]`);
  node?.setAttribute("tabindex", "0");
  node?.focus({ preventScroll: true });
}

function drawBar(bar, i, step, y, top) {
  const x = SCALE + i * step;
  const wide = Math.max(step - (step > 4 ? 1.5 : step > 2 ? 0.5 : 0), 0.6);
  const node = svg("g", { class: `bar-of${bar.warm ? " warm" : ""}`, role: "option", tabindex: "-1", "data-bar": i, "aria-label": barName(bar), "aria-selected": "false" });
  if (bar.warm) node.append(svg("rect", { class: "shade", x, width: step, y: 0, height: BARS }));
  node.append(svg("rect", { class: "time", x, width: wide, y: y(bar.median), height: Math.max(BARS - y(bar.median), 1) }));
  if (bar.longest > bar.shortest) node.append(svg("line", { class: "reach", x1: x + wide / 2, x2: x + wide / 2, y1: y(bar.longest), y2: y(bar.shortest) }));
  if (bar.longest > top * 1.001) node.append(svg("path", { class: "cut", d: `M${x - 1} ${ROOM + 8} l${wide / 2 + 1} -4 l${wide / 2 + 1} 4` }));
  node.append(svg("circle", { class: "kept", cx: x + wide / 2, cy: BARS + 6, r: 2 }));
  return node;
}

function describeInstances(strip, cut) {
  const name = el("button", { type: "button", class: "link code" }, regions.full[strips.region]);
  name.addEventListener("click", () => select(strips.region));
  const all = regions.instances[strips.region];
  const part = all && all > strip.instances ? ` (${count(all)} in all recordings; these are of the first)` : "";
  byId("instances-what").replaceChildren("Instances of ", name);
  byId("instances-note").textContent = [
    `${plural(strip.instances, "instance")}${part}, in the order they began${data.instancesProfiled ? "" : ", without a profiler"}.`,
    strip.single ? "" : `A bar stands for about ${count(Math.round(strip.instances / strip.bars.length))}: filled to their median, a line from the shortest to the longest.`,
    strip.median === null ? "" : `Steady: median ${duration(strip.median)} (line)${strip.p10 === null ? "" : `, 80 % between ${duration(strip.p10)} and ${duration(strip.p90)} (band)`}.`,
    runsAhead(strips.region) ? "The bars are times of the ranges on the host, which runs ahead of the GPU; the card of the stage has the times of the GPU work." : "",
    strip.bars.some((bar) => bar.warm) ? "Shaded: warm-up." : "No warm-up found.",
    cut ? "Bars with a notch are longer than drawn." : "",
    recorded ? "Dots: instances kept launch by launch. Click a bar, or press Enter, to see it in the timeline." : "",
  ].filter(Boolean).join(" ");
  byId("instances-readout").textContent = "";
}

// Dots under what is kept; the one that the timeline shows is marked.
function markInstance() {
  if (!instanceBox || instanceBox.hidden) return;
  const kept = new Set(recorded ? instancesOf(strips.region).map((i) => barOf(strips.bars, recorded.instances.number[i])) : []);
  const isShown = recorded && shown.instance !== null && recorded.instances.region[shown.instance] === strips.region;
  const current = isShown ? barOf(strips.bars, recorded.instances.number[shown.instance]) : -1;
  const focus = current >= 0 ? current : 0;
  instanceBox.querySelectorAll("[data-bar]").forEach((node, i) => {
    node.classList.toggle("is-kept", kept.has(i));
    node.classList.toggle("current", i === current);
    node.setAttribute("aria-selected", String(i === current));
    if (!instanceBox.contains(document.activeElement)) node.setAttribute("tabindex", i === focus ? "0" : "-1");
  });
}

// Shows the instance in the timeline; where it is not kept, the nearest that is, of the same kind if there is one.
function openBar(i) {
  const { region, bars } = strips;
  const bar = bars[i];
  if (!bar) return;
  const words = barName(bar);
  if (recorded) {
    if (state.region !== region) select(region);
    const list = recorded.instances;
    const away = (at) => Math.max(bar.first - list.number[at], list.number[at] - bar.after + 1, 0);
    const other = (at) => bars[barOf(bars, list.number[at])].warm !== bar.warm;
    const [found] = instancesOf(region).sort((a, b) => other(a) - other(b) || away(a) - away(b));
    if (found !== undefined) {
      const missed = away(found) > 0;
      byId("instance").value = found;
      showInstance(found, missed ? `Not kept launch by launch: ${words}. This is the nearest that is: instance ${count(list.number[found] + 1)}, ${duration(list.length[found])}. ${WHOLE_TRACE}` : "");
    }
    reveal("timeline");
  }
  byId("instances-readout").textContent = words;
}

// A launch of this kernel in the timeline: of the instance that is shown, or of another that is kept.
function openKernel(name) {
  const list = recorded.instances;
  const holds = (i, row) => {
    const window = recorded.windows[list.window[i]];
    const launched = recorded.start[row] - Math.max(recorded.lead[row], 0);
    return row >= window.first && row < window.after && launched >= list.start[i] && launched < list.start[i] + list.length[i];
  };
  const launches = [...recorded.name.keys()].filter((row) => recorded.name[row] === name && (state.region === NONE || isInside(recorded.region[row], state.region)));
  const kept = [shown.instance, ...instancesOf(state.region)].filter((i) => i !== null);
  for (const i of kept) {
    const row = launches.find((launch) => holds(i, launch));
    if (row === undefined) continue;
    byId("instance").value = i;
    showInstance(i);
    shown.hover = row;
    zoomTo(recorded.start[row] - 8 * recorded.length[row], recorded.start[row] + 9 * recorded.length[row]);
    readLaunch(row);
    reveal("timeline");
    return;
  }
  byId("strip-note").textContent = `No launch of ${data.names.short[name]} in ${selectionName()} is among those kept launch by launch in this file. ${WHOLE_TRACE}`;
  byId("strip-note").hidden = false;
  reveal("timeline");
}

function startInstances() {
  if (!instanceBox) return;
  const chart = byId("instance-strip");
  const at = (event) => Math.floor((event.clientX - chart.getBoundingClientRect().left - SCALE) / strips.step);
  chart.addEventListener("click", (event) => { focusBar(at(event)); openBar(at(event)); });
  chart.addEventListener("pointermove", (event) => {
    const bar = strips.bars[at(event)];
    if (!bar) return hideTip();
    showTip(event.clientX, event.clientY, barName(bar), []);
  });
  chart.addEventListener("pointerleave", hideTip);
  chart.addEventListener("focusin", (event) => {
    const node = event.target.closest("[data-bar]");
    if (node) byId("instances-readout").textContent = barName(strips.bars[Number(node.dataset.bar)]);
  });
  chart.addEventListener("keydown", (event) => {
    const node = event.target.closest("[data-bar]");
    if (!node) return;
    const [now, last] = [Number(node.dataset.bar), strips.bars.length - 1];
    const to = { ArrowRight: Math.min(now + 1, last), ArrowLeft: Math.max(now - 1, 0), Home: 0, End: last }[event.key];
    if (to !== undefined) focusBar(to);
    else if (event.key === "Enter" || event.key === " ") openBar(now);
    else return;
    event.preventDefault();
  });
  onChange((changed) => {
    if (changed.has("region")) drawInstances();
  });
}
