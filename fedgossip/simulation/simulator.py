"""Runs machines in virtual time: a simulated network between them, and the faults of a script.

Events of an instant are delivered in the order of their scheduling, after the fault script's events of that time.
Messages to a dead peer are lost, also for its successor.  Events of a sleeping peer, or of one that sums vectors, wait
in order.

At the first due Train, every outstanding job is computed in one call; the results equal those of separate calls.  A
restarted peer is a new machine of a higher incarnation, made from the old one's newest checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

from fedgossip.base.errors import ProtocolError
from fedgossip.base.kernels import uncollected
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import (
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
    MeasureModel,
    Meet,
    ModelMeasured,
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
from fedgossip.core.messages import Message
from fedgossip.core.meter import Meter
from fedgossip.core.metrics import Network
from fedgossip.core.records import EventRow, Row, event_row, give_all
from fedgossip.core.task import Job, LocalTask, begin_training, choose_rows, give_memory_with, memory_with
from fedgossip.core.timeline import TimelineLog
from fedgossip.core.wire import wire_bytes
from fedgossip.faults import (
    MOST_IN_VAIN,
    NOTHING,
    UNHARMED,
    Crash,
    Fate,
    FaultScript,
    Happening,
    RunProgress,
    Strike,
    Turn,
)
from fedgossip.simulation.network import (
    NO_COST,
    NS,
    OF_PEERS,
    VACANT,
    AddedUp,
    Begin,
    Cost,
    Instants,
    LazyTraining,
    Link,
    Lives,
    Look,
    Queued,
    QueuedEvent,
    Restart,
    SimulatedLinks,
    SimulatedNetwork,
    Wake,
    awaited_stretches,
)

Table = Mapping[type[object], Callable[..., None]]
"""The method for each type of event or effect."""

Rebirth = Callable[[NodeId, int, Checkpoint | None], Machine]
"""(node, incarnation, its newest checkpoint): the machine that replaces the dead one."""


class Simulator:
    """One run.  `links[i]`: the known peers of i; `write` receives each row when it is logged.

    `rebirth`: for restarts by the script; every `checkpoint_every`-th round's checkpoint is kept.  `starts`: start
    times of late peers, in seconds.  `on_crash(node, machine)` is called at a death.  `examples`: number of examples of
    a job, if it determines the duration.  A `VACANT` machine is replaced by that of `seat(node)` at the first message
    to it.  `timeline` records the peers' activities; once it is full, the run stops.
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
        seat: Callable[[NodeId], Machine] | None = None,
        timeline: TimelineLog | None = None,
    ) -> None:
        assert rebirth or not script.restarts, "the script restarts peers: give rebirth"
        self.machines, self.network, self.task = list(machines), network, task
        self.record, self.write, self.script = record, write, script
        self.starts = dict(starts or {})
        self.rebirth, self.on_crash, self.examples, self.seat = rebirth, on_crash, examples, seat
        self.timeline = timeline or TimelineLog(0, (), most=0)
        self.checkpoint_every = checkpoint_every
        self.connections = SimulatedLinks(links)
        self.now_ns = 0
        self.results: dict[NodeId, Vector] = {}
        self.failures: dict[NodeId, Failure] = {}
        """The reasons of peers that ended early."""
        self.checkpoints: dict[NodeId, Checkpoint] = {}
        self.logs: dict[NodeId, list[tuple[str, Mapping[str, object]]]] = {}
        """The lines of each participant's signed log."""
        self.payload: dict[Link, int] = {}
        """Bytes of vectors sent on each link."""
        self.counts: dict[str, int] = {}
        self.dead: set[NodeId] = set(self.starts)
        self.gone: set[NodeId] = set()  # dead for ever
        """The absent peers: not started, dead, or removed."""
        self.lives = [0] * len(machines)
        self._detection_ns = int(network.settings.detection * NS)
        self._instants = Instants()
        self._asleep: dict[NodeId, int] = {}  # since when
        self._held: dict[NodeId, list[tuple[int, QueuedEvent, Cost, Lives]]] = {}
        self._adding: dict[NodeId, int] = {}  # until when
        self._counts_sums = network.settings.summing > 0
        self._happened = 0  # number of applied faults of the script
        nobody = Meter(-1)
        self._meters = [nobody if one is VACANT else Meter(node) for node, one in enumerate(machines)]
        self._timers: dict[tuple[NodeId, Hashable], int] = {}
        self._training = LazyTraining()
        self._states: dict[NodeId, Any] = {}  # the task's memory of a peer, with its checkpoint
        self._begun: Any = {}
        self._sent: dict[Link, int] = {}
        self._touched, self._restarts = script.touches_messages, bool(script.restarts)
        self._progress = RunProgress(len(machines))

    def run(self, limit_seconds: float = math.inf, between: Callable[[], None] = lambda: None) -> dict[NodeId, Vector]:
        """Run until no event is left, or virtual time passes the limit; return each finished peer's vector.

        `between` is called between two instants: the attributes of this object and the record, and the task's memory,
        are then the whole state, and a restored simulator resumes from it.
        """
        if not self._instants.number:
            self._start()
        happenings = islice(self.script.happenings(), self._happened, None)
        upcoming = next(happenings, None)
        times, limit_ns = self._instants.times, limit_seconds * NS
        while times and times[0] <= limit_ns:
            if self.record.over or self.timeline.enough:
                break
            between()
            if upcoming is not None and times[0] >= upcoming.at_ns:
                self.now_ns = upcoming.at_ns
                self._happened += 1
                self._apply_fault(upcoming)
                upcoming = next(happenings, None)
                continue
            self.now_ns = times[0]
            self._deliver(self._instants.pop())
        if (ended := self.record.ended_with) is not None:
            self.results = dict(ended)  # without the later changes of some of them
        for row in self.record.flush():
            self.write(row)
        return self.results

    @uncollected()
    def _start(self) -> None:
        for node, known in enumerate(self.connections.known):
            if node in self.starts:
                self._push(int(self.starts[node] * NS), node, Begin())
                self.connections.forget(node)
                continue
            if self.machines[node] is VACANT:
                continue
            self._push(0, node, Started())
            for other in known:
                if other in self.starts:
                    self.connections.give_up((node, other))
                else:
                    self._push(0, node, PeerJoined(other))

    def occupy(self, nodes: Iterable[NodeId]) -> None:
        """Create the machines for vacant seats of these nodes."""
        for node in nodes:
            if self.seat is not None and node < len(self.machines) and self.machines[node] is VACANT:
                self.machines[node], self._meters[node] = self.seat(node), Meter(node)

    def _fill(self, node: NodeId) -> None:
        """Create the machine and links of a vacant seat."""
        self.occupy([node])
        self._handle(node, Started())
        for other in self.connections.known[node]:
            self._handle(node, PeerJoined(other))

    # --- events ---------------------------------------------------------------------------------------------------

    def _push(self, at_ns: int, node: NodeId, event: QueuedEvent) -> int:
        return self._instants.add(at_ns, node, event, NO_COST, (0, self.lives[node]))

    def _deliver(self, arrivals: Sequence[Queued]) -> None:
        by_event = self._by_event
        for queued in arrivals:
            sequence, node, event, cost, lives = queued
            if type(event) in OF_PEERS:
                self._change_peer(node, event, lives)
            elif lives[1] != self.lives[node] or node in self.dead:
                continue  # messages for the dead peer are not for its successor
            elif self._adding and self._adding.get(node, 0) > self.now_ns:
                # Keeps its number, so that the first message is delivered first.
                self._instants.insert(self._adding[node], queued)
            elif node in self._asleep:
                self._held[node].append((sequence, event, cost, lives))
            else:
                by_event[type(event)](self, node, event, sequence, cost, lives)

    def _handle(self, node: NodeId, event: Event) -> None:
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
        self._instants.insert(until, (-1, node, AddedUp(effects), NO_COST, (0, self.lives[node])))

    def _summed(self, node: NodeId) -> int:
        machine = self.machines[node]
        return machine.summed if isinstance(machine, AddingMachine) else 0

    # --- events of the record -----------------------------------------------------------------------------------------

    def _note(self, name: str, peer: NodeId, value: object = None, round: int = -1) -> None:
        self._count(name)
        self.write(EventRow(round=round, peer=peer, name=name, value=value))

    def _befell(self, node: NodeId, name: str) -> None:
        self._note(name, node, round=self._progress.round_of(node))
        self.timeline.befell(node, name, self.now_ns)

    def _count(self, name: str, times: int = 1) -> None:
        if times:
            self.counts[name] = self.counts.get(name, 0) + times

    # --- results of effects ---------------------------------------------------------------------------------------

    def _pass_on(self, node: NodeId, event: Event, *_: object) -> None:
        self._handle(node, event)

    def _receive(self, node: NodeId, event: Received, _sequence: int, cost: Cost, lives: Lives) -> None:
        known = self.connections.lives
        if known and lives[0] < known.get((node, event.sender), 0):
            return  # the message was held back since before the sender died, and its connection is gone
        self._meters[node].record_received(*cost)
        self._handle(node, event)

    def _fire(self, node: NodeId, event: Fired, sequence: int, *_: object) -> None:
        timer = node, event.key
        if self._timers.get(timer) == sequence:
            del self._timers[timer]
            if node not in self.results:
                self._handle(node, event)

    def _end_training(self, node: NodeId, event: Trained, *_: object) -> None:
        update, meter = self._training.update(self.task, node), self._meters[node]
        if update.over:
            self._handle(node, Stopping(over=True))
            return
        meter.train_ended(self.now_ns, event.job, update.metrics, update.logged)
        self.timeline.train_ended(node, self.now_ns)
        self._handle(node, Trained(event.job, update.difference, update.examples, update.metrics, update.extra))

    def _deliver_stretch(self, node: NodeId, event: Produced, *_: object) -> None:
        if stretch := self._training.stretch(self.task, node, event):
            self._handle(node, stretch)

    def _end_summing(self, node: NodeId, event: AddedUp, *_: object) -> None:
        self._perform_all(node, event.effects)

    # --- messages -------------------------------------------------------------------------------------------------

    def _perform_all(self, node: NodeId, effects: Sequence[Effect]) -> None:
        performed, sends = self._by_effect, list[Send]()
        for effect in effects:
            if type(effect) is Send:  # mostly to many, of one message
                sends.append(effect)
                continue
            if sends:
                if fells := self._send(node, sends):
                    break
                sends = []
            performed[type(effect)](self, node, effect)
        else:
            fells = self._send(node, sends) if sends else None
        if fells:
            self._crash(node, None if fells.after is None else self.now_ns + int(fells.after * NS))

    def _send(self, node: NodeId, sends: Sequence[Send]) -> Crash | None:
        """Send messages in order, and return a crash behind them.

        One message to several neighbours is one object, whose size is computed once.
        """
        dead, down, cuts = self.dead, self.connections.down, self.connections.cuts
        paid, received, cost = self.payload, Received(node, sends[0].message), self._priced(sends[0].message)
        times, fells = 0, None
        for send in sends:
            to, message = send.to, send.message
            link = node, to
            if to in dead or (down and link in down):
                continue
            if self.seat is not None and self.machines[to] is VACANT:
                self._fill(to)
            if message is not received.message:
                self._meters[node].record_sent(*cost, times)
                received, cost, times = Received(node, message), self._priced(message), 0
            times += 1
            if cost[1]:
                paid[link] = paid.get(link, 0) + cost[1]
            if cuts and link in cuts:
                self.connections.wait(link, received, cost)
            else:
                fells = self._carry(link, received, cost).fells or fells
        self._meters[node].record_sent(*cost, times)
        return fells

    def _carry(self, link: Link, received: Received, cost: Cost) -> Fate:
        (sender, to), (size, payload), now_ns = link, cost, self.now_ns
        fate = self._fate(link) if self._touched else UNHARMED
        begins_ns, sent_ns, first_ns = self.network.times(sender, to, size, now_ns, fate.delay_ns)
        known = self.connections.lives
        lives = self.lives[sender], known.get(link, 0) if known else 0
        if payload and sent_ns > now_ns:
            self._meters[sender].carries(now_ns, sent_ns)
        for held_ns in fate.held_ns:
            arrival_ns = first_ns + held_ns
            if payload:
                self._meters[to].carries(begins_ns, arrival_ns)
            self._instants.add(arrival_ns, to, received, cost, lives)
        if payload and not self.timeline.closed:
            arrivals = [first_ns + held_ns for held_ns in fate.held_ns]
            self.timeline.passes(now_ns, link, (begins_ns, sent_ns), arrivals, payload)
        if fate is not UNHARMED:
            if fate.lost:
                self._count("lost")
            elif len(fate.held_ns) > 1:
                self._count("duplicated")
        return fate

    def _fate(self, link: Link) -> Fate:
        self._sent[link] = number = self._sent.get(link, -1) + 1
        return self.script.fate(*link, number, self.now_ns)

    def _priced(self, message: Message) -> Cost:
        return wire_bytes(message), message.payload_bytes

    # --- training, timers, kept data ------------------------------------------------------------------------------

    def _train(self, node: NodeId, asked: Train) -> None:
        self._meters[node].train_began(self.now_ns)
        self.timeline.train_began(node, self.now_ns)
        job = Job.from_train(node, asked)
        if self._restarts:
            begin_training(self.task, job, self._begun)
        self._training.submit(job)
        training_ns = self.network.training_ns(node, self.examples(job) if self.examples else 1)
        takes = int(training_ns * self.script.factor(node, self.now_ns))
        for share, stretch in awaited_stretches(asked) if asked.stretches else ():
            self._push(self.now_ns + int(takes * share), node, stretch)
        self._push(self.now_ns + takes, node, Trained(asked.job, None))

    def _choose(self, node: NodeId, asked: ChooseRows) -> None:
        self._push(self.now_ns, node, choose_rows(self.task, node, asked))

    def _measure(self, node: NodeId, asked: MeasureModel) -> None:
        self._push(self.now_ns, node, ModelMeasured(asked.round, self.record.score_after(asked.round, asked.model)))

    def _set_timer(self, node: NodeId, timer: SetTimer) -> None:
        self._timers[node, timer.key] = self._push(self.now_ns + timer.after_ns, node, Fired(timer.key))

    def _log(self, node: NodeId, line: Log) -> None:
        self.logs.setdefault(node, []).append((line.kind, line.facts))  # without hashes

    def _keep(self, node: NodeId, checkpoint: Checkpoint) -> None:
        if checkpoint.round % self.checkpoint_every and not checkpoint.durable:
            return
        self.checkpoints[node] = checkpoint
        if self._restarts:
            self._states[node] = memory_with(self.task, checkpoint, node, self._begun)

    def _ignore(self, _node: NodeId, _effect: Witness | Part) -> None:
        pass

    # --- the record -----------------------------------------------------------------------------------------------

    def _record_outgoing(self, node: NodeId, outgoing: Outgoing) -> None:
        self.record.outgoing(node, outgoing.round, outgoing.vector)

    def _record_aggregated(self, node: NodeId, done: Aggregated) -> None:
        self._meters[node].aggregated(done)

    def _close_round(self, node: NodeId, done: RoundDone) -> None:
        self._progress.reached(node, done.round)
        self.timeline.round_ended(node, done.round, self.now_ns)
        row = self._meters[node].done(done, self.now_ns, 0)
        if lines := self.record.mixed(row, done.model):
            give_all(lines, self.write)

    def _record_work(self, node: NodeId, work: LocalWork) -> None:
        self._progress.reached(node, work.round)
        self.timeline.round_ended(node, work.round, self.now_ns)
        for line in self.record.aside(self._meters[node].done(work, self.now_ns, 0)):
            self.write(line)

    def _report(self, node: NodeId, report: Report) -> None:
        self._count(report.name)
        if event := event_row(node, report):
            self.write(event)

    def _record_refused(self, node: NodeId, refused: Refused) -> None:
        value = {"from": refused.sender, "reason": refused.reason, "text": refused.text, "advice": refused.advice}
        self._note("refused", node, value, refused.round)

    def _finish(self, node: NodeId, finish: Finish) -> None:
        self.results[node] = finish.result
        if finish.failure:
            self._record_failure(node, finish.failure)
        if len(self.results) + len(self.gone) >= len(self.record.counted) and self._decided():
            self._close_links()

    def _record_failure(self, node: NodeId, failure: Failure) -> None:
        """Log the reason of a peer's early end; a spent budget reports itself."""
        self.failures[node] = failure
        if failure.kind != "budget":
            value = {"text": failure.text, "advice": failure.advice}
            self.write(EventRow(self.record.reached[node], node, "failed", value))

    # --- links ----------------------------------------------------------------------------------------------------

    def _look(self, node: NodeId, event: Look, *_: object) -> None:
        link = node, (other := event.other)
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
        over = other in self.results and link[0] not in self.results and self._decided()
        return other in self.dead or another or silent or over

    def _close_links(self) -> None:
        """Close the links of finished participants."""
        for node in range(len(self.machines)):
            for other in self.connections.known[node] if node not in self.results and node not in self.dead else ():
                if other in self.results:
                    self._push(self.network.silent_ns(other, node, self.now_ns), node, Look(other))

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
            case Turn(name=("link_down" | "link_up") as way) if self._decided() and not (
                way == "link_up" and self.connections.cuts
            ):
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

    def _decided(self) -> bool:
        """Whether all counted participants have finished or are permanently dead."""
        return all(node in self.results or node in self.gone for node in self.record.counted)

    def _crash(self, node: NodeId, back_ns: int | None) -> None:
        if self.on_crash:
            self.on_crash(node, self.machines[node])
        self.dead.add(node)
        self._asleep.pop(node, None)
        self._training.forget(node)
        self._meters[node].record_death(self.now_ns)
        self._befell(node, "crashed")
        if back_ns is not None:
            self._push(back_ns, node, Restart())
        else:
            self.gone.add(node)
            for row in self.record.ended(node):
                self.write(row)
            if self._decided():
                self._close_links()
        for other in self.connections.known[node]:
            self._push(self.network.silent_ns(node, other, self.now_ns), other, Look(node))

    def _change_peer(self, node: NodeId, event: QueuedEvent, lives: Lives) -> None:
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
        give_memory_with(self.task, node, self._states.get(node, {}), self._begun)
        self._befell(node, "restarted")
        self._begin(node)

    def _begin(self, node: NodeId) -> None:
        self.dead.discard(node)
        self._meters[node].record_restart(self.now_ns)
        self._handle(node, Started())
        for other in self.connections.known[node]:
            self._push(self.now_ns + self.network.latency_ns(other, node), node, Look(other))
            self._push(self.network.silent_ns(node, other, self.now_ns), other, Look(node))

    def _sleep(self, node: NodeId, until_ns: int | None) -> None:
        if node in self._asleep:
            return
        self._asleep[node], self._held[node] = self.now_ns, []
        self._befell(node, "asleep")
        assert until_ns is not None, "who sleeps wakes"
        self._push(until_ns, node, Wake())
        for other in self.connections.known[node]:
            self._push(self.now_ns + self._detection_ns + self.network.latency_ns(node, other), other, Look(node))

    def _wake(self, node: NodeId) -> None:
        del self._asleep[node]
        self._befell(node, "awake")
        for sequence, event, cost, lives in self._held.pop(node):
            self._by_event[type(event)](self, node, event, sequence, cost, lives)
        for other in self.connections.known[node]:
            self._push(self.now_ns + self.network.latency_ns(node, other), other, Look(node))

    _by_event: ClassVar[Table] = {
        **dict.fromkeys(
            (Started, Stopping, PeerJoined, PeerGone, Rostered, Moved, RowsChosen, ModelMeasured), _pass_on
        ),
        Look: _look,
        Received: _receive,
        Fired: _fire,
        Trained: _end_training,
        Produced: _deliver_stretch,
        AddedUp: _end_summing,
    }
    """The method for each event."""

    _by_effect: ClassVar[Table] = {
        Train: _train,
        ChooseRows: _choose,
        MeasureModel: _measure,
        SetTimer: _set_timer,
        Checkpoint: _keep,
        Log: _log,
        Finish: _finish,
        Witness: _ignore,
        Part: _ignore,
        Meet: _meet,
        Report: _report,
        Refused: _record_refused,
        Outgoing: _record_outgoing,
        Aggregated: _record_aggregated,
        RoundDone: _close_round,
        LocalWork: _record_work,
    }
    """The method for each effect."""
