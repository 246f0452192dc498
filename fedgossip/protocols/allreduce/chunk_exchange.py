"""The sums of this round and the next at one worker: chunks checked, acknowledged, added, and forwarded in order.

A worker with a slower gradient stores the chunks received meanwhile, and those of a worker that is one round ahead,
the maximum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Effect, NodeId, Send
from fedgossip.core.messages import ChunkTaken, CodedChunk, ReduceChunk
from fedgossip.protocols.allreduce.chunk_links import ChunkLink
from fedgossip.protocols.allreduce.reduction import Chunk
from fedgossip.protocols.allreduce.round_sums import Contribution, RoundSum, RoundSums, weight_of, with_tail
from fedgossip.protocols.allreduce.worker_group import WorkerGroup, generation


class UnsummableError(ProtocolError):
    """An expected chunk has a number that is not finite, or too large to be added."""


def contribution_of(gradient: Vector | None, examples: int, metrics: Mapping[str, float]) -> Contribution:
    """Return a worker's uncoded contribution to the mean; the gradient is not copied."""
    assert gradient is not None, "a gradient was asked for"
    return with_tail(weight_of(examples, metrics), gradient, metrics.get("loss", 0.0))


def chunk_message(epoch: int, round: int, one: Chunk, schema: str) -> ReduceChunk | CodedChunk:
    """Return the message of a chunk; bytes are a codec's."""
    kind = CodedChunk if one.vector.dtype == np.uint8 else ReduceChunk
    place = epoch, round, one.bucket, one.step, one.start, one.vector.size
    return kind(*place, one.weight, schema, (one.vector,))


class ChunkExchange:
    """The open sums of one worker.

    Invariant: `now` is of `round`, `next` of the one after it; both, and all chunks in transfer, are of the group's
    epoch.
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
        """Number of elements added to others here, in all rounds."""
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
        return self.sums.of(self.group.rank, len(self.group.members), round)

    @property
    def awaited(self) -> Sequence[NodeId]:
        """Workers with a chunk that the round waits for, ascending."""
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
        return self._sent(self.now.give(start, weight, *pieces), self.round, now_ns)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of vectors that wait for room on a link."""
        return sum(link.waiting_bytes for link in self.links.values())

    def take(self, sender: NodeId, chunk: ReduceChunk | CodedChunk, now_ns: int) -> list[Effect]:
        """Take a new chunk.  Raises ProtocolError for one outside the collective, or that cannot be added."""
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
        return [self._took(sender, chunk), *self._sent(out, chunk.round, now_ns)]

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

    def _sent(self, chunks: Sequence[Chunk], round: int, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for one in chunks:
            message = chunk_message(self.group.epoch, round, one, self.schema)
            effects += self.links[self.group.members[one.peer]].send(message, now_ns)
        return effects
