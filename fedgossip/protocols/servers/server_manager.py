"""The manager of parameter servers: it decides which of them are present, and so the owner of each shard.

    phase     event                                                 next phase
    new       Started                                               ruling
    ruling    PeerJoined PeerGone gone ServerReady TenureTaken      ruling
    ruling    begin again                                           ruling
    ruling    Leaving ShardLost gone                                finished

and from everywhere Stopping to finished.

A server that is lost for a while is excluded from the next tenure: keepers of copies of its shards own them.  A new
server receives copies, and is in the tenure after its report of all of them; a copy on its disk may be old.  If no
other server has a restarted server's shard, the next tenure begins again from its disk.

A tenure is on disk before it is sent, and repeated until it is acknowledged; the next one begins when all servers of
this one, except lost ones, have acknowledged it.  When all have their copies the tenure is whole: this is on disk, and
sent, before an owner answers, so all state that workers received is on the disks of the last whole tenure's servers.
While the manager is away nothing changes.  A manager whose tenure more than half of the servers contradict is a second
manager, or has lost its folder, and ends.  The run is over when more than half of all workers have reported all rounds.

Source: Li et al., Scaling distributed machine learning with the parameter server, OSDI 2014, section 4; here the
manager is not replicated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """Maximum wait for a server without a link."""
    worker_ns: int = 30_000_000_000
    """Maximum wait for a worker, once others have ended, and for a server whose loss would lose state."""
    start_ns: int = 300_000_000_000
    again_ns: int = 1_000_000_000
    durable: bool = False
    """Whether a server writes all answered state of its shards to its disk."""


class ServerManager:
    """Invariant: `servers` together have all state that workers ever received, unless `copies` servers were lost at
    once.

    After a restart it resumes the last tenure.
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
        self.phase, self.tenure = "new", Tenure(0, tuple(servers), whole=True)
        self.lives: dict[NodeId, int] = dict.fromkeys(servers, 0)
        if resumed:
            facts: Any = resumed.facts
            joining = tuple(facts["joining"])
            self.tenure = Tenure(facts["epoch"], tuple(facts["servers"]), joining)
            self.lives = dict(zip(self.all, facts["lives"], strict=True))
        self.whole = tuple(resumed.facts.get("whole", self.tenure.servers)) if resumed else self.tenure.servers  # type: ignore[arg-type]
        """The servers of the last whole tenure: all answered state is on their disks."""
        self.gathering = life > 0  # until the servers in a new life are known
        self.met: dict[NodeId, int] = {}  # connected servers, with their life
        self.linked: set[NodeId] = set()
        self.left: set[NodeId] = set()  # workers that sent a goodbye
        self.done: set[NodeId] = set()  # of those, after all rounds, by their report
        self.taken: set[NodeId] = set(servers) if self.tenure.epoch == 0 else set()  # have acknowledged this tenure
        self.lost: set[NodeId] = set()  # servers away for too long
        self.blank: set[NodeId] = set()  # present servers without any state
        self.ready: set[NodeId] = set()  # have all their copies of this tenure
        self.answering: set[NodeId] = set()  # have it as whole
        known = 1 if resumed else placement.copies  # an owner has its shards, or reports them lost
        self.holding = {shard.number: {*shard.holders(self.tenure.servers, known)} for shard in placement.shards}
        """The live servers that certainly have each shard."""
        self.claimed: set[NodeId] = set()  # servers that report a tenure of another manager
        self._asking = False

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:  # noqa: ARG002
        """Handle one event; see machine.Machine."""
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
            case ServerReady(epoch, whole) if sender in self.all:
                if whole and epoch == self.tenure.epoch:
                    self.answering.add(sender)
                kept = self._has_all(sender) if epoch == self.tenure.epoch else []
                return [*kept, *self._review()]
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
        text = f"a {type(message).__name__} of {sender}, which sends no such message"
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
            case ("over",):  # the remaining ones have ended, or are dead: the last model waits for all
                working = self.linked & set(self.workers) - self.left
                if working and 2 * len(self.done) <= len(self.workers):  # the reports of few end nothing
                    return [SetTimer(("over",), self.settings.worker_ns)]
                return self._finish()
            case ("begin",) if self._all_anew:  # nobody works, and a copy on a disk may be older than its owner's
                return [SetTimer(("begin", "late"), self.settings.worker_ns)]
            case ("begin", *_):
                missing = [server for server in self.whole if server not in self.met] if self._all_anew else []
                return self._not_back(missing) if missing else self._begin()
            case ("start",) if not self.linked & set(self.workers):
                who = f"no worker has connected to manager {self.node}"
                return self._finish(Failure("network", who, f"Look at the workers' logs, and at the addresses. {ONE}"))
            case ("again",):
                self._asking = False
                return self._send_tenure()
        return []

    def _owns(self, sender: NodeId, shard: int, epoch: int) -> bool:
        """Return whether a report of a lost shard comes from its owner, or from an earlier tenure."""
        if sender not in self.all or epoch != self.tenure.epoch:
            return sender in self.all
        shards = self.placement.shards
        return shard < len(shards) and shards[shard].holders(self.tenure.servers, 1) == (sender,)

    def _claimed(self, sender: NodeId, epoch: int) -> list[Effect]:
        """Handle a tenure that this manager never issued: end when more than half of the servers report it.

        Raises ProtocolError for a worker's report.
        """
        advice = f"manager {self.node} has issued {self.tenure.epoch}"
        if sender not in self.all:
            raise ProtocolError(f"worker {sender} goes by tenure {epoch}, and {advice}", peer=sender)
        self.claimed.add(sender)
        if 2 * len(self.claimed) <= len(self.all):
            return []
        who = " and ".join(map(str, sorted(self.claimed)))
        text = f"servers {who} go by tenure {epoch} of another manager; {advice}"
        return self._finish(Failure("network", text, f"{ONE} To take its place, start with --resume in its folder."))

    # --- present servers ----------------------------------------------------------------------------------------------

    def _joined(self, node: NodeId, life: int) -> list[Effect]:
        self.linked.add(node)
        if node not in self.all:
            self.left.discard(node)
            self.done.discard(node)
            return self._send_tenure()
        self.met[node] = max(life, self.met.get(node, 0))
        if self.gathering:
            return self._begin() if self.met.keys() >= {*self.tenure.servers, *self.whole} else []
        self._meet(node)
        return [*self._review(), *self._send_tenure()]

    def _meet(self, node: NodeId) -> None:
        """Record a present server: outside the tenure, or after a restart, it has no state."""
        self.lost.discard(node)
        there = node in self.tenure.servers or node in self.tenure.joining
        if not there or self.met[node] > self.lives[node]:
            self.blank.add(node)
        self.lives[node] = max(self.met[node], self.lives[node])

    def _begin(self) -> list[Effect]:
        """Resume with the servers of the last tenure, or from their disks if all of them restarted."""
        if not self.gathering:
            return []
        anew, self.gathering = self._all_anew, False
        if anew:
            self.lives |= self.met
            self.blank = set(self.all)
            here = [server for server in self.whole if server in self.met]
            return self._rule(tuple(here), tuple(sorted(self.met.keys() - here)), anew=True)
        for server in self.met:
            self._meet(server)
        away = [server for server in self.tenure.servers if server not in self.met]
        timers: list[Effect] = [SetTimer(("gone", server), self.settings.patience_ns) for server in away]
        return [*timers, *self._review(), *self._send_tenure()]

    @property
    def _all_anew(self) -> bool:
        """Return whether all present servers of the last tenure have restarted."""
        here = {*self.tenure.servers, *self.whole} & self.met.keys() if self.gathering else set()
        return bool(here) and all(self.met[server] > self.lives[server] for server in here)

    def _is_last(self, node: NodeId) -> bool:
        gone = {node, *self.lost, *self.blank}
        return any(holders <= gone for holders in self.holding.values())

    def _has_all(self, server: NodeId) -> list[Effect]:
        if server in self.blank:
            return []  # the report is of its earlier life
        self.ready.add(server)
        for shard in self.placement.shards:
            if server in self._keepers(shard):
                self.holding[shard.number].add(server)
        if self.tenure.whole or not {*self.tenure.servers, *self.tenure.joining} <= self.ready:
            return []
        self.whole, self.tenure = self.tenure.servers, replace(self.tenure, whole=True)
        return [self._make_checkpoint(), *self._send_tenure()]

    def _keepers(self, shard: Shard) -> set[NodeId]:
        return {*shard.keepers(self.tenure.servers, self.tenure.joining, self.placement.copies)}

    def _without(self, node: NodeId) -> list[Effect]:
        self.lost.add(node)
        self.blank.discard(node)
        return self._review()

    def _review(self) -> list[Effect]:
        now = self.tenure
        out = self.lost | self.blank
        if not {*now.servers, *now.joining} - out <= self.taken:
            return []
        if self._is_on_disks(out):
            came = (self.blank | {*now.joining}) - {*now.servers}
            return self._rule(now.servers, tuple(sorted(came)), anew=True)
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

    def _is_on_disks(self, out: set[NodeId]) -> bool:
        """Return whether a shard is only at restarted servers, each with its copy on disk."""
        now, owners = self.tenure, {*self.tenure.servers}
        kept = now.anew or self.blank & owners <= self.taken
        lost = any(holders <= out for holders in self.holding.values())
        return self.settings.durable and kept and lost and not self.lost & owners

    def _rule(self, servers: tuple[NodeId, ...], joining: tuple[NodeId, ...], *, anew: bool = False) -> list[Effect]:
        if not servers:
            text = "no server is left that has the model"
            return self._finish(Failure("network", text, "Start all again with --resume."))
        self.tenure = Tenure(self.tenure.epoch + 1, servers, joining, anew)
        for shard in self.placement.shards:
            sure = self.holding[shard.number] - self.lost - self.blank
            owner = {*shard.holders(servers, 1)} if anew else set()
            self.holding[shard.number] = (sure | owner) & self._keepers(shard)
        self.taken, self.blank, self.ready, self.answering = set(), set(), set(), set()
        kept = self._make_checkpoint()
        report = Report("tenure", {"servers": list(servers), "joining": list(joining)}, 0)
        few = [Report("unreplicated", list(servers), 0)] if len(servers) < self.placement.copies else []
        return [kept, report, *few, *self._send_tenure()]

    def _make_checkpoint(self) -> Checkpoint:
        now, lives = self.tenure, [self.lives[server] for server in self.all]
        facts = {"epoch": now.epoch, "servers": list(now.servers), "joining": list(now.joining), "lives": lives}
        return Checkpoint(0, {"x": self.initial}, {**facts, "whole": list(self.whole)}, durable=True)

    def _send_tenure(self) -> list[Effect]:
        """Send the tenure to all without an acknowledgement or copies."""
        if not self.tenure.epoch:
            return []
        lacking = {*self.tenure.servers, *self.tenure.joining} - (self.answering if self.tenure.whole else self.ready)
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

    def _not_back(self, missing: Sequence[NodeId]) -> list[Effect]:
        """End if all others restarted: their copies on disk may lack an answered step."""
        who = (
            f"server {', '.join(map(str, missing))} of the last tenure is not back, and its parts of the model with it"
        )
        return self._finish(Failure("network", who, "Start it too, with --resume in its folder."))

    def _end_if_over(self) -> list[Effect]:
        return self._finish() if self.left >= set(self.workers) else []

    def _finish(self, failure: Failure | None = None) -> list[Effect]:
        self.phase = "finished"
        return [Finish(self.initial, failure)]
