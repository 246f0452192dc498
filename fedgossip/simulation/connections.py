"""The links of a simulated network, as each end sees them.

A link breaks when the script cuts it or a peer at its end sleeps; its ends are notified when it has been broken for the
detection time.  Until then messages wait, as they do in TCP, and are delivered late where the cut heals in time;
messages waiting on a link that is given up are lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedgossip.core.machine import NodeId, Received

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
