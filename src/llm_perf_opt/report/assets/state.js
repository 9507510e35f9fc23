// The data of the page, and the one selection all charts share. It is kept in the address, so that a view can be sent.

const data = JSON.parse(byId("data").textContent);
const regions = data.regions ?? { key: [], parent: [] };
const NONE = -1;
// A name that is short by itself is there once.
data.names?.full.forEach((name, number) => { if (!name) data.names.full[number] = data.names.short[number]; });

const children = new Map();  // region (or NONE for the outermost) -> regions right below it
regions.parent.forEach((parent, number) => {
  if (!children.has(parent)) children.set(parent, []);
  children.get(parent).push(number);
});
// Ranges that libraries open for themselves are folded away, until somebody asks for them.
const library = new Set(data.libraries ?? []);
const below = (number) => (children.get(number) ?? []).filter((child) => state.libraries || !library.has(child) || isInside(state.region, child));
function isInside(number, ancestor) {
  if (ancestor === NONE || ancestor === data.whole) return true;  // the whole recording holds what lies beside it
  for (let at = number; at !== NONE; at = regions.parent[at]) if (at === ancestor) return true;
  return false;
}
const busyPart = (number) => {
  const [wall, idle] = [regions.wall[number], regions.idle[number]];
  return wall && idle !== null ? 1 - idle / wall : null;
};

// Kernel rows are sorted by region: where those of each begin.
const rows = data.rows ?? { region: [] };
const rowsOf = new Map();
rows.region.forEach((region, row) => {
  if (!rowsOf.has(region)) rowsOf.set(region, []);
  rowsOf.get(region).push(row);
});

const state = {
  region: NONE,
  libraries: false,
  query: "",
  family: "",
  names: "short",
  measure: regions.key.length && regions.wall.some((wall) => wall !== null) ? "wall" : "gpu",
  sort: "total",
  ascending: false,
};
const listeners = [];
const onChange = (listener) => listeners.push(listener);
let pending = false;
function change(update) {
  const changed = new Set(Object.keys(update).filter((name) => state[name] !== update[name]));
  if (!changed.size) return;
  Object.assign(state, update);
  for (const listener of listeners) listener(changed);
  if (["region", "query", "family"].some((name) => changed.has(name))) writeAddress();
}
const select = (region) => change({ region });
const reveal = (section) => (byId(section) ?? byId("regions"))?.scrollIntoView();

function writeAddress() {
  const parts = new URLSearchParams();
  if (state.region !== NONE) parts.set("region", regions.key[state.region]);
  if (state.query) parts.set("search", state.query);
  if (state.family) parts.set("family", state.family);
  const hash = parts.toString();
  pending = true;  // our own change must not be read back
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  pending = false;
}
function readAddress() {
  if (pending || !location.hash.includes("=")) return;  // a plain #name is a link to a section
  const parts = new URLSearchParams(location.hash.slice(1));
  const region = regions.key.indexOf(parts.get("region"));
  change({ region: parts.has("region") ? region : NONE, query: parts.get("search") ?? "", family: parts.get("family") ?? "" });
}

const selectionName = () => (state.region === NONE ? "the whole recording" : regions.full[state.region]);
