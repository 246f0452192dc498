"""A parameter server: it holds shards of the model, takes workers' gradients for them, and gives them back.

    phase     event                                    next phase
    new       Started                                  serving
    serving   ShardPush ShardPull PieceTaken PeerJoined serving
    serving   PeerGone late Leaving start              serving finished

and from everywhere Stopping to finished.

A worker pushes the gradient of its clock and pulls the shard for its next one; the pull is answered when
`shard_clocks` lets it read.  A pull for clock c + 1 that is answered says that the push of c is in: so a worker has one
push under way for each shard, repeats it as long as it has no answer, and it counts once.  What is said again is
answered from what is kept.  A worker that is silent while others wait is left out (`attendance`).

A step makes new arrays, and what was sent never changes: a reply that is on its way is of one step alone.
"""

from __future__ import annotations

from collections import Counter
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
from fedgossip.messages import Leaving, Message, PieceTaken, Pulled, PullHeld, ShardPull, ShardPush
from fedgossip.placement.ring import Placement
from fedgossip.protocols.attendance import Attendance
from fedgossip.protocols.chunk_links import ChunkLink
from fedgossip.protocols.pieces import Assembly, pieces
from fedgossip.protocols.shard_clocks import ShardClocks
from fedgossip.protocols.shard_records import restore, saved_shards
from fedgossip.vectors import Vector, frozen

