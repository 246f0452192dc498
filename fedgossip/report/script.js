// The page is complete without this: it only offers each figure as a file and unfolds everything for the printer.
for (const figure of document.querySelectorAll("figure")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Save SVG";
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
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => (part.open = true)));
