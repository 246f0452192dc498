"""The round that is exchanged: its sources, received and missing, and the weights of its mixing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from fedgossip.core.machine import NodeId
from fedgossip.protocols.gossip.mixing_schedule import RoundWeights


@dataclass(slots=True)
class Sources:
    """The peers that send to us in a round: `all`, and `missing`, those of them without a received vector."""

    all: frozenset[NodeId] = frozenset()
    missing: set[NodeId] = field(default_factory=set)

    @classmethod
    def of(cls, nodes: Iterable[NodeId], here: Callable[[NodeId], bool]) -> Sources:
        every = frozenset(nodes)
        return cls(every, {node for node in every if not here(node)})

    @property
    def alone(self) -> bool:
        """Whether no source has sent; the round then takes its usual time, or this peer would run away."""
        return bool(self.missing) and self.missing == self.all


@dataclass(frozen=True, slots=True)
class OwnWeights:
    """One node's part of a mixing: `row` has the weight of each source, ids ascending; `targets` are its receivers.

    `others` are those of the row but itself; `one_way`, of them, do not receive from it.
    """

    row: dict[NodeId, float] = field(default_factory=dict)
    targets: tuple[NodeId, ...] = ()
    others: frozenset[NodeId] = frozenset()
    one_way: frozenset[NodeId] = frozenset()
    met: frozenset[NodeId] = frozenset()
    """All of the row but itself, and all targets."""

    @classmethod
    def of(cls, node: NodeId, mixing: RoundWeights) -> OwnWeights:
        row, targets = mixing.row(node), mixing.targets(node)
        others = frozenset(row.keys() - {node})
        return cls(row, targets, others, others.difference(targets), others.union(targets))


@dataclass(slots=True)
class ExchangedRound:
    """A round as it was when its vectors were sent: later changes of the roster do not affect it.

    `sources` are those of `row` but ourselves, with weights that sum to one with our own; `one_way`, of them, do not
    receive from us.
    """

    row: dict[NodeId, float] = field(default_factory=dict)
    one_way: frozenset[NodeId] = frozenset()
    sources: Sources = field(default_factory=Sources)

    @classmethod
    def of(cls, own: OwnWeights, here: Collection[NodeId]) -> ExchangedRound:
        """Return the round of a node with these weights; the models of the nodes `here` are received already."""
        return cls(own.row, own.one_way, Sources(own.others, set(own.others).difference(here)))
