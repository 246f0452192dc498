"""Learning curves of several runs: any recorded number against rounds, epochs, bytes or seconds.

Runs that differ only in their seed are one curve: the mean over the panel's common seeds, with Student's interval (one
level everywhere).  `fedgossip plot` and `fedgossip report --paper` draw here; a drawing's `numbers` has all of its
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgossip.base.decoding import UnreadableError, from_toml
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.scores import Score
from fedgossip.report.page import drawing
from fedgossip.report.page.drawing import Drawing
from fedgossip.report.page.numbers import byte_unit, second_unit
from fedgossip.report.page.reading import RecordedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


AXES = ("round", "epoch", "bytes", "seconds")
MEASURES = {
    "loss": "training loss",
    "test_loss": "test loss",
    "consensus_distance": "consensus distance",
    "consensus_before": "consensus distance before mixing",
    "update_spread": "spread of updates",
}
SCORES = {"averaged": "averaged model", "mean_peer": "mean peer", "worst_peer": "worst peer"}
"""Numbers of a network's row, and their names on an axis; logged numbers have their own names."""
PANELS_MOST, CURVES_MOST = 24, 12
"""Maximum number of panels of a figure, and of curves in one."""
PANEL_INCHES = 2.1
"""Usual width of a panel, in inches."""
DIVERGED = 1e4
"""Factor above all usual values at which a curve leaves a logarithmic figure."""
DECADES_APART = 1.3
"""Minimum number of decades between the smallest and the largest number for a logarithmic axis."""


@dataclass(frozen=True)
class CurveRun:
    """A run with its panel and its curve."""

    panel: str
    label: str
    seed: int | None
    run: RecordedRun


def list_measures(runs: Sequence[CurveRun]) -> list[str]:
    """Return the measures with more than one value in some of the runs, the score of the mean peer first."""
    names = [*(name for name in ("mean_peer", *SCORES)), *MEASURES, *(name for one in runs for name in one.run.logged)]
    return [name for name in dict.fromkeys(names) if any(len(measured_values(one.run, name)) > 1 for one in runs)]


def list_axes(runs: Sequence[CurveRun]) -> list[str]:
    """Return the axes on which all runs advance."""
    return [axis for axis in AXES if all((place := _place(one.run, axis)) and place(-1) > 0 for one in runs)]


def learning_curves(runs: Sequence[CurveRun], x: str, y: str, width: float = drawing.WIDTH) -> Drawing:
    """Return the figure of measure `y` against axis `x`, `width` inches wide.

    Its numbers: panel, curve, round, the mean of x, mean, low and high of y, seeds.  Raises ConfigError if the runs
    lack either, or are too many.
    """
    if x not in AXES:
        raise ConfigError(f"there is no axis {x!r}", nearest(x, AXES))
    known = list_measures(runs)
    if y not in known:
        advice = nearest(y, known) if known else "They recorded too few rounds for a curve."
        raise ConfigError(f"none of the runs has recorded {y!r} in two rounds", advice)
    if x not in list_axes(runs):
        raise ConfigError(f"not all of the runs can be drawn by {x}", f"Known: {', '.join(list_axes(runs))}.")
    panels = list(dict.fromkeys(one.panel for one in runs))
    labels = list(dict.fromkeys(one.label for one in runs))
    if len(panels) > PANELS_MOST or len(labels) > CURVES_MOST:
        text = f"{len(labels)} curves in {len(panels)} panels; a figure holds {CURVES_MOST} in {PANELS_MOST}"
        raise ConfigError(text, "Give fewer runs, or a grid with fewer values.")
    numbers = [row for panel in panels for row in _panel(panel, runs, x, y)]
    logs = _is_log(numbers, x, y)
    zero = {row["panel"] for row in numbers} - {row["panel"] for row in numbers if row["mean"] > 0}
    numbers = [row for row in numbers if (not logs[0] or row[x] > 0) and (not logs[1] or row["mean"] > 0)]
    columns = max(1, min(len(panels), round(width / PANEL_INCHES)))
    lines = math.ceil(len(panels) / columns)
    legend = math.ceil(len(labels) / drawing.legend_columns(labels, width)) if len(labels) > 1 else 0
    height = lines * min(2.6, max(1.35, 0.72 * width / columns)) + 0.2 * legend + 0.35
    score, roomy = runs[0].run.summary.score.metric, width / columns > 1.8

    def paint(figure: Figure) -> None:
        every = list(figure.subplots(lines, columns, sharey=True, sharex=True, squeeze=False).flat)
        for axes, panel in zip(every, panels, strict=False):
            mine, size = [row for row in numbers if row["panel"] == panel], 4.0 if roomy else 2.8
            _paint(axes, mine, labels, x, _unit(numbers, x)[1], size)
            axes.set_title(panel, fontsize=8.5 if roomy else 7.5)
            axes.tick_params(labelsize=8.5 if roomy else 7)
            if logs[1] and panel in zero:
                axes.text(0.5, 0.5, "0 in all rounds", transform=axes.transAxes, ha="center", color=drawing.QUIET)
        for axes in every[len(panels) :]:
            axes.set_axis_off()
        for axes in every[max(0, len(panels) - columns) : len(panels)]:
            axes.tick_params(labelbottom=True)
        _finish(every[: len(panels)], numbers, x, y, score, logs)
        figure.supxlabel(_axis_label(numbers, x), fontsize="medium", color=drawing.QUIET)
        figure.supylabel(_measure_label(y, score, numbers), fontsize="medium", color=drawing.QUIET)
        if len(labels) > 1:
            drawing.legend_outside(figure, labels, width)

    return Drawing(height, paint, width, numbers)


