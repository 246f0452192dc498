"""A restarted peer of a fixed network without a checkpoint fetches a neighbour's model before it takes part.

    restarts --a neighbour's model, or all are at the start, or no neighbour has one in time--> gossip

It begins in its neighbours' round, or in their first: an untrained model, mixed into theirs, would set them back.
Every peer keeps its latest model for this, as in runs with a changing roster (`state_transfer`); the gossip machine is
independent of it, and receives links and the latest messages once it begins.
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
"""Makes the gossip machine that resumes from the checkpoint."""

TakeUp = Callable[[int, Vector], Checkpoint]
"""(round, model): checkpoint of a machine that adopts this model after so many rounds."""


class Recovering:
    """The machine of one peer: `gossip`, and the model that neighbours may request.

    `lost`: this life has no checkpoint; it first queries the `neighbours`, for at most `patience_ns`, and then runs
    the machine of `make`, from the checkpoint that `take_up` makes of their model.  `initial`: every peer's first
    model.
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
        """Handle one event; see machine.Machine."""
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

    # --- before it takes part -----------------------------------------------------------------------------------------

    def _seek(self, event: Event, now_ns: int) -> list[Effect]:
        effects = self._handle_transfer(event)
        match event:
            case Stopping():
                self.seeking = False
                return [*effects, *self.gossip.handle(event, now_ns)]
            case Fired(("transfer", "patience")):
                return [*effects, Report("began_anew", {"asked": sorted(self.neighbours)}, 0), *self._begin(now_ns)]
        if self.taker.model is not None or self._at_the_start():
            return [*effects, *self._begin(now_ns)]
        return effects

    def _handle_transfer(self, event: Event) -> list[Effect]:
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
        """Return whether no neighbour has a better model than the initial one."""
        if self.taker.want is not None:
            return self.taker.want[0] == 0
        offers = self.taker.offers
        return offers.keys() >= self.neighbours and all(round == 0 for round, _ in offers.values())

    def _begin(self, now_ns: int) -> list[Effect]:
        """Take part, with the fetched model; pass the stored links and messages to the gossip machine."""
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
