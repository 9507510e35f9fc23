// Ranks by steps, as a matrix: dark is long. A click tells what the rank does differently, leads to its own report, and marks it in the table below.

const ranks = data.ranks;
const rankChart = byId("rank-matrix");
const rankState = { measure: "time", row: NONE };
const RANK_LABEL = 64;

const rankCell = () => {
  const [rows, steps] = [ranks.labels.length, ranks.measures.time[0].length];
  const high = Math.max(6, Math.min(22, Math.floor(420 / rows)));
  return { rows, steps, high, wide: Math.max((rankChart.clientWidth - RANK_LABEL) / steps, 0.5) };
};

function drawRanks() {
  if (!rankChart || !ranks) return;
  const { rows, steps, high, wide } = rankCell();
  const scale = window.devicePixelRatio || 1;
  rankChart.height = rows * high * scale;
  rankChart.width = rankChart.clientWidth * scale;
  const pen = rankChart.getContext("2d");
  pen.scale(scale, scale);
  const values = ranks.measures[rankState.measure];
  const steady = values.flatMap((row) => row.slice(ranks.warmup)).sort((a, b) => a - b);
  const low = rankState.measure === "time" ? steady[0] : 0;
  const top = Math.max(steady[Math.min(Math.floor(steady.length * 0.98), steady.length - 1)], low + 1);
  const [from, to] = [colour("--sunken"), colour(rankState.measure === "waiting" ? "--idle" : "--busy")];
  pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  pen.textBaseline = "middle";
  values.forEach((row, y) => {
    pen.fillStyle = colour(y === rankState.row ? "--accent" : "--ink-2");
    if (high >= 10 || y % Math.ceil(12 / high) === 0) pen.fillText(ranks.labels[y], 0, (y + 0.5) * high);
    row.forEach((value, x) => {
      pen.fillStyle = mix(from, to, Math.max(0, Math.min((value - low) / (top - low), 1)));
      pen.fillRect(RANK_LABEL + x * wide, y * high, Math.max(wide - (wide > 3 ? 1 : 0), 0.5), high - 1);
    });
  });
  byId("rank-scale").textContent = `${duration(low)} (faint) to ${duration(top)} (strong)${ranks.warmup ? `; the first ${plural(ranks.warmup, "step")} warm-up` : ""}; ${plural(steps, "step")} from left to right.`;
  pressed("[data-rank-measure]", "rankMeasure", rankState.measure);
  tellRank();
  document.querySelectorAll("#rank-table tbody tr").forEach((line, y) => line.classList.toggle("selected", y === rankState.row));
}

// What the chosen rank does differently, and the way to its own report.
function tellRank() {
  const story = byId("rank-story");
  story.replaceChildren();
  if (rankState.row === NONE) return;
  const label = ranks.labels[rankState.row];
  story.append(`${label}: ${ranks.stories[rankState.row] || "nothing that the others do not do, too"}. `);
  if (!ranks.links[rankState.row]) return;
  const link = document.createElement("a");
  link.href = ranks.links[rankState.row];
  link.textContent = `The report of ${label}`;
  story.append(link);
}

function startRanks() {
  if (!rankChart || !ranks) return;
  const at = (event) => {
    const box = rankChart.getBoundingClientRect();
    const { rows, steps, high, wide } = rankCell();
    const [x, y] = [Math.floor((event.clientX - box.left - RANK_LABEL) / wide), Math.floor((event.clientY - box.top) / high)];
    return y >= 0 && y < rows ? { x: x >= 0 && x < steps ? x : NONE, y } : null;
  };
  for (const button of document.querySelectorAll("[data-rank-measure]")) {
    button.addEventListener("click", () => { rankState.measure = button.dataset.rankMeasure; drawRanks(); });
  }
  rankChart.addEventListener("pointermove", (event) => {
    const cell = at(event);
    if (!cell || cell.x === NONE) return hideTip();
    const facts = Object.entries(ranks.measures).map(([name, rows]) => [name, duration(rows[cell.y][cell.x])]);
    showTip(event.clientX, event.clientY, `${ranks.labels[cell.y]}, step ${count(cell.x + 1)}`, facts);
  });
  rankChart.addEventListener("pointerleave", hideTip);
  rankChart.addEventListener("click", (event) => {
    const cell = at(event);
    if (!cell) return;
    rankState.row = cell.y === rankState.row ? NONE : cell.y;
    drawRanks();
    document.querySelector("#rank-table tr.selected")?.scrollIntoView({ block: "nearest" });
  });
  drawRanks();
}
