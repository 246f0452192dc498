"""The manager of parameter servers: it says who of them is there, and so who owns which shard.

    phase     event                                                 next phase
    new       Started                                               ruling
    ruling    PeerJoined PeerGone gone ServerReady TenureTaken      ruling
    ruling    begin again                                           ruling
    ruling    Leaving ShardLost gone                                finished

and from everywhere Stopping to finished.

A server that is lost for a while is out of the next tenure: those that keep copies of its shards own them.  One that
comes is joining: it gets copies, and is in the tenure after it has said that it has all of them.  A tenure is on disk
before it is told, and is told until all that have a link have taken it.  While the manager is away nothing changes.

Source: the server manager of Li et al., Scaling distributed machine learning with the parameter server, OSDI 2014,
section 4; here it is not replicated itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from fedgossip.errors import ProtocolError
from fedgossip.machine import (
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
from fedgossip.messages import Leaving, Message, ServerReady, ShardLost, Tenure, TenureTaken
from fedgossip.vectors import Vector


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """Limits of a run.  Times in nanoseconds."""

    copies: int
    """Servers that should have each shard."""
    patience_ns: int = 5_000_000_000
    """How long a server without a link is waited for."""
    worker_ns: int = 30_000_000_000
    """How long a worker is that says nothing, when others have come to their end."""
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
        initial: Vector,
        settings: ManagerSettings,
        resumed: Checkpoint | None = None,
        life: int = 0,
    ) -> None:
        self.node, self.settings, self.initial = node, settings, initial
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
        self.taken: set[NodeId] = set()  # who goes by this tenure
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
                if epoch == self.tenure.epoch:
                    self.taken.add(sender)
                return []
            case ServerReady(epoch) if sender in self.all:
                ready = epoch == self.tenure.epoch and sender in self.tenure.joining
                return self._rule(self.tenure.servers, sender) if ready else []
            case Leaving(round) if sender in self.workers:
                self.left.add(sender)
                back = [] if message.done else [Send(sender, Leaving(round, done=True))]
                return [*back, *self._end_if_over()]
            case Leaving() if sender in self.all:
                return self._without(sender)
            case ShardLost(epoch, shard) if sender in self.all:
                lost = Failure("network", f"no server has a copy of shard {shard}", "Raise replication.")
                return self._finish(lost) if epoch == self.tenure.epoch else []
        text = f"a {type(message).__name__} of {sender}, which has nothing of that kind to say"
        raise ProtocolError(f"manager {self.node}: {text}", peer=sender)

    def _fired(self, key: Any) -> list[Effect]:
        match key:
            case ("gone", node) if node in self.linked:
                return []
            case ("gone", node) if node in self.workers:
                self.left.add(node)
                return self._end_if_over()
            case ("gone", node):
                return self._without(node)
            case ("begin",):
                return self._begin()
            case ("start",) if not self.linked & set(self.workers):
                who = "no worker has come"
                return self._finish(Failure("network", who, "Look at the workers' logs, and at the addresses."))
            case ("again",):
                self._asking = False
                return self._tell()
        return []

    # --- who is there ---------------------------------------------------------------------------------------------

    def _joined(self, node: NodeId, life: int) -> list[Effect]:
        self.linked.add(node)
        if node not in self.all:
            self.left.discard(node)
            return self._tell() if self.tenure.epoch else []
        self.met[node] = max(life, self.met.get(node, 0))
        if self.gathering:
            return self._begin() if self.met.keys() >= set(self.tenure.servers) else []
        return self._met(node, life)

    def _met(self, node: NodeId, life: int) -> list[Effect]:
        """A server is here: one in another life than the tenure knows has nothing, and joins."""
        known = self.lives[node]
        there = node in self.tenure.servers or node in self.tenure.joining
        if there and life <= known:
            return self._tell() if self.tenure.epoch else []
        self.lives[node] = max(life, known)
        servers = tuple(server for server in self.tenure.servers if server != node)
        return self._rule(servers, joining=(*(one for one in self.tenure.joining if one != node), node))

    def _begin(self) -> list[Effect]:
        """Go on after a crash of one's own: with those of the tenure before, or all anew if all of them begin anew."""
        if not self.gathering:
            return []
        self.gathering = False
        here = [server for server in self.tenure.servers if server in self.met]
        if here and all(self.met[server] > self.lives[server] for server in here):
            self.lives |= self.met
            return self._rule(tuple(here), anew=True)
        effects: list[Effect] = []
        for server in self.tenure.servers:
            if server not in self.met:
                effects.append(SetTimer(("gone", server), self.settings.patience_ns))
        for server, life in sorted(self.met.items()):
            effects += self._met(server, life)
        return [*effects, *self._tell()]

    def _without(self, node: NodeId) -> list[Effect]:
        """Go on without a server."""
        if node not in self.tenure.servers and node not in self.tenure.joining:
            return []
        servers = tuple(server for server in self.tenure.servers if server != node)
        return self._rule(servers, joining=tuple(one for one in self.tenure.joining if one != node))

    def _rule(
        self,
        servers: Collection[NodeId],
        ready: NodeId | None = None,
        joining: tuple[NodeId, ...] | None = None,
        *,
        anew: bool = False,
    ) -> list[Effect]:
        """Begin a tenure, and tell it to all."""
        soon = self.tenure.joining if joining is None else joining
        joining = tuple(one for one in soon if one != ready)
        there = tuple(sorted({*servers, *([] if ready is None else [ready])}))
        if not there:
            text = "no server is left that has the model"
            return self._finish(Failure("network", text, "Start all again with --resume."))
        self.tenure, self.taken = Tenure(self.tenure.epoch + 1, there, joining, anew), set()
        facts = {"epoch": self.tenure.epoch, "servers": list(there), "joining": list(joining)}
        lives = [self.lives[server] for server in self.all]
        kept = Checkpoint(0, {"x": self.initial}, {**facts, "lives": lives}, durable=True)
        told = Report("tenure", {"servers": list(there), "joining": list(joining)}, 0)
        few = [Report("unreplicated", list(there), 0)] if len(there) < self.settings.copies else []
        return [kept, told, *few, *self._tell()]

    def _tell(self) -> list[Effect]:
        """Tell the tenure to those that have not taken it."""
        ask = sorted(self.linked - self.taken - self.left)
        effects: list[Effect] = [Send(other, self.tenure) for other in ask]
        if effects and not self._asking:
            self._asking = True
            effects.append(SetTimer(("again",), self.settings.again_ns))
        return effects

    # --- the end --------------------------------------------------------------------------------------------------

    def _end_if_over(self) -> list[Effect]:
        return self._finish() if self.left >= set(self.workers) else []

    def _finish(self, failure: Failure | None = None) -> list[Effect]:
        self.phase = "finished"
        return [Finish(self.initial, failure)]
