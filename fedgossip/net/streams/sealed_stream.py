"""One TCP connection with sealed records, without blocking: sent, received, and waiting ones.

    mark (9) + length (u32)      in clear, and sealed with the body: changed, the record does not open
    body + tag (16)              a header, a chunk of vectors, or an empty control frame; see wire

A record is sealed just before it is sent, and opened from a pooled buffer into its place: a part of one record waits
per direction, and small ones before it, which share a system call with it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections import deque
from typing import Any

from fedgossip.core.wire import FRAME_BYTES_MAX, MARK_BYTES, FrameError
from fedgossip.net.sockets import PROBE_AGAIN_SECONDS, PROBE_SECONDS, SILENCE_MS, unacknowledged
from fedgossip.net.streams.sealing import TAG_BYTES, Opener, Sealer

_HEAD = struct.Struct(f"<{MARK_BYTES}sI")
HEAD_BYTES = _HEAD.size
RECORD_BYTES_MAX = HEAD_BYTES + FRAME_BYTES_MAX + TAG_BYTES

SMALL_BYTES = 4096
"""Maximum bytes of a body that waits for the next record, and of a buffer beyond one record."""

KEPT_BUFFERS = 16
"""Maximum number of stored buffers."""


LAST_READS, LAST_BYTES = 16, 1 << 16
"""Maximum number of final reads of unneeded bytes, and size of each."""


class Buffers:
    """Memory for records under way, reused: fresh memory costs a page fault for every 4 KiB."""

    def __init__(self) -> None:
        self._free: deque[memoryview] = deque(maxlen=KEPT_BUFFERS)

    def take(self) -> memoryview:
        return self._free.pop() if self._free else memoryview(bytearray(RECORD_BYTES_MAX + SMALL_BYTES))

    def give(self, buffer: memoryview) -> None:
        self._free.append(buffer)


class SealedStream:
    """`connection` is connected, or connecting, and does not block; the stream closes it."""

    def __init__(
        self, connection: socket.socket, sealer: Sealer, opener: Opener, buffers: Buffers, first: bytes = b""
    ) -> None:
        """`first` is sent in clear, before all records."""
        self._connection, self._sealer, self._opener, self._buffers = connection, sealer, opener, buffers
        self._out: memoryview | None = None
        self.given = self.taken = 0
        """Bytes passed to the connection, and bytes read from it."""
        self._filled = self._sent = 0  # of it
        if first:
            self._place(len(first))[:] = first
        self._head, self._next_head = bytearray(HEAD_BYTES), bytearray(HEAD_BYTES)
        self._in: memoryview | None = None
        self._has_head = self._has_body = 0  # received bytes of the incoming record
        self._ahead = 0  # and of the head of the one behind it
        self.mark, self.size = b"", -1
        """Mark of the incoming record, and the bytes of its body; -1 before they have arrived."""

    def fileno(self) -> int:
        return self._connection.fileno()

    # --- sending --------------------------------------------------------------------------------------------------

    @property
    def sending(self) -> bool:
        """Whether something waits for the network, or for `flush`."""
        return self._out is not None

    def send(self, mark: bytes, body: bytes | memoryview) -> bool:
        """Seal a record, and send as much as the network accepts; a small one waits for the next, or for `flush`.

        Returns False while an earlier one waits.  Raises OSError for a broken connection, WornOutError for a worn-out
        key.
        """
        size = HEAD_BYTES + len(body) + TAG_BYTES
        if self._out is not None and self._filled + size > len(self._out) and not self.flush():
            return False
        whole = self._place(size)
        head = _HEAD.pack(mark, len(body))
        whole[:HEAD_BYTES] = head
        self._sealer.seal_into(body, head, whole[HEAD_BYTES:])
        if len(body) > SMALL_BYTES:
            self.flush()
        return True

    def _place(self, size: int) -> memoryview:
        if self._out is None:
            self._out, self._filled, self._sent = self._buffers.take(), 0, 0
        begins, self._filled = self._filled, self._filled + size
        self.given += size
        return self._out[begins : self._filled]

    def flush(self) -> bool:
        """Send waiting bytes, as far as the network accepts them; return whether none are left.  Raises OSError."""
        if self._out is None:
            return True
        try:
            while self._sent < self._filled:
                self._sent += self._connection.send(self._out[self._sent : self._filled])
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.ENOTCONN:  # some systems return it while the connection is not accepted yet
                return False
            raise
        self._buffers.give(self._out)
        self._out = None
        return True

    # --- receiving ------------------------------------------------------------------------------------------------

    def arrived(self) -> bool:
        """Read the received part of one record; return whether it is complete.

        Raises EOFError at the end, OSError for a broken connection, FrameError for an invalid length.
        """
        self._begin_if_known()  # its head may have arrived with the record before it
        try:
            while (missing := self._missing) > 0:
                if not (taken := self._take_in()):
                    raise EOFError
                if taken < missing:  # nothing is left, and the selector reports more
                    return False
        except BlockingIOError:
            return False
        return True

    @property
    def _missing(self) -> int:
        return HEAD_BYTES - self._has_head if self.size < 0 else self.size + TAG_BYTES - self._has_body

    def _take_in(self) -> int:
        """Read once; return the number of bytes read."""
        if self.size < 0:
            taken = self._connection.recv_into(memoryview(self._head)[self._has_head :])
            self._has_head += taken
            self.taken += taken
            self._begin_if_known()
            return taken
        assert self._in is not None
        missing = self.size + TAG_BYTES - self._has_body
        rest = self._in[self._has_body : self._has_body + missing]
        taken = self._connection.recvmsg_into([rest, self._next_head])[0]
        self._has_body += min(taken, missing)
        self.taken += taken
        self._ahead = max(0, taken - missing)
        return taken

    def _begin_if_known(self) -> None:
        if self.size >= 0 or self._has_head < HEAD_BYTES:
            return
        self.mark, size = _HEAD.unpack(self._head)
        if size > FRAME_BYTES_MAX:
            raise FrameError("seal", f"a sealed record of {size} bytes; the limit is {FRAME_BYTES_MAX}")
        self.size, self._in = size, self._buffers.take()

    def open(self) -> bytearray:
        """Return the body of the complete record.  Raises SealBrokenError."""
        body = bytearray(self.size)
        self.open_into(memoryview(body))
        return body

    def open_into(self, target: memoryview) -> int:
        """Open the complete record into `target`, of exactly its size, and return that.  Raises SealBrokenError.

        The previous content of `target` is lost in any case.
        """
        assert self._in is not None
        size = self.size
        self._opener.open_into(self._in[: size + TAG_BYTES], self._head, target)
        self._buffers.give(self._in)
        self._head, self._next_head = self._next_head, self._head
        self._in, self.size, self._has_head, self._has_body, self._ahead = None, -1, self._ahead, 0, 0
        return size

    def give_up(self) -> None:
        """Make the connection end at its next read: sent data do not arrive."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    @property
    def arriving(self) -> bool:
        """Whether some sent bytes have not arrived at the other end's system."""
        return unacknowledged(self.fileno()) > 0

    def close(self) -> None:
        """Close the connection; data accepted by the network are still sent."""
        self._out = self._in = None
        with contextlib.suppress(OSError):  # closed with unread bytes, it would revoke the bytes it has sent
            self._connection.shutdown(socket.SHUT_WR)
            for _ in range(LAST_READS):
                if not self._connection.recv(LAST_BYTES):
                    break
        self._connection.close()


def call(family: int, where: tuple[Any, ...]) -> socket.socket:
    """Return a connecting socket to a numeric address.  Raises OSError."""
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        prepare(connection)
        if (refused := connection.connect_ex(where)) not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            raise OSError(refused, os.strerror(refused))
    except OSError:
        connection.close()
        raise
    return connection


def prepare(connection: socket.socket) -> None:
    """Make a connection non-blocking, without delay of small data, and able to detect a silent network."""
    connection.setblocking(False)
    notice_silence(connection)


def notice_silence(connection: socket.socket) -> None:
    """Set ZeroMQ's timeouts on a TCP connection of this process, and no delay of small data, as far as the system
    supports them.

    Raises OSError for a broken connection.
    """
    options = {
        "TCP_NODELAY": 1,
        "TCP_KEEPIDLE": PROBE_SECONDS,
        "TCP_KEEPINTVL": PROBE_AGAIN_SECONDS,
        "TCP_KEEPCNT": (SILENCE_MS // 1000 - PROBE_SECONDS) // PROBE_AGAIN_SECONDS,
        "TCP_USER_TIMEOUT": SILENCE_MS,
    }
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options.items():
        if (number := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, number, value)
