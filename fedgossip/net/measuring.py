"""Measured times of links between machines, and of the path to a relay.

The links: one machine after the other measures its links to all others, which reply.

    every machine   connects to all others, and replies to each message
    the lowest      sends messages of growing size to each other one, and passes the turn to the next that it reaches
    the last        sends the end

On one machine it measures an encrypted link between two peers.

The relay: step by step, with a round trip and megabytes a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedgossip.base.errors import FedgossipError, NetworkError, PeerError
from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.base.vectors import frozen
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import ChunkTaken, Expected, Hello, ReduceChunk
from fedgossip.net.endpoints import Endpoints, signed
from fedgossip.net.identity import Identity
from fedgossip.net.links.mesh import Links
from fedgossip.net.relays.relay_client import CONNECT_SECONDS, ask_relay, open_relay
from fedgossip.net.relays.roster_file import ECHO, NO_TARGET
from fedgossip.net.relays.splice import Stream, hang_up, settled, wait_within
from fedgossip.net.relays.web_stream import WebStream
from fedgossip.net.relays.web_way import ReportStep
from fedgossip.net.transport import Arrived, LinkDown, LinkUp

ANSWER, TURN, OVER = 0, 1, 2
"""Values in place of a bucket: a message has arrived; the turn passes to the receiver; all have had their turn."""

LONG_SECONDS = 1.0
"""Time of a message in seconds beyond which larger ones are not sent: two sizes, and so a line, are measured long
before.
"""

SILENCE_SECONDS = 300.0
"""Maximum seconds without any message: longer than two machines take to measure their link."""


@dataclass(frozen=True)
class LinkTimes:
    """Times to `node`: bytes of the messages, and the median seconds until each arrived and was answered; none: no
    answer.
    """

    node: NodeId
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]


class LinkSurvey:
    """One machine's part.  `links` are bound; `reach_seconds`: maximum time until all others are present."""

    def __init__(self, node: NodeId, links: Links, endpoints: Endpoints, reach_seconds: float) -> None:
        self.node, self.links, self.reach_seconds = node, links, reach_seconds
        self.others = sorted(other for other in endpoints if other != node)
        self.up: set[NodeId] = set()
        self._finished: set[int] = set()
        self._owed: dict[NodeId, deque[ChunkTaken]] = {}
        self._answered = -1
        self._turn = 0
        self._last_message = time.monotonic()
        links.connect(self.others, endpoints, Expected(SCHEMA, "float32", max(SIZES) // 4), Hello(SCHEMA, "", ""))

    def measured(self) -> Iterator[LinkTimes]:
        """Yield the times of this machine's links, at its turn; return when all have had theirs.

        Raises NetworkError if no machine is reached, or all fall silent.
        """
        until = time.monotonic() + self.reach_seconds
        while len(self.up) < len(self.others) and time.monotonic() < until and not self._finished:
            self._receive()
        if not self.up:
            raise NetworkError(f"none of {self.others} is there", "Start the same command on each of them.")
        if self.node > min(self.up):
            self._wait_for({TURN, OVER})
        for other in self.others:
            yield self._measure(other)
        later = [other for other in sorted(self.up) if other > self.node]
        if later:
            self._send_word(later[0], TURN)
            self._wait_for({OVER})
        else:
            for other in self.up:
                self._send_word(other, OVER)

    def _measure(self, to: NodeId) -> LinkTimes:
        sizes: list[int] = []
        seconds: list[float] = []
        for size in SIZES if to in self.up else ():
            try:
                seconds.append(statistics.median(self._timed(to, size) for _ in range(TURNS)))
            except NetworkError:
                break
            sizes.append(size)
            if seconds[-1] > LONG_SECONDS:
                break
        return LinkTimes(to, tuple(sizes), tuple(seconds))

    def _timed(self, to: NodeId, size: int) -> float:
        self._turn += 1
        vector = frozen(np.zeros(size // 4, np.float32))
        began = time.monotonic()
        self.links.send(to, ReduceChunk(0, self._turn, 0, 0, 0, vector.size, 0.0, SCHEMA, (vector,)))
        while time.monotonic() - began < WAIT_SECONDS:
            self._receive()
            if self._answered == self._turn:
                return time.monotonic() - began
        raise NetworkError(f"{to} did not answer {size} bytes within {WAIT_SECONDS:g} s")

    def _wait_for(self, words: set[int]) -> None:
        while not words & self._finished:
            self._receive()
            if time.monotonic() - self._last_message > SILENCE_SECONDS or not self.up:
                raise NetworkError("the others left before all links were measured", "Start all of them again.")

    def _receive(self) -> None:
        for event in self.links.poll(20):
            match event:
                case LinkUp(node):
                    self.up.add(node)
                    for word in self._owed.pop(node, ()):
                        self.links.send(node, word)
                case LinkDown(node):
                    self.up.discard(node)
                case Arrived(sender, ReduceChunk(round=number)):
                    self._last_message = time.monotonic()
                    self._send(sender, ChunkTaken(0, number, ANSWER, 0))
                case Arrived(_, ChunkTaken(round=number, bucket=bucket)):
                    self._last_message = time.monotonic()
                    if bucket == ANSWER:
                        self._answered = number
                    else:
                        self._finished.add(bucket)

    def _send_word(self, to: NodeId, word: int) -> None:
        self._send(to, ChunkTaken(0, 0, word, 0))

    def _send(self, to: NodeId, word: ChunkTaken) -> None:
        """Send a control message, once the link is up."""
        if to in self.up:
            self.links.send(to, word)
        else:
            self._owed.setdefault(to, deque(maxlen=TURNS)).append(word)


SIZES = tuple(1 << power for power in range(10, 25, 2))
"""Bytes of the messages: from 1 KiB to 16 MiB."""

TURNS = 5
"""Number of messages of each size; the median counts."""

WAIT_SECONDS = 10.0
"""Maximum seconds until a message is answered."""

SCHEMA = "link times"


def link_times(sizes: Sequence[int] = SIZES, turns: int = TURNS) -> list[float]:
    """Return for each size the median seconds until a message of that many bytes was answered.

    Raises NetworkError if none is answered within WAIT_SECONDS.
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
    """Send small messages until one is answered."""
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
        events = links.poll(20)
        if any(isinstance(event, Arrived) and isinstance(event.message, ChunkTaken) for event in events):
            return time.monotonic() - began
    raise NetworkError(f"a message of {size} bytes was not answered within {now - began:.0f} s", "Try it again.")


TRIPS, TRIP_SECONDS = 9, 10.0
RATE_BYTES, RATE_SECONDS = 4 << 20, 20.0
"""Bytes to be echoed, and the maximum seconds for them; a slower path is measured by the bytes returned."""
PIECE_BYTES = 1 << 16


async def reach(relay: str, identity: Identity, report: ReportStep) -> None:
    """Reach a relay, by TCP or the web, and measure; `report` receives each step that succeeded.

    Raises FedgossipError, naming the failed step.
    """
    try:
        try:
            stream = await ask_relay(relay, identity, ECHO, NO_TARGET, CONNECT_SECONDS, report)
        except PeerError:
            await _measure_stranger(relay, report)
            return
        try:
            await _measured(stream, report)
        finally:
            hang_up(stream[1])
    except FedgossipError:
        raise
    except (OSError, EOFError, TimeoutError) as error:
        reason = "no answer in time" if isinstance(error, TimeoutError) else "the connection broke"
        raise NetworkError(f"{relay}: {reason}", "Is `fedgossip relay` running there?") from None
    finally:
        await settled()


async def _measured(stream: Stream, report: ReportStep) -> None:
    reader, writer = stream
    trips = []
    for _ in range(TRIPS):
        began = time.perf_counter()
        writer.write(b".")
        await wait_within(reader.readexactly(1), TRIP_SECONDS)
        trips.append(time.perf_counter() - began)
    report("round trip", f"{statistics.median(trips) * 1e3:.1f} ms")
    began, back = time.perf_counter(), 0
    sending = asyncio.create_task(_send(stream))
    try:
        async with asyncio.timeout(RATE_SECONDS):
            while back < RATE_BYTES and (piece := await reader.read(PIECE_BYTES)):
                back += len(piece)
    except TimeoutError:
        pass
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    rate = back / (time.perf_counter() - began) / 1e6
    report("rate", f"{rate:.1f} MB/s there and back at once, of {back / 1e6:.1f} MB")


async def _send(stream: Stream) -> None:
    for _ in range(RATE_BYTES // PIECE_BYTES):
        stream[1].write(bytes(PIECE_BYTES))
        await stream[1].drain()


async def _measure_stranger(relay: str, report: ReportStep) -> None:
    report("roster", "it serves known keys alone, and not this one (--key FILE): no rate")
    web, writer = await open_relay(relay)
    try:
        if isinstance(web, WebStream):
            began = time.perf_counter()
            web.ping()
            while not web.pongs:
                await wait_within(web.receive(), TRIP_SECONDS)
            report("round trip", f"{(time.perf_counter() - began) * 1e3:.1f} ms, by a ping")
    finally:
        hang_up(writer)