MISSED_MAX = 1000
"""More steps than this between a reading and its push are counted together."""


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
    """One server of `workers`; `placement` says which shards it has."""

    def __init__(
        self,
        node: NodeId,
        workers: Sequence[NodeId],
        servers: Sequence[NodeId],
        placement: Placement,
        shards: Mapping[int, ShardClocks],
        initial: Vector,
        schema: str,
        settings: ServerSettings,
        rate: Callable[[int], float],
        resumed: Checkpoint | None = None,
    ) -> None:
        self.node, self.servers, self.placement = node, tuple(servers), placement
        self.initial, self.schema, self.settings, self.rate = initial, schema, settings, rate
        self.shards: dict[int, ShardClocks] = dict(shards)
        self.phase, self.epoch, self.told = "new", 0, 0
        if resumed:
            restore(self.shards, resumed)
            self.told = resumed.round
        limits = settings.deadline_ns, min(settings.least_deadline_ns, settings.deadline_ns)
        self.workers = Attendance(workers, *limits, settings.start_ns)
        self.links = {worker: ChunkLink(worker, settings.deadline_ns, settings.again_ns) for worker in workers}
        self.lives: dict[NodeId, int] = dict.fromkeys(workers, 0)
        self.arriving: dict[tuple[int, NodeId], Assembly] = {}  # pushes of which a piece is here
        self.held: dict[tuple[int, NodeId], ShardPull] = {}
        self.answered: dict[tuple[int, NodeId], int] = {}  # for which clock
        self.late: set[tuple[int, NodeId]] = set()  # shards for workers that the others went on without
        self.lags: Counter[int] = Counter()
        self.missed: Counter[int] = Counter()
        self._changed = False  # since the last checkpoint
        self._waits = False  # for a timer that says who is silent

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
        return min((one.version(present) for one in self.shards.values()), default=0)

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        """Take one event; see machine.Machine."""
        if self.phase == "finished":
            return []
        match event:
            case Received(sender, message):
                return self._received(sender, message, now_ns)
            case Fired(key):
                return self._fired(key, now_ns)
            case PeerJoined(node, life):
                return self._joined(node, life, now_ns)
            case PeerGone(node):
                self.workers.linked.discard(node)
                return [*self._watch(now_ns), *self._end_if_over()]
            case Started():
                self.phase = "serving"
                return [SetTimer(("start",), self.settings.start_ns)]
            case Stopping():
                return [*(Send(worker, Leaving(self.told)) for worker in self.workers.present), *self._finish()]
        return []

    def _received(self, sender: NodeId, message: Message, now_ns: int) -> list[Effect]:
        if sender not in self.links:
            raise ProtocolError(f"server {self.node}: a message of {sender}, which is no worker", peer=sender)
        match message:
            case ShardPush():
                return self._pushed(sender, message, now_ns)
            case ShardPull():
                return self._pulled(sender, message, now_ns)
            case PieceTaken():
                if self.links[sender].has(message.name):
                    self._hear(sender, now_ns)
                return [*self.links[sender].taken(message.name, now_ns), *self._tell()]
            case Leaving(round):
                self.workers.leave(sender)
                self._forget(sender)
                back = [] if message.done else [Send(sender, Leaving(round, done=True))]
                return [*back, *self._go_on(now_ns), *self._end_if_over()]
        raise ProtocolError(f"server {self.node}: a {type(message).__name__}, which no worker sends", peer=sender)

    def _fired(self, key: Any, now_ns: int) -> list[Effect]:
        match key:
            case ("again", worker, timer) if worker in self.links:
                return self.links[worker].again(timer)
            case ("late",):
                self._waits = False
                return self._leave_out(now_ns)
            case ("start",) if not self.workers.linked:
                who = "no worker has come"
                return self._finish(Failure("network", who, "Look at the workers' logs, and at the addresses."))
            case ("start",):
                return self._leave_out(now_ns)
        return []

    # --- workers that come and go ---------------------------------------------------------------------------------

    def _joined(self, worker: NodeId, life: int, now_ns: int) -> list[Effect]:
        if worker not in self.links:
            return []
        self.workers.linked.add(worker)
        if life > self.lives[worker]:  # it knows nothing of what it had said and heard
            self.lives[worker] = life
            self._forget(worker)
            self.workers.left.discard(worker)
        self._hear(worker, now_ns)
        return self.links[worker].resent()

    def _hear(self, worker: NodeId, now_ns: int) -> None:
        if self.workers.heard(worker, now_ns):
            self.late.update((number, worker) for number in self.shards)

    def _forget(self, worker: NodeId) -> None:
        """Drop what is under way to and from a worker."""
        self.links[worker].drop()
        for number in self.shards:
            self.arriving.pop((number, worker), None)
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

    # --- pushes ---------------------------------------------------------------------------------------------------

    def _pushed(self, sender: NodeId, push: ShardPush, now_ns: int) -> list[Effect]:
        if push.epoch != self.epoch:
            return []
        clocks, taken = self._shard(sender, push.shard), Send(sender, PieceTaken(*push.name))
        at = clocks.clocks[sender]
        if push.clock < at:
            return [taken]  # said again, or of a clock that the others have closed
        place, shard = (push.shard, sender), self.placement.shards[push.shard]
        arriving = self.arriving.get(place) or Assembly(shard.length, self.initial.dtype)
        self._check_push(sender, push, clocks, arriving)
        first = place not in self.arriving
        if not first and arriving.has(push.start):
            return [taken]
        if first:
            self.workers.pushed(sender, now_ns)
        self._hear(sender, now_ns)
        self.arriving[place] = arriving
        arriving.take(push.start, push.vectors[0])
        if (whole := arriving.whole) is None:
            return [taken]
        del self.arriving[place]
        self.lags[push.clock - push.version] += 1
        self.missed[min(clocks.steps - push.steps, MISSED_MAX)] += 1
        self._changed = clocks.push(sender, push.weight, push.steps, whole, self.rate)
        return [taken, *self._go_on(now_ns)]

    def _check_push(self, sender: NodeId, push: ShardPush, clocks: ShardClocks, arriving: Assembly) -> None:
        """Raise ProtocolError for a piece that cannot be one of this worker's next push."""
        what = f"server {self.node}, shard {push.shard}: a push of worker {sender} for clock {push.clock}"
        at, bound = clocks.clocks[sender], self.settings.staleness
        if push.clock > at or push.clock >= self.settings.rounds:
            raise ProtocolError(f"{what}; it is at clock {at}", "Do two processes run as this worker?", peer=sender)
        if bound is not None and push.clock - push.version > bound:
            text = f"{what} from what it read at clock {push.version}: at most {bound} earlier"
            raise ProtocolError(text, "Have all the same experiment file?", peer=sender)
        if push.version > push.clock or push.steps > clocks.steps:
            raise ProtocolError(f"{what} from what has not been yet", peer=sender)
        if push.schema != self.schema or not arriving.expects(push.start, push.vectors):
            advice = "Give every worker and server the same [model] section."
            raise ProtocolError(f"{what} of another layout ({push.schema}, ours {self.schema})", advice, peer=sender)
        if not clocks.fits(push.weight, push.vectors[0]):
            raise ProtocolError(f"{what} with numbers that cannot be added up", peer=sender)

    def _shard(self, sender: NodeId, number: int) -> ShardClocks:
        if number not in self.shards:
            text = f"server {self.node}: worker {sender} speaks of shard {number}, which this server has not"
            raise ProtocolError(text, "Have all the same experiment file?", peer=sender)
        return self.shards[number]

    # --- pulls ----------------------------------------------------------------------------------------------------

    def _pulled(self, sender: NodeId, pull: ShardPull, now_ns: int) -> list[Effect]:
        if pull.epoch != self.epoch:
            return []
        clocks = self._shard(sender, pull.shard)
        if pull.clock > self.settings.rounds or pull.first not in (pull.clock, pull.clock - 1):
            text = f"worker {sender} pulls for clock {pull.clock} from {pull.first} on"
            raise ProtocolError(f"server {self.node}, shard {pull.shard}: {text}", peer=sender)
        if self.links[sender].carries(pull.shard):
            return []  # the answer is under way
        anew = pull.first == pull.clock and (pull.shard, sender) not in self.held
        if anew or sender in self.workers.absent:
            self._hear(sender, now_ns)
        if anew or (pull.shard, sender) in self.late:
            clocks.enter(sender, pull.clock)
        place = pull.shard, sender
        again, self.held[place] = place in self.held, pull
        effects = self._go_on(now_ns)
        waits = again and place in self.held
        return [Send(sender, PullHeld(self.epoch, pull.shard, pull.clock)), *effects] if waits else effects

    def _go_on(self, now_ns: int) -> list[Effect]:
        """Close what can be closed, and answer all who can read."""
        effects: list[Effect] = []
        for clocks in self.shards.values():
            while clocks.close(self.workers.present, self.rate):
                self._changed = True
        if self._changed:
            self._changed = False
            effects.append(saved_shards(self.version, self.shards, durable=self.placement.copies == 1))
        for place, pull in list(self.held.items()):
            effects += self._answer(*place, pull, now_ns)
        return [*effects, *self._tell(), *self._watch(now_ns)]

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

    # --- the end --------------------------------------------------------------------------------------------------

    def _end_if_over(self) -> list[Effect]:
        return self._finish() if self.workers.over else []

    def _finish(self, failure: Failure | None = None) -> list[Effect]:
        self.phase = "finished"
        seen = {"clocks": dict(sorted(self.lags.items())), "steps": dict(sorted(self.missed.items()))}
        told: list[Effect] = [LocalWork(self.version)] if self.version > self.told else []
        if self.settings.staleness != 0:
            told.append(Report("read_lag", seen, self.version))
        return [*told, Finish(self.model, failure)]
