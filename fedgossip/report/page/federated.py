"""The sections of a federated run: one model of a coordinator, and the clients that took part in its rounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgossip.privacy.accounting import guarantee, meaning
from fedgossip.report.page import drawing, figures, sections
from fedgossip.report.page.drawing import (
    AMBER,
    BLUE,
    DASHES,
    GREEN,
    INK,
    ORANGE,
    QUIET,
    SKY,
    draw,
    legend_above,
    rectangles,
    stack,
    zoomable,
)
from fedgossip.report.page.figures import Line, who_gains
from fedgossip.report.page.forecast import describe_losses
from fedgossip.report.page.markup import Markup, cards, facts_table, figure, folded, grid, paragraph, section, table
from fedgossip.report.page.numbers import NOTHING, count, data_size, duration, number, number_round, plural
from fedgossip.report.page.participation import Participation, ReportedEvent, Took
from fedgossip.report.page.reading import PrivacySpent, RecordedRun
from fedgossip.report.page.reasons import explain_abandoned, gravest_first, reason

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedgossip.report.page.drawing import Places
if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_ROUNDS_LISTED = 40
IN_THE_CLEAR = (
    "In the clear: the coordinator saw the update of every single client.",
    "An update reveals much about the examples behind it.  A secure sum (coordinator.secure.on = true) hides it among"
    " the others, where an algorithm needs no more than their sum.",
)
FEDBUFF = "fedbuff"


def parts(run: RecordedRun, took: Participation) -> Iterable[Markup | None]:
    """Yield the sections of the page, in reading order."""
    yield learning(run, took)
    yield who_gains(run)
    yield sections.logged(run)
    yield participation(run, took)
    yield privacy(run, took)
    yield clients(run, took)
    yield sections.first_rounds(run)
    yield coordinator(run, took)
    yield events(run)
    yield sections.provenance(run, "the global model")


def head(run: RecordedRun, took: Participation) -> Markup:
    """Return the name of the run, its method, whether the coordinator saw updates, and its key figures."""
    summary = run.summary
    some = summary.cohort is not None and summary.cohort < summary.n and summary.algorithm != FEDBUFF
    what = [
        summary.algorithm,
        plural(summary.n, run.roles.one),
        f"{count(summary.cohort)} in a round" if some else "",
        plural(summary.rounds, "round"),
        *_secrecy(summary.secure),
    ]
    warning = IN_THE_CLEAR if summary.secure is False else None
    return sections.head_of(run, what, cards(_key_figures(run, took)), warning)


def _secrecy(secure: bool | None) -> Iterable[Markup]:
    if secure is not None:
        word, kind = ("secure sum", "good") if secure else ("NO secure sum", "warn")
        yield Markup(f'<li class="{kind}">{word}</li>')


def _key_figures(run: RecordedRun, took: Participation) -> Iterable[tuple[str, str, str]]:
    summary, lost = run.summary, len(took.abandoned)
    score = summary.score
    yield from figures.list_own_figures(run)
    if not summary.distils:
        yield from _global(run)
    if took.at_clients:
        at = max(took.at_clients)
        mean, worst = took.at_clients[at]
        lowest = "" if worst is None else f", worst {score.format(worst)}"
        noisy = ", with noise" if summary.privacy else ""  # without it a budget hides the losses
        yield "At the clients", score.format(mean), f"mean on their own examples{lowest}, in round {count(at)}{noisy}"
    if summary.distils:  # the model belongs to no participant, so it is not the run's result
        yield from _global(run)
    yield "Abandoned", count(lost), f"of {plural(summary.rounds, 'round')}" + (": changed nothing" if lost else "")
    if summary.privacy is not None:
        yield card(summary.privacy)
    yield "Sent", data_size(summary.bytes_sent), _per_contribution(run, took)
    yield from sections.time_and_digest(run, "of the global model")


def _global(run: RecordedRun) -> Iterable[tuple[str, str, str]]:
    summary, score = run.summary, run.summary.score
    name, of = ("Distilled model", "from the mean logits: ") if summary.distils else ("Global model", "")
    if score.averaged is not None:
        word = f"{score.metric.word} on the common test set{score.metric.note}{run.measured_when}"
        yield name, score.format(score.averaged), f"{of}{word}"
    elif summary.test_loss is not None:
        yield name, number(summary.test_loss), f"{of}loss"


def _per_contribution(run: RecordedRun, took: Participation) -> str:
    total = sum(took.contributions.values())
    return f"{data_size(run.summary.bytes_sent / total)} per contribution" if total else "by all together"


# --- learning ---------------------------------------------------------------------------------------------------------


def lines(run: RecordedRun, took: Participation) -> list[Line]:
    """Return the score of the global model, and the clients' measurements of it, if any."""
    found: list[Line] = [("global model", BLUE, "-", run.series("score_averaged"))]
    rows = {row.round: row for row in run.network}
    tested = [(rows[at], *values) for at, values in sorted(took.at_clients.items()) if at in rows]
    found.append(("mean client", GREEN, DASHES[1], [(row, mean) for row, mean, _ in tested]))
    worst = [(row, lowest) for row, _, lowest in tested if lowest is not None]
    return [*found, ("worst client", ORANGE, DASHES[2], worst)]


