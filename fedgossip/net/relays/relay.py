"""A relay: unreachable peers keep a connection to it, and it connects callers to them.

It sees the ends, times and sizes of calls, and ciphertext; it holds no key of theirs.  It is limited: in connections,
in those without a request yet, in calls of one key, in bytes a second, and in time without a byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedgossip.net.relays.relay_protocol import (
    ALIVE,
    CALL,
    CALLED,
    LISTEN,
    NO,
    REQUEST_BYTES,
    TOKEN_BYTES,
    YES,
    RelayRequest,
    greeting,
    verified_request,
)
from fedgossip.net.relays.roster_file import Allowed
from fedgossip.net.relays.splice import Rate, Stream, hang_up, patient, settled, spliced

REQUEST_SECONDS = 5.0
"""Seconds for a new connection to send its request."""
ANSWER_SECONDS = 10.0
"""Time that a call may wait for the one that is called."""
ALIVE_SECONDS = 15.0
"""Seconds between two keep-alives to a listener, which replies to them."""
STRANGERS_MAX = 64
"""Maximum number of connections without a request; the next is not accepted."""

WhoMay = Callable[[], Allowed | None]
"""The keys that may use the relay now; None: any."""


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
    """A call that has not been answered."""

    caller: bytes
    callee: bytes
    answered: asyncio.Future[Stream] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Relay:
    """`start`, then its loop does all; `counts` counts events."""

    def __init__(self, limits: Limits, allowed: WhoMay = lambda: None) -> None:
        self.limits, self.allowed = limits, allowed
        self.counts: Counter[str] = Counter()
        self._rate = Rate(limits.rate)
        self._listeners: dict[bytes, asyncio.StreamWriter] = {}
        self._waiting: dict[bytes, _Ringing] = {}
        self._of: Counter[bytes] = Counter()
        self._connections = self._strangers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def listening(self) -> int:
        """How many peers can be called."""
        return len(self._listeners)

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port.  Raises OSError."""
        self._server = await asyncio.start_server(self._connected, host or None, port, limit=64 * 1024)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Hang up on all."""
        if self._server:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await settled()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        self._connections += 1
        try:
            if self._connections > self.limits.connections or self._strangers >= STRANGERS_MAX:
                self.counts["full"] += 1
                return
            patient(writer)
            if wanted := await self._asked(reader, writer):
                await self._serve(wanted, (reader, writer))
        except (OSError, EOFError, TimeoutError):
            self.counts["broken"] += 1
        except asyncio.CancelledError:  # we close
            pass
        finally:
            self._connections -= 1
            self._tasks.discard(task)
            hang_up(writer)

    async def _asked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> RelayRequest | None:
        """Return the request of a new connection, if permitted."""
        self._strangers += 1
        try:
            secret = X25519PrivateKey.generate()
            writer.write(greeting(secret))
            said = await asyncio.wait_for(reader.readexactly(REQUEST_BYTES), REQUEST_SECONDS)
        finally:
            self._strangers -= 1
        wanted = verified_request(secret, said)
        allowed = self.allowed()
        if wanted is None or (allowed is not None and not _may(wanted, allowed)):
            self.counts["refused"] += 1
            writer.write(NO)
            await writer.drain()
            return None
        return wanted

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
            else:
                await self._answer(wanted, stream)
        finally:
            self._of[wanted.key] -= 1
            if not self._of[wanted.key]:
                del self._of[wanted.key]

    async def _listen(self, key: bytes, stream: Stream) -> None:
        """Announce calls to a listener until it falls silent; a later connection with the key replaces it."""
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
                if not await asyncio.wait_for(reader.read(1), 2 * ALIVE_SECONDS):
                    return
                with contextlib.suppress(TimeoutError):  # it has gone, or sends more than requested
                    await asyncio.wait_for(reader.read(1), ALIVE_SECONDS)
                    return
        finally:
            if self._listeners.get(key) is writer:
                del self._listeners[key]

    async def _call(self, wanted: RelayRequest, stream: Stream) -> None:
        callee = self._listeners.get(wanted.target)
        if callee is None:
            self.counts["nobody"] += 1
            stream[1].write(NO)
            await stream[1].drain()
            return
        token = secrets.token_bytes(TOKEN_BYTES)
        waiting = self._waiting[token] = _Ringing(wanted.key, wanted.target)
        try:
            callee.write(CALLED + token)
            other = await asyncio.wait_for(waiting.answered, ANSWER_SECONDS)
        except TimeoutError:
            stream[1].write(NO)
            await stream[1].drain()
            raise
        finally:
            del self._waiting[token]
        for _, writer in (stream, other):
            writer.write(YES)
        self.counts["put through"] += 1
        await spliced(stream, other, self.limits.idle_seconds, self._rate)

    async def _answer(self, wanted: RelayRequest, stream: Stream) -> None:
        """Give this stream to the call that waits for it, and keep it open until that is over."""
        waiting = self._waiting.get(wanted.target)
        if waiting is None or waiting.callee != wanted.key or waiting.answered.done():
            self.counts["refused"] += 1
            stream[1].write(NO)
            await stream[1].drain()
            return
        waiting.answered.set_result(stream)
        with contextlib.suppress(OSError):
            await stream[1].wait_closed()


def _may(wanted: RelayRequest, allowed: Allowed) -> bool:
    """Whether a request is permitted; an unknown key may call those that invite."""
    return wanted.key in allowed.keys or (wanted.want == CALL and wanted.target in allowed.inviting)
