"""Transfer of a model to a late or restarted peer, or of an optimiser's state to a worker, by requested chunks.

A transfer resumes after a broken link, also from another source.

    joiner   ModelQuery to all                         member   ModelInfo(round, digest): its latest model
    ChunkRequest(round, digest, start) of the best     ModelChunk(round, digest, start)
             ... one at a time, then the digest is checked

A single offer may be false: a round far ahead of the second highest offer is ignored.  The best of the others has the
highest round, then the highest digest.  A source that is late, changes its offer, or sent another digest is used last.
A member that no longer has the model sends its current offer.

**A restarted peer** of a fixed network without a checkpoint:

    restarts --a neighbour's model, or all are at the start, or no neighbour has one in time--> gossip

It begins in its neighbours' round, or in their first: an untrained model, mixed into theirs, would set them back.  The
gossip machine receives the links and latest messages once it begins.

**A worker behind the others** fetches the optimiser's state from one that has it:

    behind   StateQuery(rounds, start)              donor   StatePiece(rounds, digest, start, ...)
             ... one at a time, then the digest is checked

Received pieces are kept: after a stopped round, or with another donor, the same transfer is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fedgossip.algorithms.gossip.base import restored, saved
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector, all_finite, digest, empty, frozen, summable
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
    Refused,
    Report,
    RoundDone,
    Send,
    SetTimer,
    Started,
    Stopping,
)
from fedgossip.core.messages import (
    MODEL_CHUNK,
    ChunkRequest,
    Leaving,
    Message,
    Model,
    ModelChunk,
    ModelInfo,
    ModelQuery,
    StatePiece,
    StateQuery,
)
from fedgossip.protocols.gossip.failures import far_ahead, refused_by

GATHER_NS = 500_000_000
"""Wait for offers after the query, and before a repetition without any, in nanoseconds."""

PIECE_NS = 20_000_000_000
"""Wait for a chunk before its source counts as failed, in nanoseconds: a megabyte over the slowest line and back."""

AHEAD_ROUNDS = 16
"""Maximum lead of a believed offer over the second highest, in rounds: peers are not all in one round."""

GATHERS = 4
"""Maximum number of waits for a second offer if more than one peer is connected."""

KEPT_NS = 120_000_000_000
"""Storage time of an offered model after its last request, in nanoseconds."""

KEPT_OFFERS = 2
"""Maximum number of offered models stored at a time, besides the latest."""

Offer = tuple[int, str]
"""(round, digest): the rank of a model."""


class ModelSource:
    """The models that a member offers: its latest one, and those being fetched."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.latest: tuple[int, Vector] | None = None
        self._kept: dict[Offer, tuple[Vector, int]] = {}

    def handle(self, sender: NodeId, message: ModelQuery | ChunkRequest, now_ns: int) -> list[Effect]:
        """Return the reply; models without a recent request are dropped."""
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
    """Fetches a model of `length` elements; `model` is (round, vector) once it is complete."""

    def __init__(self, schema: str, length: int, dtype: str) -> None:
        self.schema, self.length, self.dtype = schema, length, dtype
        self.model: tuple[int, Vector] | None = None
        self.offers: dict[NodeId, Offer] = {}
        self.linked: set[NodeId] = set()
        self.want: Offer | None = None
        self.source: NodeId | None = None
        self.start = 0
        self.failed: set[NodeId] = set()
        """Sources to use after all others."""
        self._gathers = 0
        self._givers: set[NodeId] = set()  # senders of the received pieces
        self._buffer: Vector | None = None

    def begin(self, linked: Sequence[NodeId]) -> list[Effect]:
        """Request offers of all linked members."""
        self.linked, self._gathers = set(linked), 0
        return [*(Send(node, ModelQuery()) for node in linked), SetTimer(("transfer", "gather"), GATHER_NS)]

    def handle(self, sender: NodeId, message: ModelInfo | ModelChunk) -> list[Effect]:
        """Handle an offer or a chunk; an unrequested one changes nothing."""
        if self.model is not None:
            return []
        if isinstance(message, ModelInfo):
            self.offers[sender] = message.round, message.digest
            return self._failed(sender) if sender == self.source and self.want != self.offers[sender] else []
        if sender != self.source or (message.round, message.digest) != self.want or message.start != self.start:
            return []
        return self._take(sender, message.vectors[0])

    def fired(self, key: Sequence[object]) -> list[Effect]:
        """Handle a timer of the transfer."""
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
        if len(there) < min(2, len(self.linked)) and self._gathers < GATHERS:  # a single offer may be false
            return [SetTimer(("transfer", "gather"), GATHER_NS)]
        return self._choose()

    def _failed(self, source: NodeId) -> list[Effect]:
        self.failed.add(source)
        return self._choose()

    def joined(self, node: NodeId) -> list[Effect]:
        """Handle a new link, perhaps to a known source."""
        self.linked.add(node)
        if self.model is not None:
            return []
        return self._ask() if node == self.source else [Send(node, ModelQuery())]

    def handle_lost_link(self, node: NodeId) -> list[Effect]:
        """Handle a broken link: another source of the same model continues at once; without one, wait for the link."""
        self.linked.discard(node)
        if node != self.source or self.model is not None:
            return []
        others = [other for other, offer in self.offers.items() if offer == self.want and other in self.linked]
        if not others:
            return []
        self.source = min(others)
        return self._ask()

    def _choose(self) -> list[Effect]:
        """Fetch the best offer; received pieces of the same model are kept."""
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