def learning(run: RecordedRun, took: Participation) -> Markup | None:
    """Return the learning curves."""
    drawn, one = lines(run, took), run.roles.one
    score = run.summary.score.metric
    of_what = score.word if took.at_clients else f"test {score.word}"
    model = "model that is distilled from the mean logits" if run.summary.distils else "global model"
    text = f"{score.heading} of the {model} on the common test set"
    if took.at_clients:
        text += f", and at the {one}s, on examples of their own"
    text += f"{score.note}."

    def curve(name: str, axis: figures.ByRow, title: str, caption: str) -> Markup | None:
        return figure(name, figures.scores(run, name, axis, drawn, of_what), title, caption)

    losses = figures.loss(run, "loss", f"on the {run.roles.one}s’ own data")
    what = "The quantity that training minimises, as a mean over the participants of the round."
    if not run.series("loss"):  # training under a budget reports no loss
        what = "The loss of the global model on the common test set."
    return section(
        "What was learned",
        grid(
            curve("score-by-round", figures.measure_rounds, f"{score.heading} by round", text),
            figure("loss", losses, "Loss by round", what + describe_losses(run)),
            curve("score-by-bytes", figures.measure_all_bytes, f"{score.heading} by bytes",
                  f"The same against the bytes sent by {run.roles.label(len(run.learners))} and {one}s together."),
            curve("score-by-time", figures.measure_seconds, f"{score.heading} by time",
                  "The same against the time that has passed, waiting included."),
        ),
    )  # fmt: skip


# --- participation ----------------------------------------------------------------------------------------------------


def participation(run: RecordedRun, took: Participation) -> Markup | None:
    """Return the number of contributions to each round, their clients, and the reasons of abandoned rounds."""
    if not took.rounds:
        return None
    wanted = None if run.summary.algorithm == FEDBUFF else run.summary.cohort
    return section(
        "Who took part",
        paragraph(attended(took, wanted), "lead"),
        grid(
            figure(
                "contributions",
                contributions(took, wanted, "contributions"),
                "Contributions by round",
                f"How many {run.roles.one}s’ updates are in the sum of each round"
                + ("; a cross marks a round that was abandoned." if took.abandoned else "."),
            ),
            figure(
                "lanes",
                lanes(took, "lanes", _counted(run)),
                f"{run.roles.one.capitalize()} by {run.roles.one}",
                _lanes_caption(run, took),
            ),
            figure(
                "turns",
                turns(took, "turns"),
                f"{run.roles.one.capitalize()} by {run.roles.one}",
                f"In how many rounds each {run.roles.one} has trained.",
            ),
        ),
        _abandoned(took),
    )


