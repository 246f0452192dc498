// Curves of several runs in common axes.  A line: { name, colour, dash, points: [[x, y]...], raw }.
const W = innerWidth < 600 ? 480 : 960, H = 400, PLOT = { x: 62, y: 22, width: W - 78, height: 340 }; // on a phone letters stay readable
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7c8795", "#b2577a"]; // Okabe and Ito, without the yellow
const DASHES = ["none", "7 4", "2 4", "9 4 2 4"];

function smoothed(points, share) { // a moving mean with exponential weights, which are put right at its beginning
  let mean = 0, weight = 0;
  return points.map(([x, y]) => {
    mean = share * mean + (1 - share) * y;
    weight = share * weight + (1 - share);
    return [x, mean / weight];
  });
}
function range(values) {
  let low = Infinity, high = -Infinity; // no Math.min(...): there may be more values than arguments
  for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
  return [low, high];
}
function axis(low, high, log) {
  const scale = log ? Math.log10 : (value) => value, back = log ? (value) => 10 ** value : (value) => value;
  const [from, to] = low < high ? [scale(low), scale(high)] : log ? [scale(low) - 0.5, scale(low) + 0.5] : [low - (Math.abs(low) || 1) / 2, low + (Math.abs(low) || 1) / 2];
  return { share: (value) => (scale(value) - from) / (to - from), at: (share) => back(from + share * (to - from)), log };
}
function marks({ share, at, log }, view) {
  const [from, to] = view.map(at), places = (log && to / from > 3 ? decades : ticks)(from, to);
  return places.map((place) => [place, (share(place) - view[0]) / (view[1] - view[0])]).filter(([, part]) => part >= -1e-9 && part <= 1 + 1e-9);
}
// Draws into `place`; shownX(x) says a value of the axis; label, xLabel: what the axes are.  Returns the drawing, to be enlarged.
function plot(place, lines, { log, view, shownX, label, xLabel }) {
  const visible = (points) => (log ? points.filter((point) => point[1] > 0) : points);
  const drawn = lines.map((line) => ({ ...line, points: visible(line.points), raw: visible(line.raw) }));
  const all = drawn.flatMap((line) => line.raw.concat(line.points));
  if (!all.length) return place.replaceChildren(make("p", { class: "note" }, "None of the chosen runs has this curve."));
  const x = axis(...range(all.map((point) => point[0])), false), y = axis(...range(all.map((point) => point[1])), log);
  const inX = (value) => PLOT.x + (x.share(value) - view.x[0]) / (view.x[1] - view.x[0]) * PLOT.width;
  const inY = (value) => PLOT.y + (1 - (y.share(value) - view.y[0]) / (view.y[1] - view.y[0])) * PLOT.height;
  const svg = draw("svg", { class: "plot", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${label}: ` + drawn.map((line) => `${line.name} ${number(line.points.at(-1)?.[1])}`).join(", ") });
  svg.append(draw("clipPath", { id: "inside" }, draw("rect", PLOT)));
  for (const [value, part] of marks(y, view.y)) {
    const at = PLOT.y + (1 - part) * PLOT.height;
    svg.append(draw("line", { class: "rule", x1: PLOT.x, x2: PLOT.x + PLOT.width, y1: at, y2: at }), draw("text", { class: "y", x: PLOT.x - 8, y: at + 4 }, number(value)));
  }
  for (const [value, part] of marks(x, view.x))
    svg.append(draw("text", { class: "x", x: PLOT.x + part * PLOT.width, y: PLOT.y + PLOT.height + 18 }, shownX(value)));
  svg.append(draw("text", { class: "x", x: PLOT.x + PLOT.width / 2, y: PLOT.y + PLOT.height + 34 }, xLabel), draw("text", { class: "y-name", x: PLOT.x, y: PLOT.y - 6 }, label));
  const inside = draw("g", { "clip-path": "url(#inside)" });
  const stretches = (points) => (xLabel === "rounds" ? unbroken(points) : [points]); // seconds and bytes are uneven by themselves
  const path = (points) => stretches(points).map((part) => "M" + part.map(([a, b]) => `${inX(a).toFixed(1)} ${inY(b).toFixed(1)}`).join("L")).join("");
  for (const { id, colour, dash, points, raw } of drawn) {
    if (!points.length) continue;
    if (points.length === 1) inside.append(draw("circle", { "data-run": id, cx: inX(points[0][0]), cy: inY(points[0][1]), r: 4, fill: colour }));
    else if (raw.length) inside.append(draw("path", { class: "curve raw", d: path(raw), stroke: colour }));
    if (points.length > 1) inside.append(draw("path", { class: "curve", "data-run": id, d: path(points), stroke: colour, "stroke-dasharray": dash }));
  }
  svg.append(inside);
  place.replaceChildren(svg);
  return svg;
}
