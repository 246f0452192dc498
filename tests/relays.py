"""A relay in a thread of this process, for tests; and a tap that keeps every byte between two ends."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fedgossip.net.relays.relay import Limits, Relay, WhoMay


@dataclass
class Running:
    relay: Relay
    port: int
    loop: asyncio.AbstractEventLoop
    stopped: bool = False
    thread: threading.Thread | None = None
    taken: bytearray = field(default_factory=bytearray)
    scheme: str = "relay"

    @property
    def address(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Vanish: every connection breaks."""
        if not self.stopped:
            self.stopped = True
            asyncio.run_coroutine_threadsafe(self.relay.close(), self.loop).result(10)
            self.loop.call_soon_threadsafe(self.loop.stop)
            assert self.thread
            self.thread.join()
            self.loop.close()


def run_relay(
    limits: Limits | None = None, allowed: WhoMay = lambda: None, port: int = 0, scheme: str = "relay",
    tls: ssl.SSLContext | None = None,
) -> Running:  # fmt: skip
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    made = Relay(limits or Limits(), allowed)
    opening = made.start("127.0.0.1", port) if scheme == "relay" else made.start_web("127.0.0.1", port, tls)
    number = asyncio.run_coroutine_threadsafe(opening, loop).result(10)
    return Running(made, number, loop, thread=thread, scheme=scheme)


@contextmanager
def relay_running(
    limits: Limits | None = None,
    allowed: WhoMay = lambda: None,
    scheme: str = "relay",
    tls: ssl.SSLContext | None = None,
) -> Iterator[Running]:
    running = run_relay(limits, allowed, scheme=scheme, tls=tls)
    try:
        yield running
    finally:
        running.stop()
