"""When an asynchronous peer makes its next offer, and to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedgossip.base import seeds
from fedgossip.core.machine import NodeId
from fedgossip.protocols.gossip.peer_sampling import Rule

ATTEMPTS = 2
"""Maximum number of offers in one exchange: who is declined once tries another neighbour."""

SPREAD = 4
"""Offers are spread over so many times of an answer at least: a peer is then busy for a third of its time at most."""

LEAST_SPREAD_NS = 1_000_000

MEMORY = 4
"""The usual time of an answer is a running mean over about so many."""


@dataclass(frozen=True, slots=True)
class Flight:
    """The offer that is on the way."""

    to: NodeId
    number: int
    sent_ns: int


class Pairing:
    """One peer's.  `count` is of offers, for the seeded draws; `exchanges` are begun per round.

    An exchange that is due is in one of three states: the moment of its offer is not set, it is set (`planned`), or
    the offer is on the way (`flight`): never two of them.  It takes at most ATTEMPTS offers, to partners that differ
    where there are several.
    """

    def __init__(self, node: NodeId, rule: Rule, seed: int, exchanges: int, count: int = 0) -> None:
        self.node, self.rule, self.seed, self.exchanges = node, rule, seed, exchanges
        self.count = count
        self.due = 0  # exchanges to be made
        self.planned = False  # whether the moment of the next offer is set
        self.flight: Flight | None = None
        self.tried: set[NodeId] = set()  # in this exchange
        self.usual_ns = 0  # of an answer, from anybody
        self.times_ns: dict[NodeId, int] = {}

    def more(self) -> None:
        """A round has been trained."""
        self.due += self.exchanges

    def moment_ns(self, training_ns: int | None) -> int | None:
        """Set the moment of the next offer, and return how far it is; None where none is to be made.

        `training_ns`: how long the training that is on will take; None where there is none.
        """
        if not self.due or self.flight or self.planned:
            return None
        self.planned = True
        self.count += 1
        share = seeds.integer(self.seed, "moment", self.node, self.count) / 2**63
        return int(share * self._spread_ns(training_ns))

    def _spread_ns(self, training_ns: int | None) -> int:
        least = max(SPREAD * self.usual_ns, LEAST_SPREAD_NS)
        return least if training_ns is None else max(least, (training_ns - self.usual_ns) // self.exchanges)

    def choose(self, there: Sequence[NodeId]) -> NodeId | None:
        """The moment has come: return one of `there`, ascending, rather one that was not tried; None of nobody."""
        self.planned = False
        untried = [node for node in there if node not in self.tried]
        return self.rule.choose(self.count, untried or there, self.times_ns) if there else None

    def begin(self, to: NodeId, number: int, now_ns: int) -> None:
        self.flight = Flight(to, number, now_ns)

    def flies_to(self, node: NodeId) -> bool:
        return self.flight is not None and self.flight.to == node

    def answered(self, node: NodeId, now_ns: int) -> int:
        """The offer on the way is answered; return how long that took."""
        taken_ns = self._landed(now_ns)
        self.times_ns[node] = running(self.times_ns.get(node, taken_ns), taken_ns)
        return taken_ns

    def declined(self, node: NodeId, now_ns: int) -> bool:
        """The offer on the way is declined; tell whether another may be tried."""
        self._landed(now_ns)
        self.tried.add(node)
        return len(self.tried) < ATTEMPTS

    def _landed(self, now_ns: int) -> int:
        assert self.flight is not None, "no offer is on the way"
        taken_ns = now_ns - self.flight.sent_ns
        self.usual_ns = running(self.usual_ns or taken_ns, taken_ns)
        self.flight = None
        return taken_ns

    def over(self) -> None:
        """One exchange less is due: it was made, or cannot be."""
        self.flight = None
        self.tried.clear()
        self.due = max(0, self.due - 1)


def running(before: int, now: int) -> int:
    """The running mean after `now`."""
    return before + (now - before) // MEMORY
