"""Which links there are in a simulated network, and how each end sees them.

A link breaks when the script cuts it or a peer at its end sleeps; its ends are told when it has been broken for the
time of detection.  Until then what is sent waits, as it does in TCP, and is delivered late where the cut heals in time;
what waits on a link that is given up is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedgossip.machine import NodeId
from fedgossip.messages import Message

Link = tuple[NodeId, NodeId]
"""One direction, or one end: (who sends or is told, the other)."""


@dataclass(frozen=True, slots=True)
class Look:
    """Something may have changed: tell the machine how its link to `other` is now."""

    other: NodeId


class SimulatedLinks:
    """`links[i]` are the peers that i knows; each end has a view of its own."""

    def __init__(self, links: Sequence[Sequence[NodeId]]) -> None:
        self.known: list[list[NodeId]] = [list(one) for one in links]
        self.down: set[Link] = set()
        """Ends that have not been told of a link, or were told that it is gone: what they send is lost."""
        self.lives: dict[Link, int] = {}
        """The incarnation of the other that an end was told of; 0 where it is not there."""
        self._cut: dict[Link, int] = {}  # since when
        self._waiting: dict[Link, list[tuple[Message, int]]] = {}  # with its bytes

    def __iter__(self) -> Iterator[Link]:
        return ((node, other) for node, others in enumerate(self.known) for other in others)

    def add(self, node: NodeId, other: NodeId) -> bool:
        """Make `node` know `other`; tell whether that is new."""
        if other in self.known[node]:
            return False
        self.known[node].append(other)
        self.down.add((node, other))
        return True

    def cut(self, link: Link, now_ns: int) -> None:
        self._cut.setdefault(link, now_ns)

    def heal(self, link: Link) -> list[tuple[Message, int]]:
        """Let messages pass again; return those that waited, in order, each with its bytes."""
        self._cut.pop(link, None)
        return self._waiting.pop(link, [])

    def cut_since(self, link: Link) -> int | None:
        """When the cut began that is on; None where messages pass."""
        return self._cut.get(link)

    def wait(self, link: Link, message: Message, size: int) -> None:
        self._waiting.setdefault(link, []).append((message, size))

    def give_up(self, link: Link) -> int:
        """Call the link down as its first end sees it; return how many messages that waited are lost."""
        self.down.add(link)
        return len(self._waiting.pop(link, ()))

    def open(self, link: Link, life: int) -> None:
        """Call the link up as its first end sees it."""
        self.down.discard(link)
        self.lives[link] = life

    def forget(self, node: NodeId) -> None:
        """A new process runs in the place of `node`: it has no link yet, and nothing of the old one waits."""
        for other in self.known[node]:
            self.give_up((node, other))
            self.lives.pop((node, other), None)
