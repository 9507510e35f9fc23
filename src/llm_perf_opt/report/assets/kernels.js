// The kernels of the chosen region: sorted, searched, and only as many rows in the page as can be seen.

const MANY = 500, ROW_HEIGHT = 31, SPARE = 12;
const kernelPanel = byId("kernel-panel");
const ON_PAPER = 200;
let listed = [];
let printing = false;  // on paper there is nothing to scroll: the first rows, and no room kept for others

const columns = [
  { id: "name", title: "kernel", text: true, value: (row) => data.names.short[rows.name[row]].toLowerCase() },
  { id: "family", title: "family", text: true, value: (row) => families[familyOf(rows.name[row])].name },
  { id: "calls", title: "calls", value: (row) => rows.calls[row], show: (row) => count(rows.calls[row]) },
  { id: "total", title: "total", value: (row) => rows.total[row], show: (row) => duration(rows.total[row]) },
  { id: "share", title: "share", plain: true, show: (row) => shareBar(row), hint: "of the GPU time of what is selected" },
  { id: "mean", title: "mean", value: (row) => rows.total[row] / rows.calls[row], show: (row) => duration(rows.total[row] === null ? null : rows.total[row] / rows.calls[row]) },
  { id: "min", title: "shortest", value: (row) => rows.min[row], show: (row) => duration(rows.min[row]) },
  { id: "max", title: "longest", value: (row) => rows.max[row], show: (row) => duration(rows.max[row]) },
  { id: "trend", title: "over time", plain: true, show: (row) => sparkline(rows.trend[row]), hint: "mean time of a launch in each instance of the region, first to last (in groups where they are many); of a region with one instance, over its launches. The bottom is zero." },
];
// Where the recording tells what launches the kernels.
const sources = (data.evaluated ?? []).map((one) => new Map(one?.sources ?? []));
// Of the chosen region, or of the one around it that knows; of the whole recording, of the stages.
function sourceOf(row) {
  const asked = [];
  for (let at = state.region; at !== NONE; at = regions.parent[at]) asked.push(at);
  const known = (asked.length ? asked : data.stages).map((at) => sources[at]?.get(rows.name[row])).find(Boolean);
  return known ?? MISSING;
}
if (sources.some((known) => known.size)) columns.push({ id: "by", title: "launched by", plain: true, words: true, show: sourceOf, hint: "operator, with M×N×K of a product, and lines of the program; of the chosen region, or else of the first stage that launches it" });

// The same kernel has a row for each GPU: without its number they could not be told apart.
if (new Set(rows.device).size > 1) columns.push({ id: "device", title: "GPU", value: (row) => rows.device[row], show: (row) => String(rows.device[row]) });

const totalOf = () => (state.region === NONE ? data.total.gpu : regions.gpu[state.region]);
function shareBar(row) {
  const part = rows.total[row] / totalOf();
  if (!Number.isFinite(part)) return MISSING;
  return el("span", {}, svg("svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "rest", width: 100, height: 8 }), svg("rect", { class: "busy", width: Math.min(100 * part, 100), height: 8 })), ` ${(100 * part).toFixed(1).padStart(5, "\u2007")} %`);
}
function sparkline(levels) {
  if (!levels) return MISSING;
  const points = [...levels].map((c, i) => [i, c === "." ? null : LEVELS.indexOf(c) / 63]).filter(([, v]) => v !== null);
  const step = 88 / Math.max(levels.length - 1, 1);
  const at = points.map(([i, v]) => `${(2 + i * step).toFixed(1)},${(18 - 16 * v).toFixed(1)}`);
  const picture = svg("svg", { class: "spark", viewBox: "0 0 92 20", "aria-hidden": "true" });
  picture.append(points.length > 1 ? svg("polyline", { points: at.join(" ") }) : svg("circle", { cx: at[0].split(",")[0], cy: at[0].split(",")[1], r: 2 }));
  return picture;
}

function listKernels() {
  const wanted = state.query.trim().toLowerCase().split(/\s+/).filter(Boolean);
  listed = (rowsOf.get(state.region) ?? []).filter((row) => {
    if (!familyShown(familyOf(rows.name[row]))) return false;
    if (!wanted.length) return true;
    const name = `${data.names.short[rows.name[row]]} ${data.names.full[rows.name[row]]}`.toLowerCase();
    return wanted.every((word) => name.includes(word));
  });
  const value = columns.find((c) => c.id === state.sort).value;
  const sign = state.ascending ? 1 : -1;
  listed.sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    return sign * (x < y ? -1 : x > y ? 1 : 0) || a - b;
  });
}

