// Asks the board for what is new and shows it.  What is chosen stands in the address after "#": it can be kept and sent.
const EVERY_MS = 2000, SOON_MS = 150, SLOWEST_MS = 10000, PATIENCE_MS = 15000;
const SHOWN = 200, CHOSEN_MAX = 24;
const METRICS = { score_averaged: "score", score_mean_peer: "mean peer’s score", score_worst_peer: "worst peer’s score", loss: "training loss", test_loss: "test loss", consensus_distance: "consensus distance" };
const LOGGED = "logged:"; // before the name of a number that loops have logged
const called = (metric) => METRICS[metric] ?? metric.slice(LOGGED.length);
const USUAL = ["status", "graph", "algorithm", "n", "rounds", "score", "worst_peer", "bytes_sent", "seconds", "changed"];
const WORDS = { n: "members", bytes_sent: "sent", seconds: "time", worst_peer: "worst peer", mean_peer: "mean peer", test_loss: "test loss", consensus_distance: "consensus distance", wall_seconds: "wall time", rounds_abandoned: "abandoned" };
const $ = (id) => document.getElementById(id);
const runs = new Map(), rows = new Map(), courses = new Map();
let board = "", version = 0, now = 0, misses = 0, updates = 0, limit = SHOWN;
const state = { runs: [], filter: "", sort: "-changed", columns: [], metric: "score_averaged", over: 0, smooth: 0, log: false, view: WHOLE };

// --- what is chosen -----------------------------------------------------------------------------------------------

function read() {
  const words = new URLSearchParams(location.hash.slice(1)), list = (name) => (words.get(name) ?? "").split(",").filter(Boolean);
  const view = list("view").map(Number);
  Object.assign(state, {
    runs: list("runs").slice(0, CHOSEN_MAX), filter: words.get("filter") ?? "", sort: words.get("sort") || "-changed", columns: list("columns"),
    metric: words.get("metric") in METRICS || words.get("metric")?.startsWith(LOGGED) ? words.get("metric") : "score_averaged", over: Math.max(0, ["rounds", "bytes", "seconds"].indexOf(words.get("over"))),
    smooth: Math.min(0.98, Math.max(0, Number(words.get("smooth")) || 0)), log: words.get("log") === "1",
    view: view.length === 4 && view.every(Number.isFinite) ? { x: within(view[0], view[1]), y: within(view[2], view[3]) } : WHOLE,
  });
}
function keep() {
  const words = new URLSearchParams();
  const said = { runs: state.runs.join(","), filter: state.filter, sort: state.sort === "-changed" ? "" : state.sort, columns: state.columns.join(","), metric: state.metric === "score_averaged" ? "" : state.metric,
    over: ["", "bytes", "seconds"][state.over], smooth: state.smooth || "", log: state.log ? "1" : "", view: isWhole(state.view) ? "" : [...state.view.x, ...state.view.y].map((part) => Number(part.toPrecision(6))).join(",") };
  for (const [key, value] of Object.entries(said)) if (value) words.set(key, value);
  history.replaceState(null, "", `#${words}`);
}
function change(...changes) {
  Object.assign(state, ...changes);
  keep();
  show();
}

// --- the table ----------------------------------------------------------------------------------------------------

