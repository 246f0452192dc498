"""Read a run directory: summary.json, metrics.jsonl and experiment.toml, as typed values.

Unknown kinds and keys are ignored.  The peers' records are summed while read: memory grows with peers plus rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, json_value
from fedgossip.base.errors import ConfigError, reason
from fedgossip.base.scores import ACCURACY, Score
from fedgossip.base.untrusted_text import masked
from fedgossip.core.forecasts import RunForecast, read_forecast
from fedgossip.core.gains import COUNTS, NAMES, OWN_TESTED, OwnScores, last_scores
from fedgossip.core.records import LoggedNumbers, LoggedPoint, kind_of, renamed
from fedgossip.core.roles import Role, Roles, federated_roles, peer_roles
from fedgossip.core.run_format import ENDPOINT, EXPERIMENT, LAUNCHED, REALISED, ROWS, SUMMARY
from fedgossip.core.timeline import Timeline, read_timeline
from fedgossip.data.objectives import read_score
from fedgossip.report.page.numbers import number, percent
from fedgossip.report.page.participation import Participation, ReportedEvent, ReportedPeerRound, ReportedRound

EVENTS_KEPT = 200
PARTICIPANTS_MAX = 1_000_001  # a million clients, and their coordinator
"""Maximum number of participants of a readable run."""
ABOUT_SEVERAL_MODELS = (
    "score_mean_peer",
    "score_worst_peer",
    "consensus_distance",
    "consensus_before",
    "update_spread",
)
"""Columns of a network's row with values over several models."""
AT_PEERS = ".peers"
"""Suffix of a metric's name: of all peers' models, not of the averaged one."""
ACTIVITIES = ("training", "communicating", "waiting", "mixing")
"""Parts of a round's time; docs/reference/numerics.md defines them."""
ROUNDS_FREE = 1_000_000
"""Maximum difference between a row's round and its line number, which bounds a drawing's width."""
T = TypeVar("T")


class Scores(msgspec.Struct, frozen=True):
    """The three scores, always reported together; None for tasks without scores."""

    name: str = ACCURACY.name
    better: str = ACCURACY.better
    unit: str = ACCURACY.unit
    averaged: float | None = None
    mean_peer: float | None = None
    worst_peer: float | None = None
    round: int | None = None
    """Round of their measurement; None in runs of releases that did not write it."""

    @property
    def known(self) -> bool:
        """Whether there is a value."""
        return any(value is not None for value in (self.averaged, self.mean_peer, self.worst_peer))

    @property
    def metric(self) -> Score:
        """Metric of the values."""
        return read_score({"name": self.name, "better": self.better, "unit": self.unit})

    def format(self, value: float | None) -> str:
        """Return a value for people."""
        return percent(value) if self.metric.percent else number(value)


class BestRound(msgspec.Struct, frozen=True):
    """The round with the best score of the averaged model."""

    round: int
    score: float
    at: str = ""
    """clients: measured by them, on their own examples; otherwise on the examples of the run's score."""


class RecordedForecast(msgspec.Struct, frozen=True):
    """The forecast from the spectrum of the mixing, before the run."""

    edges: int | None = None
    degree_max: int | None = None
    slem: float | None = None
    spectral_gap: float | None = None
    n_w: float | None = None
    gamma: float | None = None
    rounds_to_halve: float | None = None
    rounds_to_1_percent: float | None = None
    typical_to_halve: float | None = None
    typical_to_1_percent: float | None = None
    mean_contraction: float | None = None
    algebraic_connectivity: float | None = None
    floor: float | None = None
    ceiling: float | None = None
    period: int = 1
    rate: float | None = None
    exact_after: int | None = None


class RecordedPairs(msgspec.Struct, frozen=True):
    """The forecast for exchanges between pairs: the factor on a distance per round of them."""

    round: float | None = None


class RecordedBand(msgspec.Struct, frozen=True):
    """Bounds of the consensus distance after rounds 1, 2, ..., for a graph without usable eigenvalues."""

    lower: list[float]
    upper: list[float]


class RecordedFile(msgspec.Struct, frozen=True):
    """The summary's entry for the forecast.json at the start of the run."""

    level: str
    sha256: str


