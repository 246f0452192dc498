"""Write the page of one run, or of several beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgossip.base.errors import ConfigError
from fedgossip.core import run_format
from fedgossip.report.page import comparison, drawing, federated, figures, sections
from fedgossip.report.page.drawing import BLUE, draw
from fedgossip.report.page.forecast import band
from fedgossip.report.page.gains import who_gains
from fedgossip.report.page.markup import Markup, document, facts_table, figure, grid, join, section, write_atomically
from fedgossip.report.page.numbers import count, data_size
from fedgossip.report.page.participation import Participation
from fedgossip.report.page.reading import RecordedRun, read_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` into the run directory and return its path.

    The page is one file that loads nothing; the same run gives the same bytes.  Raises ConfigError when the files of
    the run are missing or cannot be read; an earlier report then stays unchanged.
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
    """Write a page to `path` that shows the runs beside each other, in the given order, and return `path`.

    A run whose own report is already written is linked to it.  Raises ConfigError without runs, or as `write_report`
    does.
    """
    if not run_dirs:
        raise ConfigError("A comparison needs at least one run.", "Name the run directories to compare.")
    runs = [comparison.ComparedRun(read_run(folder), folder / run_format.REPORT) for folder in run_dirs]
    head, body = comparison.head_and_body(runs, title, path.parent)
    write_atomically(path, document(title, head, body))
    return path


# A run at parameter servers: how old the models were that gradients are of, and what filters kept back.


MOST_STEPS_DRAWN = 40
"""Steps from which on all are one bar."""


def served(run: RecordedRun) -> Markup | None:
    """Return the section of a run's parameter servers; None where none was stale and nothing was filtered."""
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
    """Yield the last word of each participant under this name."""
    last = {event.peer: event.value for event in run.events if event.name == name}
    return [value for value in last.values() if isinstance(value, Mapping)]


def _summed(run: RecordedRun, of: str) -> dict[int, int]:
    """Return pushes by age, of all servers."""
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
        drawing.whole_axis(axes)

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
