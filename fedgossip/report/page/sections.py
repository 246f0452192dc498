"""The sections of a report, in reading order; each returns None if the run recorded nothing for it."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedgossip.base.decoding import from_toml
from fedgossip.base.untrusted_text import line
from fedgossip.core.records import event_kinds
from fedgossip.report.page import drawing, figures, graphs, timeline
from fedgossip.report.page.forecast import Band, describe_losses, describe_scores, sentence
from fedgossip.report.page.markup import (
    Markup,
    cards,
    facts_table,
    figure,
    folded,
    grid,
    join,
    paragraph,
    section,
    table,
    text,
)
from fedgossip.report.page.numbers import NOTHING, count, data_size, duration, near_one, number, plural
from fedgossip.report.page.participation import ReportedEvent
from fedgossip.report.page.reading import DataSpread, Graph, RecordedRun
from fedgossip.report.page.reasons import gravest_first, incomplete, notice

MOST_PEERS_LISTED = 64
MOST_LANES = 32
ROUNDS_DRAWN = 3
MOST_EVENTS_LISTED = 40
DRIVERS = {
    "sim": "in the simulator",
    "stacked": "as stacked arrays",
    "local": "as real processes on one machine",
    "peers": "as real processes, started one by one",
    "slurm": "as real processes, tasks of Slurm",
    "ray": "as real processes, actors of Ray",
}
SIMULATED = {"sim", "stacked"}


def head(run: RecordedRun) -> Markup:
    """Return the name of the run, its method, whether it ended, and its key figures."""
    summary = run.summary
    return head_of(
        run,
        [
            summary.graph or (summary.topology.name if summary.topology else ""),
            *sizes(run),
            plural(summary.rounds, "round"),
        ],
        cards(_key_figures(run)),
    )


def sizes(run: RecordedRun) -> list[str]:
    """Return the number of participants of each role."""
    return [plural(count, name) for name, count in run.roles.sizes().items()]


def head_of(
    run: RecordedRun, what: Iterable[str], key_figures: Markup, warning: tuple[str, str] | None = None
) -> Markup:
    """Return the head of a page: the name, a few words on each setting, warnings, key figures."""
    summary = run.summary
    driver = DRIVERS.get(summary.driver, f"on {summary.driver}" if summary.driver else "")
    finished = summary.status == "finished"
    seed = "" if summary.seed is None else f"seed {summary.seed}"
    facts = [
        Markup(f'<li class="{"good" if finished else "warn"}">{text(summary.status)}</li>'),
        *(
            fact if isinstance(fact, Markup) else Markup(f"<li>{text(fact)}</li>")
            for fact in (*what, driver, seed)
            if fact
        ),
    ]
    return join(
        [
            paragraph("Report of a fedgossip run", "over"),
            Markup(f"<h1>{text(summary.name)}</h1>"),
            Markup(f'<ul class="facts">{"".join(facts)}</ul>'),
            notice(warning),
            notice(incomplete("This run", run)),
            key_figures,
        ]
    )


def _key_figures(run: RecordedRun) -> Iterable[tuple[str, str, str]]:
    summary, one = run.summary, run.roles.measured
    three, score = summary.score, summary.score.metric
    if three.known:
        yield from figures.list_own_figures(run)
        what, of = "Averaged model", "the mean of all models"
        if summary.distils:
            what, of = "Distilled model", "a model distilled from the mean of all logits"
        if three.averaged is not None:
            yield what, three.format(three.averaged), f"{score.word} of {of}{score.note}{run.measured_when}"
        if not summary.distils:
            whose = "own models" if summary.exchanged is None else "copies of the shared model"
            when = run.measured_when if three.averaged is None else ""
            yield f"Mean {one}", three.format(three.mean_peer), f"mean {score.word} of the {one}s’ {whose}{when}"
            yield f"Worst {one}", three.format(three.worst_peer), _worst(run)
    else:
        yield "Contraction", near_one(summary.measured_contraction), "disagreement left by one round, measured"
    yield "Consensus distance", number(summary.consensus_distance), "how far the models lie from their mean"
    yield "Sent", data_size(summary.bytes_sent), _per_peer_and_round(run)
    yield from time_and_digest(run, "of all final models")


def time_and_digest(run: RecordedRun, digest_of: str) -> Iterable[tuple[str, str, str]]:
    """Return the last key figures: the duration, and the digest if present."""
    summary = run.summary
    computed = "" if summary.wall_seconds is None else f", computed in {duration(summary.wall_seconds)}"
    yield (
        "Time",
        duration(summary.seconds),
        f"simulated{computed}" if summary.driver in SIMULATED else "on the wall clock",
    )
    if summary.digest:
        short = summary.digest.removeprefix("sha256:")[:12]
        yield "Digest", Markup(f'<code title="{text(summary.digest)}">{text(short)}</code>'), digest_of


def _worst(run: RecordedRun) -> str:
    score = run.summary.score.metric
    ended = graphs.fallen(run)
    known = {node: peer.score for node, peer in enumerate(run.peers) if peer.score is not None and node not in ended}
    if not known:
        return f"the worst {score.word} of one {run.roles.measured}"
    worst = score.worst(known.values())
    return f"{_name_participant(run, next(node for node, value in known.items() if value == worst))} at the end"


def _per_peer_and_round(run: RecordedRun) -> str:
    turns = run.summary.n * run.summary.rounds
    return f"{data_size(run.summary.bytes_sent / turns)} per {run.roles.one} and round" if turns else "by all together"


def reporter(run: RecordedRun, event: ReportedEvent) -> str:
    """Return the reporter of an event: the number for one of equal participants, "the run" for an event of all."""
    if event.peer is None:
        return NOTHING
    return str(event.peer) if run.roles.alike and event.peer >= 0 else run.roles.label(event.peer)


def _name_participant(run: RecordedRun, node: int) -> str:
    return f"{run.roles.one} {_label(run, node)}" if run.roles.alike else run.roles.label(node)


def _label(run: RecordedRun, node: int) -> str:
    graph = run.summary.topology
    if not run.roles.alike:
        return run.roles.label(node)
    return f"{node} ({graph.labels[node]})" if graph and graph.labels and graph.labels[node] != str(node) else str(node)


def _head(run: RecordedRun) -> str:
    return run.roles.one.capitalize() if run.roles.alike else "Who"


def learning(run: RecordedRun) -> Markup | None:
    """Return the learning curves."""
    score = run.summary.score.metric
    measured = "the average of all models, of the mean peer and of the worst peer"
    if run.summary.distils:
        measured = "models distilled from the mean of all logits and from each peer’s logits, not of the peers’ own"
    return section(
        "What was learned",
        grid(
            figure(
                "score-by-round",
                figures.scores(run, "score-by-round", figures.measure_rounds, figures.list_peer_scores(run)),
                f"{score.heading} by round",
                f"Test {score.word} of {measured}{score.note}: if the lines differ, the peers do not agree yet."
                f"{describe_scores(run)}",
            ),
            figure(
                "loss",
                figures.loss(run, "loss"),
                "Loss by round",
                f"The minimised training loss, as a mean over the peers.{describe_losses(run)}",
            ),
            figure(
                "score-by-bytes",
                figures.scores(run, "score-by-bytes", figures.measure_bytes, figures.list_peer_scores(run)),
                f"{score.heading} by bytes",
                "The same against the bytes that all peers have sent.",
            ),
            figure(
                "score-by-time",
                figures.scores(run, "score-by-time", figures.measure_seconds, figures.list_peer_scores(run)),
                f"{score.heading} by time",
                "The same against the time that has passed, waiting included.",
            ),
        ),
    )


def logged(run: RecordedRun) -> Markup | None:
    """Return the numbers recorded in addition to loss and score: metrics of the averaged model (and of all peers), and
    the numbers logged by loops.
    """
    one = run.roles.one
    drawn = [
        figure(
            f"logged-{place}",
            figures.logged(points, f"logged-{place}", name, one),
            line(name, figures.LOGGED_LETTERS),
            f"By round: the mean of what was measured or logged, over all {one}s that did.",
        )
        for place, (name, points) in enumerate(run.logged.items())
    ]
    return section("Other recorded numbers", grid(*drawn))


def agreement(run: RecordedRun, forecast: Band | None) -> Markup | None:
    """Return the consensus distance with its forecast."""
    title, caption = "Consensus distance by round", "How far the models of the peers lie from their mean."
    if forecast is not None and forecast.foretold:
        caption = "Distance of the peers' models to their mean, drawn over the forecast before the run."
    elif forecast is not None and forecast.lower is not None:
        caption = (
            "How far the models of the peers lie from their mean, drawn over the band that was forecast "
            "from the graph and the spread of the peers’ updates."
        )
    elif forecast is not None:
        caption = (
            "How far the vectors of the peers lie from their mean, under the bound D₀ · slemᵗ "
            "that was forecast from the graph’s eigenvalues."
        )
    drawn = figure("consensus", figures.consensus(run, "consensus", forecast), title, caption)
    facts = facts_table("What the graph promised", _forecast_rows(run))
    text = sentence(run, forecast)
    if drawn is None and facts is None:
        return None
    return section("How well the peers agree", paragraph(text, "lead") if text else None, grid(drawn, facts))


def _forecast_rows(run: RecordedRun) -> Iterable[tuple[str, str, str]]:
    facts = run.summary.forecast
    gamma = "" if facts.gamma is None else f", at γ = {number(facts.gamma)}"
    rows = (
        ("Spectral gap", facts.spectral_gap, "1 − slem: the share of disagreement that each round removes at least"),
        ("Second largest eigenvalue modulus (slem)", facts.slem, "the share that each round leaves at most"),
        ("Mean contraction", facts.mean_contraction, "the share that a round leaves on average"),
        ("Effective neighbours n_W", facts.n_w, f"how many peers’ updates one peer really averages{gamma}"),
        ("Rounds to halve", facts.rounds_to_halve, "until half of a disagreement is left, in the worst direction"),
        ("Rounds to 1 %", facts.rounds_to_1_percent, "until a hundredth of it is left, in the worst direction"),
        ("Typical rounds to halve", facts.typical_to_halve, "the same, over all directions"),
        ("Typical rounds to 1 %", facts.typical_to_1_percent, "the same, over all directions"),
        ("Lowest steady disagreement", facts.floor, "per unit of spread that each round adds, if always fresh"),
        ("Highest steady disagreement", facts.ceiling, "per unit of spread that each round adds, if always the same"),
        ("Algebraic connectivity", facts.algebraic_connectivity, "the second smallest Laplacian eigenvalue"),
    )
    return ((name, near_one(value), why) for name, value, why in rows if value is not None)


def graph(run: RecordedRun) -> Markup | None:
    """Return the drawing of the graph and its spectrum."""
    drawn = run.summary.topology
    values = "singular values" if drawn is not None and drawn.directed else "eigenvalues"
    spectrum = figure(
        "spectrum",
        graphs.spectrum(run, "spectrum"),
        "Spectrum",
        f"The {values} of the mixing: the first is always 1, and the largest other one in size, "
        "the slem, sets how fast disagreement dies out.",
    )
    if drawn is None:
        return section("The graph", spectrum)
    facts = facts_table("The graph in numbers", _graph_rows(run, drawn))
    right = grid(spectrum, facts, kind="stack")
    if not graphs.drawable(drawn):
        size = f"{plural(drawn.n, 'peer')} and {plural(_edges(run, drawn), 'edge')}"
        text = f"With {size} a drawing would show only a blot; its numbers stand here instead."
        if not _edges(run, drawn):
            text = "There is no edge to draw: every peer was on its own."
        return section("The graph", paragraph(text, "lead"), grid(spectrum, facts))
    weights = "" if drawn.rows is None else "; a thicker line is a larger mixing weight"
    scored = any(peer.score is not None for peer in run.peers)
    colours = f"last measured {run.summary.score.metric.word}" if scored else "number of neighbours"
    picture = figure(
        "graph",
        graphs.network(run, drawn, "graph"),
        "Who talks to whom",
        f"Each disc is a peer, coloured by its {colours}, and each line a pair that exchanges models{weights}."
        + (" Those in squares lie, and are in no score." if graphs.attackers(run) else "")
        + (" An empty disc with a cross is a peer that ended before the run." if graphs.fallen(run) else "")
        + (" Dashed: a pair in which one never received a model of the other." if graphs.never_exchanged(run) else ""),
    )
    return section("The graph", grid(picture, right))


def _graph_rows(run: RecordedRun, drawn: Graph) -> Iterable[tuple[str, str, str]]:
    yield "Graph", drawn.name or NOTHING, ""
    yield "Peers", count(drawn.n), ""
    if run.summary.forecast.period != 1 and run.summary.links:
        shown = "of a whole period" if run.summary.forecast.period else "of the first round"
        yield "Links", run.summary.links, f"which change from round to round; the drawing has those {shown}"
        return
    yield ("Arcs" if drawn.directed else "Edges"), count(_edges(run, drawn)), ""
    if drawn.edges:
        degrees = Counter(node for edge in drawn.edges for node in edge)
        low, high = (pick(degrees[node] for node in range(drawn.n)) for pick in (min, max))
        yield "Neighbours of a peer", str(low) if low == high else f"{low} to {high}", ""
    elif run.summary.forecast.degree_max is not None:
        yield "Neighbours of a peer", f"up to {run.summary.forecast.degree_max}", ""


def _edges(run: RecordedRun, drawn: Graph) -> int:
    return len(drawn.edges) or run.summary.forecast.edges or 0


def describe_examples(data: DataSpread | None, one: str) -> str:
    """Return the caption under the figure of all examples: their source, and their use."""
    source = f" ({data.source})" if data is not None and data.source else ""
    unlike = data is not None and drawing.has_few_classes(data)
    colours = f", coloured by class: unlike bars mean that the {one}s see unlike worlds." if unlike else "."
    notes = "".join(f"  {note}." for note in (data.notes if data is not None else ()))
    return f"How many examples each {one} holds{source}{colours}{notes}"


def peers(run: RecordedRun) -> Markup | None:
    """Return the data, actions and results of each peer."""
    data = run.summary.data
    one = run.roles.one
    return section(
        f"The {one}s" if run.roles.alike else "Who took part",
        grid(
            figure(
                "data",
                drawing.data_shares(run, "data"),
                f"Data of each {one}",
                describe_examples(data, one),
            ),
            figure(
                "time",
                drawing.time_spent(run, "time"),
                "Where the time went",
                f"How long each {one} trained, communicated (models arrived or left), waited for others and mixed, "
                "over all rounds.",
            ),
        ),
        _peer_table(run) if run.summary.n <= MOST_PEERS_LISTED else None,
    )


def first_rounds(run: RecordedRun) -> Markup | None:
    """Return the timeline of the first rounds; None if a page has too few lanes for the participants."""
    if run.timeline is None or run.summary.who.n > MOST_LANES or not run.timeline.whole_rounds:
        return None
    rounds = min(ROUNDS_DRAWN, run.timeline.whole_rounds)
    names = [run.roles.label(node) for node in range(run.summary.who.n)]
    svg = timeline.draw_page(timeline.NamedTimeline(run.name, run.timeline.first(rounds), names), "timeline")
    caption = (
        f"Who computed, sent, received and waited in the first {plural(rounds, 'round')}, and the messages with "
        "vectors.  A participant that computes while its messages pass is shown as computing."
    )
    return section("The first rounds in time", figure("timeline", svg, "Timeline", caption))


def _peer_table(run: RecordedRun) -> Markup | None:
    if not any(peer.rounds for peer in run.peers):
        return None
    learned = any(peer.score is not None or peer.loss is not None for peer in run.peers)
    distilled = " (distilled)" if run.summary.distils else ""
    scored = [f"{run.summary.score.metric.heading}{distilled}", "Loss"] if learned else []
    heads = [_head(run), *scored, "Sent", "Received", *(name.capitalize() for name, _ in drawing.ACTIVITIES)]
    rows = [
        [
            _label(run, node),
            *([run.summary.score.format(peer.score), number(peer.loss)] if learned else []),
            data_size(peer.bytes_sent),
            data_size(peer.bytes_received),
            *(duration(peer.seconds[activity]) for activity, _ in drawing.ACTIVITIES),
        ]
        for node, peer in enumerate(run.peers)
    ]
    listed = table(heads, rows, numbers=len(heads) - 1)
    return listed if run.summary.n <= 20 else folded(f"All {plural(run.summary.n, run.roles.one)}", listed)


def faults(run: RecordedRun) -> Markup | None:
    """Return the failures, counted and then one by one."""
    counts = run.summary.events or Counter(event.name for event in run.events)
    if not counts:
        return None
    text = ", ".join(f"{name.replace('_', ' ')}: {count(amount)}" for name, amount in gravest_first(counts))
    found = spells(run.events)
    rows = [
        [
            count(first) if first == last else f"{count(first)} – {count(last)}",
            reporter(run, event),
            event.name,
            "" if event.value is None else json.dumps(event.value, ensure_ascii=False)[:80],
        ]
        for event, first, last, _ in found[:MOST_EVENTS_LISTED]
    ]
    rest = sum(counts.values()) - sum(times for *_, times in found[:MOST_EVENTS_LISTED])
    return section(
        "Events and faults",
        paragraph(f"In this run – {text}.", "lead"),
        refusals(run),
        table(["Round", _head(run), "Event", "Value"], rows, numbers=0) if rows else None,
        paragraph(f"{count(rest)} more in metrics.jsonl.", "lead") if rows and rest > 0 else None,
    )


def spells(events: Iterable[ReportedEvent]) -> list[tuple[ReportedEvent, int, int, int]]:
    """Return (event, its first round, its last, count), with consecutive repetitions as one."""
    found: list[tuple[ReportedEvent, int, int, int]] = []
    open_at: dict[tuple[int | None, str, str], int] = {}
    for event in events:
        key = event.peer, event.name, json.dumps(event.value, sort_keys=True)
        place = open_at.get(key)
        if place is not None and event.round - found[place][2] in (0, 1):
            first, _, last, times = found[place]
            found[place] = first, found[place][1], max(last, event.round), times + 1
        else:
            open_at[key] = len(found)
            found.append((event, event.round, event.round, 1))
    return found


def refusals(run: RecordedRun) -> Markup | None:
    """Return the causes of refusals, each once."""
    rows = [
        [run.roles.label(cause.peer), count(cause.times), f"{cause.text}  {cause.advice}".strip()]
        for cause in run.summary.refusals
    ]
    return table(["Refused by", "Times", "Why"], rows, numbers=0) if rows else None


def provenance(
    run: RecordedRun,
    digest_of: str = "all final models",
) -> Markup | None:
    """Return all facts needed to repeat the run."""
    summary, how = run.summary, repeating(run)
    rows = [
        (f"Digest of {digest_of}", summary.digest or NOTHING, ""),
        ("Seed", NOTHING if summary.seed is None else str(summary.seed), ""),
        ("Parameters of one model", count(summary.parameters), ""),
        *((name, str(version), "") for name, version in sorted(summary.versions.items())),
    ]
    command = f"\n<pre>{text(how.command)}</pre>" if how.command else ""
    paragraph = Markup(f"<p>{text(how.text)}</p>{command}")
    experiment = Markup(f"<pre>{text(run.experiment)}</pre>")
    return section(
        "How to repeat this run",
        paragraph,
        Markup(f'<div class="wide origin">{facts_table("What ran", rows)}</div>'),
        folded("The whole experiment (experiment.toml)", experiment) if run.experiment else None,
    )


# Instructions to repeat a run, with the same digest if that is certain.


GIVEN = "given"
"""Data source of a run with a task passed by a program."""

PLACE = "{peer}"
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

NAMED = (("data", "source"), ("data", "test"), ("model", "source"), ("algorithm", "name"))
"""Keys of an experiment that may name a user's function."""


