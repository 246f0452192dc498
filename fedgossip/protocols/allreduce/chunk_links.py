"""Chunks in transfer to one worker each: at most WINDOW of them, each until it is acknowledged.

A link loses messages when it breaks or its queue is full, and one lost chunk would stop a collective.  A chunk is
repeated after:

    a gap         a later chunk is acknowledged and this one is not, on a link that keeps the order: at once
    a query       no message for the timeout of `round_trips`: which chunks in transfer have arrived?  Missing ones
                  are sent again; without a reply the next query waits twice as long
    a new link    all in transfer

A query is a few bytes and stays behind its chunks in the queue: a link slower than the first timeout sends nothing
twice.

Source: the probe of RFC 8985 (Cheng, Cardwell, Dukkipati and Jha, RACK-TLP, 2021), which repeats the last segment
instead; a chunk is a thousand times as long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from fedgossip.core.machine import Effect, NodeId, Send, SetTimer
from fedgossip.core.messages import (
    ChangeMessage,
    ChunksAsked,
    ChunksHere,
    ChunkTaken,
    CodedChunk,
    CodedPulled,
    CodedPush,
    CopyMessage,
    NoRows,
    PieceTaken,
    Pulled,
    ReduceChunk,
    RowPush,
    RowsPulled,
    ShardPush,
)

# Round-trip times of a link, and the timeout before a message is repeated.
#
# timeout = smoothed + max(4 * deviation, smoothed)          smoothed, deviation: moving means, of 1/8 and 1/4
#
# at least LEAST_NS and at most a limit; FIRST_NS before the first reply, and doubled at the second and the third
# missing reply, until the next reply.  The caller measures only replies to messages that were sent once.
#
# Source: Paxson, Allman, Chu and Sargent, Computing TCP's retransmission timer, RFC 6298 (2011), with the rule of Karn
# and Partridge, Improving round-trip time estimates in reliable transport protocols, SIGCOMM 1987.  Two differences:
# the minimum is Linux's in place of a second, and twice the smoothed time, as replies here wait for a machine that may
# be summing; and it doubles only twice, from the second on, as the repeated message is a query of a few bytes, which
# does not fill a link.


FIRST_NS = 1_000_000_000
"""Timeout before the first reply, as in RFC 6298."""

LEAST_NS = 200_000_000
"""Minimum timeout, as in Linux: messages are rarely lost, and a busy machine replies late."""

DOUBLINGS_MAX = 2
"""Maximum number of doublings of a timeout."""


class RoundTrips:
    """Round-trip times of one link, in nanoseconds; `longest_ns` limits the timeout."""

    def __init__(self, longest_ns: int) -> None:
        self.longest_ns = longest_ns
        self.quickest_ns = 0
        """The shortest measured round-trip time; 0 before the first."""
        self._smoothed_ns = self._deviation_ns = self._timeouts = 0

    def record(self, took_ns: int) -> None:
        """Record the round-trip time of a message that was sent once (Karn's rule)."""
        took_ns = max(took_ns, 1)
        if not self.quickest_ns:
            self._smoothed_ns, self._deviation_ns, self.quickest_ns = took_ns, took_ns // 2, took_ns
        else:
            self._deviation_ns += (abs(self._smoothed_ns - took_ns) - self._deviation_ns) // 4
            self._smoothed_ns += (took_ns - self._smoothed_ns) // 8
            self.quickest_ns = min(self.quickest_ns, took_ns)
        self._timeouts = 0

    def answered(self, took_ns: int) -> None:
        """Record the reply to a query, which is faster than one to a chunk: it only proves that the link works."""
        if not self.quickest_ns:
            self.record(took_ns)
        self._timeouts = 0

    def timed_out(self) -> None:
        """Record a missing reply."""
        self._timeouts = min(self._timeouts + 1, 1 + DOUBLINGS_MAX)

    @property
    def timeout_ns(self) -> int:
        """Timeout of the next reply."""
        return min(self._usual_ns << max(self._timeouts - 1, 0), self.longest_ns)

    @property
    def _usual_ns(self) -> int:
        if not self.quickest_ns:
            return FIRST_NS
        return max(self._smoothed_ns + max(4 * self._deviation_ns, self._smoothed_ns), LEAST_NS)


WINDOW = 4
"""Maximum number of unacknowledged chunks on a link."""

QUESTIONS_MAX = 8
"""Maximum number of open queries on a link; older ones are dropped."""

Name = tuple[int, int, int, int]
"""Name of a chunk in acknowledgements, unique on a link."""

PushChunk = ShardPush | CodedPush | RowPush | NoRows
Chunk = ReduceChunk | CodedChunk | PushChunk | Pulled | CodedPulled | RowsPulled | ChangeMessage | CopyMessage


@dataclass(slots=True)
class _UnderWay:
    """A chunk, the time of its last transmission, and its position in all transmissions on the link."""

    chunk: Chunk
    sent_ns: int
    order: int
    once: bool = True


Word = ChunkTaken | PieceTaken | ChunksAsked | ChunksHere
"""Messages of the two ends of a link about chunks."""


class ChunkLink:
    """The chunks of one worker for another, and the received ones.

    Invariant: at most WINDOW chunks are in transfer, and they are the oldest.
    """

    def __init__(self, to: NodeId, longest_ns: int) -> None:
        self.to = to
        self.round_trips = RoundTrips(longest_ns)
        self._under_way: dict[Name, _UnderWay] = {}
        self._waiting: deque[Chunk] = deque()
        self._sent = self._timer = 0
        self._questions: dict[int, tuple[int, int]] = {}
        """Open queries by number: (position in all transmissions on the link, time in nanoseconds)."""
        self._here: dict[Name, None] = {}
        """The names of the last chunks received from the other end."""

    @property
    def idle(self) -> bool:
        return not self._under_way

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes of vectors that wait for room."""
        return sum(chunk.payload_bytes for chunk in self._waiting)

    def has(self, name: Name) -> bool:
        """Return whether the chunk of this name is in transfer."""
        return name in self._under_way

    def carries(self, number: int) -> bool:
        """Return whether a chunk with this second number in its name, a round or a shard, is in transfer or waiting."""
        under_way = (one.chunk for one in self._under_way.values())
        return any(chunk.name[1] == number for chunk in (*under_way, *self._waiting))

    def send(self, chunk: Chunk, now_ns: int) -> list[Effect]:
        """Send a chunk, now or when there is room."""
        begins = not self._under_way
        self._waiting.append(chunk)
        sent = self._fill(now_ns)
        return [*sent, *self._wait()] if begins else sent

    def handle(self, word: Word, now_ns: int) -> list[Effect]:
        """Handle a message of the other end about chunks."""
        match word:
            case ChunksAsked():
                here = tuple(name for name in word.names if name in self._here)
                return [Send(self.to, ChunksHere(word.number, here))]
            case ChunksHere():
                return self.answered(word, now_ns)
        return self.handle_acknowledgement(word.name, now_ns)

    def took(self, word: ChunkTaken | PieceTaken) -> Send:
        """Record a received chunk; return its acknowledgement."""
        self._here.pop(word.name, None)
        self._here[word.name] = None
        # the sender has at most WINDOW chunks in transfer, so no query names one this old
        if len(self._here) > 2 * WINDOW:
            del self._here[next(iter(self._here))]
        return Send(self.to, word)

    def forget_here(self) -> None:
        """Forget the received chunks: their sender repeats them after its next query."""
        self._here.clear()

    def handle_acknowledgement(self, name: Name, now_ns: int) -> list[Effect]:
        """Handle an acknowledgement: send lost chunks again, and the next one; an unknown name has no effect."""
        there = self._under_way.pop(name, None)
        if there is None:
            return []
        # Karn's rule: the acknowledgement of a repeated chunk may be of either sending
        if there.once:
            self.round_trips.record(now_ns - there.sent_ns)
        # a link keeps the order, so a chunk sent before an acknowledged one is lost
        lost = [one for one in self._under_way.values() if one.order < there.order]
        return self._go_on(lost, now_ns)

    def answered(self, answer: ChunksHere, now_ns: int) -> list[Effect]:
        """Handle the reply to a query: chunks in transfer at its time are lost if they are not in the reply."""
        if answer.number not in self._questions:
            return []
        order, asked_ns = self._questions[answer.number]
        self._questions = {number: at for number, at in self._questions.items() if number > answer.number}
        self.round_trips.answered(now_ns - asked_ns)
        for name in answer.names:
            self._under_way.pop(name, None)
        return self._go_on([one for one in self._under_way.values() if one.order < order], now_ns)

    def again(self, timer: int, now_ns: int) -> list[Effect]:
        """Handle the timer of this number: query the arrival of all chunks in transfer."""
        if timer != self._timer or not self._under_way:
            return []
        self.round_trips.timed_out()
        self._sent += 1
        self._questions[timer] = self._sent, now_ns
        if len(self._questions) > QUESTIONS_MAX:
            del self._questions[next(iter(self._questions))]
        return [Send(self.to, ChunksAsked(timer, tuple(self._under_way))), *self._wait()]

    def resent(self, now_ns: int) -> list[Effect]:
        """Send all chunks in transfer again, after a lost link or a restart of the other end."""
        return [*self._all_again(self._under_way.values(), now_ns), *self._wait()]

    def drop(self) -> None:
        """Drop all chunks at this end, with their round."""
        self._under_way.clear()
        self._waiting.clear()
        self._questions.clear()
        self.forget_here()

    def _go_on(self, lost: Iterable[_UnderWay], now_ns: int) -> list[Effect]:
        return [*self._all_again(lost, now_ns), *self._fill(now_ns), *self._wait()]

    def _all_again(self, lost: Iterable[_UnderWay], now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for one in lost:
            self._sent += 1
            one.sent_ns, one.order, one.once = now_ns, self._sent, False
            effects.append(Send(self.to, one.chunk))
        return effects

    def _fill(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        while self._waiting and len(self._under_way) < WINDOW:
            chunk = self._waiting.popleft()
            self._sent += 1
            self._under_way[chunk.name] = _UnderWay(chunk, now_ns, self._sent)
            effects.append(Send(self.to, chunk))
        return effects

    def _wait(self) -> list[Effect]:
        if not self._under_way:
            return []
        self._timer += 1
        return [SetTimer(("again", self.to, self._timer), self.round_trips.timeout_ns)]
