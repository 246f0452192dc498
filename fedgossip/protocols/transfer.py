"""A model for one who comes later, piece by piece; after a broken link it goes on where it was, or with another.

    joiner   Seek to all                               member   Have(round, digest): its latest model, kept a while
             Fetch(round, digest, start) of the best            Piece(round, digest, start)
             ... one at a time, then the digest is checked

Best is the highest round, then the highest digest: of those that have the same model any can go on where another
stopped.  A member that no longer has the model answers with what it has now.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedgossip.errors import ProtocolError
from fedgossip.machine import Effect, NodeId, Report, Send, SetTimer
from fedgossip.messages import PIECE, Fetch, Have, Piece, Seek
from fedgossip.protocols.refusals import refused
from fedgossip.vectors import Vector, digest, empty, frozen

GATHER_NS = 500_000_000
"""How long to wait for offers after the question, and before it is asked again where nobody has anything."""

PIECE_NS = 20_000_000_000
"""How long a piece may take before it is asked for again: a megabyte over the slowest line, and the round trip."""

TRIES = 3
"""So often a piece is asked of one peer."""

KEPT_NS = 120_000_000_000
"""How long an offered model is kept after it was last asked for."""

KEPT_OFFERS = 2
"""Offered models that are kept at a time, besides the latest."""

Offer = tuple[int, str]
"""(round, digest): what ranks a model."""


class Giver:
    """What a member has for those who ask: its latest model, and those that somebody is fetching."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.latest: tuple[int, Vector] | None = None
        self._kept: dict[Offer, tuple[Vector, int]] = {}

    def handle(self, sender: NodeId, message: Seek | Fetch, now_ns: int) -> list[Effect]:
        """Answer; what has not been asked for lately is let go."""
        self._kept = {offer: kept for offer, kept in self._kept.items() if now_ns - kept[1] <= KEPT_NS}
        if isinstance(message, Fetch) and (message.round, message.digest) in self._kept:
            return self._piece(sender, message, now_ns)
        if self.latest is None:
            return []
        round, vector = self.latest
        found = next((offer for offer, (kept, _) in self._kept.items() if kept is vector), None)
        if found is None:
            found = round, digest([vector])
            while len(self._kept) >= KEPT_OFFERS:
                del self._kept[min(self._kept, key=lambda offer: self._kept[offer][1])]
        self._kept[found] = vector, now_ns
        return [Send(sender, Have(*found))]

    def _piece(self, sender: NodeId, asked: Fetch, now_ns: int) -> list[Effect]:
        vector, _ = self._kept[asked.round, asked.digest]
        if asked.start % PIECE or asked.start >= vector.size:
            raise ProtocolError(f"node {sender} asks for a piece at {asked.start} of {vector.size}", peer=sender)
        self._kept[asked.round, asked.digest] = vector, now_ns
        part = vector[asked.start : asked.start + PIECE]
        return [Send(sender, Piece(asked.round, asked.digest, asked.start, self.schema, (part,)))]


class Taker:
    """Fetches a model of `length` elements; `model` is (round, vector) when it is here."""

    def __init__(self, schema: str, length: int, dtype: str) -> None:
        self.schema, self.length, self.dtype = schema, length, dtype
        self.model: tuple[int, Vector] | None = None
        self.offers: dict[NodeId, Offer] = {}
        self.linked: set[NodeId] = set()
        self.want: Offer | None = None
        self.source: NodeId | None = None
        self.start = 0
        self._tries = 0
        self._buffer: Vector | None = None

    def begin(self, linked: Sequence[NodeId]) -> list[Effect]:
        """Ask everybody what they have."""
        self.linked = set(linked)
        return [*(Send(node, Seek()) for node in linked), SetTimer(("transfer", "gather"), GATHER_NS)]

    def handle(self, sender: NodeId, message: Have | Piece) -> list[Effect]:
        """Take an offer or a piece; what was not asked for changes nothing."""
        if self.model is not None:
            return []
        if isinstance(message, Have):
            self.offers[sender] = message.round, message.digest
            gone = sender == self.source and self.want != self.offers[sender]
            return self._choose() if gone else []
        if sender != self.source or (message.round, message.digest) != self.want or message.start != self.start:
            return []
        return self._take(sender, message.vectors[0])

    def fired(self, key: Sequence[object]) -> list[Effect]:
        """A timer of ours."""
        match key:
            case ["gather"] if self.want is None and self.model is None:
                return self._choose() if self.offers else self.begin(sorted(self.linked))
            case ["piece", int(source), int(start)] if (source, start) == (self.source, self.start) and self.want:
                self._tries += 1
                if self._tries < TRIES and source in self.linked:
                    return self._ask()
                self.offers.pop(source, None)
                return self._choose()
        return []

    def joined(self, node: NodeId) -> list[Effect]:
        """A link is up, perhaps again."""
        self.linked.add(node)
        if self.model is not None:
            return []
        return self._ask() if node == self.source else [Send(node, Seek())]

    def gone(self, node: NodeId) -> list[Effect]:
        """A link broke: another with the same model goes on at once; if there is none, its peer may come back."""
        self.linked.discard(node)
        if node != self.source or self.model is not None:
            return []
        others = [other for other, offer in self.offers.items() if offer == self.want and other in self.linked]
        if not others:
            return []
        self.source = min(others)
        return self._ask()

    def _choose(self) -> list[Effect]:
        """Fetch the best that is offered; what is here of the same model is not fetched again."""
        there = {node: offer for node, offer in self.offers.items() if node in self.linked}
        if not there:
            self.want = self.source = None
            return self.begin(sorted(self.linked))
        best = max(there.values())
        if best != self.want:
            self.want, self.start = best, 0
        self.source, self._tries = min(node for node, offer in there.items() if offer == best), 0
        return self._ask()

    def _ask(self) -> list[Effect]:
        assert self.want is not None and self.source is not None
        timer = SetTimer(("transfer", "piece", self.source, self.start), PIECE_NS)
        return [Send(self.source, Fetch(*self.want, self.start)), timer]

    def _take(self, sender: NodeId, part: Vector) -> list[Effect]:
        if part.size != min(PIECE, self.length - self.start):
            raise ProtocolError(f"node {sender} sends a piece of {part.size} elements", peer=sender)
        if self._buffer is None:
            self._buffer = empty(self.length, self.dtype)
        self._buffer[self.start : self.start + part.size] = part
        self.start, self._tries = self.start + part.size, 0
        if self.start < self.length:
            return self._ask()
        assert self.want is not None
        round, expected = self.want
        if digest([self._buffer]) != expected:
            self.offers = {node: offer for node, offer in self.offers.items() if offer != self.want}
            self.want, self.source, self.start = None, None, 0
            text = f"the model of round {round} that node {sender} gave last is not what was promised"
            return [refused(sender, "digest", text, round), *self._choose()]
        self.model, self._buffer = (round, frozen(self._buffer)), None
        return [Report("fetched", {"from": sender, "model_of_round": round}, round)]
