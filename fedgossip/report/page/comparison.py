"""Several runs side by side: one table, their curves in common axes, their graphs in a row."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedgossip.base.scores import Score
from fedgossip.base.untrusted_text import line
from fedgossip.report.page import drawing, figures, graphs
from fedgossip.report.page.drawing import draw, series_style
from fedgossip.report.page.markup import Markup, figure, grid, join, paragraph, section, table, text
from fedgossip.report.page.numbers import byte_unit, count, data_size, duration, number, percent, plural
from fedgossip.report.page.participation import ReportedRound
from fedgossip.report.page.reading import RecordedRun
from fedgossip.report.page.reasons import incomplete, notice

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
import math
from typing import TYPE_CHECKING

import numpy as np

from fedgossip.core.forecasts import ROUNDING

# Forecasts and results of several runs: one small picture each, in common axes.


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS, WIDTH, HEIGHT = 5, 9.6, 1.9
"""Number of pictures in a row; sizes in inches: width of all, height of a row."""
MOST = 40
"""Maximum number of drawn runs."""


def forecasts(runs: Sequence[tuple[str, RecordedRun]]) -> Markup | None:
    """Return the section; None if no run has a forecast of the distance."""
    forecast_runs = [(name, run) for name, run in runs if run.foretold and run.foretold.rounds][:MOST]
    if not forecast_runs:
        return None
    rows = math.ceil(len(forecast_runs) / COLUMNS)

    def paint(canvas: Figure) -> None:
        columns = min(COLUMNS, len(forecast_runs))
        every = list(canvas.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
        for axes, (name, run) in zip(every, forecast_runs, strict=False):
            _paint(axes, name, run)
        for axes in every[len(forecast_runs) :]:
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
    forecast, measured = run.foretold, run.series("consensus_distance")
    assert forecast is not None
    largest = max((*forecast.upper, *(value for _, value in measured)), default=1.0)
    rounds, floor = np.arange(1, forecast.rounds + 1), max(largest, 1e-300) * ROUNDING
    low, high = (np.clip(edge, floor, None) for edge in (forecast.lower, forecast.upper))
    same = bool((low == high).all())
    along, across = np.concatenate([rounds, rounds[::-1]]), np.concatenate([low, high[::-1]])
    axes.fill(along, across, color=drawing.SKY, alpha=0.4, linewidth=3 if same else 0)
    points = [(row.round, value) for row, value in measured if row.round and value > floor]
    axes.plot([at for at, _ in points], [value for _, value in points], color=drawing.BLUE, linewidth=1.2)
    kept = run.summary.forecast_kept
    axes.set_title(name + (f" ({percent(kept)})" if kept is not None else ""), fontsize=8)
    drawing.log_axis(axes)


# Terms of a comparison: separate ones for networks of peers, for federated runs, and for both together.


@dataclass(frozen=True)
class RoleWords:
    """The terms."""

    members: str
    method: str
    model: str
    in_table: str
    """The model as the head of a column."""
    of_model: str
    """The model in a sentence."""
    senders: str
    learners: str


OF_PEERS = RoleWords(
    members="Peers",
    method="Graph",
    model="averaged model",
    in_table="Averaged model",
    of_model="the average of all models in each round: what the network knows together",
    senders="all peers together",
    learners="the peers",
)
OF_CLIENTS = RoleWords(
    members="Clients",
    method="Algorithm",
    model="global model",
    in_table="Global model",
    of_model="the coordinator’s model after each round",
    senders="all together",
    learners="the participants",
)
OF_BOTH = RoleWords(
    members="Members",
    method="Graph or algorithm",
    model="averaged or global model",
    in_table="Model",
    of_model="the average of all peers’ models, or of the coordinator’s model, after each round",
    senders="all together",
    learners="the learners",
)


def terms_of(runs: Sequence[RecordedRun]) -> RoleWords:
    """Return the words for a page with these runs."""
    kinds = {run.summary.led for run in runs}
    return OF_BOTH if len(kinds) > 1 else OF_CLIENTS if True in kinds else OF_PEERS


def method_of(run: RecordedRun) -> str:
    """Return the method of a run: its graph; or its algorithm, and whether a coordinator saw updates."""
    summary = run.summary
    if not summary.led:
        return summary.graph or summary.algorithm
    secrecy = {True: ", secure sum", False: ", in the clear", None: ""}[summary.secure]
    return summary.algorithm + secrecy


Named = tuple[str, RecordedRun]
DRIVERS = {
    "sim": "simulated",
    "stacked": "stacked",
    "local": "real processes",
    "peers": "started one by one",
    "slurm": "tasks of Slurm",
    "ray": "actors of Ray",
}


@dataclass(frozen=True)
class ComparedRun:
    """A run and the path of its own report, which may not exist."""

    run: RecordedRun
    report: Path


def head_and_body(entries: Sequence[ComparedRun], title: str, folder: Path) -> tuple[Markup, Markup]:
    """Return the head and the body of the page, with links relative to `folder`."""
    names = _names([entry.run for entry in entries])
    runs = [(name, entry.run) for name, entry in zip(names, entries, strict=True)]
    head = join(
        [
            paragraph("Comparison of fedgossip runs", "over"),
            Markup(f"<h1>{text(title)}</h1>"),
            paragraph(_verdict(runs), "lead"),
            *(notice(incomplete(name, run)) for name, run in runs),
        ]
    )
    body = join([_table(runs, entries, folder), _curves(runs), forecasts(runs), _graphs(runs)])
    return head, body


def _names(runs: Sequence[RecordedRun]) -> list[str]:
    """Return a different name for each run; equal names get a driver or a number."""
    names = [run.name for run in runs]
    descriptions: tuple[Callable[[RecordedRun], str], ...] = (
        method_of,
        lambda run: DRIVERS.get(run.summary.driver, run.summary.driver),
    )
    for describe in descriptions:
        for name in [name for name, amount in Counter(names).items() if amount > 1]:
            alike = [at for at, each in enumerate(names) if each == name]
            if len({describe(runs[at]) for at in alike}) > 1:
                for at in alike:
                    names[at] = f"{name}, {describe(runs[at])}"
    total, seen = Counter(names), Counter[str]()
    for at, name in enumerate(names):
        seen[name] += 1
        if total[name] > 1:
            names[at] = f"{name} #{seen[name]}"
    return names


def _verdict(runs: Sequence[Named]) -> str:
    def best(pick: Callable[[RecordedRun], float | None]) -> tuple[float, str] | None:
        known = {name: value for name, run in runs if (value := pick(run)) is not None}
        top = metric.best(known.values()) if known else None
        return next(((value, name) for name, value in known.items() if value == top), None)

    metric, shown = metric_of(runs), runs[0][1].summary.score.format
    averaged = best(_scored(metric, "averaged"))
    worst = best(_scored(metric, "worst_peer"))
    text = f"{plural(len(runs), 'run')} side by side."
    if averaged:
        text += f" The {terms_of([run for _, run in runs]).model} is best in “{averaged[1]}” ({shown(averaged[0])})"
        text += f", the worst peer is best off in “{worst[1]}” ({shown(worst[0])})." if worst else "."
    return text


def _table(runs: Sequence[Named], entries: Sequence[ComparedRun], folder: Path) -> Markup:
    terms = terms_of([run for _, run in runs])
    metric, shown = metric_of(runs), runs[0][1].summary.score.format
    columns: list[
        tuple[str, Callable[[RecordedRun], float | None], Callable[..., str], Callable[..., float] | None]
    ] = [
        (terms.members, lambda run: run.summary.n, lambda value: count(int(value)), None),
        ("Gap", lambda run: run.summary.forecast.spectral_gap, number, None),
        ("n_W", lambda run: run.summary.forecast.n_w, number, None),
        (terms.in_table, _scored(metric, "averaged"), shown, metric.best),
        ("Mean peer", _scored(metric, "mean_peer"), shown, metric.best),
        ("Worst peer", _scored(metric, "worst_peer"), shown, metric.best),
        ("Consensus distance", lambda run: run.summary.consensus_distance, number, min),
        ("Forecast kept", lambda run: run.summary.forecast_kept, percent, None),
        ("At the clients", _pick_client_score(metric), shown, metric.best),
        ("Abandoned", _abandoned, lambda value: count(int(value)), None),
        ("Privacy ε", lambda run: run.summary.privacy.epsilon if run.summary.privacy else None, number, None),
        ("Sent", lambda run: run.summary.bytes_sent, data_size, None),
        ("Time", lambda run: run.summary.seconds, duration, None),
    ]
    columns = [column for column in columns if any(column[1](run) is not None for _, run in runs)]
    rows = []
    for at, (name, run) in enumerate(runs):
        cells = [_linked(at, name, entries[at].report, folder), method_of(run)]
        for _, pick, shown, better in columns:
            value = pick(run)
            known = [other for _, each in runs if (other := pick(each)) is not None]
            first = better is not None and value is not None and len(set(known)) > 1 and value == better(known)
            cell = text("–" if value is None else shown(value))
            cells.append(Markup(f'<span class="best">{cell}</span>') if first else cell)
        rows.append(cells)
    return table(["Run", terms.method, *(column[0] for column in columns)], rows, numbers=len(columns))


def metric_of(runs: Sequence[Named]) -> Score:
    """Return the score for comparing the runs, that of the first run; runs with another have no value."""
    return runs[0][1].summary.score.metric


def _scored(metric: Score, which: str) -> Callable[[RecordedRun], float | None]:
    return lambda run: getattr(run.summary.score, which) if run.summary.score.metric == metric else None


def _pick_client_score(metric: Score) -> Callable[[RecordedRun], float | None]:
    def pick(run: RecordedRun) -> float | None:
        tested = run.participation.at_clients if run.participation else {}
        return tested[max(tested)][0] if tested and run.summary.score.metric == metric else None

    return pick


def _abandoned(run: RecordedRun) -> float | None:
    return len(run.participation.abandoned) if run.participation else None


def _linked(at: int, name: str, report: Path, folder: Path) -> Markup:
    colour, _, _ = series_style(at)
    square = f'<rect width="1" height="1" style="fill: {colour}"/>'
    swatch = f'<svg class="swatch" viewBox="0 0 1 1" aria-hidden="true">{square}</svg>'
    if not report.is_file():
        return Markup(f"{swatch}{text(name)}")
    from urllib.parse import quote

    place = quote(Path(os.path.relpath(report, folder)).as_posix())
    return Markup(f'{swatch}<a href="./{place}">{text(name)}</a>')


def _curves(runs: Sequence[Named]) -> Markup | None:
    def measure_bytes(row: ReportedRound) -> float:
        return row.bytes_sent / size

    def draw_model(name: str, axis: figures.Axis = BY_ROUND) -> str | None:
        label = f"test {metric.word}, {terms.model}"
        return overlay(runs, name, _restrict_to_metric(metric, column_of("score_averaged")), label, shape, axis)

    metric = metric_of(runs)
    shape, worst = drawing.percent_axis if metric.percent else None, f"test {metric.word}, worst peer"
    terms = terms_of([run for _, run in runs])
    unit, size = byte_unit(max((row.bytes_sent for _, run in runs for row in run.network), default=0))
    distance, at_clients = "consensus distance", f"{metric.word} at the clients"
    return section(
        "The curves",
        grid(
            figure(
                "averaged-by-round",
                draw_model("averaged-by-round"),
                terms.model.capitalize(),
                f"Test {metric.word} of {terms.of_model}{metric.note}.",
            ),
            figure(
                "worst-by-round",
                overlay(
                    runs, "worst-by-round", _restrict_to_metric(metric, column_of("score_worst_peer")), worst, shape
                ),
                "Worst peer",
                f"Test {metric.word} of the peer that does worst in each round: what everyone can rely on.",
            ),
            figure(
                "averaged-by-bytes",
                draw_model("averaged-by-bytes", (f"sent by {terms.senders} ({unit})", measure_bytes)),
                f"{terms.model.capitalize()} by bytes",
                f"The same against the bytes that {terms.senders} have sent.",
            ),
            figure(
                "at-clients-by-round",
                overlay(runs, "at-clients-by-round", _restrict_to_metric(metric, _tested), at_clients, shape),
                "At the clients",
                f"Mean {metric.word} of the global model on examples that the clients keep to test on.",
            ),
            figure(
                "consensus-by-round",
                overlay(runs, "consensus-by-round", _disagreement, distance, drawing.log_axis),
                "Consensus distance",
                "How far the models of the peers lie from their mean after each round: lower is closer agreement.",
            ),
            figure(
                "loss-by-round",
                overlay(runs, "loss-by-round", column_of("loss"), "training loss", None),
                "Training loss",
                f"The quantity that training minimises, as a mean over {terms.learners}.",
            ),
            figure(
                "bought",
                _bought(runs, "bought"),
                "What the graph bought",
                f"The final {metric.word} of the worst peer against the number of neighbours whose updates a peer "
                "really averages, which the graph alone decides.",
            ),
        ),
    )


Series = list[tuple[ReportedRound, float]]
BY_ROUND: figures.Axis = "round", lambda row: row.round


def column_of(name: str) -> Callable[[RecordedRun], Series]:
    return lambda run: run.series(name)


def _restrict_to_metric(metric: Score, pick: Callable[[RecordedRun], Series]) -> Callable[[RecordedRun], Series]:
    """Return `pick` for the runs judged by this metric."""
    return lambda run: pick(run) if run.summary.score.metric == metric else []


def _disagreement(run: RecordedRun) -> Series:
    """Return the consensus distance without zeros, for a logarithmic axis."""
    return [pair for pair in run.series("consensus_distance") if pair[1] > 0]


def _tested(run: RecordedRun) -> Series:
    tested = run.participation.at_clients if run.participation else {}
    return [(row, tested[row.round][0]) for row in run.network if row.round in tested]


def overlay(
    runs: Sequence[Named],
    name: str,
    pick: Callable[[RecordedRun], Series],
    label_of_y: str,
    shape: Callable[[Axes], None] | None,
    axis: figures.Axis = BY_ROUND,
) -> str | None:
    """Return one curve of every run in common axes; None if no run has one."""
    lines = [(at, label, pick(run)) for at, (label, run) in enumerate(runs)]
    lines = [line for line in lines if line[2] or not runs[line[0]][1].summary.led]
    if not any(series for _, _, series in lines):
        return None
    columns, height = legend_size(runs)

    def paint(canvas: Figure) -> None:
        axes = canvas.subplots()
        label_of_x, place = axis
        for at, label, series in lines:
            x, y = [place(row) for row, _ in series], [value for _, value in series]
            colour, dash, _ = series_style(at)
            rounds = [row.round for row, _ in series]
            figures.curve(axes, x, y, label=line(label, 28), colour=colour, dash=dash, rounds=rounds)
        axes.set_xlabel(label_of_x)
        axes.set_ylabel(label_of_y)
        if label_of_x == "round":
            drawing.set_whole_axis(axes)
        if shape is not None:
            shape(axes)
        drawing.legend_above(axes, columns)
        drawing.zoomable(axes)

    return draw(name, height, paint)


def _bought(runs: Sequence[Named], name: str) -> str | None:
    """Return the worst peer's score over n_W, a mark per run; None for fewer than two."""
    metric = metric_of(runs)
    worst = _scored(metric, "worst_peer")
    marks = [(at, label, run.summary.forecast.n_w, worst(run)) for at, (label, run) in enumerate(runs)]
    known = [(at, label, x, y) for at, label, x, y in marks if x is not None and y is not None]
    if len(known) < 2:
        return None
    columns, height = legend_size(runs)

    def paint(canvas: Figure) -> None:
        axes = canvas.subplots()
        for at, label, x, y in known:
            colour, _, shape = series_style(at)
            axes.plot([x], [y], shape, color=colour, markersize=7, label=line(label, 28))
        axes.margins(0.12)
        axes.set_xlabel("effective neighbours n_W")
        axes.set_ylabel(f"test {metric.word}, worst peer")
        if metric.percent:
            drawing.percent_axis(axes)
        drawing.legend_above(axes, columns)

    return draw(name, height, paint)


def legend_size(runs: Sequence[Named]) -> tuple[int, float]:
    """Return the columns of the legend and the height, in inches, of a figure with room for it."""
    columns = 3 if max(len(label) for label, _ in runs) <= 12 else 2
    return columns, figures.HEIGHT + 0.17 * ((len(runs) - 1) // columns)


def _graphs(runs: Sequence[Named]) -> Markup | None:
    def pictures() -> Iterable[Markup | None]:
        for at, (name, run) in enumerate(runs):
            graph = run.summary.topology
            if graph is None or not graphs.drawable(graph):
                continue
            known = run.summary.forecast
            text = f"{plural(graph.n, 'peer')}, {plural(len(graph.edges), 'edge')}"
            text += "" if known.n_w is None else f", n_W {number(known.n_w)}"
            yield figure(f"graph-{at}", graphs.miniature(graph, f"graph-{at}"), name, f"{text}.")

    return section("The graphs", grid(*pictures(), kind="grid small"))
