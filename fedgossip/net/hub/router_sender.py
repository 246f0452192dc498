"""Fair turns between many clients: of chunks that a coordinator sends, and of large messages that clients send.

**Sending**, by one ROUTER and sealed streams: a chunk for each client in turn.  A chunk that a connection does not
accept is tried again, at growing intervals, so that a slow client delays only itself.  (ZeroMQ does not report which
connections of a ROUTER accept more.)

**Receiving**: a message of more than one chunk takes memory from its first chunk on, and a ROUTER cannot choose among
senders.  So clients send a request and wait for its grant (a control frame, `outbox`).
"""

from __future__ import annotations

import heapq
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import zmq

from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import AnyMessage, Carrier
from fedgossip.net.links.outbox import Outbox, Pair, zmq_body
from fedgossip.net.sockets import DRAIN_FRAMES, MORE_NOW, NOW, ZmqSocket
from fedgossip.net.streams.sealed_way import SEAL, SealedWay
from fedgossip.net.streams.sealing import WornOutError
from fedgossip.net.streams.streams import Streams

SPEAKING_CHUNKS = 16
"""High-water mark per connection, in chunks.  All clients share the frames of one model, so they cost no memory."""

RETRY_SECONDS, RETRY_SECONDS_MAX = 0.002, 0.1
"""Minimum and maximum seconds between two tries; in that range, a quarter of the time since a chunk was accepted (2
GB/s at the minimum).
"""

CHUNKS_IN_A_ROW = 4
"""Maximum number of chunks to one stream before the next: its client wakes less often."""

MODELS = 16
"""Maximum number of different models queued for slow clients or partly sent; beyond, the oldest is dropped."""


@dataclass(slots=True, eq=False)
class ClientLine:
    """The path to one client: the ROUTER's name of its connection, and its waiting messages."""

    node: NodeId
    outbox: Outbox
    name: bytes = b""
    way: SealedWay | None = None
    """Sealed stream parallel to that connection, if one is up."""
    frames_sent: int = 0
    """Messages taken by the connection since the last answer to an offer."""
    took: float = 0.0
    """Time when it last accepted a chunk, or had nothing to send."""
    stuck: bool = False


