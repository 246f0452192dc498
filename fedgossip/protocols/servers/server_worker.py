"""A worker of parameter servers: it pushes gradients to the owners of the shards, and pulls the model from them.

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

At the model of clock c it requests its gradient, pushes it to all shards, and pulls each for clock c + 1.  Messages are
repeated; servers count each once.  A server may answer for a later clock: the worker continues from there with all
shards.  A server that holds a pull for longer than an honest one counts as gone.

With `push` = n the sum of n gradients is pushed (Downpour SGD: Dean, Corrado, Monga and others, Large scale distributed
deep networks, NIPS 2012, algorithm 1.1): after each the worker steps on its local copy, or, after every `fetch`-th,
pulls the model of the open clock.  A round of its record is a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgossip.algorithms.hash_ring import Placement
from fedgossip.base.errors import ProtocolError, TrainingError
from fedgossip.base.vectors import Vector, add, all_finite, frozen, linear
from fedgossip.core.machine import (
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
    RowsChosen,
    Send,
    SetTimer,
    Started,
    Stopping,
    Trained,
)
from fedgossip.core.messages import (
    ChunksAsked,
    ChunksHere,
    CodedPulled,
    KeysWanted,
    Leaving,
    Message,
    PieceTaken,
    Pulled,
    PullHeld,
    RowsPulled,
    ShardLost,
    Tenure,
    TenureTaken,
)
from fedgossip.protocols.allreduce.chunk_links import ChunkLink
from fedgossip.protocols.allreduce.round_sums import weight_of
from fedgossip.protocols.servers.model_parts import Assembly, ModelParts, ShardCoding, WholeParts, check_coded

BYES_MAX = 5
"""Maximum number of `Leaving` messages to a server that does not answer."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Limits of a run.  Times in nanoseconds.  `rounds`: clocks, each with a push."""

    rounds: int
    accumulate: int | None = 1
    """Number of batches of a gradient."""
    fetch: int = 1
    push: int = 1
    """Number of gradients between two pulls, and in a push: a multiple of `fetch`."""
    deadline_ns: int = 30_000_000_000
    start_ns: int = 300_000_000_000
    again_ns: int = 1_000_000_000
    """Minimum wait before an unanswered message is sent again."""


