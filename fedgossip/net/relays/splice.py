"""Connects two streams, of TCP or WebSockets: passes the bytes of each to the other, at a bounded rate, in a thread's
event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Coroutine
from typing import Any, Protocol, TypeVar

from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.net.streams.sealed_stream import notice_silence

PIECE_BYTES = 64 * 1024
"""Maximum number of bytes held of one direction; the same number may wait in each buffer."""

FLUSH_SECONDS = 5.0
"""Seconds for an end to read what was written to it, when its connection ends."""


class StreamSource(Protocol):
    """The reading end of a splice and a relay: asyncio's of TCP, or a WebSocket's."""

    async def read(self, size: int, /) -> bytes: ...
    async def readexactly(self, size: int, /) -> bytes: ...


class StreamSink(Protocol):
    """The writing end."""

    @property
    def transport(self) -> asyncio.WriteTransport: ...
    def get_extra_info(self, name: str, /) -> Any: ...
    def write(self, data: bytes, /) -> None: ...
    async def drain(self) -> None: ...
    async def wait_closed(self) -> None: ...


Stream = tuple[StreamSource, StreamSink]

_Result = TypeVar("_Result")


async def wait_within(work: Awaitable[_Result], seconds: float) -> _Result:
    """Return the result of `work`.  Raises TimeoutError after `seconds`, and what `work` raises.

    In place of asyncio's wait_for: before Python 3.12 it drops a cancellation that arrives with the result.
    """
    async with asyncio.timeout(seconds):
        return await work


class Rate:
    """A number of bytes a second, shared by all users; a second's worth may be sent at once."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate, self._left, self._at = bytes_per_second, bytes_per_second, time.monotonic()

    async def take(self, size: int) -> None:
        """Wait until `size` bytes may pass."""
        now = time.monotonic()
        self._left = min(self._rate, self._left + (now - self._at) * self._rate) - size
        self._at = now
        if self._left < 0:
            await asyncio.sleep(-self._left / self._rate)


async def spliced(one: Stream, other: Stream, idle_seconds: float, rate: Rate | None = None) -> None:
    """Pass bytes in both directions until either ends or nothing arrives for `idle_seconds`; then close both.

    What an end sent before it ended is passed on.
    """
    last = [time.monotonic()]
    ways = [asyncio.create_task(_pump(a[0], b[1], last, rate)) for a, b in ((one, other), (other, one))]
    try:
        while not any(way.done() for way in ways):
            left = last[0] + idle_seconds - time.monotonic()
            if left <= 0:
                break
            await asyncio.wait(ways, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if ways[0].done():
            await close_flushed(other[1])
        if ways[1].done():
            await close_flushed(one[1])
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for _, writer in (one, other):
            hang_up(writer)


async def _pump(reader: StreamSource, writer: StreamSink, last: list[float], rate: Rate | None) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            last[0] = time.monotonic()
            if rate:
                await rate.take(len(piece))
            writer.write(piece)
            await writer.drain()


async def close_flushed(writer: StreamSink) -> None:
    """Close the connection when the written bytes are sent, or after FLUSH_SECONDS."""
    writer.transport.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(FLUSH_SECONDS):
            await asyncio.shield(writer.wait_closed())  # its future is shared: to cancel it would end other waits


def hang_up(writer: StreamSink) -> None:
    """Close the connection at once; written bytes that wait in this process are lost."""
    # AttributeError: asyncio's abort, after a close that had bytes to send (a fault of CPython 3.11 to 3.13).
    with contextlib.suppress(OSError, RuntimeError, AttributeError):
        writer.transport.abort()


async def settled() -> None:
    """Let closing connections end before the loop does."""
    for _ in range(3):
        await asyncio.sleep(0)


def patient(writer: StreamSink) -> None:
    """Set the stream to detect a silent network like the links, and to send small data without delay."""
    held: socket.socket | None = writer.get_extra_info("socket")
    if held is None:
        return
    with contextlib.suppress(OSError):
        notice_silence(held)


class LoopThread:
    """Runs until `close`; all methods may be called from any other thread."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = guarded_thread(self._run, name)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self.loop.is_closed()

    def wait(self, work: Coroutine[Any, Any, Any], seconds: float) -> Any:
        """Run `work` in the loop and return its result.  Raises its error, and TimeoutError."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)

    def close(self) -> None:
        """Cancel all work in the loop, and end the thread; a second call has no effect."""
        if self.closed:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(settled())
