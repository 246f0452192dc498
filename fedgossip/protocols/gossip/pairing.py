"""The moment and the target of an asynchronous peer's next offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedgossip.base import seeds
from fedgossip.core.machine import NodeId
from fedgossip.protocols.gossip.peer_sampling import Rule

ATTEMPTS = 2
"""Maximum number of partners tried in one exchange: a peer that is declined once tries another neighbour."""

DOUBLINGS = 10
"""Maximum number of doublings of the wait before the only partner is offered an exchange again: it may wait for a lost
answer."""

SPREAD = 4
"""Offers are spread over at least this many answer times: a peer is then busy for a third of its time at most."""

LEAST_SPREAD_NS = 1_000_000

MEMORY = 4
"""Approximate number of samples in the running mean of answer times."""


@dataclass(frozen=True, slots=True)
class Flight:
    """The offer in flight."""

    to: NodeId
    number: int
    sent_ns: int


class Pairing:
    """Schedules one peer's offers.  `count` numbers them for the seeded draws; `async_gossip` are begun per round.

    A due exchange is in one of three exclusive states: its offer is not scheduled, scheduled (`planned`), or in flight
    (`flight`).  It ends with the ATTEMPTS-th partner that declines; with fewer partners they are offered it again,
    after waits that double.
    """

    def __init__(self, node: NodeId, rule: Rule, seed: int, exchanges: int, count: int = 0) -> None:
        self.node, self.rule, self.seed, self.exchanges = node, rule, seed, exchanges
        self.count = count
        self.due = 0  # number of exchanges to begin
        self.planned = False  # whether the next offer is scheduled
        self.flight: Flight | None = None
        self.tried: set[NodeId] = set()  # partners that declined in this exchange
        self.declines = 0  # in this exchange
        self.usual_ns = 0  # mean answer time over all partners
        self.times_ns: dict[NodeId, int] = {}

    def more(self) -> None:
        """Add the exchanges of a trained round."""
        self.due += self.exchanges

    def moment_ns(self, training_ns: int | None) -> int | None:
        """Schedule the next offer and return the wait in nanoseconds; None where none is due.

        `training_ns`: expected duration of the current training; None without one.
        """
        if not self.due or self.flight or self.planned:
            return None
        self.planned = True
        self.count += 1
        share = seeds.integer(self.seed, "moment", self.node, self.count) / 2**63
        return int(share * self._spread_ns(training_ns)) << min(max(0, self.declines - ATTEMPTS), DOUBLINGS)

    def _spread_ns(self, training_ns: int | None) -> int:
        least = max(SPREAD * self.usual_ns, LEAST_SPREAD_NS)
        return least if training_ns is None else max(least, (training_ns - self.usual_ns) // self.exchanges)

    def choose(self, there: Sequence[NodeId]) -> NodeId | None:
        """Return the target of the scheduled offer, of `there`, ascending, untried ones first; None if empty."""
        self.planned = False
        untried = [node for node in there if node not in self.tried]
        return self.rule.choose(self.count, untried or there, self.times_ns) if there else None

    def begin(self, to: NodeId, number: int, now_ns: int) -> None:
        self.flight = Flight(to, number, now_ns)

    def flies_to(self, node: NodeId) -> bool:
        return self.flight is not None and self.flight.to == node

    def answered(self, node: NodeId, now_ns: int) -> int:
        """Record the answer to the offer in flight; return how long it took."""
        taken_ns = self._landed(now_ns)
        self.times_ns[node] = running(self.times_ns.get(node, taken_ns), taken_ns)
        return taken_ns

    def declined(self, node: NodeId, now_ns: int) -> bool:
        """Record that the offer in flight is declined; return whether another may be tried."""
        self._landed(now_ns)
        self.tried.add(node)
        self.declines += 1
        return len(self.tried) < ATTEMPTS

    def _landed(self, now_ns: int) -> int:
        assert self.flight is not None, "no offer is on the way"
        taken_ns = now_ns - self.flight.sent_ns
        self.usual_ns = running(self.usual_ns or taken_ns, taken_ns)
        self.flight = None
        return taken_ns

    def over(self) -> None:
        """Remove one exchange from those due: it was made, or cannot be."""
        self.flight = None
        self.tried.clear()
        self.declines = 0
        self.due = max(0, self.due - 1)


def running(before: int, now: int) -> int:
    """Return the running mean after the sample `now`."""
    return before + (now - before) // MEMORY
