"""The pages of `fedgossip lecture`: text, numbers with their formulas, a picture, and questions with folded answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedgossip.report.page import timeline
from fedgossip.report.page.drawing import (
    INK,
    SERIES,
    Drawing,
    draw,
    legend_above,
    legend_columns,
    log_axis,
    series_style,
    zoomable,
)
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
from fedgossip.report.page.timeline import WIDE, NamedTimeline, height_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class PlottedCurve:
    """One labelled series; `points`: measured, drawn as marks; otherwise the line of a formula."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    points: bool = False


@dataclass(frozen=True)
class Plot:
    """Curves over two axes; `log` makes them logarithmic."""

    x: str
    y: str
    curves: Sequence[PlottedCurve]
    log: Literal["", "x", "y", "xy"] = ""


@dataclass(frozen=True)
class Circle:
    """A circle of equal arcs, each with its owner's number, of `owners` owners."""

    title: str
    arcs: Sequence[int]
    owners: int


@dataclass(frozen=True)
class Circles:
    circles: Sequence[Circle]


@dataclass(frozen=True)
class Stacks:
    """Bars of stacked parts: part -> a value per bar."""

    y: str
    bars: Sequence[str]
    parts: Mapping[str, Sequence[float]]


Picture = Sequence[NamedTimeline] | Plot | Circles | Stacks


@dataclass(frozen=True)
class LectureRow:
    """A number, its formula, and whether they agree within the tolerance."""

    what: str
    measured: float
    formula: str
    expected: float
    within: float
    holds: bool

    @property
    def cells(self) -> list[str]:
        """Return the row of a table."""
        near = f"{self.within:g}" if not self.expected else f"{100 * self.within:g} %"
        near = "rounding" if self.within < ROUNDING else near
        verdict = "agrees" if self.holds else "DIFFERS"
        return [self.what, self.formula, _digits(self.measured), _digits(self.expected), near, verdict]


def _digits(value: float) -> str:
    """Return five digits of a number; for a large one all digits before the point."""
    return f"{value:,.0f}".replace(",", " ") if 1e5 <= abs(value) < 1e12 else f"{value:.5g}"


ROUNDING = 1e-6
"""Tolerance for two numbers that should be equal except for rounding."""


HEADS = ["number", "formula", "run", "by formula", "within", ""]


@dataclass(frozen=True)
class LecturePage:
    """Content of one lecture."""

    name: str
    title: str
    says: Sequence[str]
    rows: Sequence[LectureRow]
    names: Mapping[str, float]
    """Values of the names in formulas."""
    picture: Picture
    caption: str
    questions: Sequence[tuple[str, str]]
    source: str

    @property
    def setting(self) -> str:
        """Return the values of names in formulas, in words."""
        return ", ".join(f"{name} = {value:g}" for name, value in self.names.items())


def write_lecture(path: Path, page: LecturePage) -> None:
    """Write the page as one file that loads nothing."""
    head = join([paragraph("fedgossip lecture", "over"), Markup(f"<h1>{text(page.title)}</h1>")])
    off = [row.what for row in page.rows if not row.holds]
    drawing = drawing_of(page.picture)
    questions = [folded(f"{number}. {asked}", paragraph(answer)) for number, (asked, answer) in _numbered(page)]
    body = join([
        paragraph(f"Out of tolerance: {'; '.join(off)}.", "notice") if off else None,
        *(paragraph(words) for words in page.says),
        section(
            "The run and the formula",
            table(HEADS, (row.cells for row in page.rows), 4),
            paragraph(f"With {page.setting}.") if page.names else None,
        ),
        figure("picture", draw("picture", drawing.height, drawing.paint, drawing.width), page.title, page.caption),
        section("Questions", *questions),
        paragraph(f"Source: {page.source}"),
    ])  # fmt: skip
    write_atomically(path, document(f"{page.title} – fedgossip", head, body))


def _numbered(page: LecturePage) -> Sequence[tuple[int, tuple[str, str]]]:
    return list(enumerate(page.questions, 1))


