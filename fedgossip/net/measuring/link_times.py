"""How long messages take over an encrypted link of this machine: two peers, one that sends and one that answers."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Sequence

import numpy as np

from fedgossip.base.errors import NetworkError
from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.base.vectors import frozen
from fedgossip.core.messages import ChunkTaken, Expected, Hello, ReduceChunk
from fedgossip.net.endpoints import Endpoints, signed
from fedgossip.net.identity import Identity
from fedgossip.net.links.mesh import Links
from fedgossip.net.transport import Arrived

SIZES = tuple(1 << power for power in range(10, 25, 2))
"""Bytes of the messages: from 1 KiB to 16 MiB."""

TURNS = 5
"""Number of messages of each size; the median counts."""

WAIT_SECONDS = 10.0
"""Maximum seconds until a message is answered."""

SCHEMA = "link times"


def link_times(sizes: Sequence[int] = SIZES, turns: int = TURNS) -> list[float]:
    """Return for each size the median seconds until a message with so many bytes of numbers has arrived and was
    answered.

    Raises NetworkError where none is within WAIT_SECONDS.
    """
    identities = [Identity.new(), Identity.new()]
    with contextlib.ExitStack() as stack:
        ends = [Links(node, "tcp://127.0.0.1:*", identities[node]) for node in (0, 1)]
        for end in ends:
            stack.callback(end.close)
        endpoints = {node: signed(identities[node], end.address) for node, end in enumerate(ends)}
        expected = Expected(SCHEMA, "float32", max(sizes) // 4)
        done = threading.Event()
        answering = guarded_thread(_answer, "link-times", ends[1], endpoints, expected, done)
        answering.start()
        ends[0].connect([1], endpoints, expected, Hello(SCHEMA, "", ""))
        try:
            _reach(ends[0])
            return [statistics.median(_timed(ends[0], size, turn) for turn in range(turns)) for size in sizes]
        finally:
            done.set()
            answering.join(timeout=WAIT_SECONDS)


def _answer(links: Links, endpoints: Endpoints, expected: Expected, done: threading.Event) -> None:
    links.connect([0], endpoints, expected, Hello(SCHEMA, "", ""))
    while not done.is_set():
        for event in links.poll(50):
            if isinstance(event, Arrived) and isinstance(event.message, ReduceChunk):
                links.send(0, ChunkTaken(0, event.message.round, 0, 0))


def _reach(links: Links) -> None:
    """Send small messages until one is answered: both directions are up."""
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(NetworkError):
            _timed(links, 4, 0, 0.2)
            return
    raise NetworkError("no answer over this machine's loopback", "Is it up?  ip link show lo")


def _timed(links: Links, size: int, turn: int, wait: float = WAIT_SECONDS) -> float:
    count = max(1, size // 4)
    message = ReduceChunk(0, turn, 0, 0, 0, count, 0.0, SCHEMA, (frozen(np.zeros(count, np.float32)),))
    began = time.monotonic()
    links.send(1, message)
    while (now := time.monotonic()) - began < wait:
        heard = links.poll(20)
        if any(isinstance(event, Arrived) and isinstance(event.message, ChunkTaken) for event in heard):
            return time.monotonic() - began
    raise NetworkError(f"a message of {size} bytes was not answered within {now - began:.0f} s", "Try it again.")
