"""A run at parameter servers: how old the models were that gradients are of, and what filters kept back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fedgossip.report.page import drawing, figures
from fedgossip.report.page.drawing import BLUE, draw
from fedgossip.report.page.markup import Markup, facts_table, figure, grid, section
from fedgossip.report.page.numbers import count, data_size
from fedgossip.report.page.reading import RecordedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    told = list(_last_reports(run, "push_filters"))
    if not told:
        return
    saved: Counter[str] = Counter()
    for value in told:
        saved.update({str(name): int(size) for name, size in value.get("saved", {}).items()})
    pushed = sum(int(value.get("pushed", 0)) for value in told)
    for name, size in saved.items():
        yield name, data_size(size), "of rows that were not pushed" if name != "key-cache" else "of keys sent before"
    yield "Pushed", data_size(pushed), "rows and their keys, of all workers"
