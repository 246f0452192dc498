"""The manager of parameter servers: it says who of them is there, and so who owns which shard.

    phase     event                                                 next phase
    new       Started                                               ruling
    ruling    PeerJoined PeerGone gone ServerReady TenureTaken      ruling
    ruling    begin again                                           ruling
    ruling    Leaving ShardLost gone                                finished

and from everywhere Stopping to finished.

A server that is lost for a while is out of the next tenure: those that keep copies of its shards own them.  One that
comes is joining: it gets copies, and is in the tenure after it has said that it has all of them.  One that is to keep
copies counts as having them when it has said so.  A tenure is on disk before it is told, and is told until it is taken,
and until servers have their copies; the next one begins when all servers of this one, but those that are
lost, have taken it, so nobody that is to own a shard has missed a tenure.  While the manager is away nothing changes.
Servers tell one that comes of their tenure: one that has not said it is a second manager, or has lost its folder, and
ends when more than half of them say so; one participant's word ends nobody.  While a worker is at work, the run is over
when more than half of all workers have said that they have done all rounds.

Source: the server manager of Li et al., Scaling distributed machine learning with the parameter server, OSDI 2014,
section 4; here it is not replicated itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedgossip.algorithms.hash_ring import Placement, Shard
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import (
    Checkpoint,
    Effect,
    Event,
    Failure,
    Finish,
    Fired,
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
from fedgossip.core.messages import Leaving, Message, ServerReady, ShardLost, Tenure, TenureTaken

ONE = "A run has one manager, at the address that its endpoints have."


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """Limits of a run.  Times in nanoseconds."""

    rounds: int
    patience_ns: int = 5_000_000_000
    """How long a server without a link is waited for."""
    worker_ns: int = 30_000_000_000
    """How long a worker is waited for, when others have come to their end; and a server without which elements of the
    model would be lost."""
    start_ns: int = 300_000_000_000
    again_ns: int = 1_000_000_000


class ServerManager:
    """Invariant: `servers` have, between them, all that workers were ever answered, unless `copies` were lost at once.

    In a life after the first it knows the last tenure; where all servers begin anew too, so does the run.
    """

    def __init__(
        self,
        node: NodeId,
        workers: Sequence[NodeId],
        servers: Sequence[NodeId],
        placement: Placement,
        initial: Vector,
        settings: ManagerSettings,
        resumed: Checkpoint | None = None,
        life: int = 0,
    ) -> None:
        self.node, self.placement, self.settings, self.initial = node, placement, settings, initial
        self.workers, self.all = tuple(workers), tuple(servers)
        self.phase, self.tenure = "new", Tenure(0, tuple(servers))
        self.lives: dict[NodeId, int] = dict.fromkeys(servers, 0)
        if resumed:
            facts: Any = resumed.facts
            joining = tuple(facts["joining"])
            self.tenure = Tenure(facts["epoch"], tuple(facts["servers"]), joining)
            self.lives = dict(zip(self.all, facts["lives"], strict=True))
        self.gathering = life > 0  # until it is known who else is in a new life
        self.met: dict[NodeId, int] = {}  # servers, in which life
        self.linked: set[NodeId] = set()
        self.left: set[NodeId] = set()  # workers that have said goodbye
        self.done: set[NodeId] = set()  # and have all rounds behind them, as they say
        self.taken: set[NodeId] = set(servers) if self.tenure.epoch == 0 else set()  # who goes by this tenure
        self.lost: set[NodeId] = set()  # servers that have been away for too long
        self.blank: set[NodeId] = set()  # servers that are here and have nothing
        self.ready: set[NodeId] = set()  # who has all copies that it is to have in this tenure
        known = 1 if resumed else placement.copies  # an owner has its shards, or says that they are lost
        self.holding = {shard.number: {*shard.holders(self.tenure.servers, known)} for shard in placement.shards}
        """Which servers have each shard for certain, while they live."""
        self.claimed: set[NodeId] = set()  # servers that go by a tenure of another manager, as they say
        self._asking = False

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:  # noqa: ARG002
        """Take one event; see machine.Machine."""
        if self.phase == "finished":
            return []
        match event:
            case Received(sender, message):
                return self._received(sender, message)
            case Fired(key):
                return self._fired(key)
            case PeerJoined(node, life):
                return self._joined(node, life)
            case PeerGone(node):
                self.linked.discard(node)
                wait = self.settings.patience_ns if node in self.all else self.settings.worker_ns
                return [SetTimer(("gone", node), wait)]
            case Started():
                self.phase = "ruling"
                begin = [SetTimer(("begin",), self.settings.patience_ns)] if self.gathering else []
                return [*begin, SetTimer(("start",), self.settings.start_ns)]
            case Stopping():
                return self._finish()
        return []

    def _received(self, sender: NodeId, message: Message) -> list[Effect]:
        match message:
            case TenureTaken(epoch) if sender in self.all or sender in self.workers:
                if epoch > self.tenure.epoch:
                    return self._claimed(sender, epoch)
                if epoch == self.tenure.epoch:
                    self.taken.add(sender)
                return self._review()
            case ServerReady(epoch) if sender in self.all:
                if epoch == self.tenure.epoch:
                    self._has_all(sender)
                return self._review()
            case Leaving(round) if sender in self.workers:
                self.left.add(sender)
                back: list[Effect] = [] if message.done else [Send(sender, Leaving(round, done=True))]
                if round < self.settings.rounds:
                    return [*back, *self._end_if_over()]
                self.done.add(sender)
                return [*back, SetTimer(("over",), self.settings.worker_ns), *self._end_if_over()]
            case Leaving() if sender in self.all:
                return self._without(sender)
            case ShardLost(epoch, shard) if self._owns(sender, shard, epoch):
                return self._lost(shard) if epoch == self.tenure.epoch else []
        text = f"a {type(message).__name__} of {sender}, which has nothing of that kind to say"
        raise ProtocolError(f"manager {self.node}: {text}", peer=sender)

    def _fired(self, key: Any) -> list[Effect]:
        match key:
            case ("gone", node) if node in self.linked:
                return []
            case ("gone", node) if node in self.workers:
                self.left.add(node)
                return self._end_if_over()
            case ("gone", node) if self._is_last(node):
                return [SetTimer(("last", node), self.settings.worker_ns)]
            case ("last", node) if node in self.linked:
                return []
            case ("gone" | "last", node):
                return self._without(node)
            case ("over",):  # all that are left have come to their end, or are dead: the last model waits for all
                working = self.linked & set(self.workers) - self.left
                if working and 2 * len(self.done) <= len(self.workers):  # the word of few ends nobody
                    return [SetTimer(("over",), self.settings.worker_ns)]
                return self._finish()
            case ("begin",):
                return self._begin()
            case ("start",) if not self.linked & set(self.workers):
                who = f"no worker has come to manager {self.node}"
                return self._finish(Failure("network", who, f"Look at the workers' logs, and at the addresses. {ONE}"))
            case ("again",):
                self._asking = False
                return self._tell()
        return []

    def _owns(self, sender: NodeId, shard: int, epoch: int) -> bool:
        """Whether a server can know that a shard is lost: its owner does, of an earlier tenure nobody is asked."""
        if sender not in self.all or epoch != self.tenure.epoch:
            return sender in self.all
        shards = self.placement.shards
        return shard < len(shards) and shards[shard].holders(self.tenure.servers, 1) == (sender,)

    def _claimed(self, sender: NodeId, epoch: int) -> list[Effect]:
        """A server goes by a tenure that this life has not said, nor the one before: end when more than half do.

        A worker knows of no manager but by its servers.  Raises ProtocolError for the word of a worker.
        """
        said = f"manager {self.node} has said {self.tenure.epoch}"
        if sender not in self.all:
            raise ProtocolError(f"worker {sender} goes by tenure {epoch}, and {said}", peer=sender)
        self.claimed.add(sender)
        if 2 * len(self.claimed) <= len(self.all):
            return []
        who = " and ".join(map(str, sorted(self.claimed)))
        text = f"servers {who} go by tenure {epoch} of another manager; {said}"
        return self._finish(Failure("network", text, f"{ONE} To take its place, start with --resume in its folder."))

    # --- who is there ---------------------------------------------------------------------------------------------

    def _joined(self, node: NodeId, life: int) -> list[Effect]:
        self.linked.add(node)
        if node not in self.all:
            self.left.discard(node)
            self.done.discard(node)
            return self._tell()
        self.met[node] = max(life, self.met.get(node, 0))
        if self.gathering:
            return self._begin() if self.met.keys() >= set(self.tenure.servers) else []
        self._meet(node)
        return [*self._review(), *self._tell()]

    def _meet(self, node: NodeId) -> None:
        """A server is here: one that the tenure does not have, or not in this life, has nothing."""
        self.lost.discard(node)
        there = node in self.tenure.servers or node in self.tenure.joining
        if not there or self.met[node] > self.lives[node]:
            self.blank.add(node)
        self.lives[node] = max(self.met[node], self.lives[node])

    def _begin(self) -> list[Effect]:
        """Go on after a crash of one's own: with those of the tenure before, or all anew if all of them begin anew."""
        if not self.gathering:
            return []
        self.gathering = False
        here = [server for server in self.tenure.servers if server in self.met]
        if here and all(self.met[server] > self.lives[server] for server in here):
            self.lives |= self.met
            return self._rule(tuple(here), (), anew=True)
        for server in self.met:
            self._meet(server)
        away = [server for server in self.tenure.servers if server not in self.met]
        timers: list[Effect] = [SetTimer(("gone", server), self.settings.patience_ns) for server in away]
        return [*timers, *self._review(), *self._tell()]

    def _is_last(self, node: NodeId) -> bool:
        """Whether nobody would have some shard without a server, which may be cut off and not dead."""
        gone = {node, *self.lost, *self.blank}
        return any(holders <= gone for holders in self.holding.values())

    def _has_all(self, server: NodeId) -> None:
        """A server has said that it has all copies that it is to have in this tenure."""
        if server in self.blank:
            return  # it was its life before that said so
        self.ready.add(server)
        for shard in self.placement.shards:
            if server in self._keepers(shard):
                self.holding[shard.number].add(server)

    def _keepers(self, shard: Shard) -> set[NodeId]:
        return {*shard.keepers(self.tenure.servers, self.tenure.joining, self.placement.copies)}

    def _without(self, node: NodeId) -> list[Effect]:
        """Go on without a server."""
        self.lost.add(node)
        self.blank.discard(node)
        return self._review()

    def _review(self) -> list[Effect]:
        """Begin another tenure where who is there has changed, and all in this one have taken it."""
        now = self.tenure
        out = self.lost | self.blank
        if not {*now.servers, *now.joining} - out <= self.taken:
            return []
        ready = self.ready - out
        servers = [server for server in self.all if server not in out and (server in now.servers or server in ready)]
        joining = [
            server
            for server in self.all
            if server in self.blank or (server in now.joining and server not in out and server not in ready)
        ]
        if (tuple(servers), tuple(joining)) == (now.servers, now.joining) and not self.blank:
            return []
        return self._rule(tuple(servers), tuple(joining))

    def _rule(self, servers: tuple[NodeId, ...], joining: tuple[NodeId, ...], *, anew: bool = False) -> list[Effect]:
        """Begin a tenure, and tell it to all."""
        if not servers:
            text = "no server is left that has the model"
            return self._finish(Failure("network", text, "Start all again with --resume."))
        self.tenure = Tenure(self.tenure.epoch + 1, servers, joining, anew)
        for shard in self.placement.shards:
            sure = self._keepers(shard) if anew else self.holding[shard.number] - self.lost - self.blank
            self.holding[shard.number] = sure & self._keepers(shard)
        self.taken, self.blank, self.ready = set(), set(), set()
        facts = {"epoch": self.tenure.epoch, "servers": list(servers), "joining": list(joining)}
        lives = [self.lives[server] for server in self.all]
        kept = Checkpoint(0, {"x": self.initial}, {**facts, "lives": lives}, durable=True)
        told = Report("tenure", {"servers": list(servers), "joining": list(joining)}, 0)
        few = [Report("unreplicated", list(servers), 0)] if len(servers) < self.placement.copies else []
        return [kept, told, *few, *self._tell()]

    def _tell(self) -> list[Effect]:
        """Tell the tenure to those that have not taken it, or have not all copies; of the first all know."""
        if not self.tenure.epoch:
            return []
        lacking = {*self.tenure.servers, *self.tenure.joining} - self.ready
        ask = sorted(self.linked - (self.taken - lacking) - self.left)
        effects: list[Effect] = [Send(other, self.tenure) for other in ask]
        if effects and not self._asking:
            self._asking = True
            effects.append(SetTimer(("again",), self.settings.again_ns))
        return effects

    # --- the end --------------------------------------------------------------------------------------------------

    def _lost(self, number: int) -> list[Effect]:
        shards = self.placement.shards
        words = shards[number].words if number < len(shards) else "?"
        text = f"no server has a copy of elements {words} of the model"
        return self._finish(Failure("network", text, "Start all again with --resume, or raise replication."))

    def _end_if_over(self) -> list[Effect]:
        return self._finish() if self.left >= set(self.workers) else []

    def _finish(self, failure: Failure | None = None) -> list[Effect]:
        self.phase = "finished"
        return [Finish(self.initial, failure)]