Make = Callable[[Checkpoint], Machine]
"""Creates the gossip machine that resumes from the checkpoint."""

TakeUp = Callable[[int, Vector], Checkpoint]
"""(round, model): checkpoint of a machine that adopts this model after `round` rounds."""


class Recovering:
    """The machine of one peer: `gossip`, and the model that neighbours may request.

    `lost`: without a checkpoint, query the `neighbours` for at most `patience_ns`; then run the machine of `make`, from
    the checkpoint that `take_up` makes from their model.  `initial`: every peer's first model.
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
        if self.taker.model is not None or self._is_at_start():
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
                return self.taker.handle_lost_link(node)
            case Received(sender, ModelInfo(round)) if round > self.rounds:
                return [far_ahead(sender, round, self.rounds)]
            case Received(sender, ModelInfo() | ModelChunk() as offered):
                return self._handle_offer(sender, offered)
            case Received(sender, Model() | Leaving() as message) if sender in self.neighbours:
                self._said.setdefault(sender, {})[type(message).__name__] = message
            case Fired(("transfer", *rest)):
                return self.taker.fired(rest)
        return []

    def _handle_offer(self, sender: NodeId, offered: ModelInfo | ModelChunk) -> list[Effect]:
        try:
            return self.taker.handle(sender, offered)
        except ProtocolError as error:
            return [refused_by(error, 0)]

    def _is_at_start(self) -> bool:
        if self.taker.want is not None:
            return self.taker.want[0] == 0
        offers = self.taker.offers
        return offers.keys() >= self.neighbours and all(round == 0 for round, _ in offers.values())

    def _begin(self, now_ns: int) -> list[Effect]:
        """Begin the gossip machine; pass it the stored links and messages."""
        self.seeking = False
        if self.taker.model is not None:
            self.gossip = self._make(self._take_up(*self.taker.model))
            self.giver.latest = self.taker.model
        events: list[Event] = [Started()]
        events += [PeerJoined(node, self._lives[node]) for node in sorted(self._lives)]
        events += [PeerGone(node) for node in sorted(self._gone)]
        events += [Received(node, message) for node in sorted(self._said) for message in self._said[node].values()]
        self._said.clear()
        effects: list[Effect] = []
        for event in events:
            try:
                effects += self.handle(event, now_ns)
            except ProtocolError as error:
                effects.append(refused_by(error, 0))
        return effects


class StateDonor:
    """Sends the newest state in pieces; the vectors of a requested state are concatenated once."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._given: tuple[int, Vector, str] | None = None

    def answer(self, sender: NodeId, asked: StateQuery, rounds: int, state: Any) -> list[Effect]:
        """Return the requested piece; none for other rounds than `rounds`.  Raises ProtocolError."""
        if asked.rounds != rounds:
            return []
        arrays, numbers = saved(state)
        length = sum(array.size for array in arrays.values())
        if asked.start % MODEL_CHUNK or asked.start >= length:
            raise ProtocolError(f"worker {sender} asks for a state at {asked.start} of {length}", peer=sender)
        if self._given is None or self._given[0] != rounds:
            row = frozen(np.concatenate(list(arrays.values())))
            self._given = rounds, row, digest([row])
        _, row, name = self._given
        part = row[asked.start : asked.start + MODEL_CHUNK]
        rest = tuple(float(numbers[one]) for one in sorted(numbers))
        return [Send(sender, StatePiece(rounds, name, row.size, asked.start, rest, self.schema, (part,)))]

    def forget(self) -> None:
        """Drop an outdated state."""
        self._given = None


