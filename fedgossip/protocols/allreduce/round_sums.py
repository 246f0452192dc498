"""The sum of one round of all-reduce: of plain gradients, or of encoded ones.

    make_sum the sum of a round at one rank: a `Reduction`, or a `PayloadGather`
    brings   a worker's contribution
    gradient the mean gradient [d], from the result

Additive payloads are reduced by the collective's table; others are sent to all, decoded by each in the same order, and
added.  A worker has the sums of this round and of the next: no other can be further ahead.
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
from fedgossip.core.machine import Effect, NodeId, Send
from fedgossip.core.messages import TAIL, ChunkTaken, CodedChunk, ReduceChunk
from fedgossip.protocols.allreduce.chunk_links import ChunkLink
from fedgossip.protocols.allreduce.reduction import Chunk, LowRankReduction, Reduction, steps_of
from fedgossip.protocols.allreduce.worker_group import WorkerGroup, generation

# One all-gather at one rank: every payload is sent to all, which decode and add them in the order of ranks.
#
# It replaces a `Reduction`, with one bucket, and chunks of the same names.  A chunk contains one rank's payload and its
# weight; a forwarding rank has decoded it before, so that an invalid payload stops at its first receiver.


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
        """The mean [d], frozen, once all is done; the same bits at every rank."""
        assert self.done
        total = np.zeros(self._layout.length, self._layout.dtype)
        for rank in range(self._workers):
            weight, payload = self._payloads[rank]
            total += self._codec.decode(payload, self._layout, self._turn) * self._layout.dtype.type(weight)
        total /= self._layout.dtype.type(sum(self._payloads[rank][0] for rank in range(self._workers)))
        return frozen(total)

    def bears(self, weight: float, *pieces: Vector) -> bool:
        """Return whether others can add the rank's payload: otherwise all of them would refuse it."""
        return self.fits(0, weight, pieces[0])

    def give(self, start: int, weight: float, *pieces: Vector) -> list[Chunk]:
        """Pass the rank's whole payload; return the chunks to send now."""
        if self.begun or start:
            return []
        self._payloads[self._rank] = weight, pieces[0]
        return self._go_on()

    def expects(self, sender: int, bucket: int, step: int) -> tuple[int, int] | None:
        """Return (start, stop) of the bytes in a chunk of this name; None if no such chunk exists."""
        takes = [part for move, part in self._moves if move.way is not Way.SEND and move.peer == sender]
        return (takes[step].start, takes[step].stop) if bucket == 0 and 0 <= step < len(takes) else None

    def has(self, sender: int, bucket: int, step: int) -> bool:  # noqa: ARG002
        """Return whether the chunk was received before."""
        made = sum(move.way is not Way.SEND and move.peer == sender for move, _ in self._moves[: self._at])
        return step < made or (sender, step) in self._kept

    def fits(self, bucket: int, weight: float, vector: Vector) -> bool:  # noqa: ARG002
        """Return whether a payload can be decoded, and the result can be added with its weight."""
        try:
            decoded = self._codec.decode(vector, self._layout, self._turn)
        except ProtocolError:
            return False
        largest = max(float(decoded.max()), -float(decoded.min())) * weight * self._workers
        return weight > 0 and summable(np.array([largest], self._layout.dtype))

    def take(self, sender: int, bucket: int, step: int, weight: float, vector: Vector) -> list[Chunk]:  # noqa: ARG002
        """Add an expected, new and fitting chunk; return the chunks to send now."""
        self._kept[sender, step] = weight, frozen(vector)
        return self._go_on()

    def awaited(self) -> Mapping[int, int]:
        """Return the awaited rank, with the number 1."""
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

    def length(self, round: int) -> int:
        """Return the number of elements that represent a gradient in a round, without the TAIL."""

    def make_sum(self, rank: int, workers: int, round: int) -> RoundSum:
        """Return the sum of a round at one rank, before it begins."""

    def gradient(self, found: Vector, round: int) -> Vector:
        """Return the mean gradient [d] from a sum's result; it may share its memory."""


def weight_of(examples: int, metrics: Mapping[str, float]) -> float:
    """Return the number of examples in a gradient, if the task reports it; else that of the worker."""
    return float(max(1, metrics.get("rows", examples)))


def with_tail(weight: float, gradient: Vector, loss: float) -> Contribution:
    """Return a contribution to a sum of elements; the gradient is not copied."""
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

    def make_sum(self, rank: int, workers: int, round: int) -> Reduction:  # noqa: ARG002
        return Reduction(rank, self.collective(workers), self.elements + TAIL, self.kind, self.bucket)

    def gradient(self, found: Vector, round: int) -> Vector:  # noqa: ARG002
        return found[:-TAIL]


@dataclass(frozen=True)
class ReducedSums:
    """The elements sent by a linear codec, summed by the collective's table."""

    collective: Callable[[int], Table]
    codec: LinearCodec
    layout: VectorLayout
    seed: int
    bucket: int

    def length(self, round: int) -> int:  # noqa: ARG002
        return self.codec.elements(self.layout.length)

    def make_sum(self, rank: int, workers: int, round: int) -> Reduction:
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

    def make_sum(self, rank: int, workers: int, round: int) -> PayloadGather:
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


class UnsummableError(ProtocolError):
    """An expected chunk has a non-finite number, or one too large for a sum."""


def contribution_of(gradient: Vector | None, examples: int, metrics: Mapping[str, float]) -> Contribution:
    """Return a worker's uncoded contribution to the mean; the gradient is not copied."""
    assert gradient is not None, "a gradient was asked for"
    return with_tail(weight_of(examples, metrics), gradient, metrics.get("loss", 0.0))


