// One instance of a region, launch by launch: the ranges on the host, what the GPU ran, and when it ran nothing.

const strip = byId("strip");
const LANE = 18, GPU_LANE = 58, RULER = 22, GUTTER = 74, MOST_LANES = 10;
const KINDS = ["kernel", "copy or fill", "CUDA graph"];

// Times as they were before they were packed: absolute within the window.
function unpackStrip(packed) {
  if (!packed) return null;
  const start = new Float64Array(packed.step.length);
  const windows = packed.windows.map((w) => ({ ...w }));
  let at = 0, row = 0;
  for (const w of windows) {
    w.first = row;
    for (let i = 0; i < w.launches; i += 1, row += 1) start[row] = at += packed.step[row];
    w.after = row;
  }
  return { ...packed, windows, start };
}
const recorded = unpackStrip(data.strip);
const shown = { instance: null, from: 0, to: 1, hover: null };

// An instance is kept if its window holds it to the end, or was made for it and is cut.
function isKept(i) {
  const list = recorded.instances;
  const window = recorded.windows[list.window[i]];
  return list.start[i] >= 0 && (list.start[i] + list.length[i] <= window.length || (window.cut && list.start[i] === 0));
}
function instancesOf(region) {
  const list = recorded.instances;
  const kept = list.region.map((_, i) => i).filter(isKept);
  if (region !== NONE) return kept.filter((i) => list.region[i] === region);
  // Without a selection: the outermost that are kept in each window.
  const inside = new Map();
  for (const i of kept) inside.set(list.window[i], (inside.get(list.window[i]) ?? new Set()).add(list.region[i]));
  return kept.filter((i) => !inside.get(list.window[i]).has(regions.parent[list.region[i]]));
}

const WHOLE_TRACE = "The whole recording, launch by launch: llm-perf export INPUT --perfetto trace.json.gz";

// Ranks that run side by side count as one instance of a region; here each has its own.
const instancesIn = (region) => Math.max(regions.instances[region], data.instances?.[region]?.[0] ?? 0);

// What is kept of the chosen region, or else of the region around it that has something: never nothing.
function fillInstances() {
  const menu = byId("instance");
  let region = state.region;
  let found = instancesOf(region);
  while (!found.length && region !== NONE) found = instancesOf(region = regions.parent[region]);
  menu.replaceChildren(...found.slice(0, 2000).map((i) => {
    const own = recorded.instances.region[i];
    const name = `${regions.label[own]} · ${count(recorded.instances.number[i] + 1)} of ${count(instancesIn(own))} · ${duration(recorded.instances.length[i])}`;
    return el("option", { value: i }, name);
  }));
  const missing = byId("strip-missing");
  strip.parentElement.hidden = !found.length;
  missing.hidden = found.length > 0;
  if (!found.length) {
    missing.textContent = `No instance is kept launch by launch in this file. ${WHOLE_TRACE}`;
    shown.instance = null;
    return;
  }
  // Without a selection the stage of the answer is shown, or what is kept inside it.
  const answered = found.filter((i) => state.region === NONE && data.main !== NONE && isInside(recorded.instances.region[i], data.main));
  const typical = typicalOf(answered.length ? answered : found);
  menu.value = typical;
  showInstance(typical, region === state.region ? "" : `No instance of ${selectionName()} is kept launch by launch in this file: that is done for a typical, the first and the last instance of each stage. This is ${regions.full[recorded.instances.region[typical]]}. ${WHOLE_TRACE}`);
}

function showInstance(i, note = "") {
  byId("strip-note").textContent = note;
  byId("strip-note").hidden = !note;
  const list = recorded.instances;
  const window = recorded.windows[list.window[i]];
  const start = list.start[i];
  const closed = Math.min(start + list.length[i], window.length);
  // Work launched inside may run after the range has ended: it is shown too.
  let end = closed, worked = Infinity;
  for (let row = window.first; row < window.after; row += 1) {
    const launched = recorded.start[row] - recorded.lead[row];
    if (recorded.lead[row] >= 0 && launched >= start && launched < closed) [worked, end] = [Math.min(worked, recorded.start[row]), Math.max(end, recorded.start[row] + recorded.length[row])];
  }
  Object.assign(shown, { instance: i, from: start, to: end, start, end, window, hover: null });
  shown.ranges = rangesIn(i);
  shown.code = codeIn(list.window[i]);
  // As the verdict has it: where the host runs ahead, the time of an instance is that of its work.
  shown.gaps = runsAhead(list.region[i]) && worked < end ? gapsIn(worked, end) : gapsIn(start, closed);
  describeStrip();
  drawStrip();
  markInstance();
}

