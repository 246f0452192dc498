"""Metrics over the rounds of all peers: drivers feed a `Network`, which returns rows of the record."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedgossip.base.scores import ACCURACY, BestSoFar, Score
from fedgossip.base.vectors import RowGroups, Vector, Vectors, consensus_distance, mean
from fedgossip.core.meter import Meter
from fedgossip.core.records import EventRow, NetworkRow, PeerRow, Row
from fedgossip.core.task import LocalTask, Segment, first_wrong

ROUNDS_OPEN = 8
"""Maximum lag of a peer in an open round, or n if larger; also the maximum number of rounds with stored vectors."""

PEERS_IN_EVERY_ROUND = 256
"""Maximum number of peers with a row in every round, on stacked arrays; else rows are in evaluated rounds only."""


_MEASURED = (
    "test_loss", "score_averaged", "score_mean_peer", "score_worst_peer", "consensus_distance", "consensus_before",
    "update_spread", "metrics",
)  # fmt: skip
"""Fields of a NetworkRow measured from the vectors of a round."""

Evaluate = Callable[[Sequence[Vector]], Sequence[Mapping[str, float]]]


def select_extra_metrics(metrics: Mapping[str, float], score: Score) -> dict[str, float | None] | None:
    """Return the metrics without a field in a row; None if there are none."""
    named = {name: value for name, value in metrics.items() if name not in ("loss", score.name)}
    return {name: float(value) if math.isfinite(value) else None for name, value in named.items()} or None


class _OpenRound:
    """The collected rows of an open round, and its vectors if they are `kept`."""

    def __init__(self, *, kept: bool) -> None:
        self.kept = kept
        self.rows: dict[int, PeerRow] = {}
        self.before: dict[int, Vector] = {}
        self.outgoing: dict[int, Vector] = {}
        self.after: dict[int, Vector] = {}


class Network:
    """Combines all peers' vectors of a round: disagreement before and after mixing, and the three scores.

    `evaluate` returns metrics per vector; it is called in round 0, every `every` rounds, and in the last.  `watch_all`:
    measure the disagreement in all rounds.

    A round is closed when every peer is past it or has ended, or the first is ROUNDS_OPEN or n rounds beyond it
    (waiting peers are at most n - 1 apart).  Rounds close once, in ascending order.  Rows of closed rounds are written
    alone.  The last round also waits for the end of uncounted participants, as servers send their part later.
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
        score: Score = ACCURACY,
        segments: Sequence[Segment] = (),
        best: BestSoFar | None = None,
        at_clients: bool = False,
        several: bool = False,
        kept: Callable[[int, float, Vector], None] | None = None,
    ) -> None:
        """`segments`: the model's tensors, to name the first that is not finite.  `best`: compare the averaged models,
        or a coordinator's; `at_clients`: by the clients' scores, which belong to the round before.

        `several`: only peers report the run's score; `evaluate` returns other numbers.  `kept` is called with round,
        score and model of each new best.
        """
        self.best, self.at_clients, self._several, self._kept = best, at_clients, several, kept
        self.best_model: Vector | None = None
        self._scored: tuple[int, float | None] = (0, None)
        self.ended_with: dict[int, Vector] | None = None
        """Every peer's vector after the round that ended the run for lack of a better model; else None."""
        self._segments = segments
        self._untold: list[EventRow] = []  # events of the round that is being closed
        self.score = score
        """The metric of `evaluate` that the rows store."""
        self.n, self.rounds, self.every = n, rounds, every
        self.counted = tuple(range(n) if counted is None else counted)
        """Ids of the participants with counted rounds and vectors; others add only rows and bytes."""
        self.reached = [0] * n
        """The newest completed round of each peer."""
        self._counted = frozenset(self.counted)
        self._aside = set(range(n)) - self._counted  # uncounted participants that have not ended
        self._evaluate, self._watch_all = evaluate, watch_all
        self._patience = max(ROUNDS_OPEN, n)
        self._open: dict[int, _OpenRound] = {}
        self._closed = self._newest = 0
        self._going = set(self.counted)
        self._behind = set(self.counted)  # running peers that have not completed the next round to close
        self._bytes = 0
        self._seconds = 0.0
        self._disagreed = False
        self._ratios: list[float] = []
        self._before: dict[int, NetworkRow] = {}

    @property
    def bytes_sent(self) -> int:
        """Bytes sent by all participants in the rows so far, including those after the last closed round."""
        return self._bytes

    def evaluated(self, round: int) -> bool:
        return round % self.every == 0 or round == self.rounds

    def watched(self, round: int) -> bool:
        """Whether the disagreement of a round is measured."""
        return self._watch_all or self.evaluated(round)

    def started(self, vectors: Sequence[Vector]) -> list[Row]:
        """Record the state before the first round."""
        there = {peer: vectors[peer] for peer in self.counted}
        for peer, vector in there.items():
            self.record_start(peer, 1, vector)
        row = NetworkRow(round=0, peers=len(there), seconds=0.0, bytes_sent=0)
        self._fill(row, there, {peer: Meter(peer).mixed(0, 0, 0, None) for peer in there})
        row.consensus_distance = consensus_distance(list(there.values()))
        return [row, *self._report_events()]

    def aside(self, row: PeerRow) -> list[Row]:
        """Add the row of an uncounted participant; return the rows to write now."""
        self.reached[row.peer] = row.round
        self._bytes += row.bytes_sent
        return [row]

    def went_on(self, last: NetworkRow) -> None:
        """Resume after the round of `last`, already written and completed by all peers."""
        self._closed = self._newest = last.round
        self._bytes, self._seconds = last.bytes_sent, last.seconds
        self.reached = [last.round] * self.n

    def remember(self, rows: Iterable[NetworkRow]) -> None:
        """Store the rows measured before a restart, of rounds that peers resume from: their vectors are lost."""
        self._before = {row.round: row for row in rows}

    def outgoing(self, peer: int, round: int, vector: Vector) -> None:
        """Record `vector` as the input of `peer` to the mix of the round that ends as `round`."""
        if peer in self._counted and (opened := self._opened(round)) and opened.kept:
            opened.outgoing[peer] = vector

    def record_start(self, peer: int, round: int, vector: Vector) -> None:
        """Record `vector` as the start of the training of `peer` in the round that ends as `round`."""
        if peer in self._counted and (opened := self._opened(round)) and opened.kept:
            opened.before[peer] = vector

    def mixed(self, row: PeerRow, vector: Vector | None) -> list[Row]:
        """Add a peer's row and, if available, its vector after the round; return the rows to write now."""
        if row.peer not in self._counted:
            return self.aside(row)
        peer, opened = row.peer, self._opened(row.round)
        self.reached[peer] = row.round
        self._newest = max(self._newest, row.round)
        if vector is not None:
            self.record_start(peer, row.round + 1, vector)
        if opened is None:
            self._bytes += row.bytes_sent
            return [row]
        opened.rows[peer] = row
        if vector is not None and opened.kept:
            opened.after[peer] = vector
        self._behind.discard(peer)
        return self._close_passed()

    def together(
        self,
        round: int,
        losses: Sequence[float | None],
        of_peers: Callable[[], Sequence[PeerRow]],
        sent: int,
        before: Vector,
        outgoing: Vector,
        after: Vector,
    ) -> list[Row]:
        """Close a round that all peers end at once, from their vectors [n, d]; return rows as `closed_at_once` does."""
        there: slice | list[int] = slice(None) if len(self.counted) == self.n else list(self.counted)

        def measured() -> Disagreement:
            return disagreement(before[there], outgoing[there], after[there])

        return self.closed_at_once(round, losses, of_peers, sent, lambda: after, measured)

    def closed_at_once(
        self,
        round: int,
        losses: Sequence[float | None],
        of_peers: Callable[[], Sequence[PeerRow]],
        sent: int,
        models: Callable[[], Vector],
        measured: Callable[[], Disagreement],
    ) -> list[Row]:
        """Close a round that all peers end at once; return the rows to write.

        `losses` of all; `of_peers` creates their rows if they are written; `sent`: bytes of all.  `models` ([n, d]
        after the round) is called in evaluated rounds, `measured` in watched ones.  In other rounds of a large network
        the peers' losses are in the network's row alone, and their bytes in their next rows.
        """
        self._open.pop(round, None)
        self._closed = self._newest = round
        self.reached = [round] * self.n
        in_full = self.n <= PEERS_IN_EVERY_ROUND or self.evaluated(round)
        rows = of_peers() if in_full else ()
        total = self._total(round, len(self.counted), sent, [losses[peer] for peer in self.counted])
        counted = list(self.counted)
        if self.evaluated(round):
            after, of = models(), {row.peer: row for row in rows}
            there = {peer: after[peer] for peer in counted}
            self._fill(total, there, {peer: of[peer] for peer in counted})
            self._compare(total, there)
        if self.watched(round):
            self._record_disagreement(total, measured())
        return [*rows, total, *self._report_events()]

    def ended(self, peer: int) -> list[Row]:
        """Stop waiting for `peer`, which finished or crashed; return the rows to write now."""
        self._going.discard(peer)
        self._behind.discard(peer)
        self._aside.discard(peer)
        return self._close_passed()

    def flush(self) -> list[Row]:
        """Close all open rounds with the peers present."""
        return [row for peer in range(self.n) for row in self.ended(peer)]

    def _opened(self, round: int) -> _OpenRound | None:
        """Return an open round; None for others."""
        if not self._closed < round <= self.rounds:
            return None
        if round not in self._open:
            kept = sum(opened.kept for opened in self._open.values())
            self._open[round] = _OpenRound(kept=self.evaluated(round) or (self._watch_all and kept < ROUNDS_OPEN))
        return self._open[round]

    def _close_passed(self) -> list[Row]:
        out: list[Row] = []
        while self._closed < self._newest and self._is_passed(self._closed + 1):
            if self.over:
                break  # work after the last round is not part of the run
            self._closed += 1
            if opened := self._open.pop(self._closed, None):
                out += self._close(self._closed, opened)
            self._behind = {peer for peer in self._going if self.reached[peer] <= self._closed}
        return out

    def _is_passed(self, round: int) -> bool:
        if round == self.rounds and self._aside:
            return False
        return not self._behind or self._newest - round >= self._patience

    def _close(self, round: int, of: _OpenRound) -> list[Row]:
        if not of.rows:  # everyone skipped it
            return []
        rows = [of.rows[peer] for peer in sorted(of.rows)]
        self._seconds = max(self._seconds, *(row.seconds for row in rows))
        members = sum(1 if row.clients is None else row.clients for row in rows)
        total = self._total(round, members, sum(row.bytes_sent for row in rows), [row.loss for row in rows])
        known = self._before.get(round)
        if known is not None and of.after.keys() != of.rows.keys():
            for name in _MEASURED:
                setattr(total, name, getattr(known, name))
            return [*rows, total]
        if self.evaluated(round) and of.after:
            self._fill(total, of.after, of.rows)
            self._compare(total, of.after, of)
        elif self.evaluated(round):  # vectors are not kept; the peers' own measurements are in their rows
            self._fill_peers(total, rows)
            if len(self.counted) == 1:  # a coordinator's own model is the averaged one
                total.score_averaged = rows[0].score
        if of.after and (self.evaluated(round) or of.after.keys() == of.rows.keys()):
            peers = sorted(of.after)
            before, outgoing = (_select_all(held, peers) for held in (of.before, of.outgoing))
            self._record_disagreement(total, disagreement(before, outgoing, [of.after[peer] for peer in peers]))
        return [*rows, total, *self._report_events()]

    @property
    def over(self) -> bool:
        """Whether the run ends with the last closed round: no better model within the patience."""
        return self.best is not None and self.best.over

    def score_after(self, round: int, model: Vector) -> float | None:
        """Return the score of one model; the model of the round just closed is not measured again."""
        if self._scored[0] != round:
            self._scored = round, self._evaluate([model])[0].get(self.score.name)
        return self._scored[1]

    def _compare(self, total: NetworkRow, after: Mapping[int, Vector], of: _OpenRound | None = None) -> None:
        if self.best is None:
            return
        models, round, value = after, total.round, total.score_averaged
        if self.at_clients:
            tested = [row.score_clients for row in of.rows.values()] if of else []
            models, round, value = of.before if of else {}, total.round - 1, next(iter(tested), None)
        if value is not None and round > 0 and models and self.best.takes(round, value):
            self.best_model = mean([models[peer] for peer in sorted(models)])
            if self._kept:
                self._kept(round, value, self.best_model)
        if self.over:
            self.ended_with = dict(after)
            peer = self.counted[0] if len(self.counted) == 1 else -1
            self._untold.append(EventRow(total.round, peer, "no_better", dict(self.best.facts)))

    def _total(self, round: int, peers: int, sent: int, losses: Sequence[float | None]) -> NetworkRow:
        self._bytes += sent
        known = [loss for loss in losses if loss is not None]
        total = NetworkRow(round=round, peers=peers, seconds=self._seconds, bytes_sent=self._bytes)
        total.loss = float(np.mean(known)) if known else None
        return total

    def _record_disagreement(self, row: NetworkRow, found: Disagreement) -> None:
        row.consensus_distance, row.consensus_before, row.update_spread = found.after, found.before, found.spread
        if found.before is None:
            return
        self._disagreed |= found.before > found.floor
        if found.before > found.floor and found.after > found.floor:
            self._ratios.append(found.after / found.before)

    def _fill(self, total: NetworkRow, vectors: dict[int, Vector], rows: dict[int, PeerRow]) -> None:
        """Write the three scores into `total`, and each peer's into its row unless the peer reported one."""
        unknown = [peer for peer in sorted(vectors) if self._several or rows[peer].score is None]
        there = [vectors[peer] for peer in sorted(vectors)]
        averaged, *each = self._evaluate_each(there, [vectors[peer] for peer in unknown])
        self._look(total.round, [(-1, averaged), *zip(unknown, each, strict=True)], vectors)
        total.test_loss = averaged.get("loss")
        total.score_averaged = averaged.get(self.score.name)
        self._scored = total.round, total.score_averaged
        total.metrics = select_extra_metrics(averaged, self.score)
        for peer, metrics in zip(unknown, each, strict=True):
            if rows[peer].score is None:
                rows[peer].score = metrics.get(self.score.name)
            rows[peer].metrics = select_extra_metrics(metrics, self.score)
        self._fill_peers(total, [rows[peer] for peer in sorted(rows)])

    def _look(self, round: int, found: Sequence[tuple[int, Mapping[str, float]]], vectors: dict[int, Vector]) -> None:
        """Record the first model, -1 for the averaged one, with a non-finite metric."""
        for peer, metrics in found:
            for name, value in metrics.items():
                if not math.isfinite(value):
                    vector = vectors[peer] if peer >= 0 else mean([vectors[one] for one in sorted(vectors)])
                    of = "first model" if not round else "averaged model" if peer < 0 else "model"
                    facts = {"figure": name, "of": of, "value": str(value)}
                    if tensor := first_wrong(vector, self._segments):
                        facts["tensor"] = tensor
                    self._untold.append(EventRow(round, peer, "not_finite", facts))
                    return

    def _report_events(self) -> list[EventRow]:
        events, self._untold = self._untold, []
        return events

    def _evaluate_each(self, there: Sequence[Vector], unknown: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Return the metrics of the mean and of the `unknown` vectors; equal vectors are evaluated once."""
        first = there[0]
        # after an exact mean all vectors are equal, and an evaluation is slow
        if len(there) > 1 and all(np.array_equal(first, other) for other in there[1:]):
            (found,) = self._evaluate([first])
            return [found] * (1 + len(unknown))
        return self._evaluate([mean(there), *unknown])

    def fill(self, row: NetworkRow, vectors: Sequence[Vector]) -> None:
        """Write the scores of final vectors into `row`: of their mean, and of each."""
        rows = {place: Meter(place).mixed(row.round, 0, 0, None) for place in range(len(vectors))}
        self._fill(row, dict(enumerate(vectors)), rows)

    def _fill_peers(self, total: NetworkRow, rows: Sequence[PeerRow]) -> None:
        """Fill in the peers' scores; for clients those that they report on their local examples."""
        mean = [row.score if row.score_clients is None else row.score_clients for row in rows]
        worst = [row.score if row.score_clients is None else row.score_worst_client for row in rows]
        if known := [score for score in mean if score is not None]:
            total.score_mean_peer = float(np.mean(known))
        if known := [score for score in worst if score is not None]:
            total.score_worst_peer = self.score.worst(known)

    def measured_contraction(self) -> float | None:
        """Return the geometric mean over the measured rounds of distance after mixing / distance before it.

        At most the slem of a symmetric mixing, approached when rounds only mix; the spectrum's root mean square when
        training adds disagreement in all directions.

        Rounds that end below 32 roundings of the vectors' size (known to a thousandth) are omitted: 0.0 if all did;
        None without any disagreement.
        """
        if not self._disagreed:
            return None
        return float(np.exp(np.log(self._ratios).mean())) if self._ratios else 0.0


def _select_all(held: Mapping[int, Vector], peers: Sequence[int]) -> Vectors | None:
    return [held[peer] for peer in peers] if held.keys() >= set(peers) else None


ROUNDINGS = 32
"""Smallest measured disagreement, in roundings of the vectors' size; see `Network.measured_contraction`."""


class Disagreement(NamedTuple):
    """Disagreement of the models in a round, as `vectors.consensus_distance`."""

    after: float
    """After mixing."""
    before: float | None = None
    """After training, before mixing; None, like `spread`, if unknown."""
    spread: float | None = None
    """Disagreement of the training updates."""
    floor: float = 0.0
    """Distances below it are rounding: ROUNDINGS of the root mean square of the norms before mixing."""


def disagreement(before: Vectors | None, outgoing: Vectors | None, after: Vectors) -> Disagreement:
    """Return the disagreement of a round from vectors of the same peers; None: unknown."""
    distance = consensus_distance(after)
    if outgoing is None:
        return Disagreement(distance)
    spread = None if before is None else consensus_distance(outgoing, before)
    floor = ROUNDINGS * float(np.finfo(outgoing[0].dtype).eps) * _size(outgoing)
    return Disagreement(distance, consensus_distance(outgoing), spread, floor)


def _size(vectors: Vectors) -> float:
    if isinstance(vectors, np.ndarray):  # [n, d]
        return math.sqrt(float(np.einsum("ij,ij->i", vectors, vectors).sum(dtype=np.float64)) / len(vectors))
    return math.sqrt(sum(float(np.vdot(vector, vector)) for vector in vectors) / len(vectors))


class ResidentModels(Protocol):
    """All nodes' models on the device.  Only a watched round reads from it."""

    @property
    def unread(self) -> int:
        """Maximum number of rounds between two calls of `losses`."""

    def load(self, models: Vector) -> None:
        """Begin from models [n, d]."""

    def advance(self, round: int, phase: int | None, groups: RowGroups, *, watched: bool) -> Disagreement | None:
        """Train all nodes in `round`, mix their models by `groups`; return their disagreement if `watched`.

        `phase`: equal for equal groups; None: a graph used once.  Raises TrainingError if the device fails, or if one
        node does not fit.
        """

    def losses(self) -> Sequence[npt.NDArray[np.float64]]:
        """Return the losses [n] of every round since the last call, up to the first non-finite one: the next call
        raises TrainingError.
        """

    def models(self) -> Vector:
        """Return the current models [n, d], frozen, in host memory."""


@runtime_checkable
class ResidentTask(LocalTask, Protocol):
    """A task that can keep its nodes' models on its device."""

    def resident_models(self, n: int, note: Callable[[str, str], None]) -> ResidentModels | None:
        """Return the models of nodes 0 to n - 1; None if they do not stay on the device, or do not fit.

        `note` receives the name and text of an event, now or later, if the task falls back.
        """
