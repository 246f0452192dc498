"""The compared ways to train together: gossip on graphs, and the alternatives to gossip.

Verifies predicted rounds against real machines in the simulator's virtual time, on quadratics.

The model is cut to fewer numbers and the links to proportionally less bandwidth, so message times stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.base.errors import ConfigError
from fedgossip.drivers.simulate import simulate
from fedgossip.lab.advise.network import AdvisedLinks, StepTimes
from fedgossip.lab.advise.rates import (
    BestRate,
    alone,
    best_rate,
    everybody,
    measured_rate,
    neighbours_of,
    rounds_of_one_merge,
)
from fedgossip.lab.costs.base import EqualLinks
from fedgossip.lab.costs.formulas import all_reduce, neighbours, through_servers
from fedgossip.lab.costs.methods import gossip_steps
from fedgossip.lab.costs.timeline import seconds_of_rounds
from fedgossip.topology import Schedule, resolve_schedule
from fedgossip.topology.schedules.schedules import union

GRAPHS = (
    "ring", "torus", "hypercube", "directed-exponential", "exponential", "regular:3", "regular:4", "star",
    "one-peer-exponential", "base:1", "random-matching", "el-oracle:4",
)  # fmt: skip

FOLLOWED_PEERS, LARGE = 128, 300
"""Number of peers above which rounds use a closed form, and above which graphs with a dense n_W are omitted."""
OF_MANY = ("base:1", "regular:3", "regular:4", "star")

ROUNDS = 20
"""Number of followed rounds with equal training times: whole periods, and the first beside them."""

MANY_ROUNDS = 60
FOLLOWED = 20_000
"""Maximum number of followed messages with unequal training times."""

CONNECTIVITY_LIMIT = 64
"""Maximum number of peers for which survivable losses are counted."""


@dataclass(frozen=True)
class AdvisedWay:
    """A way to train together, and its cost up to the target."""

    name: str
    kind: str
    """gossip, all-reduce, server, once or alone."""
    rounds: float
    round_seconds: float
    seconds: float
    payload: float
    """Bytes sent or received by the busiest peer up to the target, in the larger direction."""
    survives: int | None
    """Losses at the worst places after which all other peers of a graph are still connected; None: not counted."""
    n_w: float
    eta: float
    schedule: Schedule | None = None


@dataclass(frozen=True)
class AdviceAsked:
    """The request for advice."""

    n: int
    size: float
    """Bytes of a model."""
    links: AdvisedLinks
    times: StepTimes
    zeta: float = 50.0
    share: float = 1e-3
    """Remaining share of the distance to the optimum."""


def ways(asked: AdviceAsked, graphs: Sequence[str] = GRAPHS) -> list[AdvisedWay]:
    """Return all ways, the fastest first."""
    found = [*_together(asked), *(way for graph in graphs if (way := _gossip(asked, graph)))]
    return sorted(found, key=lambda way: way.seconds)


def front(found: Sequence[AdvisedWay]) -> set[str]:
    """Return the names of the ways that no other beats in seconds, bytes of the busiest and losses at once."""

    def beats(a: AdvisedWay, b: AdvisedWay) -> bool:
        ours, theirs = _facts(a), _facts(b)
        return all(x <= y for x, y in zip(ours, theirs, strict=True)) and ours != theirs

    return {way.name for way in found if math.isfinite(way.seconds) and not any(beats(one, way) for one in found)}


def _facts(way: AdvisedWay) -> tuple[float, float, float]:
    return way.seconds, way.payload, -(way.survives or 0)


def _together(asked: AdviceAsked) -> Iterator[AdvisedWay]:
    """Yield the alternatives to gossip: all-reduce, a server, one merge at the end, and training alone."""
    n, size, links = asked.n, asked.size, asked.links
    best, longest = best_rate(everybody(n), asked.zeta), asked.times.longest(n)
    for name in ("ring", "tree", "halving-doubling"):
        took = all_reduce(name, n, int(size), links.over(_ring(n)) if name == "ring" else links.usual)
        payload = COLLECTIVES[name].busiest(n) * size
        yield _way(asked, f"all-reduce, {name}", "all-reduce", best, longest + took, payload)
    server = longest + through_servers(n, int(size), links.usual)
    yield _way(asked, "parameter server", "server", best, server, n * size)
    merge = rounds_of_one_merge(n, asked.zeta, asked.share)
    took = all_reduce("ring", n, int(size), links.over(_ring(n)))
    last = merge * asked.times.seconds + took
    yield AdvisedWay(
        "one merge at the end", "once", merge, asked.times.seconds, last, COLLECTIVES["ring"].busiest(n) * size,
        None, 1.0, 1 / asked.zeta,
    )  # fmt: skip
    own = best_rate(alone, asked.zeta)
    yield _way(asked, "alone", "alone", own, asked.times.seconds, 0.0)


def _way(
    asked: AdviceAsked, name: str, kind: str, best: BestRate, seconds: float, payload: float,
    survives: int | None = None, schedule: Schedule | None = None,
) -> AdvisedWay:  # fmt: skip
    rounds = best.rounds(asked.share) if best.rate > 0 else math.inf
    total = rounds * seconds if math.isfinite(rounds) else math.inf
    return AdvisedWay(name, kind, rounds, seconds, total, rounds * payload, survives, best.n_w, best.eta, schedule)


def _gossip(asked: AdviceAsked, graph: str) -> AdvisedWay | None:
    """Return gossip on a graph; None where no graph of this size exists, or its numbers are unknown."""
    if asked.n > LARGE and graph in OF_MANY:
        return None
    try:
        schedule = resolve_schedule(graph, asked.n)
    except ConfigError:
        return None
    known = neighbours_of(schedule)
    if known is None:
        return None
    return gossip_way(asked, graph, schedule, best_rate(known, asked.zeta))


def gossip_way(asked: AdviceAsked, graph: str, schedule: Schedule, best: BestRate) -> AdvisedWay:
    """Return the cost of gossip on these graphs."""
    rounds = range(schedule.period or 8)
    degrees = [max(len(schedule.mixing(r).targets(i)) for i in range(asked.n)) for r in rounds]
    links = asked.links.over(_used(schedule)) if asked.links.pairs else asked.links.usual
    seconds = gossip_seconds(asked, schedule, links, degrees)
    payload = float(np.mean(degrees)) * asked.size
    return _way(asked, graph, "gossip", best, seconds, payload, _survives(schedule), schedule)


def gossip_seconds(asked: AdviceAsked, schedule: Schedule, links: EqualLinks, degrees: Sequence[int]) -> float:
    """Return the seconds of a round, followed step by step; for many equal peers a + k d/b.

    That is the round alone: in consecutive rounds, messages that meet at a receiver make it up to a tenth longer, and a
    star's shorter.
    """
    alone = float(np.mean([neighbours(k, asked.size, links) for k in degrees]))
    if asked.n > FOLLOWED_PEERS:
        return alone + (asked.times.seconds if asked.times.constant else _waited(asked, schedule))
    rounds, period = ROUNDS, schedule.period or 1
    if not asked.times.constant:
        rounds = max(ROUNDS, min(400, int(FOLLOWED / asked.n / max(1.0, float(np.mean(degrees))))))
    times = asked.times.drawn(1 + period * -(-rounds // period), asked.n)
    return seconds_of_rounds(gossip_steps(schedule, asked.size), asked.n, links, times, schedule.period)


def _waited(asked: AdviceAsked, schedule: Schedule) -> float:
    """Return the mean time of training and waiting: t_i(k + 1) = X_i(k) + max of t_j(k), neighbours and oneself."""
    times = asked.times.drawn(MANY_ROUNDS, asked.n)
    begun = np.zeros(asked.n)
    for round, took in enumerate(times):
        starts, ids, _ = schedule.mixing(round).entries
        done = begun + took
        begun = np.maximum.reduceat(done[ids], starts[:-1])
    return float(begun.max()) / MANY_ROUNDS


def _ring(n: int) -> list[tuple[int, int]]:
    return [(i, (i + 1) % n) for i in range(n)]


def _used(schedule: Schedule) -> list[tuple[int, int]]:
    return [(i, other) for i in range(schedule.n) for other in schedule.partners(i)]


def _survives(schedule: Schedule) -> int | None:
    if schedule.n > CONNECTIVITY_LIMIT or not schedule.period:
        return None
    import networkx as nx

    graph = union(schedule).to_networkx().to_undirected()
    return int(nx.node_connectivity(graph)) - 1


NUMBERS = 50_000
"""Elements of the exchanged vectors: headers are then less than a thousandth of a message."""

NEAR = 0.02
"""Accepted relative error of a measured round."""

DIMENSIONS, REPEATS, RATE_ROUNDS = 48, 60, 60
"""Parameters of the quadratics that measure a rate: zeta is DIMENSIONS + 2."""


@dataclass(frozen=True)
class VerifiedNumber:
    """A predicted and a measured number."""

    what: str
    predicted: float
    measured: float
    near: float

    @property
    def holds(self) -> bool:
        """Return whether they agree."""
        return abs(self.measured / self.predicted - 1) <= self.near


def verified(asked: AdviceAsked, found: Sequence[AdvisedWay]) -> list[VerifiedNumber]:
    """Return the rounds of a ring all-reduce and of the fastest gossip, predicted and measured, and the latter's rate.

    Only with equal training times and equal links; the rate where zeta is 50.
    """
    if not asked.times.constant or asked.links.pairs:
        return []
    ring = next(way for way in found if way.name == "all-reduce, ring")
    gossip = next(way for way in found if way.kind == "gossip")
    numbers = [
        VerifiedNumber(f"seconds of a round of {way.name}", way.round_seconds, round_in_the_simulator(asked, way), NEAR)
        for way in (ring, gossip)
    ]
    if asked.zeta == DIMENSIONS + 2 and asked.n <= 64 and gossip.schedule is not None:
        rate = 1 - 10 ** (-2 * _digits(asked) / gossip.rounds)
        measured = measured_rate(gossip.schedule, gossip.eta, DIMENSIONS, RATE_ROUNDS, REPEATS)
        numbers.append(VerifiedNumber(f"rate of {gossip.name} on quadratics", rate, measured, 0.05))
    return numbers


def _digits(asked: AdviceAsked) -> float:
    from math import log10

    return -log10(asked.share)


def round_in_the_simulator(asked: AdviceAsked, way: AdvisedWay) -> float:
    """Return the time of a round in the simulator, without the first."""
    links, scale = asked.links.usual, min(1.0, NUMBERS * 4 / asked.size)
    period = way.schedule.period if way.schedule is not None and way.schedule.period else 1
    rounds = 1 + period * -(-ROUNDS // period)  # whole periods, after a first round that waits for no previous one
    content: dict[str, Any] = {
        "rounds": rounds,
        "eval": {"every": rounds},
        "task": {"kind": "quadratic", "dim": max(1, round(asked.size * scale / 4))},
        "simulation": {
            "latency": links.latency, "bandwidth": links.up * scale, "downlink": links.down * scale,
            "training": asked.times.seconds,
        },
    }  # fmt: skip
    if way.kind == "gossip":
        content["topology"] = {"graph": way.name, "n": asked.n}
        content["algorithm"] = {"deadline": 1e6, "least_deadline": 1e6, "start_timeout": 1e6}
    else:
        limits = {"deadline": 1e6, "least_deadline": 1e6, "start_timeout": 1e6}
        content["parallel"] = {"workers": asked.n, "method": "ring", "bucket": 0, **limits}
    rows = [row for row in simulate(content).network() if row.round]
    return (rows[-1].seconds - rows[0].seconds) / (len(rows) - 1)
