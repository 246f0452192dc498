"""A seeded network of virtual links and devices, which determine the time of a message and of a round of training.

A message of s bytes from i to j leaves through the uplink of i and arrives through the downlink of j.  Each of both
carries one message at a time, and a node's two links work at once (full duplex):

    start = the first time from now on at which the uplink of i has sent all earlier messages
    head  = the first time from start + latency on at which the downlink of j is free for s / down[j]
    arrival = max(start + s / up[i] + latency, head + s / down[j])

So the messages of m workers that send to one server at once arrive after latency + m s / down, as every textbook on
collective communication counts; without a downlink a server receives any number of them at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedgossip.base import seeds
from fedgossip.core.machine import NodeId

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """The links and devices of some nodes where they differ from the rest; None: as the rest."""

    nodes: frozenset[NodeId]
    bandwidth: float | None = None
    downlink: float | None = None
    latency: float | None = None
    slower: float = 1.0
    """Factor on the time of a round of training."""


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """The network and its devices: times in seconds, rates in bytes per second."""

    latency: float = 0.005
    """Seconds one way, on every link; between nodes of two classes the longer of theirs."""
    jitter: float = 0.0
    """Maximum additional seconds of a message, uniform; messages of one link never overtake each other."""
    bandwidth: float | None = None
    """Bytes per second that a peer can send, over all its links; None: no limit."""
    downlink: float | None = None
    """Bytes per second that a peer can receive, over all its links; None: no limit."""
    detection: float = 1.0
    """Seconds of silence after which a link is given up; messages held up by a shorter cut arrive late."""
    training: float = 0.05
    """Seconds of one round of training on a peer of speed 1."""
    per_example: float | None = None
    """Seconds per example there, in place of `training`."""
    summing: float = 0.0
    """Seconds in which a peer adds an element of a vector to another."""
    speed_spread: float = 0.0
    """Peers' speeds are exp(N(0, spread^2)), drawn once; 0: all equal."""
    training_jitter: float = 0.0
    """Each training takes a factor in [1, 1 + this] longer, uniformly."""
    classes: Sequence[DeviceClass] = ()
    """Classes of nodes; the first that names a node counts."""


class Passage(NamedTuple):
    """The way of one message."""

    begins_ns: int
    """Start of sending: all earlier messages of the sender are out."""
    sent_ns: int
    """Its last byte has left."""
    arrival_ns: int


@dataclass(frozen=True, slots=True)
class _Device:
    bandwidth: float | None
    downlink: float | None
    latency: float
    slower: float


class SimulatedNetwork:
    """Draws from one stream per peer and purpose, in the order of that peer's own actions."""

    def __init__(self, settings: NetworkSettings, n: int, seed: int) -> None:
        self.settings = settings
        spread = settings.speed_spread
        drawn = bool(spread or settings.training_jitter)
        self._links = [seeds.stream(seed, "network", node) for node in range(n)] if settings.jitter else []
        self._draws = [seeds.stream(seed, "device", node) for node in range(n)] if drawn else []
        self._speed = [float(rng.lognormal(0.0, spread)) for rng in self._draws] if spread else [1.0] * n
        usual = _device(settings, -1)
        named = frozenset[NodeId]().union(*(one.nodes for one in settings.classes))
        self._devices = [_device(settings, node) if node in named else usual for node in range(n)]
        self._up = [device.bandwidth for device in self._devices]
        self._down = [device.downlink for device in self._devices]
        self._latency_ns = [int(device.latency * NS) for device in self._devices]
        self._uplink_free = [0] * n
        self._receiving: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        """The times (from, until) at which each downlink is busy, ascending, without past ones."""
        self._last_arrival: dict[tuple[NodeId, NodeId], int] = {}

    def latency_ns(self, sender: NodeId, to: NodeId) -> int:
        """Return the minimum time from one node to the other."""
        return max(self._latency_ns[sender], self._latency_ns[to])

    def passage(self, sender: NodeId, to: NodeId, size: int, now_ns: int, delay_ns: int = 0) -> Passage:
        """Return when `size` bytes sent now pass, with `delay_ns` beyond the time of the link."""
        return Passage(*self.times(sender, to, size, now_ns, delay_ns))

    def times(self, sender: NodeId, to: NodeId, size: int, now_ns: int, delay_ns: int) -> tuple[int, int, int]:
        """As `passage`, its times alone."""
        up, down = self._up[sender], self._down[to]
        if jitter := self.settings.jitter:
            latency = max(self._devices[sender].latency, self._devices[to].latency)
            delay = int((latency + jitter * self._links[sender].random()) * NS) + delay_ns
        else:
            latency_ns, other_ns = self._latency_ns[sender], self._latency_ns[to]
            delay = (latency_ns if latency_ns > other_ns else other_ns) + delay_ns
        start = end = now_ns
        if up:
            start = max(now_ns, self._uplink_free[sender])
            self._uplink_free[sender] = end = start + int(size / up * NS)
        arrival = end + delay
        if down:
            arrival = max(arrival, self._received_ns(to, start + delay, int(size / down * NS), now_ns))
        link = sender, to
        last = self._last_arrival.get(link, -1)
        if arrival <= last:
            arrival = last + 1
        self._last_arrival[link] = arrival
        return start, end, arrival

    def _received_ns(self, to: NodeId, head_ns: int, takes_ns: int, now_ns: int) -> int:
        """Reserve the downlink of `to` for a message that begins to arrive at `head_ns`; return when it has arrived."""
        busy = self._receiving[to] = [one for one in self._receiving[to] if one[1] > now_ns]
        place = 0
        for place, (begins, ends) in enumerate((*busy, (sys.maxsize, sys.maxsize))):  # noqa: B007
            if head_ns + takes_ns <= begins:
                break
            head_ns = max(head_ns, ends)
        busy.insert(place, (head_ns, head_ns + takes_ns))
        return head_ns + takes_ns

    def silent_ns(self, sender: NodeId, to: NodeId, now_ns: int) -> int:
        """Return when `to` can detect that `sender` has just gone: a latency later, after all messages on the way to
        it.
        """
        return max(now_ns + self.latency_ns(sender, to), self._last_arrival.get((sender, to), -1) + 1)

    def training_ns(self, node: NodeId, examples: int = 1) -> int:
        """Return the time of this round of training, with so many examples, on `node`."""
        seconds, jitter = self.known_training(node, examples), self.settings.training_jitter
        return int((seconds * (1.0 + jitter * self._draws[node].random()) if jitter else seconds) * NS)

    def known_training(self, node: NodeId, examples: int = 1) -> float:
        """Return the seconds of a training without its jitter."""
        each = self.settings.per_example
        factor = self._devices[node].slower / self._speed[node]
        return (self.settings.training if each is None else each * examples) * factor

    def summing_ns(self, elements: int) -> int:
        """Return the time in which a node adds so many elements."""
        return int(self.settings.summing * elements * NS)


def _device(settings: NetworkSettings, node: NodeId) -> _Device:
    own = next((one for one in settings.classes if node in one.nodes), DeviceClass(frozenset()))
    return _Device(
        settings.bandwidth if own.bandwidth is None else own.bandwidth,
        settings.downlink if own.downlink is None else own.downlink,
        settings.latency if own.latency is None else own.latency,
        own.slower,
    )
