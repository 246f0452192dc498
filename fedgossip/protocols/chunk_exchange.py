"""The sums of a round, and of the next one, at one worker: chunks checked, acknowledged, added, and sent on in order.

A worker whose gradient takes longer keeps the chunks that come meanwhile, and those of one that is a round ahead: it
can be no further.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedgossip.algorithms.collectives.table import Table
from fedgossip.errors import ProtocolError
from fedgossip.machine import Effect, NodeId, Send
from fedgossip.messages import TAIL, ChunkTaken, ReduceChunk
from fedgossip.protocols.chunk_links import ChunkLink
from fedgossip.protocols.reduction import Chunk, Reduction
from fedgossip.protocols.regroup import generation
from fedgossip.protocols.worker_group import WorkerGroup
from fedgossip.vectors import Vector, frozen


class UnsummableError(ProtocolError):
    """A chunk that is expected, and has a number that is not finite, or too large to be added."""


Contribution = tuple[float, tuple[Vector, Vector]]
"""What a worker brings to the mean: its weight, and its gradient [d] with the TAIL behind it, its loss and a one."""


def contribution_of(gradient: Vector | None, examples: int, metrics: Mapping[str, float]) -> Contribution:
    """Return what a worker brings to the mean; the gradient is not copied."""
    assert gradient is not None, "a gradient was asked for"
    tail = np.array([metrics.get("loss", 0.0), 1.0], gradient.dtype)
    return weight_of(examples, metrics), (gradient, frozen(tail))


def weight_of(examples: int, metrics: Mapping[str, float]) -> float:
    """Return the number of examples that a gradient is of, where the task tells them, and not of all it has."""
    return float(max(1, metrics.get("rows", examples)))


class ChunkExchange:
    """Invariant: `now` is of `round`, `next` of the one after it; both are of the group's epoch, and so is all that is
    under way."""

    def __init__(
        self,
        group: WorkerGroup,
        collective: Callable[[int], Table],
        like: Vector,
        schema: str,
        bucket: int,
        longest_ns: int,
    ) -> None:
        self.group, self.collective, self.schema, self.bucket = group, collective, schema, bucket
        self.length, self.kind = like.size, like.dtype
        again_ns = group.waits.again_ns
        self.links = {other: ChunkLink(other, longest_ns, again_ns) for other in group.others}
        self._summed = 0  # in reductions that are over
        self.now = self.next = self._reduction()
        self.renew(0)

    @property
    def summed(self) -> int:
        """Elements that were added to others here, in all rounds."""
        return self._summed + self.now.summed + self.next.summed

    def renew(self, round: int) -> None:
        """Forget what is under way, and make room for this round and the next."""
        for link in self.links.values():
            link.drop()
        self._summed = self.summed
        self.round, self.now, self.next = round, self._reduction(), self._reduction()

    def advance(self) -> None:
        """The round is done."""
        self._summed += self.now.summed
        self.round, self.now, self.next = self.round + 1, self.next, self._reduction()

    def _reduction(self) -> Reduction:
        table = self.collective(len(self.group.members))
        return Reduction(self.group.rank, table, self.length + TAIL, self.kind, self.bucket)

    @property
    def awaited(self) -> Sequence[NodeId]:
        """Workers that the round waits for, ascending."""
        return sorted(self.group.members[rank] for rank in self.now.awaited())

    @property
    def starts(self) -> tuple[int, ...]:
        """Where in a gradient its stretches begin, from the last to the second."""
        return tuple(start for start in self.now.starts if start < self.length)

    def begin(self, brought: Contribution, now_ns: int, start: int = 0) -> list[Effect]:
        """Give the round what this worker brings to it, or from `start` on what was not given before."""
        weight, (gradient, tail) = brought
        pieces = (gradient, tail) if start + gradient.size == self.length else (gradient,)
        return self._sent(self.now.give(start, weight, *pieces), self.round, now_ns)

    def taken(self, sender: NodeId, message: ChunkTaken, now_ns: int) -> list[Effect]:
        """A chunk has arrived; the next may go."""
        return self.links[sender].taken((message.epoch, message.round, message.bucket, message.step), now_ns)

    def came(self, sender: NodeId, chunk: ReduceChunk, now_ns: int) -> list[Effect]:
        """Take a chunk, if it is new.  Raises ProtocolError for one that the collective has not, or cannot be added."""
        epoch = self.group.epoch
        taken = Send(sender, ChunkTaken(chunk.epoch, chunk.round, chunk.bucket, chunk.step))
        before = generation(chunk.epoch) < generation(epoch)
        if before or (chunk.epoch == epoch and chunk.round < self.round):
            return [taken]  # said again
        if chunk.epoch != epoch or sender not in self.group.members:
            return []  # of a view that has not come yet; it is sent again
        if chunk.round > self.round + 1:
            text = f"a chunk of round {chunk.round} from worker {sender}; one can be a round ahead at most"
            raise ProtocolError(f"worker {self.group.node}, round {self.round}: {text}", peer=sender)
        at = self.now if chunk.round == self.round else self.next
        if not self._is_new(at, sender, chunk):
            return [taken]
        rank = self.group.members.index(sender)
        out = at.take(rank, chunk.bucket, chunk.step, chunk.weight, chunk.vectors[0])
        return [taken, *self._sent(out, chunk.round, now_ns)]

    def _is_new(self, at: Reduction, sender: NodeId, chunk: ReduceChunk) -> bool:
        where = f"worker {self.group.node}, round {chunk.round}"
        shapes = [(vector.dtype, vector.shape) for vector in chunk.vectors]
        if chunk.schema != self.schema or shapes != [(np.dtype(self.kind), (chunk.length,))]:
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
            to, size = self.group.members[one.peer], one.vector.size
            place = self.group.epoch, round, one.bucket, one.step, one.start, size
            effects += self.links[to].send(ReduceChunk(*place, one.weight, self.schema, (one.vector,)), now_ns)
        return effects
