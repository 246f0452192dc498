"""What comes up in a simulation: events that machines are told, and what happens to peers and links themselves."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

from fedgossip.core.machine import Effect, Event, NodeId
from fedgossip.simulation.connections import Look

# What comes up in virtual time, by the instant at which it does: in a simulation many events have one.
#
# A heap holds each instant once, a list what comes up at it: so an event costs no comparison with those of other times,
# however many timers wait.


class Instants:
    """Times in nanoseconds, and at each what comes up, by ascending number."""

    def __init__(self) -> None:
        self.times: list[int] = []  # a heap
        self.number = 0
        """How many were added so far, the number of the last."""
        self._there: dict[int, list[Queued]] = {}

    def add(self, at_ns: int, node: NodeId, event: Coming, cost: Cost, lives: Lives) -> int:
        """Take one under the next number; return that."""
        self.number = number = self.number + 1
        there = self._there.get(at_ns)
        if there is None:
            self._there[at_ns] = [(number, node, event, cost, lives)]
            heapq.heappush(self.times, at_ns)
        else:
            there.append((number, node, event, cost, lives))
        return number

    def insert(self, at_ns: int, queued: Queued) -> None:
        """Take one that has its number already."""
        there = self._there.get(at_ns)
        if there is None:
            self._there[at_ns] = [queued]
            heapq.heappush(self.times, at_ns)
        else:
            insort(there, queued, key=_place)

    def pop(self) -> list[Queued]:
        """Return what is there at the first instant, which is over then: what is added to it comes up at it again."""
        return self._there.pop(heapq.heappop(self.times))


def _place(queued: Queued) -> tuple[int, NodeId]:
    """The order within an instant: numbers, and of those who have added up, whose number is -1, the nodes."""
    return queued[0], queued[1]


@dataclass(frozen=True, slots=True)
class Begin:
    """A peer starts that was not there before."""


@dataclass(frozen=True, slots=True)
class Restart:
    """A peer that has died starts again."""


@dataclass(frozen=True, slots=True)
class Wake:
    """A peer that sleeps goes on."""


@dataclass(frozen=True, slots=True)
class AddedUp:
    """A peer has added up what it was told, and does these."""

    effects: Sequence[Effect]


Coming = Event | Look | Begin | Restart | Wake | AddedUp
OF_PEERS = frozenset({Begin, Restart, Wake})
"""What no machine is told."""

Cost = tuple[int, int]
"""The bytes of a message, and those of vectors among them."""
NO_COST: Cost = 0, 0

Lives = tuple[int, int]
"""The incarnations of the sender, and of the receiver as the sender knows it."""

Queued = tuple[int, NodeId, Coming, Cost, Lives]
"""In which order, to whom, what, at what cost, and from and to which life."""
