"""Runs machines in virtual time: a heap of (time, sequence, node, event), and training computed lazily in batches.

A Train effect is scheduled to finish at its virtual time but not computed; when the first such event comes up, every
outstanding job is computed in one call (their inputs are fixed already).  The history is the same as if each had been
computed alone, as a task's update depends on its own job only.

A fault script acts on peers and links between events, before those of the same time.  A peer that dies and comes back
is a new machine, of a higher incarnation, made from the newest checkpoint of the old one; messages on the way to the
old one are lost.  Events of a peer that sleeps wait, in order, until it wakes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fedgossip.errors import ProtocolError
from fedgossip.faults import MOST_IN_VAIN, NOTHING, UNHARMED, Fate, FaultScript, Happening, RunProgress, Strike, Turn
from fedgossip.machine import (
    AddingMachine,
    Aggregated,
    Checkpoint,
    ChooseRows,
    Effect,
    Event,
    Failure,
    Finish,
    Fired,
    LocalWork,
    Log,
    Machine,
    Meet,
    Moved,
    NodeId,
    Outgoing,
    Part,
    PeerGone,
    PeerJoined,
    Produced,
    Received,
    Refused,
    Report,
    Rostered,
    RoundDone,
    RowsChosen,
    Send,
    SetTimer,
    Started,
    Stopping,
    Train,
    Trained,
    Witness,
)
from fedgossip.messages import Message
from fedgossip.meter import Meter
from fedgossip.metrics import Network
from fedgossip.records import EventRow, Row, event_row, give_all
from fedgossip.simulation.connections import Link, Look, SimulatedLinks
from fedgossip.simulation.network import NS, SimulatedNetwork
from fedgossip.simulation.stretches import awaited_stretches, stretch_of
from fedgossip.task import Job, LocalTask, Update, chosen, done, give_memory, memory_of
from fedgossip.vectors import Vector
from fedgossip.wire import wire_bytes

Rebirth = Callable[[NodeId, int, Checkpoint | None], Machine]
"""(node, incarnation, its newest checkpoint): the machine that takes the place of the dead one."""


@dataclass(frozen=True, slots=True)
class _Begin:
    """A peer starts that was not there before."""


@dataclass(frozen=True, slots=True)
class _Restart:
    """A peer that has died starts again."""


@dataclass(frozen=True, slots=True)
class _Wake:
    """A peer that sleeps goes on."""


@dataclass(frozen=True, slots=True)
class _Summed:
    """A peer has added up what it was told, and does these."""

    effects: Sequence[Effect]


_Coming = Event | Look | _Begin | _Restart | _Wake | _Summed
_OF_PEERS = frozenset({_Begin, _Restart, _Wake})
"""What no machine is told."""
_Cost = tuple[int, int]
"""The bytes of a message, and those of vectors among them."""
NO_COST: _Cost = 0, 0
_Lives = tuple[int, int]
"""The incarnations of the sender, and of the receiver as the sender knows it."""


class Simulator:
    """One run.  `links[i]` are the peers that i knows; `write` takes the rows of the record as they come.

    `rebirth` is needed where the script restarts peers; every `checkpoint_every`-th round's checkpoint is kept.
    `starts`: the peers that come later, each with its second.  `on_crash(node, machine)` is called when a peer dies.
    `examples` tells how many a job goes over, where that decides how long it takes; else all jobs take as long.
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
        self.machines, self.task, self.network = list(machines), task, network
        self.examples = examples
        self.record, self.write = record, write
        self.script, self.rebirth, self.on_crash = script, rebirth, on_crash
        self.checkpoint_every, self.starts = checkpoint_every, dict(starts or {})
        self.connections = SimulatedLinks(links)
        self.now_ns = 0
        self.results: dict[NodeId, Vector] = {}
        self.failures: dict[NodeId, Failure] = {}
        """The reasons why peers ended before their time."""
        self.dead: set[NodeId] = set(self.starts)
        """The peers that are absent: not yet, not now, or never again there."""
        self.lives = [0] * len(machines)
        self.checkpoints: dict[NodeId, Checkpoint] = {}
        self.logs: dict[NodeId, list[tuple[str, Mapping[str, object]]]] = {}
        """The lines that each participant has written into its own log."""
        self.counts: dict[str, int] = {}
        self.payload: dict[Link, int] = {}
        """Bytes of vectors sent on each link."""
        self._meters = [Meter(node) for node in range(len(machines))]
        self._heap: list[tuple[int, int, NodeId, _Coming, _Cost, _Lives]] = []  # time, order, whom, what, cost, lives
        self._costs: dict[int, _Cost] = {}  # of what an event has brought about, while its effects are performed
        self._sequence = 0
        self._timers: dict[tuple[NodeId, Hashable], int] = {}
        self._jobs: dict[NodeId, Job] = {}
        self._updates: dict[NodeId, Update] = {}
        self._stretches: dict[NodeId, tuple[int, ...]] = {}  # of the jobs in _updates
        self._states: dict[NodeId, Any] = {}  # the task's memory of a peer, with its checkpoint
        self._asleep: dict[NodeId, int] = {}  # since when
        self._held: dict[NodeId, list[tuple[int, _Coming, _Cost, _Lives]]] = {}
        self._adding: dict[NodeId, int] = {}  # until when
        self._counts_sums = network.settings.summing > 0
        self._sent: dict[Link, int] = {}
        self._touched, self._restarts = script.touches_messages, bool(script.restarts)
        self._detection_ns = int(network.settings.detection * NS)
        self._happened = 0  # of what the script brings
        self._progress = RunProgress(len(machines))

    def run(self, limit_seconds: float = math.inf, between: Callable[[], None] = lambda: None) -> dict[NodeId, Vector]:
        """Run until no event is left, or virtual time passes the limit; return each finished peer's vector.

        `between` is called between two events: the attributes of this object and of the record, and what the task
        remembers, are the whole run then.  A simulator that was given them goes on from there.
        """
        if not self._sequence:
            self._start()
        happenings = islice(self.script.happenings(), self._happened, None)
        upcoming = next(happenings, None)
        heap, limit_ns = self._heap, limit_seconds * NS
        while heap and heap[0][0] <= limit_ns:
            between()
            if upcoming is not None and heap[0][0] >= upcoming.at_ns:
                self.now_ns = upcoming.at_ns
                self._happened += 1
                self._happen(upcoming)
                upcoming = next(happenings, None)
                continue
            self.now_ns, sequence, node, event, cost, lives = heapq.heappop(heap)
            self._comes(sequence, node, event, cost, lives)
        for row in self.record.flush():
            self.write(row)
        return self.results

    def _start(self) -> None:
        for node, known in enumerate(self.connections.known):
            if node in self.starts:
                self._push(int(self.starts[node] * NS), node, _Begin())
                self.connections.forget(node)
                continue
            self._push(0, node, Started())
            for other in known:
                if other in self.starts:
                    self.connections.give_up((node, other))
                else:
                    self._push(0, node, PeerJoined(other))

    # --- events ---------------------------------------------------------------------------------------------------

    def _push(
        self, at_ns: int, node: NodeId, event: _Coming, cost: _Cost = NO_COST, lives: _Lives | None = None
    ) -> int:
        self._sequence = sequence = self._sequence + 1
        heapq.heappush(self._heap, (at_ns, sequence, node, event, cost, lives or (0, self.lives[node])))
        return sequence

    def _comes(self, sequence: int, node: NodeId, event: _Coming, cost: _Cost, lives: _Lives) -> None:
        if type(event) in _OF_PEERS:
            self._changes(node, event, lives)
        elif lives[1] != self.lives[node] or node in self.dead:
            return  # messages for the dead peer are not for the one that takes its place
        elif self._adding and self._adding.get(node, 0) > self.now_ns:
            # keeps its number: what comes first is told first
            heapq.heappush(self._heap, (self._adding[node], sequence, node, event, cost, lives))
        elif node in self._asleep:
            self._held[node].append((sequence, event, cost, lives))
        else:
            _TAKEN[type(event)](self, node, event, sequence, cost, lives)

    def _changes(self, node: NodeId, event: _Coming, lives: _Lives) -> None:
        """A peer begins, comes back or wakes."""
        if isinstance(event, _Begin):
            self._begin(node)
        elif isinstance(event, _Restart):
            self._restart(node)
        elif node not in self.dead and lives[1] == self.lives[node]:
            self._wake(node)

    def _told(self, node: NodeId, event: Event, *_: object) -> None:
        self._tell(node, event)

    def _message_comes(self, node: NodeId, event: Received, _sequence: int, cost: _Cost, lives: _Lives) -> None:
        known = self.connections.lives
        if known and lives[0] < known.get((node, event.sender), 0):
            return  # the message was held back since before the sender died, and its connection is gone
        self._meters[node].received(*cost)
        self._tell(node, event)

    def _timer_fires(self, node: NodeId, event: Fired, sequence: int, *_: object) -> None:
        timer = node, event.key
        if self._timers.get(timer) == sequence:
            del self._timers[timer]
            if node not in self.results:
                self._tell(node, event)

    def _training_ends(self, node: NodeId, event: Trained, *_: object) -> None:
        answer = self._computed(node, event)
        if isinstance(answer, Trained):
            self._meters[node].train_ended(self.now_ns, answer.metrics)
        self._tell(node, answer)

    def _stretch_is_there(self, node: NodeId, event: Produced, *_: object) -> None:
        update = self._updated(node)
        if not update.over:
            self._tell(node, stretch_of(update, event, self._stretches[node]))

    def _look_at(self, node: NodeId, event: Look, *_: object) -> None:
        self._look(node, event.other)

    def _is_summed(self, node: NodeId, event: _Summed, *_: object) -> None:
        self._perform_all(node, event.effects)

    def _tell(self, node: NodeId, event: Event) -> None:
        before = self._summed(node) if self._counts_sums else 0
        try:
            effects = self.machines[node].handle(event, self.now_ns)
        except ProtocolError as error:
            self._note("refused", node, str(error))
            return
        takes = self.network.summing_ns(self._summed(node) - before) if self._counts_sums else 0
        if not takes:
            if effects:
                self._perform_all(node, effects)
            return
        self._adding[node] = until = self.now_ns + takes
        heapq.heappush(self._heap, (until, -1, node, _Summed(effects), NO_COST, (0, self.lives[node])))

    def _summed(self, node: NodeId) -> int:
        """How many elements it has added so far."""
        machine = self.machines[node]
        return machine.summed if isinstance(machine, AddingMachine) else 0

    # --- effects --------------------------------------------------------------------------------------------------

    def _perform_all(self, node: NodeId, effects: Sequence[Effect]) -> None:
        for effect in effects:
            _DONE[type(effect)](self, node, effect)
        self._costs.clear()

    def _train(self, node: NodeId, asked: Train) -> None:
        self._meters[node].train_began(self.now_ns)
        self._jobs[node] = job = Job.of(node, asked)
        training_ns = self.network.training_ns(node, self.examples(job) if self.examples else 1)
        takes = int(training_ns * self.script.factor(node, self.now_ns))
        for share, stretch in awaited_stretches(asked) if asked.stretches else ():
            self._push(self.now_ns + int(takes * share), node, stretch)
        self._push(self.now_ns + takes, node, Trained(asked.job, None))

    def _choose(self, node: NodeId, asked: ChooseRows) -> None:
        self._push(self.now_ns, node, chosen(self.task, node, asked))

    def _set_timer(self, node: NodeId, timer: SetTimer) -> None:
        self._timers[node, timer.key] = self._push(self.now_ns + timer.after_ns, node, Fired(timer.key))

    def _log(self, node: NodeId, line: Log) -> None:
        self.logs.setdefault(node, []).append((line.kind, line.facts))  # without hashes

    def _finish(self, node: NodeId, finish: Finish) -> None:
        self.results[node] = finish.result
        if finish.failure:
            self._ended(node, finish.failure)

    def _ignore(self, _node: NodeId, _effect: Witness | Part) -> None:
        pass

    def _go_out(self, node: NodeId, outgoing: Outgoing) -> None:
        self.record.outgoing(node, outgoing.round, outgoing.vector)

    def _aggregated(self, node: NodeId, done: Aggregated) -> None:
        self._meters[node].aggregated(done)

    def _send(self, node: NodeId, send: Send) -> None:
        to, message = send.to, send.message
        link = node, to
        if to in self.dead or link in self.connections.down:
            return
        cost = self._costs.get(id(message)) or self._priced(message)
        self._meters[node].sent(*cost)
        if cost[1]:
            self.payload[link] = self.payload.get(link, 0) + cost[1]
        if self.connections.cut_since(link) is None:
            self._carry(link, message, cost)
        else:
            self.connections.wait(link, message, cost)

    def _carry(self, link: Link, message: Message, cost: _Cost) -> None:
        (sender, to), (size, payload), now_ns = link, cost, self.now_ns
        fate = self._fate(link) if self._touched else UNHARMED
        begins_ns, sent_ns, arrival_ns = self.network.passage(sender, to, size, now_ns, fate.delay_ns)
        lives = self.lives[sender], self.connections.lives.get(link, 0)
        if payload:
            if sent_ns > now_ns:
                self._meters[sender].carries(now_ns, sent_ns)
            for held_ns in fate.held_ns:
                self._meters[to].carries(begins_ns, arrival_ns + held_ns)
        for held_ns in fate.held_ns:
            self._push(arrival_ns + held_ns, to, Received(sender, message), cost, lives)
        if fate.lost:
            self._count("lost")
        elif len(fate.held_ns) > 1:
            self._count("duplicated")

    def _fate(self, link: Link) -> Fate:
        self._sent[link] = number = self._sent.get(link, -1) + 1
        return self.script.fate(*link, number, self.now_ns)

    def _priced(self, message: Message) -> _Cost:
        """Return what `message` costs; a peer sends the same one to many neighbours."""
        found = self._costs[id(message)] = wire_bytes(message), message.payload_bytes
        return found

    def _computed(self, node: NodeId, asked: Trained) -> Trained | Stopping:
        """Return the answer to a training that is due."""
        update = self._updated(node)
        del self._updates[node]
        if update.over:
            return Stopping(over=True)
        self._meters[node].logged(update.logged)
        return Trained(asked.job, update.difference, update.examples, update.metrics, update.extra)

    def _updated(self, node: NodeId) -> Update:
        """Return what came of a node's job; compute every outstanding one with it."""
        if node not in self._updates:
            jobs = [self._jobs[one] for one in sorted(self._jobs)]
            self._jobs.clear()
            self._stretches.update((job.node, job.stretches) for job in jobs if job.stretches)
            self._updates.update(zip((job.node for job in jobs), done(self.task, jobs), strict=True))
        return self._updates[node]

    def _close_round(self, node: NodeId, done: RoundDone) -> None:
        self._progress.reached(node, done.round)
        row = self._meters[node].done(done, self.now_ns, 0)
        if lines := self.record.mixed(row, done.model):
            give_all(lines, self.write)

    def _worked(self, node: NodeId, work: LocalWork) -> None:
        self._progress.reached(node, work.round)
        for line in self.record.aside(self._meters[node].done(work, self.now_ns, 0)):
            self.write(line)

    def _report(self, node: NodeId, report: Report) -> None:
        self._count(report.name)
        if event := event_row(node, report):
            self.write(event)

    def _refused(self, node: NodeId, refused: Refused) -> None:
        value = {"from": refused.sender, "reason": refused.reason, "text": refused.text, "advice": refused.advice}
        self._note("refused", node, value, refused.round)

    def _ended(self, node: NodeId, failure: Failure) -> None:
        """Note why a peer ended before its time; its own report says all of a budget."""
        self.failures[node] = failure
        if failure.kind != "budget":
            value = {"text": failure.text, "advice": failure.advice}
            self.write(EventRow(self.record.reached[node], node, "failed", value))

    def _count(self, name: str, times: int = 1) -> None:
        if times:
            self.counts[name] = self.counts.get(name, 0) + times

    # --- links ----------------------------------------------------------------------------------------------------

    def _look(self, node: NodeId, other: NodeId) -> None:
        """Tell `node` how its link to `other` is, where that has changed."""
        link = node, other
        if link not in self.connections.down and self._is_lost(link):
            self._count("lost", self.connections.give_up(link))
            self._tell(node, PeerGone(other))
        if link in self.connections.down and self._is_whole(link):
            self.connections.open(link, self.lives[other])
            self._tell(node, PeerJoined(other, self.lives[other]))

    def _is_lost(self, link: Link) -> bool:
        other = link[1]
        another = self.connections.lives.get(link, 0) != self.lives[other]
        since = [at for at in (self.connections.cut_since(link), self._asleep.get(other)) if at is not None]
        silent = bool(since) and self.now_ns - min(since) >= self._detection_ns
        return other in self.dead or another or silent

    def _is_whole(self, link: Link) -> bool:
        gone = link[1] in self.dead or link[1] in self._asleep or link[1] in self.results
        return not gone and self.connections.cut_since(link) is None

    def _meet(self, node: NodeId, meet: Meet) -> None:
        other = meet.node
        if not 0 <= other < len(self.machines):
            return
        for link in ((node, other), (other, node)):
            if self.connections.add(*link):
                self._cut_or_heal(link)
                self._push(self.now_ns + self.network.latency_ns(link[1], link[0]), link[0], Look(link[1]))

    def _cut_or_heal(self, link: Link) -> None:
        apart, since = self.script.cut(*link, self.now_ns), self.connections.cut_since(link)
        if apart and since is None:
            self.connections.cut(link, self.now_ns)
            known_ns = self._detection_ns + self.network.latency_ns(link[1], link[0])
            self._push(self.now_ns + known_ns, link[0], Look(link[1]))
        elif not apart and since is not None:
            waited = self.connections.heal(link)
            self._push(self.now_ns + self.network.latency_ns(link[1], link[0]), link[0], Look(link[1]))
            for message, cost in waited:
                self._carry(link, message, cost)

    # --- what the script does -------------------------------------------------------------------------------------

    def _happen(self, happening: Happening) -> None:
        match happening:
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

    def _decided(self) -> bool:
        """Whether all participants whose rounds count have finished: a client gone for ever would call for ever."""
        return all(node in self.results for node in self.record.counted)

    def _crash(self, node: NodeId, back_ns: int | None) -> None:
        if self.on_crash:
            self.on_crash(node, self.machines[node])
        self.dead.add(node)
        self._asleep.pop(node, None)
        self._jobs.pop(node, None)
        self._updates.pop(node, None)
        self._meters[node].broke_off(self.now_ns)
        self._note("crashed", node)
        if back_ns is not None:
            self._push(back_ns, node, _Restart())
        else:
            for row in self.record.ended(node):
                self.write(row)
        for other in self.connections.known[node]:
            self._push(self.network.silent_ns(node, other, self.now_ns), other, Look(node))

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
        self._tell(node, Started())
        for other in self.connections.known[node]:
            self._push(self.now_ns + self.network.latency_ns(other, node), node, Look(other))
            self._push(self.network.silent_ns(node, other, self.now_ns), other, Look(node))

    def _sleep(self, node: NodeId, until_ns: int | None) -> None:
        if node in self._asleep:
            return
        self._asleep[node], self._held[node] = self.now_ns, []
        self._note("asleep", node)
        assert until_ns is not None, "who sleeps wakes"
        self._push(until_ns, node, _Wake())
        for other in self.connections.known[node]:
            self._push(self.now_ns + self._detection_ns + self.network.latency_ns(node, other), other, Look(node))

    def _wake(self, node: NodeId) -> None:
        del self._asleep[node]
        self._note("awake", node)
        for sequence, event, cost, lives in self._held.pop(node):
            _TAKEN[type(event)](self, node, event, sequence, cost, lives)
        for other in self.connections.known[node]:
            self._push(self.now_ns + self.network.latency_ns(node, other), other, Look(node))

    def _keep(self, node: NodeId, checkpoint: Checkpoint) -> None:
        if checkpoint.round % self.checkpoint_every and not checkpoint.durable:
            return
        self.checkpoints[node] = checkpoint
        if self._restarts:
            self._states[node] = memory_of(self.task, node)

    def _note(self, name: str, peer: NodeId, value: object = None, round: int = -1) -> None:
        self._count(name)
        self.write(EventRow(round=round, peer=peer, name=name, value=value))


_TAKEN: Mapping[type[_Coming], Callable[..., None]] = {
    **dict.fromkeys((Started, Stopping, PeerJoined, PeerGone, Rostered, Moved, RowsChosen), Simulator._told),
    Received: Simulator._message_comes,
    Fired: Simulator._timer_fires,
    Trained: Simulator._training_ends,
    Produced: Simulator._stretch_is_there,
    Look: Simulator._look_at,
    _Summed: Simulator._is_summed,
}
"""What becomes of an event that comes up."""

_DONE: Mapping[type[Effect], Callable[..., None]] = {
    Send: Simulator._send,
    Train: Simulator._train,
    ChooseRows: Simulator._choose,
    SetTimer: Simulator._set_timer,
    Checkpoint: Simulator._keep,
    Log: Simulator._log,
    Meet: Simulator._meet,
    Finish: Simulator._finish,
    Witness: Simulator._ignore,
    Part: Simulator._ignore,
    Report: Simulator._report,
    Refused: Simulator._refused,
    Outgoing: Simulator._go_out,
    Aggregated: Simulator._aggregated,
    RoundDone: Simulator._close_round,
    LocalWork: Simulator._worked,
}
"""What is done for each effect."""
