"""A relay: unreachable peers keep a connection to it, and it connects callers to them.

It sees the ends, times and sizes of calls, and ciphertext.  Limits: connections, connections without a request, calls
of one key, bytes a second, and time without a byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedgossip.base.errors import ConfigError, NetworkError, PeerError
from fedgossip.net.endpoints import RELAY, is_host
from fedgossip.net.relays.roster_file import (
    ALIVE,
    CALL,
    CALLED,
    ECHO,
    ECHO_BYTES,
    LISTEN,
    NO,
    REQUEST_BYTES,
    TOKEN_BYTES,
    YES,
    Allowed,
    RelayRequest,
    greeting,
    verified_request,
)
from fedgossip.net.relays.splice import (
    PIECE_BYTES,
    LoopThread,
    Rate,
    Stream,
    StreamSink,
    close_flushed,
    hang_up,
    patient,
    settled,
    spliced,
    wait_within,
)
from fedgossip.net.relays.web_stream import TcpStream, accept_web, to_tls

REQUEST_SECONDS = 5.0
"""Seconds for a new connection to send its request."""
ANSWER_SECONDS = 10.0
"""Maximum seconds that a call waits for the called peer."""
ALIVE_SECONDS = 15.0
"""Seconds between two keep-alives to a listener, which replies to them."""
STRANGERS_MAX = 64
"""Maximum number of connections without a request; the next is not accepted."""

ECHO_SECONDS = 10.0
"""Seconds without a byte before an echo ends."""

_Entrance = Callable[[TcpStream], Awaitable[Stream]]
"""Wraps a new connection before it is greeted."""

TCP_DOOR = "tcp"

WhoMay = Callable[[], Allowed | None]
"""Returns the keys that may use the relay now; None: any."""


@dataclass(frozen=True)
class Limits:
    """`connections` at a time, `calls` of one key among them; `rate` in bytes a second of all together; `idle_seconds`
    without a byte.
    """

    connections: int = 512
    calls: int = 128
    rate: float = 50e6
    idle_seconds: float = 3600.0


@dataclass
class _Ringing:
    """A call without an answer so far."""

    caller: bytes
    callee: bytes
    answered: asyncio.Future[Stream] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(frozen=True)
class Door:
    """Address at which a relay listens: `scheme` is tcp, ws or wss."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        where = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return where if self.scheme == TCP_DOOR else f"{self.scheme}://{where}"

    @staticmethod
    def parse(text: str, where: str) -> Door:
        """Parse HOST:PORT, wss://HOST:PORT or ws://HOST:PORT; `where` names the source in errors.  Raises
        ConfigError.
        """
        found = re.fullmatch(r"(?:(wss?)://)?(\[[0-9a-fA-F:.]+\]|[\w.-]*):(\d{1,5})/?", text)
        if found is None or int(found[3]) > 65535 or not is_host(found[2]):
            advice = "Write HOST:PORT, such as 0.0.0.0:7777, or wss://0.0.0.0:443."
            raise ConfigError(f"{where} {text}: no address", advice)
        return Door(found[1] or TCP_DOOR, found[2].strip("[]"), int(found[3]))


def tls_of(schemes: Collection[str], certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS settings for callers of wss://, None without such a door.  Raises ConfigError."""
    if "wss" not in schemes:
        if certificate or key:
            text = "a certificate is for wss://, and the relay listens at no such address"
            raise ConfigError(text, "Let it listen at wss://0.0.0.0:443, or leave the certificate and its key out.")
        return None
    if certificate is None:
        advice = "Name a certificate and its key: --cert FILE --key FILE; or listen at ws:// behind nginx or Caddy."
        raise ConfigError("wss:// needs a certificate", advice)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password=str)  # a key with a password: raise, do not prompt
    except (OSError, ssl.SSLError) as error:
        reason = (error.strerror or str(error)).lower()
        text = f"the certificate {certificate}{f' with the key {key}' if key else ''} cannot be used: {reason}"
        raise ConfigError(text, "Both are in PEM: the certificate with its chain, and its own key.") from None
    return context


