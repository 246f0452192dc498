"""The round that is exchanged: of whom something of it is to come, and under which weights it is mixed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from fedgossip.core.machine import NodeId
from fedgossip.protocols.gossip.mixing_schedule import RoundWeights


@dataclass(slots=True)
class Sources:
    """Those that send to us in a round.  `missing`, of whom nothing of it is here, are among `all`."""

    all: frozenset[NodeId] = frozenset()
    missing: set[NodeId] = field(default_factory=set)

    @classmethod
    def of(cls, nodes: Iterable[NodeId], here: Callable[[NodeId], bool]) -> Sources:
        every = frozenset(nodes)
        return cls(every, {node for node in every if not here(node)})

    @property
    def alone(self) -> bool:
        """Whether nobody takes part but us; the round then takes its usual time, or we would run away."""
        return bool(self.missing) and self.missing == self.all


@dataclass(frozen=True, slots=True)
class OwnWeights:
    """What a mixing says of one node: `row` by what it weighs whom, ids ascending; `targets` whom it sends to.

    `others` are those of the row but itself; `one_way`, of them, do not hear it.
    """

    row: dict[NodeId, float] = field(default_factory=dict)
    targets: tuple[NodeId, ...] = ()
    others: frozenset[NodeId] = frozenset()
    one_way: frozenset[NodeId] = frozenset()
    met: frozenset[NodeId] = frozenset()
    """All of the row but itself, and whom it sends to."""

    @classmethod
    def of(cls, node: NodeId, mixing: RoundWeights) -> OwnWeights:
        row, targets = mixing.row(node), mixing.targets(node)
        others = frozenset(row.keys() - {node})
        return cls(row, targets, others, others.difference(targets), others.union(targets))


@dataclass(slots=True)
class ExchangedRound:
    """A round as its vectors went out: a roster that changes meanwhile changes nothing of it.

    `sources` are those of `row` but ourselves, whose weights with our own sum to one; `one_way`, of them, do not hear
    us.
    """

    row: dict[NodeId, float] = field(default_factory=dict)
    one_way: frozenset[NodeId] = frozenset()
    sources: Sources = field(default_factory=Sources)

    @classmethod
    def of(cls, own: OwnWeights, here: Collection[NodeId]) -> ExchangedRound:
        """The round of a node with these weights, where what those `here` give is here already."""
        return cls(own.row, own.one_way, Sources(own.others, set(own.others).difference(here)))
