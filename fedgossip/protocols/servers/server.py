"""A parameter server: it stores shards of the model, applies workers' gradients to them, and sends them back.

    phase     event                                                        next phase
    new       Started                                                      serving
    serving   ShardPush ShardPull PieceTaken PeerJoined Tenure             serving
    serving   PeerGone late Leaving start ShardLost                        serving finished

and from everywhere Stopping to finished.

A pull for clock c + 1 is answered when `shard_clocks` permits the reading, all copies are safe (`tenure_shards`) and,
if clocks have one step for all, the tenure is whole (`server_manager`); the reply acknowledges the push of c.  Repeated
messages are answered from stored state.  A worker that is silent while others wait is left out (`push_intake`).  Sent
arrays never change: a reply belongs to one step.

The owners follow from the manager's tenure (`server_manager`); messages of another epoch are ignored.  A server that
becomes the owner of a shard without a copy reports it as lost.  For a table, RowPush, NoRows and RowPull replace the
other messages (`row_parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from fedgossip.algorithms.hash_ring import Placement
from fedgossip.base.errors import ProtocolError
from fedgossip.base.keyed_rows import Keys, Rows
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import (
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
from fedgossip.core.messages import (
    ChangeHead,
    ChangeMessage,
    ChunksAsked,
    ChunksHere,
    CodedPush,
    CopyHead,
    CopyMessage,
    KeysWanted,
    Leaving,
    Message,
    NoRows,
    PieceTaken,
    PullHeld,
    RowKeys,
    RowPull,
    RowPush,
    ServerReady,
    ShardLost,
    ShardPull,
    ShardPush,
    SomeKeys,
    Tenure,
    TenureTaken,
)
from fedgossip.protocols.allreduce.chunk_links import ChunkLink, PushChunk
from fedgossip.protocols.servers.model_parts import ShardCoding
from fedgossip.protocols.servers.push_intake import Attendance, HeldPull, PushIntake, WaitingPulls
from fedgossip.protocols.servers.row_parts import KeyLists
from fedgossip.protocols.servers.shard_clocks import ShardChange, ShardClocks, saved_shards
from fedgossip.protocols.servers.tenure_shards import MakeShard, TenureShards

OfRows = RowKeys | SomeKeys | RowPull | RowPush | NoRows
"""Messages of workers about a table."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits of a run.  Times in nanoseconds."""

    rounds: int
    staleness: int | None = 0
    """Maximum number of clocks between a push and the model that it was computed from; None: no bound."""
    deadline_ns: int = 30_000_000_000
    least_deadline_ns: int = 5_000_000_000
    start_ns: int = 300_000_000_000
    again_ns: int = 1_000_000_000
    """Minimum wait before an unacknowledged message is sent again."""