def attended(took: Participation, wanted: int | None) -> str:
    """Return the number of participants and of abandoned rounds, in words."""
    counts = list(took.contributions.values())
    low, high = min(counts, default=0), max(counts, default=0)
    if not counts:
        text = "No round had enough contributions."
    elif low == high:
        who = f"all {plural(high, took.one)}" if high == took.clients else plural(high, took.one)
        text = f"Every round that counted holds the updates of {who}."
    else:
        mean = number(sum(counts) / len(counts))
        text = f"A round holds the updates of {low} to {high} {took.one}s, {mean} on average"
        text += "." if wanted is None else f"; {wanted} were wanted."
    if took.abandoned:
        verb, it = ("was", "it") if len(took.abandoned) == 1 else ("were", "they")
        lost = f"{plural(len(took.abandoned), 'round')} of {count(took.rounds)}"
        text += f" {lost} {verb} abandoned: {it} changed nothing."
    return text


def _counted(run: RecordedRun) -> str:
    """Return the meaning of "trained" for a client of FedBuff."""
    return "trained" if run.summary.algorithm == FEDBUFF else "in the sum"


def _lanes_caption(run: RecordedRun, took: Participation) -> str:
    text = f"What each {run.roles.one} did in each round"
    text += ", by the round whose model it trained from." if run.summary.algorithm == FEDBUFF else "."
    return text + (" A grey column is a round that was abandoned." if took.abandoned else "")


def _abandoned(took: Participation) -> Markup | None:
    if not took.abandoned:
        return None
    listed = sorted(took.abandoned.items())[:MOST_ROUNDS_LISTED]
    rows = [[count(round), explain_abandoned(facts)] for round, facts in listed]
    more = len(took.abandoned) - len(rows)
    if more:
        rows.append([NOTHING, f"{plural(more, 'more round')} in metrics.jsonl"])
    return table(["Abandoned round", "Why"], rows, numbers=0)


# --- the clients and their coordinator --------------------------------------------------------------------------------


def clients(run: RecordedRun, took: Participation) -> Markup | None:
    """Return the data, actions and results of each client."""
    data, one = run.summary.data, run.roles.one
    return section(
        f"The {one}s",
        grid(
            figure(
                "data",
                drawing.data_shares(run, "data"),
                f"Data of each {one}",
                sections.describe_examples(data, one),
            ),
            figure(
                "time",
                drawing.time_spent(run, "time"),
                "Where the time went",
                f"How long each {one} trained, and communicated (models arrived or left), over all rounds; "
                "the rest it waited, or took its part in the sum.",
            ),
        ),
        _client_table(run, took) if run.summary.n <= sections.MOST_PEERS_LISTED else None,
    )


def _client_table(run: RecordedRun, took: Participation) -> Markup | None:
    if not any(took.turns):
        return None
    tested = any(client.score is not None for client in run.learners)
    learned = any(client.loss is not None for client in run.learners)
    scored = [run.summary.score.metric.heading] if tested else []
    heads = [run.roles.one.capitalize(), "Rounds", *scored, *(["Loss"] if learned else [])]
    heads += ["Sent", "Received", *(name.capitalize() for name, _ in drawing.CLIENT_ACTIVITIES)]
    rows = []
    for node, client in enumerate(run.learners):
        seconds = drawing.time_of(run, client, led=True)
        rows.append(
            [
                str(node),
                count(took.turns[node]),
                *([run.summary.score.format(client.score)] if tested else []),
                *([number(client.loss)] if learned else []),
                data_size(client.bytes_sent),
                data_size(client.bytes_received),
                *(duration(seconds[activity]) for activity, _ in drawing.CLIENT_ACTIVITIES),
            ]
        )
    listed = table(heads, rows, numbers=len(heads) - 1)
    return listed if run.summary.n <= 20 else folded(f"All {plural(run.summary.n, run.roles.one)}", listed)


def coordinator(run: RecordedRun, took: Participation) -> Markup | None:
    """Return the coordinator's own account, separate from those of its clients."""
    own, secure = run.peers[run.summary.n], run.summary.secure
    if not own.rounds:
        return None
    saw = {True: "sums alone", False: "every update", None: NOTHING}[secure]
    busy = own.seconds["mixing"]
    rows = [
        ("Rounds that counted", f"{count(len(took.contributions))} of {count(own.rounds)}", ""),
        ("What it saw", saw, f"of what the {run.roles.one}s trained"),
        ("Sent", data_size(own.bytes_sent), "models, and what a secure sum needs" if secure else "models"),
        ("Received", data_size(own.bytes_received), ""),
        *([("Summing", duration(busy), "over all rounds")] if busy else []),
    ]
    return section(f"The {run.roles.label(len(run.learners))}", grid(facts_table("Its own account", rows)))


