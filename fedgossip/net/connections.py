"""The connections of a process's sockets, and a thread that closes those beyond the limits of bytes and number.

ZeroMQ stores an endless message's frames until the last arrives, and reports nothing.  TCP counts the bytes that a
connection has received; a thread (the sockets' owner may be busy) compares them with the limit after the last message
taken.  Closing also drops unread bytes.  A link by ipc:// is not watched.

Connections are identified by descriptors.  ZeroMQ's monitors report a descriptor when it is taken and before its reuse;
`take` passes these events to the owner.  ZeroMQ cannot close a single connection, so its TCP socket is shut down
instead.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.base.owner_files import patiently
from fedgossip.core.machine import NodeId
from fedgossip.core.wire import CHUNK_BYTES
from fedgossip.net.sockets import (
    FILES,
    LINUX,
    NOW,
    Waker,
    ZmqSocket,
    break_off,
    check_files,
    count_received,
    pause,
    raise_open_files,
    shut_down,
)
from fedgossip.net.streams import stream_port
from fedgossip.net.transport import Rejected

UNREAD_BYTES = 6 * CHUNK_BYTES
"""Maximum bytes that a connection may receive before a message is taken; ZeroMQ holds two and a part of a third."""

STRANGERS_MAX = 512
"""Maximum number of connections without a known partner, in addition to one per partner; beyond, the oldest is
closed.
"""

STRANGE_BYTES = 16 << 20
"""Maximum total bytes of the connections without a known partner; beyond, the largest is closed."""

REST_SECONDS = 0.002
"""Minimum seconds between two checks; between them, an endless message can exceed the limits by the bytes that ZeroMQ
reads.
"""

CHECK_SECONDS = 0.025
"""Seconds between two checks of connections with bytes waiting in the network, while nothing is read and nothing
arrives.
"""

PAUSED_SECONDS = 0.05

FLOOD = -1
"""Number of an event of this module, not of ZeroMQ: the connection was closed for its bytes."""

_CONNECTIONS = zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED
_OPENED = (zmq.EVENT_ACCEPTED, zmq.EVENT_CONNECTED)


@dataclass(frozen=True, slots=True)
class Seen:
    """An event of a socket's monitor.  For FLOOD `node` is the partner of the connection, if known."""

    socket: ZmqSocket
    event: int
    descriptor: int
    node: NodeId | None = None


@dataclass(slots=True)
class _Connection:
    socket: ZmqSocket
    messages: int
    """Number of messages taken on this descriptor when `base` was set."""
    base: int | None = 0
    """Bytes received shortly after; None until TCP is queried."""
    unread: int = 0
    """Bytes received since `base`."""