class FairSender:
    """Sends the frames of lines with other owners; forgets a line that was cleared."""

    def __init__(self, router: ZmqSocket, streams: Streams) -> None:
        self._router, self._streams = router, streams
        router.router_mandatory = True
        router.sndhwm = SPEAKING_CHUNKS
        self._talking: dict[NodeId, ClientLine] = {}
        self._stuck: list[tuple[float, NodeId, ClientLine]] = []
        self._models: deque[weakref.ref[Vector]] = deque()
        self._gone: list[ClientLine] = []
        self._full: dict[NodeId, ClientLine] = {}  # lines with a full stream

    @property
    def idle(self) -> bool:
        """Whether the network has accepted everything."""
        return not self._talking and not self._full and not any(line.stuck for _, _, line in self._stuck)

    def put(self, line: ClientLine, message: AnyMessage) -> int:
        """Queue a message; return the number of messages dropped for it: the oldest of its line, or the oldest model of
        all.
        """
        dropped = self._make_room(message.vectors[0]) if isinstance(message, Carrier) else 0
        dropped += not line.outbox.put(message)
        self._begin(line)
        return dropped

    def send_control(self, line: ClientLine, word: Pair) -> None:
        """Queue a control frame, before all messages."""
        line.outbox.add_control(word)
        self._begin(line)

    def clear(self, line: ClientLine) -> None:
        """Forget all waiting messages of a line: its connection is broken."""
        line.outbox.clear()
        line.stuck = False
        self._talking.pop(line.node, None)
        self._full.pop(line.node, None)

    def _begin(self, line: ClientLine) -> None:
        if not line.stuck and line.node not in self._talking and line.node not in self._full:
            line.took = time.monotonic()
            self._talking[line.node] = line

    def _make_room(self, vector: Vector) -> int:
        """Drop the oldest model if there are too many."""
        if any(known() is vector for known in reversed(self._models)):
            return 0
        self._models.append(weakref.ref(vector))
        dropped = 0
        while len(self._models) > MODELS:
            if (oldest := self._models.popleft()()) is not None:
                lines = [*self._talking.values(), *self._full.values(), *(line for _, _, line in self._stuck)]
                dropped += sum(line.outbox.forget(oldest) for line in lines)
        return dropped

    def speak(self) -> None:
        """Send chunks to every client with messages, while they are accepted, for a short time at most."""
        now = time.monotonic()
        while self._stuck and self._stuck[0][0] <= now:
            _, _, line = heapq.heappop(self._stuck)
            if line.stuck:
                line.stuck = False
                self._talking[line.node] = line
        chunks = 0
        while chunks < DRAIN_FRAMES and (taken := self._give_everyone_some(now)):
            chunks += taken

    def _give_everyone_some(self, now: float) -> int:
        taken = 0
        for line in list(self._talking.values()):
            given = self._give(line)
            line.took = now if given else line.took
            taken += given
        return taken

    def _give(self, line: ClientLine) -> int:
        """Send chunks while they are accepted, at most CHUNKS_IN_A_ROW by a stream; return their number."""
        for given in range(CHUNKS_IN_A_ROW):
            begins, pair = line.outbox.between, line.outbox.next()
            if pair is None:
                del self._talking[line.node]
                self._empty(line)
                return given
            if not self._send_pair(line, pair, begins=begins):
                return given
            if line.way is None or not line.way.sends:
                return given + 1
        return CHUNKS_IN_A_ROW

    def _send_pair(self, line: ClientLine, pair: Pair, *, begins: bool) -> bool:
        if line.way is not None and (line.way.sends or begins):
            return self._sealed(line, line.way, pair)
        try:
            self._router.send(line.name, MORE_NOW)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                self.clear(line)
                self._gone.append(line)
            elif error.errno == zmq.EAGAIN:
                self._wait(line)
            else:
                raise
            return False
        self._router.send(pair[0], MORE_NOW)  # ZeroMQ accepts the whole message or nothing
        self._router.send(zmq_body(pair), NOW, copy=False)
        line.frames_sent = 0 if pair[0][:1] == SEAL else line.frames_sent + 1
        line.outbox.sent()
        return True

    def _sealed(self, line: ClientLine, way: SealedWay, pair: Pair) -> bool:
        """Send a frame by the line's stream; wait if it is full."""
        way.frames_sent = line.frames_sent
        try:
            taken = way.speak() and way.send(pair)
        except (OSError, WornOutError):
            self.clear(line)
            self._gone.append(line)
            return False
        if taken:
            line.outbox.sent()
        else:
            del self._talking[line.node]
            self._full[line.node] = line
            self._streams.watch(way)
        return taken

    def _empty(self, line: ClientLine) -> None:
        if line.way is None or not line.way.sending:
            return
        try:
            taken = line.way.flush()
        except OSError:
            self.clear(line)
            self._gone.append(line)
            return
        if not taken:
            self._full[line.node] = line
            self._streams.watch(line.way)

    def resume(self, line: ClientLine) -> None:
        """Continue with the line's stream, which accepts more.  Raises OSError if it is broken."""
        assert line.way is not None and line.way.stream is not None
        if line.way.stream.flush() and self._full.pop(line.node, None) is not None:
            self._begin(line)
        self._streams.watch(line.way)

    def _wait(self, line: ClientLine) -> None:
        now = time.monotonic()
        after = min(max(RETRY_SECONDS, (now - line.took) / 4), RETRY_SECONDS_MAX)
        del self._talking[line.node]
        line.stuck = True
        heapq.heappush(self._stuck, (now + after, line.node, line))

    def take_gone(self) -> list[ClientLine]:
        """Return the clients with connections found broken since the last call."""
        gone, self._gone = self._gone, []
        return gone

    def compute_rest_ms(self, at_most_ms: int) -> int:
        """Return the milliseconds until there is something to send."""
        if self._talking:
            return 0
        if not self._stuck:
            return at_most_ms
        return min(at_most_ms, max(0, int(1000 * (self._stuck[0][0] - time.monotonic())) + 1))

    def send_control_to(self, name: bytes, word: Pair) -> None:
        """Send a control frame on a connection without a line, if it is accepted now."""
        try:
            self._router.send(name, MORE_NOW)
        except zmq.ZMQError:
            return
        self._router.send(word[0], MORE_NOW)
        self._router.send(zmq_body(word), NOW)


