"""The page of `fedgossip compare`: ways to train in parallel side by side, and the result of the cost model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from fedgossip.report.page import drawing, figures
from fedgossip.report.page.comparison import BY_ROUND, column_of, overlay
from fedgossip.report.page.drawing import (
    AMBER,
    BLUE,
    DASHES,
    ORANGE,
    PALE,
    SERIES,
    SKY,
    draw,
    legend_above,
    series_style,
)
from fedgossip.report.page.markup import (  # fmt: skip
    Markup,
    document,
    figure,
    folded,
    grid,
    join,
    paragraph,
    section,
    table,
    text,
    write_atomically,
)
from fedgossip.report.page.numbers import (
    NOTHING,
    count,
    data_size,
    duration,
    number,
    percent,
    power_of_ten,
    second_unit,
)
from fedgossip.report.page.reading import RecordedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
PARTS = (("compute", BLUE), ("communicate", ORANGE), ("wait", AMBER))


@dataclass(frozen=True)
class CrossoverMap:
    """Boundary beyond which gossip with two neighbours is faster than a ring: bytes per second by latency; `here`: this
    experiment's.
    """

    latencies: Sequence[float]
    rates: Sequence[float]
    here: tuple[float, float] | None
    workers: int
    size: int


@dataclass(frozen=True)
class ParadigmPage:
    """Contents of the page.  `rows`: the table printed by --json; `runs`: one of each, with most workers."""

    title: str
    lead: str
    equal: str
    target: float | None
    rows: Sequence[Row]
    runs: Sequence[tuple[str, RecordedRun, Path]]
    staleness: Mapping[str, Mapping[int, int]]
    crossing: CrossoverMap | None
    simulated: bool
    tuned: Sequence[Row] = ()
    """For each paradigm the test losses of the tried learning rates, and the chosen rate."""


def written(path: Path, page: ParadigmPage) -> None:
    """Write the page atomically, as one file that loads nothing."""
    kind = "virtual seconds, of a simulation" if page.simulated else "seconds of real processes on one machine"
    goal = "" if page.target is None else f" The target is a test loss of {number(page.target)}."
    sentence = f"Times are {kind}. All have been given the same {page.equal} where their losses are compared.{goal}"
    failed = [row for row in page.rows if row["failed"]]
    head = join([
        paragraph("fedgossip compare", "over"), Markup(f"<h1>{text(page.title)}</h1>"), paragraph(page.lead, "lead"),
        paragraph(sentence), *(_failure(row) for row in failed),
    ])  # fmt: skip
    done = [row for row in page.rows if "rounds" in row]
    body = join(
        [
            _draw_table(page, path.parent),
            _tuned(page),
            _time(done),
            _curves(page),
            _comparison_rows(done),
            _compressed(done),
            _more(page, done),
        ]
    )
    write_atomically(path, document(f"{page.title} – fedgossip", head, body))


def _failure(row: Row) -> Markup:
    what = f"{row['paradigm']} with {row['workers']} workers failed: {row['failed'][0]}"
    return paragraph(what, "notice")


def _draw_table(page: ParadigmPage, folder: Path) -> Markup | None:
    reports = {name: report for name, _, report in page.runs}
    workers = max((row["workers"] for row in page.rows), default=0)
    several = any("speedup" in row for row in page.rows)
    heads = ["Paradigm", "Workers", "Rounds", "Time", "To target", "Sent till then", "Test loss", "Apart"]
    heads += ["Speed-up", "Efficiency"] if several else []
    rows = []
    for row in page.rows:
        name = text(row["paradigm"])
        if row["workers"] == workers and row["paradigm"] in reports:
            place = quote(Path(os.path.relpath(reports[row["paradigm"]], folder)).as_posix())
            name = Markup(f'<a href="./{place}">{name}</a>')
        if "rounds" not in row:
            rows.append([name, count(row["workers"]), text("failed"), *[text(NOTHING)] * (len(heads) - 3)])
            continue
        speedup = row.get("speedup")
        shown = [
            count(row["workers"]), count(row["rounds"]), duration(row["seconds"]), duration(row["seconds_to_target"]),
            data_size(row["bytes_to_target"]), number(row["test_loss"]), number(row["models_apart"]),
        ]  # fmt: skip
        if several:
            shown += [NOTHING if speedup is None else f"{speedup:.2f}", percent(row.get("efficiency"))]
        rows.append([name, *shown])
    why = (
        "Bytes are those that all have sent, headers and acknowledgements among them. Apart: how far the learners' "
        "models are from their mean at the end (root of the mean square), 0 where all have one."
    )
    if several:
        why += (
            " Speed-up is the time of one worker over that of these, for the same examples; efficiency is that per "
            "worker."
        )
    return section("What it took", table(heads, rows, numbers=len(heads) - 1), paragraph(why))


def _tuned(page: ParadigmPage) -> Markup | None:
    if not page.tuned:
        return None
    rates = [one["lr"] for one in page.tuned[0]["losses"]]
    lines = []
    for row in page.tuned:
        shown = [NOTHING if one["test_loss"] is None else number(one["test_loss"]) for one in row["losses"]]
        taken = NOTHING if row["lr"] is None else f"{row['lr']:g}"
        lines.append([text(row["paradigm"]), *shown, taken])
    heads = ["Paradigm", *(f"lr {rate:g}" for rate in rates), "Taken"]
    why = (
        "The test loss at the end of one run with each rate, with most workers and the first seed; runs that diverged "
        "have none. The rate of the least was taken for all runs of the paradigm above, so its first cell was chosen "
        "among five and the others were not."
    )
    return section("Learning rates", table(heads, lines, numbers=len(heads) - 1), paragraph(why))


def _time(rows: Sequence[Row]) -> Markup | None:
    workers = max((row["workers"] for row in rows), default=0)
    several = len({row["workers"] for row in rows}) > 1
    own = [row for row in rows if row["workers"] == workers]
    return section(
        "Where the time went",
        grid(
            figure(
                "parts",
                _parts(own),
                f"One run with {workers} workers",
                "What the mean learner computed, communicated (vectors arrived or left) and waited, for the same "
                "examples.",
            ),
            figure(
                "speedup",
                _speedups(rows) if several else None,
                "Speed-up",
                "The time of one worker over that of several, for the same examples; the dotted line is ideal.",
            ),
        ),
    )


def _parts(rows: Sequence[Row]) -> str | None:
    if not rows:
        return None
    unit, length = second_unit(max(sum(row[part] for part, _ in PARTS) for row in rows))

    def paint(canvas: Figure) -> None:
        axes = canvas.subplots()
        left = np.zeros(len(rows))
        places = np.arange(len(rows))
        for part, colour in PARTS:
            widths = np.array([row[part] / length for row in rows])
            axes.barh(places, widths, left=left, color=colour, label=part, height=0.7)
            left += widths
        axes.set_yticks(places, [row["paradigm"] for row in rows])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.set_xlabel(f"time ({unit})")
        legend_above(axes)

    return draw("parts", 1.1 + 0.27 * len(rows), paint)


def _speedups(rows: Sequence[Row]) -> str | None:
    names = list(dict.fromkeys(row["paradigm"] for row in rows if "speedup" in row))
    if not names:
        return None

    def paint(canvas: Figure) -> None:
        axes = canvas.subplots()
        most = max(row["workers"] for row in rows)
        axes.plot([1, most], [1, most], color=drawing.QUIET, linestyle=DASHES[2], linewidth=1.2)
        for at, name in enumerate(names):
            mine = [row for row in rows if row["paradigm"] == name and "speedup" in row]
            own = sorted((row["workers"], row["speedup"]) for row in mine)
            colour, dash, _ = series_style(at)
            axes.plot(*zip(*own, strict=True), label=name, color=colour, linestyle=dash, marker="o", markersize=3.5)
        axes.set_xlabel("workers")
        axes.set_ylabel("speed-up")
        drawing.set_whole_axis(axes)
        legend_above(axes, 2)

    return draw("speedup", figures.HEIGHT + 0.17 * ((len(names) - 1) // 2), paint)


def _curves(page: ParadigmPage) -> Markup | None:
    runs = [(name, run) for name, run, _ in page.runs]
    rows = [row for _, run in runs for row in run.network]
    if not rows:
        return None
    by_seconds = figures.measure_seconds(rows)
    by_bytes = figures.measure_all_bytes(rows)
    axes = {
        "round": (BY_ROUND, "By rounds", "One batch of every worker, or a local training of several."),
        "seconds": (by_seconds, "By time", "What a person waits for."),
        "bytes": (by_bytes, "By bytes", "What the network is paid."),
    }

    def target(plot: Axes) -> None:
        drawing.log_axis(plot)
        if page.target is not None:
            plot.axhline(page.target, color=drawing.QUIET, linewidth=1.0, linestyle=DASHES[2])

    cells = [
        figure(
            f"loss-by-{name}",
            overlay(runs, f"loss-by-{name}", column_of("test_loss"), "test loss", target, axis),
            title,
            caption,
        )
        for name, (axis, title, caption) in axes.items()
    ]
    return section("The test loss", grid(*cells), paragraph("The dotted line is the target.") if page.target else None)


def _comparison_rows(rows: Sequence[Row]) -> Markup | None:
    drawn = any(row["told"]["error"] for row in rows if row.get("told"))
    heads = ["Paradigm", "Workers", "A round", "Told", *(["±"] if drawn else []), "Off by", "Textbook"]
    heads += ["Busiest carries", "Told", "Off by"]
    lines = []
    for row in rows:
        predicted = row.get("told")
        if not predicted:
            continue
        carried, of_it = row["payload_of_busiest"], predicted["payload_of_busiest"]
        error = [duration(predicted["error"]) if predicted["error"] else ""] if drawn else []
        lines.append([
            text(row["paradigm"]), count(row["workers"]),
            duration(row["round_seconds"]), duration(predicted["round_seconds"]), *error,
            _off(row["round_seconds"], predicted["round_seconds"]), duration(predicted["formula"]),
            data_size(carried), data_size(of_it), _off(carried, of_it),
        ])  # fmt: skip
    if not lines:
        return None
    why = (
        "Told: the rounds followed step by step through equal links, vectors alone; beside what machines took in the "
        "simulation, with headers, acknowledgements and repeats. Textbook: the closed form of one round alone, and "
        "its training. Busiest: bytes of vectors in a round, in the larger direction of the busiest participant."
    )
    return section("Formula and measurement", table(heads, lines, numbers=len(heads) - 1), paragraph(why))


def _compressed(rows: Sequence[Row]) -> Markup | None:
    lines = []
    for row in rows:
        if found := row.get("compression"):
            lines.append([
                text(found["coded"]), count(row["workers"]), duration(found["dense_seconds"]),
                duration(found["coded_seconds"]), duration(found["codec_seconds"]), text(found["below"]),
                text("compressing pays" if found["pays"] else "do not compress here"),
            ])  # fmt: skip
    if not lines:
        return None
    heads = ["Paradigm", "Workers", "Without, to target", "With", "Its codec", "Pays", "Here"]
    why = (
        "To target: virtual seconds, which know bytes alone; the time of the codec is a worker's, measured on this "
        "machine, for as many rounds. Pays: the bandwidth, each way, below which fewer bytes are worth that time and "
        "the rounds more, by the cost model with each one's rounds to the target."
    )
    return section("Where compressing pays", table(heads, lines, numbers=4), paragraph(why))


def _off(measured: float, predicted: float) -> str:
    return NOTHING if not predicted else f"{(measured / predicted - 1) * 100:+.1f}\u202f%".replace("-", "−")


def _more(page: ParadigmPage, rows: Sequence[Row]) -> Markup | None:
    crossing = page.crossing
    caption = "" if crossing is None else (
        f"{crossing.workers} workers and {data_size(crossing.size)}: above the line a round of gossip with two "
        "neighbours is sooner done than one of a ring all-reduce. It says nothing of how many rounds each needs."
    )  # fmt: skip
    listed = [[text(row["paradigm"]), text(path)] for row in rows for path in row["runs"]]
    return section(
        "More",
        grid(
            figure("crossing", _map(crossing) if crossing else None, "Gossip or a ring", caption),
            figure(
                "staleness",
                _staleness(page.staleness),
                "Staleness",
                "How often the model changed while a round was trained from an older one.",
            ),
        ),
        folded("All run directories", table(["Paradigm", "Folder"], listed, numbers=0)) if listed else None,
    )


def _map(crossing: CrossoverMap) -> str:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    def paint(canvas: Figure) -> None:
        axes = canvas.subplots()
        x, y = np.array(crossing.latencies), np.array(crossing.rates)
        top = max(y.max(), crossing.here[1] if crossing.here else 0.0) * 10
        low = min(y.min(), crossing.here[1] if crossing.here else math.inf) / 10
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.fill_between(x, y, top, color=SKY, alpha=0.35, linewidth=0)
        axes.fill_between(x, low, y, color=PALE, linewidth=0)
        axes.plot(x, y, color=BLUE)
        axes.text(x[72], y[72] * 12, "gossip", color=drawing.INK)
        axes.text(x[22], y[22] / 30, "ring", color=drawing.INK)
        if crossing.here:
            axes.plot(*crossing.here, "o", color=ORANGE, markersize=8)
            axes.annotate("here", crossing.here, textcoords="offset points", xytext=(8, 6), color=drawing.INK)
        axes.set_xlim(x[0], x[-1])
        axes.set_ylim(low, top)
        for side in (axes.xaxis, axes.yaxis):
            side.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))
            side.set_minor_formatter(NullFormatter())
        axes.set_xlabel("latency (s)")
        axes.set_ylabel("bandwidth (bytes/s)")

    return draw("crossing", figures.HEIGHT, paint)


def _staleness(found: Mapping[str, Mapping[int, int]]) -> str | None:
    if not found:
        return None

    def paint(canvas: Figure) -> None:
        axes = canvas.subplots()
        width = 0.8 / len(found)
        for at, (name, counts) in enumerate(found.items()):
            places = np.array(sorted(counts)) + (at - (len(found) - 1) / 2) * width
            shares = np.array([counts[key] for key in sorted(counts)]) / sum(counts.values())
            axes.bar(places, shares, width=width, color=SERIES[at % len(SERIES)], label=name)
        drawing.percent_axis(axes)
        axes.set_xlabel("changes of the model meanwhile")
        axes.set_ylabel("share of the rounds")
        drawing.set_whole_axis(axes)
        legend_above(axes, 2)

    return draw("staleness", figures.HEIGHT, paint)