@dataclass(frozen=True)
class Repeating:
    """`command` is None if no command repeats the run; `same`: whether the digest will be the same under the conditions
    in `text`.
    """

    text: str
    command: str | None
    same: bool


def repeating(run: RecordedRun) -> Repeating:
    """Return the steps to repeat the run from its folder."""
    summary = run.summary
    if _look_up(_experiment(run), "task", "kind") == "loop":
        return _describe_loops(run)
    if summary.data and summary.data.source == GIVEN:
        text = (
            "Its task was given by a program, simulate(task=...), and is in no file: experiment.toml names other data."
            "  The same call with the same task repeats it."
        )
        return Repeating(text, None, same=False)
    e = _experiment(run)
    seed = "" if summary.seed is None else f" --seed {summary.seed}"
    engine = "stacked" if summary.driver == "stacked" else "sim"
    command = f"fedgossip run experiment.toml --on {engine}{seed}"
    before = _where(e)
    reason = next(_reasons(run, e), None)
    if reason:
        return Repeating(f"{before}, this computes the same again; {reason}:", command, same=False)
    return Repeating(f"{before}, this ends with the same digest, bit for bit, {_provided(run, e)}:", command, same=True)


def _describe_loops(run: RecordedRun) -> Repeating:
    """Return the answer for loops: they are a user's script, and only the user can judge whether it repeats."""
    if not run.script:
        return Repeating("Its loops are the user's own, which no file here names.", None, same=False)
    text = (
        f"In this folder, with its experiment.toml and a copy of {run.script[0]}, this computes the same again if the"
        " script does, simulated; a synchronous run without missed peers then has the same digest:"
    )
    words = shlex.join(run.script)
    return Repeating(text, f"fedgossip launch --simulate --experiment experiment.toml {words}", same=False)


