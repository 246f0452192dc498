"""The sum of one round of all-reduce: of plain gradients, or of encoded ones.

    of       the sum of a round at one rank: a `Reduction`, or a `PayloadGather`
    brings   a worker's contribution
    gradient the mean gradient [d], from the result

Codecs with additive payloads are reduced by the collective's own table, of fewer elements; the payloads of others are
sent to all, decoded by each in the same order, and then added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedgossip.algorithms.codecs.base import Codec, CodecTurn, LinearCodec, Payload, VectorLayout, of_bytes
from fedgossip.algorithms.collectives.table import Move, Table, Way
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector, frozen, summable
from fedgossip.core.messages import TAIL
from fedgossip.protocols.allreduce.reduction import Chunk, LowRankReduction, Reduction, steps_of

# One all-gather at one rank: every payload is sent to all, which decode and add them in the order of ranks.
#
# It takes the place of a `Reduction`, with one bucket, and chunks of the same names.  A chunk carries one rank's
# payload
# and its weight; a forwarding rank has decoded it before, so that an invalid payload stops at its first receiver.


class PayloadGather:
    """The weighted mean of one vector [d] per rank, decoded from payloads.  `turn`: of the round."""

    def __init__(self, rank: int, table: Table, codec: Codec, layout: VectorLayout, turn: CodecTurn) -> None:
        self._codec, self._layout, self._turn, self._rank = codec, layout, turn, rank
        self._size = codec.size(layout, turn.round)
        self._moves: Sequence[tuple[Move, slice]] = list(table.of(rank, table.workers * self._size))
        self._steps: Sequence[int] = steps_of([move for move, _ in self._moves])
        self._workers, self._at = table.workers, 0
        self._payloads: dict[int, tuple[float, Payload]] = {}  # by rank
        self._kept: dict[tuple[int, int], tuple[float, Payload]] = {}  # by sender and step, until its move
        self.summed = 0

    @property
    def kind(self) -> np.dtype[np.uint8]:
        """The element type of chunks."""
        return np.dtype(np.uint8)

    @property
    def begun(self) -> bool:
        return self._rank in self._payloads

    @property
    def done(self) -> bool:
        return self.begun and self._at == len(self._moves)

    @property
    def starts(self) -> Sequence[int]:
        """Empty: all buckets are sent together."""
        return []

    @property
    def mean(self) -> Vector:
        """The mean [d], frozen, where all is done; the same bits at every rank."""
        assert self.done
        total = np.zeros(self._layout.length, self._layout.dtype)
        for rank in range(self._workers):
            weight, payload = self._payloads[rank]
            total += self._codec.decode(payload, self._layout, self._turn) * self._layout.dtype.type(weight)
        total /= self._layout.dtype.type(sum(self._payloads[rank][0] for rank in range(self._workers)))
        return frozen(total)

    def bears(self, weight: float, *pieces: Vector) -> bool:
        """Return whether others can add the rank's own payload: else all of them would refuse it."""
        return self.fits(0, weight, pieces[0])

    def give(self, start: int, weight: float, *pieces: Vector) -> list[Chunk]:
        """Give the rank's own payload, whole; return the chunks to send now."""
        if self.begun or start:
            return []
        self._payloads[self._rank] = weight, pieces[0]
        return self._go_on()

    def expects(self, sender: int, bucket: int, step: int) -> tuple[int, int] | None:
        """Return (start, stop) of the bytes in a chunk of this name; None where there is no such chunk."""
        takes = [part for move, part in self._moves if move.way is not Way.SEND and move.peer == sender]
        return (takes[step].start, takes[step].stop) if bucket == 0 and 0 <= step < len(takes) else None

    def has(self, sender: int, bucket: int, step: int) -> bool:  # noqa: ARG002
        """Return whether such a chunk was received before."""
        made = sum(move.way is not Way.SEND and move.peer == sender for move, _ in self._moves[: self._at])
        return step < made or (sender, step) in self._kept

    def fits(self, bucket: int, weight: float, vector: Vector) -> bool:  # noqa: ARG002
        """Return whether a payload can be decoded, and the result be added with its weight."""
        try:
            decoded = self._codec.decode(vector, self._layout, self._turn)
        except ProtocolError:
            return False
        largest = max(float(decoded.max()), -float(decoded.min())) * weight * self._workers
        return weight > 0 and summable(np.array([largest], self._layout.dtype))

    def take(self, sender: int, bucket: int, step: int, weight: float, vector: Vector) -> list[Chunk]:  # noqa: ARG002
        """Take a chunk that is expected, new and fits; return the chunks to send now."""
        self._kept[sender, step] = weight, frozen(vector)
        return self._go_on()

    def awaited(self) -> Mapping[int, int]:
        """Return the awaited rank, with a one."""
        return {} if self.done or not self.begun else {self._moves[self._at][0].peer: 1}

    def _go_on(self) -> list[Chunk]:
        out: list[Chunk] = []
        while self.begun and self._at < len(self._moves):
            (move, part), step = self._moves[self._at], self._steps[self._at]
            if move.way is Way.SEND:
                weight, payload = self._payloads[move.first]
                out.append(Chunk(move.peer, 0, step, part.start, weight, payload))
            elif (arrived := self._kept.pop((move.peer, step), None)) is not None:
                self._payloads[move.first] = arrived
                self.summed += self._layout.length
            else:
                break
            self._at += 1
        return out


