"""Chunks on their way to one worker each: at most WINDOW of them, and each until its receiver says that it is there.

Links lose what was under way when they break, and drop what waits too long in a full queue; a chunk that is lost would
stop a whole collective.  So it is sent again:

    a gap       a later chunk is there and this one is not, on a link that keeps the order: at once
    a timeout   nothing was heard for as long as `round_trips` says: the oldest, and the timeout doubles
    a new link  all that is under way

An answer to a chunk that was sent twice does not tell to which time it is one: nothing is measured by it, and it shows
no gap before the second, unless it comes as long after that as answers do.  The timeout stays doubled until a chunk is
answered that was sent once, or is halved by one that so seems to be of the second time: so on a link that is slower
than the first timeout it grows until nothing is repeated.  And where the second answer comes too, the chunk went again
for nothing, and the first time counts (as by the duplicate acknowledgements of Blanton and Allman, RFC 3708, 2004):
answers that wait in every round behind what a hub sends to others are so known to take long.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

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
from fedgossip.protocols.round_trips import RoundTrips

WINDOW = 4
"""Maximum number of chunks on a link that are not acknowledged."""

Name = tuple[int, int, int, int]
"""By which a receiver says that a chunk is there; no two on a link have the same."""

Chunk = ReduceChunk | CodedChunk | ShardPush | Pulled | RowPush | NoRows | RowsPulled | ChangeMessage | CopyMessage


@dataclass(slots=True)
class _UnderWay:
    """A chunk, and the first and the last time that it was sent: when, and as the which of all on the link."""

    chunk: Chunk
    first_ns: int
    first: int
    last_ns: int
    last: int


class ChunkLink:
    """What one worker has for another.  Invariant: at most WINDOW chunks are under way, and they are the oldest."""

    def __init__(self, to: NodeId, longest_ns: int) -> None:
        self.to = to
        self.round_trips = RoundTrips(longest_ns)
        self._under_way: dict[Name, _UnderWay] = {}
        self._waiting: deque[Chunk] = deque()
        self._sent = self._timer = 0
        self._answered: dict[Name, int] = {}
        """Chunks that were sent twice and answered once, and how long after the first time: the last WINDOW of them."""

    @property
    def idle(self) -> bool:
        return not self._under_way

    def has(self, name: Name) -> bool:
        """Whether the chunk of this name is under way."""
        return name in self._under_way

    def carries(self, number: int) -> bool:
        """Whether something is on its way, or waits, whose name has this second: a round, a shard."""
        under_way = (one.chunk for one in self._under_way.values())
        return any(chunk.name[1] == number for chunk in (*under_way, *self._waiting))

    def send(self, chunk: Chunk, now_ns: int) -> list[Effect]:
        """Send a chunk, now or when there is room."""
        begins = not self._under_way
        self._waiting.append(chunk)
        sent = self._fill(now_ns)
        return [*sent, *self._wait()] if begins else sent

    def taken(self, name: Name, now_ns: int) -> list[Effect]:
        """A chunk is there: send what is seen to be lost, and the next; one that is not under way changes nothing."""
        there = self._under_way.pop(name, None)
        if there is None:
            if name in self._answered:
                self.round_trips.saw(self._answered.pop(name))
            return []
        took_ns = now_ns - there.last_ns
        once = there.first == there.last
        if once:
            self.round_trips.saw(took_ns)
        to_last = once or self.round_trips.may_be(took_ns)
        if not once:
            self._answered[name] = now_ns - there.first_ns
            if len(self._answered) > WINDOW:
                del self._answered[next(iter(self._answered))]
        if to_last and not once:
            self.round_trips.came()
        at = there.last if to_last else there.first
        lost = [one for one in self._under_way.values() if one.last < at]
        return [*(self._again(one, now_ns) for one in lost), *self._fill(now_ns), *self._wait()]

    def again(self, timer: int, now_ns: int) -> list[Effect]:
        """The timer of this number has fired: send the oldest again that is under way."""
        if timer != self._timer or not self._under_way:
            return []
        self.round_trips.timed_out()
        oldest = next(iter(self._under_way.values()))
        return [self._again(oldest, now_ns), *self._wait()]

    def resent(self, now_ns: int) -> list[Effect]:
        """Send all again that is under way: the link was lost, or the other has lost it."""
        return [*(self._again(one, now_ns) for one in self._under_way.values()), *self._wait()]

    def drop(self) -> None:
        """Forget all: the round is given up."""
        self._under_way.clear()
        self._waiting.clear()
        self._answered.clear()

    def _again(self, one: _UnderWay, now_ns: int) -> Send:
        self._sent += 1
        one.last_ns, one.last = now_ns, self._sent
        return Send(self.to, one.chunk)

    def _fill(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        while self._waiting and len(self._under_way) < WINDOW:
            chunk = self._waiting.popleft()
            self._sent += 1
            self._under_way[chunk.name] = _UnderWay(chunk, now_ns, self._sent, now_ns, self._sent)
            effects.append(Send(self.to, chunk))
        return effects

    def _wait(self) -> list[Effect]:
        """Begin to wait for the next answer."""
        if not self._under_way:
            return []
        self._timer += 1
        return [SetTimer(("again", self.to, self._timer), self.round_trips.timeout_ns)]
