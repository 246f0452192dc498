"""The page of a sweep, and its figures and tables for a paper: a heat map, differences to a reference, scores by facts
of the graph.
"""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fedgossip.base import owner_files
from fedgossip.base.scores import Score
from fedgossip.base.untrusted_text import csv_rows
from fedgossip.report.page import drawing
from fedgossip.report.page.drawing import BLUE, EDGE, PALE, QUIET, Drawing, draw, legend_outside, save, series_style
from fedgossip.report.page.learning_curves import SCORES, robust_limits, widened
from fedgossip.report.page.markup import (
    Markup,
    document,
    figure,
    folded,
    join,
    paragraph,
    section,
    table,
    text,
    write_atomically,
)
from fedgossip.report.page.numbers import NOTHING, number, percent, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class SweepPoint:
    """One combination in a scatter plot: a fact of its graph, its score, and the score's interval over the seeds."""

    x: float
    graph: str
    mean: float
    interval: tuple[float, float] | None
    seeds: int


Points = list[SweepPoint]

Order = tuple[float, tuple[float, float] | None]
"""Spearman's rho, and its interval."""


@dataclass(frozen=True)
class SweepDifference:
    """Difference between a combination and the reference, seed by seed."""

    combination: str
    mean: float
    pairs: int
    student: tuple[float, float] | None
    bootstrap: tuple[float, float] | None
    p: float | None = None
    """p of the paired t test, two-sided."""
    holm: float | None = None
    """The same, adjusted by Holm for all differences of the page."""


@dataclass(frozen=True)
class SweepPoints:
    """The score against a fact of the graph, for each group of combinations that differ only in the graph."""

    figure: str
    word: str
    groups: Mapping[str, Points]
    orders: Mapping[str, Order]


@dataclass(frozen=True)
class SweepPage:
    """Contents of the page.  `rows`: rows of the table, one per cell."""

    title: str
    keys: Sequence[str]
    tuned: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    reference: str
    equal: str
    metric: Score
    differences: Sequence[SweepDifference]
    points: Sequence[SweepPoints]
    level: float
    command: str
    over: int = 1
    """Number of evaluated rounds averaged in a score."""
    compared: str = "mean_peer"
    """Compared column of the rows; another one for tasks without a score."""

    surely_best: frozenset[str] = frozenset()
    """Combinations certain to be the best of their column: every paired interval to another one excludes 0."""

    @property
    def measured(self) -> str:
        """Name of the compared quantity on an axis."""
        return f"{SCORES[self.compared]}'s {self.metric.word}" if self.compared in SCORES else self.metric.word

    @property
    def combinations(self) -> dict[str, list[Mapping[str, Any]]]:
        """Rows of each combination."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for row in self.rows:
            found.setdefault(row["combination"], []).append(row)
        return found

    def label_column(self, row: Mapping[str, Any]) -> str:
        """Return the label above a column of the heat map: all keys but the first."""
        return ", ".join(self.value(row, key) for key in self.keys[1:]) or self.metric.word

    def short(self, combination: str) -> str:
        """Return a combination by only its values."""
        row = self.combinations[combination][0]
        return ", ".join(self.value(row, key) for key in self.keys) or combination

    def value(self, row: Mapping[str, Any], key: str) -> str:
        """Return a key's value for lines of a figure; of a table in TOML, only the parts that differ between values."""
        parts = [part for part in str(row[key]).split(", ") if part not in self._common[key]]
        return textwrap.fill(", ".join(parts) or str(row[key]), LINE, break_long_words=False)

    @cached_property
    def _common(self) -> Mapping[str, frozenset[str]]:
        """Parts that all values of a key have in common, if they differ otherwise."""
        found = {}
        for key in self.keys:
            values = {str(row[key]): frozenset(str(row[key]).split(", ")) for row in self.rows}
            found[key] = frozenset.intersection(*values.values()) if len(values) > 1 else frozenset()
        return found

    def format(self, value: float | None) -> str:
        """Return a score in printed form."""
        return percent(value) if self.metric.percent else number(value)

    def signed(self, value: float) -> str:
        """Return a difference of scores with its sign."""
        if self.metric.percent:
            return f"{value * 100:+.1f}".replace("-", "−")
        return ("+" if value >= 0 else "") + number(value)


LINE = 40
"""Maximum number of characters of a line next to a figure."""

