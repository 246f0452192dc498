"""Received models until their round is mixed, the round in exchange, and each round's graph as seen by one peer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedgossip.core.machine import NodeId
from fedgossip.core.messages import Model, RelaySum

FAR_ROUNDS, FAR_TIMES = 64, 3
"""A neighbour more than FAR_ROUNDS ahead is followed if a second one confirms it, or after FAR_TIMES messages.

It may be half of a partitioned network; a single message may be forged.
"""


class Mailbox:
    """One peer's mailbox.  `leads`: number of rounds that each neighbour can be ahead.

    Per neighbour it stores the models of the current round, of `leads` after it, and one more, for any messages in any
    order.
    """

    def __init__(self, leads: Mapping[NodeId, int]) -> None:
        self.leads = leads
        self.of: dict[int, dict[NodeId, Model | RelaySum]] = {}
        """Received models by round and sender; rounds without models have no entry."""
        self.newest: dict[NodeId, int] = {}
        """The latest round seen in each neighbour's messages."""
        self._far: dict[NodeId, set[int]] = {}  # each neighbour's announced rounds far ahead

    def note_round(self, node: NodeId, round: int) -> None:
        """Record a round number in a message of the neighbour."""
        if round > self.newest.get(node, -1):
            self.newest[node] = round

    def has(self, node: NodeId, round: int) -> bool:
        return node in self.of.get(round, ())

    def get_received(self, round: int) -> Mapping[NodeId, Model | RelaySum]:
        """Return the received models of a round, by sender."""
        return self.of.get(round, {})

    def rounds(self, node: NodeId) -> list[int]:
        """Return the rounds with a received model of the neighbour, ascending."""
        return sorted(round for round, here in self.of.items() if node in here)

    def keep(self, node: NodeId, model: Model | RelaySum, current: int) -> bool:
        """Store a model of round `current` or later; return False for a duplicate."""
        round = model.round
        here = self.of.get(round)
        if here is None:
            here = self.of[round] = {}
        elif node in here:
            return False
        here[node] = model
        last = current + self.leads.get(node, LEAD_ROUNDS)
        if max(self.of) <= last:
            return True
        rounds = self.rounds(node)
        if rounds[-1] > last:  # the neighbour went on without us, so these will not be used
            for stale in rounds[:-1]:
                if stale != current:
                    self._drop(node, stale)
        return True

    def _drop(self, node: NodeId, round: int) -> None:
        del self.of[round][node]
        if not self.of[round]:
            del self.of[round]

    def go_to(self, round: int) -> None:
        """Drop the rounds before `round`."""
        self.of.pop(round - 1, None)  # mostly the only one
        for old in [one for one in self.of if one < round] if self.of else ():
            del self.of[old]

    def reborn(self, node: NodeId, current: int | None) -> None:
        """Drop everything of a partner's earlier incarnation except its model of round `current`."""
        self.newest.pop(node, None)
        for round in self.rounds(node):
            if round != current:
                self._drop(node, round)

    def clear(self) -> None:
        self.of.clear()

    def unbelieved(self, listening: Collection[NodeId], current: int) -> list[tuple[NodeId, int]]:
        """Drop and return far-ahead rounds reported by only one of the `listening`, unless it has repeated them."""
        newest = {j: max(self.rounds(j), default=current) for j in listening}
        believed = sorted(newest.values())[-2] if len(newest) > 1 else max(newest.values(), default=current)
        alone = [
            (j, r) for j, r in newest.items() if r > believed + FAR_ROUNDS and self._count_claims(j, r) < FAR_TIMES
        ]
        for node, round in alone:
            self._drop(node, round)
        return alone

    def _count_claims(self, node: NodeId, round: int) -> int:
        self._far[node] = {round, *(r for r in self._far.get(node, ()) if round - FAR_ROUNDS < r < round)}
        return len(self._far[node])

    def ahead(self, current: int) -> list[tuple[NodeId, int]]:
        """Return the latest round of each neighbour with a received model of a round after `current`."""
        latest: dict[NodeId, int] = {}
        for round in sorted(self.of) if len(self.of) > 1 or current not in self.of else ():
            if round > current:
                latest.update(dict.fromkeys(self.of[round], round))
        return list(latest.items())


