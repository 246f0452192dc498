"""The participants of a round: a function of (seed, round) and of the present clients.

Every round puts all clients in an order of its own; the first of them that are there are invited.  So a missing client
changes only its own place, and a restarted coordinator draws the same cohort.

    uniform     every cohort of the wanted size is as likely
    by size     a client is first with a probability proportional to its examples (Efraimidis and Spirakis, Weighted
                random sampling with a reservoir, Information Processing Letters 97, 2006): keys u^(1/size), descending
    Poisson     each client alone, with probability q: the cohort's size varies, and may be 0.  What accountants of
                differential privacy assume (Mironov, Talwar and Zhang, 2019)

Over-selection (Bonawitz et al., Towards federated learning at scale, MLSys 2019): more are invited than are waited for,
1.3 times as many there, and the round ends with the first that answer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from fedgossip.base.seeds import stream
from fedgossip.core.machine import NodeId


@dataclass(frozen=True, slots=True)
class Draw:
    """`invited`, ascending; the round has all it wants with the first `wanted` answers."""

    invited: tuple[NodeId, ...]
    wanted: int


class Sampling(Protocol):
    """Rules for drawing cohorts."""

    def draw(self, round: int, here: Collection[NodeId]) -> Draw:
        """The cohort of `round` of those that are `here`."""
        ...


@dataclass(frozen=True)
class Uniform:
    """`count` of the clients, or all that are there; `over` times as many are invited, 1 or more."""

    seed: int
    clients: Sequence[NodeId]
    count: int
    over: float = 1.0

    def draw(self, round: int, here: Collection[NodeId]) -> Draw:
        order = stream(self.seed, "cohort", round).permutation(len(self.clients))
        return _first((self.clients[int(place)] for place in order), here, self.count, self.over)


@dataclass(frozen=True)
class BySize:
    """The same, larger clients more often; `sizes` are numbers of examples, above 0."""

    seed: int
    sizes: Mapping[NodeId, int]
    count: int
    over: float = 1.0

    def draw(self, round: int, here: Collection[NodeId]) -> Draw:
        clients = sorted(self.sizes)
        draws = stream(self.seed, "cohort", round).random(len(clients))
        keys = {node: math.log(1 - u) / self.sizes[node] for node, u in zip(clients, draws, strict=True)}
        return _first(sorted(clients, key=lambda node: (-keys[node], node)), here, self.count, self.over)


@dataclass(frozen=True)
class Poisson:
    """Each of the clients with probability `rate`; all that are invited are wanted."""

    seed: int
    clients: Sequence[NodeId]
    rate: float

    def draw(self, round: int, here: Collection[NodeId]) -> Draw:
        coins = stream(self.seed, "cohort", round).random(len(self.clients))
        there, present = np.flatnonzero(coins < self.rate), here if isinstance(here, Set | range) else frozenset(here)
        invited = tuple(sorted(node for node in (self.clients[int(place)] for place in there) if node in present))
        return Draw(invited, len(invited))


def _first(order: Iterable[NodeId], here: Collection[NodeId], count: int, over: float) -> Draw:
    """The first that are here; ceil(count * over) of them.  The cost follows the cohort, where nearly all are here."""
    several = math.ceil(count * over - 1e-9)  # 10 * 1.1 is a little more than 11
    present = here if isinstance(here, Set | range) else frozenset(here)
    invited = list(islice((node for node in order if node in present), several))
    return Draw(tuple(sorted(invited)), min(count, len(invited)))


def participating(clients: int, participation: float) -> int:
    """Return how many a share of `clients` is: at least one."""
    return max(1, round(clients * participation))
