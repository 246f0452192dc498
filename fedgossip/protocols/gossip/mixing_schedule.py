"""The graph of each round from one peer's view, and how far others can be ahead on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fedgossip.core.machine import NodeId

LEAD_ROUNDS = 16
"""Number of rounds ahead for which a partner's models are kept where the graph never repeats."""


class RoundWeights(Protocol):
    """One round's mixing, from one peer's view."""

    def row(self, node: NodeId) -> dict[NodeId, float]: ...
    def targets(self, node: NodeId) -> tuple[NodeId, ...]: ...


class MixingSchedule(Protocol):
    """The mixing of each round; the graph of round r is a pure function of r.  `period` 0: it never repeats.

    Where the roster can change there is also a method `view(round)`, which names the set of participants of a round.
    """

    @property
    def period(self) -> int: ...
    def mixing(self, round: int) -> RoundWeights: ...
    def partners(self, node: NodeId) -> tuple[NodeId, ...]: ...


def leads_of(node: NodeId, schedule: MixingSchedule, partners: Sequence[NodeId]) -> dict[NodeId, int]:
    """Return how many rounds each partner can be ahead of `node` while no peer misses a deadline.

    A peer needs, in every round, the models that its sources sent in that round; so it is ahead of us by at most one
    round per link on the path from us to it, where a link of a schedule may be used once in a period.
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


def given_up(schedule: MixingSchedule, node: NodeId, until: int, needed: NodeId, round: int) -> bool:
    """Whether `node`, which is in round `until`, has gone on from `round` without the model of `needed`."""
    last = min(until, round + (schedule.period or LEAD_ROUNDS))
    return any(node in schedule.mixing(r).targets(needed) for r in range(round, last))


def is_constant(schedule: MixingSchedule) -> bool:
    """Return whether every round has the same mixing: one graph and a fixed roster."""
    return schedule.period == 1 and not hasattr(schedule, "view")


def view_of(schedule: MixingSchedule, round: int) -> str:
    """Return the name of the set of participants of `round`; empty for a fixed roster."""
    view = getattr(schedule, "view", None)
    return str(view(round)) if view else ""