TURNS = 4
"""Maximum number of clients that send at one time if none of them is slow."""

TURNS_AT_SPEED = 2
"""The same if these alone deliver FAST_CHUNKS in QUIET_SECONDS: more would each take memory for a model without a gain
in speed.
"""

FAST_CHUNKS = 38
"""100 MB/s with QUIET_SECONDS, of 256 KiB each: the rate of a gigabit line."""

TURNS_BYTES = 1 << 30
"""Maximum bytes of messages under way with slow clients; at least TURNS messages."""

QUIET_SECONDS = 0.1
"""Seconds of listening without a chunk after which a client counts as slow, so that another may send at the
same time.
"""

STALLED_SECONDS = 10.0
"""Seconds of listening without a chunk after which a turn ends."""


class ListeningClock:
    """Seconds for which the coordinator reads, relative to another clock: while it adds up models no client counts as
    silent.
    """

    def __init__(self) -> None:
        self._away = 0.0
        self._left: float | None = None

    def leave(self, now: float) -> None:
        """Stop the clock from now on."""
        self._left = now

    def back(self, now: float) -> None:
        """Continue from now on."""
        self._away += 0.0 if self._left is None else now - self._left
        self._left = None

    def convert(self, now: float) -> float:
        """Return its time at a time of the other clock at which it runs."""
        return now - self._away


@dataclass(slots=True)
class _Turn:
    transfer: int
    moved: float


class Turns:
    """`at_once`: maximum number of fast clients that send; `most`: the maximum with slow ones.  Times are of a
    ListeningClock.
    """

    def __init__(self, at_once: int = TURNS, message_bytes: int = 0) -> None:
        self.at_once = at_once
        self.most = max(at_once, TURNS_BYTES // max(1, message_bytes))
        self.waiting: dict[NodeId, int] = {}  # clients in the order of their requests
        self.going: dict[NodeId, _Turn] = {}
        self._came: deque[float] = deque(maxlen=FAST_CHUNKS)
        """Times of the last chunks."""
        self._began = 0.0
        """Time since which a client has a turn, or one in addition to those at full speed."""

    def ask(self, node: NodeId, transfer: int) -> None:
        """Record a client's request to send a message; it replaces any earlier one."""
        self.going.pop(node, None)
        self.waiting[node] = transfer

    def next(self, now: float, *, all_read: bool) -> Iterator[tuple[NodeId, int]]:
        """Yield (client, transfer) for each turn that begins now.

        `all_read`: nothing is unread here; otherwise the reader is slow, not the clients.
        """
        while self.waiting and len(self.going) < self.most:
            at_speed = sum(not all_read or now - turn.moved < QUIET_SECONDS for turn in self.going.values())
            if at_speed >= (
                self.at_once if all_read and self._line_is_slow(now) else min(self.at_once, TURNS_AT_SPEED)
            ):
                return
            if not self.going or at_speed >= TURNS_AT_SPEED:  # one more, then check again: it may have been a moment
                self._came.clear()
                self._began = now
            node = next(iter(self.waiting))
            transfer = self.waiting.pop(node)
            self.going[node] = _Turn(transfer, now)
            yield node, transfer

    def _line_is_slow(self, now: float) -> bool:
        full = len(self._came) == FAST_CHUNKS and now - self._came[0] < QUIET_SECONDS
        return not full and now - self._began >= QUIET_SECONDS

    def has(self, node: NodeId, transfer: int) -> bool:
        turn = self.going.get(node)
        return turn is not None and turn.transfer == transfer

    def moved(self, node: NodeId, now: float) -> None:
        """Record that a chunk has arrived."""
        self._came.append(now)
        if turn := self.going.get(node):
            turn.moved = now

    def stalled(self, now: float) -> list[NodeId]:
        """Return the clients with turns that expired before the message was complete; call it if nothing is unread."""
        return [node for node, turn in self.going.items() if now - turn.moved > STALLED_SECONDS]

    def forget(self, node: NodeId) -> None:
        """End a client's turn: its message has arrived, or will not."""
        self.going.pop(node, None)
        self.waiting.pop(node, None)