def write_course(path: Path, pages: Sequence[LecturePage]) -> None:
    """Write the index of a folder of lectures, each in NAME.html next to it."""
    head = join([paragraph("fedgossip lecture --all", "over"), Markup("<h1>Distributed training, measured</h1>")])
    rows = [
        [
            Markup(f'<a href="./{text(page.name)}.html">{text(page.name)}</a>'),
            text(page.title),
            text(f"{sum(row.holds for row in page.rows)} of {len(page.rows)} agree"),
        ]
        for page in pages
    ]
    sentence = "Each page has a formula, a run, both numbers, a picture, and three questions."
    body = join([paragraph(sentence), table(["topic", "title", "numbers"], rows, 1)])
    write_atomically(path, document("Distributed training, measured – fedgossip", head, body))


def drawing_of(picture: Picture) -> Drawing:
    """Return the figure of a picture."""
    match picture:
        case Plot():
            return Drawing(3.6, lambda figure: _paint_plot(figure, picture), WIDE)
        case Circles():
            return Drawing(3.6, lambda figure: _paint_circles(figure, picture), WIDE)
        case Stacks():
            return Drawing(3.6, lambda figure: _paint_stacks(figure, picture), WIDE)
        case _:
            return Drawing(height_of(picture), lambda figure: timeline.paint(figure, picture), WIDE)


def _paint_plot(figure: Figure, plot: Plot) -> None:
    axes = figure.subplots()
    for place, one in enumerate(plot.curves):
        colour, dash, mark = series_style(place)
        if one.points:
            axes.plot(one.x, one.y, linestyle="", marker=mark, markersize=5, color=colour, label=one.label)
        else:
            axes.plot(one.x, one.y, linestyle=dash, color=colour, label=one.label)
    for which in plot.log:
        log_axis(axes, which)
    _label(axes, plot.x, plot.y)
    legend_above(axes, legend_columns([one.label for one in plot.curves], 6.0))
    zoomable(axes)


def _paint_stacks(figure: Figure, stacks: Stacks) -> None:
    axes = figure.subplots()
    below = [0.0] * len(stacks.bars)
    for place, (part, heights) in enumerate(stacks.parts.items()):
        axes.bar(range(len(heights)), heights, 0.6, bottom=below, color=SERIES[place], label=part)
        below = [low + high for low, high in zip(below, heights, strict=True)]
    axes.set_xticks(range(len(stacks.bars)), stacks.bars)
    _label(axes, "", stacks.y)
    legend_above(axes, legend_columns(list(stacks.parts), 6.0))


def _paint_circles(figure: Figure, circles: Circles) -> None:
    from matplotlib.patches import Patch, Wedge

    places = figure.subplots(1, len(circles.circles), squeeze=False)[0]
    for axes, one in zip(places, circles.circles, strict=True):
        step = 360 / len(one.arcs)
        for place, owner in enumerate(one.arcs):
            axes.add_patch(
                Wedge((0, 0), 1.0, place * step, (place + 1) * step + 0.3, width=0.34, facecolor=SERIES[owner])
            )
        for place in range(len(one.arcs)):
            if one.arcs[place] != one.arcs[place - 1]:
                angle = math.radians(place * step)
                axes.plot([0.62 * math.cos(angle), 1.04 * math.cos(angle)],
                          [0.62 * math.sin(angle), 1.04 * math.sin(angle)], color=INK, linewidth=0.8)  # fmt: skip
        axes.set_xlim(-1.08, 1.08)
        axes.set_ylim(-1.08, 1.08)
        axes.set_aspect("equal")
        axes.set_axis_off()
        axes.text(0, 0, one.title.replace(", ", ",\n"), ha="center", va="center", fontsize=9)
    most = max(one.owners for one in circles.circles)
    keys = [Patch(facecolor=SERIES[owner], label=f"server {owner}") for owner in range(most)]
    figure.legend(handles=keys, loc="outside lower center", ncols=most, handlelength=1.2)


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
