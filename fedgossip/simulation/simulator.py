"""Runs machines in virtual time: a simulated network between them, and the faults of a script.

Virtual time itself is `virtual_time`, effects of machines are performed in `performed_effects`; here links break and
heal, peers die, sleep and restart.  A restarted peer is a new machine, of a higher incarnation, made from the newest
checkpoint of the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from fedgossip.core.machine import Checkpoint, Machine, Meet, NodeId, PeerGone, PeerJoined, Started
from fedgossip.core.metrics import Network
from fedgossip.core.records import Row
from fedgossip.core.task import Job, LocalTask, give_memory
from fedgossip.faults import MOST_IN_VAIN, NOTHING, FaultScript, Happening, Strike, Turn
from fedgossip.simulation.connections import Link, Look
from fedgossip.simulation.event_queue import Begin, Coming, Lives, Restart, Wake
from fedgossip.simulation.network import NS, SimulatedNetwork
from fedgossip.simulation.performed_effects import PerformedEffects
from fedgossip.simulation.virtual_time import Table

Rebirth = Callable[[NodeId, int, Checkpoint | None], Machine]
"""(node, incarnation, its newest checkpoint): the machine that replaces the dead one."""


class Simulator(PerformedEffects):
    """One run.  `links[i]` are the known peers of i; `write` receives the rows of the record as they are logged.

    `rebirth` is needed where the script restarts peers; every `checkpoint_every`-th round's checkpoint is kept.
    `starts`: the late peers, each with its second.  `on_crash(node, machine)` is called when a peer dies. `examples`
    returns the number of examples of a job, where that determines its time; else all jobs take as long.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        links: Sequence[Sequence[NodeId]],
        task: LocalTask,
        network: SimulatedNetwork,
        record: Network,
        write: Callable[[Row], None],
        *,
        script: FaultScript = NOTHING,
        rebirth: Rebirth | None = None,
        checkpoint_every: int = 1,
        starts: Mapping[NodeId, float] | None = None,
        on_crash: Callable[[NodeId, Machine], None] | None = None,
        examples: Callable[[Job], int] | None = None,
    ) -> None:
        assert rebirth or not script.restarts, "the script restarts peers: give rebirth"
        made = machines, links, task, network, record, write
        super().__init__(*made, script, starts or {}, checkpoint_every, examples)
        self.rebirth, self.on_crash = rebirth, on_crash
        self._detection_ns = int(network.settings.detection * NS)

    # --- links ----------------------------------------------------------------------------------------------------

    def _look_at(self, node: NodeId, event: Look, *_: object) -> None:
        self._look(node, event.other)

    def _look(self, node: NodeId, other: NodeId) -> None:
        """Notify `node` of its link to `other`, where that has changed."""
        link = node, other
        if link not in self.connections.down and self._is_lost(link):
            self._count("lost", self.connections.give_up(link))
            self._handle(node, PeerGone(other))
        if link in self.connections.down and self._is_whole(link):
            self.connections.open(link, self.lives[other])
            self._handle(node, PeerJoined(other, self.lives[other]))

    def _is_lost(self, link: Link) -> bool:
        other = link[1]
        another = self.connections.lives.get(link, 0) != self.lives[other]
        since = [at for at in (self.connections.cuts.get(link), self._asleep.get(other)) if at is not None]
        silent = bool(since) and self.now_ns - min(since) >= self._detection_ns
        return other in self.dead or another or silent

    def _is_whole(self, link: Link) -> bool:
        gone = link[1] in self.dead or link[1] in self._asleep or link[1] in self.results
        return not gone and link not in self.connections.cuts

    def _meet(self, node: NodeId, meet: Meet) -> None:
        other = meet.node
        if not 0 <= other < len(self.machines):
            return
        for link in ((node, other), (other, node)):
            if self.connections.add(*link):
                self._cut_or_heal(link)
                self._push(self.now_ns + self.network.latency_ns(link[1], link[0]), link[0], Look(link[1]))

    def _cut_or_heal(self, link: Link) -> None:
        apart, since = self.script.cut(*link, self.now_ns), self.connections.cuts.get(link)
        if apart and since is None:
            self.connections.cut(link, self.now_ns)
            known_ns = self._detection_ns + self.network.latency_ns(link[1], link[0])
            self._push(self.now_ns + known_ns, link[0], Look(link[1]))
        elif not apart and since is not None:
            waited = self.connections.heal(link)
            self._push(self.now_ns + self.network.latency_ns(link[1], link[0]), link[0], Look(link[1]))
            for message, cost in waited:
                self._carry(link, message, cost)

    # --- faults of the script -------------------------------------------------------------------------------------

    def _apply_fault(self, happening: Happening) -> None:
        match happening:
            case Turn(name="link_down" | "link_up") if self._decided() and not self._heals(happening):
                return  # a flap without an end is over with the run: else a link would return for ever
            case Turn(_, name, peer, value):
                self._note(name, peer, value)
                for link in list(self.connections) if name != "slow" else ():
                    self._cut_or_heal(link)
            case Strike(_, _, node) if node in self.dead or node in self.results or self._decided():
                return
            case Strike(of_series=True) if self._progress.over:
                return
            case Strike(_, kind, node, back_ns, of_series):
                self._sleep(node, back_ns) if kind == "sleep" else self._crash(node, back_ns)
                if of_series and self._progress.struck():
                    self._note("struck_in_vain", node, MOST_IN_VAIN)

    def _heals(self, turn: Turn) -> bool:
        return turn.name == "link_up" and bool(self.connections.cuts)

    def _decided(self) -> bool:
        """Whether all participants whose rounds count have finished: a client that is gone for ever would retry for
        ever.
        """
        return all(node in self.results for node in self.record.counted)

    def _crash(self, node: NodeId, back_ns: int | None) -> None:
        if self.on_crash:
            self.on_crash(node, self.machines[node])
        self.dead.add(node)
        self._asleep.pop(node, None)
        self._training.forget(node)
        self._meters[node].broke_off(self.now_ns)
        self._note("crashed", node)
        if back_ns is not None:
            self._push(back_ns, node, Restart())
        else:
            for row in self.record.ended(node):
                self.write(row)
        for other in self.connections.known[node]:
            self._push(self.network.silent_ns(node, other, self.now_ns), other, Look(node))

    def _change_peer(self, node: NodeId, event: Coming, lives: Lives) -> None:
        """Start, restart or wake a peer."""
        if isinstance(event, Begin):
            self._begin(node)
        elif isinstance(event, Restart):
            self._restart(node)
        elif node not in self.dead and lives[1] == self.lives[node]:
            self._wake(node)

    def _restart(self, node: NodeId) -> None:
        assert self.rebirth is not None
        self.lives[node] += 1
        self.connections.forget(node)
        self.machines[node] = self.rebirth(node, self.lives[node], self.checkpoints.get(node))
        give_memory(self.task, node, self._states.get(node, {}))
        self._note("restarted", node)
        self._begin(node)

    def _begin(self, node: NodeId) -> None:
        self.dead.discard(node)
        self._handle(node, Started())
        for other in self.connections.known[node]:
            self._push(self.now_ns + self.network.latency_ns(other, node), node, Look(other))
            self._push(self.network.silent_ns(node, other, self.now_ns), other, Look(node))

    def _sleep(self, node: NodeId, until_ns: int | None) -> None:
        if node in self._asleep:
            return
        self._asleep[node], self._held[node] = self.now_ns, []
        self._note("asleep", node)
        assert until_ns is not None, "who sleeps wakes"
        self._push(until_ns, node, Wake())
        for other in self.connections.known[node]:
            self._push(self.now_ns + self._detection_ns + self.network.latency_ns(node, other), other, Look(node))

    def _wake(self, node: NodeId) -> None:
        del self._asleep[node]
        self._note("awake", node)
        for sequence, event, cost, lives in self._held.pop(node):
            self._taken[type(event)](self, node, event, sequence, cost, lives)
        for other in self.connections.known[node]:
            self._push(self.now_ns + self.network.latency_ns(node, other), other, Look(node))

    _taken: ClassVar[Table] = {**PerformedEffects._taken, Look: _look_at}
    _performed: ClassVar[Table] = {**PerformedEffects._performed, Meet: _meet}
