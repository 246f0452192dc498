// Polls the watcher every second and draws its answer.  Every text is inserted as text, never as markup.
const EVERY_MS = 1000, SLOWEST_MS = 5000, PATIENCE_MS = 8000;
const FEW = 60; // nodes with room for their number
const QUIET = { training: "", ready: "", answered: "✓", done: "✓" }; // what stands at a node in place of its state
const BAD = ["gone", "crashed", "died", "hung", "failed"];
const TROUBLE = [...BAD, "suspected"];
const SAYS = {
  starting: "first round not completed", training: "training", done: "done", asleep: "asleep", suspected: "suspected",
  left: "left", stopped: "stopped before the end", elsewhere: "not watched here",
  ready: "there: training, or waiting for their turn", answered: "have answered in this round",
};
const STATUS = {
  finished: ["The run has ended: finished", "good"], partial: ["The run has ended: partial", "bad"],
  exhausted: ["The run has ended: its budget of privacy is used up", "good"],
  interrupted: ["The run was stopped before its end", "bad"], failed: ["The run has failed", "bad"],
};
const $ = (id) => document.getElementById(id);
let graph = null, watch = null, misses = 0, updates = 0;
const nodes = new Map(), links = new Map(), rows = new Map();

// --- pieces -------------------------------------------------------------------------------------------------------