def _panel(panel: str, runs: Sequence[CurveRun], x: str, y: str) -> list[dict[str, Any]]:
    """Return a panel's points: rounds with a value for all paired seeds."""
    curves: dict[str, dict[int | None, RecordedRun]] = {}
    for one in runs:
        if one.panel == panel and measured_values(one.run, y):
            curves.setdefault(one.label, {})[one.seed] = one.run
    paired = set.intersection(*(set(of) for of in curves.values())) if curves else set()
    rows = []
    for label, of in curves.items():
        taken = [of[seed] for seed in of if seed in paired] or list(of.values())
        measured = [measured_values(run, y) for run in taken]
        for round in sorted(set.intersection(*(set(values) for values in measured))):
            values = [one[round][1] for one in measured]
            if not all(map(math.isfinite, values)):
                continue  # a diverged run has no mean here; the round before is the last drawn
            places = [_place(run, x) for run in taken]
            along = [place(one[round][0]) for place, one in zip(places, measured, strict=True) if place]
            low, high = student_interval(values) or (None, None)
            rows.append({
                "panel": panel, "curve": label, "round": round, x: math.fsum(along) / len(along),
                "mean": math.fsum(values) / len(values), "low": low, "high": high, "seeds": len(values),
            })  # fmt: skip
    return rows


def measured_values(run: RecordedRun, name: str) -> dict[int, tuple[int, float]]:
    """Return the values of a measure by round, ascending, each with the index of its row among the network's rows."""
    column = f"score_{name}" if name in SCORES else name
    if name in SCORES or name in MEASURES:
        found = [(at, row.round, getattr(row, column)) for at, row in enumerate(run.network)]
    else:
        at_round = {row.round: at for at, row in enumerate(run.network)}
        found = [(at_round[point[0]], point[0], point[1]) for point in run.logged.get(name, ()) if point[0] in at_round]
    return {round: (at, value) for at, round, value in found if value is not None}


def _place(run: RecordedRun, axis: str) -> Callable[[int], float] | None:
    """Return the position of a network's row on an axis, or None."""
    if not run.network:
        return None
    if axis == "epoch":
        share = epochs_a_round(run)
        return None if share is None else lambda at: run.network[at].round * share
    column = {"bytes": "bytes_sent"}.get(axis, axis)
    return lambda at: float(getattr(run.network[at], column))


def epochs_a_round(run: RecordedRun) -> float | None:
    """Return the share of all examples that a round trains on; None for runs without examples."""
    sizes = run.summary.data.sizes if run.summary.data else None
    try:
        content: Mapping[str, Any] = from_toml(run.experiment or "")
    except UnreadableError:
        return None
    train = content.get("train")
    if not sizes or not isinstance(train, dict) or not (total := sum(sizes)):
        return None
    taking = (run.summary.cohort or run.summary.n) / run.summary.n
    if train.get("local_epochs"):
        most = float(train["local_epochs"])
        fewer = (most - train.get("fewest_epochs", most)) / 2 * train.get("slowed", 1.0)
        return float((most - fewer) * taking)
    steps = train.get("local_steps")
    if not steps:
        return None
    return float(steps * train.get("batch_size", 16) * train.get("accumulate", 1) * run.summary.n * taking / total)


def _is_log(rows: Sequence[Mapping[str, Any]], x: str, y: str) -> tuple[bool, bool]:
    """Return whether axes are logarithmic: bytes or seconds over decades."""
    ends: dict[tuple[str, str], float] = {}
    for row in rows:
        ends[row["panel"], row["curve"]] = row[x]
    last, values = [end for end in ends.values() if end > 0], [row["mean"] for row in rows]
    far = x in ("bytes", "seconds") and bool(last) and math.log10(max(last) / min(last)) > 1.0
    positive = [value for value in values if value > 0]
    spread = math.log10(max(positive) / min(positive)) if positive else 0.0
    zeros = sum(value == 0 for value in values)  # equal models at the start
    return far, y not in SCORES and spread > DECADES_APART and len(positive) + zeros == len(values)


