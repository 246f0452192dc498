"""A sweep's table as a page, and as the parts of a paper."""

from __future__ import annotations

import shlex
from pathlib import Path

from fedgossip.base.scores import ACCURACY, Score
from fedgossip.core import run_format
from fedgossip.lab.sweeps.paired import LEVEL, rank_correlation
from fedgossip.lab.sweeps.table import SweepTable
from fedgossip.report.page.sweep import paper, written
from fedgossip.report.page.sweep_figures import Order, Points, SweepDifference, SweepPage, SweepPoints

FACTS = (("gap", "spectral gap"), ("n_w", "effective neighbours n_W"))


def write_page(table: SweepTable) -> Path:
    """Write sweep.html into the sweep's folder, and return its path."""
    path = table.folder / run_format.SWEEP_PAGE
    written(path, page_of(table))
    return path


def write_paper(table: SweepTable, folder: Path) -> list[Path]:
    """Write the figures as PDF, the tables as CSV and LaTeX, and the commands that made them.  Return the files."""
    return paper(folder, page_of(table), table.to_csv())


def page_of(table: SweepTable) -> SweepPage:
    """Return the data of the page."""
    differences = []
    for name in table.combinations:
        found = table.difference(name) if name != table.reference else None
        if found is not None:
            differences.append(SweepDifference(name, found.mean, found.pairs, found.student, found.bootstrap))
    facts = FACTS if "topology.graph" in table.keys else ()
    points = [SweepPoints(f"by-{fact.replace('_', '-')}", word, *_by_group(table, fact)) for fact, word in facts]
    return SweepPage(
        table.name, table.keys, table.tuned, table.rows, table.reference, table.equal,
        _metric(table), differences, points, LEVEL,
        shlex.join(["fedgossip", "sweep", str(table.folder / run_format.SWEEP), "--out", str(table.folder)]),
        table.over,
    )  # fmt: skip


def _metric(table: SweepTable) -> Score:
    return ACCURACY if table.score == ACCURACY.name else Score(table.score, table.better)


def _by_group(table: SweepTable, fact: str) -> tuple[dict[str, Points], dict[str, Order]]:
    """Return the points of each combination of the keys other than the graph, and the agreement of their orders."""
    other = [key for key in table.keys if key != "topology.graph"]
    rows = {row["combination"]: row for row in table.rows}
    groups: dict[str, Points] = {}
    for x, y, name in table.points(fact):
        group = ", ".join(str(rows[name][key]) for key in other)
        groups.setdefault(group, []).append((x, y, str(rows[name]["topology.graph"])))
    found = {group: rank_correlation([x for x, _, _ in of], [y for _, y, _ in of]) for group, of in groups.items()}
    return groups, {group: (one.rho, one.bootstrap) for group, one in found.items() if one}
