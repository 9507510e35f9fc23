// Regions as nested boxes: width is time, colour is how busy the GPU was. A box opens when it is chosen.

const ROW = 28;
const NARROWEST = 0.5;  // pixels; a narrower box is not drawn, and takes no row
const icicle = byId("icicle");

function measureOf(number) {
  if (state.measure === "wall") return regions.wall[number] ?? 0;
  return regions.gpu[number] ?? 0;
}

// Boxes of what is shown: [region, x, width, depth], x and width as parts of the whole.
function layout(root) {
  const boxes = [];
  const place = (number, x, width, depth) => {
    boxes.push([number, x, width, depth]);
    const inside = below(number);
    const sum = inside.reduce((total, child) => total + measureOf(child), 0);
    const whole = Math.max(measureOf(number), sum);  // threads may run side by side
    let at = x;
    for (const child of inside) {
      const part = whole ? (measureOf(child) / whole) * width : 0;
      if (part > 0) place(child, at, part, depth + 1);
      at += part;
    }
  };
  const line = [];  // from the outermost region to the chosen one: full width
  for (let at = root; at !== NONE; at = regions.parent[at]) line.unshift(at);
  if (line.length) {
    line.slice(0, -1).forEach((number, depth) => boxes.push([number, 0, 1, depth]));
    place(root, 0, 1, line.length - 1);
    return boxes;
  }
  // A stage that stands for the whole recording holds all the others: beside them it would count everything twice.
  const outermost = below(NONE).filter((number) => number !== data.whole);
  const outside = state.measure === "gpu" ? data.total.outside ?? 0 : 0;
  const whole = outermost.reduce((total, number) => total + measureOf(number), 0) + outside;
  let at = 0;
  for (const number of outermost) {
    const part = whole ? measureOf(number) / whole : 0;
    if (part > 0) place(number, at, part, 0);
    at += part;
  }
  if (outside > 0 && whole) boxes.push([NONE, at, outside / whole, 0]);
  return boxes;
}

function regionFacts(number) {
  const r = regions;
  const facts = [
    ["wall time", duration(r.wall[number])],
    ["GPU busy", percent(busyPart(number), 1)],
    ["GPU time", duration(r.gpu[number])],
    ["own GPU time", duration(r.own[number])],
    ["kernels", data.hostOnly ? MISSING : count(r.kernels[number])],
    ["instances", count(r.instances[number])],
  ];
  return facts.filter(([, value]) => value !== MISSING);
}

function drawIcicle() {
  if (!icicle || !regions.key.length) return;
  const focused = icicle.contains(document.activeElement) ? Number(document.activeElement.dataset.region) : null;
  const width = Math.max(icicle.parentElement.clientWidth - 34, 200);
  const boxes = layout(state.region);
  const depth = Math.max(0, ...boxes.filter((box) => box[2] * width >= NARROWEST).map((box) => box[3]));
  icicle.setAttribute("viewBox", `0 0 ${width} ${(depth + 1) * ROW}`);
  icicle.setAttribute("height", (depth + 1) * ROW);
  let hidden = 0;
  const nodes = [];
  for (const [number, x, part, level] of boxes) {
    const wide = part * width;
    if (wide < NARROWEST) {
      hidden += 1;
      continue;
    }
    const outside = number === NONE;
    const background = outside ? colour("--sunken") : busyColour(busyPart(number));
    const value = outside ? data.total.outside : measureOf(number);
    const label = outside ? "outside every range" : regions.label[number];
    const node = svg("g", {
      class: `node${number === state.region && !outside ? " selected" : ""}${level < levelOf(state.region) ? " faded" : ""}`,
      role: "treeitem",
      tabindex: "-1",
      "data-region": number,
      "aria-level": level + 1,
      "aria-selected": number === state.region && !outside ? "true" : "false",
      "aria-label": outside ? `outside every range: ${duration(value)}` : `${label}: ${regionFacts(number).map((f) => f.join(" ")).join(", ")}`,
    });
    node.append(svg("rect", { x: x * width, y: level * ROW, width: Math.max(wide, 1), height: ROW, rx: 3, fill: background }));
    const room = Math.floor((wide - 14) / 7);
    if (room >= 3) {
      const text = `${label}  ${duration(value)}`;
      const shown = text.length <= room ? text : label.length <= room ? label : `${label.slice(0, room - 1)}…`;
      node.append(svg("text", { x: x * width + 8, y: level * ROW + 18.5, fill: readableOn(background) }, shown));
    }
    nodes.push(node);
  }
  icicle.replaceChildren(...nodes);
  const first = nodes.find((node) => Number(node.dataset.region) === (focused ?? state.region)) ?? nodes[0];
  if (first) {
    first.setAttribute("tabindex", "0");
    if (focused !== null) first.focus();
  }
  byId("libraries").textContent = `${state.libraries ? "fold" : "show"} ${plural(library.size, "library range")}`;
  byId("libraries").setAttribute("aria-pressed", String(state.libraries));
  byId("icicle-note").textContent = [
    boxes.length ? "" : "No region has a time here: the table has what is known.",
    state.measure === "wall" ? "Width: wall time on the host, all instances." : "Width: GPU time (sum of kernels).",
    hidden ? `${plural(hidden, "box")} too narrow to draw: click the region around to see inside.`.replace("boxs", "boxes") : "",
    "Click a region to look at it alone; click the one above it, or press Esc, to go back.",
  ].filter(Boolean).join(" ");
}