def _paint(
    axes: Axes, rows: Sequence[Mapping[str, Any]], labels: Sequence[str], x: str, unit: float, size: float
) -> None:
    for at, label in enumerate(labels):
        mine = [row for row in rows if row["curve"] == label]
        if not mine:
            continue
        colour, dash, marker = drawing.series_style(at)
        along, mean = [row[x] / unit for row in mine], [row["mean"] for row in mine]
        every = max(1, len(mine) // 6)
        axes.plot(
            along, mean, label=label, color=colour, linestyle=dash, marker=marker, markersize=size,
            markevery=(at * every // max(1, len(labels)), every), markeredgecolor="white", markeredgewidth=0.4,
            linewidth=0.4 * size,
        )  # fmt: skip
        if mine[0]["low"] is not None:
            low, high = [row["low"] for row in mine], [row["high"] for row in mine]
            axes.fill_between(along, low, high, color=colour, alpha=0.16, linewidth=0)


def _finish(
    every: Sequence[Axes], rows: Sequence[Mapping[str, Any]], x: str, y: str, score: Score, logs: tuple[bool, bool]
) -> None:
    for axes in every:
        if logs[0]:
            drawing.log_axis(axes, "x")
        elif x == "round":
            drawing.set_whole_axis(axes, 5)
        axes.margins(x=0.02)
    first = every[0]
    low, high = robust_limits([row["mean"] for row in rows])
    if y in SCORES and score.share:
        first.set_ylim(max(0.0, first.get_ylim()[0]), min(1.0, first.get_ylim()[1]))
    if logs[1] and max(row["mean"] for row in rows) > high * DIVERGED:
        first.set_ylim(None, high * 10)
    elif not logs[1] and y not in SCORES and max(row["mean"] for row in rows) > high:
        first.set_ylim(*widened(low, high))
    for axes in every if logs[1] else ():
        drawing.log_axis(axes)
    if y in SCORES and score.percent:
        for axes in every:
            drawing.percent_axis(axes)


def widened(low: float, high: float) -> tuple[float, float]:
    """Return the limits of an axis around values from `low` to `high`, which may be equal."""
    margin = 0.04 * (high - low) or 1.0
    return low - margin, high + margin


def robust_limits(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of finite values, within Tukey's outer fences if others would take most of an axis.

    The fences are three interquartile ranges outside the quartiles.  Source: Tukey, Exploratory data analysis (1977).
    """
    known = sorted(value for value in values if math.isfinite(value))
    if not known:
        return 0.0, 1.0
    low, high = known[len(known) // 4], known[-1 - len(known) // 4]
    apart = 3.0 * (high - low)
    inside = [value for value in known if low - apart <= value <= high + apart]
    taken = inside if len(known) >= 4 and 8 * (inside[-1] - inside[0]) < known[-1] - known[0] else known
    return taken[0], taken[-1]


def _unit(rows: Sequence[Mapping[str, Any]], x: str) -> tuple[str, float]:
    largest = max((row[x] for row in rows), default=0.0)
    if x == "bytes":
        return byte_unit(largest)
    return second_unit(largest) if x == "seconds" else ("", 1.0)


def _axis_label(rows: Sequence[Mapping[str, Any]], x: str) -> str:
    unit, _ = _unit(rows, x)
    return {
        "round": "round", "epoch": "epoch (passes over all examples)",
        "bytes": f"sent by all together ({unit})", "seconds": f"time since the start ({unit})",
    }[x]  # fmt: skip


def _measure_label(y: str, score: Score, rows: Sequence[Mapping[str, Any]]) -> str:
    seeds = {row["seeds"] for row in rows}
    word = f"{score.word}, {SCORES[y]}" if y in SCORES else MEASURES.get(y, y)
    return word if seeds == {1} else f"{word}\n(mean, {LEVEL:.0%} interval)"


LEVEL = 0.95

Interval = tuple[float, float]


def student_interval(values: Sequence[float]) -> Interval | None:
    """Return Student's interval of the mean of values [k], mean ± t s / sqrt(k); None for fewer than two."""
    if len(values) < 2:
        return None
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    sample = np.asarray(values, np.float64)
    half = float(stdtrit(len(values) - 1, 0.5 + LEVEL / 2)) * float(sample.std(ddof=1)) / math.sqrt(len(values))
    mean = float(sample.mean())
    return mean - half, mean + half


def student_p(differences: Sequence[float]) -> float | None:
    """Return the two-sided p of the paired t test that differences [k] have mean 0; None for fewer than two."""
    if len(differences) < 2:
        return None
    from scipy.special import stdtr

    sample = np.asarray(differences, np.float64)
    error = float(sample.std(ddof=1)) / math.sqrt(len(differences))
    if error == 0.0:
        return 1.0 if sample.mean() == 0 else 0.0
    return 2.0 * float(stdtr(len(differences) - 1, -abs(float(sample.mean())) / error))


def holm(values: Sequence[float]) -> list[float]:
    """Return p values adjusted by Holm for their number of tests, in the given order.

    Source: Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6 (1979).
    """
    found, least = [0.0] * len(values), 0.0
    for rank, at in enumerate(sorted(range(len(values)), key=lambda at: values[at])):
        least = max(least, min(1.0, (len(values) - rank) * values[at]))
        found[at] = least
    return found
