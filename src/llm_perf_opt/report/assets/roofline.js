// The roofline: each kernel with its launch configuration as a dot, under what the GPU can do at most.
// Beside it the DRAM rate of every kernel with counters, because many kernels only move data.

const points = data.points ?? { region: [] };
const pointsOf = new Map();
points.region.forEach((region, point) => {
  if (!pointsOf.has(region)) pointsOf.set(region, []);
  pointsOf.get(region).push(point);
});
const hiddenStages = new Set();
const roofStages = () => (data.stages?.length ? data.stages : below(NONE)).filter((stage) => pointsOf.has(stage));

function pointsShown() {
  const from = state.region === NONE ? roofStages().filter((stage) => !hiddenStages.has(stage)) : [state.region];
  return from.flatMap((region) => pointsOf.get(region) ?? []);
}

const log = Math.log10;
function scaleLog(low, high, from, to) {
  return (value) => from + ((log(value) - log(low)) / (log(high) - log(low))) * (to - from);
}
function decades(low, high) {
  const found = [];
  for (let power = Math.ceil(log(low) - 1e-9); power <= log(high) + 1e-9; power += 1) found.push(10 ** power);
  return found;
}
// A power of ten without decimals: 10 T, 1 P.
function bare(value) {
  const [step, prefix] = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([s]) => value >= s * 0.999) ?? [1, ""];
  return `${Math.round(value / step)} ${prefix}`;
}
const radius = (point, whole) => Math.max(3, 26 * Math.sqrt((points.time[point] ?? 0) / whole));

function dot(point, x, y, whole, shownFamily) {
  const family = familyOf(points.name[point]);
  return svg("circle", {
    class: "dot", cx: x.toFixed(1), cy: y.toFixed(1), r: radius(point, whole).toFixed(1), fill: familyColour(family),
    "fill-opacity": shownFamily ? 0.72 : 0.08, stroke: colour(shownFamily ? "--surface" : "--line"), tabindex: "-1", role: "img", "data-point": point,
    "aria-label": `${data.names.short[points.name[point]]}: ${pointFacts(point).map((f) => f.join(" ")).join(", ")}`,
  });
}

function pointFacts(point) {
  const p = points;
  const roofs = { tensor: "tensor cores", cuda_core: "CUDA cores", dram: "DRAM", l2: "L2", l1: "L1 and shared memory", sm: "a pipe of the SMs" };
  return [
    ["family", families[familyOf(p.name[point])].name],
    ["in", regions.full[p.region[point]]],
    ["time", `${duration(p.time[point])} in ${plural(p.calls[point], "call")}`],
    ["FLOP/s", p.flopRate[point] === null ? MISSING : quantity(p.flopRate[point], "FLOP/s")],
    ["DRAM rate", p.dramRate[point] === null ? MISSING : quantity(p.dramRate[point], "B/s")],
    ["intensity", p.intensity[point] === null ? MISSING : `${significant(p.intensity[point])} FLOP/B`],
    ["limited by", roofs[p.roof[point]] ?? MISSING],
    ["runs near", p.bound[point] || MISSING],
    ["saves at most", duration(p.recoverable[point])],
    ["launch", `grid ${p.grid[point]}, block ${p.block[point]}`],
    ["samples", count(p.samples[point])],
  ].filter(([, value]) => value !== MISSING);
}

function lineOfRoofs() {
  const device = data.roofs.length > 1 && pointsShown().length ? data.roofs.find((gpu) => gpu.device === points.device[pointsShown()[0]]) : null;
  return device ?? data.roofs[0] ?? null;
}

function peaksToShow(gpu) {
  const names = Object.keys(gpu.peaks);
  const used = names.filter((name) => data.peaksUsed.includes(name));
  return used.length ? used : names.slice(0, 1);
}

function drawRoofline() {
  const picture = byId("roofline-chart");
  if (!picture) return;
  const list = pointsShown().sort((a, b) => points.time[b] - points.time[a]);
  const gpu = lineOfRoofs();
  drawStageToggles();
  const why = whyNoRoofline(list, gpu);
  byId("roofline-charts").hidden = why !== "";
  byId("roofline-missing").hidden = why === "";
  byId("roofline-missing").textContent = why;
  byId("roofline-what").textContent = state.region === NONE ? "kernels of the stages" : selectionName();
  if (why) return;
  drawWork(picture, list, gpu);
  drawMemory(byId("memory-chart"), list, gpu);
}

function whyNoRoofline(list, gpu) {
  if (!points.region.length) return "A roofline needs counters of the kernels (FLOPs and DRAM bytes), and this report has none. Record them with: llm-perf profile -- CMD";
  if (!list.length && state.region === NONE) return "No region is switched on.";
  if (!list.length) return `${selectionName()} is too small a part of the run to be evaluated by itself: choose the region around it.`;
  if (!gpu || gpu.bandwidth === null) return `The peaks of this GPU${gpu ? ` (${gpu.name})` : ""} are not known, so there is no roof to draw. Measure them with: llm-perf calibrate`;
  return "";
}

