"""The port for sealed streams, open to any machine.

A caller sends HAIL, a ticket and its first record, and has STRANGER_BYTES of memory until its key is verified.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from dataclasses import dataclass, field

from fedgossip.net.streams import sealed_stream
from fedgossip.net.streams.sealed_stream import HEAD_BYTES
from fedgossip.net.streams.sealing import TAG_BYTES, TICKET_BYTES

HAIL = b"fgs1"
"""The first bytes of every stream; those of ZeroMQ begin with 0xFF."""

STRANGER_BYTES = len(HAIL) + TICKET_BYTES + HEAD_BYTES + TAG_BYTES
"""Number of bytes read of a caller before the proof of its key."""

STRANGERS = 64
"""Maximum number of callers without this proof; beyond, the oldest is disconnected."""

STRANGER_SECONDS = 10.0
"""Maximum seconds for a caller's proof."""

PORT_ABOVE = 10_000
"""Distance of the streams' port above a chosen port, if free, for firewalls and relays."""

FULL_SECONDS = 2.0
"""Seconds without new callers while the system has no free descriptor: other files may need the next one."""


@dataclass(slots=True, eq=False)
class Stranger:
    """A caller without a proof of its key so far."""

    connection: socket.socket
    until: float
    received: bytearray = field(default_factory=bytearray)

    @property
    def ticket(self) -> bytes:
        return bytes(self.received[len(HAIL) : len(HAIL) + TICKET_BYTES])

    @property
    def record(self) -> tuple[bytearray, bytearray]:
        """Head of its first record, and the seal of its empty body."""
        return self.received[-HEAD_BYTES - TAG_BYTES : -TAG_BYTES], self.received[-TAG_BYTES:]


class StreamPort:
    """`selector` is its owner's, which calls `accept` for the data None, and `read_stranger` for a Stranger."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._listener: socket.socket | None = None
        self._accepts_at: float | None = None
        self.strangers: dict[socket.socket, Stranger] = {}
        self.refused = 0
        """Number of callers disconnected for lack of a key."""
        self.number = 0
        """Descriptor of the port; 0 without one."""

    def listen(self, router: str, wanted: str) -> None:
        """Open the port at the interface of the ROUTER's address; `wanted` is the requested number.

        Without a free one nothing can connect.
        """
        host, _, number = router.removeprefix("tcp://").rpartition(":")
        chosen = wanted.rpartition(":")[2] == number
        above = int(number) + PORT_ABOVE
        for port in ([above] if chosen and above < 65536 else []) + [0]:
            with contextlib.suppress(OSError):
                self._listener = _listener(host.strip("[]"), port)
                break
        if self._listener is not None:
            self.number = int(self._listener.getsockname()[1])
            self._selector.register(self._listener, selectors.EVENT_READ, None)

    def accept(self) -> None:
        """Accept callers."""
        assert self._listener is not None
        for _ in range(STRANGERS):
            try:
                connection, _where = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._selector.unregister(self._listener)
                    self._accepts_at = time.monotonic() + FULL_SECONDS
                    return
                continue  # it has left already
            self._take_in(connection)

    def _take_in(self, connection: socket.socket) -> None:
        try:
            sealed_stream.prepare(connection)
        except OSError:
            connection.close()
            return
        while len(self.strangers) >= STRANGERS:
            self.turn_away(next(iter(self.strangers.values())))
        stranger = self.strangers[connection] = Stranger(connection, time.monotonic() + STRANGER_SECONDS)
        self._selector.register(connection, selectors.EVENT_READ, stranger)

    def read_stranger(self, stranger: Stranger) -> bool:
        """Read a stranger's bytes; return whether all have arrived."""
        if stranger.connection not in self.strangers:  # it was disconnected after it was found readable
            return False
        try:
            received = stranger.connection.recv(STRANGER_BYTES - len(stranger.received))
        except BlockingIOError:
            return False
        except OSError:
            received = b""
        stranger.received += received
        if not received or not HAIL.startswith(bytes(stranger.received[: len(HAIL)])):
            self.turn_away(stranger)
            return False
        return len(stranger.received) == STRANGER_BYTES

    def turn_away(self, stranger: Stranger) -> None:
        """Disconnect a stranger."""
        self.refused += 1
        self.admit(stranger).close()

    def admit(self, stranger: Stranger) -> socket.socket:
        """Return the connection of a verified caller, which is no longer a stranger."""
        del self.strangers[stranger.connection]
        self._selector.unregister(stranger.connection)
        return stranger.connection

    def look_at_times(self, now: float) -> None:
        """Close strangers beyond their deadline; accept callers again if the system may have descriptors again."""
        for stranger in [one for one in self.strangers.values() if one.until < now]:
            self.turn_away(stranger)
        if self._accepts_at is not None and now >= self._accepts_at and self._listener is not None:
            self._accepts_at = None
            self._selector.register(self._listener, selectors.EVENT_READ, None)

    def close(self) -> None:
        """Close all connections and the port."""
        for stranger in list(self.strangers.values()):
            self.turn_away(stranger)
        if self._listener is not None:
            self._listener.close()


def _listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens at a numeric address, at "::" for IPv4 too."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        if os.name == "posix":  # elsewhere two sockets could listen at one port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, port))
        listener.listen(STRANGERS)
    except OSError:
        listener.close()
        raise
    return listener