class PushPullWorker:
    """One worker.  `servers`: all servers; `placement` assigns each shard to an owner."""

    def __init__(
        self,
        node: NodeId,
        servers: Sequence[NodeId],
        manager: NodeId | None,
        placement: Placement,
        parts: ModelParts,
        schema: str,
        settings: WorkerSettings,
        resumed: Checkpoint | None = None,
        coding: ShardCoding | None = None,
        rate: Callable[[int], float] | None = None,
    ) -> None:
        """`parts`: the model, of `resumed` if given; `coding`: of pulls; `rate`: of a local step between pulls."""
        self.rate = rate
        self.taken = 0  # gradients of this clock that are not pushed yet
        self.accrued: Vector | None = None  # their sum
        self.node, self.manager, self.placement = node, manager, placement
        self.parts, self.settings = parts, settings
        self.phase, self.epoch = "new", 0
        self.alive: tuple[NodeId, ...] = tuple(servers)
        self.clock = resumed.round // settings.push if resumed else 0
        self._fresh = resumed is None
        self.weight: float | None = None  # of this clock's gradient, while it is pushed
        self.given: dict[int, PulledShard] = {}  # at this clock: the model that the gradient is computed from
        self.wanted = self.clock  # the clock of the pull
        self.first = self.clock  # the first clock that this worker pushes for
        self.pulled = PulledShards(node, placement, schema, settings.rounds, coding)  # for `wanted`, or later
        self.links = {server: ChunkLink(server, settings.deadline_ns) for server in servers}
        self.lives: dict[NodeId, int] = dict.fromkeys(servers, 0)
        self.linked: set[NodeId] = set()
        self.gone: set[NodeId] = set()  # servers that sent a goodbye
        self._asks = self._byes = self._began_ns = 0
        self._held: set[int] = set()  # shards with a pull acknowledged by the server
        self._hurried, self._asked_ns = 0, 0  # repeats of a pull, and the time of the last request of all shards
        self._heard_ns: dict[NodeId, int] = {}
        self._went_back = False

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        """Handle one event; see machine.Machine."""
        if self.phase == "finished":
            return []
        match event:
            case Received(sender, message):
                return self._received(sender, message, now_ns)
            case Trained(job):
                return self._trained(event, now_ns) if self.phase == "training" and job == self._step else []
            case RowsChosen():
                self.parts.chosen(event)
                return list(self._pulls())
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
            case Pulled() | CodedPulled() | RowsPulled():
                effects = self._handle_piece(sender, message, now_ns)
                self._heard_ns[sender] = now_ns
                return effects
            case PullHeld(epoch, number, clock):
                self._heard_ns[sender] = now_ns
                if (epoch, clock) == (self.epoch, self.wanted) and self.pulled.owned_by(sender, number, self.alive):
                    self._held.add(number)
                return []
            case KeysWanted(epoch, number, digest):
                return self._resend_keys(sender, number, digest, now_ns) if epoch == self.epoch else []
            case PieceTaken() | ChunksAsked() | ChunksHere():
                self._heard_ns[sender] = now_ns
                return self.links[sender].handle(message, now_ns)
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
                return self.links[server].again(timer, now_ns)
            case ("ask", number) if number == self._asks and self.phase == "pulling":
                return self._ask_again(now_ns)
            case ("lost", server) if server not in self.linked and self.phase in ("training", "pulling"):
                return self._without(server, "is gone")
            case ("start",) if self.phase == "joining":
                missing = sorted(self._needed - self.linked)
                text = f"servers {missing} have not connected: worker {self.node} cannot begin"
                return self._finish(Failure("network", text, "Look at their logs, and at the addresses."))
            case ("bye",) if self.phase == "leaving":
                self._byes += 1
                return self._finish() if self._byes > BYES_MAX else self._bye()
        return []

    @property
    def _needed(self) -> set[NodeId]:
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
        if life > self.lives[server]:  # it has lost everything that it had taken, but not answered
            self.lives[server] = life
            self.links[server].drop()
            self.parts.resend_lists([shard.number for shard in self.placement.owned(server, self.alive)])
            return [*self._push(now_ns, [server]), *self._pulls([server]), *self._begin_if_gathered(now_ns)]
        return [*self.links[server].resent(now_ns), *self._begin_if_gathered(now_ns)]

    def _lost(self, server: NodeId) -> list[Effect]:
        self.linked.discard(server)
        if self.phase == "leaving":
            return self._end_if_answered()
        return [SetTimer(("lost", server), self._patience_ns(server))] if server in self.links else []

    def _patience_ns(self, server: NodeId) -> int:
        """Maximum wait for a server: long with a link, as it may wait for its disk, and short with a manager."""
        short = self.manager is None and server not in self.linked
        return self.settings.deadline_ns if short else max(self.settings.start_ns, self.settings.deadline_ns)

    def _without(self, server: NodeId, what: str) -> list[Effect]:
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
        """Handle the manager's message; unanswered messages are sent to a new tenure's owners."""
        match message:
            case Tenure(epoch):
                taken = Send(self.manager or 0, TenureTaken(max(epoch, self.epoch)))
                if epoch <= self.epoch:
                    return [taken]
                self.epoch, self.alive = epoch, message.servers
                for link in self.links.values():
                    link.drop()
                self.pulled.drop_incomplete()
                self.parts.resend_lists([shard.number for shard in self.placement.shards])
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
        if self._fresh and self.parts.always_whole:
            return self._go_on()
        return self._pull(self.clock, self.clock, now_ns)

    @property
    def _step(self) -> int:
        """The number of this worker's completed gradients: with push = 1 its clock."""
        return self.clock * self.settings.push + self.taken

    def _go_on(self) -> list[Effect]:
        if self.clock >= self.settings.rounds:
            self.phase = "leaving"
            return self._bye()
        self.phase = "training"
        return [self.parts.training(self._step, self.settings.accumulate)]

    def _trained(self, event: Trained, now_ns: int) -> list[Effect]:
        if event.update is not None and not all_finite(event.update):
            text = f"worker {self.node}, round {self._step}: its gradient is not finite"
            raise TrainingError(text, "Lower train.lr, or look at the data of this worker.")
        gradient = event.update
        if self.settings.push > 1:
            assert event.update is not None, "of a vector"
            gradient = event.update if self.accrued is None else frozen(add(self.accrued, event.update))
            if self.taken + 1 < self.settings.push:
                return self._step_alone(event.update, gradient, now_ns)
        self.parts.divide(gradient, self.clock)
        self.weight = weight_of(event.examples, event.metrics)
        began: list[Effect] = [Outgoing(self._step + 1, self.parts.model)] if self.parts.always_whole else []
        self.pulled.clear()
        pushed = self._push(now_ns, self.alive)
        return [*began, *pushed, *self._pull(self.clock + 1, self.clock, now_ns)]

    def _step_alone(self, gradient: Vector, accrued: Vector, now_ns: int) -> list[Effect]:
        """Continue in the same clock: with the pulled model, or with the local copy after a step."""
        self.taken, self.accrued = self.taken + 1, accrued
        if self.taken % self.settings.fetch == 0:
            return self._pull(self.clock, self.clock, now_ns)
        assert isinstance(self.parts, WholeParts) and self.rate is not None, "the experiment is checked"
        self.parts.model = frozen(linear((1.0, self.parts.model), (-self.rate(self.clock), gradient)))
        return [RoundDone(self._step, self.parts.model), *self._go_on()]

    def _push(self, now_ns: int, servers: Sequence[NodeId]) -> list[Effect]:
        effects: list[Effect] = []
        for shard in self.placement.shards if self.weight is not None else ():
            (owner,) = shard.holders(self.alive, 1)
            if owner not in servers or shard.number in self.pulled.here:
                continue
            read = self.given.get(shard.number)
            facts = self.epoch, shard.number, self.clock, read.version if read else 0, read.steps if read else 0
            before, parts = self.parts.push((*facts, self.weight or 0.0))
            effects += [Send(owner, one) for one in before]
            for part in parts:
                effects += self.links[owner].send(part, now_ns)
        return effects

    def _pull(self, clock: int, first: int, now_ns: int) -> list[Effect]:
        self.phase, self.wanted, self.first, self._began_ns = "pulling", clock, first, now_ns
        self.pulled.clear()
        self._went_back = False
        return [*self.parts.choose(clock), *self._pulls(), *self._ask_anew(now_ns)]

    def _pulls(self, servers: Sequence[NodeId] | None = None, but: Collection[int] = ()) -> list[Send]:
        if self.phase != "pulling" or not self.parts.ready:
            return []
        missing = [shard for shard in self.placement.shards if shard.number not in self.pulled.here]
        asked = [(shard.holders(self.alive, 1)[0], shard.number) for shard in missing]
        return [
            Send(owner, message)
            for owner, number in asked
            if (servers is None or owner in servers) and number not in but
            for message in self.parts.pull(self.epoch, number, self.wanted, self.first)
        ]

    def _resend_keys(self, server: NodeId, number: int, digest: str, now_ns: int) -> list[Effect]:
        keys = self.parts.wanted(self.epoch, number, digest) if self.pulled.owned_by(server, number, self.alive) else []
        if not keys:
            return []
        return [*(Send(server, one) for one in keys), *self.links[server].resent(now_ns), *self._pulls([server])]

    def _ask_again(self, now_ns: int) -> list[Effect]:
        """Request missing shards again; end if a server has sent no message for too long."""
        if now_ns - self._asked_ns >= self.settings.again_ns:
            asked, later = self._pulls(), self._ask_anew(now_ns)
        else:
            self._hurried += 1
            asked, later = self._pulls(but=self._held), self._ask_later(now_ns)
        silent = [one.to for one in asked if now_ns - self._since_ns(one.to) > self._patience_ns(one.to)]
        ended = self._without(silent[0], "does not answer") if silent else []
        if not ended and asked and now_ns - self._began_ns > self._longest_ns:
            ended = self._without(asked[0].to, f"has held a pull for {self._longest_ns // 1_000_000_000} seconds")
        return ended or [*asked, *later]

    @property
    def _longest_ns(self) -> int:
        """Maximum time that an honest server holds a pull."""
        return self.settings.start_ns + self.settings.deadline_ns

    def _since_ns(self, server: NodeId) -> int:
        return max(self._heard_ns.get(server, 0), self._began_ns)

    def _ask_anew(self, now_ns: int) -> list[Effect]:
        self._held, self._hurried, self._asked_ns = set(), 0, now_ns
        return self._ask_later(now_ns)

    def _ask_later(self, now_ns: int) -> list[Effect]:
        """Set the timer of the next request, after the links' round-trip times."""
        self._asks += 1
        wait_ns = max(self._asked_ns + self.settings.again_ns - now_ns, 0)
        missing = [one for one in self.placement.shards if one.number not in {*self.pulled.here, *self._held}]
        owners = {one.holders(self.alive, 1)[0] for one in missing}
        if owners:
            usual_ns = max(self.links[owner].round_trips.timeout_ns for owner in owners)
            wait_ns = min(wait_ns, usual_ns << self._hurried)
        return [SetTimer(("ask", self._asks), wait_ns)]

    def _handle_piece(self, sender: NodeId, piece: PulledPiece, now_ns: int) -> list[Effect]:
        if piece.epoch != self.epoch:
            return []
        wanted = self.wanted if self.phase == "pulling" and self.parts.ready else None
        whole = self.pulled.take(sender, piece, self.alive, wanted, self.parts)
        return [self.links[sender].took(PieceTaken(*piece.name)), *(self._settle(now_ns) if whole else [])]

    def _settle(self, now_ns: int) -> list[Effect]:
        """Continue with all shards of one clock; pull those of another again."""
        here = self.pulled.here
        if len(here) < len(self.placement.shards):
            return []
        clocks = {one.clock for one in here.values()}
        low, high = min(clocks), max(clocks)
        if low == high and self.parts.fits(low):
            return self._next(low)
        back = self.first == self.wanted and high - low == 1 and not self._went_back
        clock, self.weight = low if back else high, None
        for (
            link
        ) in self.links.values():  # messages of another clock are dropped, and may be sent again under the same name
            link.forget_here()
        if not self.parts.fits(clock):
            again = self._pull(clock, clock, now_ns)
            self._went_back = True
            return again
        self._went_back = True
        self.wanted = self.first = clock
        self.pulled.here = {number: one for number, one in here.items() if one.clock == clock}
        return [*self._pulls(), *self._ask_anew(now_ns)]

    def _next(self, clock: int) -> list[Effect]:
        self.given, self.weight = self.pulled.here, None
        self.pulled.clear()
        self.parts.take({number: one.vector for number, one in self.given.items()}, clock)
        moved, self.clock = clock > self.clock, clock
        model, done = self.parts.model, list[Effect]()
        if moved:
            self.taken, self.accrued = 0, None
            kept = Checkpoint(self._step, {"x": model, **self.parts.saved})
            done = [RoundDone(self._step, model, self._staleness), kept]
        elif self.taken:
            done = [RoundDone(self._step, model)]
        return [*done, *self._go_on()]

    @property
    def _staleness(self) -> int | None:
        """Maximum over shards of the steps that the last push had missed; None if clocks close together."""
        apart = any(one.steps != one.version for one in self.given.values())
        return max(one.missed for one in self.given.values()) if apart else None

    # --- the end --------------------------------------------------------------------------------------------------

    def _bye(self) -> list[Effect]:
        return [*self._goodbye(), SetTimer(("bye",), self.settings.again_ns), *self._end_if_answered()]

    def _goodbye(self) -> list[Effect]:
        return [Send(server, Leaving(self.clock)) for server in sorted(self._partners - self.gone)]

    def _end_if_answered(self) -> list[Effect]:
        return self._finish() if self.phase == "leaving" and not self.linked - self.gone else []

    def _finish(self, failure: Failure | None = None) -> list[Effect]:
        self.phase = "finished"
        return [*self.parts.summary(), Finish(self.parts.model, failure)]


