"""A hub and its spokes in one process, all polled by one thread until something is so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from fedgossip.base.vectors import frozen
from fedgossip.core.messages import AnyMessage, Contribution, Expected, Hello, Invite
from fedgossip.core.wire import CHUNK_BYTES
from fedgossip.net.endpoints import Endpoint
from fedgossip.net.hub.client import ClientLinks
from fedgossip.net.hub.server import CoordinatorLinks
from fedgossip.net.identity import Identity
from fedgossip.net.transport import Arrived, LinkDown, LinkEvent, LinkUp, Rejected, Transport

SECONDS = 30.0
CHUNKS = 8
DIM = CHUNKS * CHUNK_BYTES // 4
HELLO = Hello("layout", "experiment", "1")


@dataclass
class Wheel:
    """Node n is the hub of spokes 0 to n - 1; `heard` are the events of each node, in their order."""

    hub: CoordinatorLinks
    keys: list[Identity]
    expected: Expected
    spokes: dict[int, ClientLinks] = field(default_factory=dict)
    heard: dict[int, list[LinkEvent]] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return len(self.keys) - 1

    def spoke(self, node: int, hello: Hello = HELLO) -> ClientLinks:
        """Start a client; one that was there before is no longer polled, nor closed."""
        spoke = self.spokes[node] = ClientLinks(node, self.keys[node])
        self.heard[node] = []
        spoke.connect((self.n,), {self.n: Endpoint(self.hub.address, self.keys[self.n].public)}, self.expected, hello)
        return spoke

    def until(self, enough: Callable[[], object], what: str = "what was awaited", seconds: float = SECONDS) -> None:
        """Poll all of them until it is so; fails after so many seconds."""
        end = time.monotonic() + seconds
        while not enough():
            assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
            self.heard[self.n] += self.hub.poll(1)
            for node, spoke in self.spokes.items():
                self.heard[node] += spoke.poll(0)

    def start(self, *nodes: int) -> None:
        """Start clients (all, if none is named), and wait until their links are up at both ends."""
        started = nodes or tuple(range(self.n))
        for number, node in enumerate(started):
            self.spoke(node, replace(HELLO, process=number + 1))
        self.until(lambda: set(started) <= self.up(self.n) and all(self.up(node) for node in started), "links up")

    def up(self, node: int) -> set[int]:
        """The links that are up at a node."""
        found: set[int] = set()
        for event in self.heard[node]:
            if isinstance(event, LinkUp):
                found.add(event.node)
            elif isinstance(event, LinkDown):
                found.discard(event.node)
        return found

    def arrived(self, node: int, kind: type[AnyMessage]) -> list[Arrived]:
        return [e for e in self.heard[node] if isinstance(e, Arrived) and isinstance(e.message, kind)]

    def reasons(self, node: int) -> list[str]:
        return [event.reason for event in self.heard[node] if isinstance(event, Rejected)]

    def kinds(self, node: int) -> list[str]:
        """What happened to the links of a node."""
        return [type(event).__name__ for event in self.heard[node] if isinstance(event, LinkUp | LinkDown)]

    def forget(self) -> None:
        for events in self.heard.values():
            events.clear()


@contextmanager
def wheel(n: int, address: str = "tcp://127.0.0.1:*", dim: int = DIM, turns_at_once: int = 4) -> Iterator[Wheel]:
    """A hub that lets n clients call, none of which does yet."""
    keys = [Identity.new() for _ in range(n + 1)]
    made = Wheel(
        CoordinatorLinks(n, address, keys[n], turns_at_once), keys, Expected("layout", "float32", dim), heard={n: []}
    )
    clients = {node: Endpoint("", keys[node].public) for node in range(n)}
    made.hub.connect(tuple(clients), clients, made.expected, replace(HELLO, process=99))
    try:
        yield made
    finally:
        for spoke in made.spokes.values():
            spoke.close()
        made.hub.close()


def invite(round: int, dim: int = DIM) -> Invite:
    return Invite(round, "layout", (frozen(np.full(dim, round, np.float32)),))


def contribution(value: int, dim: int = DIM) -> Contribution:
    return Contribution(0, "layout", (frozen(np.full(dim, value, np.float32)),), 1, 1, 0.0)


def values(events: Sequence[Arrived]) -> list[tuple[int, float]]:
    """(sender, the value of all elements) of messages with a vector, by sender."""
    found = []
    for event in events:
        assert isinstance(event.message, Invite | Contribution)
        (value,) = set(event.message.vectors[0].tolist())
        found.append((event.sender, value))
    return sorted(found)


def heard_until(links: Transport, enough: Callable[[list[LinkEvent]], object]) -> list[LinkEvent]:
    """Poll until the events are enough; fails after SECONDS."""
    events: list[LinkEvent] = []
    end = time.monotonic() + SECONDS
    while not enough(events):
        assert time.monotonic() < end, f"not within {SECONDS:g} s; heard {events[-5:]}"
        events += links.poll(10)
    return events
