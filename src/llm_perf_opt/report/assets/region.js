// What is known of the chosen region, beside the boxes.

// Busy time adds up over GPUs; nothing where they are not told apart (several recordings of "device 0").
function shareOfGpus({ busy, span, gpus }) {
  if (busy > span * Math.max(gpus, 1)) return "";
  return gpus > 1 ? ` · ${percent(busy, span * gpus)} of ${gpus} GPUs` : ` · ${percent(busy, span)}`;
}

function drawAbout() {
  const box = byId("about-region");
  if (!box) return;
  const number = state.region;
  if (number === NONE) {
    const t = data.total;
    box.replaceChildren(column("The whole recording", facts([
      ["regions", count(t.regions)],
      ["kernels", data.hostOnly ? MISSING : count(t.kernels)],
      ["in no range", t.outsideKernels ? `${plural(t.outsideKernels, "kernel")} · ${duration(t.outside)}` : MISSING],
    ])), column("", facts([
      ["from first to last event", duration(t.span)],
      ["GPU busy", t.busy === null ? MISSING : `${duration(t.busy)}${shareOfGpus(t)}`],
      ["GPU time", duration(t.gpu)],
    ])));
    return;
  }
  const r = regions;
  const [wall, instances, own] = [r.wall[number], r.instances[number], r.own[number]];
  const time = facts([
    ["instances", count(instances)],
    ["wall time", wall === null ? MISSING : `${duration(wall)}${instances > 1 ? ` · ${duration(wall / instances)} each` : ""}`],
    ["GPU busy", percent(busyPart(number), 1)],
    ["GPU idle", duration(r.idle[number])],
    ["GPU time", r.gpu[number] === null ? MISSING : `${duration(r.gpu[number])} · ${percent(r.gpu[number], data.total.gpu)} of all`],
    ["own GPU time", own === null ? MISSING : `${duration(own)} · ${plural(r.ownKernels[number], "kernel")}`],
    ["kernels", data.hostOnly ? MISSING : count(r.kernels[number])],
    ["copies and fills", r.copies[number] ? `${count(r.copies[number])} · ${quantity(r.copied[number], "B")}` : MISSING],
    ["CUDA graphs", r.graphs[number] ? count(r.graphs[number]) : MISSING],
    ["from other threads", r.adopted[number] ? plural(r.adopted[number], "kernel") : MISSING],
  ]);
  if (data.hostOnly) {
    box.replaceChildren(column("", crumbs(number)), column("Time", time));
    return;
  }
  box.replaceChildren(
    column("", crumbs(number), ...verdict(number), r.nvtx[number] ? copyable("ncu --nvtx selects it with", r.nvtx[number]) : null),
    column("Time", time),
    column("Against the GPU's limits", ...limits(number)),
    column("Counters", counters(number)),
  );
}

const column = (title, ...parts) => el("div", {}, title ? el("h3", {}, title) : null, ...parts);

function crumbs(number) {
  const path = [];
  for (let at = number; at !== NONE; at = regions.parent[at]) path.unshift(at);
  return el("p", { class: "crumbs" }, ...path.flatMap((at, i) => {
    const step = el("button", { type: "button", class: "link code" }, regions.label[at]);
    step.addEventListener("click", () => select(at));
    return i ? [" › ", step] : [step];
  }));
}

const WAYS = ["wall", "busy"];
const METRICS = { mfu: "MFU", mbu: "bandwidth" };

function verdict(number) {
  const evaluated = data.evaluated[number];
  if (!evaluated) return [el("p", { class: "missing" }, "No verdict: too small a part of the run to be evaluated by itself. The region around it is.")];
  const [title, text, confidence] = evaluated.verdict;
  const parts = [
    el("p", {}, el("span", { class: "verdict" }, title), confidence ? el("span", { class: "dim small" }, ` ${confidence} confidence`) : null),
    el("p", { class: "small" }, text),
  ];
  if (evaluated.gpuVerdict[0] !== title) parts.push(el("p", { class: "small dim" }, `While kernels run: ${evaluated.gpuVerdict[0]}. ${evaluated.gpuVerdict[1]}`));
  if (evaluated.advice) parts.push(el("p", { class: "small dim" }, `→ ${evaluated.advice}`));
  if (evaluated.next) parts.push(copyable("to know more", evaluated.next));
  return parts;
}

function limits(number) {
  const evaluated = data.evaluated[number];
  if (!evaluated) return [el("p", { class: "missing" }, "Not computed for so small a region.")];
  const list = [];
  for (const metric of Object.keys(METRICS)) {
    for (const measured of [false, true]) {
      const found = WAYS.map((way) => evaluated.utilisation.find(([m, time, peak]) => m === metric && time === way && (peak === "calibrated") === measured)).filter(Boolean);
      if (found.length) list.push([`${METRICS[metric]}${measured ? ", measured peak" : ""}`, found.map(([, time, , value]) => `${(100 * value).toFixed(1)} % ${time}`).join(" · ")]);
    }
  }
  list.push(["intensity", evaluated.intensity === null ? MISSING : `${significant(evaluated.intensity)} FLOP/B`]);
  if (evaluated.light) {
    const [now, limit, above, waiting, others] = evaluated.light;
    const known = evaluated.light[5];
    list.push([known ? "speed of light" : "without waiting", `${duration(limit)}${limit ? ` · ${now / limit >= 100 ? count(Math.round(now / limit)) : significant(now / limit)}× faster` : ""}`], ["kernels above roofs", known ? duration(above) : MISSING], ["GPU waiting", duration(waiting)], ["work of other regions", others > 0 ? duration(others) : MISSING]);
  }
  if (evaluated.tokens) list.push(["tokens", quantity(evaluated.tokens[0], "tok/s")], ["tokens at the limit", quantity(evaluated.tokens[2], "tok/s")]);
  return [facts(list), ...evaluated.missing.map((text) => el("p", { class: "missing" }, text))];
}

function facts(pairs) {
  const list = el("dl", { class: "facts" });
  for (const [name, value] of pairs) if (value !== MISSING) list.append(el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  return list;
}

function counters(number) {
  const known = data.counters[number];
  if (!known.length) return el("p", { class: "missing" }, "No counters for this region: none of its kernels was sampled.");
  const list = el("dl", { class: "facts" });
  for (const [title, name, value, unit, how, spread] of known) {
    const error = spread === null ? "" : ` ± ${(100 * spread).toFixed(1)} %`;
    list.append(el("div", { title: `${name}: ${how}` }, el("dt", {}, title), el("dd", {}, `${quantity(value, unit)}${error}`)));
  }
  return list;
}

function copyable(name, text) {
  const button = el("button", { type: "button", "aria-label": `Copy: ${name}` }, "copy");
  button.addEventListener("click", () => copyText(text, button));
  return el("div", {}, el("p", { class: "dim small" }, name), el("div", { class: "copyable" }, el("code", {}, text), button));
}
