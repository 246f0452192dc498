"""A seeded network of virtual links and devices: how long a message and a round of training take.

A message of s bytes from i to j leaves through the uplink of i and comes in through the downlink of j, each of which
carries one message at a time, in order of sending, and both at once (full duplex):

    start   = max(now, up_free[i]);              end     = start + s / up[i]
    head    = max(start + latency, down_free[j]); arrival = max(end + latency, head + s / down[j])

So m workers that send to one server at once are heard after latency + m s / down, as every textbook on collective
communication counts; without a downlink a server hears any number of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedgossip import seeds
from fedgossip.machine import NodeId

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """What some nodes have that is not as the rest; None: as the rest."""

    nodes: frozenset[NodeId]
    bandwidth: float | None = None
    downlink: float | None = None
    latency: float | None = None
    slower: float = 1.0
    """A round of training takes so many times as long."""


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Seconds, bytes per second."""

    latency: float = 0.005
    """One way, on every link; between nodes of two classes the longer of theirs."""
    jitter: float = 0.0
    """Each message takes up to this much longer, uniformly; messages of one link never overtake each other."""
    bandwidth: float | None = None
    """Bytes per second that a peer can send, over all its links; None: no limit."""
    downlink: float | None = None
    """Bytes per second that a peer can receive, over all its links; None: no limit."""
    detection: float = 1.0
    """After so long without a sign a link is given up; what a shorter cut has held up arrives late."""
    training: float = 0.05
    """What one round of training takes on a peer of speed 1."""
    speed_spread: float = 0.0
    """Peers' speeds are exp(N(0, spread^2)), drawn once; 0: all equal."""
    training_jitter: float = 0.0
    """Each training takes a factor in [1, 1 + this] longer, uniformly."""
    classes: Sequence[DeviceClass] = ()
    """Of each node the first that names it counts."""


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
        self._links = [seeds.stream(seed, "network", node) for node in range(n)]
        self._draws = [seeds.stream(seed, "device", node) for node in range(n)]
        spread = settings.speed_spread
        self._speed = [float(rng.lognormal(0.0, spread)) if spread else 1.0 for rng in self._draws]
        self._devices = [_device(settings, node) for node in range(n)]
        self._uplink_free = [0] * n
        self._downlink_free = [0] * n
        self._last_arrival: dict[tuple[NodeId, NodeId], int] = {}

    def latency_ns(self, sender: NodeId, to: NodeId) -> int:
        """The least time that anything takes from one to the other."""
        return int(max(self._devices[sender].latency, self._devices[to].latency) * NS)

    def arrival_ns(self, sender: NodeId, to: NodeId, size: int, now_ns: int, delay_ns: int = 0) -> int:
        """When `size` bytes sent now arrive, with `delay_ns` above what the link takes."""
        settings, rng = self.settings, self._links[sender]
        up, down = self._devices[sender].bandwidth, self._devices[to].downlink
        latency = max(self._devices[sender].latency, self._devices[to].latency)
        delay = int((latency + (settings.jitter * rng.random() if settings.jitter else 0.0)) * NS) + delay_ns
        start = end = now_ns
        if up:
            start = max(now_ns, self._uplink_free[sender])
            self._uplink_free[sender] = end = start + int(size / up * NS)
        arrival = end + delay
        if down:
            head = max(start + delay, self._downlink_free[to])
            self._downlink_free[to] = head + int(size / down * NS)
            arrival = max(arrival, self._downlink_free[to])
        arrival = max(arrival, self._last_arrival.get((sender, to), -1) + 1)
        self._last_arrival[sender, to] = arrival
        return arrival

    def silent_ns(self, sender: NodeId, to: NodeId, now_ns: int) -> int:
        """When `to` can know what became of `sender` now: a latency later, after all that is on the way to it."""
        return max(now_ns + self.latency_ns(sender, to), self._last_arrival.get((sender, to), -1) + 1)

    def training_ns(self, node: NodeId) -> int:
        """How long this round of training takes on `node`."""
        settings = self.settings
        factor = self._devices[node].slower / self._speed[node]
        if settings.training_jitter:
            factor *= 1.0 + settings.training_jitter * self._draws[node].random()
        return int(settings.training * factor * NS)


def _device(settings: NetworkSettings, node: NodeId) -> _Device:
    own = next((one for one in settings.classes if node in one.nodes), DeviceClass(frozenset()))
    return _Device(
        settings.bandwidth if own.bandwidth is None else own.bandwidth,
        settings.downlink if own.downlink is None else own.downlink,
        settings.latency if own.latency is None else own.latency,
        own.slower,
    )