HATCHED = "The mean over the seeds; hatched where cells failed or no run can be made, empty where none has been run."


def paintings(page: SweepPage, width: float | None = None) -> dict[str, Drawing]:
    """Return the figures with data; `width`: of each in inches, in place of its default."""
    found: dict[str, Drawing] = {}
    if page.keys and any(row[page.compared] is not None for row in page.rows):
        down, across = sides(page)
        longest, wide = (max(len(line) for one in side for line in one.splitlines()) for side in (across, down))
        own = min(9.4, 3.1 + max(0.75, 0.08 * longest) * len(across) + 0.1 * max(0, wide - 12))
        height = 1.2 + sum(0.15 + 0.15 * len(one.splitlines()) for one in down) + 0.06 * longest
        found["heat"] = Drawing(height, lambda figure: _paint_heat(page, figure), width or own, _heat_numbers(page))
    if any(one.student for one in page.differences):
        lines = (len(page.short(one.combination).splitlines()) for one in page.differences)
        height = 1.2 + sum(0.11 + 0.15 * count for count in lines)
        numbers = difference_numbers(page)
        found["differences"] = Drawing(height, lambda figure: _paint_differences(page, figure), width or 6.6, numbers)
    for one in page.points:
        if any(one.groups.values()):
            paint = partial(_paint_points, page, one, width or 6.6)
            found[one.figure] = Drawing(3.6, paint, width or 6.6, _point_numbers(one))
    return found


def _heat_numbers(page: SweepPage) -> list[dict[str, Any]]:
    rows = []
    for name, of in page.combinations.items():
        known = [row[page.compared] for row in of if row[page.compared] is not None]
        mean = math.fsum(known) / len(known) if known else None
        rows.append({"combination": name, "mean": mean, "seeds": len(known), "cells": len(of)})
    return rows


def difference_numbers(page: SweepPage) -> list[dict[str, Any]]:
    """Return the differences to the reference, one row each."""
    rows = []
    for one in page.differences:
        ends = [*(one.student or (None, None)), *(one.bootstrap or (None, None)), one.p, one.holm]
        names = ("t_low", "t_high", "bootstrap_low", "bootstrap_high", "p", "p_holm")
        head = {"combination": one.combination, "reference": page.reference, "pairs": one.pairs, "mean": one.mean}
        rows.append({**head, **dict(zip(names, ends, strict=True))})
    return rows


def _point_numbers(one: SweepPoints) -> list[dict[str, Any]]:
    fact = one.figure.removeprefix("by-").replace("-", "_")
    return [
        {"group": group, "graph": point.graph, fact: point.x, "mean": point.mean,
         **dict(zip(("low", "high"), point.interval or (None, None), strict=True)), "seeds": point.seeds}
        for group, points in one.groups.items() for point in points
    ]  # fmt: skip


def sides(page: SweepPage) -> tuple[list[str], list[str]]:
    """Return the rows and the columns of the heat map: the first key down, all others across."""
    first = [rows[0] for rows in page.combinations.values()]
    return list(dict.fromkeys(page.value(row, page.keys[0]) for row in first)), list(
        dict.fromkeys(map(page.label_column, first))
    )