class Relay:
    """After `start`, its loop does all work; `counts` counts events."""

    def __init__(self, limits: Limits, allowed: WhoMay = lambda: None) -> None:
        self.limits, self.allowed = limits, allowed
        self.counts: Counter[str] = Counter()
        self._rate = Rate(limits.rate)
        self._listeners: dict[bytes, StreamSink] = {}
        self._waiting: dict[bytes, _Ringing] = {}
        self._of: Counter[bytes] = Counter()
        self._connections = self._strangers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    @property
    def listening(self) -> int:
        """Number of peers that can be called."""
        return len(self._listeners)

    async def listen(self, door: Door, tls: ssl.SSLContext | None) -> str:
        """Listen at an address; return it with its real port.  Raises NetworkError."""
        opening = self.start(door.host, door.port) if door.scheme == TCP_DOOR else self.start_web(
            door.host, door.port, tls if door.scheme == "wss" else None
        )  # fmt: skip
        try:
            return str(replace(door, port=await opening))
        except OSError as error:
            advice = "Stop the program that listens there, or choose another port."
            raise NetworkError(f"cannot listen on {door}: {(error.strerror or str(error)).lower()}", advice) from None

    async def start(self, host: str, port: int) -> int:
        """Listen for TCP connections; return the port.  Raises OSError."""
        return await self._listen_at(host, port, _as_it_is)

    async def start_web(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen for WebSockets, in TLS or, behind a server that terminates TLS, without; return the port.

        Raises OSError.
        """
        return await self._listen_at(host, port, _web(tls))

    async def _listen_at(self, host: str, port: int, entrance: _Entrance) -> int:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # TLS begins with the first byte
            task = asyncio.get_running_loop().create_task(self._connected(reader, writer, entrance))
            self._tasks.add(task)

        server = await asyncio.start_server(accept, host or None, port, limit=64 * 1024)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Close all connections."""
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await settled()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, entrance: _Entrance) -> None:
        task = asyncio.current_task()
        assert task
        self._connections += 1
        try:
            if self._connections > self.limits.connections or self._strangers >= STRANGERS_MAX:
                self.counts["full"] += 1
                return
            patient(writer)
            if found := await self._admit((reader, writer), entrance):
                try:
                    await self._serve(*found)
                    await close_flushed(found[1][1])
                finally:
                    hang_up(found[1][1])
        except (OSError, EOFError, TimeoutError, PeerError):
            self.counts["broken"] += 1
        except asyncio.CancelledError:  # the relay closes
            pass
        finally:
            self._connections -= 1
            self._tasks.discard(task)
            hang_up(writer)

    async def _admit(self, inner: TcpStream, entrance: _Entrance) -> tuple[RelayRequest, Stream] | None:
        """Return a new connection's permitted request, and its stream."""
        self._strangers += 1
        try:
            secret = X25519PrivateKey.generate()
            async with asyncio.timeout(REQUEST_SECONDS):
                reader, writer = await entrance(inner)
                try:
                    writer.write(greeting(secret))
                    request = await reader.readexactly(REQUEST_BYTES)
                except BaseException:
                    hang_up(writer)
                    raise
        finally:
            self._strangers -= 1
        wanted = verified_request(secret, request)
        allowed = self.allowed()
        if wanted is None or (allowed is not None and not _may(wanted, allowed)):
            self.counts["refused"] += 1
            writer.write(NO)
            await close_flushed(writer)
            return None
        return wanted, (reader, writer)

    async def _serve(self, wanted: RelayRequest, stream: Stream) -> None:
        if self._of[wanted.key] >= self.limits.calls:
            self.counts["full"] += 1
            stream[1].write(NO)
            return
        self._of[wanted.key] += 1
        try:
            if wanted.want == LISTEN:
                await self._listen(wanted.key, stream)
            elif wanted.want == CALL:
                await self._call(wanted, stream)
            elif wanted.want == ECHO:
                await self._echo(stream)
            else:
                await self._answer(wanted, stream)
        finally:
            self._of[wanted.key] -= 1
            if not self._of[wanted.key]:
                del self._of[wanted.key]

    async def _listen(self, key: bytes, stream: Stream) -> None:
        """Announce calls to a listener until it falls silent or is replaced."""
        reader, writer = stream
        if (before := self._listeners.pop(key, None)) is not None:
            hang_up(before)
        self._listeners[key] = writer
        self.counts["listened"] += 1
        writer.write(YES)
        try:
            while True:
                writer.write(ALIVE)
                await writer.drain()
                if not await wait_within(reader.read(1), 2 * ALIVE_SECONDS):
                    return
                with contextlib.suppress(TimeoutError):  # it has left, or sends more than requested
                    await wait_within(reader.read(1), ALIVE_SECONDS)
                    return
        finally:
            if self._listeners.get(key) is writer:
                del self._listeners[key]

    async def _call(self, wanted: RelayRequest, stream: Stream) -> None:
        callee = self._listeners.get(wanted.target)
        if callee is None:
            self.counts["nobody"] += 1
            stream[1].write(NO)
            return
        token = secrets.token_bytes(TOKEN_BYTES)
        waiting = self._waiting[token] = _Ringing(wanted.key, wanted.target)
        try:
            callee.write(CALLED + token)
            other = await wait_within(waiting.answered, ANSWER_SECONDS)
        except TimeoutError:
            stream[1].write(NO)
            await close_flushed(stream[1])
            raise
        finally:
            del self._waiting[token]
        for _, writer in (stream, other):
            writer.write(YES)
        self.counts["put through"] += 1
        await spliced(stream, other, self.limits.idle_seconds, self._rate)

    async def _echo(self, stream: Stream) -> None:
        reader, writer = stream
        writer.write(YES)
        left = ECHO_BYTES
        while left > 0 and (piece := await wait_within(reader.read(min(left, PIECE_BYTES)), ECHO_SECONDS)):
            left -= len(piece)
            await self._rate.take(len(piece))
            writer.write(piece)
            await writer.drain()

    async def _answer(self, wanted: RelayRequest, stream: Stream) -> None:
        """Connect this stream to the waiting call until its end."""
        waiting = self._waiting.get(wanted.target)
        if waiting is None or waiting.callee != wanted.key or waiting.answered.done():
            self.counts["refused"] += 1
            stream[1].write(NO)
            return
        waiting.answered.set_result(stream)
        with contextlib.suppress(OSError):
            await stream[1].wait_closed()