function rangesIn(i) {
  const list = recorded.instances;
  const found = [];
  const ends = [];
  for (let j = 0; j < list.region.length; j += 1) {
    if (list.window[j] !== list.window[i] || list.start[j] >= shown.end || list.start[j] + list.length[j] <= shown.start) continue;
    while (ends.length && ends[ends.length - 1] <= list.start[j]) ends.pop();
    found.push({ region: list.region[j], start: list.start[j], end: list.start[j] + list.length[j], lane: Math.min(ends.length, MOST_LANES - 1) });
    ends.push(list.start[j] + list.length[j]);
  }
  return found;
}

// Lines of the program that the launching thread was in.
function codeIn(window) {
  const list = recorded.code;
  return list.window.map((_, i) => i).filter((i) => list.window[i] === window && list.start[i] < shown.end && list.start[i] + list.length[i] > shown.start)
    .map((i) => ({ place: list.place[i], start: list.start[i], end: list.start[i] + list.length[i] }));
}
const codeAt = (time) => shown.code.find((c) => c.start <= time && time < c.end);

// Stretches in which the GPU ran nothing of this process, and what ran before and after.
function gapsIn(from, to) {
  const gaps = [];
  let reach = from, before = null, busy = 0, launches = 0;
  for (let row = shown.window.first; row < shown.window.after; row += 1) {
    const begin = Math.max(recorded.start[row], from);
    const finish = Math.min(recorded.start[row] + recorded.length[row], to);
    if (recorded.start[row] >= to) break;
    if (finish <= from) { before = row; continue; }
    launches += 1;
    if (begin > reach) gaps.push({ start: reach, end: begin, before, after: row });
    if (finish > reach) { busy += finish - Math.max(begin, reach); reach = finish; before = row; }
  }
  if (reach < to) gaps.push({ start: reach, end: to, before, after: null });
  return { list: gaps, busy, idle: to - from - busy, launches, from, to };
}

function describeStrip() {
  const { gaps } = shown;
  const list = recorded.instances;
  const region = list.region[shown.instance];
  const lengths = gaps.list.map((g) => g.end - g.start).sort((a, b) => a - b);
  const median = lengths.length ? lengths[Math.floor(lengths.length / 2)] : 0;
  byId("strip-what").textContent = `${regions.full[region]}, instance ${count(list.number[shown.instance] + 1)} of ${count(instancesIn(region))}${data.stripOf ? `, of ${data.stripOf} alone: other recordings are not kept launch by launch` : ""}`;
  const worst = [...gaps.list].sort((a, b) => b.end - b.start - (a.end - a.start)).slice(0, 5);
  const cut = shown.window.cut ? " This instance goes on after the end of what is kept." : "";
  byId("gaps").replaceChildren(
    el("p", { class: "small" },
      el("b", {}, `GPU busy ${duration(gaps.busy)} of ${duration(gaps.to - gaps.from)} (${percent(gaps.busy, gaps.to - gaps.from)})`),
      ` · ${plural(gaps.launches, "launch")} · ${plural(gaps.list.length, "gap")}, half of them longer than ${duration(median)}${runsAhead(region) ? " · from its first work on the GPU to its last, because the host runs ahead" : ""}${cut}`),
    worst.length ? el("p", { class: "small dim" }, "Longest gaps: ", ...worst.flatMap((gap, i) => {
      const button = el("button", { type: "button", class: "quiet" }, `${duration(gap.end - gap.start)} at ${duration(gap.start - shown.start)}`);
      button.addEventListener("click", () => {
        const room = (gap.end - gap.start) * 0.6;
        zoomTo(gap.start - room, gap.end + room);
        readGap(gap);
      });
      return i ? [" ", button] : [button];
    })) : null,
  );
  byId("strip-readout").textContent = "Each column is filled by the share of time the GPU was busy, coloured by kernel family. Point at anything for its numbers; Ctrl + wheel or + and − to zoom, drag or ← → to move, n and p to step through the launches.";
  strip.setAttribute("aria-label", `${byId("strip-what").textContent}: ${plural(gaps.launches, "launch")}, GPU busy ${percent(gaps.busy, gaps.to - gaps.from)}, ${plural(gaps.list.length, "gap")}`);
  strip.dataset.launches = gaps.launches;
  strip.dataset.gaps = gaps.list.length;
}