# Pulled shards at a worker: checked, and assembled from their pieces.


PulledPiece = Pulled | CodedPulled | RowsPulled
"""A piece of a shard, sent by a server."""


@dataclass(frozen=True, slots=True, eq=False)
class PulledShard:
    """A shard from its server; see messages.Pulled."""

    clock: int
    version: int
    steps: int
    missed: int
    vector: Vector


class PulledShards:
    """The pulled shards of one clock.  Invariant: for each shard the newest received clock is assembled."""

    def __init__(
        self, node: NodeId, placement: Placement, schema: str, rounds: int, coding: ShardCoding | None = None
    ) -> None:
        self.node, self.placement, self.schema, self.rounds = node, placement, schema, rounds
        self.coding = coding
        self.here: dict[int, PulledShard] = {}
        self._arriving: dict[int, tuple[int, Assembly]] = {}  # by shard: (clock, pieces)

    def clear(self) -> None:
        """Drop all shards: another clock begins."""
        self.here, self._arriving = {}, {}

    def drop_incomplete(self) -> None:
        """Drop incomplete shards after a change of owners: they are sent again."""
        self._arriving.clear()

    def owned_by(self, sender: NodeId, shard: int, alive: Collection[NodeId]) -> bool:
        shards = self.placement.shards
        return shard < len(shards) and shards[shard].holders(alive, 1) == (sender,)

    def take(
        self,
        sender: NodeId,
        piece: PulledPiece,
        alive: Collection[NodeId],
        wanted: int | None,
        parts: ModelParts,
    ) -> bool:
        """Add a piece for the clock `wanted` (None: no open pull); return whether it completes a shard.

        Raises ProtocolError for an invalid piece.
        """
        of = piece.digest if isinstance(piece, RowsPulled) else ""
        repeated = wanted is None or piece.shard in self.here or piece.clock < wanted
        self._check(sender, piece, alive)
        if repeated or of != parts.digest(piece.shard):
            return False
        coded = isinstance(piece, CodedPulled)
        length, kind = self._size(piece.shard, parts, coded=coded)
        if not Assembly(length, kind).expects(piece.start, piece.vectors):
            raise ProtocolError(f"{self._what(sender, piece)} of another length", peer=sender)
        clock, arriving = self._arriving.get(piece.shard, (-1, None))
        if arriving is None or clock < piece.clock:
            clock, arriving = piece.clock, Assembly(length, kind)
        if clock > piece.clock or arriving.has(piece.start):
            return False
        self._arriving[piece.shard] = clock, arriving
        arriving.take(piece.start, piece.vectors)
        if (whole := arriving.whole) is None:
            return False
        if coded:
            whole = self._decoded(sender, piece, whole, arriving)
        del self._arriving[piece.shard]
        self.here[piece.shard] = PulledShard(piece.clock, piece.version, piece.steps, piece.missed, whole)
        return True

    def _size(self, shard: int, parts: ModelParts, *, coded: bool) -> tuple[int, np.dtype[Any]]:
        if coded and self.coding:
            return self.coding.pull_size(shard), np.dtype(np.uint8)
        return parts.length(shard), parts.model.dtype

    def _decoded(self, sender: NodeId, piece: PulledPiece, payload: Vector, arriving: Assembly) -> Vector:
        assert self.coding
        try:
            return self.coding.decode_pull(payload, piece.shard)
        except ProtocolError as error:
            arriving.give_back(piece.start)
            raise ProtocolError(f"{self._what(sender, piece)}: {error}", error.advice, peer=sender) from None

    def _what(self, sender: NodeId, piece: PulledPiece) -> str:
        return f"worker {self.node}: shard {piece.shard} of server {sender} for clock {piece.clock}"

    def _check(self, sender: NodeId, piece: PulledPiece, alive: Collection[NodeId]) -> None:
        what = self._what(sender, piece)
        if not self.owned_by(sender, piece.shard, alive):
            raise ProtocolError(f"{what}, which does not own it", "Have all the same experiment file?", peer=sender)
        if piece.clock > self.rounds or piece.version > piece.clock:
            raise ProtocolError(f"{what}, which has not been yet", peer=sender)
        expected = self.coding is not None and self.coding.codes_pull(piece.clock)
        check_coded(coded=isinstance(piece, CodedPulled), expected=expected, what=what, sender=sender)
        if piece.schema != self.schema or len(piece.vectors) != 1:
            advice = "Give every worker and server the same [model] section."
            raise ProtocolError(f"{what} of another layout ({piece.schema}, ours {self.schema})", advice, peer=sender)
        if not all_finite(piece.vectors[0]):
            raise ProtocolError(f"{what} is not finite", peer=sender)
