"""A worker of parameter servers: it pushes gradients to whom the shards belong, and pulls the model from them.

    phase     event                               next phase
    new       Started                             joining
    joining   PeerJoined (the last server)        training pulling
    joining   start                               finished
    training  Trained                             pulling
    pulling   Pulled                              training leaving pulling
    pulling   lost Leaving                        finished
    training  lost Leaving                        finished
    leaving   Leaving bye                         finished

and from everywhere Stopping to finished.

It goes by clocks: at the model of clock c it asks for its gradient, pushes that to all shards, and pulls each for clock
c + 1.  What is not answered is asked for again, and so is what was pushed; servers take it once.  A server may answer
for a later clock, where the others went on without this worker: then it goes on from there with all shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgossip.errors import ProtocolError, TrainingError
from fedgossip.machine import (
    Checkpoint,
    Effect,
    Event,
    Failure,
    Finish,
    Fired,
    NodeId,
    Outgoing,
    PeerGone,
    PeerJoined,
    Received,
    RoundDone,
    Send,
    SetTimer,
    Started,
    Stopping,
    Train,
    Trained,
)
from fedgossip.messages import (
    Leaving,
    Message,
    PieceTaken,
    Pulled,
    PullHeld,
    ShardLost,
    ShardPull,
    ShardPush,
    Tenure,
    TenureTaken,
)
from fedgossip.placement.ring import Placement
from fedgossip.protocols.chunk_exchange import weight_of
from fedgossip.protocols.chunk_links import ChunkLink
from fedgossip.protocols.pieces import Assembly, pieces
from fedgossip.vectors import Vector, all_finite, empty, frozen

BYES_MAX = 5
"""Maximum number of goodbyes to a server that does not answer."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Limits of a run.  Times in nanoseconds."""

    rounds: int
    accumulate: int | None = 1
    """Batches of a gradient."""
    deadline_ns: int = 30_000_000_000
    start_ns: int = 300_000_000_000
    again_ns: int = 1_000_000_000
    """The shortest time after which something is said again that was not answered."""


@dataclass(frozen=True, slots=True, eq=False)
class PulledShard:
    """A shard as its server has given it; see messages.Pulled."""

    clock: int
    version: int
    steps: int
    missed: int
    vector: Vector


