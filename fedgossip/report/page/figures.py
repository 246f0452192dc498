"""The curves of one run (score, loss, disagreement), and each participant's gain from a personal model."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgossip.base.scores import Score
from fedgossip.base.untrusted_text import line
from fedgossip.core.gains import NOT_MEASURED, OwnScores, gain, gains_counted, gains_of
from fedgossip.core.records import LoggedPoint
from fedgossip.core.run_summary import GainFacts
from fedgossip.report.page import drawing
from fedgossip.report.page.drawing import BLUE, DASHES, GREEN, ORANGE, PURPLE, QUIET, draw, legend_above, zoomable
from fedgossip.report.page.forecast import ROUNDING, Band
from fedgossip.report.page.markup import Markup, facts_table, figure, grid, section
from fedgossip.report.page.numbers import NOTHING, byte_unit, count, plural, second_unit
from fedgossip.report.page.participation import ReportedRound
from fedgossip.report.page.reading import RecordedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedgossip.core.forecasts import RunForecast


HEIGHT = 3.1
LOGGED_LETTERS = 40
"""Maximum length of a logged number's name."""
CONSENSUS_HEIGHT = 4.1  # the same height as the table next to it
SCORES = (
    ("score_averaged", "averaged model", BLUE, "-"),
    ("score_mean_peer", "mean peer", GREEN, DASHES[1]),
    ("score_worst_peer", "worst peer", ORANGE, DASHES[2]),
)
Axis = tuple[str, Callable[[ReportedRound], float]]  # a label and the place of a row on it
ByRow = Callable[[list[ReportedRound]], Axis]
Line = tuple[
    str, str, Any, list[tuple[ReportedRound, float]]
]  # its name, colour and dash, and the measured values by time


def measure_rounds(_: list[ReportedRound]) -> Axis:
    return "round", lambda row: row.round


def measure_bytes(rows: list[ReportedRound]) -> Axis:
    unit, size = byte_unit(max((row.bytes_sent for row in rows), default=0))
    return f"sent by all peers together ({unit})", lambda row: row.bytes_sent / size


def measure_all_bytes(rows: list[ReportedRound]) -> Axis:
    """The same as `measure_bytes`, for runs with senders other than peers."""
    label, place = measure_bytes(rows)
    return label.replace("all peers", "all"), place


def measure_seconds(rows: list[ReportedRound]) -> Axis:
    unit, length = second_unit(max((row.seconds for row in rows), default=0.0))
    return f"time since the start ({unit})", lambda row: row.seconds / length


def list_peer_scores(run: RecordedRun) -> list[Line]:
    """Return the three scores of a network of peers."""
    of = " (distilled)" if run.summary.distils else ""
    return [(f"{label}{of}", colour, dash, run.series(column)) for column, label, colour, dash in SCORES]


def scores(run: RecordedRun, name: str, axis: ByRow, lines: list[Line], label: str = "") -> str | None:
    """Return the curves of a score over rounds, bytes or seconds; None without any, or if the axis never advances:
    peers that send nothing.
    """
    lines = [line for line in lines if line[3]]
    axis_label, place = axis(run.network)
    score = run.summary.score.metric
    if not lines or (len(run.network) > 1 and not any(place(row) for row in run.network)):
        return None

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for who, colour, dash, series in lines:
            at, values = [place(row) for row, _ in series], [value for _, value in series]
            curve(axes, at, values, label=who, colour=colour, dash=dash, rounds=[row.round for row, _ in series])
        if axis is measure_rounds:
            _draw_forecast(axes, run, {"averaged": BLUE, "mean_peer": GREEN, "worst_peer": ORANGE})
        axes.set_xlabel(axis_label)
        axes.set_ylabel(label or f"test {score.word}")
        if axis is measure_rounds:
            drawing.set_whole_axis(axes)
        if score.percent:
            drawing.percent_axis(axes)
        legend_above(axes)
        zoomable(axes)

    return draw(name, HEIGHT, paint)


def _draw_forecast(axes: Axes, run: RecordedRun, colours: Mapping[str, str]) -> None:
    """Draw the area between the edges before the run, for the names in `colours` (`core.forecasts.COLUMNS`)."""
    forecast = run.foretold.scores if run.foretold else None
    if forecast is None or len(forecast.rounds) < 2:
        return
    for name, edges in forecast.edges().items():
        low, high = zip(*edges, strict=True)
        if name in colours and low != high:
            along, across = [*forecast.rounds, *forecast.rounds[::-1]], [*low, *high[::-1]]
            axes.fill(along, across, color=colours[name], alpha=0.15, linewidth=0)