class Graph(msgspec.Struct, frozen=True):
    """The graph with its mixing weights: ``rows[i][j]`` is w_ij; empty if there were too many."""

    n: int
    name: str = ""
    directed: bool = False
    edges: list[tuple[int, int]] = []
    labels: list[str] | None = None
    rows: list[dict[int, float]] | None = None


class DataSpread(msgspec.Struct, frozen=True):
    """Distribution of the examples: ``shares[peer][class]`` counts, ``sizes[peer]`` counts."""

    source: str | None = None
    classes: int | None = None
    shares: list[list[float]] | None = None
    sizes: list[float] | None = None
    notes: list[str] = []


class PrivacySpent(msgspec.Struct, frozen=True):
    """The guarantee of differential privacy, and the spent budget."""

    epsilon: float | None = None
    delta: float | None = None
    max_epsilon: float | None = None
    unit: str = ""

    @property
    def bound(self) -> float | None:
        """Spent budget; if only the clients know it, the maximum that they may spend."""
        return self.max_epsilon if self.epsilon is None else self.epsilon


class RecordedRefusal(msgspec.Struct, frozen=True):
    """One cause of one participant's refusals, and their number."""

    peer: int
    times: int
    text: str
    advice: str = ""


class Summary(msgspec.Struct, frozen=True):
    """summary.json.  `n` counts the learners."""

    name: str
    n: int
    rounds: int
    status: str
    roles: list[Role] = []
    lacking: list[str] = []
    in_vain: bool = False
    refusals: list[RecordedRefusal] = []
    driver: str = ""
    seed: int | None = None
    graph: str = ""
    mode: str = "sync"
    digest: str | None = None
    score: Scores = Scores()
    best: BestRound | None = None
    consensus_distance: float | None = None
    bytes_sent: int = 0
    seconds: float | None = None
    wall_seconds: float | None = None
    parameters: int | None = None
    forecast: RecordedForecast = RecordedForecast()
    measured_contraction: float | None = None
    topology: Graph | None = None
    eigenvalues: list[float] | None = None
    modes: list[tuple[float, float]] | None = None
    summed: bool = True
    """Whether every peer continued with the weighted sum of honest models, the only case with the graph's
    guarantees.
    """
    """For a directed mixing: the eigenvalues, real and imaginary part, without the mean's."""
    links: str = ""
    """Number of links, in words."""
    band: RecordedBand | None = None
    pairwise: RecordedPairs | None = None
    forecast_file: RecordedFile | None = None
    forecast_kept: float | None = None
    forecast_realised_kept: float | None = None
    forecast_scores_kept: dict[str, float] = {}
    data: DataSpread | None = None
    events: dict[str, int] = {}
    versions: dict[str, Any] = {}
    test_loss: float | None = None
    algorithm: str = ""
    cohort: int | None = None
    secure: bool | None = None
    tiers: dict[int, list[int]] = {}
    privacy: PrivacySpent | None = None
    processor: str | None = None
    kernels: str | None = None
    exchanged: str | None = None
    """models or logits, if participants have personal models."""

    @property
    def distils(self) -> bool:
        """Whether the measured model was distilled from logits, and belongs to no participant."""
        return self.exchanged == "logits"

    @property
    def who(self) -> Roles:
        """Roles of all participants; without recorded roles peers, or clients of a coordinator."""
        if self.roles:
            return Roles(tuple(self.roles))
        return federated_roles(self.n) if self.mode == "federated" else peer_roles(self.n)

    @property
    def led(self) -> bool:
        """Whether one participant leads, with the only model."""
        return self.who.leader is not None


@dataclass(slots=True)
class PeerTotal:
    """All rounds of one peer: the last known loss and score, the sums of bytes and seconds."""

    rounds: int = 0
    loss: float | None = None
    score: float | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    payload_sent: int = 0
    payload_received: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ACTIVITIES, 0.0))
    until: float = 0.0
    """End of its last row, in seconds of the run."""
    away: float = 0.0
    """Seconds between rows while it was dead, and after its last row if it did not return."""

    def add(self, row: ReportedPeerRound, *, returned: bool = False) -> None:
        """Add a row; `returned`: it was dead since the row before."""
        self.rounds = max(self.rounds, row.round)
        self.loss = self.loss if row.loss is None else row.loss
        self.score = self.score if row.score is None else row.score
        self.bytes_sent += row.bytes_sent
        self.bytes_received += row.bytes_received
        self.payload_sent += row.payload_sent
        self.payload_received += row.payload_received
        for activity in ACTIVITIES:
            self.seconds[activity] += getattr(row, f"seconds_{activity}") or 0.0
        if row.seconds is not None:
            counted = sum(getattr(row, f"seconds_{activity}") or 0.0 for activity in ACTIVITIES)
            self.away += max(0.0, row.seconds - self.until - counted) if returned else 0.0
            self.until = row.seconds


