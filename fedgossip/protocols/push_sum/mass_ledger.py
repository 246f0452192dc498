"""The accounts of mass that is given away: a parcel is its sender's until it is known to be accepted.

    at its sender      out --Accepted(number)--> gone          at most one per receiver; sent again until then
                        \\--Leaving(used < number)--> back       the receiver takes no more: it is the sender's again
    at its receiver    number > taken: taken, and Accepted; otherwise it was taken before: Accepted again

So nothing is lost and nothing counts twice, whatever is lost, repeated or overtaken on the way.

A share of mass is one array per slot of the algorithm, its weight, float64 [1], the last; in a parcel the weight is a
number in the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgossip.algorithms.gossip.base import Vectors
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import Parcel

LIFE = 1 << 32
"""The numbers of each life of a peer begin at a multiple of this: no parcel is taken for one of an earlier life."""


class Arcs:
    """One peer's accounts with all it sends to and hears from."""

    def __init__(self, life: int) -> None:
        self.life = life
        self.out: dict[NodeId, Parcel] = {}
        """Given away, and not known to be accepted."""
        self.sent: dict[NodeId, int] = {}
        """The newest number to each."""
        self.taken: dict[NodeId, int] = {}
        """The newest number from each."""

    def pack(self, to: NodeId, round: int, schema: str, share: Vectors) -> Parcel:
        assert to not in self.out, "the last parcel is not accepted"
        number = max(self.sent.get(to, -1) + 1, self.life * LIFE)
        self.sent[to] = number
        *vectors, weight = share
        self.out[to] = parcel = Parcel(number, round, schema, tuple(vectors), float(weight[0]))
        return parcel

    def may_have_sent(self, to: NodeId, number: int) -> bool:
        """Whether parcel `number` can be ours: what an earlier life has sent, this one may not know."""
        return number <= max(self.sent.get(to, -1), self.life * LIFE - 1)

    def accepted(self, to: NodeId, number: int) -> bool:
        """Forget what was accepted; tell whether that was any."""
        if to not in self.out or self.out[to].number > number:
            return False
        del self.out[to]
        return True

    def take(self, sender: NodeId, number: int) -> bool:
        """Tell whether the parcel is new; it counts as taken from now on."""
        if number <= self.taken.get(sender, -1):
            return False
        self.taken[sender] = number
        return True

    # --- for a new life of this peer ------------------------------------------------------------------------------

    def saved(self) -> tuple[dict[str, Vector], dict[str, object]]:
        vectors = {f"out/{to}/{k}": one for to, parcel in self.out.items() for k, one in enumerate(parcel.vectors)}
        return vectors, {
            "life": self.life,
            "sent": {str(to): number for to, number in self.sent.items()},
            "taken": {str(sender): number for sender, number in self.taken.items()},
            "out": {str(to): [p.number, p.round, p.weight, len(p.vectors)] for to, p in self.out.items()},
        }

    @classmethod
    def restored(cls, vectors: Mapping[str, Vector], facts: Mapping[str, Any], schema: str, life: int) -> Arcs:
        arcs = cls(max(life, facts["life"] + 1))
        arcs.sent = {int(to): number for to, number in facts["sent"].items()}
        arcs.taken = {int(sender): number for sender, number in facts["taken"].items()}
        arcs.out = {
            int(to): Parcel(number, round, schema, tuple(vectors[f"out/{to}/{k}"] for k in range(int(count))), weight)
            for to, (number, round, weight, count) in facts["out"].items()
        }
        return arcs


def share_of(parcel: Parcel) -> Vectors:
    """What the parcel holds."""
    return *parcel.vectors, weight_of(parcel.weight)


def weight_of(number: float) -> Vector:
    """A weight as the algorithms have it: float64 [1]."""
    return frozen(np.array([number]))