def loss(run: RecordedRun, name: str, own: str = "on each peer’s own data") -> str | None:
    """Return training and test loss by round; None if neither was recorded."""
    lines = [(own, BLUE, "-", run.series("loss"))]
    lines.append(("on the test data", ORANGE, DASHES[1], run.series("test_loss")))
    lines = [line for line in lines if line[3]]
    if not lines:
        return None

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for label, colour, dash, series in lines:
            curve(
                axes,
                [row.round for row, _ in series],
                [value for _, value in series],
                label=label,
                colour=colour,
                dash=dash,
            )
        _draw_forecast(axes, run, {"test_loss": ORANGE})
        axes.set_xlabel("round")
        axes.set_ylabel("loss")
        axes.set_ylim(bottom=0.0 if min(axes.get_ylim()) >= 0 else None)
        drawing.set_whole_axis(axes)
        legend_above(axes)
        zoomable(axes)

    return draw(name, HEIGHT, paint)


def consensus(run: RecordedRun, name: str, forecast: Band | None) -> str | None:
    """Return the consensus distance by round on a logarithmic axis, with its forecast in the background."""
    after = [(row.round, value) for row, value in run.series("consensus_distance") if value > 0]
    before = [(row.round, value) for row, value in run.series("consensus_before") if value > 0]
    if not after or (len(after) == 1 and len(run.network) > 2):  # one of many rounds: the number stands above
        return None
    smallest, largest = min(value for _, value in after), max(value for _, value in after + before)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        if forecast is not None:
            _forecast(axes, forecast, floor=max(smallest * 0.02, largest * ROUNDING * 1e-2))
        if run.realised is not None:
            _realised(axes, run.realised, {round for round, _ in after})
        if before and before != after:
            curve(axes, *_columns(before), label="before mixing", colour=PURPLE, dash=DASHES[2])
        curve(axes, *_columns(after), label="after mixing" if before else "measured", colour=BLUE, dash="-")
        drawing.log_axis(axes)
        axes.set_xlabel("round")
        axes.set_ylabel("consensus distance")
        drawing.set_whole_axis(axes)
        legend_above(axes)
        zoomable(axes)

    return draw(name, CONSENSUS_HEIGHT, paint)


def curve(
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    *,
    label: str,
    colour: str,
    dash: Any,
    rounds: Sequence[float] | None = None,
) -> None:
    """Draw one line; with few points these are marked, two points are not connected.

    It breaks at rounds without measurements.  `rounds`: of the points, if `x` is another quantity.
    """
    marker = "o" if len(x) <= 12 else ""
    stroke = dash if len(x) > 2 else "none"
    parts = unbroken(x if rounds is None else rounds)
    # a NaN between two parts breaks the line
    broken_x, broken_y = ([value for start, stop in parts for value in (*of[start:stop], np.nan)][:-1] for of in (x, y))
    axes.plot(broken_x, broken_y, label=label, color=colour, linestyle=stroke, marker=marker, markersize=3.5)
    alone = [start for start, stop in parts if stop == start + 1]
    if alone and not marker:
        axes.plot([x[at] for at in alone], [y[at] for at in alone], "o", color=colour, markersize=3.5)


def unbroken(rounds: Sequence[float]) -> list[tuple[int, int]]:
    """Return (first, end) of each interval of rounds with the usual distance between neighbours."""
    apart = np.diff(rounds)
    usual = float(np.median(apart)) if len(apart) else 0.0
    cuts = [0, *(int(at) + 1 for at in np.flatnonzero(apart > 1.5 * usual)), len(rounds)]
    return list(pairwise(cuts))


def logged(points: Sequence[LoggedPoint], name: str, number: str, one: str) -> str:
    """Return the mean of a number logged by loops, and the lowest and highest of its peers."""
    rounds, mean, low, high = zip(*points, strict=True)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        label = f"lowest to highest {one}"
        for start, stop in unbroken(rounds) if low != high else ():
            part = slice(start, stop)
            along, across = [*rounds[part], *rounds[part][::-1]], [*low[part], *high[part][::-1]]
            axes.fill(along, across, label=label, color=drawing.SKY, alpha=0.3, linewidth=0 if stop > start + 1 else 3)
            label = ""
        curve(axes, rounds, mean, label="mean", colour=BLUE, dash="-")
        axes.set_xlabel("round")
        axes.set_ylabel(line(number, LOGGED_LETTERS))
        drawing.set_whole_axis(axes)
        legend_above(axes)
        zoomable(axes)

    return draw(name, HEIGHT, paint)


def _forecast(axes: Axes, forecast: Band, floor: float) -> None:
    """Draw the band, or the bound, down to `floor`, so that it does not flatten the measured curve."""
    rounds, upper = forecast.rounds, forecast.upper
    seen = upper >= floor
    if forecast.lower is None:
        axes.plot(rounds[seen], upper[seen], label="forecast bound", color=QUIET, linestyle=DASHES[1], linewidth=1.4)
        return
    lower = forecast.lower.clip(min=floor)
    along = np.concatenate([rounds[seen], rounds[seen][::-1]])  # one path, which the page's script can enlarge
    across = np.concatenate([lower[seen], upper[seen][::-1]])
    label = "forecast" if forecast.foretold else "forecast band"
    axes.fill(along, across, label=label, color=drawing.SKY, alpha=0.3, linewidth=3 if _is_line(forecast) else 0)