const value = (run, key) => (key === "name" ? run.name || run.folder : key === "folder" ? run.folder : key === "changed" ? run.changed : run.facts?.[key] ?? run.settings?.[key]) ?? null;
const word = (key) => WORDS[key] ?? key;
function shown(key, what) {
  if (what === null) return NONE;
  if (key === "changed") return ago(now - what);
  if (key === "bytes_sent") return size(what);
  if (key === "seconds" || key === "wall_seconds") return time(what);
  if (key === "digest") return String(what).slice(0, 12);
  return typeof what === "number" && !Number.isInteger(what) ? number(what) : String(what);
}
function time(seconds) {
  const all = Math.max(0, seconds), two = (n) => String(Math.floor(n)).padStart(2, "0");
  return all < 60 ? `${number(all)}\u202fs` : all < 3600 ? `${Math.floor(all / 60)}:${two(all % 60)}` : `${Math.floor(all / 3600)}:${two((all / 60) % 60)}:${two(all % 60)}`;
}
function ago(seconds) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) if (seconds >= length) return `${Math.floor(seconds / length)}\u202f${unit} ago`;
  return "just now";
}
const TESTS = { "=": (a, b) => a === b, "!=": (a, b) => a !== b, "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b };
function terms(filter) { // words are parted by spaces; what has spaces itself stands in quotation marks
  return (filter.match(/(?:[^\s"]|"[^"]*"?)+/g) ?? []).map((term) => {
    const [, key, test, wanted] = /^([^\s=<>!~"]+)(!=|<=|>=|=|<|>|~)(.*)$/s.exec(term) ?? [null, null, "~", term];
    return { key, test, wanted: wanted.replaceAll('"', "") };
  });
}
function fits(run, { key, test, wanted }) {
  if (key === null) return [run.name, run.folder, run.facts?.graph, run.facts?.algorithm, run.facts?.status].some((text) => String(text ?? "").toLowerCase().includes(wanted.toLowerCase()));
  const found = value(run, key);
  if (test === "~") return found !== null && String(found).toLowerCase().includes(wanted.toLowerCase());
  if (found === null) return test === "!=";
  if (typeof found === "number" && wanted !== "" && !Number.isNaN(Number(wanted))) return TESTS[test](found, Number(wanted));
  return test === "=" || test === "!=" ? TESTS[test](String(found).toLowerCase(), wanted.toLowerCase()) : false;
}
function sorted(found) {
  const key = state.sort.replace(/^-/, ""), turn = state.sort.startsWith("-") ? -1 : 1;
  const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  return found.map((run) => [value(run, key), run]).sort(([a, one], [b, other]) => (a === null || b === null ? (a === null) - (b === null) : turn * order(a, b)) || (one.folder < other.folder ? -1 : 1)).map(([, run]) => run);
}
const columns = () => ["name", ...state.columns, ...USUAL.filter((key) => key === "changed" || known.includes(key))];
let known = [];
function findKeys() {
  const found = new Set();
  for (const run of runs.values()) for (const part of [run.facts, run.settings]) for (const key in part ?? {}) found.add(key);
  known = [...found].sort();
  const more = known.filter((key) => !USUAL.includes(key) && !state.columns.includes(key)), offered = more.join(" ");
  if ($("column").dataset.offered === offered) return; // unchanged options stay: a reader may be choosing
  $("column").dataset.offered = offered;
  $("keylist").replaceChildren(...known.map((key) => make("option", { value: `${key}=` })));
  $("column").replaceChildren(make("option", { value: "" }, "…"), ...more.map((key) => make("option", { value: key }, word(key))));
}
function showTable() {
  findKeys();
  const shownKeys = columns(), asked = terms(state.filter), found = sorted([...runs.values()].filter((run) => asked.every((term) => fits(run, term))));
  const strange = asked.filter(({ key }) => key !== null && !["name", "folder", "changed", ...known].includes(key)).map(({ key }) => key);
  tell($("found"), strange.length ? `No run has the key ${strange.join(", ")}.` : asked.length ? `${found.length} of ${runs.size} runs.` : "");
  if ($("heads").dataset.keys !== shownKeys.join(" ")) heads(shownKeys);
  const numbers = new Set(shownKeys.filter((key) => key !== "changed" && found.some((run) => typeof value(run, key) === "number")));
  for (const head of $("heads").children) if (head.dataset.key) {
    head.className = numbers.has(head.dataset.key) ? "number" : "";
    if (state.sort === head.dataset.key) head.setAttribute("aria-sort", "ascending");
    else if (state.sort === "-" + head.dataset.key) head.setAttribute("aria-sort", "descending");
    else head.removeAttribute("aria-sort");
  }
  const body = $("rows"), there = new Set();
  found.slice(0, limit).forEach((run, place) => {
    there.add(run.id);
    const line = rows.get(run.id) ?? begin(run.id, shownKeys.length);
    if (body.children[place] !== line) body.insertBefore(line, body.children[place] || null);
    fill(line, run, shownKeys, numbers);
  });
  for (const [id, line] of rows) if (!there.has(id)) { line.remove(); rows.delete(id); }
  $("further").hidden = found.length <= limit;
  tell($("further"), `Show ${Math.min(SHOWN, found.length - limit)} more of ${found.length - limit}`);
}
function heads(shownKeys) {
  $("heads").dataset.keys = shownKeys.join(" ");
  $("heads").replaceChildren(make("th", { scope: "col" }), ...shownKeys.map((key) => {
    const sort = make("button", { type: "button" }, key === "name" ? "run" : word(key));
    sort.addEventListener("click", () => change({ sort: state.sort === "-" + key ? key : state.sort === key ? "-" + key : key === "name" ? key : "-" + key }));
    const head = make("th", { scope: "col", "data-key": key }, sort);
    if (state.columns.includes(key)) {
      const drop = make("button", { type: "button", class: "drop", "aria-label": `leave out ${word(key)}` }, "×");
      drop.addEventListener("click", () => change({ columns: state.columns.filter((other) => other !== key) }));
      head.append(drop);
    }
    return head;
  }));
  rows.forEach((line) => line.remove());
  rows.clear();
}
function begin(id, count) {
  const box = make("input", { type: "checkbox", "aria-label": "choose" });
  box.addEventListener("change", () => choose(id, box.checked));
  const line = make("tr", { "data-run": id }, make("td", {}, box), make("td", {}, make("a", { href: `/watch/${id}/` }), make("small", {}, make("a", { href: `/report/${id}`, target: "_blank", rel: "noopener" }, "report"))));
  for (let i = 1; i < count; i++) line.append(make("td"));
  rows.set(id, line);
  return line;
}
function fill(line, run, shownKeys, numbers) {
  const chosen = state.runs.includes(run.id);
  line.className = chosen ? "chosen" : "";
  line.firstChild.firstChild.checked = chosen;
  const [watch, small] = line.children[1].children;
  tell(watch, run.name && !run.folder.startsWith(run.name) ? `${run.name} – ${run.folder}` : run.folder);
  watch.title = `watch ${run.folder}`;
  small.hidden = !run.report;
  shownKeys.slice(1).forEach((key, place) => {
    const what = value(run, key), cell = line.children[place + 2];
    tell(cell, run.facts ? shown(key, what) : "…");
    cell.className = numbers.has(key) ? "number" : "";
  });
}
function choose(id, chosen) {
  const others = state.runs.filter((other) => other !== id);
  change({ runs: chosen ? [...others, id].slice(-CHOSEN_MAX) : others });
  if (chosen) look();
}

// --- curves -------------------------------------------------------------------------------------------------------

const named = (id) => { const run = runs.get(id); return run ? run.name || run.folder : "…"; };
const look_of = (place) => ({ colour: COLOURS[place % COLOURS.length], dash: DASHES[(place + Math.floor(place / COLOURS.length)) % DASHES.length] });
let zoom = null;
function showCurves() {
  $("curves").hidden = !state.runs.length;
  if (!state.runs.length) return;
  const names = state.runs.map(named), twice = new Set(names.filter((name, place) => names.indexOf(name) !== place));
  const lines = state.runs.map((id, place) => {
    const points = (courses.get(id)?.lines[state.metric] ?? []).map((point) => [point[state.over], point[3]]);
    const name = twice.has(names[place]) ? runs.get(id)?.folder ?? names[place] : names[place];
    return { id, name, ...look_of(place), raw: state.smooth ? points : [], points: state.smooth ? smoothed(points, state.smooth) : points };
  });
  const metrics = new Set(state.runs.map((id) => runs.get(id)?.facts?.metric).filter(Boolean));
  offer();
  for (const option of $("metric").options) tell(option, option.value.startsWith("score") && metrics.size ? called(option.value).replace("score", metrics.size === 1 ? [...metrics][0] : "score (not the same metric)") : called(option.value));
  const svg = plot($("plot"), lines, { log: state.log, view: state.view, shownX: [number, size, time][state.over], label: called(state.metric), xLabel: ["rounds", "bytes sent", "seconds"][state.over] });
  zoom = svg ? zoomable(svg, PLOT, (view) => { change({ view }); $("plot").querySelector("svg")?.focus({ preventScroll: true }); }, state.view) : null;
  $("all").hidden = isWhole(state.view);
  $("keys").replaceChildren(...lines.map(({ id, name, colour, dash, points }) => {
    const drop = make("button", { type: "button", "aria-label": `do not show ${name}` }, "×"), share = courses.get(id)?.read ?? 0;
    drop.addEventListener("click", () => choose(id, false));
    return make("li", {}, draw("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, draw("line", { x1: 1, x2: 25, y1: 5, y2: 5, stroke: colour, "stroke-width": 2.4, "stroke-dasharray": dash })),
      `${name} ${number(points.at(-1)?.[1])}${share < 1 ? `, ${Math.floor(100 * share)} % read` : ""}`, drop);
  }));
  const folders = state.runs.map((id) => runs.get(id)?.folder).filter(Boolean);
  tell($("compare"), folders.length > 1 ? `These on one page to keep, in the board’s folder: fedgossip report ${folders.map(quoted).join(" ")} --out comparison.html` : "");
}
function offer() { // the curves that there always are, and what the loops of the chosen runs have logged
  const logged = state.runs.flatMap((id) => Object.keys(courses.get(id)?.lines ?? {})).concat(state.metric).filter((name) => name.startsWith(LOGGED));
  const names = [...Object.keys(METRICS), ...new Set(logged)];
  if ([...$("metric").options].map((option) => option.value).join("\n") === names.join("\n")) return; // a reader may be choosing
  $("metric").replaceChildren(...names.map((name) => make("option", { value: name }, called(name))));
  $("metric").value = state.metric;
}
const quoted = (text) => (/^[\w./:@%+,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// --- asking -------------------------------------------------------------------------------------------------------

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}
async function table() {
  const told = await ask(`runs.json?board=${board}&since=${version}`);
  if (told.board !== board) { // another board took this port
    for (const one of [runs, courses]) one.clear();
    board = told.board;
  }
  for (const run of told.runs) runs.set(run.id, run);
  for (const id of told.gone) runs.delete(id);
  [version, now] = [told.version, told.now];
  tell($("folder"), told.folder);
  document.title = `${told.count} runs – fedgossip board`;
  tell($("status"), told.overfull ? `${told.count} runs, and more than a board has room for` : `${told.count} ${told.count === 1 ? "run" : "runs"}`);
  const going = [...runs.values()].filter((run) => run.facts?.status === "running").length;
  tell($("going"), going ? `${going} running` : "");
  $("going").className = "live";
  tell($("unread"), told.unread || told.more ? `reading, ${told.unread} to go` : "");
  if (told.runs.length || told.gone.length) show();
  return told.more ? SOON_MS : told.unread ? 2 * SOON_MS : EVERY_MS;
}
async function look() {
  if (!state.runs.length) return EVERY_MS;
  const asked = state.runs.map((id) => `run=${id}:${courses.get(id)?.version ?? ""}`).join("&");
  const told = await ask(`curves.json?${asked}`);
  for (const [id, course] of Object.entries(told.runs)) courses.set(id, course);
  if (Object.keys(told.runs).length) showCurves();
  return state.runs.some((id) => (courses.get(id)?.read ?? 0) < 1 && runs.has(id)) ? SOON_MS : EVERY_MS;
}
function show() {
  for (const [id, what] of [["filter", state.filter], ["metric", state.metric], ["over", String(state.over)], ["smooth", String(state.smooth)]]) if ($(id).value !== what) $(id).value = what;
  tell($("smoothed"), state.smooth ? state.smooth.toFixed(2) : "");
  $("log").checked = state.log;
  showTable();
  showCurves();
}
const LOST = "Connection lost: the board does not answer. Start fedgossip board again with the same --port, and this page goes on by itself.";
async function loop() {
  let wait = null;
  try {
    wait = await table();
    wait = Math.min(wait, await look());
  } catch { wait = null; }
  misses = wait === null ? misses + 1 : 0;
  $("notice").hidden = !misses;
  if (misses) tell($("notice"), LOST);
  document.body.classList.toggle("lost", misses > 0);
  document.body.dataset.updates = ++updates;
  setTimeout(loop, wait ?? Math.min(SLOWEST_MS, EVERY_MS * (1 + misses)));
}
for (const form of ["controls", "sieve"]) $(form).addEventListener("submit", (event) => event.preventDefault());
$("filter").addEventListener("input", () => { limit = SHOWN; change({ filter: $("filter").value }); });
$("column").addEventListener("change", () => $("column").value && change({ columns: [...state.columns, $("column").value] }));
$("metric").addEventListener("change", () => change({ metric: $("metric").value, view: WHOLE }));
$("over").addEventListener("change", () => change({ over: Number($("over").value), view: WHOLE }));
$("smooth").addEventListener("input", () => change({ smooth: Number($("smooth").value) }));
$("log").addEventListener("change", () => change({ log: $("log").checked, view: WHOLE }));
$("all").addEventListener("click", () => zoom?.whole());
$("none").addEventListener("click", () => change({ runs: [] }));
$("further").addEventListener("click", () => { limit += SHOWN; showTable(); });
addEventListener("hashchange", () => { read(); show(); look().catch(() => null); });
read();
offer();
loop();
