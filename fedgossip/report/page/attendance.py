"""Figures of participation: contributions by round, and a lane for each client."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgossip.report.page import drawing
from fedgossip.report.page.bars import stack
from fedgossip.report.page.drawing import AMBER, BLUE, INK, ORANGE, QUIET, SKY, draw, legend_above, rectangles
from fedgossip.report.page.participation import Participation, Took

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedgossip.report.page.drawing import Places

HEIGHT = 3.1
MOST_COLUMNS = 160
"""Maximum number of columns of a figure; with more rounds each column represents several."""
MOST_APART = 60
"""Maximum number of columns that are drawn with space between them."""
LANE_HEIGHT = 0.055  # inches
OTHERS = (
    (Took.UNCOUNTED, SKY, "trained, not in the sum"),
    (Took.ABANDONED, AMBER, "trained, round abandoned"),
    (Took.SILENT, ORANGE, "invited, silent"),
)
SHADES = (0.25, 0.5, 0.75, 1.0)
"""Opacities of a column for several rounds, by the share of them that a client took part in."""


def height(took: Participation) -> float:
    """Return the height, in inches, of both figures, which are drawn side by side."""
    return max(HEIGHT, 1.1 + LANE_HEIGHT * took.clients) if took.followed else HEIGHT


def contributions(took: Participation, wanted: int | None, name: str) -> str | None:
    """Return the contributions of each round as bars, abandoned rounds marked; None where no round ended."""
    rounds = took.rounds
    if not rounds:
        return None
    counted = np.array([took.contributions.get(r, 0) for r in range(1, rounds + 1)], dtype=np.float64)
    group = math.ceil(rounds / MOST_COLUMNS)
    lost = sorted(took.abandoned)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        starts, heights = _means(counted, group)
        air = 0.08 if rounds <= MOST_APART else 0.0
        left, right = starts + 0.5 + air, np.minimum(starts + group, rounds) + 0.5 - air
        _fill(axes, left, right, np.zeros_like(heights), heights, facecolor=BLUE, label="contributions")
        top = max(float(counted.max()), float(wanted or 0), 1.0) * 1.06
        if wanted:
            axes.axhline(wanted, color=QUIET, linestyle=(0, (5, 2)), linewidth=1.2, label="wanted")
        if lost:
            axes.plot(lost, [top * 0.035] * len(lost), "x", color=ORANGE, markersize=5.5, markeredgewidth=1.8,
                      label="round abandoned")  # fmt: skip
        axes.set_xlim(0.4, rounds + 0.6)
        axes.set_ylim(0.0, top)
        axes.set_xlabel("round" if group == 1 else f"round (each bar is the mean of {group})")
        axes.set_ylabel("contributions")
        _whole(axes)
        legend_above(axes)

    return draw(name, height(took), paint)


def lanes(took: Participation, name: str, counted: str = "in the sum") -> str | None:
    """Return a lane for each client with its part in each round; None where that is unknown.

    counted: the word for a client whose contribution is in the round's result.
    """
    rounds = took.rounds
    if not took.followed or not rounds:
        return None
    table = took.table()
    group = math.ceil(rounds / MOST_COLUMNS)
    kinds = _by_kind(table, counted) if group == 1 else _by_share(table, group)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for mask, colour, label in kinds:
            _lanes(axes, mask, group, rounds, label=label, **colour)
        for lost in took.abandoned if group == 1 else ():
            axes.axvspan(lost - 0.5, lost + 0.5, color=INK, alpha=0.07, linewidth=0)
        axes.set_xlim(0.4, rounds + 0.6)
        axes.set_ylim(took.clients - 0.4, -0.6)
        axes.set_xlabel("round" if group == 1 else f"round (each column is {group})")
        axes.set_ylabel(took.one)
        axes.grid(visible=False)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        _whole(axes)
        legend_above(axes, 2)

    return draw(name, height(took), paint)


def turns(took: Participation, name: str) -> str | None:
    """Return how often each of many clients took part, as bars; None where that is unknown, or lanes show it."""
    if took.followed or not any(took.turns):
        return None

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        stack(axes, np.array([took.turns], dtype=np.float64), [BLUE], [], took.one)
        axes.set_ylabel("rounds")

    return draw(name, HEIGHT, paint)


Kind = tuple["NDArray[np.bool_]", dict[str, Any], str]
"""Its cells, [clients, columns]; its fill; its name."""


def _by_kind(table: NDArray[np.int8], counted: str) -> list[Kind]:
    kinds = ((Took.COUNTED, BLUE, counted), *OTHERS)
    found: list[Kind] = [(table == took, {"facecolor": colour}, label) for took, colour, label in kinds]
    return [kind for kind in found if kind[0].any()]


def _by_share(table: NDArray[np.int8], group: int) -> list[Kind]:
    """Shades of blue, by the share of the rounds in each column that counted a client."""
    _, shares = _means((table == Took.COUNTED).astype(np.float64), group)
    found: list[Kind] = []
    for low, shade in zip((0.0, *SHADES), SHADES, strict=False):
        label = f"in up to {shade:.0%}".replace("%", "\u202f%") + (" of the sums" if shade == SHADES[0] else "")
        found.append(((shares > low) & (shares <= shade), {"facecolor": BLUE, "alpha": shade}, label))
    return found


def _lanes(axes: Axes, mask: NDArray[np.bool_], group: int, rounds: int, **fill: Any) -> None:
    """Fill the cells of `mask`, neighbours in a lane as one."""
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    lane, first = np.nonzero(edges == 1)
    _, past = np.nonzero(edges == -1)
    if len(lane):
        right = np.minimum(past * group, rounds)
        _fill(axes, first * group + 0.5, right + 0.5, lane - 0.38, lane + 0.38, **fill)


def _fill(axes: Axes, left: Places, right: Places, bottom: Places, top: Places, **fill: Any) -> None:
    from matplotlib.patches import PathPatch

    axes.add_patch(PathPatch(rectangles(left, right, bottom, top), linewidth=0, **fill))


def _means(values: NDArray[np.float64], group: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return where each group of the last axis begins, and its mean."""
    starts = np.arange(0, values.shape[-1], group)
    ends = np.minimum(starts + group, values.shape[-1])
    return starts, np.add.reduceat(values, starts, axis=-1) / (ends - starts)


def _whole(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    drawing.whole_axis(axes)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