const lanes = () => 1 + Math.max(0, ...shown.ranges.map((r) => r.lane));
const devicesShown = () => {
  const found = new Set();
  for (let row = shown.window.first; row < shown.window.after; row += 1) found.add(recorded.device[row]);
  return [...found].sort((a, b) => a - b);
};

function drawStrip() {
  if (!recorded || shown.instance === null) return;
  markZoom();
  const ratio = window.devicePixelRatio || 1;
  const full = strip.parentElement.clientWidth - 34;
  const width = full - GUTTER;
  const devices = devicesShown();
  const hostTop = RULER + lanes() * (LANE + 1) + 4;
  const gpuTop = hostTop + (shown.code.length ? LANE + 8 : 4);
  const height = gpuTop + devices.length * (GPU_LANE + 6);
  strip.width = Math.round(full * ratio);
  strip.height = Math.round(height * ratio);
  strip.style.height = `${height}px`;
  shown.spots = { width, devices, gpuTop, hostTop };
  const pen = strip.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = `11.5px ${getComputedStyle(document.body).fontFamily}`;
  pen.textBaseline = "middle";
  drawGutter(pen, devices, gpuTop);
  pen.translate(GUTTER, 0);
  pen.beginPath(); pen.rect(0, 0, width, height); pen.clip();
  const x = (time) => ((time - shown.from) / (shown.to - shown.from)) * width;
  for (const tick of ticks(shown.from - shown.start, shown.to - shown.start, width / 140)) {
    const at = Math.round(x(tick + shown.start)) + 0.5;
    pen.strokeStyle = colour("--line");
    pen.beginPath(); pen.moveTo(at, RULER - 6); pen.lineTo(at, gpuTop - 4); pen.stroke();
    pen.fillStyle = colour("--ink-2");
    const text = tick ? duration(tick) : "0";
    if (at + 4 + pen.measureText(text).width < width) pen.fillText(text, at + 4, 9);
  }
  drawRanges(pen, x, width);
  drawCode(pen, x, width, hostTop);
  devices.forEach((device, lane) => drawDevice(pen, device, gpuTop + lane * (GPU_LANE + 6), width));
}

function drawGutter(pen, devices, gpuTop) {
  pen.fillStyle = colour("--ink-2");
  if (shown.code.length) pen.fillText("host", 0, shown.spots.hostTop + LANE / 2);
  pen.fillText("ranges", 0, RULER + LANE / 2);
  devices.forEach((device, lane) => {
    const top = gpuTop + lane * (GPU_LANE + 6);
    pen.fillText(devices.length > 1 ? `GPU ${device} busy` : "GPU busy", 0, top + 8);
    pen.fillStyle = colour("--ink-3");
    pen.fillText("0 – 100 %", 0, top + 24);
    pen.fillStyle = colour("--ink-2");
  });
}

