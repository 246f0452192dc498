"""A parameter server: it holds shards of the model, takes workers' gradients for them, and gives them back.

    phase     event                                                        next phase
    new       Started                                                      serving
    serving   ShardPush ShardPull PieceTaken PeerJoined Tenure             serving
    serving   PeerGone late Leaving start ShardLost                        serving finished

and from everywhere Stopping to finished.

A worker pushes the gradient of its clock and pulls the shard for its next one; the pull is answered when
`shard_clocks` lets it read and all copies are safe (`shard_copies`).  A pull for clock c + 1 that is answered says that
the push of c is in: so a worker has one push under way for each shard, repeats it as long as it has no answer, and it
counts once.  What is said again is answered from what is kept.  A worker that is silent while others wait is left out
(`attendance`).

A step makes new arrays, and what was sent never changes: a reply that is on its way is of one step alone.

Who owns which shard follows from the tenure, of which a manager tells (`server_manager`).  Words of another epoch than
one's own are not heard, so an owner that is cut off can answer nothing more: its copies have gone on.  A server that is
to own what it has no copy of says that it is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgossip.errors import ProtocolError
from fedgossip.machine import (
    Checkpoint,
    Effect,
    Event,
    Failure,
    Finish,
    Fired,
    LocalWork,
    NodeId,
    PeerGone,
    PeerJoined,
    Received,
    Report,
    Send,
    SetTimer,
    Started,
    Stopping,
)
from fedgossip.messages import (
    Leaving,
    Message,
    PieceTaken,
    Pulled,
    PullHeld,
    ServerReady,
    ShardCopy,
    ShardLost,
    ShardPull,
    ShardPush,
    ShardStep,
    Tenure,
    TenureTaken,
)
from fedgossip.placement.ring import Placement, Shard
from fedgossip.protocols.attendance import Attendance
from fedgossip.protocols.chunk_links import ChunkLink
from fedgossip.protocols.pieces import pieces
from fedgossip.protocols.push_intake import PushIntake
from fedgossip.protocols.shard_clocks import ShardChange, ShardClocks
from fedgossip.protocols.shard_copies import ShardCopies
from fedgossip.protocols.shard_records import restore, saved_shards
from fedgossip.vectors import Vector, frozen

MakeShard = Callable[[Shard, Vector], ShardClocks]
"""(shard, the model at the beginning) -> what the shard is before the first push."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits of a run.  Times in nanoseconds."""

    rounds: int
    staleness: int | None = 0
    """Clocks between what a push was computed from and its own; None: any number."""
    deadline_ns: int = 30_000_000_000
    least_deadline_ns: int = 5_000_000_000
    start_ns: int = 300_000_000_000
    again_ns: int = 1_000_000_000
    """The shortest time after which something is said again that was not acknowledged."""


