"""Which mixing is used in which round.

    Mixing   the same in every round; see `mixing`
    Cycle    a list of rounds that repeats; see `cycles`
    Random   every round drawn afresh; see `random_schedules`
    Endless  every round another one, of the user's own

The mixing of round r is a function of (seed, r, n) alone, so that all peers agree on it without talking about it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedgossip import seeds
from fedgossip.topology.graph import FloatArray, IntArray, Topology
from fedgossip.topology.mixing import Mixing

if TYPE_CHECKING:
    from fedgossip.topology.mixing import Stochastic

KEPT = 16  # rounds of a random schedule in memory: the peers of a simulation are a few rounds apart at most


class Schedule(Protocol):
    """One mixing per round.  A plain Mixing is a Schedule of period 1."""

    @property
    def n(self) -> int:
        """The number of nodes, the same in every round."""
        ...

    @property
    def name(self) -> str:
        """What the schedule is called, in summaries and errors."""
        ...

    @property
    def rule(self) -> str:
        """What the weights are called."""
        ...

    @property
    def stochastic(self) -> Stochastic:
        """What every round keeps to; see mixing.Stochastic."""
        ...

    @property
    def period(self) -> int:
        """After how many rounds the mixings repeat; 0 where they never do."""
        ...

    def mixing(self, round: int) -> Mixing:
        """Return the mixing of `round`, counted from 0."""
        ...

    def partners(self, node: int) -> tuple[int, ...]:
        """Return all that `node` may ever send to or hear from, ascending."""
        ...


@dataclass(frozen=True, eq=False)
class Cycle:
    """Rounds that repeat after `period`; make(phase) gives the mixing of each, and is asked once."""

    name: str
    n: int
    period: int
    rule: str
    make: Callable[[int], Mixing]
    algorithm: str | None = None
    """The one algorithm that these rounds are for; None: any that averages.  By itself the product is no mean then."""
    stochastic: Stochastic = "both"

    def mixing(self, round: int) -> Mixing:
        """Return the mixing of `round`."""
        return self._made(round % self.period)

    def partners(self, node: int) -> tuple[int, ...]:
        """Return all that `node` sends to or hears from in one period, ascending."""
        return tuple(sorted({other for phase in range(self.period) for other in self.mixing(phase).partners(node)}))

    @cached_property
    def _made(self) -> Callable[[int], Mixing]:
        return lru_cache(maxsize=self.period)(self.make)


@dataclass(frozen=True, eq=False)
class Random:
    """Rounds that never repeat, each drawn from its own stream of random numbers.

    contraction: what a round leaves, in expectation, of sum_i ||x_i - mean||^2 in every direction; None where no
    formula is known, and where directions differ.  moment: of those, M -> E[W' M W], dense [n, n], which says all.
    """

    name: str
    n: int
    rule: str
    seed: int
    draw: Callable[[np.random.Generator], Mixing]
    contraction: float | None
    stochastic: Stochastic = "both"
    moment: Callable[[FloatArray], FloatArray] | None = None

    @property
    def period(self) -> int:
        """0: rounds never repeat."""
        return 0

    def mixing(self, round: int) -> Mixing:
        """Return the mixing of `round`."""
        return self._drawn(round)

    def partners(self, node: int) -> tuple[int, ...]:
        """Return everybody else."""
        return (*range(node), *range(node + 1, self.n))

    @cached_property
    def _drawn(self) -> Callable[[int], Mixing]:
        return lru_cache(maxsize=KEPT)(lambda round: self.draw(seeds.stream(self.seed, "schedule", round)))


@dataclass(frozen=True, eq=False)
class Endless:
    """Rounds that never repeat: make(round) gives the mixing of each, links(node) all whom it may ever meet."""

    name: str
    n: int
    rule: str
    make: Callable[[int], Mixing]
    links: Callable[[int], Sequence[int]]
    stochastic: Stochastic = "both"

    @property
    def period(self) -> int:
        """0: rounds never repeat."""
        return 0

    def mixing(self, round: int) -> Mixing:
        """Return the mixing of `round`."""
        return self._made(round)

    def partners(self, node: int) -> tuple[int, ...]:
        """Return all that `node` may ever send to or hear from, ascending."""
        return tuple(sorted(self.links(node)))

    @cached_property
    def _made(self) -> Callable[[int], Mixing]:
        return lru_cache(maxsize=KEPT)(self.make)


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
