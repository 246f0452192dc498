"""A seeded network of virtual links and devices: how long a message and a round of training take."""

from __future__ import annotations

from dataclasses import dataclass

from fedgossip import seeds
from fedgossip.machine import NodeId

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Seconds, bytes per second."""

    latency: float = 0.005
    """One way, on every link."""
    jitter: float = 0.0
    """Each message takes up to this much longer, uniformly; messages of one link never overtake each other."""
    bandwidth: float | None = None
    """Bytes per second that a peer can send, over all its links; None: no limit."""
    detection: float = 1.0
    """After so long without a sign a link is given up; what a shorter cut has held up arrives late."""
    training: float = 0.05
    """What one round of training takes on a peer of speed 1."""
    speed_spread: float = 0.0
    """Peers' speeds are exp(N(0, spread^2)), drawn once; 0: all equal."""
    training_jitter: float = 0.0
    """Each training takes a factor in [1, 1 + this] longer, uniformly."""


class SimulatedNetwork:
    """Draws from one stream per peer and purpose, in the order of that peer's own actions."""

    def __init__(self, settings: NetworkSettings, n: int, seed: int) -> None:
        self.settings = settings
        self._links = [seeds.stream(seed, "network", node) for node in range(n)]
        self._devices = [seeds.stream(seed, "device", node) for node in range(n)]
        spread = settings.speed_spread
        self._speed = [float(rng.lognormal(0.0, spread)) if spread else 1.0 for rng in self._devices]
        self._uplink_free = [0] * n
        self._last_arrival: dict[tuple[NodeId, NodeId], int] = {}

    def arrival_ns(self, sender: NodeId, to: NodeId, size: int, now_ns: int, delay_ns: int = 0) -> int:
        """When `size` bytes sent now arrive, with `delay_ns` above what the link takes."""
        settings, rng = self.settings, self._links[sender]
        sent = now_ns
        if settings.bandwidth:
            sent = max(now_ns, self._uplink_free[sender]) + int(size / settings.bandwidth * NS)
            self._uplink_free[sender] = sent
        delay = settings.latency + (settings.jitter * rng.random() if settings.jitter else 0.0)
        arrival = max(sent + int(delay * NS) + delay_ns, self._last_arrival.get((sender, to), -1) + 1)
        self._last_arrival[sender, to] = arrival
        return arrival

    def silent_ns(self, sender: NodeId, to: NodeId, now_ns: int) -> int:
        """When `to` can know what became of `sender` now: a latency later, after all that is on the way to it."""
        return max(now_ns + int(self.settings.latency * NS), self._last_arrival.get((sender, to), -1) + 1)

    def training_ns(self, node: NodeId) -> int:
        """How long this round of training takes on `node`."""
        settings = self.settings
        factor = 1.0 / self._speed[node]
        if settings.training_jitter:
            factor *= 1.0 + settings.training_jitter * self._devices[node].random()
        return int(settings.training * factor * NS)
