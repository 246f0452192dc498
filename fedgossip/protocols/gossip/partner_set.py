"""The partners of a peer: those that are here, have left for good, are gone and may come back, or do not answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from fedgossip.base.errors import ProtocolError
from fedgossip.core.machine import Effect, NodeId, Report, SetTimer

ROLL_NS = 10_000_000_000
"""So often one that gathers its partners says whom it still waits for, if that has changed."""
NAMED = 8
"""Maximum number of missing partners that are named."""

LATELY_ROUNDS, CIRCLE = 8, 64
"""All partners hear our goodbye; where they are more than so many, those whom we have met in so many last rounds."""


class PartnerSet:
    """The partners of `node`, as its links and their goodbyes tell."""

    def __init__(self, node: NodeId, partners: Sequence[NodeId]) -> None:
        self.node = node
        self.partners: tuple[NodeId, ...] = ()
        self.known: set[NodeId] = set()
        """All that ever were partners."""
        self.linked: set[NodeId] = set()
        self.left: set[NodeId] = set()
        """Partners that said goodbye: they will begin nothing any more."""
        self.absent: set[NodeId] = set()
        """Partners that are not waited for: gone, not here at the start, or silent for too long."""
        self.keyless: frozenset[NodeId] = frozenset()
        """Those without whose keys nothing can begin, partners or not."""
        self.met: dict[NodeId, int] = {}
        """The last round in which we exchanged with each; empty where nobody counts."""
        self.done: set[NodeId] = set()
        """Need nothing more of us, and know that we leave."""
        self.told: set[NodeId] = set()
        """Know that we need nothing more of them."""
        self._lost: dict[NodeId, int] = {}
        self._lives: dict[NodeId, int] = {}
        self._told: list[NodeId] = []
        self.change(partners)

    def change(self, partners: Sequence[NodeId]) -> None:
        """From now on these are the partners; former ones may still settle what is open."""
        self.partners = tuple(partners)
        self.known.update(partners)

    def joined(self, node: NodeId, incarnation: int) -> bool:
        """Note a link; return whether another life of the partner is at its end than before."""
        self.linked.add(node)
        self._lost.pop(node, None)
        another = incarnation > self._lives.get(node, incarnation)
        if another:
            for said in (self.left, self.done, self.told):
                said.discard(node)
        self._lives[node] = max(incarnation, self._lives.get(node, incarnation))
        return another

    def lost(self, node: NodeId, round: int) -> bool:
        """Note that a link is down, or never will be up; return whether that is news of a partner that has not left."""
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
        """Note the partners of the exchanges in `round`."""
        for node in nodes:
            self.met[node] = round

    def may_return(self, node: NodeId, round: int) -> bool:
        """Whether the link was lost of late, and the partner may come back and tell."""
        return self._lost.get(node, -LATELY_ROUNDS - 1) >= round - LATELY_ROUNDS

    @property
    def came(self) -> Collection[NodeId]:
        """The partners to which there was ever a link."""
        return self._lives.keys()

    def here(self) -> list[NodeId]:
        """The partners to learn with now, ascending."""
        return [node for node in self.partners if node in self.linked and node not in self.left]

    def missing(self) -> list[NodeId]:
        """The partners that have not come, ascending."""
        return [node for node in self.partners if node not in self.linked and node not in self.left]

    def awaited(self) -> list[NodeId]:
        """The partners that are waited for before the beginning, ascending."""
        absent = self.absent | self.left
        return sorted({node for node in self.partners if node not in self.linked}.union(self.keyless) - absent)

    def circle(self, round: int) -> list[NodeId]:
        """Those that may wait for our goodbye, ascending; of many partners, those whom we have met of late."""
        near = self.known
        if len(self.partners) > CIRCLE and self.met:
            near = {node for node, met in self.met.items() if met >= round - LATELY_ROUNDS}
        return sorted(near)

    def roll(self, round: int) -> list[Effect]:
        """Say who has not come, and when to ask again: for a timer of ("roll",) while partners gather."""
        missing, again = self.awaited(), SetTimer(("roll",), ROLL_NS)
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
        if sender not in self.known:
            raise ProtocolError(f"node {self.node}: {what} from node {sender}, which is no neighbour", peer=sender)
