"""Records: one line per peer and round, one line per round for the network, one line per event.

Drivers feed a `Meter` per peer and one `Network`; both give rows, and a `RowWriter` appends them to `metrics.jsonl`.
Rounds are counted by completion: row 1 is written when the first round is behind, row 0 is the state before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec
import numpy as np

from fedgossip.machine import Report
from fedgossip.vectors import Vector, consensus_distance, mean

ROUNDS_OPEN = 8
"""A round is not held open for a peer that is further behind than this, or than n if that is more; and where rounds are
not evaluated, vectors of so many are kept."""

ROUNDINGS = 32
"""Disagreement is measured down to so many roundings of the vectors' size; see `Network.measured_contraction`."""


class PeerRow(msgspec.Struct, tag="peer", tag_field="kind"):
    """What one peer did in one round.  Bytes are those of our own frames, seconds are the driver's."""

    round: int
    peer: int
    loss: float | None
    accuracy: float | None
    bytes_sent: int
    bytes_received: int
    seconds_training: float
    seconds_waiting: float
    seconds_mixing: float
    seconds: float
    staleness: int | None = None
    """Asynchronous runs: how often the model changed while this round was trained from an older one."""
    clients: int | None = None
    """A coordinator's rows: how many contributions are in the round; loss is their mean."""
    accuracy_clients: float | None = None
    """A coordinator's: the mean accuracy of the model that it sent, on examples that the clients keep for that."""
    accuracy_worst_client: float | None = None
    """The worst of those, where it can be seen."""
    epsilon: float | None = None
    """What this participant has spent of its budget of privacy."""


class NetworkRow(msgspec.Struct, tag="network", tag_field="kind"):
    """All peers after one round.  `bytes_sent` is cumulative; None where it was not measured in this round."""

    round: int
    peers: int
    seconds: float
    bytes_sent: int
    loss: float | None = None
    test_loss: float | None = None
    accuracy_averaged: float | None = None
    accuracy_mean_peer: float | None = None
    accuracy_worst_peer: float | None = None
    consensus_distance: float | None = None
    consensus_before: float | None = None
    update_spread: float | None = None


class EventRow(msgspec.Struct, tag="event", tag_field="kind"):
    """Something that a reader of the run should know: a peer gone, a deadline missed, a frame refused."""

    round: int
    peer: int
    name: str
    value: object = None


Row = PeerRow | NetworkRow | EventRow


class RowWriter:
    """Appends rows to a JSON-lines file, each line whole: what was measured survives Ctrl-C and kill.

    A row for which the disk has no room is dropped; the event `rows_lost` says how many were, when there is room again.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._encoder = msgspec.json.Encoder(enc_hook=_plain)
        self.lost = 0
        """Rows dropped in all."""
        self._untold = 0
        self._reason = ""
        self._place = -1, -1

    def write(self, row: Row) -> EventRow | None:
        """Append a row.  Returns the event `rows_lost` where that was written too, after the first row that fitted."""
        self._place = row.round, -1 if isinstance(row, NetworkRow) else row.peer
        if self._append(row):
            return self._tell()
        self.lost += 1
        self._untold += 1
        return None

    def close(self) -> EventRow | None:
        """Close the file.  Returns as `write`."""
        if self._file.closed:
            return None
        told = self._tell()
        self._file.close()
        return told

    def _tell(self) -> EventRow | None:
        if not self._untold:
            return None
        event = EventRow(*self._place, "rows_lost", {"count": self._untold, "reason": self._reason})
        if not self._append(event):
            return None
        self._untold = 0
        return event

    def _append(self, row: Row) -> bool:
        line, written = self._encoder.encode(row) + b"\n", 0
        try:
            while written < len(line):  # what room is left is filled before the disk says that it is full
                written += self._file.write(line[written:])
        except OSError as error:
            self._reason = error.strerror or str(error)
            if written:
                self._file.truncate(self._file.tell() - written)
            return False
        return True

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no record")


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a metrics.jsonl.  A last line cut short by a crash is left out."""
    decoder = msgspec.json.Decoder(Row)
    rows: list[Row] = []
    for line in path.read_bytes().splitlines():
        try:
            rows.append(decoder.decode(line))
        except msgspec.DecodeError:
            break
    return rows