def chunk_message(epoch: int, round: int, one: Chunk, schema: str) -> ReduceChunk | CodedChunk:
    """Return the message of a chunk: coded for bytes, which come from a codec."""
    kind = CodedChunk if one.vector.dtype == np.uint8 else ReduceChunk
    place = epoch, round, one.bucket, one.step, one.start, one.vector.size
    return kind(*place, one.weight, schema, (one.vector,))


class ChunkExchange:
    """The open sums of one worker.

    Invariant: `now` belongs to `round`, `next` to the one after it; both, and all chunks in transfer, belong to the
    group's epoch.
    """

    def __init__(
        self,
        group: WorkerGroup,
        sums: RoundSums,
        schema: str,
        longest_ns: int,
    ) -> None:
        self.group, self.sums, self.schema = group, sums, schema
        self.round = 0
        self.links = {other: ChunkLink(other, longest_ns) for other in group.others}
        self._summed = 0  # in completed reductions
        self.now = self.next = self._sum(0)
        self.renew(0)

    @property
    def summed(self) -> int:
        """Number of vector elements added at this worker, in all rounds."""
        return self._summed + self.now.summed + self.next.summed

    def renew(self, round: int) -> None:
        """Drop all chunks in transfer, and begin the sums of this round and the next."""
        for link in self.links.values():
            link.drop()
        self._summed = self.summed
        self.round, self.now, self.next = round, self._sum(round), self._sum(round + 1)

    def advance(self) -> None:
        """Complete the round."""
        self._summed += self.now.summed
        self.round, self.now, self.next = self.round + 1, self.next, self._sum(self.round + 2)

    def _sum(self, round: int) -> RoundSum:
        return self.sums.make_sum(self.group.rank, len(self.group.members), round)

    @property
    def awaited(self) -> Sequence[NodeId]:
        """Workers with awaited chunks of the round, ascending."""
        return sorted(self.group.members[rank] for rank in self.now.awaited())

    @property
    def starts(self) -> tuple[int, ...]:
        """First elements of a gradient's stretches, from the last stretch to the second."""
        return tuple(start for start in self.now.starts if start < self.sums.length(self.round))

    def begin(self, brought: Contribution, now_ns: int, start: int = 0) -> list[Effect]:
        """Add this worker's contribution to the round, or the part of it from `start` on."""
        weight, pieces = brought
        if start + pieces[0].size < self.sums.length(self.round):
            pieces = pieces[:1]  # the tail follows
        return self._send_chunks(self.now.give(start, weight, *pieces), self.round, now_ns)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of vectors that wait for room on a link."""
        return sum(link.waiting_bytes for link in self.links.values())

    def take(self, sender: NodeId, chunk: ReduceChunk | CodedChunk, now_ns: int) -> list[Effect]:
        """Add a new chunk.  Raises ProtocolError for one outside the collective, or one that cannot be added."""
        epoch = self.group.epoch
        before = generation(chunk.epoch) < generation(epoch)
        if before or (chunk.epoch == epoch and chunk.round < self.round):
            return [self._took(sender, chunk)]  # a repetition
        if chunk.epoch != epoch or sender not in self.group.members:
            return []  # of a view that is not here yet; it is sent again
        if chunk.round > self.round + 1:
            text = f"a chunk of round {chunk.round} from worker {sender}; one can be a round ahead at most"
            raise ProtocolError(f"worker {self.group.node}, round {self.round}: {text}", peer=sender)
        at = self.now if chunk.round == self.round else self.next
        if not self._is_new(at, sender, chunk):
            return [self._took(sender, chunk)]
        rank = self.group.members.index(sender)
        out = at.take(rank, chunk.bucket, chunk.step, chunk.weight, chunk.vectors[0])
        return [self._took(sender, chunk), *self._send_chunks(out, chunk.round, now_ns)]

    def _took(self, sender: NodeId, chunk: ReduceChunk | CodedChunk) -> Send:
        return self.links[sender].took(ChunkTaken(*chunk.name))

    def _is_new(self, at: RoundSum, sender: NodeId, chunk: ReduceChunk | CodedChunk) -> bool:
        where = f"worker {self.group.node}, round {chunk.round}"
        shapes = [(vector.dtype, vector.shape) for vector in chunk.vectors]
        if chunk.schema != self.schema or shapes != [(at.kind, (chunk.length,))]:
            text = (
                f"{where}: a vector of another layout from worker {sender} (schema {chunk.schema}, ours {self.schema})"
            )
            raise ProtocolError(text, "Give every worker the same [model] section.", peer=sender)
        rank = self.group.members.index(sender)
        expected = at.expects(rank, chunk.bucket, chunk.step)
        if expected != (chunk.start, chunk.start + chunk.length):
            text = f"{where}: a chunk that the collective has not for this worker, of worker {sender}"
            raise ProtocolError(text, "Were the workers started from the same experiment file?", peer=sender)
        if at.has(rank, chunk.bucket, chunk.step):
            return False
        if not at.fits(chunk.bucket, chunk.weight, chunk.vectors[0]):
            text = f"{where}: worker {sender} has sent numbers that cannot be added up"
            raise UnsummableError(text, "Look at its data and its rate; the others go on without it.", peer=sender)
        return True

    def _send_chunks(self, chunks: Sequence[Chunk], round: int, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for one in chunks:
            message = chunk_message(self.group.epoch, round, one, self.schema)
            effects += self.links[self.group.members[one.peer]].send(message, now_ns)
        return effects
