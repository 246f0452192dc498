"""A sweep's table as a page and the parts of a paper; its runs as learning curves, grouped into curves and panels;
rounds to a target.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedgossip.base.decoding import UnreadableError, from_toml
from fedgossip.base.errors import ConfigError
from fedgossip.base.scores import ACCURACY, Score
from fedgossip.core import run_format
from fedgossip.core.run_format import SWEEP
from fedgossip.lab.sweeps.folder import SweepFolder
from fedgossip.lab.sweeps.grid import format_value
from fedgossip.lab.sweeps.table import COSTS, SweepTable, rank_correlation, table_of
from fedgossip.report.page.drawing import Drawing
from fedgossip.report.page.learning_curves import (
    CURVES_MOST,
    LEVEL,
    PANELS_MOST,
    CurveRun,
    holm,
    learning_curves,
    list_axes,
    list_measures,
    measured_values,
    student_interval,
)
from fedgossip.report.page.reading import RecordedRun, read_run
from fedgossip.report.page.sweep_figures import (
    Order,
    Points,
    SweepDifference,
    SweepPage,
    SweepPoint,
    SweepPoints,
    paper,
    written,
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
    """Write figures as PDF, numbers and tables as CSV and LaTeX, and the commands; return the files.

    `width`: of a figure, in inches.  `target`: score of the table of rounds to a target; by default the reference's
    mean end.  `words`: of the command line.
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
    points = [SweepPoints(f"by-{fact.replace('_', '-')}", word, *_group_points(table, fact)) for fact, word in facts]
    page = SweepPage(
        table.name, table.keys, table.tuned, table.rows, table.reference, table.equal,
        _metric(table), differences, points, LEVEL,
        shlex.join(["fedgossip", "sweep", str(table.folder / run_format.SWEEP), "--out", str(table.folder)]),
        table.over, table.compared,
    )  # fmt: skip
    return replace(page, surely_best=_surely_best(table, page))


def _surely_best(table: SweepTable, page: SweepPage) -> frozenset[str]:
    columns: dict[str, list[str]] = {}
    for name, rows in page.combinations.items():
        columns.setdefault(page.label_column(rows[0]), []).append(name)
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


def _group_points(table: SweepTable, fact: str) -> tuple[dict[str, Points], dict[str, Order]]:
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


OF_MIXING = ("consensus_before", "update_spread")
"""Measures drawn by `fedgossip plot` but omitted from a paper's folder."""
TASK = ("data.", "model.", "task.", "model", "task")
"""Keys with these prefixes define another task, which has a separate panel."""
TOGETHER = 8
"""Number of curves in one panel above which a further key is divided into panels."""


def runs_of_table(table: SweepTable) -> list[CurveRun]:
    """Return the finished runs of a sweep as curves and panels."""
    rows = [row for row in table.rows if row["cell"] and row["status"] not in ("open", "failed", "refused")]
    values = [{key: str(row[key]) for key in table.keys} for row in rows]
    runs = [read_run(table.folder / row["cell"]) for row in rows]
    return _divided(values, [row["seed"] for row in rows], runs)


def runs_of(folders: Sequence[Path]) -> list[CurveRun]:
    """Return runs, and the sweeps' cells in the folders; those that differ only in the seed are one curve.

    Raises ConfigError for another folder.
    """
    sweeps = [folder for folder in folders if (folder / SWEEP).is_file()]
    if len(folders) == 1 and sweeps:
        return runs_of_table(table_of(SweepFolder.opened(folders[0])))
    places = [place for folder in folders for place in (_cells(folder) if folder in sweeps else [folder])]
    runs = [read_run(place) for place in places]
    content = [dict(_flat(_content(run))) for run in runs]
    keys = dict.fromkeys(key for one in content for key in one if key not in ("seed", "name"))
    apart = [key for key in keys if len({str(one.get(key, "")) for one in content}) > 1]
    values = [{key: str(one[key]) for key in apart if key in one} for one in content]
    found = _divided(values, [run.summary.seed for run in runs], runs)
    times = Counter((one.panel, one.label, one.seed) for one in found)
    if max(times.values(), default=1) == 1:
        return found
    # two runs of one experiment and seed, perhaps by other drivers: each is a separate curve
    names = [f"{one.label} {os.path.relpath(place)}".strip() for one, place in zip(found, places, strict=True)]
    return [CurveRun(one.panel, name, None, one.run) for one, name in zip(found, names, strict=True)]


