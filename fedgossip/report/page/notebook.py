"""Rich display in notebooks: a graph as a drawing, a forecast, a run and a sweep as tables and curves.

`import fedgossip` calls `register` where IPython runs; the classes themselves know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from fedgossip.report.page import drawing, graphs
from fedgossip.report.page.learning_curves import SCORES, CurveRun, known_measures, learning_curves
from fedgossip.report.page.markup import Markup, facts_table, grid, join, paragraph, table, text
from fedgossip.report.page.numbers import data_size, number
from fedgossip.report.page.reading import Graph, Scores, read_run

if TYPE_CHECKING:
    from fedgossip.topology import Forecast, Spectrum, Topology

ROWS_MOST = 60
"""Maximum number of rows of a displayed table."""
CURVE_INCHES = 4.5

FACTS = {
    "n": "nodes",
    "edges": "edges",
    "slem": "second largest eigenvalue modulus",
    "spectral_gap": "spectral gap",
    "rounds_to_halve": "rounds until the disagreement is halved",
    "rounds_to_1_percent": "rounds until 1 % of it is left",
    "n_w": "effective number of neighbours",
    "messages": "messages of a node per round",
    "method": "method",
}
"""The displayed numbers of a forecast and of a spectrum, by attribute."""

_names = count(1)
"""Ids of drawings in one notebook's page have to differ."""


def register(shell: Any) -> None:
    """Let an IPython shell display objects of fedgossip as HTML; their classes are imported by nobody for it."""
    formatter = shell.display_formatter.formatters["text/html"]
    for home, name, show in SHOWN:
        formatter.for_type_by_name(home, name, lambda value, show=show: f"<div>{show(value)}</div>")


def topology(value: Topology) -> Markup:
    """Return the drawing of a graph and its size; above the size of a drawing the size alone."""
    graph = Graph(value.n, value.name, value.directed, [(int(u), int(v)) for u, v in value.edges])
    drawn = Markup(graphs.miniature(graph, f"notebook-{next(_names)}")) if graphs.drawable(graph) else None
    degrees = value.degrees()
    words = f"{value.n} nodes, {value.edge_count} {'arcs' if value.directed else 'edges'}"
    return join([drawn, paragraph(f"{value.name}: {words}, degree {degrees.min()} to {degrees.max()}")])


def facts(value: Forecast | Spectrum) -> Markup:
    """Return the numbers of `FACTS` that a forecast or a spectrum has."""
    found = ((name, getattr(value, attribute, None)) for attribute, name in FACTS.items())
    shown = [(name, number(one) if isinstance(one, float) else str(one), "") for name, one in found if one is not None]
    return facts_table(type(value).__name__, shown) or Markup("")


def run(value: Any) -> Markup:
    """Return the result of a `Run`, and its curve where the run left a directory."""
    summary, score = value.summary, dict(value.score)
    three = msgspec.convert(score, Scores)
    values = [(which, getattr(three, which)) for which in SCORES] if three.known else []
    scored = [(f"{three.metric.word}, {SCORES[which]}", three.shown(one), "") for which, one in values]
    ending = [
        ("sent", data_size(summary.get("bytes_sent")), ""),
        ("digest", (value.digest or "none")[:16], ""),
        ("directory", str(value.directory or "none"), ""),
    ]
    return grid(
        facts_table("Run", [("status", str(summary["status"]), ""), *scored, *ending]), _curve(value)
    ) or Markup("")


def _curve(value: Any) -> Markup | None:
    if value.directory is None:
        return None
    recorded = [CurveRun("", "", None, read_run(value.directory))]
    measures = known_measures(recorded)
    if not measures:
        return None
    drawn = learning_curves(recorded, "round", measures[0], CURVE_INCHES)
    return Markup(drawing.draw(f"notebook-{next(_names)}", drawn.height, drawn.paint, drawn.width))


def sweep(value: Any) -> Markup:
    """Return the first rows of a `SweepTable`."""
    heads = list(value.rows[0]) if value.rows else []
    rows = [[_cell(row, head) for head in heads] for row in value.rows[:ROWS_MOST]]
    left = len(value.rows) - len(rows)
    rest = paragraph(f"and {left} more rows: to_csv()") if left else None
    return join([Markup(f"<b>{text(value.name)}</b>"), table(heads, rows, len(heads) - 1), rest])


def _cell(row: Mapping[str, Any], head: str) -> str:
    value = row.get(head)
    return "" if value is None else number(value) if isinstance(value, float) else str(value)


SHOWN: tuple[tuple[str, str, Callable[[Any], Markup]], ...] = (
    ("fedgossip.topology.graphs.graph", "Topology", topology),
    ("fedgossip.topology.spectra.convergence", "Forecast", facts),
    ("fedgossip.topology.spectra.spectrum", "Spectrum", facts),
    ("fedgossip.runs.run_directory", "Run", run),
    ("fedgossip.lab.sweeps.table", "SweepTable", sweep),
)
"""Module and class, by name, and how its objects are displayed."""
