"""Timelines drawn: a lane per participant, a colour per activity, an arrow per message."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedgossip.core.records import kind_of
from fedgossip.core.timeline import ACTIVITIES, Activity, Bar, Timeline
from fedgossip.report.page.drawing import (
    AMBER,
    BLUE,
    EDGE,
    GREEN,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    draw,
    rectangles,
    zoomable,
)
from fedgossip.report.page.numbers import second_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Mapping[Activity, str] = {
    "computing": BLUE, "sending": ORANGE, "receiving": SKY, "both": PURPLE, "communicating": ORANGE,
    "waiting": PALE, "away": EDGE, "mixing": GREEN,
}  # fmt: skip
WORDS: Mapping[str, str] = {"both": "sending and receiving"}
MOST_ARROWS = 800
"""Maximum number of arrows of a picture: more hide its bars."""
LANE, WIDE = 0.3, 9.6
THICK = 0.52
"""Height of a bar, in lanes."""
COLUMNS = 2
ALIKE = 3.0
MARKS = {"ended": ("x", ORANGE), "again": ("^", GREEN), "asleep": ("v", AMBER), "awake": ("^", AMBER)}
"""Marker and colour by the state that an event implies (`core/records`)."""
ROUND_ENDS = "end of a round"


@dataclass(frozen=True)
class NamedTimeline:
    """A timeline with its title, and a name for each participant."""

    title: str
    timeline: Timeline
    names: Sequence[str]
    words: Mapping[str, str] = field(default_factory=lambda: WORDS)
    """Words of the legend for activities, if they differ from the activities' own."""


def draw_page(one: NamedTimeline, name: str) -> str:
    """Return the SVG of one timeline, for a page."""
    return draw(name, height_of([one]), lambda figure: paint(figure, [one]), WIDE)


def height_of(all_of: Sequence[NamedTimeline]) -> float:
    """Return the height of the picture in inches."""
    rows = math.ceil(len(all_of) / _columns(all_of))
    return 0.5 + rows * (0.75 + LANE * max(len(one.names) for one in all_of))


def paint(figure: Figure, all_of: Sequence[NamedTimeline]) -> None:
    """Draw timelines side by side, in one scale of time if their lengths are within a factor ALIKE."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    columns = _columns(all_of)
    rows = math.ceil(len(all_of) / columns)
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    longest, shortest = (pick(one.timeline.until for one in all_of) / 1e9 for pick in (max, min))
    unit, length = second_unit(longest)
    for axes, one in zip(places, all_of, strict=False):
        _paint_one(axes, one, length * 1e9)
        shown = longest if longest <= ALIKE * shortest else one.timeline.until / 1e9
        axes.set_xlim(0.0, shown / length)
        if len(all_of) > 1:
            axes.set_title(f"{one.title}: {one.timeline.until / 1e9 / length:.3g} {unit}", loc="left", fontsize=9)
    for axes in places[len(all_of) :]:
        axes.set_axis_off()
    for axes in places[max(0, len(all_of) - columns) : len(all_of)]:
        axes.set_xlabel(f"time ({unit})")
    if len(all_of) == 1:
        zoomable(places[0])
    there = [what for what in ACTIVITIES if any(bar.what == what for one in all_of for bar in one.timeline.bars)]
    keys: list[Patch | Line2D] = [
        Patch(facecolor=COLOURS[what], label=all_of[0].words.get(what, what)) for what in there
    ]
    for befell in dict.fromkeys(mark.what for one in all_of for mark in one.timeline.marks):
        if style := MARKS.get(kind_of(befell).implies):
            keys.append(Line2D([], [], color=style[1], marker=style[0], linestyle="", label=befell))
    if any(one.timeline.rounds for one in all_of):
        keys.append(Line2D([], [], color=INK, marker="|", markersize=8, linestyle="", label=ROUND_ENDS))
    figure.legend(handles=keys, loc="outside upper left", ncols=min(len(keys), 7), handlelength=1.2, columnspacing=1.4)


def _columns(all_of: Sequence[NamedTimeline]) -> int:
    return min(COLUMNS, len(all_of))


def _paint_one(axes: Axes, one: NamedTimeline, unit: float) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.patches import PathPatch

    timeline = one.timeline
    for what in ACTIVITIES:
        bars = [bar for bar in timeline.bars if bar.what == what]
        if bars:
            left, right, lane = (np.array([bar[at] for bar in bars], np.float64) for at in (2, 3, 0))
            path = rectangles(left / unit, right / unit, lane - THICK / 2, lane + THICK / 2)
            axes.add_patch(PathPatch(path, facecolor=COLOURS[what], linewidth=0))
    cuts = [[(bar.began / unit, bar.node - THICK / 2), (bar.began / unit, bar.node + THICK / 2)]
            for bar in following_bars(timeline.bars)]  # fmt: skip
    axes.add_collection(LineCollection(cuts, colors=PALE, linewidths=0.8))
    ends = [(end.at / unit, end.node) for end in timeline.rounds]
    axes.add_collection(
        LineCollection(
            [[(at, node - THICK / 2 - 0.09), (at, node + THICK / 2 + 0.09)] for at, node in ends],
            colors=INK,
            linewidths=1.0,
        )
    )
    if len(timeline.messages) <= MOST_ARROWS:
        _paint_arrows(axes, timeline, unit)
    for mark in timeline.marks:
        if style := MARKS.get(kind_of(mark.what).implies):
            axes.plot(mark.at / unit, mark.node, marker=style[0], color=style[1], markersize=6, zorder=5)
    axes.set_ylim(len(one.names) - 0.45, -0.55)
    axes.set_yticks(range(len(one.names)), one.names)
    axes.grid(visible=False)


def following_bars(bars: Sequence[Bar]) -> list[Bar]:
    """Return the bars that begin as another of their activity ends in the same lane: both look as one without a cut."""
    ended = {(bar.node, bar.what, bar.ended) for bar in bars}
    return [bar for bar in bars if (bar.node, bar.what, bar.began) in ended]


def _paint_arrows(axes: Axes, timeline: Timeline, unit: float) -> None:
    """Draw messages from the sender's lane to the receiver's; a lost one ends in a cross."""
    from matplotlib.collections import LineCollection

    lines, lost = list[Line](), list[Place]()
    heads: dict[int, list[Place]] = {1: [], -1: []}
    for one in timeline.messages:
        down = 1 if one.to > one.sender else -1
        start = one.began / unit, one.sender + down * THICK / 2
        if one.arrived < 0:
            at = one.sent / unit, (one.sender + one.to) / 2
            lost.append(at)
        else:
            at = one.arrived / unit, one.to - down * THICK / 2
            if one.arrived <= timeline.until:
                heads[down].append(at)
            else:  # clipped at the picture's edge
                shown = (timeline.until - one.began) / (one.arrived - one.began)
                at = timeline.until / unit, start[1] + shown * (at[1] - start[1])
        lines.append([start, at])
    axes.add_collection(LineCollection(lines, colors=INK, linewidths=0.6, alpha=0.55))
    for down, places in heads.items():
        if places:
            marker = 11 if down > 0 else 10  # matplotlib's carets with the tip at the point: down, and up the page
            axes.plot(*zip(*places, strict=True), linestyle="", marker=marker, markersize=3, color=INK, alpha=0.7)
    if lost:
        axes.plot(*zip(*lost, strict=True), linestyle="", marker="x", markersize=4, color=ORANGE)


Place = tuple[float, float]
Line = list[Place]