const shown = (value) => (graph.score.percent ? percent(value) : number(value)); // of a score
const scoreAxis = () => (graph.score.percent ? { format: percent, step: (y) => `${number(100 * y)}\u202f%` } : {});
const capital = (word) => word.charAt(0).toUpperCase() + word.slice(1);
function time(seconds) {
  const s = Math.floor(seconds), two = (n) => String(n).padStart(2, "0");
  return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}` : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
}
function who(id) {
  const role = graph.roles.find((one) => one.first <= id && id < one.first + one.count) ?? { ...graph.roles[0], first: 0 };
  return role.count === 1 && !role.learns ? role.name : `${role.name} ${id - role.first}`;
}
function dot(state) {
  return draw("svg", { class: `dot node s-${state}`, viewBox: "-8 -8 16 16", "aria-hidden": "true" }, draw("circle", { r: 6 }), ...cross(state, 3));
}
function cross(state, r) {
  return BAD.includes(state) ? [draw("path", { class: "cross", d: `M${-r} ${-r}L${r} ${r}M${-r} ${r}L${r} ${-r}` })] : [];
}

// --- the graph ----------------------------------------------------------------------------------------------------

const WIDTH = 640, EDGE = 44;
function drawGraph() {
  const place = document.querySelector("#graph .drawing");
  nodes.clear(); links.clear();
  if (!graph.nodes) {
    const words = "Too many to draw one by one: each state’s share of the peers.";
    return place.replaceChildren(make("div", { class: "share", id: "share", role: "img" }), make("p", { class: "note" }, words));
  }
  const at = graph.nodes.map(([x, y]) => [x * (WIDTH - 2 * EDGE) + EDGE, y * (WIDTH - 2 * EDGE) + EDGE]);
  const low = Math.min(...at.map((p) => p[1])) - EDGE, high = Math.max(...at.map((p) => p[1])) + EDGE;
  const svg = draw("svg", { viewBox: `0 ${low} ${WIDTH} ${Math.max(high - low, 2 * EDGE)}`, role: "img", id: "drawn" });
  for (const [u, v] of graph.edges) {
    const link = draw("line", { class: "link", x1: at[u][0], y1: at[u][1], x2: at[v][0], y2: at[v][1] });
    links.set(`${Math.min(u, v)} ${Math.max(u, v)}`, link);
    svg.append(link);
  }
  const usual = Math.max(4.5, Math.min(20, 100 / Math.sqrt(at.length)));
  const r = graph.coordinator === null ? usual : Math.min(usual, aroundHub(at.length - 1));
  at.forEach(([x, y], id) => {
    if (id === graph.coordinator) return svg.append(drawHub(id, x, y, r));
    const node = draw("g", { class: "node", transform: `translate(${x} ${y})` }, draw("title"), draw("circle", { r }));
    if (at.length <= FEW) {
      const inside = Math.max(9, r * 0.78);
      node.append(draw("text", { class: "id", y: inside * 0.36, "font-size": inside }, String(id)));
      node.append(draw("text", { class: "word", y: r + 16, "font-size": 14 }));
    }
    nodes.set(id, node);
    svg.append(node);
  });
  place.replaceChildren(svg);
}
function showGraph(now) {
  const counts = now.counts.map(([state, count]) => `${count} ${state}`).join(", ");
  if (!graph.nodes) return showShare(now, counts);
  for (const peer of now.peers) {
    const node = nodes.get(peer.id);
    if (!node) continue;
    const label = graph.labels ? ` (${graph.labels[peer.id]})` : "";
    node.setAttribute("class", `node s-${peer.state}`);
    tell(node.querySelector("title"), `${who(peer.id)}${label}: ${peer.state}${peer.round === null ? "" : `, round ${peer.round}`}${peer.note ? ", " + peer.note : ""}`);
    const word = node.querySelector(".word");
    if (word) tell(word, QUIET[peer.state] ?? peer.state);
    if (!word && peer.id !== graph.coordinator) {
      node.querySelector(".cross")?.remove();
      node.append(...cross(peer.state, 3.2));
    }
  }
  const down = new Map(now.down.map(([u, v, word]) => [`${u} ${v}`, word]));
  for (const [key, link] of links) link.setAttribute("class", `link ${down.get(key) || ""}`);
  const what = now.led ? `${now.n} clients around their coordinator` : `The graph of ${now.n} ${graph.roles[0].name}s`;
  const unknown = now.down.filter((link) => link[2] === "unknown").length;
  $("drawn").setAttribute("aria-label", `${what}: ${counts}; ${down.size - unknown} of ${now.links} links not up${unknown ? `, ${unknown} unknown` : ""}.`);
  if (now.led) showHub(now);
}
const COLOUR = (state) => `var(--${BAD.includes(state) ? "bad" : ["left", "stopped", "elsewhere"].includes(state) ? "starting" : state})`;
function showShare(now, counts) {
  $("share").setAttribute("aria-label", `${now.n} ${graph.roles[0].name}s: ${counts}`);
  $("share").replaceChildren(...now.counts.map(([state, count]) => {
    const part = make("div", { title: `${count} ${state}` });
    part.style.flexGrow = count;
    part.style.background = COLOUR(state);
    return part;
  }));
}
function showLegend(now) {
  $("states").replaceChildren(...now.counts.map(([state, count]) => make("li", {}, dot(state), `${count} ${SAYS[state] || state}`)));
  const sorts = new Set(now.down.map((link) => link[2]));
  const words = { down: "link down", missed: `a round went on without its ${now.led ? "update" : "model"}`, suspected: "suspected", unknown: "not known yet" };
  const line = (kind) => draw("svg", { viewBox: "0 0 26 14", "aria-hidden": "true" }, draw("line", { class: `link ${kind}`, x1: 0, y1: 7, x2: 26, y2: 7 }));
  const shown = ["down", "missed", "suspected", "unknown"].filter((kind) => sorts.has(kind));
  $("lines").replaceChildren(...(now.links > now.down.length && graph.nodes ? [make("li", {}, line(""), "link up")] : []), ...shown.map((kind) => make("li", {}, line(kind), words[kind])));
}

// --- charts -------------------------------------------------------------------------------------------------------

const W = 480, H = 216, LEFT = 54, RIGHT = 14, TOP = 8, BOTTOM = 26;
function chart(place, title, why, lines, { log = false, zero = false, format = number, step = format } = {}) {
  const figure = typeof place === "string" ? $(place) : place;
  const all = lines.flatMap((line) => line.points.map((p) => p[1])).filter((y) => !log || y > 0);
  figure.hidden = !all.length;
  if (!all.length) return;
  if (zero) all.push(0);
  const scale = log ? Math.log10 : (y) => y;
  const steps = (log ? decades : ticks)(Math.min(...all), Math.max(...all));
  const low = scale(Math.min(steps[0], ...all)), high = scale(Math.max(steps.at(-1), ...all));
  const end = Math.max(1, ...lines.map((line) => line.points.at(-1)[0]));
  const x = (round) => LEFT + (round / end) * (W - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (scale(value) - low) / (high - low)) * (H - TOP - BOTTOM);
  const svg = draw("svg", { class: "plot", viewBox: `0 0 ${W} ${H}`, role: "img" });
  svg.setAttribute("aria-label", `${title} until round ${end}: ` + lines.map((line) => `${line.name} ${format(line.points.at(-1)[1])}`).join(", "));
  for (const at of steps) {
    svg.append(draw("line", { class: "rule", x1: LEFT, x2: W - RIGHT, y1: y(at), y2: y(at) }));
    svg.append(draw("text", { class: "y", x: LEFT - 8, y: y(at) + 4 }, step(at)));
  }
  svg.append(draw("text", { x: LEFT, y: H - 6 }, "0"), draw("text", { class: "y", x: W - RIGHT, y: H - 6 }, `round ${end}`));
  for (const { colour, dash, points } of lines) {
    const there = points.filter((p) => !log || p[1] > 0), at = (p) => [x(p[0]).toFixed(1), y(p[1]).toFixed(1)];
    if (!there.length) continue;
    const parts = there.length < 3 ? there.map((p) => [p]) : unbroken(there); // between two measurements nothing is known
    const path = parts.filter((part) => part.length > 1).map((part) => "M" + part.map((p) => at(p).join(" ")).join("L")).join("");
    if (path) svg.append(draw("path", { class: "curve", d: path, stroke: colour, "stroke-dasharray": dash }));
    for (const p of new Set([...parts.filter((part) => part.length === 1).map((part) => part[0]), there.at(-1)]))
      svg.append(draw("circle", { class: "end", cx: at(p)[0], cy: at(p)[1], r: 4, fill: colour }));
  }
  const keys = lines.map(({ name, colour, dash, points }) => make("li", {}, draw("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" },
    draw("line", { x1: 1, x2: 25, y1: 5, y2: 5, stroke: colour, "stroke-width": 2.4, "stroke-dasharray": dash })), `${name} ${format(points.at(-1)[1])}`));
  figure.replaceChildren(make("ul", { class: "keys" }, ...keys), svg, make("figcaption", {}, make("b", {}, `${title}. `), why));
}
function column(curve, place) {
  return curve.filter((point) => (point[place] ?? null) !== null).map((point) => [point[0], point[place]]);
}
function showCharts(now) {
  if (now.led) return showLedCharts(now);
  const { score, loss, distance } = now.curves;
  const kept = (lines) => lines.filter((line) => line.points.length);
  const blue = "var(--training)", green = "var(--mean)", orange = "var(--worst)";
  if (score.length) {
    chart("score", `Test ${graph.score.word}`, "What a server would publish, and what the peers hold." + graph.score.note, kept([
      { name: "averaged model", colour: blue, dash: "none", points: column(score, 1) },
      { name: "mean peer", colour: green, dash: "7 4", points: column(score, 2) },
      { name: "worst peer", colour: orange, dash: "2 4", points: column(score, 3) },
    ]), scoreAxis());
  } else {
    chart("score", "Loss", "The mean over the peers, and the averaged model’s on the test set.", kept([
      { name: "on the peers’ own data", colour: blue, dash: "none", points: column(loss, 1) },
      { name: "of the averaged model", colour: orange, dash: "7 4", points: column(loss, 2) },
    ]));
  }
  chart("distance", "Consensus distance", "How far the peers’ models are from their mean.", kept([
    { name: "forecast before the run, at least", colour: green, dash: "2 4", points: column(distance, 2) },
    { name: "at most", colour: green, dash: "7 4", points: column(distance, 3) },
    { name: "by what was measured ten rounds before, at least", colour: orange, dash: "2 4", points: column(distance, 4) },
    { name: "at most", colour: orange, dash: "7 4", points: column(distance, 5) },
    { name: "after mixing", colour: blue, dash: "none", points: column(distance, 1) }]), { log: true });
}

function showLogged(now) {
  $("own").hidden = !now.logged.length;
  while ($("logged").children.length < now.logged.length) $("logged").append(make("figure"));
  now.logged.forEach(([name, points], place) => {
    const apart = points.some((point) => point[2] !== point[3]);
    const lines = [{ name: "mean", colour: "var(--training)", dash: "none", points: column(points, 1) }];
    if (apart) lines.push({ name: `lowest ${graph.roles[0].name}`, colour: "var(--worst)", dash: "2 4", points: column(points, 2) }, { name: "highest", colour: "var(--mean)", dash: "7 4", points: column(points, 3) });
    chart($("logged").children[place], name, "By round: the mean of what was measured or logged.", lines);
  });
}

// --- words and tables ---------------------------------------------------------------------------------------------

function showHead(now) {
  tell($("name"), graph.name);
  document.title = `${now.round}/${now.rounds || "?"} ${graph.name} – fedgossip watch`;
  tell($("lead"), [graph.graph && graph.graph !== graph.name ? graph.graph : "", now.led ? `${now.n} clients` : `${now.n} peers`, now.links && !now.led ? `${now.links} links` : "", now.driver].filter(Boolean).join(" · "));
  const [words, kind] = now.status ? STATUS[now.status] || [`The run has ended: ${now.status}`, "bad"]
    : now.read < 1 ? [`reading, ${Math.floor(100 * now.read)} %`, "live"] : ["running", "live"];
  status(words, kind);
  document.body.classList.toggle("ended", Boolean(now.status));
  tell($("elapsed"), time(now.seconds) + (now.status ? " in all" : ""));
  tell($("pace"), !now.pace ? "" : `${number(now.pace)} rounds/s`);
  tell($("quiet"), !now.status && now.quiet > 10 ? `nothing new for ${time(now.quiet)}` : "");
  const bar = $("bar");
  bar.hidden = !now.rounds;
  bar.setAttribute("aria-valuemax", now.rounds);
  bar.setAttribute("aria-valuenow", now.round);
  bar.firstChild.style.width = `${Math.min(100, (100 * now.round) / (now.rounds || 1))}%`;
}
function status(words, kind) {
  tell($("status"), words);
  $("status").className = kind;
}
const of = (round, now) => (round === null || round === now.round ? "" : `, round ${round}`); // of a measurement that is not of now
function showCards(now) {
  if (now.led) return cards(ledCards(now));
  const told = [["rounds", String(now.round), now.rounds ? `of ${now.rounds}` : "completed by all peers"]];
  if (now.averaged !== null) told.push(...[["averaged model", now.averaged], ["mean peer", now.mean], ["worst peer", now.worst]].map(([who, value]) => [who, shown(value), `test ${graph.score.word}` + of(now.tested, now)]));
  else if (now.loss !== null) told.push(["loss", number(now.loss), "of the averaged model" + of(now.tested, now)]);
  told.push(["disagreement", number(now.distance), "consensus distance" + of(now.measured, now)], ["sent", size(now.bytes), "by all peers"]);
  cards(told);
}
function cards(shown) {
  $("cards").replaceChildren(...shown.map(([what, value, note]) => make("div", {}, make("dt", {}, what), make("dd", { class: "value" }, value), make("dd", { class: "note" }, note))));
}
function showPeers(now) {
  const body = $("peers"), there = new Set();
  now.peers.forEach((peer, place) => {
    there.add(peer.id);
    let row = rows.get(peer.id);
    if (!row) {
      row = make("tr", {}, make("th", { scope: "row" }), make("td"));
      for (let i = 0; i < 7; i++) row.append(make("td", { class: "number" }));
      row.append(make("td", { class: "said" }));
      rows.set(peer.id, row);
    }
    if (body.children[place] !== row) body.insertBefore(row, body.children[place] || null);
    fill(row, peer, now);
  });
  for (const [id, row] of rows) if (!there.has(id)) { row.remove(); rows.delete(id); }
  $("others").hidden = !now.others;
  tell($("others"), `These are the ${now.peers.length} most in need of a look; ${now.others} more are not listed.`);
}
function fill(row, peer, now) {
  row.className = TROUBLE.includes(peer.state) ? "trouble" : "";
  row.dataset.peer = peer.id;
  const label = graph.labels ? `${peer.id} ${graph.labels[peer.id] ?? ""}` : String(peer.id);
  const name = peer.id === graph.coordinator || (graph.coordinator === null && graph.roles.length > 1) ? who(peer.id) : label;
  const links = peer.links ? peer.links.replace("/", " / ") : NONE;
  const round = peer.round === null ? NONE : now.rounds ? `${peer.round} / ${now.rounds}` : String(peer.round);
  const score = shown(peer.score) + (peer.score === null || peer.round === null ? "" : of(peer.tested, peer));
  const cells = [name, peer.state, round, number(peer.loss), score,
    now.led ? turns(peer) : peer.waiting === null ? NONE : Math.round(100 * peer.waiting) + "\u202f%", size(peer.sent), size(peer.received), links, peer.note];
  cells.forEach((text, place) => {
    const cell = row.children[place];
    if (place !== 1) return tell(cell, text);
    if (cell.dataset.state !== text) { cell.dataset.state = text; cell.replaceChildren(dot(text), text); }
  });
}
function showEvents(now) {
  $("events").replaceChildren(...now.events.map((event) => make("li", {}, make("span", {}, event.round === null ? "" : `round ${event.round}`), make("span", {}, who(event.peer)), make("b", {}, event.text))));
  const more = now.seen - now.events.length;
  tell($("seen"), !now.seen ? "Nothing out of the ordinary so far." : more > 0 ? `${now.seen} in all. Here are the newest, without those that only repeat who is missed.` : "");
  if (now.unreadable) $("seen").append(` ${now.unreadable} lines could not be read.`);
}

// --- asking -------------------------------------------------------------------------------------------------------

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}
async function news() {
  const now = await ask("state.json");
  if (now.watch !== watch || !graph || now.n > graph.n) { // another watcher took this port, or unexpected peers joined
    graph = await ask("graph.json");
    watch = graph.watch;
    rows.forEach((row) => row.remove());
    rows.clear();
    if (graph.coordinator !== null) dress();
    drawGraph();
  }
  return now;
}
function show(now) {
  for (const part of [showHead, showCards, showGraph, showLegend, showCharts, showLogged, showPeers, showEvents]) part(now);
  document.body.dataset.updates = ++updates;
}
const LOST = "Connection lost: the watcher does not answer. The run may well go on. Start fedgossip watch again with the same --port, and this page goes on by itself.";
async function loop() {
  const now = await news().catch(() => null);
  misses = now ? 0 : misses + 1;
  if (now) show(now);
  else status("connection lost", "bad");
  tell($("notice"), now ? now.lacking.join(" ") : LOST);
  $("notice").hidden = Boolean(now) && !now.lacking.length;
  document.body.classList.toggle("lost", misses > 0);
  setTimeout(loop, Math.min(SLOWEST_MS, EVERY_MS * (1 + misses)));
}
loop();
