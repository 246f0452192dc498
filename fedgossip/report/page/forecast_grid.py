"""What several runs were forecast to do, and did: one small picture each, in common axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedgossip.core.forecasts import ROUNDING
from fedgossip.report.page import drawing
from fedgossip.report.page.markup import Markup, figure, section
from fedgossip.report.page.numbers import percent
from fedgossip.report.page.reading import RecordedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS, WIDTH, HEIGHT = 5, 9.6, 1.9
"""Pictures in a row, and inches: of all of them, of a row."""
MOST = 40
"""Runs that are drawn."""


def forecasts(runs: Sequence[tuple[str, RecordedRun]]) -> Markup | None:
    """Return the section; None without a run that was forecast."""
    told = [(name, run) for name, run in runs if run.foretold][:MOST]
    if not told:
        return None
    rows = math.ceil(len(told) / COLUMNS)

    def paint(canvas: Figure) -> None:
        columns = min(COLUMNS, len(told))
        every = list(canvas.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
        for axes, (name, run) in zip(every, told, strict=False):
            _paint(axes, name, run)
        for axes in every[len(told) :]:
            axes.set_axis_off()
        canvas.supxlabel("round", fontsize=9, color=drawing.QUIET)

    return section(
        "Forecast and measured",
        figure(
            "forecasts",
            drawing.draw("forecasts", HEIGHT * rows + 0.4, paint, WIDTH),
            "Consensus distance: the area was forecast before each run, the line was measured",
            "In brackets the share of the rounds that kept to the forecast.",
        ),
    )


def _paint(axes: Axes, name: str, run: RecordedRun) -> None:
    told, measured = run.foretold, run.series("consensus_distance")
    assert told is not None
    largest = max((*told.upper, *(value for _, value in measured)), default=1.0)
    rounds, floor = np.arange(1, told.rounds + 1), max(largest, 1e-300) * ROUNDING
    low, high = (np.clip(edge, floor, None) for edge in (told.lower, told.upper))
    same = bool((low == high).all())
    along, across = np.concatenate([rounds, rounds[::-1]]), np.concatenate([low, high[::-1]])
    axes.fill(along, across, color=drawing.SKY, alpha=0.4, linewidth=3 if same else 0)
    points = [(row.round, value) for row, value in measured if row.round and value > floor]
    axes.plot([at for at, _ in points], [value for _, value in points], color=drawing.BLUE, linewidth=1.2)
    kept = run.summary.forecast_kept
    axes.set_title(name + (f" ({percent(kept)})" if kept is not None else ""), fontsize=8)
    drawing.log_axis(axes)
