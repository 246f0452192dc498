"""The accounts of sent mass: a parcel belongs to its sender until its acceptance is received.

        at its sender      out --Accepted(number)--> gone          at most one per receiver; sent again until then
                            \\--Leaving(used < number)--> back       the receiver takes no more: it is the sender's
                            again
        at its receiver    number > taken: taken, and Accepted; otherwise a repetition: Accepted again

So no mass is lost and none counts twice, despite loss, repetition and reordering.

A share of mass is one array per slot of the algorithm, its weight, float64 [1], the last; a parcel carries the weight
as a number in the header.
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
    """One peer's accounts with all its out- and in-neighbours."""

    def __init__(self, life: int) -> None:
        self.life = life
        self.out: dict[NodeId, Parcel] = {}
        """Sent, and not yet accepted."""
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
        """Return whether parcel `number` can be ours: an earlier life's numbers are unknown."""
        return number <= max(self.sent.get(to, -1), self.life * LIFE - 1)

    def accepted(self, to: NodeId, number: int) -> bool:
        """Drop an accepted parcel; return whether there was one."""
        if to not in self.out or self.out[to].number > number:
            return False
        del self.out[to]
        return True

    def take(self, sender: NodeId, number: int) -> bool:
        """Mark the parcel as taken; return whether it is new."""
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
    """Return the mass in the parcel."""
    return *parcel.vectors, weight_of(parcel.weight)


def weight_of(number: float) -> Vector:
    """Return a weight in the algorithms' form: float64 [1]."""
    return frozen(np.array([number]))
