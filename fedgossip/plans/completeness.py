"""Detects missing exchanges and contributions from a run's rows: such a run is partial."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fedgossip.base.scores import Score
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.records import HALF_MISSING, SKIPPED, EventRow, NetworkRow, PeerRow, Row
from fedgossip.core.roles import Roles
from fedgossip.core.task import Segment, first_wrong

TOLERATED = 0.1
"""Tolerated share of measured rounds with non-finite outputs, if those of the final model are finite."""

DIVERGED = 10.0
"""Minimum ratio of the last test loss to the first that counts as diverged, if the score confirms it."""

LASTING = 3
"""Minimum number of measured rounds in the last half for a loss above the first model's to count."""

GAINED = 0.25
"""Minimum share of the distance from the untrained model's score to 1 that a useful model covers."""

NAMED = 8
"""Maximum number of pairs, or of clients, listed by name."""


@dataclass(frozen=True)
class Lacking:
    """Sentences about missing work, the most serious first; empty for a complete run.

    `in_vain`: no participant learned from another.
    """

    sentences: tuple[str, ...] = ()
    in_vain: bool = False


def find_missing_exchanges(
    rows: Sequence[Row], n: int, partners: Callable[[NodeId], Sequence[NodeId]], node: NodeId | None, *, directed: bool
) -> Lacking:
    """Return the missing exchanges among `n` peers, from all rows, or from the rows of peer `node`; a model must arrive
    over every arc.
    """
    alone = sorted({row.peer for row in _last_events(rows, "learned_alone")})
    pairs = {(row.peer, other) for row in _last_events(rows, "never_exchanged") for other in _ids(row.value)}
    cut_off = {one for one in alone if directed or set(partners(one)) <= {j for i, j in pairs if i == one}}
    pairs = {(i, j) for i, j in pairs if i not in cut_off and (directed or j not in cut_off)}  # reported as one
    if directed:
        sentences = [f"Peer {i} never got a model from peer {j}." for i, j in sorted(pairs)]
    else:
        pairs = {(min(pair), max(pair)) for pair in pairs}
        sentences = [f"Peers {i} and {j} never exchanged a model." for i, j in sorted(pairs)]
    if node is None and len(alone) == n:
        return Lacking(("No model was exchanged in the whole run: every peer learned alone.",), in_vain=True)
    first = [f"Peer {one} exchanged no model: it learned alone." for one in alone]
    return Lacking((*_short(first, "peers"), *_short(sentences, "pairs")), in_vain=node in alone)


def describe_wrong_numbers(
    rows: Sequence[Row], vectors: Sequence[Vector | None], segments: Sequence[Segment]
) -> tuple[str, ...]:
    """Return sentences about models with non-finite outputs: the final ones (`vectors`), or those of more than
    TOLERATED of the measured rounds."""
    wrong = {row.round: row for row in rows if isinstance(row, EventRow) and row.name == "not_finite"}
    measured = {row.round for row in rows if isinstance(row, NetworkRow) and row.measured} | wrong.keys()
    if wrong and (max(measured) in wrong or len(wrong) > TOLERATED * len(measured)):
        first = min(wrong)
        value = wrong[first].value
        facts = value if isinstance(value, dict) else {}
        often = f"of {len(wrong)} of {len(measured)} measured rounds, round {first} first"
        tensor = facts.get("tensor")
        where = f"the first tensor that is not right is {tensor!r}" if tensor else "its weights are all finite"
        return (f"The {facts.get('figure')} is {facts.get('value')} {often}; {where}.",)
    named = next((name for one in vectors if one is not None if (name := first_wrong(one, segments))), "")
    return (f"Tensor {named!r} of the final model is not right: not finite, or a variance below 0.",) if named else ()