def _realised(axes: Axes, forecast: RunForecast, measured: Container[float]) -> None:
    for number, edge in enumerate([forecast.upper] if forecast.exact else [forecast.upper, forecast.lower]):
        known = [(round, value) for round, value in enumerate(edge, start=1) if round in measured and value > 0]
        label = None if number else "of what was mixed"
        axes.plot(*_columns(known), label=label, color=drawing.ORANGE, linestyle=":", linewidth=1.6)


def _is_line(forecast: Band) -> bool:
    """Return whether the edges coincide, so that an area would be invisible."""
    return forecast.lower is not None and bool((forecast.lower == forecast.upper).all())


def _columns(points: list[tuple[int, float]]) -> tuple[list[float], list[float]]:
    return [float(x) for x, _ in points], [y for _, y in points]


GAINS_HEIGHT = 2.8


def gather_own_facts(run: RecordedRun) -> GainFacts | None:
    """Return the scores of the personal models over all participants; None if none was tested."""
    score, n = run.summary.score.metric, run.summary.n
    return gains_of(run.own_scores.values(), score, n) or gains_counted(run.own_counts, n)


def list_own_figures(run: RecordedRun) -> Iterator[tuple[str, str, str]]:
    """Yield the key figures of personal models, if participants have them."""
    facts, shown, one = gather_own_facts(run), run.summary.score.format, run.roles.one
    word = run.summary.score.metric.word
    if facts is None:
        if run.summary.exchanged:
            yield "Own models", NOTHING, NOT_MEASURED
        return
    if facts["mean_own"] is not None:
        yield "Own models, mean", shown(facts["mean_own"]), f"{word}, each on its {one}’s own held-out examples"
    least = "at least, to a twentieth, " if facts["mean_own"] is None else ""  # a coordinator that sees only counts
    yield (
        "Own models, worst",
        shown(facts["worst_own"]),
        f"{least}of {plural(facts['tested'], one)}",
    )


def who_gains(run: RecordedRun) -> Markup | None:
    """Return the section on personal models; None if none was tested."""
    score, one = run.summary.score.metric, run.roles.one
    facts = gather_own_facts(run)
    if facts is None:
        return None
    shown = run.summary.score.format
    rows = [
        ("mean", shown(facts["mean_own"]), f"over {plural(facts['tested'], one)}, each counted alike"),
        ("10th percentile", shown(facts["tenth_own"]), f"of a tenth of the {one}s the score is this or worse"),
        ("worst", shown(facts["worst_own"]), ""),
        ("worse off than with the shared model", _show_count(facts["behind_shared"]), ""),
        (
            "worse off than alone",
            _show_count(facts["behind_alone"]),
            "than by a model trained as often, without exchange",
        ),
        ("not tested", count(facts["untested"]), "without held-out examples, or never invited to an evaluated round"),
    ]
    caption = (
        f"Each {one}'s gain in {score.word} by its own model, on its own held-out examples, from the least to the most."
        " Below 0 it would have been better off with the other model."
    )
    return section(
        "Who gains",
        grid(
            figure("gains", gains(list(run.own_scores.values()), score, one), f"{one.capitalize()}s by gain", caption),
            facts_table(f"{score.heading} of personal models", rows),
        ),
    )


def gains(scores: list[OwnScores], score: Score, one: str) -> str | None:
    """Return the participants sorted by their gain, each curve separately; None if nothing can be compared."""
    lines = [
        (label, colour, marker, sorted(gain(of.personal, other, score) for of, other in pairs if other is not None))
        for label, colour, marker, pairs in (
            ("over the shared model", BLUE, "o", [(of, of.shared) for of in scores]),
            ("over a model trained alone", ORANGE, "s", [(of, of.alone) for of in scores]),
        )
    ]
    if not any(values for *_, values in lines):
        return None
    scale = 100.0 if score.percent else 1.0

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.axhline(0, color=QUIET, linewidth=0.8)
        size = 4 if len(scores) <= 100 else 1.5
        for label, colour, marker, values in lines:
            if values:
                places = range(1, len(values) + 1)
                axes.plot(
                    places,
                    [scale * value for value in values],
                    label=label,
                    color=colour,
                    marker=marker,
                    markersize=size,
                    linewidth=1,
                )
        axes.set_xlabel(f"{one}s, sorted by gain")
        axes.set_ylabel(f"gain in {score.word}" + (" (points of 100)" if score.percent else ""))
        drawing.set_whole_axis(axes)
        legend_above(axes)

    return draw("gains", GAINS_HEIGHT, paint)


def _show_count(number: int | None) -> str:
    return NOTHING if number is None else count(number)
