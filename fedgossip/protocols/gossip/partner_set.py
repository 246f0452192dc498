"""The partners of a peer: connected, departed, disconnected, or silent; and the deadline of waits for them.

The deadline follows the measured durations:

    deadline = factor * (median + 4 MAD)        MAD: the median distance from the median

between two limits.  Up to half of the samples may be outliers: the long waits that a deadline must cut hardly affect
median and MAD.

Source: TCP's timer (Jacobson, Congestion avoidance and control, SIGCOMM 1988), with robust estimates.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from fedgossip.base.errors import ProtocolError
from fedgossip.core.machine import Effect, NodeId, Report, SetTimer

ROLL_NS = 10_000_000_000
"""Interval between reports of the missing partners while a peer waits for them, if they have changed."""
NAMED = 8
"""Maximum number of missing partners in a report."""

LATELY_ROUNDS, CIRCLE = 8, 64
"""All partners receive the `Leaving`; above CIRCLE partners, those of exchanges in the last LATELY_ROUNDS rounds."""


class PartnerSet:
    """The partners of `node`, by the state of their links and their `Leaving` messages."""

    def __init__(self, node: NodeId, partners: Sequence[NodeId]) -> None:
        self.node = node
        self.partners: tuple[NodeId, ...] = ()
        self.known: set[NodeId] = set()
        """All present and former partners."""
        self.linked: set[NodeId] = set()
        self.left: set[NodeId] = set()
        """Partners that sent a `Leaving`: they begin no further round."""
        self.missed_after_goodbye: set[NodeId] = set()
        """Departed partners whose models a round lacked: their departure is reported once."""
        self.absent: set[NodeId] = set()
        """Partners that are not awaited: gone, missing at the start, or silent for too long."""
        self.keyless: frozenset[NodeId] = frozenset()
        """Nodes, partners or not, whose keys are needed before the beginning."""
        self.met: dict[NodeId, int] = {}
        """The last round of an exchange with each; empty if rounds are not counted."""
        self.done: set[NodeId] = set()
        """Partners that need nothing more from this peer, and have received its `Leaving`."""
        self.told: set[NodeId] = set()
        """Partners that were sent a message that this peer needs nothing more from them."""
        self._lost: dict[NodeId, int] = {}
        self._lives: dict[NodeId, int] = {}
        self._told: list[NodeId] = []
        self.change(partners)

    def change(self, partners: Sequence[NodeId]) -> None:
        """Replace the partners; former ones may still settle open accounts."""
        self.partners = tuple(partners)
        self.known.update(partners)

    def missed(self, missing: Collection[NodeId], round: int) -> list[Effect]:
        """Report the partners whose models a round lacks; once for each partner whose `Leaving` explains it."""
        left = sorted((self.left & set(missing)) - self.missed_after_goodbye)
        self.missed_after_goodbye.update(left)
        effects: list[Effect] = [Report("goodbye", {"node": node, "until": round}, round) for node in left]
        return [*effects, Report("missed", sorted(missing), round)] if missing else []

    def joined(self, node: NodeId, incarnation: int) -> bool:
        """Record a link; return whether the partner has restarted since its last link."""
        self.linked.add(node)
        self._lost.pop(node, None)
        another = incarnation > self._lives.get(node, incarnation)
        if another:
            for members in (self.left, self.missed_after_goodbye, self.done, self.told):
                members.discard(node)
        self._lives[node] = max(incarnation, self._lives.get(node, incarnation))
        return another

    def lost(self, node: NodeId, round: int) -> bool:
        """Record a link as down or impossible; return whether a present partner is newly absent."""
        linked = node in self.linked
        self.linked.discard(node)
        if linked:
            self._lost[node] = round
        if node in self.left or node not in self.partners:
            return False
        news = linked or node not in self.absent
        self.absent.add(node)
        return news

    def meets(self, nodes: Iterable[NodeId], round: int) -> None:
        """Record the partners of exchanges in `round`."""
        for node in nodes:
            self.met[node] = round

    def may_return(self, node: NodeId, round: int) -> bool:
        """Return whether the link was lost in the last LATELY_ROUNDS rounds, so that the partner may reconnect."""
        return self._lost.get(node, -LATELY_ROUNDS - 1) >= round - LATELY_ROUNDS

    @property
    def ever_linked(self) -> Collection[NodeId]:
        """The partners with a link now or before."""
        return self._lives.keys()

    def list_present(self) -> list[NodeId]:
        """Return the connected, not departed partners, ascending."""
        return [node for node in self.partners if node in self.linked and node not in self.left]

    def missing(self) -> list[NodeId]:
        """Return the unconnected, not departed partners, ascending."""
        return [node for node in self.partners if node not in self.linked and node not in self.left]

    def awaited(self) -> list[NodeId]:
        """Return the nodes to wait for before the beginning, ascending."""
        absent = self.absent | self.left
        return sorted({node for node in self.partners if node not in self.linked}.union(self.keyless) - absent)

    def circle(self, round: int) -> list[NodeId]:
        """Return the nodes that may wait for the `Leaving`, ascending; of many partners those of recent rounds."""
        near = self.known
        if len(self.partners) > CIRCLE and self.met:
            near = {node for node, met in self.met.items() if met >= round - LATELY_ROUNDS}
        return sorted(near)

    def roll(self, round: int) -> list[Effect]:
        """Return a report of the missing partners, if they changed, and the next timer ("roll",)."""
        missing, again = self.awaited(), SetTimer(("roll",), ROLL_NS)
        if not missing or missing == self._told:
            return [again]
        self._told = missing
        facts = {"missing": missing[:NAMED], "here": len(self.list_present()), "of": len(self.partners)}
        return [Report("awaits", facts, round), again]

    @property
    def deserted(self) -> bool:
        """Whether the others have ended: no partner is connected, and at least one has left."""
        return not self.list_present() and any(node in self.left for node in self.partners)

    def check(self, sender: NodeId, what: str) -> None:
        """Raise ProtocolError for a message from a non-partner."""
        if sender not in self.known:
            raise ProtocolError(f"node {self.node}: {what} from node {sender}, which is no neighbour", peer=sender)


WINDOW = 32
"""Number of latest durations in the estimate; a lasting slowdown takes effect after half of them."""

ENOUGH = 5
"""Minimum number of durations; with fewer the first deadline applies."""

DEVIATIONS = 4


class Deadline:
    """Follows durations in nanoseconds, from `least_ns` to `longest_ns`; `first_ns` applies before ENOUGH of them."""

    def __init__(self, longest_ns: int, least_ns: int, factor: int = 8, first_ns: int | None = None) -> None:
        assert 0 <= least_ns <= longest_ns and factor >= 1
        self.first_ns = longest_ns if first_ns is None else min(max(first_ns, least_ns), longest_ns)
        self.longest_ns, self.least_ns, self.factor = longest_ns, least_ns, factor
        self._seen: deque[int] = deque(maxlen=WINDOW)
        self._ordered: list[int] = []  # the same, ascending

    def record(self, duration_ns: int) -> None:
        """Record a duration; the caller omits those cut short by the deadline."""
        if len(self._seen) == WINDOW:
            del self._ordered[bisect_left(self._ordered, self._seen[0])]
        self._seen.append(duration_ns)
        insort(self._ordered, duration_ns)

    def quickest_ns(self) -> int:
        """Return the shortest recorded duration, which no loss has lengthened; 0 before the first."""
        return self._ordered[0] if self._ordered else 0

    def usual_ns(self) -> int:
        """Return the median duration; 0 until ENOUGH are recorded."""
        return self._ordered[len(self._ordered) // 2] if len(self._ordered) >= ENOUGH else 0

    def now_ns(self) -> int:
        """Return the deadline of the next wait."""
        seen = self._ordered
        if len(seen) < ENOUGH:
            return self.first_ns
        usual = seen[len(seen) // 2]
        deviation = _median([abs(one - usual) for one in seen]) if seen[0] != seen[-1] else 0
        return min(max(self.factor * (usual + DEVIATIONS * deviation), self.least_ns), self.longest_ns)


def _median(values: Sequence[int]) -> int:
    return sorted(values)[len(values) // 2]
