"""A WebSocket as a stream of bytes: a relay and its users read and write on it as on TCP.

Binary messages of at most MESSAGE_BYTES, uncompressed; their boundaries have no meaning.  Nothing is read ahead, and
`drain` waits for the network: a slow reader slows its sender.  Pings keep proxies from closing a silent connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Sequence

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import Event, State
from websockets.server import ServerProtocol

from fedgossip.base.errors import PeerError
from fedgossip.net.relays.splice import PIECE_BYTES

MESSAGE_BYTES = 1 << 18
"""Maximum size of a sent message."""
MESSAGE_BYTES_MAX = 1 << 20
"""Maximum size of a received message; a larger one ends the connection."""
UNREAD_BYTES_MAX = 1 << 20
"""Maximum number of bytes of pongs that wait to be read; more end the connection."""
PING_SECONDS = 25.0
"""Seconds between two pings: proxies close connections that are silent for 30 to 60 seconds."""

TcpStream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class WebStream:
    """Both halves of a Stream over a connection with a completed upgrade.  Its loop's thread makes all calls."""

    def __init__(
        self,
        inner: TcpStream,
        protocol: ClientProtocol | ServerProtocol,
        received: Sequence[Event] = (),
    ) -> None:
        """`received`: events that arrived with the upgrade."""
        self._reader, self._writer = inner
        self._protocol = protocol
        self._received: deque[bytes] = deque()
        self._ended = False
        self.pongs = 0
        """Answered pings."""
        self._unread = 0  # bytes of pongs that were sent since the write buffer was last empty
        self._take(received)
        asyncio.get_running_loop().call_later(PING_SECONDS, self._keep)

    @property
    def transport(self) -> asyncio.WriteTransport:
        """The transport below; aborting it ends everything."""
        return self._writer.transport

    def get_extra_info(self, name: str) -> object:
        """Return a fact about the transport below."""
        return self._writer.get_extra_info(name)

    async def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end of the stream.  Raises OSError."""
        while not self._received:
            if self._ended:
                return b""
            await self.receive()
        first = self._received.popleft()
        if len(first) > size:
            self._received.appendleft(first[size:])
            return first[:size]
        return first

    async def readexactly(self, size: int) -> bytes:
        """Return `size` bytes.  Raises IncompleteReadError at the end of the stream, OSError."""
        found = b""
        while len(found) < size:
            if not (more := await self.read(size - len(found))):
                raise asyncio.IncompleteReadError(found, size)
            found += more
        return found

    def write(self, data: bytes) -> None:
        """Send `data`, or nothing if the stream has ended; `drain` reports that."""
        if self._protocol.state is not State.OPEN:
            return
        for begin in range(0, len(data), MESSAGE_BYTES):
            self._protocol.send_binary(data[begin : begin + MESSAGE_BYTES])
        send_waiting(self._protocol, self._writer)

    async def drain(self) -> None:
        """Wait until the network accepts more.  Raises OSError if the stream has ended."""
        if self._protocol.state is not State.OPEN:
            raise ConnectionResetError("the WebSocket is closed")
        await self._writer.drain()

    async def wait_closed(self) -> None:
        """Wait for the end of the transport below."""
        await self._writer.wait_closed()

    def ping(self) -> None:
        """Send a ping."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_ping(b"")
            send_waiting(self._protocol, self._writer)

    async def receive(self) -> None:
        """Wait for more bytes, and store them.  Raises OSError."""
        data = await self._reader.read(PIECE_BYTES)
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        self._take(self._protocol.events_received())
        self._ended |= not data or self._protocol.state is not State.OPEN
        if not self.transport.get_write_buffer_size():
            self._unread = 0
        # Pongs, or the reason for the end.  Only they count: what a caller writes is limited by its own `drain`, and to
        # drain here would let both ends wait for each other.
        self._unread += send_waiting(self._protocol, self._writer)
        if self._unread > UNREAD_BYTES_MAX:
            raise ConnectionResetError("the other end of the WebSocket sends, and does not read")

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            if not isinstance(event, Frame):
                continue
            if event.opcode in (Opcode.BINARY, Opcode.CONT) and event.data:
                self._received.append(bytes(event.data))
            self.pongs += event.opcode is Opcode.PONG
            self._ended |= event.opcode in (Opcode.CLOSE, Opcode.TEXT)  # the protocol uses no text messages

    def _keep(self) -> None:
        if not self.transport.is_closing():
            self.ping()
            asyncio.get_running_loop().call_later(PING_SECONDS, self._keep)


def send_waiting(protocol: ClientProtocol | ServerProtocol, writer: asyncio.StreamWriter) -> int:
    """Pass the protocol's outgoing bytes to the connection; return their number."""
    if data := b"".join(protocol.data_to_send()):
        writer.write(data)
    return len(data)


async def accept_web(inner: TcpStream) -> WebStream:
    """Return the stream of a caller that requests a WebSocket, at any path.

    Raises PeerError for any other request, after an answer; OSError, EOFError.
    """
    reader, writer = inner
    protocol = ServerProtocol(max_size=MESSAGE_BYTES_MAX)
    while not (asked := protocol.events_received()):
        if not (data := await reader.read(PIECE_BYTES)) or protocol.handshake_exc is not None:
            raise EOFError
        protocol.receive_data(data)
    assert isinstance(asked[0], Request)
    response = protocol.accept(asked[0])
    protocol.send_response(response)
    send_waiting(protocol, writer)
    await writer.drain()
    if response.status_code != 101:
        raise PeerError("a caller of the relay's web address does not request a WebSocket")
    return WebStream(inner, protocol, asked[1:])


class _InTls(asyncio.StreamReaderProtocol):
    """Keeps a reference to the writer below: without one asyncio closes its connection."""

    def __init__(self, reader: asyncio.StreamReader, below: TcpStream, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(reader, loop=loop)
        self.below = below


async def to_tls(
    inner: TcpStream,
    context: ssl.SSLContext,
    seconds: float,
    *,
    host: str | None,
) -> TcpStream:
    """Return the same connection in TLS; `host` is the name in the server's certificate, None at the server.

    Raises OSError, including ssl's errors.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(PIECE_BYTES, loop)
    protocol = _InTls(reader, inner, loop)
    transport = await loop.start_tls(
        inner[1].transport, protocol, context, server_side=host is None, server_hostname=host,
        ssl_handshake_timeout=seconds,
    )  # fmt: skip
    if transport is None:
        raise ConnectionResetError("the connection ended in the handshake of TLS")
    protocol.connection_made(transport)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