def _cells(folder: Path) -> list[Path]:
    sweep = SweepFolder.opened(folder)
    cells = [sweep.place(cell) for cell in sweep.compared() if (found := sweep.outcome(cell)) and found.summary]
    return list(dict.fromkeys(cells))


def _content(run: RecordedRun) -> Mapping[str, Any]:
    try:
        return from_toml(run.experiment or "")
    except (UnreadableError, ValueError):
        return {}


def _flat(content: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield above + key, format_value(value)


def _divided(
    values: Sequence[Mapping[str, str]], seeds: Sequence[int | None], runs: Sequence[RecordedRun]
) -> list[CurveRun]:
    """Return the runs with a task's keys as panels and all others as curves, too many as more panels."""
    keys = list(dict.fromkeys(key for one in values for key in one))
    panels = [key for key in keys if key.startswith(TASK)]
    curves = [key for key in keys if key not in panels]
    while len(curves) > 1 and len({_label_values(one, curves) for one in values}) > TOGETHER:
        panels.append(curves.pop(0))
    return [
        CurveRun(_label_values(one, panels), _label_values(one, curves), seed, run)
        for one, seed, run in zip(values, seeds, runs, strict=True)
    ]


def _label_values(values: Mapping[str, str], keys: Sequence[str]) -> str:
    known = [(key, values[key]) for key in keys if key in values]
    bare = len(keys) == 1 or not any(value[:1].isdigit() or value in ("true", "false") for _, value in known)
    return ", ".join(value if bare else f"{key.rsplit('.', 1)[-1]} {value}" for key, value in known)


def curves_of(runs: Sequence[CurveRun], width: float) -> dict[str, Drawing]:
    """Return every figure of the runs by name: each measure against each axis; more panels or curves than fit become
    numbered figures.
    """
    found = {}
    panels = list(dict.fromkeys(one.panel for one in runs))
    labels = list(dict.fromkeys(one.label for one in runs))
    parts = [
        [
            one
            for one in runs
            if one.panel in panels[at : at + PANELS_MOST] and one.label in labels[of : of + CURVES_MOST]
        ]
        for at in range(0, len(panels), PANELS_MOST)
        for of in range(0, len(labels), CURVES_MOST)
    ]
    for number, part in enumerate(parts, start=1):
        for measure in [one for one in list_measures(part) if one not in OF_MIXING]:
            for axis in list_axes(part):
                safe = "".join(c if c.isalnum() else "-" for c in measure).lower()
                name = f"curve-{safe}-by-{axis}" + (f"-{number}" if len(parts) > 1 else "")
                found[name] = learning_curves(part, axis, measure, width)
    return found


def rounds_to_target(table: SweepTable, runs: Sequence[CurveRun], target: float | None) -> list[dict[str, Any]]:
    """Return, for each combination, the number of seeds that reached the target, and their mean rounds to it.

    `target`: in the score's unit, by default the reference's mean end.  Seconds are left out on arrays, which record
    none.  Raises ConfigError for a target of a cost, which has no rounds to it.
    """
    if table.compared in COSTS.values():
        if target is not None:
            raise ConfigError(f"a target of {table.score}", "A target is a value of a loss, a metric or a distance.")
        return []
    if target is None:
        scores = table.scores(table.reference)
        if not scores:
            return []
        target = fmean(scores.values())
    columns = {"rounds": "round", "bytes": "bytes_sent"}
    if any(one.run.network[-1].seconds for one in runs):
        columns["seconds"] = "seconds"
    done = iter(runs)
    by_name: dict[str, list[RecordedRun]] = {}
    for row in table.rows:
        if row["cell"] and row["status"] not in ("open", "failed", "refused"):
            by_name.setdefault(row["combination"], []).append(next(done).run)
    rows = []
    for name, of in by_name.items():
        reached = [at for run in of if (at := _first(run, table.compared, target, table.better)) is not None]
        means = {
            key: fmean(float(getattr(row, column)) for row in reached) if reached else None
            for key, column in columns.items()
        }
        rows.append({"combination": name, "target": target, "reached": len(reached), "seeds": len(of), **means})
    return rows


def _first(run: RecordedRun, measure: str, target: float, better: str) -> Any:
    """Return the first row as good as the target, or None."""
    for at, value in measured_values(run, measure).values():
        if value >= target if better == "higher" else value <= target:
            return run.network[at]
    return None
