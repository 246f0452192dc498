"""The figures of a sweep: a heat map of its scores, the differences to a reference, scores by facts of the graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedgossip.base.scores import Score
from fedgossip.report.page import drawing
from fedgossip.report.page.drawing import BLUE, EDGE, PALE, QUIET, legend_above, series_style
from fedgossip.report.page.numbers import number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Points = list[tuple[float, float, str]]
"""(a fact of a graph, the mean score, the graph)."""

Order = tuple[float, tuple[float, float] | None]
"""Spearman's rho, and its interval."""


@dataclass(frozen=True)
class SweepDifference:
    """By how much a combination is above the reference, seed by seed."""

    combination: str
    mean: float
    pairs: int
    student: tuple[float, float] | None
    bootstrap: tuple[float, float] | None


@dataclass(frozen=True)
class SweepPoints:
    """The score against a fact of the graph, for each group of combinations that differ in the graph alone."""

    figure: str
    word: str
    groups: Mapping[str, Points]
    orders: Mapping[str, Order]


@dataclass(frozen=True)
class SweepPage:
    """Contents of the page.  `rows`: of the table, a cell each."""

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
    """Number of evaluated rounds whose mean is a score."""

    @property
    def combinations(self) -> dict[str, list[Mapping[str, Any]]]:
        """The rows of each."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for row in self.rows:
            found.setdefault(row["combination"], []).append(row)
        return found

    def rest(self, row: Mapping[str, Any]) -> str:
        """The label above a column of the heat map: all keys but the first."""
        return ", ".join(str(row[key]) for key in self.keys[1:]) or self.metric.word

    def short(self, combination: str) -> str:
        """A combination by its values alone."""
        row = self.combinations[combination][0]
        return ", ".join(str(row[key]) for key in self.keys) or combination

    def shown(self, value: float | None) -> str:
        """Return a score as it is printed."""
        return percent(value) if self.metric.percent else number(value)

    def signed(self, value: float) -> str:
        """A difference of scores."""
        if self.metric.percent:
            return f"{value * 100:+.1f}".replace("-", "−")
        return ("+" if value >= 0 else "") + number(value)


HATCHED = "The mean over the seeds; hatched where cells failed or no run can be made, empty where none has been run."


def paintings(page: SweepPage) -> dict[str, tuple[float, float, Callable[[Figure], None]]]:
    """Return the figures with data: height and width in inches, and the painting function."""
    found: dict[str, tuple[float, float, Callable[[Figure], None]]] = {}
    if page.keys and any(row["mean_peer"] is not None for row in page.rows):
        down, across = sides(page)
        longest = max(len(str(one)) for one in across)
        width = min(9.4, 2.2 + max(0.75, 0.08 * longest) * len(across))
        found["heat"] = (0.9 + 0.3 * len(down) + 0.06 * longest, width, lambda figure: _paint_heat(page, figure))
    if any(one.student for one in page.differences):
        height = 0.8 + 0.26 * len(page.differences)
        found["differences"] = (height, 6.6, lambda figure: _paint_differences(page, figure))
    for one in page.points:
        if any(one.groups.values()):
            found[one.figure] = (3.4, 6.6, lambda figure, one=one: _paint_points(page, one, figure))  # type: ignore[misc]
    return found


def sides(page: SweepPage) -> tuple[list[str], list[str]]:
    """The rows and the columns of the heat map: the first key down, all others across."""
    first = [rows[0] for rows in page.combinations.values()]
    return list(dict.fromkeys(str(row[page.keys[0]]) for row in first)), list(dict.fromkeys(map(page.rest, first)))


def _paint_heat(page: SweepPage, figure: Figure) -> None:
    from matplotlib.patches import Rectangle

    axes = figure.subplots()
    down, across = sides(page)
    means = {name: mean_of(rows, "mean_peer") for name, rows in page.combinations.items()}
    known = [value for value in means.values() if value is not None]
    low, high = min(known), max(known)
    for name, rows in page.combinations.items():
        x, y = across.index(page.rest(rows[0])), down.index(str(rows[0][page.keys[0]]))
        value = means[name]
        bad = any(row["status"] in ("failed", "refused") for row in rows)
        share = 0.0 if value is None or high == low else (value - low) / (high - low)
        share = 1.0 - share if page.metric.better == "lower" else share
        fill = "none" if value is None else _shade(share)
        hatch = "////" if bad else None
        edge = EDGE if bad else PALE
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=fill, edgecolor=edge, hatch=hatch, linewidth=0.8))
        if value is not None:
            colour = "#ffffff" if share > 0.55 else "#1f2430"
            axes.text(x + 0.5, y + 0.5, page.shown(value), ha="center", va="center", color=colour, fontsize=8.5)
    axes.set_xlim(0, len(across))
    axes.set_ylim(len(down), 0)
    axes.set_xticks([x + 0.5 for x in range(len(across))], across, rotation=30 if len(across) > 1 else 0, ha="right")
    axes.set_yticks([y + 0.5 for y in range(len(down))], down)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _shade(share: float) -> str:
    """From almost white to the blue of all figures."""
    low, high = (0xE9, 0xF1, 0xF8), (0x00, 0x4F, 0x86)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(low, high, strict=True))


def _paint_differences(page: SweepPage, figure: Figure) -> None:
    axes = figure.subplots()
    scale = 100.0 if page.metric.percent else 1.0
    for y, one in enumerate(page.differences):
        if one.student:
            axes.plot([scale * v for v in one.student], [y, y], color=BLUE, linewidth=1.6)
        if one.bootstrap:
            axes.plot([scale * v for v in one.bootstrap], [y, y], color=BLUE, linewidth=4.5, alpha=0.45)
        axes.plot([scale * one.mean], [y], "o", color=BLUE, markersize=4)
    axes.axvline(0.0, color=QUIET, linewidth=1.0)
    axes.set_yticks(range(len(page.differences)), [page.short(one.combination) for one in page.differences])
    axes.set_ylim(len(page.differences) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    unit = ", points of 100" if page.metric.percent else ""
    axes.set_xlabel(f"mean peer's {page.metric.word}, less the reference's{unit}")


def _paint_points(page: SweepPage, one: SweepPoints, figure: Figure) -> None:
    axes = figure.subplots()
    groups = {name: points for name, points in one.groups.items() if points}
    for at, (name, points) in enumerate(groups.items()):
        colour, _, marker = series_style(at)
        facts, scores = [x for x, _, _ in points], [y for _, y, _ in points]
        axes.plot(facts, scores, marker, color=colour, markersize=5, label=name or page.metric.word)
    for x, y, graph in next(iter(groups.values())):
        axes.annotate(graph, (x, y), xytext=(4, 3), textcoords="offset points", fontsize=6.5, color=QUIET)
    if all(x > 0 for points in groups.values() for x, _, _ in points):
        axes.set_xscale("log")
        _plain_ticks(axes)
    axes.set_xlabel(one.word)
    axes.set_ylabel(f"mean peer's {page.metric.word}")
    if page.metric.percent:
        drawing.percent_axis(axes)
    if len(groups) > 1:
        legend_above(axes)


def _plain_ticks(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def mean_of(rows: Sequence[Mapping[str, Any]], which: str) -> float | None:
    known = [row[which] for row in rows if row[which] is not None]
    return math.fsum(known) / len(known) if known else None