class StateFetch:
    """Fetches a state with the layout of `like`.  Times in nanoseconds: the first wait for a piece, and the longest."""

    def __init__(self, node: NodeId, like: Any, schema: str, first_ns: int, longest_ns: int) -> None:
        self.node, self.schema, self.like = node, schema, like
        self.first_ns, self.longest_ns = first_ns, longest_ns
        self.donor, self.rounds = -1, -1
        self._digest, self._row, self._start = "", empty(0, like.x.dtype), 0
        self._wait_ns = first_ns

    @property
    def _length(self) -> int:
        return sum(array.size for array in saved(self.like)[0].values())

    def begin(self, donor: NodeId, rounds: int) -> list[Effect]:
        """Request the state after `rounds` rounds, or its missing pieces."""
        if rounds != self.rounds:
            self._digest, self._start = "", 0
        self.donor, self.rounds = donor, rounds
        return self._ask(self.first_ns)

    def again(self, start: int) -> list[Effect]:
        """Request a piece again after its wait, and wait longer."""
        return self._ask(min(2 * self._wait_ns, self.longest_ns)) if start == self._start else []

    def _ask(self, wait_ns: int) -> list[Effect]:
        self._wait_ns = wait_ns
        timer = SetTimer(("piece", self.rounds, self._start), wait_ns)
        return [Send(self.donor, StateQuery(self.rounds, self._start)), timer]

    def take(self, sender: NodeId, piece: StatePiece) -> tuple[Any, list[Effect]]:
        """Add a piece; return (the complete state or None, effects).  Raises ProtocolError for a piece of another
        layout.
        """
        if (sender, piece.rounds) != (self.donor, self.rounds):
            return None, []
        self._check(sender, piece)
        if self._digest and piece.digest != self._digest:
            self._start = 0
        self._digest = piece.digest
        if piece.start != self._start:
            return None, []
        if not self._start:
            self._row = empty(piece.length, piece.vectors[0].dtype)
        size = piece.vectors[0].size
        self._row[self._start : self._start + size] = piece.vectors[0]
        self._start += size
        if self._start < piece.length:
            return None, self._ask(self.first_ns)
        return self._finish_state(piece)

    def _check(self, sender: NodeId, piece: StatePiece) -> None:
        kind, numbers = self.like.x.dtype, saved(self.like)[1]
        size = min(MODEL_CHUNK, self._length - piece.start)
        shapes = [(vector.dtype, vector.shape) for vector in piece.vectors]
        same = (piece.schema, piece.length, len(piece.numbers)) == (self.schema, self._length, len(numbers))
        if not same or shapes != [(kind, (size,))] or not all_finite(piece.vectors[0]):
            text = f"a state of another layout from worker {sender}, round {piece.rounds} (schema {piece.schema:.16})"
            advice = "Give every worker the same [model], [train] and [parallel] sections."
            raise ProtocolError(f"worker {self.node}: {text}", advice, peer=sender)

    def _finish_state(self, piece: StatePiece) -> tuple[Any, list[Effect]]:
        row, self._row, self._start, self._digest = self._row, empty(0, self._row.dtype), 0, ""
        if digest([row]) == piece.digest:
            self.rounds = -1
            return _state_of(self.like, row, piece.numbers), []
        text = f"the state after {piece.rounds} rounds that worker {self.donor} gave is not what it promised"
        return None, [Refused(self.donor, "digest", text, piece.rounds), *self._ask(self.longest_ns)]


def _state_of(like: Any, row: Vector, rest: tuple[float, ...]) -> Any:
    arrays, numbers = saved(like)
    found: dict[str, Vector] = {}
    start = 0
    for name, array in arrays.items():
        found[name] = frozen(row[start : start + array.size].copy())
        start += array.size
    names: Mapping[str, Any] = {name: type(numbers[name])(rest[place]) for place, name in enumerate(sorted(numbers))}
    return restored(like, found, names)