# --- events -----------------------------------------------------------------------------------------------------------


def events(run: RecordedRun) -> Markup | None:
    """Return the other events, counted and then one by one, without those in the section on rounds."""
    counts = run.summary.events or Counter(event.name for event in run.events)
    if not counts:
        return None
    text = ", ".join(f"{name.replace('_', ' ')}: {count(amount)}" for name, amount in gravest_first(counts))
    found = sections.spells(run.events)
    rows = [_event(run, event, last) for event, _, last, _ in found[: sections.MOST_EVENTS_LISTED]]
    return section(
        "Events and faults",
        paragraph(f"In this run – {text}.", "lead"),
        sections.refusals(run),
        table(["Round", "Who", "Event", "What"], rows, numbers=0) if rows else None,
        paragraph("The first are listed; all are in metrics.jsonl.", "lead") if len(found) > len(rows) else None,
    )


def _event(run: RecordedRun, event: ReportedEvent, last: int) -> list[str]:
    shown = number_round(event.name, event.round, run.roles)
    until = "" if last == event.round else f" – {count(number_round(event.name, last, run.roles))}"
    who = NOTHING if event.peer is None else run.roles.label(event.peer)
    about = event.value
    what = run.roles.label(about) if event.name == "gone" and isinstance(about, int) else _value(about)
    return [NOTHING if shown < 0 else count(shown) + until, who, event.name.replace("_", " "), what[:80]]


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        facts = {str(key): reason(one) if key == "reason" else _value(one) for key, one in value.items()}
        return ", ".join(f"{'client' if key == 'peer' else key} {one}" for key, one in facts.items() if one)
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return "" if value is None else str(value)


# Figures of participation: contributions by round, and a lane for each client.


HEIGHT = 3.1
MOST_COLUMNS = 160
"""Maximum number of columns of a figure; with more rounds each column represents several."""
MOST_APART = 60
"""Maximum number of columns drawn with space between them."""
LANE_HEIGHT = 0.055  # inches
OTHERS = (
    (Took.UNCOUNTED, SKY, "trained, not in the sum"),
    (Took.ABANDONED, AMBER, "trained, round abandoned"),
    (Took.SILENT, ORANGE, "invited, silent"),
)
SHADES = (0.25, 0.5, 0.75, 1.0)
"""Opacities of a column for several rounds, by the share of them that a client took part in."""


def height(took: Participation) -> float:
    """Return the height in inches of both figures, which are drawn side by side."""
    return max(HEIGHT, 1.1 + LANE_HEIGHT * took.clients) if took.followed else HEIGHT


def contributions(took: Participation, wanted: int | None, name: str) -> str | None:
    """Return the contributions of each round as bars, with abandoned rounds marked; None if no round ended."""
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
        _set_whole_ticks(axes)
        legend_above(axes)

    return draw(name, height(took), paint)


def lanes(took: Participation, name: str, counted: str = "in the sum") -> str | None:
    """Return a lane for each client with its part in each round, None if unknown; counted: the word for a counted
    client.
    """
    rounds = took.rounds
    if not took.followed or not rounds:
        return None
    table = took.table()
    group = math.ceil(rounds / MOST_COLUMNS)
    kinds = _split_kinds(table, counted) if group == 1 else _shade_shares(table, group)

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
        _set_whole_ticks(axes)
        legend_above(axes, 2)

    return draw(name, height(took), paint)


def turns(took: Participation, name: str) -> str | None:
    """Return the number of rounds of each of many clients, as bars; None if unknown, or if lanes show it."""
    if took.followed or not any(took.turns):
        return None

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        stack(axes, np.array([took.turns], dtype=np.float64), [BLUE], [], took.one)
        axes.set_ylabel("rounds")

    return draw(name, HEIGHT, paint)