function drawWork(picture, list, gpu) {
  const width = Math.max(picture.parentElement.clientWidth - 34, 300);
  const height = Math.max(340, Math.min(520, width * 0.5));
  const edge = { left: 62, right: 30, top: 14, bottom: 44 };
  const peaks = peaksToShow(gpu);
  const working = list.filter((point) => points.intensity[point] > 0 && points.flopRate[point] > 0);
  const top = Math.max(...peaks.map((name) => gpu.peaks[name]), ...working.map((p) => points.flopRate[p]));
  const ridge = top / gpu.bandwidth;
  const lowX = 10 ** Math.floor(log(Math.min(1, ...working.map((p) => points.intensity[p]))));
  const highX = 10 ** Math.ceil(log(Math.max(ridge * 8, ...working.map((p) => points.intensity[p] * 1.5))));
  const highY = 10 ** Math.ceil(log(top * 1.3));
  const lowY = 10 ** Math.floor(log(Math.min(top / 1e3, ...working.map((p) => points.flopRate[p]))));
  const x = scaleLog(lowX, highX, edge.left, width - edge.right);
  const y = scaleLog(lowY, highY, height - edge.bottom, edge.top);
  const axes = svg("g", { class: "axis" });
  for (const tick of decades(lowX, highX)) {
    axes.append(svg("line", { x1: x(tick), x2: x(tick), y1: edge.top, y2: height - edge.bottom }));
    axes.append(svg("text", { x: x(tick), y: height - edge.bottom + 17, "text-anchor": "middle" }, Number(tick.toPrecision(1)).toLocaleString("en-US", { maximumFractionDigits: 4 })));
  }
  for (const tick of decades(lowY, highY)) {
    axes.append(svg("line", { x1: edge.left, x2: width - edge.right, y1: y(tick), y2: y(tick) }));
    axes.append(svg("text", { x: edge.left - 8, y: y(tick) + 4, "text-anchor": "end" }, bare(tick)));
  }
  axes.append(svg("text", { x: (edge.left + width - edge.right) / 2, y: height - 8, "text-anchor": "middle" }, "arithmetic intensity, FLOP per byte of DRAM traffic"));
  axes.append(svg("text", { transform: `translate(14 ${(edge.top + height - edge.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, "FLOP per second"));

  const roofs = svg("g", { class: "roofs" });
  const addRoof = (bandwidth, peak, label, measured) => {
    const bend = peak / bandwidth;
    const start = Math.max(lowX, lowY / bandwidth);
    roofs.append(svg("path", { class: measured ? "roof measured" : "roof", d: `M${x(start)} ${y(start * bandwidth)} L${x(bend)} ${y(peak)} L${x(highX)} ${y(peak)}` }));
    if (label) roofs.append(svg("text", { class: "roof-name", x: width - edge.right - 4, y: y(peak) - 5, "text-anchor": "end" }, label));
  };
  peaks.forEach((name) => addRoof(gpu.bandwidth, gpu.peaks[name], `${name.replaceAll("_", " ")} ${quantity(gpu.peaks[name], "FLOP/s")} (${gpu.basis})`, false));
  for (const name of peaks) {
    const peak = gpu.measuredPeaks[name], bandwidth = gpu.measuredBandwidth;
    if (peak && bandwidth) addRoof(bandwidth, peak, "", true);
  }
  const slope = Math.atan2(y(lowX * 10 * gpu.bandwidth) - y(lowX * gpu.bandwidth), x(lowX * 10) - x(lowX)) * (180 / Math.PI);
  const at = Math.max(lowX, lowY / gpu.bandwidth) * 3;
  roofs.append(svg("text", { class: "roof-name", transform: `translate(${x(at)} ${y(at * gpu.bandwidth) - 6}) rotate(${slope.toFixed(1)})` }, `DRAM ${quantity(gpu.bandwidth, "B/s")} (${gpu.basis})`));

  const whole = list.reduce((total, point) => total + points.time[point], 0) || 1;
  const dots = svg("g", { class: "dots" }, ...working.map((point) => dot(point, x(points.intensity[point]), y(points.flopRate[point]), whole, familyShown(familyOf(points.name[point])))));
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("height", height);
  picture.replaceChildren(axes, roofs, dots);
  dots.firstChild?.setAttribute("tabindex", "0");
  const idle = list.length - working.length;
  const omitted = state.region === NONE ? 0 : data.evaluated[state.region]?.pointsOmitted ?? 0;
  byId("roofline-note").textContent = [
    `${plural(working.length, "dot")}: one kernel with one launch configuration each; size is time.`,
    gpu.measuredBandwidth ? "Dashed: the roof measured on this GPU." : "No measured roof: llm-perf calibrate measures it on this GPU.",
    idle ? `${plural(idle, "kernel")} without counted FLOPs ${idle === 1 ? "is" : "are"} on the right only.` : "",
    omitted ? `${plural(omitted, "smaller kernel")} left out.` : "",
  ].filter(Boolean).join(" ");
}

function drawMemory(picture, list, gpu) {
  const moving = list.filter((point) => points.dramRate[point] > 0);
  const rowsShown = [...new Set(moving.map((point) => familyOf(points.name[point])))];
  const width = Math.max(picture.parentElement.clientWidth - 34, 240);
  const edge = { left: 92, right: 18, top: 22, bottom: 44 };
  const step = Math.max(26, Math.min(46, 300 / Math.max(rowsShown.length, 1)));
  const height = edge.top + edge.bottom + step * rowsShown.length;
  const low = 10 ** Math.floor(log(Math.min(gpu.bandwidth / 1000, ...moving.map((p) => points.dramRate[p]))));
  const high = 10 ** (log(gpu.bandwidth) + 0.12);
  const x = scaleLog(low, high, edge.left, width - edge.right);
  const y = new Map(rowsShown.map((family, row) => [family, edge.top + step * (row + 0.5)]));
  const axes = svg("g", { class: "axis" });
  for (const tick of decades(low, high)) {
    axes.append(svg("line", { x1: x(tick), x2: x(tick), y1: edge.top, y2: height - edge.bottom }));
    axes.append(svg("text", { x: x(tick), y: height - edge.bottom + 17, "text-anchor": "middle" }, `${bare(tick)}B/s`));
  }
  for (const family of rowsShown) {
    axes.append(svg("line", { x1: edge.left, x2: width - edge.right, y1: y.get(family), y2: y.get(family) }));
    axes.append(svg("text", { x: edge.left - 10, y: y.get(family) + 4, "text-anchor": "end" }, families[family].name));
  }
  axes.append(svg("text", { x: (edge.left + width - edge.right) / 2, y: height - 8, "text-anchor": "middle" }, "DRAM rate"));
  const roofs = svg("g", { class: "roofs" });
  roofs.append(svg("path", { class: "roof", d: `M${x(gpu.bandwidth)} ${edge.top - 4} V${height - edge.bottom}` }));
  roofs.append(svg("text", { class: "roof-name", x: x(gpu.bandwidth) + 4, y: 12, "text-anchor": "end" }, `peak ${quantity(gpu.bandwidth, "B/s")}`));
  if (gpu.measuredBandwidth) roofs.append(svg("path", { class: "roof measured", d: `M${x(gpu.measuredBandwidth)} ${edge.top - 4} V${height - edge.bottom}` }));
  const whole = list.reduce((total, point) => total + points.time[point], 0) || 1;
  const dots = svg("g", { class: "dots" }, ...moving.map((point) => dot(point, x(points.dramRate[point]), y.get(familyOf(points.name[point])), whole, familyShown(familyOf(points.name[point])))));
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("height", height);
  picture.replaceChildren(axes, roofs, dots);
  dots.firstChild?.setAttribute("tabindex", "0");
}

function drawStageToggles() {
  const box = byId("roofline-stages");
  if (state.region !== NONE) return box.replaceChildren();
  box.replaceChildren(...roofStages().map((stage) => {
    const button = el("button", { type: "button", "aria-pressed": String(!hiddenStages.has(stage)), "data-stage": stage }, el("span", { class: "code" }, regions.label[stage]));
    button.addEventListener("click", () => {
      if (!hiddenStages.delete(stage)) hiddenStages.add(stage);
      drawRoofline();
      byId("roofline-stages").querySelector(`[data-stage="${stage}"]`).focus();
    });
    return button;
  }));
}

function startRoofline() {
  for (const id of ["roofline-chart", "memory-chart"]) {
    const picture = byId(id);
    if (!picture) return;
    picture.addEventListener("pointermove", (event) => {
      const mark = event.target.closest("[data-point]");
      if (mark) showTip(event.clientX, event.clientY, data.names.short[points.name[mark.dataset.point]], pointFacts(mark.dataset.point));
      else hideTip();
    });
    picture.addEventListener("pointerleave", hideTip);
    const open = (mark) => change({ query: data.names.short[points.name[mark.dataset.point]] });
    picture.addEventListener("click", (event) => {
      const mark = event.target.closest("[data-point]");
      if (mark) open(mark);
    });
    picture.addEventListener("focusin", (event) => {
      const mark = event.target.closest("[data-point]");
      if (!mark) return;
      const box = mark.getBoundingClientRect();
      showTip(box.right, box.bottom, data.names.short[points.name[mark.dataset.point]], pointFacts(mark.dataset.point));
    });
    picture.addEventListener("focusout", hideTip);
    picture.addEventListener("keydown", (event) => {
      const marks = [...picture.querySelectorAll("[data-point]")];
      const at = marks.indexOf(event.target);
      if (at < 0) return;
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (by) {
        const next = marks[Math.min(Math.max(at + by, 0), marks.length - 1)];
        event.target.setAttribute("tabindex", "-1");
        next.setAttribute("tabindex", "0");
        next.focus();
        event.preventDefault();
      } else if (event.key === "Enter" || event.key === " ") {
        open(event.target);
        event.preventDefault();
      }
    });
  }
  onChange((changed) => {
    if (changed.has("region") || changed.has("family")) drawRoofline();
  });
}