class Meter:
    """One peer's account of the round it is in."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.bytes_sent = self.bytes_received = 0
        self.loss: float | None = None
        self.staleness: int | None = None
        self.epsilon: float | None = None
        self._aggregated: Mapping[str, float] = {}
        self._train_began = self._train_ended = self._mixed = 0

    def train_began(self, now_ns: int) -> None:
        self._train_began = now_ns

    def train_ended(self, now_ns: int, metrics: Mapping[str, float]) -> None:
        self._train_ended = now_ns
        self.loss = metrics.get("loss")

    def trained(self, facts: object) -> None:
        """Take the value of a machine's report "trained": there are things about a training that only it knows."""
        staleness = facts.get("staleness") if isinstance(facts, Mapping) else None
        self.staleness = staleness if isinstance(staleness, int) else None

    def aggregated(self, facts: object) -> None:
        """Take the value of a coordinator's report "aggregated": what the clients' contributions were like."""
        if isinstance(facts, Mapping):
            self._aggregated = {name: value for name, value in facts.items() if isinstance(value, int | float)}
            self.loss = self._aggregated.get("loss")
            self.epsilon = self._aggregated.get("epsilon")

    def contributed(self, facts: object) -> float | None:
        """Take the value of a client's report "contributed"; return the accuracy that it measured."""
        if not isinstance(facts, Mapping):
            return None
        self.epsilon = facts.get("epsilon")
        accuracy = facts.get("accuracy")
        return accuracy if isinstance(accuracy, float) else None

    def mixed(self, round: int, now_ns: int, mixing_ns: int, accuracy: float | None) -> PeerRow:
        """Close the round: `now_ns` is when the last model arrived, `mixing_ns` what summing then took."""
        row = PeerRow(
            round=round,
            peer=self.peer,
            loss=self.loss,
            accuracy=accuracy,
            bytes_sent=self.bytes_sent,
            bytes_received=self.bytes_received,
            seconds_training=(self._train_ended - self._train_began) / 1e9,
            seconds_waiting=max(0, now_ns - (self._train_ended or self._mixed)) / 1e9,
            seconds_mixing=mixing_ns / 1e9,
            seconds=(now_ns + mixing_ns) / 1e9,
            staleness=self.staleness,
            epsilon=self.epsilon,
        )
        self._mixed = now_ns + mixing_ns
        if self._aggregated:
            row.clients = int(self._aggregated["clients"])
            row.accuracy_clients = self._aggregated.get("accuracy")
            row.accuracy_worst_client = self._aggregated.get("worst")
            self._aggregated = {}
        self.bytes_sent = self.bytes_received = 0
        self.loss = None
        return row


Evaluate = Callable[[Sequence[Vector]], Sequence[Mapping[str, float]]]


class _Round:
    """What is known of a round that is not closed: rows, and vectors where they are `kept`."""

    def __init__(self, *, kept: bool) -> None:
        self.kept = kept
        self.rows: dict[int, PeerRow] = {}
        self.before: dict[int, Vector] = {}
        self.outgoing: dict[int, Vector] = {}
        self.after: dict[int, Vector] = {}