@dataclass(slots=True)
class Sources:
    """The senders to this peer in a round: `all`, and `missing`, those without a received vector."""

    all: frozenset[NodeId] = frozenset()
    missing: set[NodeId] = field(default_factory=set)

    @classmethod
    def from_nodes(cls, nodes: Iterable[NodeId], here: Callable[[NodeId], bool]) -> Sources:
        every = frozenset(nodes)
        return cls(every, {node for node in every if not here(node)})

    @property
    def alone(self) -> bool:
        """Whether no source has sent; the round then takes its usual time, or this peer would run far ahead."""
        return bool(self.missing) and self.missing == self.all


@dataclass(frozen=True, slots=True)
class OwnWeights:
    """One node's part of a mixing: `row` has the weight of each source, ids ascending; `targets` are its receivers.

    `others`: the row's other nodes; `one_way`: those of them that do not receive from it.
    """

    row: dict[NodeId, float] = field(default_factory=dict)
    targets: tuple[NodeId, ...] = ()
    others: frozenset[NodeId] = frozenset()
    one_way: frozenset[NodeId] = frozenset()
    met: frozenset[NodeId] = frozenset()
    """All other nodes of the row, and all targets."""

    @classmethod
    def from_mixing(cls, node: NodeId, mixing: RoundWeights) -> OwnWeights:
        row, targets = mixing.row(node), mixing.targets(node)
        others = frozenset(row.keys() - {node})
        return cls(row, targets, others, others.difference(targets), others.union(targets))


@dataclass(slots=True)
class ExchangedRound:
    """A round at the time when its vectors were sent: later changes of the roster do not affect it.

    `sources` are the other nodes of `row`; with this peer's weight their weights sum to one.
    """

    row: dict[NodeId, float] = field(default_factory=dict)
    one_way: frozenset[NodeId] = frozenset()
    sources: Sources = field(default_factory=Sources)

    @classmethod
    def from_weights(cls, own: OwnWeights, here: Collection[NodeId]) -> ExchangedRound:
        """Return the round of a node with these weights; the models of the nodes `here` have already arrived."""
        return cls(own.row, own.one_way, Sources(own.others, set(own.others).difference(here)))


LEAD_ROUNDS = 16
"""Number of rounds ahead for which a partner's models are stored if the graph never repeats."""


class RoundWeights(Protocol):
    """One round's mixing, as seen by one peer."""

    def row(self, node: NodeId) -> dict[NodeId, float]: ...
    def targets(self, node: NodeId) -> tuple[NodeId, ...]: ...


class MixingSchedule(Protocol):
    """The mixing of each round; the graph of round r is a pure function of r.  `period` 0: it never repeats.

    If the roster can change, `view(round)` identifies the participants of a round.
    """

    @property
    def period(self) -> int: ...
    def mixing(self, round: int) -> RoundWeights: ...
    def partners(self, node: NodeId) -> tuple[NodeId, ...]: ...


def leads_of(node: NodeId, schedule: MixingSchedule, partners: Sequence[NodeId]) -> dict[NodeId, int]:
    """Return the number of rounds that each partner can be ahead of `node` while no peer misses a deadline.

    A peer needs its sources' models of every round, so its lead is at most the number of links on the path from `node`
    to it; a link of a schedule may be used once in a `period`.
    """
    if not schedule.period:
        return dict.fromkeys(partners, LEAD_ROUNDS)
    hops, ring = {node: 0}, [node]
    while ring and not set(partners) <= hops.keys():
        after = {
            to for at in ring for r in range(schedule.period) for to in schedule.mixing(r).targets(at) if to not in hops
        }
        hops.update(dict.fromkeys(after, hops[ring[0]] + 1))
        ring = sorted(after)
    return {partner: schedule.period * hops.get(partner, 1) for partner in partners}


def has_skipped(schedule: MixingSchedule, node: NodeId, until: int, needed: NodeId, round: int) -> bool:
    """Whether `node`, now in round `until`, has advanced from `round` without the model of `needed`."""
    last = min(until, round + (schedule.period or LEAD_ROUNDS))
    return any(node in schedule.mixing(r).targets(needed) for r in range(round, last))


def is_constant(schedule: MixingSchedule) -> bool:
    """Return whether every round has the same mixing: one graph and a fixed roster."""
    return schedule.period == 1 and not hasattr(schedule, "view")


def view_of(schedule: MixingSchedule, round: int) -> str:
    """Return the identifier of the set of participants of `round`; "" for a fixed roster."""
    view = getattr(schedule, "view", None)
    return str(view(round)) if view else ""