class RelayThread:
    """A relay in a thread of this process, until `close`; `inside`: its address on the loopback."""

    def __init__(self, allowed: WhoMay) -> None:
        self.relay = Relay(Limits(), allowed)
        self._beside = LoopThread("relay beside")
        self.inside = f"{RELAY}127.0.0.1:{self._wait(self.relay.start('127.0.0.1', 0))}"

    def listen(self, door: Door, tls: ssl.SSLContext | None) -> str:
        """Listen at an address; return it with its real port.  Raises NetworkError."""
        return str(self._wait(self.relay.listen(door, tls)))

    def close(self) -> None:
        """Close all connections."""
        if not self._beside.closed:
            self._wait(self.relay.close())
            self._beside.close()

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._beside.wait(work, ANSWER_SECONDS)


def _may(wanted: RelayRequest, allowed: Allowed) -> bool:
    """Return whether a request is permitted; an unknown key may call inviters."""
    return wanted.key in allowed.keys or (wanted.want == CALL and wanted.target in allowed.inviting)


async def _as_it_is(inner: TcpStream) -> Stream:
    inner[1].transport.resume_reading()  # type: ignore[attr-defined]
    return inner


def _web(tls: ssl.SSLContext | None) -> _Entrance:
    async def entrance(inner: TcpStream) -> Stream:
        if tls:
            inner = await to_tls(inner, tls, REQUEST_SECONDS, host=None)
        else:
            await _as_it_is(inner)
        try:
            web = await accept_web(inner)
        except BaseException:
            hang_up(inner[1])
            raise
        return web, web

    return entrance
