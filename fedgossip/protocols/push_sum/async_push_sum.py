"""Asynchronous push-sum: overlapped stochastic gradient push, without a bound on staleness.

    phase      event                                         next phase
    joining    Rostered                                      training
    training   Trained                                       pausing end
    training   Leaving PeerGone Stopping                     end
    pausing    Accepted PeerJoined PeerGone Leaving pause    training
    pausing    Leaving PeerGone Stopping                     end
    closing    Accepted Leaving PeerGone                     leaving finished
    closing    drain                                         finished
    leaving    Accepted                                      finished

Parcels, the mathematics and the end are those of `push_peer`.  Received mass is added at once; a peer waits only where
no arc is free ("pausing"), so that it is ahead of its parcels by a network's breadth and not by a run's.

Difference from the papers: a peer that is quicker than its in-neighbours sends mass in each round and receives little.
The published method lets its weight w go to zero, and an update of x moves the model x / w by 1 / w of it: training
diverges, at any learning rate, once it is quick enough (the papers bound how long a node may be silent).  So a peer
sends no more than leaves it LEAST_KEPT of what one of weight 1 keeps; any share is allowed, as the sums stay the same.

Sources: Assran et al. (ICML 2019), section 4; also Spiridonoff, Olshevsky and Paschalidis, Robust asynchronous
stochastic gradient-push, JMLR 21 (2020).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from fedgossip.algorithms.gossip.base import State, Vectors
from fedgossip.base import seeds
from fedgossip.base.errors import ProtocolError
from fedgossip.core.machine import Checkpoint, Effect, NodeId, SetTimer
from fedgossip.protocols.push_sum.push_peer import PushPeer, part_of

LEAST_KEPT = 0.5
LEAST_GIVEN = 1e-3
"""Minimum share that is worth a message."""


class AsyncPushSum(PushPeer[State]):
    """One peer of an asynchronous run."""

    def ready(self, resumed: Checkpoint | None) -> None:
        """Nothing is stored beside the parcels."""

    def rostered(self, schedule: object) -> None:
        self.follow(schedule)

    def exchange(self, now_ns: int) -> list[Effect]:
        targets = self.schedule.mixing(self.round).targets(self.node)
        shares = self._shares(targets)
        given = self._affordable(shares)
        effects = self.give(given, now_ns)
        self.learner.mixed(part_of(self.learner.outgoing, 1.0 - sum(given.values())))
        effects += self.round_done({}, {})
        if shares or not set(targets) & set(self.company.here()) or self.round >= self.settings.rounds:
            return effects + self.go_on(now_ns)
        self.phase = "pausing"
        return [*effects, SetTimer(("pause", self.round), self.deadline.now_ns())]

    def _shares(self, targets: Sequence[NodeId]) -> dict[NodeId, float]:
        free = self.free(targets)
        if self.settings.targets == "all":
            mixing = self.schedule.mixing(self.round)
            return {to: mixing.row(to)[self.node] for to in free}
        drawn = seeds.integer(self.settings.seed, "target", self.node, self.round)
        return {free[drawn % len(free)]: 0.5} if free else {}

    def _affordable(self, shares: dict[NodeId, float]) -> dict[NodeId, float]:
        """Return the shares, reduced where they would leave too little weight; none if nothing is left."""
        weight, given = float(self.learner.outgoing[-1][0]), sum(shares.values())
        least = LEAST_KEPT * (1.0 - given)
        if weight * (1.0 - given) >= least:
            return shares
        part = (1.0 - least / weight) / given if weight > least else 0.0
        return {to: share * part for to, share in shares.items()} if part * given > LEAST_GIVEN else {}

    def arrived(self, sender: NodeId, round: int, share: Vectors, now_ns: int) -> list[Effect]:
        del sender, round, now_ns
        self.learner.corrected(share)
        return []

    def expect_none(self, sender: NodeId, round: int, now_ns: int) -> list[Effect]:
        del round, now_ns
        raise ProtocolError(f"node {self.node}: an account from node {sender} in an asynchronous run", peer=sender)

    def freed(self, now_ns: int) -> list[Effect]:
        return self.go_on(now_ns) if self.phase == "pausing" else []

    def woken(self, key: Hashable, now_ns: int) -> list[Effect]:
        return self.go_on(now_ns) if self.phase == "pausing" and key == ("pause", self.round) else []

    def close(self) -> list[Effect]:
        return []
