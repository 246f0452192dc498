"""Pulls that a server has taken and not answered yet, and the replies.

bound   one pull of each worker and shard
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fedgossip.algorithms.codecs.base import Payload
from fedgossip.base.keyed_rows import Keys
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Effect, NodeId
from fedgossip.core.messages import CodedPulled, Pulled, RowPull, RowsPulled, ShardPull
from fedgossip.protocols.allreduce.chunk_links import ChunkLink
from fedgossip.protocols.servers.pieces import pieces
from fedgossip.protocols.servers.shard_clocks import ShardClocks
from fedgossip.protocols.servers.shard_coding import ShardCoding

Place = tuple[int, NodeId]
"""(shard, worker)"""


@dataclass(frozen=True, slots=True, eq=False)
class HeldPull:
    """A worker's pull of a shard for its clock, or of these rows of a table."""

    pull: ShardPull | RowPull
    keys: Keys | None

    @property
    def anew(self) -> bool:
        """Whether the worker has nothing to push before."""
        return self.pull.first == self.pull.clock


class WaitingPulls:
    """`late`: (shard, worker) of workers that the others went on without; a reply may be for a later clock."""

    def __init__(self, schema: str, coding: ShardCoding | None = None) -> None:
        self.schema, self.coding = schema, coding
        self._said: dict[int, tuple[Vector, Payload]] = {}  # by shard: the last encoded elements and their payload
        self.held: dict[Place, HeldPull] = {}
        self.late: set[Place] = set()
        self._answered: dict[Place, int] = {}  # the clock of the last reply

    def forget(self, worker: NodeId | None = None) -> None:
        """Drop a worker's pulls; without one all pulls and replies, for another tenure."""
        if worker is None:
            self.held, self._answered = {}, {}
        else:
            self.held = {place: one for place, one in self.held.items() if place[1] != worker}

    @property
    def waiting(self) -> set[NodeId]:
        """The workers with an unanswered pull."""
        return {worker for _, worker in self.held}

    def given(self, places: Collection[Place]) -> int:
        """Return the clock for which all of these have been answered."""
        return min((self._answered.get(place, 0) for place in places), default=0)

    def answer(
        self, place: Place, clocks: ShardClocks, present: Collection[NodeId], epoch: int, link: ChunkLink, now_ns: int
    ) -> list[Effect]:
        """Answer a pull, if its worker may read now."""
        asked, (number, worker) = self.held[place], place
        reading = clocks.reading(worker, asked.pull.clock, present, anew=asked.anew, late=place in self.late)
        if reading is None:
            return []
        del self.held[place]
        self.late.discard(place)
        self._answered[place] = reading.clock
        facts = epoch, number, reading.clock, reading.version, clocks.steps, clocks.missed[worker]
        effects: list[Effect] = []
        given, coded = reading.vector_of(asked.keys), self.coding is not None and self.coding.codes_pull(reading.clock)
        for start, part in pieces(self._payload(number, given) if coded else given):
            where = start, part.size, self.schema, (part,)
            if isinstance(asked.pull, RowPull):
                effects += link.send(RowsPulled(*facts, asked.pull.digest, *where), now_ns)
            else:
                effects += link.send((CodedPulled if coded else Pulled)(*facts, *where), now_ns)
        return effects

    def _payload(self, number: int, given: Vector) -> Payload:
        """Return the encoded shard; encoded once for all that receive the same elements."""
        assert self.coding
        before = self._said.get(number)
        if before is None or before[0] is not given:
            before = self._said[number] = given, self.coding.encode_pull(given, number)
        return before[1]
