"""A peer of a fixed network that comes back with nothing asks its neighbours for their model before it takes part.

    comes back --a neighbour's model, or all are at the start, or nobody has one in time--> gossip

What it begins with is as far as what its neighbours have, or their first round: a model that nobody has trained, mixed
into theirs, would set them back.  Every peer keeps its latest model for this, as members that come and go do
(`state_transfer`); the gossip machine knows nothing of it, and is told of links and of the latest words once it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import (
    Checkpoint,
    Effect,
    Event,
    Fired,
    Machine,
    NodeId,
    PeerGone,
    PeerJoined,
    Received,
    Report,
    RoundDone,
    SetTimer,
    Started,
    Stopping,
)
from fedgossip.core.messages import ChunkRequest, Leaving, Message, Model, ModelChunk, ModelInfo, ModelQuery
from fedgossip.protocols.gossip.refusals import far_ahead, refused_by
from fedgossip.protocols.transfer.state_transfer import ModelFetch, ModelSource

Make = Callable[[Checkpoint], Machine]
"""The gossip machine that goes on from there."""

TakeUp = Callable[[int, Vector], Checkpoint]
"""(round, model): from where a machine goes on that has this model after so many rounds."""


class Recovering:
    """The machine of one peer: `gossip`, and beside it the model that neighbours may ask for.

    `lost`: this life has nothing of the one before; it asks the `neighbours` first, for at most `patience_ns`, and is
    then what `make` gives from what `take_up` makes of their model.  `initial`: what everyone begins with.
    """

    def __init__(
        self,
        gossip: Machine,
        make: Make,
        take_up: TakeUp,
        initial: Vector,
        schema: str,
        rounds: int,
        neighbours: Collection[NodeId],
        patience_ns: int,
        *,
        lost: bool,
    ) -> None:
        self.gossip, self.rounds, self.patience_ns = gossip, rounds, patience_ns
        self.neighbours = frozenset(neighbours)
        self.seeking = lost
        self.giver = ModelSource(schema)
        self.giver.latest = 0, initial
        self.taker = ModelFetch(schema, initial.size, initial.dtype.name)
        self._make, self._take_up = make, take_up
        self._lives: dict[NodeId, int] = {}
        self._gone: set[NodeId] = set()
        self._said: dict[NodeId, dict[str, Message]] = {}  # the latest model and goodbye of each

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        """Take one event; see machine.Machine."""
        match event:
            case Received(sender, ModelQuery() | ChunkRequest() as asked):
                return self.giver.handle(sender, asked, now_ns)
            case _ if self.seeking:
                return self._seek(event, now_ns)
            case Received(_, ModelInfo() | ModelChunk()) | Fired(("transfer", *_)):
                return []  # too late
        effects = self.gossip.handle(event, now_ns)
        for effect in effects:
            if isinstance(effect, RoundDone):
                self.giver.latest = effect.round, effect.model
        return effects

    # --- before it takes part -------------------------------------------------------------------------------------

    def _seek(self, event: Event, now_ns: int) -> list[Effect]:
        effects = self._heard(event)
        match event:
            case Stopping():
                self.seeking = False
                return [*effects, *self.gossip.handle(event, now_ns)]
            case Fired(("transfer", "patience")):
                return [*effects, Report("began_anew", {"asked": sorted(self.neighbours)}, 0), *self._begin(now_ns)]
        if self.taker.model is not None or self._at_the_start():
            return [*effects, *self._begin(now_ns)]
        return effects

    def _heard(self, event: Event) -> list[Effect]:
        match event:
            case Started():
                gather = self.taker.begin(())
                return [*gather, SetTimer(("transfer", "patience"), self.patience_ns)]
            case PeerJoined(node, incarnation):
                self._lives[node] = incarnation
                self._gone.discard(node)
                return self.taker.joined(node)
            case PeerGone(node):
                self._lives.pop(node, None)
                self._gone.add(node)
                return self.taker.gone(node)
            case Received(sender, ModelInfo(round)) if round > self.rounds:
                return [far_ahead(sender, round, self.rounds)]
            case Received(sender, ModelInfo() | ModelChunk() as offered):
                return self._taken(sender, offered)
            case Received(sender, Model() | Leaving() as said) if sender in self.neighbours:
                self._said.setdefault(sender, {})[type(said).__name__] = said
            case Fired(("transfer", *rest)):
                return self.taker.fired(rest)
        return []

    def _taken(self, sender: NodeId, offered: ModelInfo | ModelChunk) -> list[Effect]:
        try:
            return self.taker.handle(sender, offered)
        except ProtocolError as error:
            return [refused_by(error, 0)]

    def _at_the_start(self) -> bool:
        """Whether no neighbour has anything better than what everyone begins with."""
        if self.taker.want is not None:
            return self.taker.want[0] == 0
        offers = self.taker.offers
        return offers.keys() >= self.neighbours and all(round == 0 for round, _ in offers.values())

    def _begin(self, now_ns: int) -> list[Effect]:
        """Take part, with what came; the gossip machine hears of all that it has not been told."""
        self.seeking = False
        if self.taker.model is not None:
            self.gossip = self._make(self._take_up(*self.taker.model))
            self.giver.latest = self.taker.model
        events: list[Event] = [Started()]
        events += [PeerJoined(node, self._lives[node]) for node in sorted(self._lives)]
        events += [PeerGone(node) for node in sorted(self._gone)]
        events += [Received(node, said) for node in sorted(self._said) for said in self._said[node].values()]
        self._said.clear()
        effects: list[Effect] = []
        for event in events:
            try:
                effects += self.handle(event, now_ns)
            except ProtocolError as error:
                effects.append(refused_by(error, 0))
        return effects
