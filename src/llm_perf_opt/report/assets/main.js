// Puts the parts together: themes, keys, the chip that says what is selected, copying, printing.

function pressed(selector, attribute, value) {
  for (const button of document.querySelectorAll(selector)) button.setAttribute("aria-pressed", String(button.dataset[attribute] === value));
}

function drawSelection() {
  const chosen = [state.region === NONE ? "" : regions.full[state.region], state.family].filter(Boolean);
  byId("chip").hidden = !chosen.length;
  byId("chip-name").textContent = chosen.join(" · ");
  for (const card of document.querySelectorAll(".card[data-region]")) {
    const on = Number(card.dataset.region) === state.region;
    card.classList.toggle("selected", on);
    card.querySelector("button").setAttribute("aria-pressed", String(on));
  }
  pressed("[data-measure]", "measure", state.measure);
  pressed("[data-names]", "names", state.names);
}

function drawAll() {
  colours = new Map();
  drawSelection();
  drawIcicle();
  drawAbout();
  drawFamilies();
  drawRoofline();
  drawInstances();
  drawRanks();
  if (recorded) drawStrip();
}

// -- themes: the system's, until a person chooses ------------------------------------------------

const darkSystem = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (darkSystem.matches ? "dark" : "light")) === "dark";
function nameTheme() {
  byId("theme").textContent = isDark() ? "light theme" : "dark theme";
}
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("llm-perf-theme", theme); } catch { /* a file may have no storage */ }
  nameTheme();
  drawAll();
}
try {
  const kept = localStorage.getItem("llm-perf-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch { /* a file may have no storage */ }

document.documentElement.classList.add("js");
byId("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
darkSystem.addEventListener("change", () => { nameTheme(); drawAll(); });

byId("clear").addEventListener("click", () => change({ region: NONE, family: "" }));
for (const card of document.querySelectorAll(".card[data-region]")) {
  card.querySelector("button").addEventListener("click", () => {
    const number = Number(card.dataset.region);
    const chosen = number !== state.region;
    select(chosen ? number : NONE);
    if (chosen) reveal("timeline");
  });
}
for (const button of document.querySelectorAll("[data-select]")) {
  button.addEventListener("click", () => { select(Number(button.dataset.select)); reveal("timeline"); });
}
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", () => copyText(button.previousElementSibling.textContent, button));
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input, select, textarea");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && byId("search")) {
    event.preventDefault();
    byId("search").focus();
    byId("search").scrollIntoView({ block: "center" });
  }
  if (event.key === "Escape") {
    hideTip();
    if (event.target.id === "search" && state.query) change({ query: "" });
    else if (state.region !== NONE || state.family || state.query) change({ region: NONE, family: "", query: "" });
    else if (typing) event.target.blur();
  }
});

onChange((changed) => {
  drawSelection();
  if (changed.has("region")) drawAbout();
});
addEventListener("hashchange", readAddress);
let resized = 0;
addEventListener("resize", () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(() => { drawIcicle(); drawInstances(); drawStrip(); drawRoofline(); drawFamilies(); drawRanks(); });
});
// On paper the words are there to be read, and colours are the light ones.
let before = null;
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details.words:not([open]), details.glossary:not([open]), #lines details:not([open])")];
  for (const detail of opened) detail.open = true;
  before = document.documentElement.dataset.theme ?? "";
  document.documentElement.dataset.theme = "light";
  printing = true;
  if (kernelPanel) drawRows();
  drawAll();
});
addEventListener("afterprint", () => {
  for (const detail of opened) detail.open = false;
  printing = false;
  if (kernelPanel) drawRows();
  if (before) document.documentElement.dataset.theme = before;
  else delete document.documentElement.dataset.theme;
  drawAll();
});

startIcicle();
startStrip();
startInstances();
startFamilies();
startRoofline();
startKernels();
startRanks();
nameTheme();
drawSelection();
readAddress();
drawIcicle();
drawAbout();
drawFamilies();
drawRoofline();
drawKernels();
if (recorded && shown.instance === null) fillInstances();
drawInstances();
document.documentElement.dataset.ready = "true";