def _experiment(run: RecordedRun) -> Mapping[str, Any]:
    try:
        return from_toml(run.experiment or "")
    except tomllib.TOMLDecodeError:
        return {}


def _where(e: Mapping[str, Any]) -> str:
    named = [str(_look_up(e, *path)) for path in NAMED]
    own = sorted({one.partition(":")[0] for one in named if _FUNCTION.fullmatch(one) and not _is_kind(one)})
    where = "In this folder, with its experiment.toml"
    if own:
        where += f" and a copy of {', '.join(f'{name}.py' for name in own)}"
    every = PLACE in str(_look_up(e, "data", "source"))
    return where + (" and every participant’s file where that names it" if every else "")


def _is_kind(name: str) -> bool:
    return name.partition(":")[0] in ("csv", "npz", "text", "mnist", "fashion-mnist", "mlp", "cnn", "chars", "gpt")


def _reasons(run: RecordedRun, e: Mapping[str, Any]) -> Iterator[str]:
    """Yield reasons for a different digest, the most important first."""
    summary = run.summary
    if summary.digest is None:
        yield "there is no digest of this run to compare with, for not all participants reached its end"
    if summary.driver not in ("sim", "stacked"):
        yield from _explain_real_run(run, e)
    if summary.kernels == "as they come":
        yield "the digest may be another, for torch was imported before fedgossip and took its kernels as they come"
    if str(_look_up(e, "train", "device")).startswith("cuda"):
        yield "the digest may be another, for a GPU rounds in ways of its own"
    if _look_up(e, "train", "parallel") == "hogwild":
        yield "the digest is another, for processes stepped on one model without waiting for each other"
    processes = _look_up(e, "train", "processes")
    if isinstance(processes, int) and processes > 1:
        yield f"the digest may be another, for {processes} processes add up in an order of their own"