def _paint_heat(page: SweepPage, figure: Figure) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes = figure.subplots()
    down, across = sides(page)
    means = {name: mean_of(rows, page.compared) for name, rows in page.combinations.items()}
    low, high = robust_limits([value for value in means.values() if value is not None])
    size = 8.5 if (figure.get_size_inches()[0] - 1.6) / len(across) > 0.6 else 6.5
    ends = [PALEST, DARKEST] if page.metric.better == "higher" else [DARKEST, PALEST]
    shades = LinearSegmentedColormap.from_list("scores", ends, 32)
    scale = Normalize(low, high if high > low else low + 1.0, clip=True)
    shown = set()
    for name, rows in page.combinations.items():
        x, y = across.index(page.label_column(rows[0])), down.index(page.value(rows[0], page.keys[0]))
        shown.add((x, y))
        value = means[name]
        bad = any(row["status"] in ("failed", "refused") for row in rows)
        fill = "none" if value is None else shades(scale(value))
        hatch = "////" if bad else None
        edge = EDGE if bad else PALE
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=fill, edgecolor=edge, hatch=hatch, linewidth=0.8))
        dark = value is not None and sum(shades(scale(value))[:3]) < 1.6
        words = str(rows[0]["status"]) if value is None else page.format(value)
        colour = "#ffffff" if dark else QUIET if value is None else "#1f2430"
        axes.text(x + 0.5, y + 0.5, words, ha="center", va="center", color=colour, fontsize=size)
    for x, y in {*product(range(len(across)), range(len(down)))} - shown:
        axes.text(x + 0.5, y + 0.5, "not run", ha="center", va="center", color=QUIET, fontsize=size)
    axes.set_xlim(0, len(across))
    axes.set_ylim(len(down), 0)
    axes.set_xticks([x + 0.5 for x in range(len(across))], across, rotation=30 if len(across) > 1 else 0, ha="right")
    axes.set_yticks([y + 0.5 for y in range(len(down))], down)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if high > low:
        known = [value for value in means.values() if value is not None and math.isfinite(value)]
        extend = {(True, False): "min", (False, True): "max", (True, True): "both"}.get(
            (min(known) < low, max(known) > high), "neither"
        )
        bar = figure.colorbar(ScalarMappable(scale, shades), ax=axes, extend=extend, fraction=0.05, pad=0.02)
        bar.outline.set_visible(False)
        bar.ax.yaxis.set_major_locator(MaxNLocator(4))
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: page.format(value)))
        bar.ax.tick_params(labelsize=7.5)
        bar.set_label(page.measured, fontsize=8)


PALEST, DARKEST = "#e9f1f8", "#004f86"
"""From almost white to the blue of all figures."""


