"""The participants of a round: a function of (seed, round) and of the present clients.

Every round draws a new order of all clients and invites the first present ones: a missing client does not affect the
others' order, and a restarted coordinator draws the same cohort.

    uniform     every cohort of the wanted size is equally likely
    by size     a client is first with a probability proportional to its examples (Efraimidis and Spirakis, Weighted
                random sampling with a reservoir, Information Processing Letters 97, 2006): keys u^(1/size), descending
    Poisson     each client independently, with probability q: the cohort's size varies, and may be 0.  Accountants of
                differential privacy assume it (Mironov, Talwar and Zhang, 2019)

By the clients' last reported losses, which the coordinator therefore sees:

    power of choice  of d candidates, drawn uniformly, those with the greatest losses (Cho, Wang and Joshi, Client
                     selection in federated learning, 2020, rpow-d: the last known losses); clients without one first
    Oort             a share of unseen clients, and others by examples x loss, more after a long absence,
                     less after long durations (Lai, Zhu, Madhyastha and Chowdhury, Oort, OSDI 2021, algorithm 1);
                     by mean losses; the paper uses the root mean square over a client's examples

For more than PERMUTED_MOST clients the order is drawn lazily: by draws with replacement that skip repetitions; after n
/ 16 of them the remaining clients are permuted.

Over-selection (Bonawitz et al., Towards federated learning at scale, MLSys 2019): 1.3 times the wanted number are
invited, and the round ends with the first answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.base.seeds import stream
from fedgossip.core.machine import NodeId

PERMUTED_MOST = 10_000
"""Maximum number of clients that are permuted at once."""

DRAWN_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Draw:
    """`invited`, ascending; the round ends with the first `wanted` answers."""

    invited: tuple[NodeId, ...]
    wanted: int


class Sampling(Protocol):
    """Rules for drawing cohorts."""

    def draw(self, round: int, here: Collection[NodeId]) -> Draw:
        """Return the cohort of `round` from the clients `here`."""


class ReportedLoss(NamedTuple):
    """A client's last contribution."""

    loss: float
    examples: int
    round: int
    seconds: float
    """From the beginning of the round to the arrival."""


@runtime_checkable
class SamplingByLosses(Protocol):
    """Rules for drawing cohorts by the clients' reports; `draw` is for the first round."""

    def draw(self, round: int, here: Collection[NodeId]) -> Draw: ...
    def choose(self, round: int, here: Collection[NodeId], seen: Mapping[NodeId, ReportedLoss]) -> Draw:
        """Return the cohort of `round` from the clients `here`; `seen`: of clients that reported a loss."""


@dataclass(frozen=True)
class Uniform:
    """`count` of the clients, or all present ones; `over` times that number are invited, 1 or more."""

    seed: int
    clients: Sequence[NodeId]
    count: int
    over: float = 1.0

    def draw(self, round: int, here: Collection[NodeId]) -> Draw:
        return _first(self.order(round), here, self.count, self.over)

    def order(self, round: int) -> Iterator[NodeId]:
        """Yield all clients in the order of the round."""
        random, n = stream(self.seed, "cohort", round), len(self.clients)
        if n <= PERMUTED_MOST:
            order: Iterable[int] = random.permutation(n)
        else:
            order = _read_order(n, lambda: random.integers(n, size=DRAWN_AT_ONCE), random.permutation)
        return (self.clients[int(place)] for place in order)


@dataclass(frozen=True)
class BySize:
    """As Uniform, with larger clients more often; `sizes` are numbers of examples, above 0."""

    seed: int
    sizes: Mapping[NodeId, int]
    count: int
    over: float = 1.0

    @cached_property
    def _many(self) -> tuple[np.ndarray, np.ndarray]:
        clients = np.array(sorted(self.sizes))
        return clients, np.cumsum([self.sizes[node] for node in clients.tolist()])

    def draw(self, round: int, here: Collection[NodeId]) -> Draw:
        random = stream(self.seed, "cohort", round)
        if len(self.sizes) > PERMUTED_MOST:
            nodes, ends = self._many

            def some() -> np.ndarray:
                return np.searchsorted(ends, random.integers(ends[-1], size=DRAWN_AT_ONCE), side="right")

            def order_rest(places: np.ndarray) -> np.ndarray:
                sizes = np.diff(ends, prepend=0)[places]
                return places[np.argsort(-np.log1p(-random.random(len(places))) / sizes, kind="stable")]

            order = _read_order(len(nodes), some, order_rest)
            return _first((int(nodes[place]) for place in order), here, self.count, self.over)
        clients = sorted(self.sizes)
        draws = random.random(len(clients))
        keys = {node: math.log(1 - u) / self.sizes[node] for node, u in zip(clients, draws, strict=True)}
        return _first(sorted(clients, key=lambda node: (-keys[node], node)), here, self.count, self.over)


@dataclass(frozen=True)
class Poisson:
    """Each of the clients with probability `rate`; all invited ones are wanted."""

    seed: int
    clients: Sequence[NodeId]
    rate: float

    def draw(self, round: int, here: Collection[NodeId]) -> Draw:
        random, n, present = stream(self.seed, "cohort", round), len(self.clients), _present(here)
        if n <= PERMUTED_MOST:
            there: Iterable[int] = np.flatnonzero(random.random(n) < self.rate)
        else:
            order = _read_order(n, lambda: random.integers(n, size=DRAWN_AT_ONCE), random.permutation)
            there = islice(order, int(random.binomial(n, self.rate)))
        invited = tuple(sorted(node for node in (self.clients[int(place)] for place in there) if node in present))
        return Draw(invited, len(invited))