class Network:
    """All peers' vectors of a round, put together: disagreement before and after mixing, and the three accuracies.

    `evaluate` gives metrics per vector; it is asked in round 0, every `every` rounds, and in the last one.
    `watch_all`: measure the disagreement in other rounds too, not only in the evaluated ones.

    A round is closed when every peer is past it or has ended, or when the first peer is ROUNDS_OPEN or n rounds beyond
    it; once, and in ascending order.  A peer's rows of closed rounds are given on alone.  (Peers that wait for each
    other are at most n - 1 rounds apart: further behind is only one that the others went on without.)
    """

    def __init__(
        self,
        n: int,
        rounds: int,
        every: int,
        evaluate: Evaluate,
        *,
        watch_all: bool = True,
        counted: Sequence[int] | None = None,
    ) -> None:
        self.n, self.rounds, self.every = n, rounds, every
        self.counted = tuple(range(n) if counted is None else counted)
        """Whose rounds and vectors these are; others only add rows, and bytes, of their own."""
        self.reached = [0] * n
        """The newest round that each peer has behind it."""
        self._evaluate, self._watch_all = evaluate, watch_all
        self._patience = max(ROUNDS_OPEN, n)
        self._open: dict[int, _Round] = {}
        self._closed = self._newest = 0
        self._going = set(self.counted)
        self._behind = set(self.counted)  # those of the going that are not past the next round to close
        self._bytes = 0
        self._seconds = 0.0
        self._disagreed = False
        self._ratios: list[float] = []

    def evaluated(self, round: int) -> bool:
        return round % self.every == 0 or round == self.rounds

    def started(self, vectors: Sequence[Vector]) -> list[Row]:
        """Record the state before the first round."""
        there = {peer: vectors[peer] for peer in self.counted}
        for peer, vector in there.items():
            self.before(peer, 1, vector)
        row = NetworkRow(round=0, peers=len(there), seconds=0.0, bytes_sent=0)
        self._fill(row, there, {peer: Meter(peer).mixed(0, 0, 0, None) for peer in there})
        row.consensus_distance = consensus_distance(list(there.values()))
        return [row]

    def aside(self, row: PeerRow) -> list[Row]:
        """Take the row of one whose rounds are not counted; return the rows to be written now."""
        self.reached[row.peer] = row.round
        self._bytes += row.bytes_sent
        return [row]

    def went_on(self, last: NetworkRow) -> None:
        """Begin after the round of `last`, which is written already, with all peers behind it."""
        self._closed = self._newest = last.round
        self._bytes, self._seconds = last.bytes_sent, last.seconds
        self.reached = [last.round] * self.n

    def outgoing(self, peer: int, round: int, vector: Vector) -> None:
        """`vector` is what `peer` mixes in the round that ends as `round`."""
        if (opened := self._opened(round)) and opened.kept:
            opened.outgoing[peer] = vector

    def before(self, peer: int, round: int, vector: Vector) -> None:
        """`vector` is what `peer` trained from in the round that ends as `round`."""
        if (opened := self._opened(round)) and opened.kept:
            opened.before[peer] = vector

    def mixed(self, row: PeerRow, vector: Vector | None) -> list[Row]:
        """Take a peer's row and, where it is known, its vector after the round; return the rows to be written now."""
        peer, opened = row.peer, self._opened(row.round)
        self.reached[peer] = row.round
        self._newest = max(self._newest, row.round)
        if vector is not None:
            self.before(peer, row.round + 1, vector)
        if opened is None:
            self._bytes += row.bytes_sent
            return [row]
        opened.rows[peer] = row
        if vector is not None and opened.kept:
            opened.after[peer] = vector
        self._behind.discard(peer)
        return self._close_passed()

    def ended(self, peer: int) -> list[Row]:
        """Wait no more for `peer`: it finished, or died; return the rows to be written now."""
        self._going.discard(peer)
        self._behind.discard(peer)
        return self._close_passed()

    def flush(self) -> list[Row]:
        """Close all open rounds with the peers that are there."""
        return [row for peer in range(self.n) for row in self.ended(peer)]

    def _opened(self, round: int) -> _Round | None:
        """Return what is known of a round that is not closed; None for one that is, and for one after the last."""
        if not self._closed < round <= self.rounds:
            return None
        if round not in self._open:
            kept = sum(opened.kept for opened in self._open.values())
            self._open[round] = _Round(kept=self.evaluated(round) or (self._watch_all and kept < ROUNDS_OPEN))
        return self._open[round]

    def _close_passed(self) -> list[Row]:
        out: list[Row] = []
        while self._closed < self._newest and (not self._behind or self._newest - self._closed > self._patience):
            self._closed += 1
            if opened := self._open.pop(self._closed, None):
                out += self._close(self._closed, opened)
            self._behind = {peer for peer in self._going if self.reached[peer] <= self._closed}
        return out

    def _close(self, round: int, of: _Round) -> list[Row]:
        if not of.rows:  # everyone skipped it
            return []
        rows = [of.rows[peer] for peer in sorted(of.rows)]
        self._bytes += sum(row.bytes_sent for row in rows)
        self._seconds = max(self._seconds, *(row.seconds for row in rows))
        losses = [row.loss for row in rows if row.loss is not None]
        peers = sum(1 if row.clients is None else row.clients for row in rows)
        total = NetworkRow(round=round, peers=peers, seconds=self._seconds, bytes_sent=self._bytes)
        total.loss = float(np.mean(losses)) if losses else None
        if self.evaluated(round) and of.after:
            self._fill(total, of.after, of.rows)
        if of.after and (self.evaluated(round) or of.after.keys() == of.rows.keys()):
            self._measure(total, of)
        return [*rows, total]

    def _measure(self, row: NetworkRow, of: _Round) -> None:
        peers = sorted(of.after)
        row.consensus_distance = consensus_distance([of.after[peer] for peer in peers])
        if not of.outgoing.keys() >= of.after.keys():
            return
        outgoing = [of.outgoing[peer] for peer in peers]
        row.consensus_before = consensus_distance(outgoing)
        if of.before.keys() >= of.after.keys():
            row.update_spread = consensus_distance([of.outgoing[p] - of.before[p] for p in peers])
        floor = ROUNDINGS * float(np.finfo(outgoing[0].dtype).eps) * _size(outgoing)
        self._disagreed |= row.consensus_before > floor
        if row.consensus_before > floor and row.consensus_distance > floor:
            self._ratios.append(row.consensus_distance / row.consensus_before)

    def _fill(self, total: NetworkRow, vectors: dict[int, Vector], rows: dict[int, PeerRow]) -> None:
        """Put the three accuracies into `total`, and each peer's into its row unless the peer told it itself."""
        unknown = [peer for peer in sorted(vectors) if rows[peer].accuracy is None]
        averaged, *each = self._evaluate(
            [mean([vectors[peer] for peer in sorted(vectors)]), *(vectors[peer] for peer in unknown)]
        )
        total.test_loss = averaged.get("loss")
        total.accuracy_averaged = averaged.get("accuracy")
        for peer, metrics in zip(unknown, each, strict=True):
            rows[peer].accuracy = metrics.get("accuracy")
        self._fill_peers(total, [rows[peer] for peer in sorted(rows)])

    def _fill_peers(self, total: NetworkRow, rows: Sequence[PeerRow]) -> None:
        """What the peers hold; of a coordinator's clients what they say of the model on examples of their own."""
        mean = [row.accuracy if row.accuracy_clients is None else row.accuracy_clients for row in rows]
        worst = [row.accuracy if row.accuracy_clients is None else row.accuracy_worst_client for row in rows]
        if known := [a for a in mean if a is not None]:
            total.accuracy_mean_peer = float(np.mean(known))
        total.accuracy_worst_peer = min((a for a in worst if a is not None), default=None)

    def measured_contraction(self) -> float | None:
        """Return the geometric mean over the measured rounds of distance after mixing / distance before it.

        At most the slem of a symmetric mixing, whatever the vectors were; it comes near to it where only mixing is
        left, and to the spectrum's root mean square where training adds disagreement in all directions.

        A sum in floating point is off by about one rounding of the vectors' size, in a direction of its own at each
        peer: that adds in quadrature, so a distance of 32 roundings is still known to a thousandth, and rounds that
        end below it are left out.  0.0 where there was disagreement and every round ended so; None where there was
        nothing to shrink.
        """
        if not self._disagreed:
            return None
        return float(np.exp(np.log(self._ratios).mean())) if self._ratios else 0.0


def _size(vectors: Sequence[Vector]) -> float:
    """The root mean square of the vectors' norms."""
    return math.sqrt(sum(float(np.vdot(vector, vector)) for vector in vectors) / len(vectors))


QUIET = frozenset(
    {
        "trained",
        "outgoing",
        "mixed",
        "aggregated",
        "contributed",
        "late",
        "repeated",
        "exchanged",
        "declined",
        "withheld",
        "outdated",
    }
)
"""Reports that are no events of their own; those that drivers make rows of are not counted either."""


def event_row(peer: int, report: Report) -> EventRow | None:
    """Return the line for a report that a reader should see, or None."""
    if report.name in QUIET:
        return None
    return EventRow(round=report.round, peer=peer, name=report.name, value=report.value)
