"""Chunks on their way to one worker each: at most WINDOW of them, and each until its receiver says that it is there.

Links lose what was under way when they break, and drop what waits too long in a full queue; a chunk that is lost would
stop a whole collective.  So each is sent again, after a multiple of the time that acknowledgements usually take, and
whenever the link comes up.
"""

from __future__ import annotations

from collections import deque

from fedgossip.machine import Effect, NodeId, Send, SetTimer
from fedgossip.messages import NoRows, Pulled, ReduceChunk, RowPush, RowsPulled, ShardCopy, ShardPush, ShardStep
from fedgossip.protocols.deadlines import Deadline

WINDOW = 4
"""Maximum number of chunks on a link that are not acknowledged."""
FACTOR = 4

Name = tuple[int, int, int, int]
"""By which a receiver says that a chunk is there; no two on a link have the same."""

Chunk = ReduceChunk | ShardPush | Pulled | ShardStep | ShardCopy | RowPush | NoRows | RowsPulled


class ChunkLink:
    """What one worker has for another.  Invariant: at most WINDOW chunks are under way, and they are the oldest."""

    def __init__(self, to: NodeId, longest_ns: int, least_ns: int) -> None:
        self.to = to
        self._under_way: dict[Name, Chunk] = {}
        self._waiting: deque[Chunk] = deque()
        self._sent_ns: dict[Name, int] = {}  # of those that were sent once
        self._deadline = Deadline(longest_ns, min(least_ns, longest_ns), FACTOR, first_ns=2 * least_ns)
        self._timer = 0

    @property
    def idle(self) -> bool:
        return not self._under_way

    def has(self, name: Name) -> bool:
        """Whether the chunk of this name is under way."""
        return name in self._under_way

    def carries(self, number: int) -> bool:
        """Whether something is on its way, or waits, whose name has this second: a round, a shard."""
        return any(chunk.name[1] == number for chunk in (*self._under_way.values(), *self._waiting))

    def send(self, chunk: Chunk, now_ns: int) -> list[Effect]:
        """Send a chunk, now or when there is room."""
        self._waiting.append(chunk)
        return self._fill(now_ns)

    def taken(self, name: Name, now_ns: int) -> list[Effect]:
        """A chunk is there: send the next; one that is not under way changes nothing."""
        if self._under_way.pop(name, None) is None:
            return []
        if (sent := self._sent_ns.pop(name, None)) is not None:
            self._deadline.saw(now_ns - sent)
        return self._fill(now_ns)

    def again(self, timer: int) -> list[Effect]:
        """The timer of this number has fired: send all again that is under way."""
        return self.resent() if timer == self._timer and self._under_way else []

    def resent(self) -> list[Effect]:
        """Send all again that is under way."""
        self._sent_ns.clear()  # when they arrive says nothing of how long it takes
        return [*(Send(self.to, chunk) for chunk in self._under_way.values()), *self._wait()]

    def drop(self) -> None:
        """Forget all: the round is given up."""
        self._under_way.clear()
        self._waiting.clear()
        self._sent_ns.clear()

    def _fill(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        while self._waiting and len(self._under_way) < WINDOW:
            chunk = self._waiting.popleft()
            self._under_way[chunk.name] = chunk
            self._sent_ns[chunk.name] = now_ns
            effects.append(Send(self.to, chunk))
        return [*effects, *self._wait()] if effects else []

    def _wait(self) -> list[Effect]:
        if not self._under_way:
            return []
        self._timer += 1
        return [SetTimer(("again", self.to, self._timer), self._deadline.now_ns())]