def _paint_differences(page: SweepPage, figure: Figure) -> None:
    axes = figure.subplots()
    scale = 100.0 if page.metric.percent else 1.0
    for y, one in enumerate(page.differences):
        thin, thick = ("", "") if y else (f"{page.level:.0%}, Student", f"{page.level:.0%}, bootstrap")
        if one.student:
            axes.plot([scale * v for v in one.student], [y, y], color=BLUE, linewidth=1.6, label=thin)
        if one.bootstrap:
            axes.plot([scale * v for v in one.bootstrap], [y, y], color=BLUE, linewidth=4.5, alpha=0.45, label=thick)
        axes.plot([scale * one.mean], [y], "o", color=BLUE, markersize=4, label="" if y else "mean over the pairs")
    axes.axvline(0.0, color=QUIET, linewidth=1.0)
    names = [f"{page.short(one.combination)} ({one.pairs})" for one in page.differences]
    axes.set_yticks(range(len(page.differences)), names)
    axes.set_ylim(len(page.differences) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    low, high = robust_limits([scale * end for one in page.differences for end in one.student or (one.mean,)])
    axes.set_xlim(*widened(min(low, 0.0), max(high, 0.0)))
    unit = "\n(points of 100)" if page.metric.percent else ""
    axes.set_xlabel(f"{page.measured}\nless that of {page.short(page.reference)}{unit}")
    axes.set_ylabel("combination (number of pairs)", fontsize="medium")
    words = [f"{page.level:.0%}, Student", f"{page.level:.0%}, bootstrap", "mean over the pairs"]
    legend_outside(figure, words, figure.get_size_inches()[0])


def _paint_points(page: SweepPage, one: SweepPoints, width: float, figure: Figure) -> None:
    axes = figure.subplots()
    groups = {name: points for name, points in one.groups.items() if points}
    every = [point for points in groups.values() for point in points]
    log = all(point.x > 0 for point in every)
    furthest, nearest = max(point.x for point in every), min(point.x for point in every)
    apart = min(0.03, 0.12 / len(groups))  # share of the axes' width: bars of one graph are side by side
    twins = _list_twins(every)

    def placed(point: SweepPoint, aside: float) -> float:
        aside += apart * len(groups) * twins[point.graph]
        return point.x * (furthest / nearest) ** aside if log else point.x + aside * (furthest - nearest)

    for at, (name, points) in enumerate(groups.items()):
        colour, _, marker = series_style(at)
        places = [placed(point, apart * (at - (len(groups) - 1) / 2)) for point in points]
        ends = [point.interval or (point.mean, point.mean) for point in points]
        bars = [[point.mean - low for point, (low, _) in zip(points, ends, strict=True)],
                [high - point.mean for point, (_, high) in zip(points, ends, strict=True)]]  # fmt: skip
        axes.errorbar(
            places, [point.mean for point in points], bars, fmt=marker, color=colour, markersize=4.5,
            elinewidth=1.0, capsize=2.0, label=name or page.metric.word,
        )  # fmt: skip
    if log:
        axes.set_xscale("log")
    axes.margins(x=0.1)
    low, high = robust_limits([point.mean for point in every])
    inside = [end for point in every if low <= point.mean <= high for end in point.interval or (point.mean,)]
    axes.set_ylim(*widened(min(inside), max(inside)))
    _ticks_at_values(axes, sorted({point.x for point in every}), width)
    _label_graphs(axes, [replace(point, x=placed(point, 0.0)) for point in every], width)
    axes.set_xlabel(one.word)
    axes.set_ylabel(f"{page.measured}\n(mean and {page.level:.0%} over seeds)")
    if page.metric.percent:
        drawing.percent_axis(axes)
    if len(groups) > 1:
        legend_outside(figure, list(groups), width)


def _list_twins(points: Sequence[SweepPoint]) -> dict[str, float]:
    """Return each graph's place among the graphs of its x, around 0: their bars would cover each other."""
    graphs: dict[float, list[str]] = {}
    for graph, x in {point.graph: point.x for point in points}.items():
        graphs.setdefault(x, []).append(graph)
    return {graph: at - (len(of) - 1) / 2 for of in graphs.values() for at, graph in enumerate(of)}


def _ticks_at_values(axes: Axes, values: Sequence[float], width: float) -> None:
    """Put a tick at each graph; of overlapping ticks only the first."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    taken: list[float] = []
    for value in values:
        if not taken or _along(axes, value, width) - _along(axes, taken[-1], width) > 0.42:
            taken.append(value)
    axes.xaxis.set_major_locator(FixedLocator(taken))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))


def _along(axes: Axes, value: float, width: float) -> float:
    left, right = axes.get_xlim()
    place = math.log10 if axes.get_xscale() == "log" else float
    return (width - 1.0) * (place(value) - place(left)) / (place(right) - place(left))


def _label_graphs(axes: Axes, points: Sequence[SweepPoint], width: float) -> None:
    bottom, top = axes.get_ylim()
    ends = [(point, end) for point in points if bottom <= (end := max(point.interval or (point.mean,))) <= top]
    axes.set_ylim(bottom, top + 0.12 * (top - bottom))
    placed: list[tuple[float, float, float]] = []
    for graph, x in sorted({point.graph: point.x for point, _ in ends}.items(), key=lambda one: one[1]):
        middle, half = _along(axes, x, width), 0.03 * len(graph)
        # above all markers that it would cover, including those of the next graph
        end = max(end for point, end in ends if abs(_along(axes, point.x, width) - middle) < half + 0.1)
        above = 2.4 * (end - bottom) / (top - bottom) + 0.04
        lift = 0.0
        while any(abs(above + lift - b) < 0.12 and abs(middle - a) < half + h + 0.04 for a, b, h in placed):
            lift += 0.12
        placed.append((middle, above + lift, half))
        axes.annotate(
            graph, (x, end), xytext=(0, 3 + 72 * lift), textcoords="offset points", fontsize=6.5, color=QUIET,
            ha="center",
        )  # fmt: skip


def mean_of(rows: Sequence[Mapping[str, Any]], which: str) -> float | None:
    known = [row[which] for row in rows if row[which] is not None]
    return math.fsum(known) / len(known) if known else None


Numbers = Sequence[Mapping[str, Any]]
"""Rows with the same keys."""


def written(path: Path, page: SweepPage) -> None:
    """Write the page atomically, as one file that loads nothing."""
    write_atomically(path, document(f"{page.title} – fedgossip", _head(page), _body(page)))


def paper(
    folder: Path, page: SweepPage, rows: str, curves: Mapping[str, Drawing], targets: Numbers, words: Sequence[str]
) -> list[Path]:
    """Write the files for a paper: figures as PDF, numbers as CSV and LaTeX, tables, commands.

    `curves`: further figures by name.  `targets`: numbers of rounds to a target.  `words`: arguments of the command
    line, after the sweep's folder.
    """
    owner_files.make_folder(folder)
    found, again = [], shlex.quote(shlex.split(page.command)[-1])
    width = next((curve.width for curve in curves.values()), None)
    tables: dict[str, Numbers] = {"differences": difference_numbers(page), "targets": targets}
    for name, drawn in {**paintings(page, width), **curves}.items():
        save(folder / f"{name}.pdf", drawn)
        found.append(folder / f"{name}.pdf")
        tables[name] = drawn.numbers
    listed = {f"{name}.csv": csv_of(numbers) for name, numbers in tables.items()}
    listed |= {f"{name}.tex": latex_of(numbers, page.command) for name, numbers in tables.items()}
    listed |= {
        "cells.csv": rows,
        "scores.tex": latex(page),
        "COMMANDS.txt": f"{page.command}\nfedgossip report {again} {shlex.join(words)}\n",
    }
    for name, content in listed.items():
        owner_files.placed(folder / name, content.encode())
        found.append(folder / name)
    return found


def _head(page: SweepPage) -> Markup:
    seeds = len({row["seed"] for row in page.rows})
    scored = sum(row[page.compared] is not None for row in page.rows)
    counted = f"{plural(len(page.combinations), 'combination')} with {plural(seeds, 'seed')} each"
    lead = f"{counted}: {plural(len(page.rows), 'cell')}, of which {scored} have a score."
    sentence = (
        f"All cells of a seed have the same data, first model and batches, and are compared at equal {page.equal}."
    )
    if page.over > 1:
        sentence += f"  A score is the mean over the last {page.over} evaluated rounds."
    elif page.equal == "rounds":
        sentence += "  Each is reported at its last round."
    return join([
        paragraph("fedgossip sweep", "over"), Markup(f"<h1>{text(page.title)}</h1>"), paragraph(lead, "lead"),
        paragraph(sentence),
    ])  # fmt: skip


def _body(page: SweepPage) -> Markup:
    drawn = {name: draw(name, one.height, one.paint, one.width) for name, one in paintings(page).items()}
    head = page.measured[:1].upper() + page.measured[1:]
    heat = figure("heat", drawn.get("heat"), head, HATCHED)
    differences = figure("differences", drawn.get("differences"), "Differences", _caption(page))
    facts = [figure(one.figure, drawn.get(one.figure), f"{page.metric.heading} by {one.word}", _orders(one))
             for one in page.points]  # fmt: skip
    return join([
        section("Scores", heat, _scores(page)),
        section("Against the reference", differences, _differences(page)),
        section("Which property of a graph predicts its training", *facts),
        section("Without a score", _without(page)),
        section("All cells", folded(f"{len(page.rows)} rows", _cells(page)), paragraph(f"Made by: {page.command}")),
    ])  # fmt: skip


COLUMNS = (("mean_peer", "Mean peer"), ("averaged", "Averaged model"), ("worst_peer", "Worst peer"))


def _scores(page: SweepPage) -> Markup:
    columns = _columns(page)
    heads = [*page.keys, *page.tuned, "Seeds", *(head for _, head in columns)]
    rows = []
    for found in page.combinations.values():
        counted = sum(row[page.compared] is not None for row in found)
        shown = [page.format(mean_of(found, which)) for which, _ in columns]
        values = [NOTHING if found[0][key] is None else str(found[0][key]) for key in (*page.keys, *page.tuned)]
        rows.append([*values, str(counted), *shown])
    return table(heads, rows, numbers=1 + len(columns))


def _columns(page: SweepPage) -> Sequence[tuple[str, str]]:
    return COLUMNS if page.compared in dict(COLUMNS) else ((page.compared, page.metric.heading),)


def _caption(page: SweepPage) -> str:
    return (
        f"To {page.short(page.reference)}, of pairs with the same seed: the mean, Student's interval (thin) and a "
        f"bootstrap's (thick), both of {page.level:.0%}; in brackets the number of pairs.  p: of the paired t test, "
        "two-sided; by Holm for all of these differences together."
    )


def _differences(page: SweepPage) -> Markup | None:
    if not page.differences:
        return None

    def interval(found: tuple[float, float] | None) -> str:
        return NOTHING if found is None else f"{page.signed(found[0])} to {page.signed(found[1])}"

    heads = ["Combination", "Pairs", "Mean difference", "Student", "Bootstrap", "p", "p (Holm)"]
    rows = [
        [page.short(one.combination), str(one.pairs), page.signed(one.mean), interval(one.student),
         interval(one.bootstrap), number(one.p), number(one.holm)]
        for one in page.differences
    ]  # fmt: skip
    return table(heads, rows, numbers=6)


def _orders(one: SweepPoints) -> str:
    lines = []
    for group, (rho, interval) in one.orders.items():
        within = f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
        lines.append(f"{group or 'all'} {rho:.2f}{within}".replace("-", "−"))
    ranks = f"Spearman's rho, with a bootstrap's interval: {'; '.join(lines)}." if lines else ""
    return f"A point is a graph, the mean over its seeds. {ranks}".strip()


def _without(page: SweepPage) -> Markup | None:
    rows = [[row["combination"], str(row["seed"]), row["status"], row["error"] or NOTHING]
            for row in page.rows if row["status"] in ("failed", "refused")]  # fmt: skip
    return table(["Cell", "Seed", "Status", "Why"], rows, numbers=0) if rows else None


def _cells(page: SweepPage) -> Markup:
    columns = [*_columns(page), ("test_loss", "Test loss")] if page.compared != "test_loss" else _columns(page)
    heads = ["Cell", *page.tuned, "Seed", "Status", *(head for _, head in columns), "n_W"]
    rows = []
    for row in page.rows:
        name = text(row["combination"] or page.title)
        if row["cell"]:
            name = Markup(f'<a href="./{quote(row["cell"])}/">{name}</a>')
        tuned = [NOTHING if row[key] is None else str(row[key]) for key in page.tuned]
        numbers = [number(row[which]) if which == "test_loss" else page.format(row[which]) for which, _ in columns]
        rows.append([name, *tuned, str(row["seed"]), row["status"], *numbers, number(row["n_w"])])
    return table(heads, rows, numbers=1 + len(columns))


def csv_of(numbers: Numbers) -> str:
    """Return rows of numbers as CSV, with all digits."""
    return csv_rows(numbers)


def latex_of(numbers: Numbers, command: str) -> str:
    """Return rows of numbers as a LaTeX table (booktabs)."""
    first = numbers[0] if numbers else {"": ""}
    body = [
        [_tex(one) if isinstance(one, str) else "" if one is None else _tex_number(one) for one in row.values()]
        for row in numbers
    ]
    return _tabular([command], ["l" if isinstance(one, str) else "r" for one in first.values()], list(first), body)


def latex(page: SweepPage) -> str:
    """Return the scores as a LaTeX table (booktabs): the first key down, all others across."""
    down, across = sides(page) if page.keys else ([""], [page.metric.word])
    scale = 100.0 if page.metric.percent else 1.0
    cells: dict[tuple[str, str], str] = {}
    for name, rows in page.combinations.items():
        known = [row[page.compared] * scale for row in rows if row[page.compared] is not None]
        mean = math.fsum(known) / len(known) if known else 0.0
        spread = math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1)) if len(known) > 1 else None
        shown = (lambda value: f"{value:.2f}") if page.metric.percent else _tex_number
        text = "--" if not known else shown(mean) if spread is None else rf"{shown(mean)} $\pm$ {shown(spread)}"
        key = page.value(rows[0], page.keys[0]) if page.keys else ""
        cells[key, page.label_column(rows[0]) if page.keys else page.metric.word] = (
            rf"\textbf{{{text}}}" if name in page.surely_best else text
        )
    unit = ", per cent" if page.metric.percent else ""
    notes = [page.command, f"{page.measured}{unit}: mean and standard deviation over seeds"]
    if page.surely_best:
        notes.append(f"bold: the best of its column, where the {page.level:.0%} interval of the paired difference to "
                     "each other one leaves 0 out")  # fmt: skip
    body = [[_tex(one), *(cells.get((one, other), "--") for other in across)] for one in down]
    heads = [page.keys[0] if page.keys else "", *across]
    body = [[one.replace("\n", " ") for one in row] for row in [heads, *body]]
    return _tabular(notes, ["l", *("c" for _ in across)], body[0], body[1:])


def _tabular(notes: Sequence[str], columns: Sequence[str], heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [
        *(f"% {note}" for note in notes),
        rf"\begin{{tabular}}{{{''.join(columns)}}}",
        r"\toprule",
        " & ".join(map(_tex, heads)) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in body),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _tex_number(value: float) -> str:
    """Return a number with four significant digits; integers unchanged."""
    if isinstance(value, int) or value == 0 or not math.isfinite(value):
        return str(value)
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"
    mantissa, power = f"{value:.3e}".split("e")
    return rf"${mantissa}\times 10^{{{int(power)}}}$"


def _tex(words: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in words)