def _explain_real_run(run: RecordedRun, e: Mapping[str, Any]) -> Iterator[str]:
    summary = run.summary
    if summary.privacy is not None:
        yield "the digest is another, for the noise of a real run is from the operating system and not from a seed"
    if summary.mode == "async" or summary.algorithm == "fedbuff":
        yield "the digest is another, for here messages arrived in an order of their own"
    if summary.events.get("unlike"):
        yield "the digest may be another, for processors of several kinds have trained here"
    happened = [name for name, kind in event_kinds().items() if kind.disturbs and summary.events.get(name)]
    if happened or e.get("faults"):
        what = ", ".join(name.replace("_", " ") for name in happened[:3]) or "faults"
        yield f"the digest may be another, for here things happened at times of their own ({what})"


def _provided(run: RecordedRun, e: Mapping[str, Any]) -> str:
    if _look_up(e, "task", "kind") in ("averaging", "quadratic"):
        return "with the same version of NumPy"
    if _look_up(e, "train", "portable"):
        return "on any x86-64 processor, with the same versions"
    device = "" if _look_up(e, "train", "device") == "cpu" else ", without a GPU"
    on = f" ({run.summary.processor})" if run.summary.processor else ""
    return f"on a processor of the same kind{on}{device}, with the same versions"


def _look_up(content: Mapping[str, Any], section: str, key: str) -> Any:
    found = content.get(section)
    return found.get(key) if isinstance(found, Mapping) else None