Contribution = tuple[float, tuple[Vector, ...]]
"""A worker's part of the mean: its weight, and the pieces of a vector, one after the other."""

RoundSum = Reduction | PayloadGather | LowRankReduction


class RoundSums(Protocol):
    """The sums of a run's rounds; a value, the same at all workers."""

    @property
    def collective(self) -> Callable[[int], Table]:
        """(workers) -> table of moves."""
        ...

    def length(self, round: int) -> int:
        """Return the number of elements that represent a gradient in a round, without the TAIL."""
        ...

    def of(self, rank: int, workers: int, round: int) -> RoundSum:
        """Return the sum of a round at one rank, before it begins."""
        ...

    def gradient(self, found: Vector, round: int) -> Vector:
        """Return the mean gradient [d] of a sum's result; it may share its memory."""
        ...


def weight_of(examples: int, metrics: Mapping[str, float]) -> float:
    """Return the number of examples in a gradient, if the task reports it; else of all of the worker's."""
    return float(max(1, metrics.get("rows", examples)))


def with_tail(weight: float, gradient: Vector, loss: float) -> Contribution:
    """Return a contribution where elements are added; the gradient is not copied."""
    return weight, (gradient, frozen(np.array([loss, 1.0], gradient.dtype)))


@dataclass(frozen=True)
class DenseSums:
    """Uncoded gradients.  `bucket`: elements of a bucket."""

    collective: Callable[[int], Table]
    elements: int
    kind: np.dtype[np.floating]
    bucket: int

    def length(self, round: int) -> int:  # noqa: ARG002
        return self.elements

    def of(self, rank: int, workers: int, round: int) -> Reduction:  # noqa: ARG002
        return Reduction(rank, self.collective(workers), self.elements + TAIL, self.kind, self.bucket)

    def gradient(self, found: Vector, round: int) -> Vector:  # noqa: ARG002
        return found[:-TAIL]


@dataclass(frozen=True)
class ReducedSums:
    """The elements that a linear codec sends, by the collective's own table."""

    collective: Callable[[int], Table]
    codec: LinearCodec
    layout: VectorLayout
    seed: int
    bucket: int

    def length(self, round: int) -> int:  # noqa: ARG002
        return self.codec.elements(self.layout.length)

    def of(self, rank: int, workers: int, round: int) -> Reduction:
        return Reduction(rank, self.collective(workers), self.length(round) + TAIL, self.layout.dtype, self.bucket)

    def gradient(self, found: Vector, round: int) -> Vector:
        return self.codec.restored(found[:-TAIL], self.layout.length, CodecTurn(self.seed, 0, round))


@dataclass(frozen=True)
class GatheredSums:
    """Payloads, sent to all by a table of all-gather."""

    collective: Callable[[int], Table]
    codec: Codec
    layout: VectorLayout
    seed: int

    def length(self, round: int) -> int:  # noqa: ARG002
        return self.layout.length

    def of(self, rank: int, workers: int, round: int) -> PayloadGather:
        turn = CodecTurn(self.seed, 0, round)
        return PayloadGather(rank, self.collective(workers), self.codec, self.layout, turn)

    def gradient(self, found: Vector, round: int) -> Vector:  # noqa: ARG002
        return found


CodedSums = ReducedSums | GatheredSums


def sums_of(
    collective: Callable[[int], Table], codec: Codec, layout: VectorLayout, seed: int, bucket: int
) -> CodedSums:
    """Return the sums of encoded gradients; `collective` gathers for a nonlinear codec."""
    if isinstance(codec, LinearCodec):
        return ReducedSums(collective, codec, layout, seed, bucket)
    return GatheredSums(collective, codec, layout, seed)


def coded_contribution(sums: CodedSums, weight: float, payload: Payload, loss: float) -> Contribution:
    """Return the contribution of an encoded gradient."""
    if isinstance(sums, ReducedSums):
        return with_tail(weight, frozen(of_bytes(payload, sums.layout.dtype)), loss)
    return weight, (frozen(payload),)