function levelOf(number) {
  let level = 0;
  for (let at = number; at !== NONE && regions.parent[at] !== NONE; at = regions.parent[at]) level += 1;
  return number === NONE ? -1 : level;
}

function focusRegion(number) {
  const node = icicle.querySelector(`[data-region="${number}"]`);
  if (!node) return false;
  for (const other of icicle.querySelectorAll('[tabindex="0"]')) other.setAttribute("tabindex", "-1");
  node.setAttribute("tabindex", "0");
  node.focus();
  return true;
}

function moveInIcicle(event) {
  const node = event.target.closest?.("[data-region]");
  if (!node) return;
  const number = Number(node.dataset.region);
  const parent = number === NONE ? NONE : regions.parent[number];
  const beside = below(parent).filter((n) => icicle.querySelector(`[data-region="${n}"]`));
  const at = beside.indexOf(number);
  let handled = true;
  if (event.key === "ArrowRight") focusRegion(beside[Math.min(at + 1, beside.length - 1)]);
  else if (event.key === "ArrowLeft") focusRegion(beside[Math.max(at - 1, 0)]);
  else if (event.key === "ArrowDown") below(number).some(focusRegion);
  else if (event.key === "ArrowUp" && parent !== NONE) focusRegion(parent);
  else if (event.key === "Enter" || event.key === " ") choose(number);
  else handled = false;
  if (handled) event.preventDefault();
}

function choose(number) {
  if (number === NONE) return;
  // Choosing what is chosen already goes one step out.
  select(number === state.region ? regions.parent[number] : number);
}

function startIcicle() {
  if (!icicle || !regions.key.length) return;
  byId("scale")?.append(...Array.from({ length: 20 }, (_, i) => svg("rect", { x: i, width: 1.02, height: 1, fill: busyColour(i / 19) })));
  icicle.addEventListener("click", (event) => {
    const node = event.target.closest("[data-region]");
    if (node) choose(Number(node.dataset.region));
  });
  icicle.addEventListener("keydown", moveInIcicle);
  icicle.addEventListener("pointermove", (event) => {
    const node = event.target.closest("[data-region]");
    if (!node) return hideTip();
    const number = Number(node.dataset.region);
    if (number === NONE) showTip(event.clientX, event.clientY, "outside every range", [["GPU time", duration(data.total.outside)], ["kernels", count(data.total.outsideKernels)]]);
    else showTip(event.clientX, event.clientY, regions.full[number], regionFacts(number));
  });
  icicle.addEventListener("pointerleave", hideTip);
  for (const button of document.querySelectorAll("[data-measure]")) {
    button.disabled = button.dataset.measure === "wall" && regions.wall.every((wall) => wall === null);
    if (button.disabled) button.title = "needs a timeline";
    button.addEventListener("click", () => change({ measure: button.dataset.measure }));
  }
  const fold = byId("libraries");
  fold.hidden = !library.size;
  fold.addEventListener("click", () => change({ libraries: !state.libraries }));
  onChange((changed) => {
    if (["region", "measure", "libraries"].some((name) => changed.has(name))) drawIcicle();
  });
}