@dataclass(frozen=True)
class RecordedRun:
    """A run directory in memory.  `network` ascends by round; `events` has the first EVENTS_KEPT.

    `participation`: for a run with a coordinator, including its events about rounds.
    """

    summary: Summary
    network: list[ReportedRound]
    peers: list[PeerTotal]
    events: list[ReportedEvent]
    experiment: str | None
    participation: Participation | None = None
    logged: dict[str, list[LoggedPoint]] = field(default_factory=dict)
    """Numbers logged by loops, and metrics other than the score, by name; with AT_PEERS those of the peers' models."""
    own_scores: dict[int, OwnScores] = field(default_factory=dict)
    """The last scores of participants' personal models."""
    own_counts: Mapping[str, float | None] = field(default_factory=dict)
    """A coordinator's last counts of them, in a secure sum."""
    fallen: frozenset[int] = frozenset()
    """Participants that died, hung or failed and did not return."""
    script: tuple[str, ...] = ()
    """Script of launched loops, and its arguments."""
    foretold: RunForecast | None = None
    """Forecast before the run; None also if the file is not that of the run's start."""
    realised: RunForecast | None = None
    """Forecast for the mixing that took place, if messages or peers were lost."""
    timeline: Timeline | None = None
    """Participants' activities with times in the first part of a simulation."""

    @property
    def name(self) -> str:
        return self.summary.name

    @property
    def roles(self) -> Roles:
        return self.summary.who

    @property
    def learners(self) -> list[PeerTotal]:
        """Return the learners: all peers; or the clients, without their coordinator."""
        return self.peers[: self.summary.n]

    @property
    def measured_when(self) -> str:
        """Return the round in which the summary's scores were measured, and the round with the best if it differs."""
        at, best, last = self.summary.score.round, self.summary.best, self.summary.score.averaged
        text = "" if at in (None, self.summary.rounds) else f", in round {at}"
        if best is None or best.score == last or best.round == (self.summary.rounds if at is None else at):
            return text
        where = " on the clients' own examples" if best.at else ""
        return f"{text}; best {self.summary.score.format(best.score)}{where}, in round {best.round}"

    def series(self, column: str) -> list[tuple[ReportedRound, float]]:
        """Return (row, value) for the rounds with a measurement of `column`."""
        values = ((row, getattr(row, column)) for row in self.network)
        return [(row, value) for row, value in values if value is not None]


