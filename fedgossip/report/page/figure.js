"use strict";
// What all pages draw with: pieces, numbers for people, the marks of an axis, and zoom.  Texts go in as text, never as markup.
const NONE = "–";
const SVG = ["http:", "", "www.w3.org", "2000", "svg"].join("/"); // a name; nothing is asked there

function make(name, attributes = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}
function draw(name, attributes = {}, ...inside) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}
function tell(element, text) {
  if (element.textContent !== text) element.textContent = text; // what did not change is not announced again
}
function number(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5)) return String(Number(value.toPrecision(3)));
  const [mantissa, power] = value.toExponential(1).split("e");
  const ten = "10" + [...String(Number(power))].map((digit) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(digit)]).join("");
  return Number(mantissa) === 1 ? ten : `${Number(mantissa)}\u202f·\u202f${ten}`;
}
const percent = (value) => (value === null || value === undefined ? NONE : (100 * value).toFixed(1) + "\u202f%");
function size(bytes) {
  if (bytes === null) return NONE;
  for (const [unit, length] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (bytes >= length) return (bytes / length).toFixed(bytes >= 100 * length ? 0 : 1) + "\u202f" + unit;
  return bytes + "\u202fB";
}

// --- axes ---------------------------------------------------------------------------------------------------------

function ticks(low, high) {
  if (high - low < 1e-9 * Math.max(Math.abs(high), 1e-9)) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let i = Math.floor(low / step + 1e-9); found.length < 12; i++) {
    found.push(Number((i * step).toPrecision(12)));
    if (i * step >= high - 1e-9 * step) break;
  }
  return found;
}
function decades(low, high) { // 1, 2, 5 times powers of ten around the values; of many, only the powers
  const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high) + 1e-9), many = Math.ceil((to - from) / 5);
  const fine = [], powers = [];
  for (let power = from; power <= to; power++) {
    if ((power - from) % many === 0) powers.push(Number(`1e${power}`));
    for (const m of [1, 2, 5]) fine.push(Number(`${m}e${power}`));
  }
  if (to - from > 2) return powers;
  const first = fine.findLastIndex((at) => at <= low), last = fine.findIndex((at) => at >= high);
  return fine.slice(first, Math.max(last, first + 1) + 1);
}

// --- zoom ---------------------------------------------------------------------------------------------------------

const WHOLE = { x: [0, 1], y: [0, 1] }; // of the plot: shares of its width and height, from below left
const LEAST = 1e-5, MOVED = 6; // the smallest share that is shown; a shorter way of the pointer is a click
const within = (a, b) => { const side = Math.min(1, Math.max(LEAST, b - a)), from = Math.min(1 - side, Math.max(0, a)); return [from, from + side]; };
// Drag over the plot: what is marked fills it; a flat mark keeps the height.  A double click, Escape or 0 shows all again,
// + and - zoom about the middle, arrows move.  frame: the plot within the drawing, { x, y, width, height } in its units.
// show(view): draw what lies in the view, shares of the whole plot.
function zoomable(svg, frame, show, view = WHOLE) {
  const band = draw("rect", { class: "band", hidden: "" });
  let from = null;
  const at = (event) => {
    const point = new DOMPoint(event.x, event.y).matrixTransform(svg.getScreenCTM().inverse());
    return [Math.min(1, Math.max(0, (point.x - frame.x) / frame.width)), Math.min(1, Math.max(0, 1 - (point.y - frame.y) / frame.height))];
  };
  const go = (x, y) => { view = { x: within(...x), y: within(...y) }; show(view); };
  const share = ([low, high], part) => low + part * (high - low);
  const flat = (to) => Math.abs(to[1] - from[1]) * frame.height < MOVED;
  const mark = (to) => {
    const [low, high] = flat(to) ? [0, 1] : [Math.min(from[1], to[1]), Math.max(from[1], to[1])];
    const place = { x: frame.x + Math.min(from[0], to[0]) * frame.width, y: frame.y + (1 - high) * frame.height, width: Math.abs(to[0] - from[0]) * frame.width, height: (high - low) * frame.height };
    for (const [key, value] of Object.entries(place)) band.setAttribute(key, value);
    band.toggleAttribute("hidden", false);
  };
  const drop = () => { from = null; band.toggleAttribute("hidden", true); };
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !event.isPrimary) return;
    from = at(event);
    if (event.isTrusted) svg.setPointerCapture(event.pointerId);
    if (event.pointerType === "mouse") event.preventDefault();
    svg.focus({ preventScroll: true });
  });
  svg.addEventListener("pointermove", (event) => from && mark(at(event)));
  svg.addEventListener("pointercancel", drop);
  svg.addEventListener("pointerup", (event) => {
    if (!from) return;
    const to = at(event), x = [from[0], to[0]].sort((a, b) => a - b), y = flat(to) ? [0, 1] : [from[1], to[1]].sort((a, b) => a - b);
    const moved = Math.abs(to[0] - from[0]) * frame.width >= MOVED;
    drop();
    if (moved) go(x.map((part) => share(view.x, part)), y.map((part) => share(view.y, part)));
  });
  svg.addEventListener("dblclick", () => go(...Object.values(WHOLE)));
  svg.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowLeft: [-0.2, 0], ArrowRight: [0.2, 0], ArrowUp: [0, 0.2], ArrowDown: [0, -0.2] }, sides = { "+": 0.25, "=": 0.25, "-": -0.5 };
    const { x, y } = view;
    if (event.key in moves) {
      const [right, up] = moves[event.key];
      go([share(x, right), share(x, 1 + right)], [share(y, up), share(y, 1 + up)]);
    } else if (event.key in sides) {
      const side = sides[event.key];
      go([share(x, side), share(x, 1 - side)], [share(y, side), share(y, 1 - side)]);
    } else if (event.key === "0" || event.key === "Escape") go(...Object.values(WHOLE));
    else return;
    event.preventDefault();
  });
  svg.setAttribute("tabindex", "0");
  svg.classList.add("zoomable");
  svg.append(band);
  return { whole: () => go(...Object.values(WHOLE)) };
}
// Stretches of points by round, cut where rounds are missing: nothing is known between them.
function unbroken(points) {
  const apart = points.slice(1).map((point, k) => point[0] - points[k][0]);
  const usual = [...apart].sort((a, b) => a - b)[Math.floor(apart.length / 2)], parts = [];
  points.forEach((point, k) => (k && apart[k - 1] <= 1.5 * usual ? parts.at(-1).push(point) : parts.push([point])));
  return parts;
}
const isWhole = (view) => view.x[1] - view.x[0] >= 1 && view.y[1] - view.y[0] >= 1;
