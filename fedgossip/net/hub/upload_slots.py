"""Turns of clients to send a large message, so that the coordinator's memory does not grow with their number.

A message of more than one chunk takes memory from its first chunk to its last, and a ROUTER cannot choose among
senders. So clients send a request, and wait for its grant (`control_frames`).  A message of one chunk is whole on
arrival, and needs no turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from fedgossip.core.machine import NodeId

TURNS = 4
"""Maximum number of clients that send at one time where none of them is slow."""

TURNS_AT_SPEED = 2
"""The same as long as these alone bring FAST_CHUNKS in QUIET_SECONDS: one is under way while another is added up, and
more would take a model of memory each and bring nothing sooner."""

FAST_CHUNKS = 38
"""100 MB/s with QUIET_SECONDS, of 256 KiB each: the rate of a gigabit line."""

TURNS_BYTES = 1 << 30
"""Maximum bytes on their way where clients are slow; never less than TURNS messages."""

QUIET_SECONDS = 0.1
"""Seconds of listening without a chunk after which a client counts as slow: another may send beside it."""

STALLED_SECONDS = 10.0
"""Seconds of listening without a chunk after which a turn is over."""


class ListeningClock:
    """Seconds for which the coordinator reads: while it adds up models, no client counts as silent and no line as slow.

    Its arguments are times of one other clock.
    """

    def __init__(self) -> None:
        self._away = 0.0
        self._left: float | None = None

    def leave(self, now: float) -> None:
        """Stop the clock from now on."""
        self._left = now

    def back(self, now: float) -> None:
        """Go on from now on."""
        self._away += 0.0 if self._left is None else now - self._left
        self._left = None

    def at(self, now: float) -> float:
        """Return its time at a time of the other clock at which it runs."""
        return now - self._away


@dataclass(slots=True)
class _Turn:
    transfer: int
    moved: float


class Turns:
    """`at_once`: maximum number of fast clients that send; `most`: with slow ones.  Times are of a ListeningClock."""

    def __init__(self, at_once: int = TURNS, message_bytes: int = 0) -> None:
        self.at_once = at_once
        self.most = max(at_once, TURNS_BYTES // max(1, message_bytes))
        self.waiting: dict[NodeId, int] = {}  # clients wait in the order of their requests
        self.going: dict[NodeId, _Turn] = {}
        self._came: deque[float] = deque(maxlen=FAST_CHUNKS)
        """The times of the last chunks."""
        self._began = 0.0
        """Time since which a client has a turn, or one more beside those at speed."""

    def ask(self, node: NodeId, transfer: int) -> None:
        """Note a client's request to send a message; it has dropped any earlier one."""
        self.going.pop(node, None)
        self.waiting[node] = transfer

    def next(self, now: float, *, heard_all: bool) -> Iterator[tuple[NodeId, int]]:
        """Yield (client, transfer) for each turn that begins now.

        `heard_all`: nothing is unread here.  Else the reader is slow, not the clients.
        """
        while self.waiting and len(self.going) < self.most:
            at_speed = sum(not heard_all or now - turn.moved < QUIET_SECONDS for turn in self.going.values())
            if at_speed >= (
                self.at_once if heard_all and self._line_is_slow(now) else min(self.at_once, TURNS_AT_SPEED)
            ):
                return
            if not self.going or at_speed >= TURNS_AT_SPEED:  # one more, then another look: it may have been a moment
                self._came.clear()
                self._began = now
            node = next(iter(self.waiting))
            transfer = self.waiting.pop(node)
            self.going[node] = _Turn(transfer, now)
            yield node, transfer

    def _line_is_slow(self, now: float) -> bool:
        """Whether the senders are known to deliver less than FAST_CHUNKS in QUIET_SECONDS."""
        full = len(self._came) == FAST_CHUNKS and now - self._came[0] < QUIET_SECONDS
        return not full and now - self._began >= QUIET_SECONDS

    def has(self, node: NodeId, transfer: int) -> bool:
        turn = self.going.get(node)
        return turn is not None and turn.transfer == transfer

    def moved(self, node: NodeId, now: float) -> None:
        """Note that a chunk has arrived."""
        self._came.append(now)
        if turn := self.going.get(node):
            turn.moved = now

    def stalled(self, now: float) -> list[NodeId]:
        """Return the clients whose turn expired before the message was complete; call it where nothing is unread."""
        return [node for node, turn in self.going.items() if now - turn.moved > STALLED_SECONDS]

    def forget(self, node: NodeId) -> None:
        """End a client's turn: its message has arrived, or will not."""
        self.going.pop(node, None)
        self.waiting.pop(node, None)