Kind = tuple["NDArray[np.bool_]", dict[str, Any], str]
"""Its cells, [clients, columns]; its fill; its name."""


def _split_kinds(table: NDArray[np.int8], counted: str) -> list[Kind]:
    kinds = ((Took.COUNTED, BLUE, counted), *OTHERS)
    found: list[Kind] = [(table == took, {"facecolor": colour}, label) for took, colour, label in kinds]
    return [kind for kind in found if kind[0].any()]


def _shade_shares(table: NDArray[np.int8], group: int) -> list[Kind]:
    _, shares = _means((table == Took.COUNTED).astype(np.float64), group)
    found: list[Kind] = []
    for low, shade in zip((0.0, *SHADES), SHADES, strict=False):
        label = f"in up to {shade:.0%}".replace("%", "\u202f%") + (" of the sums" if shade == SHADES[0] else "")
        found.append(((shares > low) & (shares <= shade), {"facecolor": BLUE, "alpha": shade}, label))
    return found


def _lanes(axes: Axes, mask: NDArray[np.bool_], group: int, rounds: int, **fill: Any) -> None:
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
    starts = np.arange(0, values.shape[-1], group)
    ends = np.minimum(starts + group, values.shape[-1])
    return starts, np.add.reduceat(values, starts, axis=-1) / (ends - starts)


def _set_whole_ticks(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    drawing.set_whole_axis(axes)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))


# The spent privacy budget, round by round, against its limit.


UNITS = {
    "client": "protected: whether a client took part at all",
    "record": "protected: whether a client had one example or not",
}


def card(privacy: PrivacySpent) -> tuple[str, str, str]:
    """Return the key figure."""
    text = (
        "" if privacy.max_epsilon is None else f"of at most {number(privacy.max_epsilon)}",
        "" if privacy.delta is None else f"δ\u202f=\u202f{number(privacy.delta)}",
        privacy.unit and f"per {privacy.unit}",
        "" if privacy.bound is None else guarantee(privacy.bound),
    )
    return "Privacy ε", number(privacy.epsilon), ", ".join(part for part in text if part)


def privacy(run: RecordedRun, took: Participation) -> Markup | None:
    """Return epsilon by round against its limit; None for a run without differential privacy."""
    known = run.summary.privacy
    if known is None:
        return None
    return section(
        "Privacy",
        grid(
            figure(
                "epsilon",
                _draw_spending(took, known, "epsilon"),
                "Privacy spent by round",
                "The ε that the rounds together have spent: smaller reveals less. The round that would cross the limit"
                " is refused.",
            ),
            facts_table("What is promised", _facts(known)),
        ),
    )


def _facts(known: PrivacySpent) -> Iterable[tuple[str, str, str]]:
    if known.unit:
        yield "Protected", known.unit, UNITS.get(known.unit, "")
    yield "Spent ε", number(known.epsilon), "the model changes the odds of any guess about it by e^ε at most"
    if known.bound is not None:
        yield "Guarantee", guarantee(known.bound), meaning(known.bound, known.unit or "unit")
    yield "Limit of ε", number(known.max_epsilon), ""
    yield "δ", NOTHING if known.delta is None else number(known.delta), "the chance that the promise does not hold"


def _draw_spending(took: Participation, known: PrivacySpent, name: str) -> str | None:
    if not took.epsilon:
        return None
    rounds = sorted(took.epsilon)
    spent = list(accumulate((took.epsilon[round] for round in rounds), max))

    def paint(canvas: Figure) -> None:
        axes = canvas.subplots()
        figures.curve(axes, [float(r) for r in rounds], spent, label="spent", colour=BLUE, dash="-")
        if known.max_epsilon is not None:
            axes.axhline(known.max_epsilon, color=ORANGE, linestyle=DASHES[1], linewidth=1.4, label="limit")
        axes.set_ylim(0.0, max(spent[-1], known.max_epsilon or 0.0) * 1.06 or 1.0)
        axes.set_xlabel("round")
        axes.set_ylabel("ε")
        drawing.set_whole_axis(axes)
        legend_above(axes)
        zoomable(axes)

    return draw(name, figures.HEIGHT, paint)