function drawRanges(pen, x, width) {
  for (const range of shown.ranges) {
    const [left, right] = [Math.max(x(range.start), 0), Math.min(x(range.end), width)];
    if (right < 0 || left > width || right - left < 0.3) continue;
    const top = RULER + range.lane * (LANE + 1);
    const chosen = state.region !== NONE && isInside(range.region, state.region);
    pen.fillStyle = chosen ? colour("--accent-soft") : colour("--sunken");
    pen.fillRect(left, top, Math.max(right - left - 0.5, 0.5), LANE);
    pen.fillStyle = colour("--line-strong");
    pen.fillRect(left, top, 1, LANE);
    if (right - left > 34) {
      pen.save(); pen.beginPath(); pen.rect(left, top, right - left - 4, LANE); pen.clip();
      pen.fillStyle = chosen ? colour("--accent") : colour("--ink-2");
      pen.fillText(regions.label[range.region], left + 6, top + LANE / 2 + 0.5);
      pen.restore();
    }
  }
}

function drawCode(pen, x, width, top) {
  for (const span of shown.code) {
    const [left, right] = [Math.max(x(span.start), 0), Math.min(x(span.end), width)];
    if (right < 0 || left > width || right - left < 0.3) continue;
    pen.fillStyle = span.place % 2 ? colour("--accent-soft") : colour("--sunken");
    pen.fillRect(left, top, Math.max(right - left - 0.5, 0.5), LANE);
    if (right - left > 40) {
      pen.save(); pen.beginPath(); pen.rect(left, top, right - left - 4, LANE); pen.clip();
      pen.fillStyle = colour("--ink-2");
      pen.fillText(recorded.code.places[span.place], left + 4, top + LANE / 2 + 0.5);
      pen.restore();
    }
  }
}

// Every pixel column is filled as high as the GPU was busy in its stretch of time, by family: true at any zoom.
function drawDevice(pen, device, top, width) {
  const columns = Math.max(Math.floor(width), 1);
  const perPixel = (shown.to - shown.from) / columns;
  const filled = new Float64Array(columns);
  pen.fillStyle = colour("--idle-soft");
  pen.fillRect(0, top, width, GPU_LANE);
  const labels = [];
  for (let row = shown.window.first; row < shown.window.after; row += 1) {
    const begin = Math.max(recorded.start[row], shown.from);
    const finish = Math.min(recorded.start[row] + recorded.length[row], shown.to);
    if (recorded.device[row] !== device || finish <= begin) continue;
    pen.globalAlpha = launchShown(row) ? 1 : 0.22;
    pen.fillStyle = row === shown.hover ? colour("--ink") : launchColour(row);
    const first = Math.floor((begin - shown.from) / perPixel);
    const last = Math.min(Math.floor((finish - shown.from) / perPixel), columns - 1);
    for (let at = first; at <= last; at += 1) {
      const edge = shown.from + at * perPixel;
      const part = Math.min((Math.min(finish, edge + perPixel) - Math.max(begin, edge)) / perPixel, 1 - filled[at]);
      if (part <= 0) continue;
      const tall = Math.max(part * GPU_LANE, row === shown.hover ? GPU_LANE * 0.5 : 1.5);  // the shortest work is seen too
      pen.fillRect(at, top + GPU_LANE * (1 - filled[at]) - tall, 1, tall);
      filled[at] += part;
    }
    if (last - first > 60) labels.push([row, first, last]);
  }
  pen.globalAlpha = 1;
  for (const [row, first, last] of labels) {
    pen.save(); pen.beginPath(); pen.rect(first, top, last - first - 4, GPU_LANE); pen.clip();
    pen.fillStyle = readableOn(row === shown.hover ? colour("--ink") : launchColour(row));
    pen.fillText(data.names.short[recorded.name[row]], first + 5, top + GPU_LANE / 2);
    pen.restore();
  }
}
const launchColour = (row) => familyColour(familyOf(recorded.name[row]));
const launchShown = (row) => (state.region === NONE || isInside(recorded.region[row], state.region)) && familyShown(familyOf(recorded.name[row]));

