"""Times and bytes of rounds, by the cost model: computations behind results/*.toml."""

from __future__ import annotations

import math
from typing import Any

from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.algorithms.collectives.table import Way
from fedgossip.base import seeds
from fedgossip.drivers.simulate import simulate
from fedgossip.lab.costs.base import EqualLinks
from fedgossip.lab.costs.formulas import all_reduce, neighbours
from fedgossip.lab.costs.methods import gossip_steps
from fedgossip.lab.costs.timeline import seconds_of_rounds
from fedgossip.topology import resolve_schedule


def waiting_for_neighbours(graph: str, n: int, rounds: int = 600) -> float:
    """Return the mean time of a round with computing times Exp(1) and each peer waiting for its neighbours alone."""
    schedule = resolve_schedule(graph, n)
    times = seeds.stream(0, "waiting", n).exponential(1.0, (rounds, n))
    return seconds_of_rounds(gossip_steps(schedule, 0.0), n, EqualLinks(0.0), times)


def harmonic(n: int) -> float:
    """Return 1 + 1/2 + ... + 1/n, the expected maximum of n Exp(1) times."""
    return math.fsum(1 / k for k in range(1, n + 1))


DEVICES: dict[str, Any] = {
    "data": {"source": "digits"},
    "model": {"source": "softmax"},
    "train": {"local_steps": 1, "device": "cpu"},
    "coordinator": {"clients": 16, "secure": {"on": False}, "deadline": 1000.0},
    "simulation": {
        "training": 160.0,
        "latency": 2.5,
        "classes": [{"nodes": "6-10", "slower": 1.625}, {"nodes": "11-15", "slower": 2.875}],
    },
}
"""Sixteen devices of 60 s of training and 100, 200 or 400 s of delay, 2.5 s from and to their coordinator."""


def minutes_of_devices(rounds: int, buffered: int = 0) -> float:
    """Return the virtual minutes of synchronous rounds of all devices; with `buffered`, of versions by FedBuff.

    `buffered`: the number of updates of a version.
    """
    coordinator: dict[str, Any] = dict(DEVICES["coordinator"])
    if buffered:
        coordinator |= {"algorithm": "fedbuff", "goal": buffered, "at_once": 16, "most_stale": 1000}
    content = {**DEVICES, "rounds": rounds, "eval": {"every": rounds}, "coordinator": coordinator}
    seconds = simulate(content, seed=1).summary["seconds"]
    return (seconds or math.nan) / 60


def renewal_minutes(updates: int) -> float:
    """Return the minutes after which those devices, each working without a pause, have sent so many updates."""
    times = [165.0] * 6 + [265.0] * 5 + [465.0] * 5
    ends = sorted(k * one for one in times for k in range(1, updates + 1))
    return ends[updates - 1] / 60


def bytes_of_busiest(name: str, workers: int) -> float:
    """Return the vectors sent by the busiest worker of an all-reduce."""
    length = 64 * workers
    table = COLLECTIVES[name].table(workers)
    sent = [
        sum(part.stop - part.start for move, part in table.of(rank, length) if move.way is Way.SEND)
        for rank in range(workers)
    ]
    return float(max(sent)) / length


def all_reduce_seconds(name: str, workers: int, size: float, latency: float, rate: float) -> float:
    """Return the seconds of an all-reduce by its closed form."""
    return all_reduce(name, workers, size, EqualLinks(latency, rate, rate))


def gossip_over_ring(workers: int, size: float, latency: float, rate: float, degree: float = 2) -> float:
    """Return the time of a ring all-reduce relative to that of an exchange with neighbours."""
    links = EqualLinks(latency, rate, rate)
    ring: float = all_reduce("ring", workers, size, links)
    return ring / neighbours(degree, size, links)
