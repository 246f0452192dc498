"""The candidates of an advice, their network, and a check of their rounds in the simulator, on quadratics: a shorter
model with proportionally slower links has the same message times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedgossip.algorithms.collectives.names import COLLECTIVES, EqualLinks, all_reduce
from fedgossip.base import outside_files, seeds
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.data.csv_columns import CsvColumns
from fedgossip.drivers.simulate import simulate
from fedgossip.lab.advise.rates import (
    BestRate,
    alone,
    best_rate,
    everybody,
    measured_rate,
    neighbours_of,
    rounds_of_one_merge,
)
from fedgossip.lab.costs.base import Times, neighbours, through_servers
from fedgossip.lab.costs.methods import gossip_steps, seconds_of_rounds
from fedgossip.topology import Schedule, resolve_schedule
from fedgossip.topology.schedules.schedules import union

GRAPHS = (
    "ring", "torus", "hypercube", "directed-exponential", "exponential", "regular:3", "regular:4", "star",
    "one-peer-exponential", "base:1", "random-matching", "el-oracle:4",
)  # fmt: skip

FOLLOWED_PEERS, LARGE = 128, 300
"""Maximum number of peers without a closed form of a round, and for graphs with a dense n_W."""
OF_MANY = ("base:1", "regular:3", "regular:4", "star")

ROUNDS = 20
"""Number of simulated rounds with equal training times: whole periods, plus the first."""

MANY_ROUNDS = 60
FOLLOWED = 20_000
"""Maximum number of simulated messages with unequal training times."""

CONNECTIVITY_LIMIT = 64
"""Maximum number of peers for counting survivable losses."""


@dataclass(frozen=True)
class AdvisedWay:
    """A method of training together, and its cost up to the target."""

    name: str
    kind: str
    """gossip, all-reduce, server, once or alone."""
    rounds: float
    round_seconds: float
    seconds: float
    payload: float
    """Bytes sent or received by the busiest peer up to the target, in the larger direction."""
    survives: int | None
    """Number of peers that can be lost, at the worst places, with the other peers of a graph still connected; None: not
    counted.
    """
    n_w: float
    eta: float
    schedule: Schedule | None = None


PRESETS: Mapping[str, EqualLinks] = {
    "cluster": EqualLinks(50e-6, 12.5e9, 12.5e9),
    "lan": EqualLinks(1e-3, 1.25e9, 1.25e9),
    "wan": EqualLinks(30e-3, 12.5e6, 12.5e6),
}
"""100 Gb/s and 50 us; 10 Gb/s and 1 ms; 100 Mb/s and 30 ms."""

FILE_BYTES = 64 << 20


@dataclass(frozen=True)
class AdvisedLinks:
    """Equal links; or measured links of pairs: a method is as fast as the slowest link that it uses."""

    usual: EqualLinks
    pairs: Mapping[tuple[int, int], EqualLinks] = field(default_factory=dict)

    def over(self, pairs: Iterable[tuple[int, int]]) -> EqualLinks:
        """Return the links of a method that uses these pairs."""
        used = [self.pairs.get((u, v)) or self.pairs.get((v, u)) or self.usual for u, v in pairs] if self.pairs else []
        if not used:
            return self.usual
        slow = min(one.rate for one in used)
        return EqualLinks(max(one.latency for one in used), slow, slow)


def links_of(text: str, n: int) -> AdvisedLinks:
    """Return the links of a text: a preset, "SECONDS,BYTES_PER_SECOND", or a CSV file from,to,latency,rate.

    Raises ConfigError.
    """
    if text in PRESETS:
        return AdvisedLinks(PRESETS[text])
    if text.endswith(".csv"):
        return _from_file(Path(text), n)
    try:
        latency, rate = (float(part) for part in text.split(","))
    except ValueError:
        advice = f"{nearest(text, PRESETS)}  Or 0.03,12.5e6: seconds one way, bytes per second; or a .csv file."
        raise ConfigError(f"links {text!r} cannot be read", advice) from None
    return AdvisedLinks(_checked(latency, rate, f"links {text!r}"))


def _checked(latency: float, rate: float, where: str) -> EqualLinks:
    if not (0 <= latency < math.inf and 0 < rate < math.inf):
        raise ConfigError(f"{where}: {latency:g} s and {rate:g} bytes per second", "Give 0 or more, and more than 0.")
    return EqualLinks(latency, rate, rate)


def _from_file(path: Path, n: int) -> AdvisedLinks:
    try:
        outside_files.check_file(outside_files.resolve(path), FILE_BYTES)
    except OSError as error:
        what = (error.strerror or "cannot be read").lower()
        raise ConfigError(f"{path}: {what}", "See docs/together/advise.md.") from None
    table = CsvColumns(path)
    names = "from", "to", "latency", "rate"
    advice = "The first line is from,to,latency,rate: ids, seconds one way, bytes per second."
    if missing := [name for name in names if name not in table.header]:
        raise ConfigError(f"{path}: no column {missing[0]!r}", advice)
    columns = [table.numbers(table.header.index(name), advice).tolist() for name in names]
    found: dict[tuple[int, int], EqualLinks] = {}
    for row, (u, v, latency, rate) in enumerate(zip(*columns, strict=True)):
        where = f"{path}, {table.where(row)}"
        if not (0 <= u < n and 0 <= v < n and u != v and u == int(u) and v == int(v)):
            text = f"{where}: a link of {u:g} and {v:g}, and peers are 0 to {n - 1}"
            raise ConfigError(text, "Ids are whole numbers, and begin at 0.")
        found[int(u), int(v)] = _checked(latency, rate, where)
    if not found:
        raise ConfigError(f"{path}: no links", "Give a line for each pair of peers.")
    rate = min(one.rate for one in found.values())
    return AdvisedLinks(EqualLinks(max(one.latency for one in found.values()), rate, rate), found)


@dataclass(frozen=True)
class StepTimes:
    """The time of a step: mean `seconds`; constant, exponential, or with one slower machine per round."""

    seconds: float
    exponential: bool = False
    slower: float = 1.0
    """Slowdown of one machine, a different machine in each round."""

    @property
    def constant(self) -> bool:
        """Return whether no peer ever waits for a slower one."""
        return not self.exponential and self.slower == 1.0

    def draw(self, rounds: int, n: int) -> Times:
        """Return times, [rounds, n]."""
        stream = seeds.stream(0, "steps", n)
        if self.exponential:
            return stream.exponential(self.seconds, (rounds, n))
        times: Times = np.full((rounds, n), self.seconds)
        times[np.arange(rounds), stream.integers(0, n, rounds)] *= self.slower
        return times

    def longest(self, n: int) -> float:
        """Return the expected maximum of n times: the wait at a barrier."""
        if self.exponential:
            return self.seconds * math.fsum(1 / k for k in range(1, n + 1))
        return self.seconds * self.slower


def times_of(text: str) -> StepTimes:
    """Return the times of a text: "0.05", "exp:0.05", or "straggler:10:0.05".  Raises ConfigError."""
    word, _, rest = text.rpartition(":")
    try:
        seconds = float(rest)
        kind, _, factor = word.partition(":")
        slower = float(factor) if kind == "straggler" else 1.0
        if 0 <= seconds < math.inf and 1 <= slower < math.inf and kind in ("", "exp", "straggler"):
            return StepTimes(seconds, kind == "exp", slower)
    except ValueError:
        pass
    advice = "Write 0.05 (seconds of a step), exp:0.05 (exponential), or straggler:10:0.05 (one in each round)."
    raise ConfigError(f"compute {text!r} cannot be read", advice)


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
    """Return all methods, the fastest first."""
    found = [*_together(asked), *(way for graph in graphs if (way := _gossip(asked, graph)))]
    return sorted(found, key=lambda way: way.seconds)


def front(found: Sequence[AdvisedWay]) -> set[str]:
    """Return the names of the Pareto-optimal methods by seconds, bytes of the busiest peer and losses."""

    def beats(a: AdvisedWay, b: AdvisedWay) -> bool:
        ours, theirs = _facts(a), _facts(b)
        return all(x <= y for x, y in zip(ours, theirs, strict=True)) and ours != theirs

    return {way.name for way in found if math.isfinite(way.seconds) and not any(beats(one, way) for one in found)}


def _facts(way: AdvisedWay) -> tuple[float, float, float]:
    return way.seconds, way.payload, -(way.survives or 0)


def _together(asked: AdviceAsked) -> Iterator[AdvisedWay]:
    """Yield the alternatives: all-reduce, a server, one merge at the end, training alone."""
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
    """Return gossip on a graph, or None."""
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
    """Return the seconds of a round, simulated step by step; for many equal peers a + k d/b.

    In consecutive rounds, messages that meet at a receiver add up to a tenth; a star is shorter.
    """
    alone = float(np.mean([neighbours(k, asked.size, links) for k in degrees]))
    if asked.n > FOLLOWED_PEERS:
        return alone + (asked.times.seconds if asked.times.constant else _waited(asked, schedule))
    rounds, period = ROUNDS, schedule.period or 1
    if not asked.times.constant:
        rounds = max(ROUNDS, min(400, int(FOLLOWED / asked.n / max(1.0, float(np.mean(degrees))))))
    times = asked.times.draw(1 + period * -(-rounds // period), asked.n)
    return seconds_of_rounds(gossip_steps(schedule, asked.size), asked.n, links, times, schedule.period)


def _waited(asked: AdviceAsked, schedule: Schedule) -> float:
    """Return the mean time of a round: t_i(k + 1) = X_i(k) + max of t_j(k), over the neighbours and the peer itself."""
    times = asked.times.draw(MANY_ROUNDS, asked.n)
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

    Only with equal training times and links; the rate only for zeta = 50.
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
    """Return the time of a round in the simulator, without the first round."""
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
