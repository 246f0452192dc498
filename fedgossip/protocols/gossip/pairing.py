"""The moment and the partner of an asynchronous peer's next offer.

The partner is a function of the seed, the peer, a count, and measured times:

    uniform     any neighbour, with equal chances: the model with known rates of gossip (Boyd et al. 2006)
    matching    the neighbours in turn, by a colouring of the edges: peers of equal speed meet in pairs
    speed       partners with shorter answer times more often, but none never

Under every rule an exchange subtracts the same vector from one model and adds it to the other: the mean does not depend
on the pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedgossip.base import seeds
from fedgossip.core.machine import NodeId

ATTEMPTS = 2
"""Maximum number of partners tried in one exchange: after one decline a peer tries another neighbour."""

DOUBLINGS = 10
"""Maximum number of doublings of the wait before the only partner gets another offer."""

SPREAD = 4
"""Minimum spread of offers, in answer times: a peer is busy for at most a third of its time."""

LEAST_SPREAD_NS = 1_000_000

MEMORY = 4
"""Approximate number of samples in the running mean of answer times."""


@dataclass(frozen=True, slots=True)
class Flight:
    """The offer in flight."""

    to: NodeId
    number: int
    sent_ns: int


class Pairing:
    """Schedules one peer's offers; `count` numbers them for the seeded draws.

    A due exchange is not scheduled, scheduled (`planned`), or in flight (`flight`).  It ends with the ATTEMPTS-th
    partner that declines; with fewer partners the offer is repeated, after doubling waits.
    """

    def __init__(self, node: NodeId, rule: Rule, seed: int, exchanges: int, count: int = 0) -> None:
        self.node, self.rule, self.seed, self.exchanges = node, rule, seed, exchanges
        self.count = count
        self.due = 0  # number of exchanges to begin
        self.planned = False  # whether the next offer is scheduled
        self.flight: Flight | None = None
        self.tried: set[NodeId] = set()  # partners that declined in this exchange
        self.declines = 0  # in this exchange
        self.usual_ns = 0  # mean answer time over all partners
        self.times_ns: dict[NodeId, int] = {}

    def more(self) -> None:
        """Add the exchanges of a trained round."""
        self.due += self.exchanges

    def moment_ns(self, training_ns: int | None) -> int | None:
        """Schedule the next offer and return the wait in nanoseconds; None if none is due.

        `training_ns`: expected duration of the current training; None without one.
        """
        if not self.due or self.flight or self.planned:
            return None
        self.planned = True
        self.count += 1
        share = seeds.integer(self.seed, "moment", self.node, self.count) / 2**63
        return int(share * self._spread_ns(training_ns)) << min(max(0, self.declines - ATTEMPTS), DOUBLINGS)

    def _spread_ns(self, training_ns: int | None) -> int:
        least = max(SPREAD * self.usual_ns, LEAST_SPREAD_NS)
        return least if training_ns is None else max(least, (training_ns - self.usual_ns) // self.exchanges)

    def choose(self, there: Sequence[NodeId]) -> NodeId | None:
        """Return the target of the scheduled offer from `there`, ascending, untried ones first; None if empty."""
        self.planned = False
        untried = [node for node in there if node not in self.tried]
        return self.rule.choose(self.count, untried or there, self.times_ns) if there else None

    def begin(self, to: NodeId, number: int, now_ns: int) -> None:
        self.flight = Flight(to, number, now_ns)

    def flies_to(self, node: NodeId) -> bool:
        return self.flight is not None and self.flight.to == node

    def answered(self, node: NodeId, now_ns: int) -> int:
        """Record the answer to the offer in flight; return its duration."""
        taken_ns = self._landed(now_ns)
        self.times_ns[node] = running(self.times_ns.get(node, taken_ns), taken_ns)
        return taken_ns

    def declined(self, node: NodeId, now_ns: int) -> bool:
        """Record that the offer in flight is declined; return whether another may be tried."""
        self._landed(now_ns)
        self.tried.add(node)
        self.declines += 1
        return len(self.tried) < ATTEMPTS

    def _landed(self, now_ns: int) -> int:
        assert self.flight is not None, "no offer is on the way"
        taken_ns = now_ns - self.flight.sent_ns
        self.usual_ns = running(self.usual_ns or taken_ns, taken_ns)
        self.flight = None
        return taken_ns

    def over(self) -> None:
        """Remove one exchange from those due: it was made, or is impossible."""
        self.flight = None
        self.tried.clear()
        self.declines = 0
        self.due = max(0, self.due - 1)


def running(before: int, now: int) -> int:
    """Return the running mean after the sample `now`."""
    return before + (now - before) // MEMORY


RULES = ("uniform", "matching", "speed")

FLOOR = 0.2
"""Share of the choices that `speed` makes uniformly, so that a slow neighbour is measured again."""


class Rule(Protocol):
    def choose(self, count: int, there: Sequence[NodeId], times_ns: Mapping[NodeId, int]) -> NodeId:
        """Return one of `there`, ascending and not empty, for the exchange `count`.

        `times_ns`: the answer time of each partner; unmeasured partners have no entry.
        """


@dataclass(frozen=True)
class UniformPartner:
    seed: int
    node: NodeId

    def choose(self, count: int, there: Sequence[NodeId], times_ns: Mapping[NodeId, int]) -> NodeId:
        del times_ns
        return there[seeds.integer(self.seed, "partner", self.node, count) % len(there)]


class Matching:
    """`edges` of the whole graph, so that both ends of an edge assign the same colour to it."""

    def __init__(self, node: NodeId, edges: Iterable[tuple[NodeId, NodeId]]) -> None:
        colours = edge_colours(edges)
        self._colours = max(colours.values(), default=0) + 1
        self._of = {u + v - node: colour for (u, v), colour in colours.items() if node in (u, v)}

    def choose(self, count: int, there: Sequence[NodeId], times_ns: Mapping[NodeId, int]) -> NodeId:
        """Return the neighbour on the edge with this count's colour, or with the next existing colour."""
        del times_ns
        return min(there, key=lambda node: ((self._of.get(node, 0) - count) % self._colours, node))


