"""Shares of mass that have come, by sender and round, until the round in which they count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedgossip.algorithms.gossip.base import Vectors
from fedgossip.base.vectors import Vector, add
from fedgossip.core.machine import NodeId
from fedgossip.protocols.push_sum.mass_ledger import weight_of

Come = list[tuple[NodeId, int, Vectors]]
"""Sender, round and share of what has come."""


class ParcelMail:
    """One peer's.  `leads`: how many rounds ahead each in-neighbour can be.

    All mass that is put is taken once: the sum over all shares and the late one is that of what was put, less that of
    what was taken.  Of a sender are at most as many as rounds that it can be in; what is of another round is late, in
    one sum, whatever is sent.
    """

    def __init__(self, leads: Mapping[NodeId, int]) -> None:
        self.leads = leads
        self.kept: dict[NodeId, dict[int, Vectors]] = {}
        self.late: Vectors | None = None
        self.none: dict[NodeId, int] = {}
        """The last round in which nothing comes of each."""

    def put(self, sender: NodeId, round: int, share: Vectors, current: int) -> None:
        """Keep a share that was given in `round`; ours is `current`."""
        if current <= round <= current + self.leads.get(sender, 0) and round not in self.kept.get(sender, ()):
            self.kept.setdefault(sender, {})[round] = share
        else:
            self.late = share if self.late is None else tuple(map(add, self.late, share))
        self.none_comes(sender, round - 1)

    def none_comes(self, sender: NodeId, round: int) -> None:
        """Nothing comes of `sender` up to `round` but what is here."""
        self.none[sender] = max(round, self.none.get(sender, -1))

    def has(self, sender: NodeId, round: int) -> bool:
        return round in self.kept.get(sender, ())

    def take(self, until: int) -> Come:
        """Return all of rounds up to `until`, by ascending senders and rounds; the late sum is `take_late`'s."""
        due = [(j, r) for j, kept in sorted(self.kept.items()) for r in sorted(kept) if r <= until]
        return [(j, r, self.kept[j].pop(r)) for j, r in due]

    def take_late(self) -> Vectors | None:
        late, self.late = self.late, None
        return late

    def saved(self) -> tuple[dict[str, Vector], list[list[float]]]:
        """The vectors and the facts of what is kept, for a checkpoint taken when nothing is late."""
        vectors: dict[str, Vector] = {}
        mail: list[list[float]] = []
        for j, kept in self.kept.items():
            for round, (*one, weight) in kept.items():
                vectors |= {f"mail/{j}/{round}/{k}": vector for k, vector in enumerate(one)}
                mail.append([j, round, float(weight[0])])
        return vectors, mail

    def restore(self, vectors: Mapping[str, Vector], mail: Any, count: int) -> None:
        """Take up what `saved` gave; `count`: vectors of a share."""
        for j, round, weight in mail:
            share = *(vectors[f"mail/{j}/{round}/{k}"] for k in range(count)), weight_of(weight)
            self.kept.setdefault(int(j), {})[int(round)] = share
