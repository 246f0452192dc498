"""Who of a peer's partners is here, who has left for good, and who is gone and may come back.

Methods that never wait for one partner (`async_gossip`, `push_sum`) have this in common: they begin when all are here,
or after a time with those who came, and end early where nobody is left to learn with.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fedgossip.errors import ProtocolError
from fedgossip.machine import Effect, NodeId, Report, SetTimer

ROLL_NS = 10_000_000_000
"""So often one that gathers its partners says whom it still waits for, if that has changed."""
NAMED = 8
"""So many of them by name."""


class Company:
    """The partners of `node`, as its links and their goodbyes tell."""

    def __init__(self, node: NodeId, partners: Sequence[NodeId]) -> None:
        self.node = node
        self.partners: tuple[NodeId, ...] = ()
        self._known: set[NodeId] = set()
        self.linked: set[NodeId] = set()
        self.left: set[NodeId] = set()
        """Said goodbye: will begin nothing any more."""
        self._lives: dict[NodeId, int] = {}
        self._told: list[NodeId] = []
        self.change(partners)

    def change(self, partners: Sequence[NodeId]) -> None:
        """From now on these are the partners; former ones may still settle what is open."""
        self.partners = tuple(partners)
        self._known.update(partners)

    def joined(self, node: NodeId, incarnation: int) -> bool:
        """Take note of a link; tell whether another life of the partner is at its end than before."""
        self.linked.add(node)
        another = incarnation > self._lives.get(node, incarnation)
        if another:
            self.left.discard(node)
        self._lives[node] = max(incarnation, self._lives.get(node, incarnation))
        return another

    @property
    def came(self) -> Collection[NodeId]:
        """Those to whom there was ever a link."""
        return self._lives.keys()

    def here(self) -> list[NodeId]:
        """Those to learn with now, ascending."""
        return [node for node in self.partners if node in self.linked and node not in self.left]

    def missing(self) -> list[NodeId]:
        """Those who have not come, ascending."""
        return [node for node in self.partners if node not in self.linked and node not in self.left]

    def roll(self, round: int) -> list[Effect]:
        """Say who has not come, and when to ask again: for a timer of ("roll",) while partners gather."""
        missing, again = self.missing(), SetTimer(("roll",), ROLL_NS)
        if not missing or missing == self._told:
            return [again]
        self._told = missing
        facts = {"missing": missing[:NAMED], "here": len(self.here()), "of": len(self.partners)}
        return [Report("awaits", facts, round), again]

    @property
    def deserted(self) -> bool:
        """Whether the others have gone home: nobody is here, and not because all links broke."""
        return not self.here() and any(node in self.left for node in self.partners)

    def check(self, sender: NodeId, what: str) -> None:
        """Raise ProtocolError for a message of a stranger."""
        if sender not in self._known:
            raise ProtocolError(f"node {self.node}: {what} from node {sender}, which is no neighbour", peer=sender)