@dataclass(frozen=True)
class PowerOfChoice:
    """The clients with the greatest losses of `candidates`, at least the number of invited ones."""

    uniform: Uniform
    candidates: int

    def draw(self, round: int, here: Collection[NodeId]) -> Draw:
        return self.choose(round, here, {})

    def choose(self, round: int, here: Collection[NodeId], seen: Mapping[NodeId, ReportedLoss]) -> Draw:
        present, drawn = _present(here), self.uniform.order(round)
        asked = list(islice((node for node in drawn if node in present), self.candidates))
        asked.sort(key=lambda node: -seen[node].loss if node in seen else -math.inf)  # stable: ties in their order
        return _first(asked, asked, self.uniform.count, self.uniform.over)


FIRST_SHARE, LEAST_SHARE, SHARE_DECAY = 0.9, 0.2, 0.98
"""Share of unseen clients in Oort's first cohort, its minimum later on, and its factor per round (the paper's)."""

CUTOFF, QUICK, SLOWNESS = 0.95, 0.5, 2.0
"""Oort invites clients above this share of the last invited utility; durations above the quantile QUICK reduce it by
(quantile / time)^SLOWNESS.
"""


@dataclass(frozen=True)
class Oort:
    """Clients with high utility, and a share of unseen ones."""

    uniform: Uniform

    def draw(self, round: int, here: Collection[NodeId]) -> Draw:
        return self.choose(round, here, {})

    def choose(self, round: int, here: Collection[NodeId], seen: Mapping[NodeId, ReportedLoss]) -> Draw:
        several, present = _several(self.uniform.count, self.uniform.over), _present(here)
        utilities = self._utilities(round, {node: one for node, one in sorted(seen.items()) if node in present})
        explored = math.ceil(several * max(LEAST_SHARE, FIRST_SHARE * SHARE_DECAY**round))
        exploited = min(len(utilities), several - explored)
        chosen = self._exploited(round, utilities, exploited)
        fresh = (node for node in self.uniform.order(round) if node in present and node not in seen)
        chosen += islice(fresh, several - len(chosen))
        others = (node for node in self.uniform.order(round) if node in utilities and node not in set(chosen))
        return _first([*chosen, *others], present, self.uniform.count, self.uniform.over)

    def _utilities(self, round: int, seen: Mapping[NodeId, ReportedLoss]) -> dict[NodeId, float]:
        if not seen:
            return {}
        gains = np.array([one.examples * max(one.loss, 0.0) for one in seen.values()])
        gains = np.minimum(gains, np.quantile(gains, CUTOFF))  # an outlier has no more
        ages = np.array([max(1, round - one.round) for one in seen.values()])
        times = np.array([max(one.seconds, 1e-9) for one in seen.values()])
        gains += np.sqrt(0.1 * math.log(max(round, 1)) * ages / max(round, 1))
        quick = np.minimum(1.0, np.quantile(times, QUICK) / times) ** SLOWNESS
        return dict(zip(seen, (gains * quick).tolist(), strict=True))

    def _exploited(self, round: int, utilities: Mapping[NodeId, float], count: int) -> list[NodeId]:
        if not count:
            return []
        least = CUTOFF * sorted(utilities.values(), reverse=True)[count - 1]
        near = [node for node, utility in utilities.items() if utility >= least]
        weights = np.array([utilities[node] + 1e-12 for node in near])
        draws = stream(self.uniform.seed, "oort", round).random(len(near))
        return [near[place] for place in np.argsort(-np.log1p(-draws) / weights, kind="stable")[:count].tolist()]


def _present(here: Collection[NodeId]) -> Collection[NodeId]:
    return here if isinstance(here, Set | range) else frozenset(here)


def _read_order(n: int, some: Callable[[], np.ndarray], others: Callable[[np.ndarray], np.ndarray]) -> Iterator[int]:
    """Yield 0 .. n - 1 in a drawn order: `some` draws with replacement, `others` orders the rest."""
    seen = set[int]()
    for _ in range(0, n // 16, DRAWN_AT_ONCE):
        for place in some().tolist():
            if place not in seen:
                seen.add(place)
                yield place
    rest = np.ones(n, dtype=bool)
    rest[list(seen)] = False
    yield from others(np.flatnonzero(rest)).tolist()


def _first(order: Iterable[NodeId], here: Collection[NodeId], count: int, over: float) -> Draw:
    """Return the first present ones, ceil(count * over) of them; the cost depends on the cohort."""
    several = _several(count, over)
    present = _present(here)
    invited = list(islice((node for node in order if node in present), several))
    return Draw(tuple(sorted(invited)), min(count, len(invited)))


def _several(count: int, over: float) -> int:
    return math.ceil(count * over - 1e-9)  # 10 * 1.1 is a little more than 11


def participating(clients: int, participation: float) -> int:
    """Return the number of clients in a share of `clients`: at least one."""
    return max(1, round(clients * participation))


def sampling_named(
    name: str,
    seed: int,
    clients: Sequence[NodeId],
    cohort: int,
    over_selection: float,
    candidates: int,
    sizes: Sequence[int] | None,
) -> Sampling:
    """Return the rule of that name; `candidates` for power-of-choice.  Raises ConfigError if it needs `sizes`."""
    if name == "poisson":
        return Poisson(seed, clients, cohort / len(clients))
    if name == "size":
        if sizes is None:
            advice = 'Set coordinator.sampling = "uniform".'
            raise ConfigError("clients with data of their own: the number of examples of each is unknown", advice)
        return BySize(seed, dict(enumerate(sizes)), cohort, over_selection)
    uniform = Uniform(seed, clients, cohort, over_selection)
    if name == "power-of-choice":
        return PowerOfChoice(uniform, candidates)
    return Oort(uniform) if name == "oort" else uniform
