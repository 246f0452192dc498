"""A sweep's table as a page, and as the parts of a paper."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from fedgossip.base.scores import ACCURACY, Score
from fedgossip.core import run_format
from fedgossip.lab.sweeps.curves import curves_of, rounds_to_target, runs_of_table
from fedgossip.lab.sweeps.paired import rank_correlation
from fedgossip.lab.sweeps.table import SweepTable
from fedgossip.report.page.intervals import LEVEL, holm, student_interval
from fedgossip.report.page.sweep import paper, written
from fedgossip.report.page.sweep_figures import (
    Order,
    Points,
    SweepDifference,
    SweepPage,
    SweepPoint,
    SweepPoints,
)

FACTS = (("gap", "spectral gap"), ("n_w", "effective neighbours n_W"))


def write_page(table: SweepTable) -> Path:
    """Write sweep.html into the sweep's folder, and return its path."""
    path = table.folder / run_format.SWEEP_PAGE
    written(path, page_of(table))
    return path


def write_paper(
    table: SweepTable, folder: Path, width: float, target: float | None = None, words: Sequence[str] = ()
) -> list[Path]:
    """Write the figures as PDF, every number and table as CSV and LaTeX, and the commands.  Return the files.

    `width`: of each figure, in inches.  `target`: the score of the table of rounds to a target; without it the mean
    score of the reference at its end.  `words`: of the command line, behind the folder of the sweep.
    """
    runs = runs_of_table(table)
    page = page_of(table)
    targets = rounds_to_target(table, runs, target)
    return paper(folder, page, table.to_csv(), curves_of(runs, width), targets, words or ["--paper", str(folder)])


def page_of(table: SweepTable) -> SweepPage:
    """Return the data of the page."""
    differences = []
    for name in table.combinations:
        found = table.difference(name) if name != table.reference else None
        if found is not None:
            ends = found.student, found.bootstrap
            differences.append(SweepDifference(name, found.mean, found.pairs, *ends, found.p))
    adjusted = iter(holm([one.p for one in differences if one.p is not None]))
    differences = [one if one.p is None else replace(one, holm=next(adjusted)) for one in differences]
    facts = FACTS if "topology.graph" in table.keys else ()
    points = [SweepPoints(f"by-{fact.replace('_', '-')}", word, *_by_group(table, fact)) for fact, word in facts]
    page = SweepPage(
        table.name, table.keys, table.tuned, table.rows, table.reference, table.equal,
        _metric(table), differences, points, LEVEL,
        shlex.join(["fedgossip", "sweep", str(table.folder / run_format.SWEEP), "--out", str(table.folder)]),
        table.over, table.compared,
    )  # fmt: skip
    return replace(page, surely_best=_surely_best(table, page))


def _surely_best(table: SweepTable, page: SweepPage) -> frozenset[str]:
    """Return the best combination of each column of the table of scores, where the paired intervals support it."""
    columns: dict[str, list[str]] = {}
    for name, rows in page.combinations.items():
        columns.setdefault(page.rest(rows[0]), []).append(name)
    found = set()
    for names in columns.values():
        means = {name: fmean(of) for name in names if (of := list(table.scores(name).values()))}
        if len(means) < 2:
            continue
        best = (max if table.better == "higher" else min)(means, key=lambda name: means[name])
        apart = [table.difference(best, name) for name in means if name != best]
        if all(one is not None and one.sure for one in apart):
            found.add(best)
    return frozenset(found)


def _metric(table: SweepTable) -> Score:
    return ACCURACY if table.score == ACCURACY.name else Score(table.score, table.better)


def _by_group(table: SweepTable, fact: str) -> tuple[dict[str, Points], dict[str, Order]]:
    """Return the points of each combination of the keys other than the graph, and the agreement of their orders."""
    other = [key for key in table.keys if key != "topology.graph"]
    rows = {row["combination"]: row for row in table.rows}
    groups: dict[str, Points] = {}
    for x, y, name in table.points(fact):
        group = ", ".join(str(rows[name][key]) for key in other)
        scores = list(table.scores(name).values())
        point = SweepPoint(x, str(rows[name]["topology.graph"]), y, student_interval(scores), len(scores))
        groups.setdefault(group, []).append(point)
    found = {group: rank_correlation([one.x for one in of], [one.mean for one in of]) for group, of in groups.items()}
    return groups, {group: (one.rho, one.bootstrap) for group, one in found.items() if one}