function readLaunch(row, event) {
  const name = data.names.short[recorded.name[row]];
  const facts = [
    [KINDS[recorded.kind[row]], duration(recorded.length[row])],
    ["family", families[familyOf(recorded.name[row])].name],
    ["begins at", duration(recorded.start[row] - shown.start)],
    ["launched", recorded.lead[row] < 0 ? "at an unknown time" : `${duration(recorded.lead[row])} before`],
    ["in", recorded.region[row] === NONE ? "no range" : regions.full[recorded.region[row]]],
  ];
  const from = recorded.lead[row] < 0 ? null : codeAt(recorded.start[row] - recorded.lead[row]);
  if (from) facts.push(["by", recorded.code.places[from.place]]);
  if (event) showTip(event.clientX, event.clientY, name, facts);
  byId("strip-readout").replaceChildren(el("b", {}, name), ` · ${facts.map((f) => f.join(" ")).join(" · ")}`);
}
function readGap(gap, event) {
  const facts = [
    ["idle for", duration(gap.end - gap.start)],
    ["after", gap.before === null ? "the beginning" : data.names.short[recorded.name[gap.before]]],
    ["before", gap.after === null ? "the end of the range" : data.names.short[recorded.name[gap.after]]],
  ];
  const spent = shown.code.map((c) => [Math.min(c.end, gap.end) - Math.max(c.start, gap.start), c.place]).sort((a, b) => b[0] - a[0])[0];
  if (spent && spent[0] > 0) facts.push(["host in", `${recorded.code.places[spent[1]]} for ${duration(spent[0])}`]);
  if (event) showTip(event.clientX, event.clientY, "GPU idle", facts);
  byId("strip-readout").replaceChildren(el("b", {}, "GPU idle"), ` · ${facts.map((f) => f.join(" ")).join(" · ")}`);
}

// What lies above the GPU's lanes under the pointer: the line the host is in, or a range, with what to say of it.
function hostUnder(event) {
  const box = strip.getBoundingClientRect();
  const px = event.clientX - box.left - GUTTER, py = event.clientY - box.top;
  const time = shown.from + (px / shown.spots.width) * (shown.to - shown.from);
  const { gpuTop, hostTop } = shown.spots;
  const found = { py, time, above: py < gpuTop - 4, name: null, region: NONE, facts: [] };
  if (!found.above) return found;
  if (shown.code.length && py >= hostTop) {
    const span = py < hostTop + LANE ? codeAt(time) : undefined;
    return span ? { ...found, name: recorded.code.places[span.place], facts: [["host for", duration(span.end - span.start)]] } : found;
  }
  const lane = Math.floor((py - RULER) / (LANE + 1));
  const range = shown.ranges.find((r) => r.lane === lane && r.start <= time && time < r.end);
  if (!range) return found;
  return { ...found, name: regions.full[range.region], region: range.region, facts: [["this instance", duration(range.end - range.start)], ...regionFacts(range.region)] };
}

// A click keeps in the text below what pointing shows; on a range of another region it selects that region.
function clickAt(event) {
  const under = hostUnder(event);
  if (under.region !== NONE && under.region !== state.region) select(under.region);
  if (under.name === null) pointAt(event);
  else byId("strip-readout").replaceChildren(el("b", {}, under.name), ` · ${under.facts.map((f) => f.join(" ")).join(" · ")}`);
}

function pointAt(event) {
  const { py, time, above, name, facts } = hostUnder(event);
  const slack = ((shown.to - shown.from) / shown.spots.width) * 2;
  const { gpuTop, devices } = shown.spots;
  if (above) {
    shown.hover = null;
    return name === null ? hideTip() : showTip(event.clientX, event.clientY, name, facts);
  }
  const lane = Math.floor((py - gpuTop) / (GPU_LANE + 6));
  if (lane < devices.length) {
    let best = null, distance = slack;
    for (let row = shown.window.first; row < shown.window.after; row += 1) {
      if (recorded.start[row] > time + slack) break;
      if (recorded.device[row] !== devices[lane]) continue;
      const off = Math.max(recorded.start[row] - time, time - recorded.start[row] - recorded.length[row], 0);
      if (off < distance || (off === 0 && off <= distance)) { best = row; distance = off; }
    }
    if (best !== null) {
      if (shown.hover !== best) { shown.hover = best; drawStrip(); }
      return readLaunch(best, event);
    }
  }
  if (shown.hover !== null) { shown.hover = null; drawStrip(); }
  const gap = shown.gaps.list.find((g) => g.start <= time && time < g.end);
  return gap ? readGap(gap, event) : hideTip();
}

