"""A relay in a thread of this process, for tests; and a tap that keeps every byte between two ends."""

from __future__ import annotations

import asyncio
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

    @property
    def address(self) -> str:
        return f"relay://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Vanish: every connection breaks."""
        if not self.stopped:
            self.stopped = True
            asyncio.run_coroutine_threadsafe(self.relay.close(), self.loop).result(10)
            self.loop.call_soon_threadsafe(self.loop.stop)
            assert self.thread
            self.thread.join()
            self.loop.close()


def run_relay(limits: Limits | None = None, allowed: WhoMay = lambda: None, port: int = 0) -> Running:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    made = Relay(limits or Limits(), allowed)
    number = asyncio.run_coroutine_threadsafe(made.start("127.0.0.1", port), loop).result(10)
    return Running(made, number, loop, thread=thread)


@contextmanager
def relay_running(limits: Limits | None = None, allowed: WhoMay = lambda: None) -> Iterator[Running]:
    running = run_relay(limits, allowed)
    try:
        yield running
    finally:
        running.stop()