class Connections:
    """Connections of a process.  The thread of the sockets owns them and makes all calls."""

    def __init__(self, participants: int = 1) -> None:
        """`participants`: number of those of this process; their checks together are as frequent as those of one."""
        self._check_seconds = CHECK_SECONDS * participants
        self.expected = 0
        """Number of partners that may call."""
        self._room = max(1, raise_open_files() - FILES)
        self._lock = threading.Lock()
        self._monitors: dict[ZmqSocket, ZmqSocket] = {}
        self._sockets: dict[int, ZmqSocket] = {}  # sockets by their monitors' descriptors
        self._connections: dict[int, _Connection] = {}
        self._callers: set[int] = set()  # incoming ones
        self._strange: dict[int, None] = {}  # incoming ones without a known partner, the oldest first
        self._active: set[int] = set()  # connections with new bytes or messages since the last check
        self._waiting: set[int] = set()  # other connections with bytes waiting in the network
        self._looked = 0.0  # time of their last check
        self._listeners: set[int] = set()
        self._paused = False
        self._messages: defaultdict[int, int] = defaultdict(int)
        self._speakers: dict[int, NodeId] = {}
        self._seen: deque[Seen] = deque()
        self._published = False
        self._news, self._ending = Waker(), Waker()
        self._ended = threading.Event()
        self._poll: Any = select.epoll() if LINUX else select.poll()
        self._poll.register(self._ending.fileno(), select.POLLIN)
        self._thread = guarded_thread(self._watch, "connections")
        self._thread.start()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when `take` has events."""
        return self._news.fileno()

    def follow(self, socket: ZmqSocket, events: int = 0) -> None:
        """Watch a socket before it is bound or connected; `events`: further monitor events to report."""
        monitor = patiently(lambda: socket.get_monitor_socket(events | _CONNECTIONS))
        with self._lock:
            self._monitors[socket] = monitor
            self._sockets[monitor.fileno()] = socket
            self._poll.register(monitor.fileno(), select.POLLIN)
            self._drain(socket)  # ZeroMQ signals further events only after a read that found none

    def leave(self, socket: ZmqSocket) -> None:
        """Stop watching a socket before it is closed, and drop its events."""
        with self._lock:
            monitor = self._monitors.pop(socket)
            self._poll.unregister(monitor.fileno())
            del self._sockets[monitor.fileno()]
            for descriptor in [d for d, one in self._connections.items() if one.socket is socket]:
                self._forget(descriptor)
            self._seen = deque(seen for seen in self._seen if seen.socket is not socket)
            socket.disable_monitor()
            monitor.close(0)

    def note_message(self, descriptor: int, node: NodeId) -> None:
        """Record that a partner's message was taken from this connection, which may receive as much again."""
        self._messages[descriptor] += 1
        self._speakers[descriptor] = node

    def take(self) -> list[Seen]:
        """Return all events since the last call."""
        with self._lock:
            for socket in self._monitors:
                self._drain(socket)
            if self._published:
                self._published = False
                self._news.clear()
            seen, self._seen = list(self._seen), deque()
        return seen

    def close(self) -> None:
        """Stop, and close the monitors."""
        self._ended.set()
        self._ending.wake()
        self._thread.join()
        for monitored in list(self._monitors):
            self.leave(monitored)
        if LINUX:
            self._poll.close()
        self._news.close()
        self._ending.close()

    # --- events of monitors ------------------------------------------------------------------------------------------

    def _drain(self, socket: ZmqSocket) -> None:
        monitor = self._monitors[socket]
        with contextlib.suppress(zmq.Again):
            while True:
                event = parse_monitor_message(monitor.recv_multipart(NOW))
                self._note(Seen(socket, int(event["event"]), int(event["value"])))

    def _publish(self, seen: Seen) -> None:
        self._seen.append(seen)
        if not self._published:
            self._published = True
            self._news.wake()

    def _note(self, seen: Seen) -> None:
        descriptor = seen.descriptor
        if seen.event == zmq.EVENT_LISTENING:
            self._listeners.add(descriptor)
            return
        if seen.event in _OPENED:
            self._forget(descriptor)
            self._opened(seen)
        elif seen.event == zmq.EVENT_DISCONNECTED:
            known = self._connections.get(descriptor)
            if known and known.socket is seen.socket:  # otherwise another connection has the number already
                self._forget(descriptor)
        self._publish(seen)

    def _opened(self, seen: Seen) -> None:
        descriptor = seen.descriptor
        self._connections[descriptor] = _Connection(seen.socket, self._messages[descriptor])
        self._active.add(descriptor)
        if seen.event == zmq.EVENT_ACCEPTED:
            self._callers.add(descriptor)
            self._strange[descriptor] = None
        if LINUX and descriptor not in self._sockets:
            with contextlib.suppress(OSError):  # closed already
                self._poll.register(descriptor, select.EPOLLIN | select.EPOLLET)

    def _forget(self, descriptor: int) -> None:
        if self._connections.pop(descriptor, None) is None:
            return
        self._speakers.pop(descriptor, None)
        self._strange.pop(descriptor, None)
        self._callers.discard(descriptor)
        self._active.discard(descriptor)
        self._waiting.discard(descriptor)
        # A connection's end may be reported when a newer monitor already has its number, and would then be lost.
        if LINUX and descriptor not in self._sockets:
            with contextlib.suppress(OSError):  # closed already
                self._poll.unregister(descriptor)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._ended.is_set():
            patience = self._patience()
            ready = self._poll.poll(patience if LINUX or patience < 0 else 1000 * patience)
            with self._lock:
                self._look({descriptor for descriptor, _ in ready})
            time.sleep(REST_SECONDS)

    def _patience(self) -> float:
        """Return the seconds without arrivals before the next check; -1 for no check."""
        if self._active:
            return 0.0
        return self._check_seconds if self._waiting else PAUSED_SECONDS if self._paused else -1.0

    def _look(self, ready: set[int]) -> None:
        for descriptor in ready & self._sockets.keys():
            self._drain(self._sockets[descriptor])
        for descriptor in (ready | self._due()) & self._connections.keys():
            self._check(descriptor)
        if self._strange:
            self._bound_strangers()
        crowded = len(self._callers) > self._room * 3 // 4
        if crowded != self._paused:
            self._paused = crowded
            for listener in self._listeners:
                pause(listener, paused=crowded)

    def _due(self) -> set[int]:
        """Return the connections to check without new arrivals."""
        if (now := time.monotonic()) - self._looked < self._check_seconds:
            return self._active.copy()
        self._looked = now
        return self._active | self._waiting

    def _check(self, descriptor: int) -> None:
        """Close a connection beyond its limit; check again soon if more may arrive."""
        connection = self._connections[descriptor]
        count = self._messages[descriptor]
        if count != connection.messages:  # the usual case: all of its bytes are read, and TCP need not be queried
            connection.messages, connection.base, connection.unread = count, None, 0
            self._strange.pop(descriptor, None)
            self._active.add(descriptor)
            return
        self._active.discard(descriptor)
        self._waiting.discard(descriptor)
        if (now := count_received(descriptor)) is None:
            return
        total, waiting = now
        base, before = total if connection.base is None else connection.base, connection.unread
        connection.base, connection.unread = base, max(0, total - base)  # one that was reset counts from 0
        if connection.unread != before:
            self._active.add(descriptor)
        elif waiting:
            self._waiting.add(descriptor)
        if connection.unread > UNREAD_BYTES:
            self._hang_up(descriptor)

    def _hang_up(self, descriptor: int) -> None:
        connection = self._connections[descriptor]
        total = (connection.base or 0) + connection.unread
        break_off(descriptor, lambda held: (count_received(held) or (0, 0))[0] >= total)
        connection.base, connection.unread = total, 0  # report once; the connection closes in a moment
        self._publish(Seen(connection.socket, FLOOD, descriptor, self._speakers.get(descriptor)))

    def _bound_strangers(self) -> None:
        most = min(self._room // 2, STRANGERS_MAX + self.expected)
        if len(self._strange) > most:
            self._check_strangers()
            for descriptor in list(self._strange)[: max(0, len(self._strange) - most)]:
                shut_down(descriptor, lambda _: True)
        if sum(self._connections[d].unread for d in self._strange) > STRANGE_BYTES:
            self._check_strangers()
            largest = max(self._strange, key=lambda d: self._connections[d].unread, default=None)
            if largest is not None and sum(self._connections[d].unread for d in self._strange) > STRANGE_BYTES:
                self._hang_up(largest)

    def _check_strangers(self) -> None:
        """Check also connections without recent bytes."""
        for descriptor in list(self._strange):
            self._check(descriptor)


def flooded(node: NodeId | None, who: str) -> Rejected:
    """Return the event of a connection closed for its bytes."""
    return Rejected(node, "flood", f"{who} was disconnected: it sent more than any message has, without an end")


STRANGERS = 256
"""Maximum number of connections of unknown callers in addition to one per client, as all call at once after a restart;
beyond, the oldest are closed.
"""


class Callers:
    """The callers of a socket watched by `connections`.  `address`: its own; `expected`: the number of permitted
    callers.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.address, self.expected = "", 0
        self.flooded: list[Seen] = []
        """Connections closed for their bytes since this list was emptied."""
        self._strange: dict[int, None] = {}  # in order of arrival
        self._known: dict[int, NodeId] = {}

    def look(self) -> list[tuple[int, NodeId]]:
        """Read the monitor's events; return (descriptor, node) of known connections that broke."""
        broken: list[tuple[int, NodeId]] = []
        for seen in self._connections.take():
            if seen.event == FLOOD:
                self.flooded.append(seen)
            elif seen.event == zmq.EVENT_ACCEPTED:
                self._strange[seen.descriptor] = None
            elif seen.event == zmq.EVENT_DISCONNECTED:
                self._strange.pop(seen.descriptor, None)
                if (node := self._known.pop(seen.descriptor, None)) is not None:
                    broken.append((seen.descriptor, node))
        while len(self._strange) > STRANGERS + self.expected:
            self.hang_up(next(iter(self._strange)))
        return broken

    def introduce(self, descriptor: int, node: NodeId) -> bool:
        """Record that the caller on this connection is `node`; return False if the connection is closed.  Call `look`
        before.
        """
        if descriptor not in self._strange and self._known.get(descriptor) != node:
            return False
        self._strange.pop(descriptor, None)
        self._known[descriptor] = node
        return True

    def hang_up(self, descriptor: int) -> None:
        """Close a connection; it breaks at the other end and is forgotten here."""
        self._strange.pop(descriptor, None)
        self._known.pop(descriptor, None)
        shut_down(descriptor, self._is_ours)  # the number may belong to another file by now

    def _is_ours(self, descriptor: int) -> bool:
        kind, _, place = self.address.partition("://")
        try:
            connection = socket.socket(fileno=descriptor)
        except OSError:  # not a socket
            return False
        try:
            name = connection.getsockname()
        except OSError:
            return False
        finally:
            connection.detach()  # the descriptor belongs to ZeroMQ
        return bool(name == place if kind == "ipc" else str(name[1]) == place.rpartition(":")[2])


def check_clients(clients: int) -> None:
    """Raise NetworkError if this process may not open as many connections as it may need."""
    # per client: its connection with stream, one that waits, and one that has just called; strangers at both ports
    needed = 4 * clients + STRANGERS + stream_port.STRANGERS + FILES
    check_files(f"{clients} clients", needed)