def read_run(folder: Path) -> RecordedRun:
    """Return the run in `folder`.

    Raises ConfigError, naming file and line, for a missing or unreadable summary or record; an unfinished last line is
    left out.
    """
    summary = _summary(folder / SUMMARY)
    outside_files.checked_folder(folder)
    network: dict[int, ReportedRound] = {}
    nothing = PeerTotal()  # shared by all without a row: of a million clients few may ever be in a cohort
    totals = [nothing] * summary.who.n
    events: list[ReportedEvent] = []
    logged, measured = LoggedNumbers(), LoggedNumbers()
    fallen, returned, own_scores = set[int](), set[int](), dict[int, OwnScores]()
    own_counts: Mapping[str, float | None] = {}
    participation = Participation(summary.n, summary.who.one, summary.tiers) if summary.led else None
    for count, (place, record) in enumerate(_records(folder / ROWS)):
        kind = record.get("kind")
        if isinstance(round := record.get("round"), int) and abs(round) > ROUNDS_FREE + count:
            raise ConfigError(f"{place}: round {round} after {count} rows, fewer than so many rounds write.", _NOT_OURS)
        if kind == "peer":
            row = _convert(record, ReportedPeerRound, place)
            if not 0 <= row.peer < len(totals):
                raise ConfigError(f"{place}: peer {row.peer}, but the summary has {summary.n} peers.", _MIXED_UP)
            if totals[row.peer] is nothing:
                totals[row.peer] = PeerTotal()
            totals[row.peer].add(row, returned=row.peer in returned)
            returned.discard(row.peer)
            last_scores(own_scores, row)
            own_counts = row.logged if row.logged and OWN_TESTED in row.logged else own_counts
            logged.add(row.round, row.logged)
            of_peers = {} if participation else (row.metrics or {})
            measured.add(row.round, {f"{name}{AT_PEERS}": value for name, value in of_peers.items()})
            if participation:
                participation.row(row)
        elif kind == "network":
            one = _convert(record, ReportedRound, place)
            network[one.round] = _remove_spread(one) if participation else one
            measured.add(one.round, one.metrics)
        elif kind == "event":
            event = _convert(record, ReportedEvent, place)
            _follow(fallen, returned, event)
            if not (participation and participation.event(event)) and len(events) < EVENTS_KEPT:
                events.append(event)
    for peer in fallen:
        if peer < len(totals) and totals[peer] is not nothing:
            totals[peer].away += max(0.0, (summary.seconds or 0.0) - totals[peer].until)
    experiment = folder / EXPERIMENT
    text = masked(outside_files.read_text(experiment, errors="replace")) if experiment.is_file() else None
    rounds, script = [network[r] for r in sorted(network)], _script_of(folder)
    if rounds and rounds[-1].round == summary.score.round:
        rounds[-1] = _measured_at_the_end(rounds[-1], summary)
    parts = _load_forecast(folder, summary), _realised(folder, summary), _timeline(folder, summary)
    beside = {**measured.lines(), **logged.lines()}
    lines = {name: points for name, points in beside.items() if name not in (*NAMES, *COUNTS)}
    of_rows = participation, lines, own_scores, own_counts, frozenset(fallen)
    return RecordedRun(summary, rounds, totals, events, text, *of_rows, script, *parts)


def _measured_at_the_end(row: ReportedRound, summary: Summary) -> ReportedRound:
    score = summary.score
    values = {"averaged": score.averaged, "mean_peer": score.mean_peer, "worst_peer": score.worst_peer}
    found = {f"score_{name}": value for name, value in values.items()} | {"test_loss": summary.test_loss}
    return msgspec.structs.replace(row, **{name: value for name, value in found.items() if getattr(row, name) is None})


def _follow(fallen: set[int], returned: set[int], event: ReportedEvent) -> None:
    meaning = kind_of(event.name).implies
    if event.peer is not None and meaning == "ended":
        fallen.add(event.peer)
    elif event.peer is not None and meaning == "again":
        fallen.discard(event.peer)
        returned.add(event.peer)


def _load_forecast(folder: Path, summary: Summary) -> RunForecast | None:
    found = read_forecast(folder) if summary.forecast_file else None
    if found is None or summary.forecast_file is None or found[1] != summary.forecast_file.sha256:
        return None
    return found[0]


def _realised(folder: Path, summary: Summary) -> RunForecast | None:
    found = read_forecast(folder, REALISED) if summary.forecast_realised_kept is not None else None
    return None if found is None else found[0]


def _timeline(folder: Path, summary: Summary) -> Timeline | None:
    found = read_timeline(folder)
    return found if found is not None and found.participants == summary.who.n else None


def _script_of(folder: Path) -> tuple[str, ...]:
    try:
        launched = json_value(outside_files.read_bytes(folder / LAUNCHED))
        return (Path(launched["script"]).name, *(masked(str(one)) for one in launched["arguments"]))
    except (OSError, UnreadableError, TypeError, KeyError):
        return ()


def _remove_spread(row: ReportedRound) -> ReportedRound:
    """Remove values over several models if there is only one."""
    nothing = dict.fromkeys(ABOUT_SEVERAL_MODELS)
    return msgspec.structs.replace(row, **nothing)