class ParameterServer:
    """One server of `workers`; `placement` assigns the shards, and `manager` sends the present servers.

    After a restart with a manager it owns nothing until a tenure.  `width`: of a row, if the shards are a table's.
    `coding`: codecs of pushes and pulls, if any.
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
        width: int | None = None,
        coding: ShardCoding | None = None,
    ) -> None:
        self.summed = 0  # elements
        self.node, self.manager, self.placement, self.width = node, manager, placement, width
        self.initial, self.settings, self.rate = initial, settings, rate
        self.phase, self.told = "new", resumed.round if resumed else 0
        self.first_life = life == 0
        limits = settings.deadline_ns, min(settings.least_deadline_ns, settings.deadline_ns)
        self.workers = Attendance(workers, *limits, settings.start_ns)
        copied = manager is not None
        others = [server for server in servers if copied and server != node]
        partners = [*workers, *others]
        self.links = {other: ChunkLink(other, settings.deadline_ns) for other in partners}
        self.lives: dict[NodeId, int] = dict.fromkeys(self.links, 0)
        self.lists = KeyLists(node, placement, schema)
        bounds = settings.rounds, settings.staleness
        self.intake = PushIntake(node, placement, self.lists, initial.dtype, schema, *bounds, coding)
        self.tenure = TenureShards(
            node, servers, placement, make, initial, schema, self.links, resumed, waits=copied and life > 0
        )
        self.pulls = WaitingPulls(schema, coding)
        self._changed = False  # since the last checkpoint
        self._waits = False  # whether the timer for silent workers is set
        self._met, self._sign_ns = False, 0  # whether a worker was ever here; time of the last message

    @property
    def shards(self) -> dict[int, ShardClocks]:
        """The shards that this server owns now."""
        return self.tenure.shards

    @property
    def epoch(self) -> int:
        return self.tenure.epoch

    @property
    def model(self) -> Vector:
        """The initial model [d] with the current state of this server's shards; without the rows of a table."""
        if self.width is not None:
            return self.initial
        whole = np.array(self.initial)
        for number, clocks in self.shards.items():
            self.placement.shards[number].put_into(whole, cast(Vector, clocks.x))
        return frozen(whole)

    @property
    def version(self) -> int:
        """Number of clocks with all pushes in all shards."""
        present = self.workers.present
        return min((one.version(present) for one in self.shards.values()), default=self.told)

    @property
    def _servers(self) -> list[NodeId]:
        return [other for other in self.links if other not in self.workers.workers]

    @property
    def _durable(self) -> bool:
        """Whether replies must wait for the disk: without a copy elsewhere, or with one step for all."""
        return self.manager is None or self.settings.staleness == 0

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        """Handle one event; see machine.Machine."""
        if self.phase == "finished":
            return []
        match event:
            case Received(sender, message):
                effects = self._received(sender, message, now_ns)
                self._noticed(sender, now_ns)  # only after an accepted message
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

    def _received(self, sender: NodeId, message: Message, now_ns: int) -> list[Effect]:
        worker = sender in self.workers.workers
        match message:
            case PieceTaken() | ChunksAsked() | ChunksHere() if sender in self.links:
                return self._handle_transfer(sender, message, now_ns)
            case ShardPush() | CodedPush() if worker and self.width is None:
                return self._pushed(sender, message, now_ns)
            case ShardPull() if worker and self.width is None:
                return self._pulled(sender, message, None, now_ns)
            case RowKeys() | SomeKeys() | RowPull() | RowPush() | NoRows() if worker and self.width is not None:
                return self._handle_rows(sender, message, now_ns)
            case Leaving(round) if worker:
                self.workers.leave(sender)
                self._forget(sender)
                back = [] if message.done else [Send(sender, Leaving(round, done=True))]
                return [*back, *self._go_on(now_ns), *self._end_if_over()]
            case Leaving() if sender in self.links or sender == self.manager:
                return []  # the manager decides about it
            case ChangeHead() | CopyHead() if sender in self.links and not worker:
                return self._copied(sender, message)
            case Tenure() if sender == self.manager:
                return self._ruled(message, now_ns)
            case ShardLost() if sender in self.links and not worker:
                if message.epoch != self.epoch:
                    return []
                self.tenure.check_owner(sender, message.shard)
                return self._lost(message.shard)
        text = f"a {type(message).__name__} of {sender}, which sends no such message"
        raise ProtocolError(f"server {self.node}: {text}", peer=sender)

    def _handle_transfer(
        self, sender: NodeId, word: PieceTaken | ChunksAsked | ChunksHere, now_ns: int
    ) -> list[Effect]:
        worker, link = sender in self.workers.workers, self.links[sender]
        if isinstance(word, ChunksAsked):
            return link.handle(word, now_ns)
        names = [word.name] if isinstance(word, PieceTaken) else word.names
        if worker and any(link.has(name) for name in names):
            self._note_progress(sender, now_ns)
        effects = link.handle(word, now_ns)
        return [*effects, *(self._report_clocks() if worker else self._go_on(now_ns))]

    def _fired(self, key: Any, now_ns: int) -> list[Effect]:
        match key:
            case ("again", other, timer) if other in self.links:
                return self.links[other].again(timer, now_ns)
            case ("late",):
                self._waits = False
                return self._leave_out(now_ns)
            case ("start",):
                return self._finish() if self.epoch < 0 else self._end_if_alone(now_ns)
        return []

    # --- workers that join and leave ----------------------------------------------------------------------------------

    def _joined(self, node: NodeId, life: int, now_ns: int) -> list[Effect]:
        if node == self.manager and self.epoch > 0:
            return [Send(node, TenureTaken(self.epoch))]  # it has sent that tenure, or is another manager
        if node not in self.links:
            return []
        worker = node in self.workers.workers
        self._noticed(node, now_ns)
        if life > self.lives[node]:  # it has lost its record of sent and received messages
            self.lives[node] = life
            self.links[node].drop()
            if worker:
                self._forget(node)
                self.workers.left.discard(node)
            else:  # messages in transfer are lost, a copy for this life perhaps: none is safe before it has it
                return self.tenure.send_copies(now_ns, [node])
        if worker:
            self.workers.linked.add(node)
            self._note_progress(node, now_ns)
        return self.links[node].resent(now_ns)

    def _end_if_alone(self, now_ns: int) -> list[Effect]:
        """End after a silence of all workers as long as the maximum wait at the beginning.

        A training worker may be silent; a waiting one repeats its request.
        """
        if (left := self._sign_ns + self.settings.start_ns - now_ns) > 0:
            return [SetTimer(("start",), left), *self._leave_out(now_ns)]
        if self.workers.linked and not self.pulls.held:
            return [SetTimer(("start",), self.settings.start_ns), *self._leave_out(now_ns)]
        if not self._met and not self.first_life:
            return self._finish()  # the run had ended before this life
        who = f"no worker is left, after round {self.told}" if self._met else "no worker has connected"
        return self._finish(Failure("network", who, "Look at the workers' logs, and at the addresses."))

    def _watch(self, now_ns: int) -> list[Effect]:
        waited = self._waited()
        if self._waits or not waited:
            return []
        self._waits = True
        soonest = min(self.workers.due_ns(worker) for worker in waited)
        return [SetTimer(("late",), max(soonest - now_ns, 0) + 1)]

    def _leave_out(self, now_ns: int) -> list[Effect]:
        silent = self.workers.lose_silent(self._waited(), now_ns)
        reports = [Report("silent_workers", silent, self.told)] if silent else []
        for worker in silent:
            self._forget(worker)
        return [*reports, *self._go_on(now_ns), *self._watch(now_ns), *self._end_if_over()]

    # --- pushes and pulls -----------------------------------------------------------------------------------------

    def _handle_rows(self, sender: NodeId, message: OfRows, now_ns: int) -> list[Effect]:
        """Handle a message on rows; request its keys if they are not stored."""
        if message.epoch != self.epoch:
            return []
        self._shard(sender, message.shard)
        match message:
            case RowKeys():
                self.lists.take(sender, message)
                return []
            case SomeKeys():
                self.lists.take_some(sender, message)
                return []
            case NoRows():
                return self._pushed(sender, message, now_ns)
        keys = self.lists.find(sender, message.shard, message.digest)
        over = isinstance(message, RowPush) and message.clock < self.shards[message.shard].clocks[sender]
        if keys is None and not over:
            return [Send(sender, KeysWanted(self.epoch, message.shard, message.digest))]
        if isinstance(message, RowPull):
            effects = self._pulled(sender, message, keys, now_ns)
        else:
            effects = self._pushed(sender, message, now_ns)
        self.lists.used(sender, message.shard, message.digest)
        return effects

    def _pushed(self, sender: NodeId, push: PushChunk, now_ns: int) -> list[Effect]:
        if push.epoch != self.epoch:
            return []
        clocks, name = self._shard(sender, push.shard), PieceTaken(*push.name)
        if push.clock < clocks.clocks[sender]:
            return [self.links[sender].took(name)]  # repeated, or of a clock that the others have closed
        begun = self.intake.begun(sender, push.shard)
        whole = self.intake.take(sender, push, clocks, self.width)
        if not begun:
            self.workers.pushed(sender, now_ns)
        self._note_progress(sender, now_ns)
        taken = self.links[sender].took(name)
        if whole is None:
            return [taken]
        self.summed += whole.values.size if isinstance(whole, Rows) else whole.size
        change = clocks.push(sender, push.weight, push.steps, whole, self.rate)
        made = self._make(push.shard, change, now_ns) if change else []
        return [taken, *made, *self._go_on(now_ns)]

    def _make(self, number: int, change: ShardChange, now_ns: int) -> list[Effect]:
        self._changed = True
        return self.tenure.apply(number, change, now_ns)

    def _pulled(self, sender: NodeId, pull: ShardPull | RowPull, keys: Keys | None, now_ns: int) -> list[Effect]:
        if pull.epoch != self.epoch:
            return []
        clocks, place = self._shard(sender, pull.shard), (pull.shard, sender)
        if pull.clock > self.settings.rounds or pull.first not in (pull.clock, pull.clock - 1):
            text = f"worker {sender} pulls for clock {pull.clock} from {pull.first} on"
            raise ProtocolError(f"server {self.node}, shard {pull.shard}: {text}", peer=sender)
        if self.links[sender].carries(pull.shard):
            return []  # the reply is in transfer
        again = place in self.pulls.held
        anew = pull.first == pull.clock and not again
        if anew or sender in self.workers.absent:
            self._note_progress(sender, now_ns)
        clocks.enter(sender, pull.clock if place in self.pulls.late else pull.first)
        self.pulls.held[place] = HeldPull(pull, keys)
        effects = self._go_on(now_ns)
        waits = again and place in self.pulls.held
        return [Send(sender, PullHeld(self.epoch, pull.shard, pull.clock)), *effects] if waits else effects

    def _go_on(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        present = self.workers.present
        for number, clocks in self.shards.items():
            while (change := clocks.close(present, self.rate)) is not None:
                if change.gradient is None:  # workers are ahead of this state, which lacks what they pushed
                    effects.append(Report("step_without_gradients", change.clock, change.clock))
                effects += self._make(number, change, now_ns)
        if self._changed:
            self._changed = False
            kept = saved_shards(self.version, self.tenure.everything, self.epoch, durable=self._durable)
            effects.insert(0, kept)
        for place in list(self.pulls.held) if self.tenure.whole or not self._durable else []:
            number, worker = place
            if self.tenure.copies.safe(number):
                answered = place, self.shards[number], present, self.epoch, self.links[worker]
                effects += self.pulls.answer(*answered, now_ns)
        return [*effects, *self._report_clocks(), *self._watch(now_ns)]

    # --- tenures ------------------------------------------------------------------------------------------------------

    def _ruled(self, tenure: Tenure, now_ns: int) -> list[Effect]:
        assert self.manager is not None
        if self.epoch < 0 and not tenure.anew and self.node not in tenure.joining:
            return []  # a tenure that the manager sent before it learned of this life
        taken = Send(self.manager, TenureTaken(max(self.epoch, tenure.epoch)))
        if tenure.epoch <= self.epoch:
            begins = tenure.whole and tenure.epoch == self.epoch and not self.tenure.whole
            self.tenure.whole = self.tenure.whole or begins
            return [taken, *self._ready(), *(self._go_on(now_ns) if begins else [])]
        for link in self.links.values():
            link.drop()
        self.intake.forget()
        self.pulls.forget()
        self.tenure.begin(tenure)
        if lost := self.tenure.lost:
            effects = [Send(other, ShardLost(self.epoch, lost[0])) for other in [*self.links, self.manager]]
            return [taken, *effects, *self._lost(lost[0])]
        self._changed = bool(self.shards)  # a copy that is owned now may be later than on disk
        for worker in sorted(self.workers.linked):  # none could do anything before
            self._note_progress(worker, now_ns)
        began = [*self.tenure.send_copies(now_ns), *self._ready(), *self._go_on(now_ns)]
        return [*began, taken]  # once its shards are on disk: the manager counts on that

    def _copied(self, sender: NodeId, message: ChangeMessage | CopyMessage) -> list[Effect]:
        if message.epoch != self.epoch:
            return []
        lacked = self.tenure.copies.lacking
        effects = self.tenure.take(sender, message)
        return [*effects, *(self._ready() if lacked else []), *self._report_clocks()]

    # --- records of workers, and the end ------------------------------------------------------------------------------

    def _shard(self, sender: NodeId, number: int) -> ShardClocks:
        if number not in self.shards:
            text = f"server {self.node}: worker {sender} names shard {number}, which this server does not own"
            raise ProtocolError(text, "Have all the same experiment file?", peer=sender)
        return self.shards[number]

    def _noticed(self, node: NodeId, now_ns: int) -> None:
        if node in self.workers.workers:
            self._met, self._sign_ns = True, now_ns

    def _note_progress(self, worker: NodeId, now_ns: int) -> None:
        if self.workers.note_progress(worker, now_ns):
            self.pulls.late.update((number, worker) for number in self.shards)

    def _forget(self, worker: NodeId) -> None:
        self.links[worker].drop()
        self.intake.forget(worker)
        self.lists.forget(worker)
        self.pulls.forget(worker)

    def _waited(self) -> list[NodeId]:
        waiting = self.pulls.held.items()
        idle = {place[1] for place, one in waiting if self.shards[place[0]].clocks[place[1]] >= one.pull.clock}
        busy = [worker for worker in self.workers.present if worker not in idle]
        if waiting or self.workers.left:
            return busy
        return [worker for worker in busy if worker not in self.workers.linked or not self.links[worker].idle]

    def _report_clocks(self) -> list[Effect]:
        there = [(number, worker) for number in self.shards for worker in self.workers.present]
        given = self.pulls.find_answered(there) if self.shards else self.tenure.copied(self.workers.present)
        if given <= self.told or not all(self.links[worker].idle for _, worker in there):
            return []
        self.told = given
        return [LocalWork(given)]

    def _ready(self) -> list[Effect]:
        """Report that all copies are stored: the manager repeats its tenure until then."""
        lacking = self.tenure.copies.lacking
        return (
            [] if lacking or self.manager is None else [Send(self.manager, ServerReady(self.epoch, self.tenure.whole))]
        )

    def _end_if_over(self) -> list[Effect]:
        return self._finish() if self.workers.over else []

    def _finish(self, failure: Failure | None = None) -> list[Effect]:
        self.phase = "finished"
        effects: list[Effect] = [LocalWork(self.version)] if self.version > self.told else []
        if self.settings.staleness != 0:
            effects.append(Report("read_lag", self.intake.seen, self.version))
        if self.width is not None and self.tenure.everything:  # no other server has its rows
            effects.append(saved_shards(self.version, self.tenure.everything, self.epoch, durable=True))
        return [*effects, Finish(self.model, failure)]

    def _lost(self, number: int) -> list[Effect]:
        return self._finish(self.tenure.failure(number, self.told))
