// Kernel families: one colour each in every chart, and a legend that shows one family alone.

const families = (data.names?.families ?? []).map(([name, light, dark], number) => {
  document.documentElement.style.setProperty(`--family-${number}`, `light-dark(${light}, ${dark})`);
  return { name, variable: `--family-${number}` };
});
const familyOf = (name) => data.names.family[name];
const familyColour = (number) => colour(families[number].variable);
const familyShown = (number) => state.family === "" || families[number].name === state.family;

// Time of each family in the selection, longest first.
function familyTimes() {
  const times = new Map();
  for (const row of rowsOf.get(state.region) ?? []) {
    const family = familyOf(rows.name[row]);
    times.set(family, (times.get(family) ?? 0) + (rows.total[row] ?? 0));
  }
  return [...times].sort((a, b) => b[1] - a[1]);
}

function drawFamilies() {
  const picture = byId("family-bar");
  if (!picture) return;
  const times = familyTimes();
  const whole = times.reduce((total, [, time]) => total + time, 0);
  const width = Math.max(picture.parentElement.clientWidth - 34, 200);
  picture.setAttribute("viewBox", `0 0 ${width} 26`);
  picture.setAttribute("height", 26);
  picture.setAttribute("aria-label", `GPU time by kernel family: ${times.map(([f, t]) => `${families[f].name} ${percent(t, whole)}`).join(", ")}`);
  let at = 0;
  picture.replaceChildren(...times.flatMap(([family, time]) => {
    const wide = whole ? (time / whole) * width : 0;
    const box = svg("rect", { x: at, width: Math.max(wide - 1, 0.5), height: 26, rx: 2, fill: familyColour(family), opacity: familyShown(family) ? 1 : 0.25, "data-family": family });
    const text = `${families[family].name} ${percent(time, whole)}`;
    const label = wide > text.length * 7 + 12 ? svg("text", { x: at + 8, y: 17.5, fill: readableOn(familyColour(family)), "font-size": 12 }, text) : null;
    at += wide;
    return label ? [box, label] : [box];
  }));
  byId("families").replaceChildren(...times.map(([family, time]) => {
    const swatch = el("span", { class: "swatch" });
    swatch.style.background = `var(${families[family].variable})`;
    const button = el("button", { type: "button", "aria-pressed": String(familyShown(family)), "data-family": family, title: `${duration(time)}, ${percent(time, whole)} of ${selectionName()}` }, swatch, families[family].name);
    button.addEventListener("click", () => change({ family: state.family === families[family].name ? "" : families[family].name }));
    return button;
  }));
}

function startFamilies() {
  byId("family-bar")?.addEventListener("pointermove", (event) => {
    const box = event.target.closest("[data-family]");
    if (!box) return hideTip();
    const times = familyTimes();
    const whole = times.reduce((total, [, time]) => total + time, 0);
    const [family, time] = times.find(([f]) => f === Number(box.dataset.family));
    showTip(event.clientX, event.clientY, families[family].name, [["GPU time", duration(time)], ["share", percent(time, whole)]]);
  });
  byId("family-bar")?.addEventListener("pointerleave", hideTip);
  byId("family-bar")?.addEventListener("click", (event) => {
    const box = event.target.closest("[data-family]");
    if (box) change({ family: state.family === families[box.dataset.family].name ? "" : families[box.dataset.family].name });
  });
  onChange((changed) => {
    if (changed.has("region") || changed.has("family")) drawFamilies();
  });
}
