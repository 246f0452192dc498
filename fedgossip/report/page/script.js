// The page is complete without this: it offers each figure as a file, enlarges curves, and unfolds everything for the printer.
for (const figure of document.querySelectorAll("figure")) {
  const button = make("button", { type: "button" }, "Save SVG");
  button.addEventListener("click", () => {
    const text = new XMLSerializer().serializeToString(figure.querySelector("svg"));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    link.download = figure.id + ".svg";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  figure.append(button);
}
for (const svg of document.querySelectorAll("svg[data-axes]")) enlarging(svg, JSON.parse(svg.dataset.axes));

// A figure is drawn once, elsewhere: what lies inside its axes is moved, and the marks of the axes are drawn anew.
function enlarging(svg, { frame, x, y }) {
  const drawn = [...svg.querySelectorAll("[data-axis]")], [labelX, labelY] = drawn.map((axis) => axis.querySelector("text")?.getAttribute("style") ?? "");
  const inside = [...svg.querySelectorAll("[clip-path]")].filter((part) => !part.closest("[data-axis]") && !part.closest("defs"));
  const parts = inside.flatMap((part) => (part.matches("g") ? [...part.querySelectorAll("path, use")] : [part])).map((part) => ({
    part, d: part.getAttribute("d"), x: Number(part.getAttribute("x")), y: Number(part.getAttribute("y")),
  }));
  const all = make("button", { type: "button", class: "all", hidden: "" }, "Show all");
  const zoom = zoomable(svg, frame, show);
  all.addEventListener("click", zoom.whole);
  svg.closest("figure").append(all);
  function show(view) {
    const whole = isWhole(view), across = (at) => frame.x + ((at - frame.x) / frame.width - view.x[0]) / (view.x[1] - view.x[0]) * frame.width;
    const up = (at) => frame.y + frame.height * (1 - ((frame.y + frame.height - at) / frame.height - view.y[0]) / (view.y[1] - view.y[0]));
    for (const one of parts) {
      if (one.d === null) { one.part.setAttribute("x", across(one.x)); one.part.setAttribute("y", up(one.y)); continue; }
      let count = 0; // coordinates stand in pairs, whatever the letters between them
      one.part.setAttribute("d", whole ? one.d : one.d.replace(/-?\d+(?:\.\d+)?(?:e-?\d+)?/g, (at) => (count++ % 2 ? up : across)(Number(at)).toFixed(3)));
    }
    for (const axis of drawn) axis.querySelectorAll(":scope > g").forEach((mark, place, marks) => { if (marks.length - 1 > place) mark.style.display = whole ? "" : "none"; });
    svg.querySelector(".enlarged")?.remove();
    all.hidden = whole;
    if (!whole) drawn.at(-1).after(marks(view)); // below the curves
  }
  function marks(view) {
    const made = draw("g", { class: "enlarged" }), right = frame.x + frame.width, below = frame.y + frame.height;
    for (const [place, part] of axisMarks(x, view.x)) {
      const at = frame.x + part * frame.width;
      made.append(draw("line", { class: "tick", x1: at, x2: at, y1: below, y2: below + 3 }), draw("text", { x: at, y: below + 12, style: labelX.replace(/text-anchor:[^;]*/, "text-anchor: middle") }, place));
    }
    for (const [place, part] of axisMarks(y, view.y)) {
      const at = below - part * frame.height;
      made.append(draw("line", { class: "rule", x1: frame.x, x2: right, y1: at, y2: at }), draw("text", { x: frame.x - 4, y: at + 3, style: labelY.replace(/text-anchor:[^;]*/, "text-anchor: end") }, place));
    }
    return made;
  }
}
// The marks of an axis { low, high, log, percent } in a view: their labels, and their places in the plot.
function axisMarks({ low, high, log, percent }, view) {
  const scale = log ? Math.log10 : (value) => value, back = log ? (value) => 10 ** value : (value) => value;
  const [from, to] = view.map((part) => back(scale(low) + part * (scale(high) - scale(low))));
  const places = (log && to / from > 3 ? decades : ticks)(from, to).filter((place) => place >= from && place <= to);
  const fine = Math.max(3, Math.ceil(Math.log10(Math.max(Math.abs(from), Math.abs(to)) / (to - from))) + 2); // letters that distinguish two marks
  return places.map((place) => [percent ? `${plain(100 * place, fine)} %` : plain(place, fine), (scale(place) - scale(from)) / (scale(to) - scale(from))]);
}
function plain(value, digits) {
  return value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6) ? String(Number(value.toPrecision(Math.min(digits, 15)))) : number(value);
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => (part.open = true)));