_MIXED_UP = "The files of two runs may lie in one folder; run the experiment again into an empty folder."
_NOT_OURS = "No run writes that: check the origin of the folder."
_MEND = "Remove that line, or copy the run again."
_IN_ITS_MIDDLE = "`fedgossip watch` shows its present state, `fedgossip run --resume` resumes a killed one."
_OF_ONE = (
    "It is one participant's: `fedgossip watch` shows it, `fedgossip collect EXPERIMENT FOLDER...` reports on all."
)
_RUN_AGAIN = "Is this the folder of a run?  `fedgossip run experiment.toml` makes one."


def _summary(path: Path) -> Summary:
    place = str(path)
    try:
        record = _parse(outside_files.read_bytes(path))
    except FileNotFoundError:
        begun = (path.parent / ROWS).exists()
        advice = f"The run is active, or was killed: {_IN_ITS_MIDDLE}" if begun else _RUN_AGAIN
        if (path.parent / ENDPOINT).exists():
            advice = _OF_ONE
        raise ConfigError(f"{place}: there is no such file.", advice) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{place}: cannot be read as JSON ({reason(error)}).", _RUN_AGAIN) from None
    summary = _convert(renamed(record), Summary, place)
    _check_sizes(summary, place)
    if not summary.led:
        return summary
    nothing = dict.fromkeys(("consensus_distance", "measured_contraction"))
    privacy = summary.privacy if summary.privacy and summary.privacy.unit != "none" else None
    alone = msgspec.structs.replace(summary.score, mean_peer=None, worst_peer=None)
    return msgspec.structs.replace(summary, score=alone, privacy=privacy, **nothing)


def _check_sizes(summary: Summary, place: str) -> None:
    """Raise ConfigError unless every per-peer list and every edge fits the peers."""
    graph, data = summary.topology, summary.data
    lists = {
        "topology.labels": graph.labels if graph else None,
        "topology.rows": graph.rows if graph else None,
        "data.shares": data.shares if data else None,
        "data.sizes": data.sizes if data else None,
    }
    if not 0 <= summary.n <= PARTICIPANTS_MAX:
        raise ConfigError(f"{place}: n = {summary.n}; a run has 0 to {PARTICIPANTS_MAX} participants.", _NOT_OURS)
    try:
        learners = summary.who.learners
    except ValueError as error:
        raise ConfigError(f"{place}: roles: {error}.", _MIXED_UP) from None
    if summary.who.n > PARTICIPANTS_MAX:
        raise ConfigError(f"{place}: roles of {summary.who.n} participants, more than a run has.", _NOT_OURS)
    if learners != summary.n:
        raise ConfigError(f"{place}: {summary.n} learn, and by their roles {learners}.", _MIXED_UP)
    for name, values in lists.items():
        if values is not None and len(values) != summary.n:
            raise ConfigError(f"{place}: {name} has {len(values)} entries for {summary.n} peers.", _MIXED_UP)
    if (band := summary.band) and len(band.lower) != len(band.upper):
        raise ConfigError(f"{place}: a band of {len(band.lower)} and {len(band.upper)} edges.", _MIXED_UP)
    if graph and graph.n != summary.n:
        raise ConfigError(f"{place}: the graph has {graph.n} nodes for {summary.n} peers.", _MIXED_UP)
    if graph and not all(0 <= node < summary.n for edge in graph.edges for node in edge):
        raise ConfigError(f"{place}: an edge of the graph ends outside the {summary.n} peers.", _MIXED_UP)


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("file, line 7", record) for each line of a JSON lines file."""
    try:
        for number, line in enumerate(outside_files.lines_of(path), start=1):
            place = f"{path}, line {number}"
            try:
                record = _parse(line)
            except ValueError as error:
                if not line.endswith(b"\n"):
                    return
                if not line.strip():
                    continue
                raise ConfigError(f"{place}: not JSON ({error}).", _MEND) from None
            if not isinstance(record, dict):
                raise ConfigError(f"{place}: expected one JSON object.", _MEND)
            yield place, renamed(record)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).", _RUN_AGAIN) from None


def _parse(text: bytes) -> Any:
    """Return the JSON value of `text`, with NaN and infinities as None: not measured."""
    return json_value(text, parse_constant=lambda _: None)


def _convert(record: Any, kind: type[T], place: str) -> T:
    try:
        return msgspec.convert(record, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place}: {error}.", "Was it written by another version of fedgossip?") from None