@dataclass(frozen=True)
class Speed:
    seed: int
    node: NodeId

    def choose(self, count: int, there: Sequence[NodeId], times_ns: Mapping[NodeId, int]) -> NodeId:
        """Return a draw with chances inverse to answer times; unmeasured peers count as the fastest."""
        fastest = min((times_ns[node] for node in there if node in times_ns), default=1)
        shares = [1.0 / max(1, times_ns.get(node, fastest)) for node in there]
        total = sum(shares)
        drawn = seeds.integer(self.seed, "partner", self.node, count) / 2**63
        for node, share in zip(there, shares, strict=True):
            drawn -= FLOOR / len(there) + (1.0 - FLOOR) * share / total
            if drawn < 0:
                return node
        return there[-1]


def rule_of(name: str, node: NodeId, seed: int, edges: Iterable[tuple[NodeId, NodeId]]) -> Rule:
    """Return the rule called `name`; `edges` are those of the whole graph."""
    assert name in RULES, name
    if name == "matching":
        return Matching(node, edges)
    return UniformPartner(seed, node) if name == "uniform" else Speed(seed, node)


def edge_colours(edges: Iterable[tuple[NodeId, NodeId]]) -> dict[tuple[NodeId, NodeId], int]:
    """Return a colour 0, 1, ... for each edge (u < v), so that no two edges at a node have the same.

    Greedy in ascending order: fewer than twice the largest degree.  The complete graph of 2^k nodes gets u xor v - 1: a
    perfect matching in each round.
    """
    taken: dict[NodeId, set[int]] = {}
    colours: dict[tuple[NodeId, NodeId], int] = {}
    for u, v in sorted({(min(edge), max(edge)) for edge in edges}):
        both = taken.setdefault(u, set()) | taken.setdefault(v, set())
        colour = next(colour for colour in range(len(both) + 1) if colour not in both)
        colours[u, v] = colour
        taken[u].add(colour)
        taken[v].add(colour)
    return colours