class PushPullWorker:
    """One worker.  `servers` are all there are; `placement` says which shard belongs to whom."""

    def __init__(
        self,
        node: NodeId,
        servers: Sequence[NodeId],
        manager: NodeId | None,
        placement: Placement,
        initial: Vector,
        schema: str,
        settings: WorkerSettings,
        resumed: Checkpoint | None = None,
    ) -> None:
        self.node, self.manager, self.placement = node, manager, placement
        self.schema, self.settings = schema, settings
        self.phase, self.epoch = "new", 0
        self.alive: tuple[NodeId, ...] = tuple(servers)
        self.clock = resumed.round if resumed else 0
        self.model: Vector = resumed.vectors["x"] if resumed else initial
        self._fresh = resumed is None
        self.gradient: tuple[float, Vector] | None = None  # of this clock, while it is pushed
        self.given: dict[int, PulledShard] = {}  # at this clock: what the gradient is computed from
        self.wanted = self.clock  # the clock that shards are pulled for
        self.first = self.clock  # the clock from which on this worker pushes
        self.pulled: dict[int, PulledShard] = {}  # for `wanted`, or later
        self.arriving: dict[int, tuple[int, Assembly]] = {}  # by shard: for which clock
        self.links = {server: ChunkLink(server, settings.deadline_ns, settings.again_ns) for server in servers}
        self.lives: dict[NodeId, int] = dict.fromkeys(servers, 0)
        self.linked: set[NodeId] = set()
        self.gone: set[NodeId] = set()  # servers that have said goodbye
        self._asks = self._byes = self._began_ns = 0
        self._heard_ns: dict[NodeId, int] = {}
        self._went_back = False

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        """Take one event; see machine.Machine."""
        if self.phase == "finished":
            return []
        match event:
            case Received(sender, message):
                return self._received(sender, message, now_ns)
            case Trained(job):
                return self._trained(event, now_ns) if self.phase == "training" and job == self.clock else []
            case Fired(key):
                return self._fired(key, now_ns)
            case PeerJoined(node, life):
                return self._joined(node, life, now_ns)
            case PeerGone(node):
                return self._lost(node)
            case Started():
                self.phase = "joining"
                return [SetTimer(("start",), self.settings.start_ns), *self._begin_if_gathered(now_ns)]
            case Stopping():
                return [*self._goodbye(), *self._finish()]
        return []

    def _received(self, sender: NodeId, message: Message, now_ns: int) -> list[Effect]:
        if sender == self.manager:
            return self._managed(message, now_ns)
        if sender not in self.links:
            raise ProtocolError(f"worker {self.node}: a message of {sender}, which is no server", peer=sender)
        match message:
            case Pulled():
                effects = self._given(sender, message)
                self._heard_ns[sender] = now_ns
                return effects
            case PullHeld():
                self._heard_ns[sender] = now_ns
                return []
            case PieceTaken():
                self._heard_ns[sender] = now_ns
                return self.links[sender].taken(message.name, now_ns)
            case Leaving():
                self.gone.add(sender)
                if self.phase == "leaving":
                    return self._end_if_answered()
                return self._without(sender, "has left") if self.manager is None else []
            case ShardLost(epoch, number) if epoch == self.epoch and number < len(self.placement.shards):
                words = self.placement.shards[number].words
                text = f"no server has a copy of elements {words} of the model, after round {self.clock}"
                return self._failed(text, "Start all again with --resume, or raise replication.")
            case ShardLost():
                return []
        raise ProtocolError(f"worker {self.node}: a {type(message).__name__}, which no server sends", peer=sender)

    def _fired(self, key: Any, now_ns: int) -> list[Effect]:
        match key:
            case ("again", server, timer) if server in self.links:
                return self.links[server].again(timer)
            case ("ask", number) if number == self._asks and self.phase == "pulling":
                return self._ask_again(now_ns)
            case ("lost", server) if server not in self.linked and self.phase in ("training", "pulling"):
                return self._without(server, "is gone")
            case ("start",) if self.phase == "joining":
                missing = sorted(self._needed - self.linked)
                text = f"servers {missing} have not come: worker {self.node} cannot begin"
                return self._finish(Failure("network", text, "Look at their logs, and at the addresses."))
            case ("bye",) if self.phase == "leaving":
                self._byes += 1
                return self._finish() if self._byes > BYES_MAX else self._bye()
        return []

    @property
    def _needed(self) -> set[NodeId]:
        """Those without which there is no model."""
        return {*self.alive} if self.manager is None else {*self.alive, self.manager}

    @property
    def _partners(self) -> set[NodeId]:
        return {*self.links} if self.manager is None else {*self.links, self.manager}

    # --- links ----------------------------------------------------------------------------------------------------

    def _joined(self, server: NodeId, life: int, now_ns: int) -> list[Effect]:
        if server == self.manager:
            self.linked.add(server)
            return self._begin_if_gathered(now_ns)
        if server not in self.links:
            return []
        self.linked.add(server)
        if life > self.lives[server]:  # what it had taken, but not answered, it knows nothing of
            self.lives[server] = life
            self.links[server].drop()
            return [*self._push(now_ns, [server]), *self._pulls([server]), *self._begin_if_gathered(now_ns)]
        return [*self.links[server].resent(), *self._begin_if_gathered(now_ns)]

    def _lost(self, server: NodeId) -> list[Effect]:
        self.linked.discard(server)
        if self.phase == "leaving":
            return self._end_if_answered()
        return [SetTimer(("lost", server), self._patience_ns)] if server in self.links else []

    @property
    def _patience_ns(self) -> int:
        """How long a server is waited for; where there is a manager another takes its place before."""
        return self.settings.deadline_ns if self.manager is None else self.settings.start_ns

    def _without(self, server: NodeId, what: str) -> list[Effect]:
        """End where a server does not come back that has a part of the model."""
        owned = self.placement.owned(server, self.alive)
        if not owned or self.phase not in ("joining", "training", "pulling"):
            return []
        words = "; ".join(shard.words for shard in owned[:3])
        text = f"server {server} {what}, and with it elements {words} of the model, after round {self.clock}"
        advice = "Start all again with --resume; set parallel.server.replication to go on without it."
        return self._failed(text, advice)

    def _failed(self, text: str, advice: str) -> list[Effect]:
        return [*self._goodbye(), *self._finish(Failure("network", text, advice))]

    def _managed(self, message: Message, now_ns: int) -> list[Effect]:
        """Take a word of the manager: by a new tenure what is not answered is said to others."""
        match message:
            case Tenure(epoch):
                taken = Send(self.manager or 0, TenureTaken(max(epoch, self.epoch)))
                if epoch <= self.epoch:
                    return [taken]
                self.epoch, self.alive = epoch, message.servers
                for link in self.links.values():
                    link.drop()
                self.arriving.clear()
                self._began_ns = now_ns
                pushed = self._push(now_ns, self.alive) if self.phase == "pulling" else []
                return [taken, *pushed, *self._pulls(), *self._begin_if_gathered(now_ns)]
            case Leaving():
                self.gone.add(self.manager or 0)
                return self._end_if_answered()
        raise ProtocolError(f"worker {self.node}: a {type(message).__name__} of the manager", peer=self.manager)

    # --- clocks ---------------------------------------------------------------------------------------------------

    def _begin_if_gathered(self, now_ns: int) -> list[Effect]:
        if self.phase != "joining" or self._needed - self.linked:
            return []
        if self._fresh:
            return self._go_on()
        return self._pull(self.clock, self.clock, now_ns)

    def _go_on(self) -> list[Effect]:
        """Ask for the gradient of this clock, or take leave."""
        if self.clock >= self.settings.rounds:
            self.phase = "leaving"
            return self._bye()
        self.phase = "training"
        return [Train(self.clock, self.model, gradient=True, accumulate=self.settings.accumulate)]

    def _trained(self, event: Trained, now_ns: int) -> list[Effect]:
        assert event.update is not None, "a gradient was asked for"
        if not all_finite(event.update):
            text = f"worker {self.node}, round {self.clock}: its gradient is not finite"
            raise TrainingError(text, "Lower train.lr, or look at the data of this worker.")
        self.gradient = weight_of(event.examples, event.metrics), event.update
        began: list[Effect] = [Outgoing(self.clock + 1, self.model)]
        pushed = self._push(now_ns, self.alive)
        return [*began, *pushed, *self._pull(self.clock + 1, self.clock, now_ns)]

    def _push(self, now_ns: int, servers: Sequence[NodeId]) -> list[Effect]:
        """ShardPush the gradient of this clock to the shards of these servers that have not answered."""
        if self.gradient is None:
            return []
        weight, vector = self.gradient
        effects: list[Effect] = []
        for shard in self.placement.shards:
            (owner,) = shard.holders(self.alive, 1)
            if owner not in servers or shard.number in self.pulled:
                continue
            read = self.given.get(shard.number)
            facts = self.clock, read.version if read else 0, read.steps if read else 0, weight
            for start, part in pieces(shard.taken_from(vector)):
                push = ShardPush(self.epoch, shard.number, *facts, start, part.size, self.schema, (part,))
                effects += self.links[owner].send(push, now_ns)
        return effects

    def _pull(self, clock: int, first: int, now_ns: int) -> list[Effect]:
        """ShardPull all shards for a clock."""
        self.phase, self.wanted, self.first, self._began_ns = "pulling", clock, first, now_ns
        self.pulled.clear()
        self.arriving.clear()
        self._went_back = False
        return [*self._pulls(), *self._ask_later()]

    def _pulls(self, servers: Sequence[NodeId] | None = None) -> list[Send]:
        """Ask for the shards that are not here; of these servers, or of all."""
        if self.phase != "pulling":
            return []
        missing = [shard for shard in self.placement.shards if shard.number not in self.pulled]
        asked = [(shard.holders(self.alive, 1)[0], shard.number) for shard in missing]
        return [
            Send(owner, ShardPull(self.epoch, number, self.wanted, self.first))
            for owner, number in asked
            if servers is None or owner in servers
        ]

    def _ask_again(self, now_ns: int) -> list[Effect]:
        """Ask again for what is missing; end where a server has not said a word for too long."""
        asked = self._pulls()
        silent = [one.to for one in asked if now_ns - self._since_ns(one.to) > self._patience_ns]
        ended = self._without(silent[0], "does not answer") if silent else []
        return ended or [*asked, *self._ask_later()]

    def _since_ns(self, server: NodeId) -> int:
        return max(self._heard_ns.get(server, 0), self._began_ns)

    def _ask_later(self) -> list[Effect]:
        self._asks += 1
        return [SetTimer(("ask", self._asks), self.settings.again_ns)]

    def _given(self, sender: NodeId, piece: Pulled) -> list[Effect]:
        if piece.epoch != self.epoch:
            return []
        taken = Send(sender, PieceTaken(*piece.name))
        self._check_given(sender, piece)
        here = piece.shard in self.pulled
        if self.phase != "pulling" or here or piece.clock < self.wanted:
            return [taken]  # said again
        shard = self.placement.shards[piece.shard]
        clock, arriving = self.arriving.get(piece.shard, (-1, None))
        if arriving is None or clock < piece.clock:
            clock, arriving = piece.clock, Assembly(shard.length, self.model.dtype)
        if clock > piece.clock or arriving.has(piece.start):
            return [taken]
        self.arriving[piece.shard] = clock, arriving
        arriving.take(piece.start, piece.vectors[0])
        if (whole := arriving.whole) is None:
            return [taken]
        del self.arriving[piece.shard]
        facts = piece.clock, piece.version, piece.steps, piece.missed
        self.pulled[piece.shard] = PulledShard(*facts, whole)
        return [taken, *self._settle()]

    def _check_given(self, sender: NodeId, piece: Pulled) -> None:
        """Raise ProtocolError for a piece that cannot be one of a shard of this server."""
        what = f"worker {self.node}: shard {piece.shard} of server {sender} for clock {piece.clock}"
        shards = self.placement.shards
        if piece.shard >= len(shards) or shards[piece.shard].holders(self.alive, 1) != (sender,):
            raise ProtocolError(f"{what}, which does not own it", "Have all the same experiment file?", peer=sender)
        if piece.clock > self.settings.rounds or piece.version > piece.clock:
            raise ProtocolError(f"{what}, which has not been yet", peer=sender)
        fresh = Assembly(shards[piece.shard].length, self.model.dtype)
        if piece.schema != self.schema or not fresh.expects(piece.start, piece.vectors):
            advice = "Give every worker and server the same [model] section."
            raise ProtocolError(f"{what} of another layout ({piece.schema}, ours {self.schema})", advice, peer=sender)
        if not all_finite(piece.vectors[0]):
            raise ProtocolError(f"{what} is not finite", peer=sender)

    def _settle(self) -> list[Effect]:
        """Go on where all shards are here and of one clock; pull again those that are not of it."""
        if len(self.pulled) < len(self.placement.shards):
            return []
        clocks = {one.clock for one in self.pulled.values()}
        if len(clocks) == 1:
            return self._next(clocks.pop())
        low, high = min(clocks), max(clocks)
        back = self.first == self.wanted and high - low == 1 and not self._went_back
        self._went_back = True
        self.wanted = self.first = low if back else high
        self.gradient = None
        self.pulled = {number: one for number, one in self.pulled.items() if one.clock == self.wanted}
        return [*self._pulls(), *self._ask_later()]

    def _next(self, clock: int) -> list[Effect]:
        """All shards are here for this clock: the model is whole."""
        model = empty(self.model.size, self.model.dtype)
        for shard in self.placement.shards:
            shard.put_into(model, self.pulled[shard.number].vector)
        moved, self.clock, self.model = clock > self.clock, clock, frozen(model)
        self.given, self.pulled, self.gradient = self.pulled, {}, None
        done: list[Effect] = []
        if moved:
            done = [RoundDone(clock, self.model, self._staleness), Checkpoint(clock, {"x": self.model})]
        return [*done, *self._go_on()]

    @property
    def _staleness(self) -> int | None:
        """Steps that the last push had missed, at most of all shards; None where clocks are closed together."""
        facts: Mapping[int, PulledShard] = self.given
        apart = any(one.steps != one.version for one in facts.values())
        return max(one.missed for one in facts.values()) if apart else None

    # --- the end --------------------------------------------------------------------------------------------------

    def _bye(self) -> list[Effect]:
        return [*self._goodbye(), SetTimer(("bye",), self.settings.again_ns), *self._end_if_answered()]

    def _goodbye(self) -> list[Effect]:
        return [Send(server, Leaving(self.clock)) for server in sorted(self._partners - self.gone)]

    def _end_if_answered(self) -> list[Effect]:
        return self._finish() if self.phase == "leaving" and not self.linked - self.gone else []

    def _finish(self, failure: Failure | None = None) -> list[Effect]:
        self.phase = "finished"
        return [Finish(np.asarray(self.model), failure)]
