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
    ...timingFacts(number),
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
    box.replaceChildren(column("", crumbs(number)), column("Time", time, ...whoseTimes(number)));
    return;
  }
  box.replaceChildren(
    column("", crumbs(number), ...verdict(number), r.nvtx[number] ? copyable("ncu --nvtx selects it with", r.nvtx[number]) : null),
    column("Time", time, ...whoseTimes(number)),
    column("Against the GPU's limits", ...limits(number)),
    column("Counters", counters(number)),
  );
}

// What is known of the instances of a region, by name.
function timingOf(number) {
  const told = data.timing[number];
  if (!told) return null;
  const [undisturbed, instances, steady = 0, median = null, p10 = null, p90 = null, warm = 0, warmTime = 0, why = null, change = null, profiled = null, disturbance = null] = told;
  return { undisturbed, instances, steady, median, p10, p90, warm, warmTime, why, change, profiled, disturbance };
}
function timingFacts(number) {
  const t = timingOf(number);
  if (!t) return [];
  const warm = [t.warm ? plural(t.warm, "instance") : "", t.warmTime ? duration(t.warmTime) : ""].filter(Boolean).join(" · ");
  return [
    ["warm-up", warm || MISSING],
    ["steady", t.steady && t.instances > 1 ? `${plural(t.steady, "instance")} · median ${duration(t.median)}` : MISSING],
    ["80 % of them", t.p10 !== null ? `${duration(t.p10)} to ${duration(t.p90)}` : MISSING],
    ["median under the profiler", t.profiled === null ? MISSING : `${duration(t.profiled)}${t.disturbance === null ? "" : ` · ${t.disturbance.toFixed(2)}×`}`],
  ];
}
const CAUSES = { compilation: "something was compiled", "graph capture": "a CUDA graph was captured", "first use": "libraries and kernels were used for the first time", other: "the recording does not say why" };
// Whose times they are: a profiled program is slower, and so is a cold one.
function whoseTimes(number) {
  const t = timingOf(number);
  if (!t) return [];
  const part = t.profiled === null ? "" : " Wall and GPU time are of the profiled run.";
  return [
    t.undisturbed ? `Undisturbed: the median was taken without a profiler.${part}` : "Of the profiled run: without a profiler the host may be faster. llm-perf measure -- CMD times the program alone.",
    t.instances === 1 ? "One instance: it may be warm-up. Let the program do this more than once to know." : "",
    t.warm || t.warmTime ? `Warm-up: ${CAUSES[t.why] ?? CAUSES.other}.${t.warm ? "" : " It lies in the regions inside."}` : "",
    t.change === null ? "" : `From instance ${count(t.change + 1)} on, all take another time than before.`,
  ].filter(Boolean).map((text) => el("p", { class: "small dim" }, text));
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
