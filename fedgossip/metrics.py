"""Records: one line per peer and round, one line per round for the network, one line per event.

Drivers feed a `Meter` per peer and one `Network`; both give rows, and a `RowWriter` appends them to `metrics.jsonl`.
Rounds are counted by completion: row 1 is written when the first round is behind, row 0 is the state before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec
import numpy as np

from fedgossip.machine import Report
from fedgossip.vectors import Vector, consensus_distance, mean

ROUNDS_OPEN = 8
"""How many unfinished rounds the network's record keeps before it closes the oldest with the peers that are there."""


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
    """Appends rows to a JSON-lines file, each line whole: what was measured survives Ctrl-C and kill."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._encoder = msgspec.json.Encoder(enc_hook=_plain)

    def write(self, row: Row) -> None:
        self._file.write(self._encoder.encode(row) + b"\n")

    def close(self) -> None:
        self._file.close()

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
        self._train_began = self._train_ended = 0
        self._mixing_ns = 0

    def train_began(self, now_ns: int) -> None:
        self._train_began = now_ns

    def train_ended(self, now_ns: int, metrics: Mapping[str, float]) -> None:
        self._train_ended = now_ns
        self.loss = metrics.get("loss")

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
            seconds_waiting=max(0, now_ns - self._train_ended) / 1e9,
            seconds_mixing=mixing_ns / 1e9,
            seconds=(now_ns + mixing_ns) / 1e9,
        )
        self.bytes_sent = self.bytes_received = 0
        self.loss = None
        return row


Evaluate = Callable[[Sequence[Vector]], Sequence[Mapping[str, float]]]


class Network:
    """All peers' vectors of a round, put together: disagreement before and after mixing, and the three accuracies.

    `evaluate` gives metrics per vector; it is asked in round 0, every `every` rounds, and in the last one.
    `watch_all`: measure the disagreement in every round, not only in the evaluated ones.
    """

    def __init__(self, n: int, rounds: int, every: int, evaluate: Evaluate, *, watch_all: bool = True) -> None:
        self.n, self.rounds, self.every = n, rounds, every
        self._evaluate, self._watch_all = evaluate, watch_all
        self.last_before: list[float] = []
        self.last_after: list[float] = []
        self._before: dict[int, dict[int, Vector]] = {}
        self._outgoing: dict[int, dict[int, Vector]] = {}
        self._after: dict[int, dict[int, Vector]] = {}
        self._rows: dict[int, dict[int, PeerRow]] = {}
        self._bytes = 0
        self._seconds = 0.0

    def evaluated(self, round: int) -> bool:
        return round % self.every == 0 or round == self.rounds

    def started(self, vectors: Sequence[Vector]) -> list[Row]:
        """Record the state before the first round."""
        self._before[1] = dict(enumerate(vectors))
        row = NetworkRow(round=0, peers=self.n, seconds=0.0, bytes_sent=0)
        self._fill(row, dict(enumerate(vectors)), {peer: Meter(peer).mixed(0, 0, 0, None) for peer in range(self.n)})
        row.consensus_distance = consensus_distance(vectors)
        return [row]

    def outgoing(self, peer: int, round: int, vector: Vector) -> None:
        """`vector` is what `peer` mixes in the round that ends as `round`."""
        if self._watch_all or self.evaluated(round):
            self._outgoing.setdefault(round, {})[peer] = vector

    def before(self, peer: int, round: int, vector: Vector) -> None:
        """`vector` is what `peer` trained from in the round that ends as `round`."""
        if self._watch_all or self.evaluated(round):
            self._before.setdefault(round, {})[peer] = vector

    def mixed(self, row: PeerRow, vector: Vector | None) -> list[Row]:
        """Take a peer's row and, where it is known, its vector after the round; return the rows to be written now."""
        if vector is not None:
            self._after.setdefault(row.round, {})[row.peer] = vector
            self.before(row.peer, row.round + 1, vector)
        self._rows.setdefault(row.round, {})[row.peer] = row
        out: list[Row] = []
        while self._rows and (len(self._rows[min(self._rows)]) == self.n or len(self._rows) > ROUNDS_OPEN):
            out += self._close(min(self._rows))
        return out

    def flush(self) -> list[Row]:
        """Close all open rounds with the peers that are there."""
        return [row for round in sorted(self._rows) for row in self._close(round)]

    def _close(self, round: int) -> list[Row]:
        rows, after = self._rows.pop(round), self._after.pop(round, {})
        outgoing, before = self._outgoing.pop(round, {}), self._before.pop(round, {})
        self._bytes += sum(row.bytes_sent for row in rows.values())
        self._seconds = max(self._seconds, *(row.seconds for row in rows.values()))
        losses = [row.loss for row in rows.values() if row.loss is not None]
        total = NetworkRow(round=round, peers=len(rows), seconds=self._seconds, bytes_sent=self._bytes)
        total.loss = float(np.mean(losses)) if losses else None
        if self.evaluated(round) and after:
            self._fill(total, after, rows)
        if after and (self._watch_all or self.evaluated(round)):
            self._measure(total, before, outgoing, after)
        return [*(rows[peer] for peer in sorted(rows)), total]

    def _measure(
        self, row: NetworkRow, before: dict[int, Vector], outgoing: dict[int, Vector], after: dict[int, Vector]
    ) -> None:
        row.consensus_distance = consensus_distance(_ordered(after))
        if set(outgoing) >= set(after):
            row.consensus_before = consensus_distance([outgoing[peer] for peer in sorted(after)])
        if set(outgoing) & set(before) >= set(after):
            row.update_spread = consensus_distance([outgoing[p] - before[p] for p in sorted(after)])
        if row.consensus_before is not None:
            self.last_before.append(row.consensus_before)
            self.last_after.append(row.consensus_distance)

    def _fill(self, total: NetworkRow, vectors: dict[int, Vector], rows: dict[int, PeerRow]) -> None:
        """Put the three accuracies into `total`, and each peer's into its row unless the peer told it itself."""
        ordered = _ordered(vectors)
        unknown = [peer for peer in sorted(rows) if rows[peer].accuracy is None]
        averaged, *each = self._evaluate([mean(ordered), *(vectors[peer] for peer in unknown)])
        total.test_loss = averaged.get("loss")
        total.accuracy_averaged = averaged.get("accuracy")
        for peer, metrics in zip(unknown, each, strict=True):
            rows[peer].accuracy = metrics.get("accuracy")
        accuracies = [a for a in (rows[peer].accuracy for peer in sorted(rows)) if a is not None]
        if accuracies:
            total.accuracy_mean_peer, total.accuracy_worst_peer = float(np.mean(accuracies)), min(accuracies)

    def measured_contraction(self) -> float | None:
        """Return the geometric mean over the measured rounds of distance after mixing / distance before it.

        At most the slem of a symmetric mixing, whatever the vectors were; it comes near to it where only mixing is
        left, and to the spectrum's root mean square where training adds disagreement in all directions.  Rounds whose
        disagreement is rounding error (1e-6 of the largest) are left out.  None where there was nothing to shrink.
        """
        before, after = np.array(self.last_before), np.array(self.last_after)
        counted = before > 1e-6 * before.max(initial=0.0)
        if not counted.any():
            return None
        ratios = np.maximum(after[counted] / before[counted], 1e-300)
        return float(np.exp(np.log(ratios).mean()))


def _ordered(vectors: dict[int, Vector]) -> list[Vector]:
    return [vectors[peer] for peer in sorted(vectors)]


QUIET = frozenset({"trained", "outgoing", "mixed", "late", "repeated"})
"""Reports that are no events of their own; the last two are counted."""


def event_row(peer: int, report: Report) -> EventRow | None:
    """Return the line for a report that a reader should see, or None."""
    if report.name in QUIET:
        return None
    return EventRow(round=report.round, peer=peer, name=report.name, value=report.value)
