"""Attackers on stacked arrays: what each sends to each of its neighbours in a round, and their mixed result."""

from __future__ import annotations

from dataclasses import dataclass

from fedgossip.algorithms.robust.attacks import Attack, ObservedModels, lies
from fedgossip.algorithms.robust.combine import Combination
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import NodeId
from fedgossip.topology import Mixing


@dataclass(frozen=True)
class StackedAttackers:
    """`peers` lie by `attack`; `all_known`: they have the models of all honest peers, not of their neighbours alone."""

    peers: frozenset[NodeId]
    attack: Attack
    rule: Combination
    seed: int
    all_known: bool = False

    def mixed(self, mixing: Mixing, round: int, outgoing: Vector, mixed: Vector) -> Vector:
        """Return the results of all, [n, d], for `mixed`, the mixing of the models that honest peers would have
        sent.
        """
        told: dict[tuple[NodeId, NodeId], Vector] = {}
        for peer in sorted(self.peers):
            known = range(mixing.n) if self.all_known else mixing.row(peer)
            good = {j: outgoing[j] for j in known if j not in self.peers}
            seen = ObservedModels(peer, round, self.seed, outgoing[peer], good, mixing.row, self.peers)
            told.update({(peer, to): one for to, one in lies(self.attack, seen, mixing.targets(peer)).items()})
        out = mixed.copy()
        for to in sorted({to for _, to in told}):
            row = mixing.row(to)
            out[to] = self.rule.combine(to, row, {j: told.get((j, to), outgoing[j]) for j in row})
        return frozen(out)
