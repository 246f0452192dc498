"""The page of one run, or of several side by side; and rich display in notebooks (`register`, called if IPython
runs).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fedgossip.base.errors import ConfigError
from fedgossip.core import run_format
from fedgossip.report.page import comparison, drawing, federated, figures, graphs, sections
from fedgossip.report.page.drawing import BLUE, draw
from fedgossip.report.page.figures import who_gains
from fedgossip.report.page.forecast import band
from fedgossip.report.page.learning_curves import SCORES, CurveRun, learning_curves, list_measures
from fedgossip.report.page.markup import (
    Markup,
    document,
    facts_table,
    figure,
    grid,
    join,
    paragraph,
    section,
    table,
    text,
    write_atomically,
)
from fedgossip.report.page.numbers import count, data_size, number
from fedgossip.report.page.participation import Participation
from fedgossip.report.page.reading import Graph, RecordedRun, Scores, read_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedgossip.topology import Forecast, Spectrum, Topology


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` into the run directory and return its path.

    One file that loads nothing; the same run gives the same bytes.  Raises ConfigError for missing or unreadable files;
    an earlier report then stays.
    """
    run = read_run(run_dir)
    head, body = _gossip(run) if run.participation is None else _federated(run, run.participation)
    path = run_dir / run_format.REPORT
    write_atomically(path, document(f"{run.name} – fedgossip", head, body))
    return path


def _gossip(run: RecordedRun) -> tuple[Markup, Markup]:
    forecast = band(run)
    body = [
        sections.learning(run),
        who_gains(run),
        sections.logged(run),
        sections.agreement(run, forecast),
        sections.graph(run),
        served(run),
        sections.peers(run),
        sections.first_rounds(run),
        sections.faults(run),
        sections.provenance(run),
    ]
    return sections.head(run), join(body)


def _federated(run: RecordedRun, took: Participation) -> tuple[Markup, Markup]:
    return federated.head(run, took), join(federated.parts(run, took))


def write_comparison(path: Path, run_dirs: Sequence[Path], title: str) -> Path:
    """Write a page to `path` with the runs side by side, in the given order, and return `path`.

    It links to the report of each run that has one.  Raises ConfigError without runs, or as `write_report`.
    """
    if not run_dirs:
        raise ConfigError("A comparison needs at least one run.", "Name the run directories to compare.")
    runs = [comparison.ComparedRun(read_run(folder), folder / run_format.REPORT) for folder in run_dirs]
    head, body = comparison.head_and_body(runs, title, path.parent)
    write_atomically(path, document(title, head, body))
    return path


# A run at parameter servers: the age of the models of gradients, and the share of values held back by filters.


MOST_STEPS_DRAWN = 40
"""Minimum number of steps shown in one common bar."""


def served(run: RecordedRun) -> Markup | None:
    """Return the section of a run's parameter servers; None if no gradient was stale and nothing was filtered."""
    clocks, steps = (_summed(run, of) for of in ("clocks", "steps"))
    rounds = figure(
        "read-lag",
        _histogram(clocks, "rounds between reading and pushing", "read-lag"),
        "Staleness in rounds",
        "How many rounds of its own a worker was ahead of the slowest when it pushed what it had computed from"
        f" an older model: {count(max(clocks, default=0))} at most.",
    )
    meanwhile = figure(
        "missed-steps",
        _histogram(steps, "steps of others meanwhile", "missed-steps"),
        "Staleness in steps",
        "How many steps a server had made between a worker's reading and its push."
        f"  From {MOST_STEPS_DRAWN} on they are one bar.",
    )
    kept_back = facts_table("Bytes that filters kept back", _filters(run))
    return section("Parameter servers", grid(rounds, meanwhile, kept_back))


def _last_reports(run: RecordedRun, name: str) -> Iterable[Mapping[str, Any]]:
    last = {event.peer: event.value for event in run.events if event.name == name}
    return [value for value in last.values() if isinstance(value, Mapping)]


def _summed(run: RecordedRun, of: str) -> dict[int, int]:
    total: Counter[int] = Counter()
    for value in _last_reports(run, "read_lag"):
        total.update({int(age): int(pushes) for age, pushes in value.get(of, {}).items()})
    return dict(sorted(total.items()))


def _histogram(found: Mapping[int, int], what: str, name: str) -> str | None:
    if not found:
        return None
    ages: Counter[int] = Counter()
    for age, pushes in found.items():
        ages[min(age, MOST_STEPS_DRAWN)] += pushes

    def paint(canvas: Figure) -> None:
        axes = canvas.subplots()
        axes.bar(list(ages), list(ages.values()), width=0.8, color=BLUE)
        axes.set_xlabel(what)
        axes.set_ylabel("pushes")
        axes.set_xlim(-0.6, max(ages) + 0.6)
        drawing.set_whole_axis(axes)

    return draw(name, figures.HEIGHT, paint)


def _filters(run: RecordedRun) -> Iterable[tuple[str, str, str]]:
    reports = list(_last_reports(run, "push_filters"))
    if not reports:
        return
    saved: Counter[str] = Counter()
    for value in reports:
        saved.update({str(name): int(size) for name, size in value.get("saved", {}).items()})
    pushed = sum(int(value.get("pushed", 0)) for value in reports)
    for name, size in saved.items():
        yield name, data_size(size), "of rows that were not pushed" if name != "key-cache" else "of keys sent before"
    yield "Pushed", data_size(pushed), "rows and their keys, of all workers"


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

_names = itertools.count(1)
"""Counter for unique ids of drawings in one notebook's page."""


def register(shell: Any) -> None:
    """Let an IPython shell display objects of fedgossip as HTML, without importing their classes."""
    formatter = shell.display_formatter.formatters["text/html"]
    for home, name, show in SHOWN:
        formatter.for_type_by_name(home, name, lambda value, show=show: f"<div>{show(value)}</div>")


def topology(value: Topology) -> Markup:
    """Return the drawing of a graph and its size; only the size if it is too large for a drawing."""
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
    """Return the result of a `Run`, and its curve if the run has a directory."""
    summary, score = value.summary, dict(value.score)
    three = msgspec.convert(score, Scores)
    values = [(which, getattr(three, which)) for which in SCORES] if three.known else []
    scored = [(f"{three.metric.word}, {SCORES[which]}", three.format(one), "") for which, one in values]
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
    measures = list_measures(recorded)
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
"""Module and class, by name, and the function that displays its objects."""
