"""The queue of a simulation: events of machines, and changes of peers and links themselves."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

from fedgossip.core.machine import Effect, Event, NodeId
from fedgossip.simulation.connections import Look

# Events in virtual time, grouped by instant: in a simulation many share one.
#
# A heap holds each instant once, a list its events: so an event costs no comparison with those of other times, however
# many timers wait.


class Instants:
    """Times in nanoseconds, and the events at each, by ascending number."""

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
        """Return the events of the first instant and remove it; a later addition makes it anew."""
        return self._there.pop(heapq.heappop(self.times))


def _place(queued: Queued) -> tuple[int, NodeId]:
    """Order within an instant: by number, and entries of AddedUp, with number -1, by node."""
    return queued[0], queued[1]


@dataclass(frozen=True, slots=True)
class Begin:
    """A peer starts that was not there before."""


@dataclass(frozen=True, slots=True)
class Restart:
    """A peer that has died starts again."""


@dataclass(frozen=True, slots=True)
class Wake:
    """A sleeping peer wakes."""


@dataclass(frozen=True, slots=True)
class AddedUp:
    """A peer has added up the received vectors, and performs these effects."""

    effects: Sequence[Effect]


Coming = Event | Look | Begin | Restart | Wake | AddedUp
OF_PEERS = frozenset({Begin, Restart, Wake})
"""Entries that no machine receives."""

Cost = tuple[int, int]
"""The bytes of a message, and those of the vectors in it."""
NO_COST: Cost = 0, 0

Lives = tuple[int, int]
"""The incarnation of the sender, and that of the receiver in the sender's view."""

Queued = tuple[int, NodeId, Coming, Cost, Lives]
"""(order, receiver, event, cost, incarnations of sender and receiver)."""
