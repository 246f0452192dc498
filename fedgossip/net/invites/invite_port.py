"""A port at which the clients of a leaf coordinator reach the organiser: their requests are passed on, unread.

CURVE runs from client to organiser: this end passes ciphertext on, and can refuse, delay and cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fedgossip.base.errors import NetworkError
from fedgossip.net.relays.splice import LoopThread, Rate, hang_up, spliced

CALLS_MAX = 128
"""Maximum number of calls at the same time."""
IDLE_SECONDS = 60.0
"""Time without a byte after which a call is closed; a guest asks every two seconds."""
BYTES_PER_SECOND = 8e6
"""Of all calls together: a common test set of 32 MiB takes seconds."""
ANSWER_SECONDS = 10.0
"""Maximum wait for the thread, and for the organiser to take a call."""


class InvitePort:
    """Listens at `port` until `close`; `target` returns tcp://HOST:PORT, at which the organiser is called now."""

    def __init__(self, port: int, target: Callable[[], str]) -> None:
        """Raises NetworkError where the port is taken."""
        self._target, self._rate, self._calls = target, Rate(BYTES_PER_SECOND), 0
        self._thread = LoopThread("invites passed on")
        try:
            self._server = self._thread.wait(asyncio.start_server(self._called, None, port), ANSWER_SECONDS)
        except OSError as error:
            self._thread.close()
            text = f"port {port} cannot be listened at: {error.strerror or error}"
            raise NetworkError(text, "Name a free one: --invite-port.") from None
        self.port = int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Hang up on all."""
        if not self._thread.closed:
            self._thread.loop.call_soon_threadsafe(self._server.close)
            self._thread.close()

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._calls += 1
        try:
            if self._calls <= CALLS_MAX:
                host, _, port = self._target().partition("://")[2].rpartition(":")
                there = await asyncio.wait_for(asyncio.open_connection(host.strip("[]"), int(port)), ANSWER_SECONDS)
                await spliced((reader, writer), there, IDLE_SECONDS, self._rate)
        except (OSError, ValueError, TimeoutError, asyncio.CancelledError):
            pass  # the guest calls again
        finally:
            self._calls -= 1
            hang_up(writer)