function zoomTo(from, to) {
  const least = 200;  // nanoseconds: nothing is shorter
  const [low, high] = [shown.start, shown.end];
  let size = Math.min(Math.max(to - from, least), high - low);
  let begin = Math.min(Math.max(from, low), high - size);
  Object.assign(shown, { from: begin, to: begin + size });
  drawStrip();
}
// Where all is shown there is nothing to zoom out of.
function markZoom() {
  const all = shown.from <= shown.start && shown.to >= shown.end;
  for (const id of ["zoom-out", "zoom-fit"]) byId(id).disabled = all;
}
const zoomBy = (factor, at = (shown.from + shown.to) / 2) => zoomTo(at - (at - shown.from) * factor, at + (shown.to - at) * factor);

function stepLaunch(by) {
  let row = shown.hover === null ? (by > 0 ? shown.window.first - 1 : shown.window.after) : shown.hover;
  do row += by; while (row >= shown.window.first && row < shown.window.after && (recorded.start[row] + recorded.length[row] < shown.start || recorded.start[row] >= shown.end));
  if (row < shown.window.first || row >= shown.window.after) return;
  shown.hover = row;
  const [begin, size] = [recorded.start[row], shown.to - shown.from];
  if (begin < shown.from || begin > shown.to) zoomTo(begin - size / 3, begin + (2 * size) / 3);
  else drawStrip();
  readLaunch(row);
}

function startStrip() {
  if (!strip) return;
  if (!recorded) {
    strip.parentElement.hidden = true;
    byId("instance").parentElement.hidden = true;
    const missing = byId("strip-missing");
    missing.hidden = false;
    missing.textContent = data.stripMissing;
    return;
  }
  byId("instance").addEventListener("change", (event) => showInstance(Number(event.target.value)));
  byId("zoom-in").addEventListener("click", () => zoomBy(0.5));
  byId("zoom-out").addEventListener("click", () => zoomBy(2));
  byId("zoom-fit").addEventListener("click", () => zoomTo(shown.start, shown.end));
  strip.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const at = shown.from + ((event.clientX - strip.getBoundingClientRect().left - GUTTER) / shown.spots.width) * (shown.to - shown.from);
    zoomBy(event.deltaY > 0 ? 1.25 : 0.8, at);
  }, { passive: false });
  let grabbed = null, dragged = false;
  strip.addEventListener("pointerdown", (event) => { dragged = false; grabbed = { x: event.clientX, from: shown.from, to: shown.to }; strip.setPointerCapture(event.pointerId); });
  strip.addEventListener("pointerup", () => { grabbed = null; });
  strip.addEventListener("pointermove", (event) => {
    if (shown.instance === null) return;
    if (!grabbed) { pointAt(event); return; }
    hideTip();
    dragged ||= Math.abs(event.clientX - grabbed.x) > 3;
    const by = ((grabbed.x - event.clientX) / shown.spots.width) * (grabbed.to - grabbed.from);
    zoomTo(grabbed.from + by, grabbed.to + by);
  });
  strip.addEventListener("click", (event) => { if (!dragged && shown.instance !== null) clickAt(event); });
  strip.addEventListener("pointerleave", () => { hideTip(); if (shown.hover !== null) { shown.hover = null; drawStrip(); } });
  strip.addEventListener("keydown", (event) => {
    const size = shown.to - shown.from;
    const keys = {
      "+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomBy(2), 0: () => zoomTo(shown.start, shown.end),
      ArrowLeft: () => zoomTo(shown.from - size / 5, shown.to - size / 5), ArrowRight: () => zoomTo(shown.from + size / 5, shown.to + size / 5),
      n: () => stepLaunch(1), p: () => stepLaunch(-1),
    };
    if (shown.instance !== null && keys[event.key] && !event.ctrlKey && !event.metaKey) { keys[event.key](); event.preventDefault(); }
  });
  onChange((changed) => {
    if (changed.has("region")) fillInstances();
    else if (changed.has("family")) drawStrip();
  });
}
