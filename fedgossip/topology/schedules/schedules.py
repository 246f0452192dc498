"""Schedules: the mixing of each round.

    Mixing   the same in every round; see `mixing_matrix`
    Cycle    a repeating list of rounds; see `cycles`
    Random   every round drawn independently; see `random_schedules`
    Endless  another mixing in every round, from a user's function

Round r is a function of (seed, r, n) only: peers agree on it without messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedgossip.base import seeds
from fedgossip.topology.graphs.graph import Csr, FloatArray, IntArray, Topology
from fedgossip.topology.weights.mixing_matrix import Mixing

if TYPE_CHECKING:
    from fedgossip.topology.weights.mixing_matrix import Stochastic

CROWDED = 3  # of 4-regular graphs e^-3 of all pairs have not met after 3 n / 4 rounds
KEPT = 16  # rounds of a random schedule in memory: the peers of a simulation are a few rounds apart at most


class Schedule(Protocol):
    """One mixing per round.  A plain Mixing is a Schedule of period 1."""

    @property
    def n(self) -> int:
        """The number of nodes, the same in every round."""

    @property
    def name(self) -> str:
        """Name of the schedule, for summaries and errors."""

    @property
    def rule(self) -> str:
        """Name of the weights."""

    @property
    def stochastic(self) -> Stochastic:
        """Property of every round's mixing; see mixing.Stochastic."""

    @property
    def period(self) -> int:
        """Number of rounds after which the mixings repeat; 0 for never."""

    def mixing(self, round: int) -> Mixing:
        """Return the mixing of `round`, counted from 0."""

    def partners(self, node: int) -> tuple[int, ...]:
        """Return all nodes that `node` may ever send to or receive from, ascending."""


@dataclass(frozen=True, eq=False)
class Cycle:
    """Rounds that repeat after `period`; make(phase) gives the mixing of each, and is called once per phase."""

    name: str
    n: int
    period: int
    rule: str
    make: Callable[[int], Mixing]
    algorithm: str | None = None
    """The only algorithm for these rounds; None: any averaging one.  With an algorithm, the plain product is not the
    mean.
    """
    stochastic: Stochastic = "both"

    def mixing(self, round: int) -> Mixing:
        return self._made(round % self.period)

    def partners(self, node: int) -> tuple[int, ...]:
        """Return all nodes that `node` sends to or receives from in one period, ascending."""
        return tuple(sorted({other for phase in range(self.period) for other in self.mixing(phase).partners(node)}))

    @cached_property
    def _made(self) -> Callable[[int], Mixing]:
        return lru_cache(maxsize=self.period)(self.make)


@dataclass(frozen=True, eq=False)
class Random:
    """Rounds that never repeat, each drawn from its own stream of random numbers.

    contraction: expected share of sum_i ||x_i - mean||^2 after a round, in every direction; None without a formula.
    moment: M -> E[W' M W], dense [n, n].  rounds: number of a run's rounds, if known (`for_rounds`).
    """

    name: str
    n: int
    rule: str
    seed: int
    draw: Callable[[np.random.Generator], Mixing]
    contraction: float | None
    stochastic: Stochastic = "both"
    moment: Callable[[FloatArray], FloatArray] | None = None
    rounds: int | None = None

    def __post_init__(self) -> None:
        if self.contraction is not None:  # rounding leaves -1e-17 of a graph that is exact after one round
            object.__setattr__(self, "contraction", min(1.0, max(0.0, self.contraction)))

    @property
    def period(self) -> int:
        """0: rounds never repeat."""
        return 0

    def mixing(self, round: int) -> Mixing:
        return self._drawn(round)

    def partners(self, node: int) -> tuple[int, ...]:
        """Return all partners of `node` in the run, ascending; all other nodes if the rounds are unknown or many."""
        if (met := self._met) is not None:
            return tuple(met[1][met[0][node] : met[0][node + 1]].tolist())
        return (*range(node), *range(node + 1, self.n))

    @cached_property
    def _met(self) -> Csr | None:
        return None if self.rounds is None else find_partners(self, self.rounds)

    @cached_property
    def _drawn(self) -> Callable[[int], Mixing]:
        return lru_cache(maxsize=KEPT)(lambda round: self.draw(seeds.stream(self.seed, "schedule", round)))


@dataclass(frozen=True, eq=False)
class Endless:
    """Rounds that never repeat: make(round) gives a mixing, links(node) all possible partners; rounds: number of a
    run's rounds, if known.
    """

    name: str
    n: int
    rule: str
    make: Callable[[int], Mixing]
    links: Callable[[int], Sequence[int]]
    stochastic: Stochastic = "both"
    rounds: int | None = None

    @property
    def period(self) -> int:
        """0: rounds never repeat."""
        return 0

    def mixing(self, round: int) -> Mixing:
        return self._made(round)

    def partners(self, node: int) -> tuple[int, ...]:
        """Return all nodes that `node` may ever send to or receive from, ascending."""
        if (met := self._met) is not None:
            return tuple(met[1][met[0][node] : met[0][node + 1]].tolist())
        return tuple(sorted(self.links(node)))

    @cached_property
    def _met(self) -> Csr | None:
        return None if self.rounds is None else find_partners(self, self.rounds)

    @cached_property
    def _made(self) -> Callable[[int], Mixing]:
        return lru_cache(maxsize=KEPT)(self.make)


def for_rounds(schedule: Schedule, rounds: int) -> Schedule:
    """Return a run's schedule, whose partners are each used at least once: no other links are opened."""
    return replace(schedule, rounds=rounds) if isinstance(schedule, Random | Endless) else schedule


def find_partners(schedule: Schedule, rounds: int) -> Csr | None:
    """Return (starts [n + 1], ids): each node's partners in the first `rounds`, ascending; None if rounds * degree
    reaches about CROWDED n.
    """
    n = schedule.n
    if rounds * float(schedule.mixing(0).topology.degrees().mean()) > CROWDED * n:
        return None
    found = np.empty(0, np.int64)
    for first in range(0, rounds, KEPT):
        arcs = [_both_ways(schedule.mixing(round).topology) for round in range(first, min(rounds, first + KEPT))]
        senders, receivers = np.concatenate(arcs).T
        found = np.unique(np.concatenate([found, senders * n + receivers, receivers * n + senders]))
    starts = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(found // n, minlength=n), out=starts[1:])
    return starts, found % n


def union(schedule: Schedule, rounds: int | None = None) -> Topology:
    """Return the graph of all links used in the first `rounds`, by default in one period (a random one's: round 0)."""
    graphs = [schedule.mixing(round).topology for round in range(rounds or schedule.period or 1)]
    if len(graphs) == 1:
        return graphs[0]
    directed = any(graph.directed for graph in graphs)
    arcs = [_both_ways(graph) if directed else graph.edges for graph in graphs]
    return Topology.from_edges(schedule.n, np.concatenate(arcs), schedule.name, directed)


def _both_ways(graph: Topology) -> IntArray:
    return graph.edges if graph.directed else np.concatenate([graph.edges, graph.edges[:, ::-1]])
