// A federated run: its coordinator in the middle, one model, and clients that answer round by round.

const LED_HEADS = ["client", "state", "last round", "loss", "score", "rounds", "sent", "received", "links up", "reports"];
function dress() {
  document.body.classList.add("led");
  tell($("who"), "Clients");
  LED_HEADS.forEach((head, place) => tell($("heads").children[place], head === "score" ? graph.score.word : head));
  $("clear").hidden = !graph.clear;
}
function aroundHub(clients) { // the radius with which so many just stand apart on the circle
  return Math.max(2, (0.42 * Math.PI * (WIDTH - 2 * EDGE)) / clients);
}
function drawHub(id, x, y, r) {
  const large = Math.max(26, 1.5 * r);
  const node = draw("g", { class: "node", transform: `translate(${x} ${y})` }, draw("title"), draw("circle", { r: large }));
  node.append(draw("text", { class: "id", id: "hub", y: 5, "font-size": 15 }));
  node.append(draw("text", { class: "word", y: large + 17, "font-size": 14 }, "coordinator"));
  nodes.set(id, node);
  return node;
}
function showHub(now) {
  tell($("hub"), now.status || graph.wanted === null || now.led.answered === null ? String(now.round) : `${now.led.answered}/${graph.wanted}`);
  tell(nodes.get(graph.coordinator).querySelector(".word"), "coordinator");
}
function turns(peer) {
  return peer.id === graph.coordinator ? NONE : peer.round === null ? NONE : String(peer.turns);
}
function ledCards(now) {
  const { contributions, answered, abandoned, mean, worst } = now.led;
  const told = [["rounds", String(now.round), now.rounds ? `of ${now.rounds}` : "behind the coordinator"]];
  if (now.averaged !== null) told.push(["global model", shown(now.averaged), `test ${graph.score.word}` + of(now.tested, now)]);
  else if (now.loss !== null) told.push(["global model", number(now.loss), "loss" + of(now.tested, now)]);
  if (mean !== null) told.push(["at the clients", shown(mean), `mean ${graph.score.word}` + (worst === null ? "" : `, worst ${shown(worst)}`)]);
  if (!now.status && graph.wanted !== null && answered !== null) told.push(["answered", String(answered), `of ${graph.wanted} in this round`]);
  if (contributions !== null) told.push(["contributions", String(contributions), "in the last round"]);
  return [...told, ["abandoned", String(abandoned), "rounds that changed nothing"], ["sent", size(now.bytes), "by all"]];
}
function showLedCharts(now) {
  const { score, loss, clients, contributions } = now.curves;
  const kept = (lines) => lines.filter((line) => line.points.length);
  const blue = "var(--training)", green = "var(--mean)", orange = "var(--worst)";
  if (score.length) {
    const why = clients.length ? "Of the global model: on the test set, and at the clients." : "Of the global model, on the test set.";
    chart("score", capital(graph.score.word), why + graph.score.note, kept([
      { name: "global model", colour: blue, dash: "none", points: column(score, 1) },
      { name: "mean client", colour: green, dash: "7 4", points: column(clients, 1) },
      { name: "worst client", colour: orange, dash: "2 4", points: column(clients, 2) },
    ]), scoreAxis());
  } else {
    chart("score", "Loss", "The mean over the clients that took part, and the global model’s on the test set.", kept([
      { name: "on the clients’ own data", colour: blue, dash: "none", points: column(loss, 1) },
      { name: "of the global model", colour: orange, dash: "7 4", points: column(loss, 2) },
    ]));
  }
  chart("distance", "Contributions", "Updates in the sum of each round; none where it was abandoned.", kept([
    { name: "contributions", colour: blue, dash: "none", points: column(contributions, 1) }]), { zero: true });
}