function drawHead() {
  const cells = columns.map((column) => {
    const cell = el("th", { class: column.text || column.words ? "text" : null, scope: "col", title: column.hint });
    if (column.plain) { cell.append(column.title); return cell; }
    const button = el("button", { type: "button" }, column.title);
    button.addEventListener("click", () => change({ sort: column.id, ascending: state.sort === column.id ? !state.ascending : Boolean(column.text) }));
    if (state.sort === column.id) cell.setAttribute("aria-sort", state.ascending ? "ascending" : "descending");
    cell.append(button);
    return cell;
  });
  kernelPanel.querySelector("thead").replaceChildren(el("tr", {}, ...cells));
}

function kernelRow(row, index) {
  const name = rows.name[row];
  const cells = columns.map((column) => {
    if (column.id === "family") {
      const swatch = el("span", { class: "swatch" });
      swatch.style.background = `var(${families[familyOf(name)].variable})`;
      return el("td", { class: "text family" }, swatch, families[familyOf(name)].name);
    }
    if (column.words) return el("td", { class: "text by", title: column.show(row) }, column.show(row));
    if (!column.text) return el("td", {}, column.show(row));
    const shownName = state.names === "full" ? data.names.full[name] : data.names.short[name];
    if (!recorded) return el("td", { class: "text name", title: data.names.full[name] }, shownName);
    const button = el("button", { type: "button", class: "link" }, shownName);
    button.addEventListener("click", () => openKernel(name));
    return el("td", { class: "text name", title: data.names.full[name] }, button);
  });
  return el("tr", { "aria-rowindex": index + 2, "data-row": row }, ...cells);
}

// With many rows and one height for all, only those in sight are in the page, between two spacers.
function drawRows() {
  const scroll = byId("kernel-scroll");
  const body = kernelPanel.querySelector("tbody");
  const few = listed.length <= MANY || printing;
  let [from, to] = [0, printing ? Math.min(ON_PAPER, listed.length) : listed.length];
  if (!few) {
    from = Math.max(Math.floor(scroll.scrollTop / ROW_HEIGHT) - SPARE, 0);
    to = Math.min(from + Math.ceil(scroll.clientHeight / ROW_HEIGHT) + 2 * SPARE, listed.length);
  }
  const spacer = (height) => {
    const cell = el("td", { class: "pad", colspan: columns.length });
    cell.style.height = `${height}px`;
    return el("tr", { "aria-hidden": "true" }, cell);
  };
  const found = listed.slice(from, to).map((row, i) => kernelRow(row, from + i));
  if (!few) found.unshift(spacer(from * ROW_HEIGHT));
  if (!few) found.push(spacer((listed.length - to) * ROW_HEIGHT));
  const all = (rowsOf.get(state.region) ?? []).length;
  if (to < listed.length && printing) found.push(el("tr", {}, el("td", { class: "text", colspan: columns.length }, `${plural(listed.length - to, "more kernel")} with less in this order: on the screen, and in kernels.csv.`)));
  if (!listed.length) found.push(el("tr", {}, el("td", { class: "text", colspan: columns.length }, all ? `No kernel of ${selectionName()} matches ${[state.query && `“${state.query}”`, state.family && `the family ${state.family}`].filter(Boolean).join(" and ")}.` : `${selectionName()} launched no kernel.`)));
  body.replaceChildren(...found);
}

function drawKernels() {
  if (!kernelPanel) return;
  listKernels();
  kernelPanel.classList.toggle("full", state.names === "full" && listed.length <= MANY);
  byId("kernel-table").setAttribute("aria-rowcount", listed.length + 1);
  drawHead();
  byId("kernel-scroll").scrollTop = 0;
  drawRows();
  const all = (rowsOf.get(state.region) ?? []).length;
  const left = state.region === NONE ? data.total.omitted : regions.omitted[state.region];
  byId("kernels-what").textContent = `${selectionName()}: ${listed.length === all ? plural(all, "kernel") : `${count(listed.length)} of ${plural(all, "kernel")}`}`;
  byId("kernels-note").textContent = left ? `${plural(left, "more kernel")} with less time are in report.json.` : "";
}

function startKernels() {
  if (!kernelPanel) return;
  const search = byId("search");
  search.addEventListener("input", () => change({ query: search.value }));
  for (const button of document.querySelectorAll("[data-names]")) button.addEventListener("click", () => change({ names: button.dataset.names }));
  let waiting = false;
  byId("kernel-scroll").addEventListener("scroll", () => {
    if (listed.length <= MANY || waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; drawRows(); });
  });
  onChange((changed) => {
    if (search.value !== state.query) search.value = state.query;
    if (["region", "query", "family", "sort", "ascending", "names"].some((name) => changed.has(name))) drawKernels();
  });
}
