"""The keys of a private run that a peer knows: to make masks it needs those of all that send where it sends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from fedgossip.base.errors import ProtocolError
from fedgossip.core.machine import NodeId, Send
from fedgossip.core.messages import KEYS_MAX, RunKey, RunKeys
from fedgossip.secure.pairs import Pairs


class KeyBook:
    """One peer's.  `fellows` send to a receiver of ours: masks are made with them.

    A key of a neighbour is passed on once; a message that is refused changes nothing.
    """

    def __init__(self, node: NodeId, pairs: Pairs, partners: Sequence[NodeId], fellows: Iterable[NodeId]) -> None:
        self.node, self.pairs, self.partners = node, pairs, partners
        self.fellows = frozenset(fellows) - {node}
        self.passed: set[RunKey] = set()  # keys of neighbours that the others have been told of

    @property
    def lacking(self) -> frozenset[NodeId]:
        """Those with whom no masks can be made yet."""
        return frozenset(other for other in self.fellows if not self.pairs.knows(other))

    def introduction(self, to: NodeId) -> list[Send]:
        """What is told on a new link: one's own key, and those of the other neighbours."""
        return self._tell(to, self.pairs.told(other for other in self.partners if other != to))

    def told(self, sender: NodeId, keys: Sequence[RunKey], linked: Collection[NodeId]) -> list[Send]:
        """Take what is new; pass what a neighbour says of itself on to all that send to it and to us.

        Raises ProtocolError for a key that its owner did not sign; nothing is changed then.
        """
        try:
            latest = {key.node: key for key in sorted(keys, key=lambda key: key.incarnation)}
            heeded = self.fellows | {sender}
            news = [key for node, key in latest.items() if node in heeded and self.pairs.news(key)]
        except ProtocolError as error:
            text = f"node {self.node}: node {sender} tells {error}"
            raise ProtocolError(text, error.advice, peer=sender) from None
        for key in news:
            self.pairs.take(key)
        # it may have come over another first, who does not tell ours
        own = [key for key in self.pairs.told([sender]) if key.node == sender and key not in self.passed]
        self.passed.update(own)
        others = [other for other in self.partners if other != sender and other in linked]
        return [send for other in others for send in self._tell(other, own)]

    def _tell(self, to: NodeId, keys: Sequence[RunKey]) -> list[Send]:
        return [Send(to, RunKeys(tuple(keys[at : at + KEYS_MAX]))) for at in range(0, len(keys), KEYS_MAX)]