def describe_failed_learning(rows: Sequence[Row], score: Score) -> tuple[str, ...]:
    """Return a sentence on a training that left a model about as good as a constant: its score is hardly better than
    the first model's, and its loss is above the first model's by a factor of DIVERGED, or in the last half of the
    measured rounds.
    """
    measured = {row.round: (row.test_loss, row.score_averaged) for row in rows if isinstance(row, NetworkRow)}
    known = [(loss, value) for loss, value in measured.values() if loss is not None and value is not None]
    if len(known) < 2:
        return ()
    (first, start), (loss, value) = known[0], known[-1]
    later = [one for one, _ in known[1:]]
    half = later[len(later) // 2 :]
    diverged, worse = 0 < DIVERGED * first < loss, len(half) >= LASTING and min(half) > max(first, 0)
    enough = start + GAINED * (1 - start) if score.share else start
    if not (diverged or worse) or (value != enough and score.best((value, enough)) == value):
        return ()
    what = "diverged" if diverged else "improved nothing"
    scores = f"the {score.word} {score.figure(value)}, of the untrained model {score.figure(start)}"
    when = "" if diverged else f", and was above that in the last {len(half)} measured rounds"
    return (
        f"The training {what}: the test loss is {loss:.3g}, at the start {first:.3g}{when}; {scores}. Lower train.lr.",
    )


def find_missing_work(rows: Sequence[Row], coordinator: NodeId, node: NodeId | None, *, all_in_each: bool) -> Lacking:
    """Return the missing work of a federated run, from its coordinator's rows; for participant `node`, from its own.

    At least one round must have counted, and every client in at least one; `all_in_each`: no sampling.
    """
    if node is not None and node != coordinator:
        took_part = any(isinstance(row, PeerRow) and row.peer == node for row in rows)
        if took_part or not all_in_each:
            return Lacking()
        return Lacking((f"Client {node} took part in no round: it trained nothing.",), in_vain=True)
    done = [row for row in rows if isinstance(row, PeerRow) and row.peer == coordinator]
    if done and not any(row.clients for row in done):
        text = f"No round counted, of {len(done)}: nothing was learned; the model is that with which the run began."
        return Lacking((text,), in_vain=True)
    clients = sorted({client for row in _last_events(rows, "never_counted") for client in _ids(row.value)})
    return Lacking(tuple(_short([f"No round counted an update of client {one}." for one in clients], "clients")))


Exchanges = Callable[[Row], tuple[int, int]]
"""Function from a row to (missing, expected) exchanges of a synchronous round, or of an asynchronous interval.

An event's row precedes its peer's row of the round; the network's row counts one exchange per participant.
"""

COUNTED_FROM = 8
"""Minimum number of a participant's exchanges before a running run reports that half of them are missing."""


class ExchangeCounts:
    """Counts the missing exchanges of each participant."""

    def __init__(self, exchanges: Exchanges) -> None:
        self._exchanges = exchanges
        self._of: dict[NodeId, tuple[int, int]] = {}
        self._early: set[tuple[NodeId, int]] = set()  # rounds with an event before their row
        self._here: dict[int, set[NodeId]] = {}  # participants with a row, by rounds without a network row so far
        self._absent: set[tuple[NodeId, int]] = set()
        self._closed = -1  # last round with a network row; a single participant's rows have none
        self._told: set[NodeId] = set()
        self._left: dict[NodeId, set[NodeId]] = {}  # by participant, those that have left it

    def take(self, row: Row) -> list[EventRow]:
        """Count a row; return the `half_missing` events to write before it, at most one per participant in a run."""
        missing, wanted = self._exchanges(row)
        if isinstance(row, NetworkRow):
            return self._close(row.round, wanted, all_here=not missing)
        node = row.peer
        if isinstance(row, PeerRow):
            self._count_present(node, row.round)
            if (node, row.round - 1) in self._early:
                self._early.discard((node, row.round - 1))
                wanted = 0 if row.clients is None else wanted  # a coordinator's row counts more than the events
        elif row.name == HALF_MISSING:
            self._told.add(node)
        elif row.name in ("left", "goodbye") and isinstance(row.value, dict):
            self._left.setdefault(node, set()).add(row.value.get("node", node))
        elif row.name == "joined":
            self._left.get(node, set()).discard(row.value)
        elif wanted and row.name != SKIPPED:
            self._early.add((node, row.round))
            gone = len(self._left.get(node, set()).intersection(_ids(row.value)))
            missing, wanted = missing - gone, wanted - gone
        return self._add(row.round, node, missing, wanted)

    def _count_present(self, node: NodeId, round: int) -> None:
        """Record the row of a participant's round; if the round was closed and counted as missed, correct the count."""
        if round > self._closed >= 0:
            self._here.setdefault(round, set()).add(node)
        elif (node, round) in self._absent:
            self._absent.discard((node, round))
            missing, of = self._of[node]
            self._of[node] = missing - 1, of

    def _close(self, round: int, wanted: int, *, all_here: bool) -> list[EventRow]:
        self._closed = max(round, self._closed)
        here = self._here.pop(round, set())
        absent = [] if all_here else [node for node in range(wanted) if node not in here]
        self._absent |= {(node, round) for node in absent}
        return [event for node in range(wanted) for event in self._add(round, node, int(node in absent), 1)]

    def _add(self, round: int, node: NodeId, missing: int, wanted: int) -> list[EventRow]:
        before = self._of.get(node, (0, 0))
        missing, of = self._of[node] = before[0] + missing, before[1] + wanted
        if not wanted or of < COUNTED_FROM or 2 * missing < of or node in self._told:
            return []
        self._told.add(node)
        return [EventRow(round, node, "half_missing", {"missing": missing, "of": of})]

    def missing_exchanges(self, node: NodeId | None = None) -> tuple[str, ...]:
        """Return a sentence on the missing exchanges of all participants, or of one, in an ended run; () if none are
        missing.
        """
        counted = [counts for one, counts in self._of.items() if node in (None, one)]
        missing, wanted = sum(one for one, _ in counted), sum(of for _, of in counted)
        return (f"{missing} of {wanted} exchanges are missing: the run continued without them.",) if missing else ()

    @property
    def half(self) -> list[tuple[NodeId, int, int]]:
        """(participant, missing exchanges, expected exchanges) of each participant that missed half or more."""
        return [
            (node, missing, of) for node, (missing, of) in sorted(self._of.items()) if missing and 2 * missing >= of
        ]


def count_missing_clients(row: PeerRow, wanted: int) -> tuple[int, int]:
    """Return (missing, wanted) contributions from a coordinator's row."""
    return max(0, wanted - (row.clients or 0)), wanted


def count_missing_updates(row: PeerRow | EventRow) -> tuple[int, int]:
    """Return (missing, wanted) updates from a row of a buffered coordinator: counted, late or failed ones."""
    if isinstance(row, EventRow):
        return (1, 1) if row.name in ("missed", "stale") else (0, 0)
    return 0, row.clients or 0


def with_exchanges(found: Lacking, rows: Iterable[Row], of: Exchanges, roles: Roles, node: NodeId | None) -> Lacking:
    """Return `found`; if it is empty, the participants (or `node`) that missed half or more of their exchanges."""
    attendance = ExchangeCounts(of)
    for row in rows:
        attendance.take(row)
    sentences = [
        f"{'The ' + roles.label(one) if one == roles.leader else roles.label(one).capitalize()}"
        f" missed {missing} of {wanted} exchanges."
        for one, missing, wanted in attendance.half
        if node in (None, one)
    ]
    return (
        Lacking(tuple(_short(sentences, "participants"))) if sentences and not found.sentences else found
    )  # which is more precise


def _last_events(rows: Sequence[Row], name: str) -> list[EventRow]:
    """Return the events of the last end only: a run may be extended after an end."""
    named = [row for row in rows if isinstance(row, EventRow) and row.name == name]
    if not named:  # the usual case
        return []
    reached: dict[NodeId, int] = {}
    for row in rows:
        if isinstance(row, PeerRow):
            reached[row.peer] = max(row.round, reached.get(row.peer, 0))
    return [row for row in named if row.round >= reached.get(row.peer, 0)]


def _ids(value: object) -> list[NodeId]:
    return [one for one in value if isinstance(one, int)] if isinstance(value, list | tuple) else []


def _short(sentences: Iterable[str], kind: str) -> list[str]:
    sentences = list(sentences)
    more = len(sentences) - NAMED
    return sentences if more <= 0 else [*sentences[:NAMED], f"The same is true of {more} more {kind}."]