class ParameterServer:
    """One server of `workers`; `placement` says which shards it has, and `manager` tells who else is there.

    In a life after the first, where there is a manager, it has nothing until that says so.
    """

    def __init__(
        self,
        node: NodeId,
        workers: Sequence[NodeId],
        servers: Sequence[NodeId],
        manager: NodeId | None,
        placement: Placement,
        make: MakeShard,
        initial: Vector,
        schema: str,
        settings: ServerSettings,
        rate: Callable[[int], float],
        resumed: Checkpoint | None = None,
        life: int = 0,
    ) -> None:
        self.summed = 0  # elements
        self.node, self.manager, self.placement, self.make = node, manager, placement, make
        self.initial, self.schema, self.settings, self.rate = initial, schema, settings, rate
        self.phase, self.epoch, self.told = "new", 0, resumed.round if resumed else 0
        self.first_life = life == 0
        limits = settings.deadline_ns, min(settings.least_deadline_ns, settings.deadline_ns)
        self.workers = Attendance(workers, *limits, settings.start_ns)
        copied = manager is not None
        others = [server for server in servers if copied and server != node]
        partners = [*workers, *others]
        self.links = {other: ChunkLink(other, settings.deadline_ns, settings.again_ns) for other in partners}
        self.lives: dict[NodeId, int] = dict.fromkeys(self.links, 0)
        self.intake = PushIntake(node, placement, initial.dtype, schema, settings.rounds, settings.staleness)
        self.copies = ShardCopies(node, placement, schema, self.links)
        self.alive: tuple[NodeId, ...] = tuple(servers)
        self.joining: tuple[NodeId, ...] = ()
        self.shards: dict[int, ShardClocks] = {}
        held = {shard.number: make(shard, initial) for shard in placement.held(node, servers)}
        missing = restore(held, resumed) if resumed else []
        self.stored = {number: one for number, one in held.items() if number not in missing}  # of the life before
        if copied and life > 0:
            self.epoch = -1  # it has nothing until the manager says what it gets
        else:
            self._divide(held)
            self.copies.agreed()
        self.held: dict[tuple[int, NodeId], ShardPull] = {}
        self.answered: dict[tuple[int, NodeId], int] = {}  # for which clock
        self.late: set[tuple[int, NodeId]] = set()  # shards for workers that the others went on without
        self._changed = False  # since the last checkpoint
        self._waits = False  # for a timer that says who is silent
        self._met, self._sign_ns = False, 0  # whether a worker has been here, and the last sign of one

    @property
    def model(self) -> Vector:
        """The model [d] as it was at the beginning, with this server's shards as they are."""
        whole = np.array(self.initial)
        for number, clocks in self.shards.items():
            self.placement.shards[number].put_into(whole, clocks.x)
        return frozen(whole)

    @property
    def version(self) -> int:
        """The clocks of which all pushes are in all shards."""
        present = self.workers.present
        return min((one.version(present) for one in self.shards.values()), default=self.told)

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        """Take one event; see machine.Machine."""
        if self.phase == "finished":
            return []
        match event:
            case Received(sender, message):
                effects = self._received(sender, message, now_ns)
                self._noticed(sender, now_ns)  # where it was not refused
                return effects
            case Fired(key):
                return self._fired(key, now_ns)
            case PeerJoined(node, life):
                return self._joined(node, life, now_ns)
            case PeerGone(node):
                self._noticed(node, now_ns)
                self.workers.linked.discard(node)
                return [*self._watch(now_ns), *self._end_if_over()]
            case Started():
                self.phase, self._sign_ns = "serving", now_ns
                return [SetTimer(("start",), self.settings.start_ns)]
            case Stopping():
                others = [*self.workers.present, *self._servers, *([] if self.manager is None else [self.manager])]
                return [*(Send(other, Leaving(self.told)) for other in others), *self._finish()]
        return []

    @property
    def _servers(self) -> list[NodeId]:
        return [other for other in self.links if other not in self.workers.workers]

    def _received(self, sender: NodeId, message: Message, now_ns: int) -> list[Effect]:
        worker = sender in self.workers.workers
        match message:
            case PieceTaken() if sender in self.links:
                if worker and self.links[sender].has(message.name):
                    self._hear(sender, now_ns)
                taken = self.links[sender].taken(message.name, now_ns)
                return [*taken, *(self._tell() if worker else self._go_on(now_ns))]
            case ShardPush() if worker:
                return self._pushed(sender, message, now_ns)
            case ShardPull() if worker:
                return self._pulled(sender, message, now_ns)
            case Leaving(round) if worker:
                self.workers.leave(sender)
                self._forget(sender)
                back = [] if message.done else [Send(sender, Leaving(round, done=True))]
                return [*back, *self._go_on(now_ns), *self._end_if_over()]
            case Leaving() if sender in self.links or sender == self.manager:
                return []  # what becomes of it the manager says
            case ShardStep() | ShardCopy() if sender in self.links and not worker:
                return self._copied(sender, message)
            case Tenure() if sender == self.manager:
                return self._ruled(message, now_ns)
            case ShardLost() if sender in self.links and not worker:
                return self._lost(message.shard) if message.epoch == self.epoch else []
        text = f"a {type(message).__name__} of {sender}, which has nothing of that kind to say"
        raise ProtocolError(f"server {self.node}: {text}", peer=sender)

    def _fired(self, key: Any, now_ns: int) -> list[Effect]:
        match key:
            case ("again", other, timer) if other in self.links:
                return self.links[other].again(timer)
            case ("late",):
                self._waits = False
                return self._leave_out(now_ns)
            case ("start",):
                return self._finish() if self.epoch < 0 else self._end_if_alone(now_ns)
        return []

    # --- workers that come and go ---------------------------------------------------------------------------------

    def _joined(self, node: NodeId, life: int, now_ns: int) -> list[Effect]:
        if node not in self.links:
            return []
        worker = node in self.workers.workers
        self._noticed(node, now_ns)
        if life > self.lives[node]:  # it knows nothing of what it had said and heard
            self.lives[node] = life
            self.links[node].drop()
            if worker:
                self._forget(node)
                self.workers.left.discard(node)
        if worker:
            self.workers.linked.add(node)
            self._hear(node, now_ns)
        return self.links[node].resent()

    def _noticed(self, node: NodeId, now_ns: int) -> None:
        if node in self.workers.workers:
            self._met, self._sign_ns = True, now_ns

    def _end_if_alone(self, now_ns: int) -> list[Effect]:
        """End where no worker has given a sign for as long as they are waited for at the beginning.

        One at work may be silent; one that waits for an answer asks for it again and again.
        """
        if (left := self._sign_ns + self.settings.start_ns - now_ns) > 0:
            return [SetTimer(("start",), left), *self._leave_out(now_ns)]
        if self.workers.linked and not self.held:
            return [SetTimer(("start",), self.settings.start_ns), *self._leave_out(now_ns)]
        if not self._met and not self.first_life:
            return self._finish()  # the run had ended before this life
        who = f"no worker is there any more, after round {self.told}" if self._met else "no worker has come"
        return self._finish(Failure("network", who, "Look at the workers' logs, and at the addresses."))

    def _hear(self, worker: NodeId, now_ns: int) -> None:
        if self.workers.heard(worker, now_ns):
            self.late.update((number, worker) for number in self.shards)

    def _forget(self, worker: NodeId) -> None:
        """Drop what is under way to and from a worker."""
        self.links[worker].drop()
        self.intake.forget(worker)
        for number in self.shards:
            self.held.pop((number, worker), None)

    def _watch(self, now_ns: int) -> list[Effect]:
        """Wait no longer than until the first is silent of those that others wait for, or that have no link."""
        waited = self._waited()
        if self._waits or not waited:
            return []
        self._waits = True
        soonest = min(self.workers.due_ns(worker) for worker in waited)
        return [SetTimer(("late",), max(soonest - now_ns, 0) + 1)]

    def _waited(self) -> list[NodeId]:
        """Workers that keep others from going on, or that are perhaps no longer there."""
        idle = {place[1] for place, pull in self.held.items() if self.shards[place[0]].clocks[place[1]] >= pull.clock}
        held = {worker for _, worker in self.held}
        busy = [worker for worker in self.workers.present if worker not in idle]
        if held or self.workers.left:
            return busy
        return [worker for worker in busy if worker not in self.workers.linked or not self.links[worker].idle]

    def _leave_out(self, now_ns: int) -> list[Effect]:
        silent = self.workers.lose_silent(self._waited(), now_ns)
        told = [Report("silent_workers", silent, self.told)] if silent else []
        for worker in silent:
            self._forget(worker)
        return [*told, *self._go_on(now_ns), *self._watch(now_ns), *self._end_if_over()]

    # --- pushes and pulls -----------------------------------------------------------------------------------------

    def _shard(self, sender: NodeId, number: int) -> ShardClocks:
        if number not in self.shards:
            text = f"server {self.node}: worker {sender} speaks of shard {number}, which this server has not"
            raise ProtocolError(text, "Have all the same experiment file?", peer=sender)
        return self.shards[number]

    def _pushed(self, sender: NodeId, push: ShardPush, now_ns: int) -> list[Effect]:
        if push.epoch != self.epoch:
            return []
        clocks, taken = self._shard(sender, push.shard), Send(sender, PieceTaken(*push.name))
        if push.clock < clocks.clocks[sender]:
            return [taken]  # said again, or of a clock that the others have closed
        begun = self.intake.begun(sender, push.shard)
        whole = self.intake.take(sender, push, clocks)
        if not begun:
            self.workers.pushed(sender, now_ns)
        self._hear(sender, now_ns)
        if whole is None:
            return [taken]
        self.summed += whole.size
        change = clocks.push(sender, push.weight, push.steps, whole, self.rate)
        made = self._make(push.shard, change, now_ns) if change else []
        return [taken, *made, *self._go_on(now_ns)]

    def _make(self, number: int, change: ShardChange, now_ns: int) -> list[Effect]:
        """Make a change, here and where copies are kept."""
        self.shards[number].apply(change)
        self._changed = True
        return self.copies.changed(number, self.shards[number], change, now_ns)

    def _pulled(self, sender: NodeId, pull: ShardPull, now_ns: int) -> list[Effect]:
        if pull.epoch != self.epoch:
            return []
        clocks, place = self._shard(sender, pull.shard), (pull.shard, sender)
        if pull.clock > self.settings.rounds or pull.first not in (pull.clock, pull.clock - 1):
            text = f"worker {sender} pulls for clock {pull.clock} from {pull.first} on"
            raise ProtocolError(f"server {self.node}, shard {pull.shard}: {text}", peer=sender)
        if self.links[sender].carries(pull.shard):
            return []  # the answer is under way
        again = place in self.held
        anew = pull.first == pull.clock and not again
        if anew or sender in self.workers.absent:
            self._hear(sender, now_ns)
        clocks.enter(sender, pull.clock if place in self.late else pull.first)
        self.held[place] = pull
        effects = self._go_on(now_ns)
        waits = again and place in self.held
        return [Send(sender, PullHeld(self.epoch, pull.shard, pull.clock)), *effects] if waits else effects

    def _go_on(self, now_ns: int) -> list[Effect]:
        """Close what can be closed, and answer all who can read."""
        effects: list[Effect] = []
        for number, clocks in self.shards.items():
            while (change := clocks.close(self.workers.present, self.rate)) is not None:
                effects += self._make(number, change, now_ns)
        if self._changed:
            self._changed = False
            everything = {**self.shards, **self.copies.here}
            effects.insert(0, saved_shards(self.version, everything, self.epoch, durable=self._durable))
        for place, pull in list(self.held.items()):
            effects += self._answer(*place, pull, now_ns)
        return [*effects, *self._tell(), *self._watch(now_ns)]

    @property
    def _durable(self) -> bool:
        """Whether what is answered is on disk: where no other server has it, or clocks have one step for all."""
        return self.manager is None or self.settings.staleness == 0

    def _tell(self) -> list[Effect]:
        """Tell the clocks for which all workers present have been given all shards."""
        there = [(number, worker) for number in self.shards for worker in self.workers.present]
        given = min((self.answered.get(place, 0) for place in there), default=0)
        if given <= self.told or not all(self.links[worker].idle for _, worker in there):
            return []
        self.told = given
        return [LocalWork(given)]

    def _answer(self, number: int, worker: NodeId, pull: ShardPull, now_ns: int) -> list[Effect]:
        clocks, present = self.shards[number], self.workers.present
        if not self.copies.safe(number):
            return []
        anew, late = pull.first == pull.clock, (number, worker) in self.late
        reading = clocks.reading(worker, pull.clock, present, anew=anew, late=late)
        if reading is None:
            return []
        del self.held[number, worker]
        self.late.discard((number, worker))
        self.answered[number, worker] = reading.clock
        facts = reading.clock, reading.version, clocks.steps, clocks.missed[worker]
        effects: list[Effect] = []
        for start, part in pieces(reading.vector):
            answer = Pulled(self.epoch, number, *facts, start, part.size, self.schema, (part,))
            effects += self.links[worker].send(answer, now_ns)
        return effects

    # --- who has which shard --------------------------------------------------------------------------------------

    def _divide(self, held: Mapping[int, ShardClocks]) -> None:
        """Take what is held, by this tenure: what is owned, and what are copies."""
        keepers: dict[int, tuple[NodeId, ...]] = {}
        copies: dict[int, ShardClocks] = {}
        self.shards = {}
        for shard in self.placement.shards:
            owner, *wanted = shard.keepers(self.alive, self.joining, self.placement.copies)
            if owner == self.node and shard.number in held:
                self.shards[shard.number], keepers[shard.number] = held[shard.number], tuple(wanted)
            elif self.node in wanted:
                copies[shard.number] = held.get(shard.number) or self.make(shard, self.initial)
        self.copies.begin(self.epoch, keepers, copies, held.keys())

    def _ruled(self, tenure: Tenure, now_ns: int) -> list[Effect]:
        """Go by what the manager says from now on."""
        assert self.manager is not None
        if self.epoch < 0 and not tenure.anew and self.node not in tenure.joining:
            return []  # the manager does not know yet that this is another life
        taken = Send(self.manager, TenureTaken(max(self.epoch, tenure.epoch)))
        if tenure.epoch <= self.epoch:
            return [taken, *self._ready()]
        missed = tenure.epoch > self.epoch + 1  # a tenure, in which others may have gone on with what is here
        here = {} if missed else {**self.copies.valid, **self.shards}
        held = self.stored if tenure.anew else here
        self.epoch, self.alive, self.joining = tenure.epoch, tenure.servers, tenure.joining
        for link in self.links.values():
            link.drop()
        self.intake.forget()
        self.held, self.answered, self.stored = {}, {}, {}
        self._divide(held)
        for shard in self.placement.owned(self.node, self.alive):
            if shard.number not in self.shards:
                others = [*self.links, self.manager]
                told = [Send(other, ShardLost(self.epoch, shard.number)) for other in others]
                return [taken, *told, *self._lost(shard.number)]
        sent = [one for number, clocks in self.shards.items() for one in self.copies.tell(number, clocks, now_ns)]
        return [taken, *sent, *self._ready(), *self._go_on(now_ns)]

    def _ready(self) -> list[Effect]:
        """Say that all copies are here; the manager asks again for what it has not heard."""
        return [] if self.copies.lacking or self.manager is None else [Send(self.manager, ServerReady(self.epoch))]

    def _copied(self, sender: NodeId, message: ShardStep | ShardCopy) -> list[Effect]:
        if message.epoch != self.epoch:
            return []
        if message.shard >= len(self.placement.shards):
            raise ProtocolError(f"server {self.node}: shard {message.shard} of server {sender} is none", peer=sender)
        (owner,) = self.placement.shards[message.shard].holders(self.alive, 1)
        lacked = self.copies.lacking
        effects = self.copies.take(sender, message, owner)
        return [*effects, *self._ready()] if lacked else effects

    def _lost(self, number: int) -> list[Effect]:
        words = self.placement.shards[number].words if number < len(self.placement.shards) else "?"
        text = f"no server has a copy of elements {words} of the model, after round {self.told}"
        return self._finish(Failure("network", text, "Start all again with --resume, or raise replication."))

    # --- the end --------------------------------------------------------------------------------------------------

    def _end_if_over(self) -> list[Effect]:
        return self._finish() if self.workers.over else []

    def _finish(self, failure: Failure | None = None) -> list[Effect]:
        self.phase = "finished"
        told: list[Effect] = [LocalWork(self.version)] if self.version > self.told else []
        if self.settings.staleness != 0:
            told.append(Report("read_lag", self.intake.seen, self.version))
        return [*told, Finish(self.model, failure)]
