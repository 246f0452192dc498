"""Chunks on their way to one worker each: at most WINDOW of them, and each until its receiver says that it is there.

Links lose what was under way when they break, and drop what waits too long in a full queue; a chunk that is lost would
stop a whole collective.  So it is sent again, where it is known to be lost:

    a gap         a later chunk is there and this one is not, on a link that keeps the order: at once
    a question    nothing was heard for as long as `round_trips` says: which of those under way are there?  What the
                  answer does not name goes again; where none comes, the next question waits twice as long
    a new link    all that is under way

A question is of a few bytes and keeps its place behind what it asks about: so a link that is slower than the first
timeout carries nothing twice.  How long answers take is measured by questions, and by chunks that were sent once.

Source: the probe in place of a repeat is that of Cheng, Cardwell, Dukkipati and Jha, The RACK-TLP loss detection
algorithm for TCP, RFC 8985 (2021), which says again the last segment; a chunk is a thousand times as long.
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

# How long answers on a link take, and so how long one is waited for before something is said again.
#
# timeout = smoothed + max(4 * deviation, smoothed)          smoothed, deviation: moving means, of 1/8 and 1/4
#
# at least LEAST_NS and at most a limit; FIRST_NS before the first answer, and doubled with the second and the third
# that does not come, until one comes.  The caller measures those alone that are known to be of a thing said once.
#
# Source: Paxson, Allman, Chu and Sargent, Computing TCP's retransmission timer, RFC 6298 (2011), with the rule of Karn
# and Partridge, Improving round-trip time estimates in reliable transport protocols, SIGCOMM 1987.  Ours differs in the
# least timeout: that of Linux in place of a second, and twice the smoothed time, for answers here wait for a machine
# that may be adding; and it doubles twice, from the second on, for what is said after it is a question of a few
# bytes, which fills no link.


FIRST_NS = 1_000_000_000
"""Timeout before the first answer, as RFC 6298 has it."""

LEAST_NS = 200_000_000
"""Minimum timeout, as Linux has it: messages are lost seldom, and a busy machine answers late."""

DOUBLINGS_MAX = 2
"""Maximum number of times that a timeout doubles."""


class RoundTrips:
    """Those of one link, in nanoseconds; `longest_ns` limits the timeout."""

    def __init__(self, longest_ns: int) -> None:
        self.longest_ns = longest_ns
        self.quickest_ns = 0
        """The shortest that was seen; 0 before the first."""
        self._smoothed_ns = self._deviation_ns = self._timeouts = 0

    def saw(self, took_ns: int) -> None:
        """An answer came after so long to what was said once."""
        took_ns = max(took_ns, 1)
        if not self.quickest_ns:
            self._smoothed_ns, self._deviation_ns, self.quickest_ns = took_ns, took_ns // 2, took_ns
        else:
            self._deviation_ns += (abs(self._smoothed_ns - took_ns) - self._deviation_ns) // 4
            self._smoothed_ns += (took_ns - self._smoothed_ns) // 8
            self.quickest_ns = min(self.quickest_ns, took_ns)
        self._timeouts = 0

    def answered(self, took_ns: int) -> None:
        """A question was answered after so long, which is sooner than a long thing: it tells that the link is there."""
        if not self.quickest_ns:
            self.saw(took_ns)
        self._timeouts = 0

    def timed_out(self) -> None:
        """No answer came in time."""
        self._timeouts = min(self._timeouts + 1, 1 + DOUBLINGS_MAX)

    @property
    def timeout_ns(self) -> int:
        """How long the next answer is waited for."""
        return min(self._usual_ns << max(self._timeouts - 1, 0), self.longest_ns)

    @property
    def _usual_ns(self) -> int:
        if not self.quickest_ns:
            return FIRST_NS
        return max(self._smoothed_ns + max(4 * self._deviation_ns, self._smoothed_ns), LEAST_NS)


WINDOW = 4
"""Maximum number of chunks on a link that are not acknowledged."""

QUESTIONS_MAX = 8
"""Maximum number of questions that are open on a link; older ones are given up."""

Name = tuple[int, int, int, int]
"""By which a receiver says that a chunk is there; no two on a link have the same."""

PushChunk = ShardPush | CodedPush | RowPush | NoRows
Chunk = ReduceChunk | CodedChunk | PushChunk | Pulled | CodedPulled | RowsPulled | ChangeMessage | CopyMessage


@dataclass(slots=True)
class _UnderWay:
    """A chunk, and when it was sent last, as the which of all on the link."""

    chunk: Chunk
    sent_ns: int
    order: int
    once: bool = True


Word = ChunkTaken | PieceTaken | ChunksAsked | ChunksHere
"""What the two ends of a link say of chunks."""


class ChunkLink:
    """What one worker has for another, and has taken of it.

    Invariant: at most WINDOW chunks are under way, and they are the oldest.
    """

    def __init__(self, to: NodeId, longest_ns: int) -> None:
        self.to = to
        self.round_trips = RoundTrips(longest_ns)
        self._under_way: dict[Name, _UnderWay] = {}
        self._waiting: deque[Chunk] = deque()
        self._sent = self._timer = 0
        self._questions: dict[int, tuple[int, int]] = {}
        """Those that are open by number: as the which of all on the link they were sent, and when."""
        self._here: dict[Name, None] = {}
        """The last chunks that the other has sent and that are here."""

    @property
    def idle(self) -> bool:
        return not self._under_way

    @property
    def waiting_bytes(self) -> int:
        """Bytes of vectors that there was no room for yet."""
        return sum(chunk.payload_bytes for chunk in self._waiting)

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

    def heard(self, word: Word, now_ns: int) -> list[Effect]:
        """Take what the other says of chunks."""
        match word:
            case ChunksAsked():
                here = tuple(name for name in word.names if name in self._here)
                return [Send(self.to, ChunksHere(word.number, here))]
            case ChunksHere():
                return self.answered(word, now_ns)
        return self.taken(word.name, now_ns)

    def took(self, word: ChunkTaken | PieceTaken) -> Send:
        """Note that a chunk of the other is here, and say so."""
        self._here.pop(word.name, None)
        self._here[word.name] = None
        if len(self._here) > 2 * WINDOW:
            del self._here[next(iter(self._here))]
        return Send(self.to, word)

    def forget_here(self) -> None:
        """What was taken is not here any more: it is sent again where its sender asks."""
        self._here.clear()

    def taken(self, name: Name, now_ns: int) -> list[Effect]:
        """A chunk is there: send what is seen to be lost, and the next; one that is not under way changes nothing."""
        there = self._under_way.pop(name, None)
        if there is None:
            return []
        if there.once:
            self.round_trips.saw(now_ns - there.sent_ns)
        lost = [one for one in self._under_way.values() if one.order < there.order]
        return self._go_on(lost, now_ns)

    def answered(self, answer: ChunksHere, now_ns: int) -> list[Effect]:
        """The other says which are there of those under way when it was asked; the others are lost."""
        if answer.number not in self._questions:
            return []
        order, asked_ns = self._questions[answer.number]
        self._questions = {number: at for number, at in self._questions.items() if number > answer.number}
        self.round_trips.answered(now_ns - asked_ns)
        for name in answer.names:
            self._under_way.pop(name, None)
        return self._go_on([one for one in self._under_way.values() if one.order < order], now_ns)

    def again(self, timer: int, now_ns: int) -> list[Effect]:
        """The timer of this number has fired: ask what is there of all that is under way."""
        if timer != self._timer or not self._under_way:
            return []
        self.round_trips.timed_out()
        self._sent += 1
        self._questions[timer] = self._sent, now_ns
        if len(self._questions) > QUESTIONS_MAX:
            del self._questions[next(iter(self._questions))]
        return [Send(self.to, ChunksAsked(timer, tuple(self._under_way))), *self._wait()]

    def resent(self, now_ns: int) -> list[Effect]:
        """Send all again that is under way: the link was lost, or the other has lost it."""
        return [*self._all_again(self._under_way.values(), now_ns), *self._wait()]

    def drop(self) -> None:
        """Forget all, at this end: the round is given up."""
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
        """Begin to wait for the next answer."""
        if not self._under_way:
            return []
        self._timer += 1
        return [SetTimer(("again", self.to, self._timer), self.round_trips.timeout_ns)]
