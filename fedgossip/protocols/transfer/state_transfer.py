"""The transfer of a model to a peer that comes later, in chunks; after a broken link it goes on, maybe with another.

    joiner   ModelQuery to all                         member   ModelInfo(round, digest): its latest model, kept a while
    ChunkRequest(round, digest, start) of the best     ModelChunk(round, digest, start)
             ... one at a time, then the digest is checked

One member may say anything: a round far ahead of the second highest that is offered is left alone.  Of the others
best is the highest round, then the highest digest: of those that have the same model any can go on where another
stopped.  A source that does not deliver in time, changes its mind, or gave a model that is not what it promised comes
after all others.  A member that no longer has the model answers with what it has now.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector, digest, empty, frozen, summable
from fedgossip.core.machine import Effect, NodeId, Refused, Report, Send, SetTimer
from fedgossip.core.messages import MODEL_CHUNK, ChunkRequest, ModelChunk, ModelInfo, ModelQuery

GATHER_NS = 500_000_000
"""Nanoseconds to wait for offers after the query, and before it is repeated where nobody has anything."""

PIECE_NS = 20_000_000_000
"""Nanoseconds that a chunk may take before it is asked for again: a megabyte over the slowest line, and the round
trip."""

AHEAD_ROUNDS = 16
"""Maximum number of rounds that an offer is believed ahead of the second highest: peers are not all in one round."""

GATHERS = 4
"""Maximum number of waits for a second offer where more than one peer is there."""

KEPT_NS = 120_000_000_000
"""Nanoseconds that an offered model is kept after it was last asked for."""

KEPT_OFFERS = 2
"""Maximum number of offered models that are kept at a time, besides the latest."""

Offer = tuple[int, str]
"""(round, digest): what ranks a model."""


class ModelSource:
    """The models that a member offers: its latest one, and those that somebody is fetching."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.latest: tuple[int, Vector] | None = None
        self._kept: dict[Offer, tuple[Vector, int]] = {}

    def handle(self, sender: NodeId, message: ModelQuery | ChunkRequest, now_ns: int) -> list[Effect]:
        """Return the answer; models that have not been asked for lately are dropped."""
        self._kept = {offer: kept for offer, kept in self._kept.items() if now_ns - kept[1] <= KEPT_NS}
        if isinstance(message, ChunkRequest) and (message.round, message.digest) in self._kept:
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
        return [Send(sender, ModelInfo(*found))]

    def _piece(self, sender: NodeId, asked: ChunkRequest, now_ns: int) -> list[Effect]:
        vector, _ = self._kept[asked.round, asked.digest]
        if asked.start % MODEL_CHUNK or asked.start >= vector.size:
            raise ProtocolError(f"node {sender} asks for a piece at {asked.start} of {vector.size}", peer=sender)
        self._kept[asked.round, asked.digest] = vector, now_ns
        part = vector[asked.start : asked.start + MODEL_CHUNK]
        return [Send(sender, ModelChunk(asked.round, asked.digest, asked.start, self.schema, (part,)))]


class ModelFetch:
    """Fetches a model of `length` elements; `model` is (round, vector) when it is here."""

    def __init__(self, schema: str, length: int, dtype: str) -> None:
        self.schema, self.length, self.dtype = schema, length, dtype
        self.model: tuple[int, Vector] | None = None
        self.offers: dict[NodeId, Offer] = {}
        self.linked: set[NodeId] = set()
        self.want: Offer | None = None
        self.source: NodeId | None = None
        self.start = 0
        self.failed: set[NodeId] = set()
        """Sources that come after all others."""
        self._gathers = 0
        self._givers: set[NodeId] = set()  # of the pieces that are here
        self._buffer: Vector | None = None

    def begin(self, linked: Sequence[NodeId]) -> list[Effect]:
        """Ask everybody for offers."""
        self.linked, self._gathers = set(linked), 0
        return [*(Send(node, ModelQuery()) for node in linked), SetTimer(("transfer", "gather"), GATHER_NS)]

    def handle(self, sender: NodeId, message: ModelInfo | ModelChunk) -> list[Effect]:
        """Take an offer or a chunk; one that was not asked for changes nothing."""
        if self.model is not None:
            return []
        if isinstance(message, ModelInfo):
            self.offers[sender] = message.round, message.digest
            return self._failed(sender) if sender == self.source and self.want != self.offers[sender] else []
        if sender != self.source or (message.round, message.digest) != self.want or message.start != self.start:
            return []
        return self._take(sender, message.vectors[0])

    def fired(self, key: Sequence[object]) -> list[Effect]:
        """A timer of ours."""
        match key:
            case ["gather"] if self.want is None and self.model is None:
                return self._gathered()
            case ["piece", int(source), int(start)] if (source, start) == (self.source, self.start) and self.want:
                return self._failed(source)
        return []

    def _gathered(self) -> list[Effect]:
        there = self.offers.keys() & self.linked
        if not there:
            return self.begin(sorted(self.linked))
        self._gathers += 1
        if len(there) < min(2, len(self.linked)) and self._gathers < GATHERS:  # one alone may say anything
            return [SetTimer(("transfer", "gather"), GATHER_NS)]
        return self._choose()

    def _failed(self, source: NodeId) -> list[Effect]:
        self.failed.add(source)
        return self._choose()

    def joined(self, node: NodeId) -> list[Effect]:
        """A link is up, perhaps again."""
        self.linked.add(node)
        if self.model is not None:
            return []
        return self._ask() if node == self.source else [Send(node, ModelQuery())]

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
        if there.keys() <= self.failed:  # all have failed once: again, in turn
            self.failed.clear()
        rounds = sorted((round for round, _ in there.values()), reverse=True)
        near = rounds[min(1, len(rounds) - 1)] + AHEAD_ROUNDS
        left = {node: offer for node, offer in there.items() if node not in self.failed}
        able = {node: offer for node, offer in left.items() if offer[0] <= near} or left
        best = max(able.values())
        if best != self.want:
            self.want, self.start = best, 0
            self._givers.clear()
        self.source = min(node for node, offer in able.items() if offer == best)
        return self._ask()

    def _ask(self) -> list[Effect]:
        assert self.want is not None and self.source is not None
        timer = SetTimer(("transfer", "piece", self.source, self.start), PIECE_NS)
        return [Send(self.source, ChunkRequest(*self.want, self.start)), timer]

    def _take(self, sender: NodeId, part: Vector) -> list[Effect]:
        if part.size != min(MODEL_CHUNK, self.length - self.start):
            raise ProtocolError(f"node {sender} sends a piece of {part.size} elements", peer=sender)
        if self._buffer is None:
            self._buffer = empty(self.length, self.dtype)
        self._buffer[self.start : self.start + part.size] = part
        self._givers.add(sender)
        self.start += part.size
        return self._ask() if self.start < self.length else self._complete(sender, self._buffer)

    def _complete(self, sender: NodeId, model: Vector) -> list[Effect]:
        assert self.want is not None
        round, expected = self.want
        wrong = "not what was promised" if digest([model]) != expected else "" if summable(model) else "none to mix"
        if not wrong:
            self.model, self._buffer = (round, frozen(model)), None
            return [Report("fetched", {"from": sender, "model_of_round": round}, round)]
        self.failed |= self._givers
        for node in self._givers:
            self.offers.pop(node, None)
        self.want, self.source = None, None
        text = f"the model of round {round} that node {sender} gave last is {wrong}"
        return [
            Refused(sender, "digest", text, round),
            *(Send(node, ModelQuery()) for node in self._givers),
            *self._choose(),
        ]
