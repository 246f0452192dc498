"""Chunks on their way to one worker each: at most WINDOW of them, and each until its receiver says that it is there.

Links lose what was under way when they break, and drop what waits too long in a full queue; a chunk that is lost would
stop a whole collective.  So each is sent again, after a multiple of the time that acknowledgements usually take, and
whenever the link comes up.  That time is counted from when a chunk was sent first: too long where it was lost, but also
known on a link that is slower than the first wait, which would else carry repeats for ever.  Where several repeats go
unanswered the wait doubles with each.
"""

from __future__ import annotations

from collections import deque

from fedgossip.machine import Effect, NodeId, Send, SetTimer
from fedgossip.messages import (
    ChangeMessage,
    CodedChunk,
    CopyMessage,
    NoRows,
    Pulled,
    ReduceChunk,
    RowPush,
    RowsPulled,
    ShardPush,
)
from fedgossip.protocols.deadlines import Deadline

WINDOW = 4
"""Maximum number of chunks on a link that are not acknowledged."""
FACTOR = 4
PATIENT = 3
"""Number of repeats before the wait becomes longer: on a link that loses much, each may be lost."""

Name = tuple[int, int, int, int]
"""By which a receiver says that a chunk is there; no two on a link have the same."""

Chunk = ReduceChunk | CodedChunk | ShardPush | Pulled | RowPush | NoRows | RowsPulled | ChangeMessage | CopyMessage


class ChunkLink:
    """What one worker has for another.  Invariant: at most WINDOW chunks are under way, and they are the oldest."""

    def __init__(self, to: NodeId, longest_ns: int, least_ns: int) -> None:
        self.to = to
        self._under_way: dict[Name, Chunk] = {}
        self._waiting: deque[Chunk] = deque()
        self._sent_ns: dict[Name, int] = {}  # when first, on the link that is there
        self._deadline = Deadline(longest_ns, min(least_ns, longest_ns), FACTOR, first_ns=2 * least_ns)
        self._timer, self._repeats = 0, 0  # since something was acknowledged
        self._longest_ns = longest_ns

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
        self._repeats = 0
        return self._fill(now_ns)

    def again(self, timer: int) -> list[Effect]:
        """The timer of this number has fired: send all again that is under way."""
        if timer != self._timer or not self._under_way:
            return []
        self._repeats += 1
        return self._said_again()

    def resent(self) -> list[Effect]:
        """Send all again that is under way: the link was lost, or the other has lost it."""
        self._sent_ns.clear()  # when they arrive says nothing of how long it takes
        self._repeats = 0
        return self._said_again()

    def _said_again(self) -> list[Effect]:
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
        doubled = min(max(0, self._repeats - PATIENT), 20)
        wait_ns = min(self._deadline.now_ns() << doubled, self._longest_ns)
        return [SetTimer(("again", self.to, self._timer), wait_ns)]
