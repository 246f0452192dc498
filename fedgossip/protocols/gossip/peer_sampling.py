"""Choose the partner of a peer's next exchange: a function of the seed, the peer, a count, and measured times.

    uniform     any neighbour, with equal chances: the model in which the rates of gossip are known (Boyd et al. 2006)
    matching    the neighbours in turn, by a colouring of the edges: peers of equal speed meet in pairs
        speed       partners with shorter answer times more often, but none never

Under every rule an exchange adds to one model what it takes from the other: the mean does not depend on the pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedgossip.base import seeds
from fedgossip.core.machine import NodeId

RULES = ("uniform", "matching", "speed")

FLOOR = 0.2
"""Share of the choices that `speed` makes uniformly, so that a slow neighbour is measured again."""


class Rule(Protocol):
    def choose(self, count: int, there: Sequence[NodeId], times_ns: Mapping[NodeId, int]) -> NodeId:
        """Return one of `there`, ascending and not empty, for the exchange `count`.

        `times_ns` is the answer time of each partner; one without an answer so far has no entry.
        """
        ...


@dataclass(frozen=True)
class UniformPartner:
    seed: int
    node: NodeId

    def choose(self, count: int, there: Sequence[NodeId], times_ns: Mapping[NodeId, int]) -> NodeId:
        del times_ns
        return there[seeds.integer(self.seed, "partner", self.node, count) % len(there)]


class Matching:
    """`edges` of the whole graph, so that both ends of an edge give it the same colour."""

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
    """Return a colour 0, 1, ... for each edge (u < v), so that no two at a node have the same.

    Greedy in ascending order: fewer than twice as many colours as the largest degree; on the complete graph of 2^k
    nodes the edge {u, v} gets u xor v, less one, which is a perfect matching in each round.
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
