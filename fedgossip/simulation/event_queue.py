"""The queue of a simulation: events of machines, and changes of peers and links themselves.

The links of a simulated network, as each end sees them.

A link breaks when the script cuts it or a peer at its end sleeps; its ends are notified when it has been broken for the
detection time.  Until then messages wait, as they do in TCP, and are delivered late where the cut heals in time;
messages waiting on a link that is given up are lost.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedgossip.core.machine import Effect, Event, NodeId, Received

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


Link = tuple[NodeId, NodeId]
"""One direction of a link, or one end: (the sender or the notified peer, the other)."""


@dataclass(frozen=True, slots=True)
class Look:
    """A link that may have changed: the machine is notified of its link to `other`."""

    other: NodeId


class SimulatedLinks:
    """All links.  `links[i]` are the known peers of i; each end has a view of its own."""

    def __init__(self, links: Sequence[Sequence[NodeId]]) -> None:
        self.known: list[list[NodeId]] = [list(one) for one in links]
        self.down: set[Link] = set()
        """Ends without a notice of their link, or with one of its loss: messages sent there are lost."""
        self.lives: dict[Link, int] = {}
        """The incarnation of the other end in the last notice of an end; 0 without a link."""
        self.cuts: dict[Link, int] = {}
        """The start time of each present cut; without a cut, messages pass."""
        self._waiting: dict[Link, list[tuple[Received, tuple[int, int]]]] = {}  # messages with their costs

    def __iter__(self) -> Iterator[Link]:
        return ((node, other) for node, others in enumerate(self.known) for other in others)

    def add(self, node: NodeId, other: NodeId) -> bool:
        """Add `other` to the known peers of `node`; return whether it is new."""
        if other in self.known[node]:
            return False
        self.known[node].append(other)
        self.down.add((node, other))
        return True

    def cut(self, link: Link, now_ns: int) -> None:
        self.cuts.setdefault(link, now_ns)

    def heal(self, link: Link) -> list[tuple[Received, tuple[int, int]]]:
        """Let messages pass again; return the waiting ones in order, each with its cost."""
        self.cuts.pop(link, None)
        return self._waiting.pop(link, [])

    def wait(self, link: Link, message: Received, cost: tuple[int, int]) -> None:
        self._waiting.setdefault(link, []).append((message, cost))

    def give_up(self, link: Link) -> int:
        """Mark the link down as its first end sees it; return how many waiting messages are lost."""
        self.down.add(link)
        return len(self._waiting.pop(link, ()))

    def open(self, link: Link, life: int) -> None:
        """Mark the link up as its first end sees it."""
        self.down.discard(link)
        self.lives[link] = life

    def forget(self, node: NodeId) -> None:
        """Replace `node` by a new process: it has no link yet, and messages waiting for the old one are dropped."""
        for other in self.known[node]:
            self.give_up((node, other))
            self.lives.pop((node, other), None)


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
