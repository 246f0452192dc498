"""The effects of simulated machines: messages and trainings under way, timers, rows of the record.

A Train effect is scheduled to finish at its virtual time but not computed; at the first such event, every outstanding
job is computed in one call (their inputs are fixed already).  The history is the same as if each had been computed
alone, as a task's update depends on its own job only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar

from fedgossip.core.machine import (
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
from fedgossip.core.task import Job, LocalTask, Update, choose_rows, memory_of, perform_jobs
from fedgossip.core.wire import wire_bytes
from fedgossip.faults import UNHARMED, Fate, FaultScript, RunProgress
from fedgossip.simulation.connections import Link
from fedgossip.simulation.event_queue import AddedUp, Cost, Lives
from fedgossip.simulation.network import SimulatedNetwork
from fedgossip.simulation.stretches import awaited_stretches, stretch_of
from fedgossip.simulation.virtual_time import Table, VirtualTime

# Training in virtual time: nothing is computed before its result is due, and then all that is outstanding at once.


class LazyTraining:
    """The jobs of peers, and the results computed and not yet delivered."""

    def __init__(self) -> None:
        self._jobs: dict[NodeId, Job] = {}
        self._updates: dict[NodeId, Update] = {}
        self._stretches: dict[NodeId, tuple[int, ...]] = {}  # of the jobs in _updates

    def submit(self, job: Job) -> None:
        """Take a node's job."""
        self._jobs[job.node] = job

    def forget(self, node: NodeId) -> None:
        """Drop the jobs of a node that has died."""
        self._jobs.pop(node, None)
        self._updates.pop(node, None)

    def update(self, task: LocalTask, node: NodeId) -> Update:
        """Return the result of a node's job, once; compute every outstanding one with it."""
        self._compute(task, node)
        return self._updates.pop(node)

    def stretch(self, task: LocalTask, node: NodeId, asked: Produced) -> Produced | None:
        """Return a stretch of a node's gradient; None once its training is complete."""
        self._compute(task, node)
        update = self._updates[node]
        return None if update.over else stretch_of(update, asked, self._stretches[node])

    def _compute(self, task: LocalTask, node: NodeId) -> None:
        if node in self._updates:
            return
        jobs = [self._jobs[one] for one in sorted(self._jobs)]
        self._jobs.clear()
        self._stretches.update((job.node, job.stretches) for job in jobs if job.stretches)
        self._updates.update(zip((job.node for job in jobs), perform_jobs(task, jobs), strict=True))


class PerformedEffects(VirtualTime):
    """The effects of machines, on their way to machines or in the record."""

    def __init__(
        self,
        machines: Sequence[Machine],
        links: Sequence[Sequence[NodeId]],
        task: LocalTask,
        network: SimulatedNetwork,
        record: Network,
        write: Callable[[Row], None],
        script: FaultScript,
        starts: Mapping[NodeId, float],
        checkpoint_every: int,
        examples: Callable[[Job], int] | None,
    ) -> None:
        super().__init__(machines, links, network, record, write, script, starts)
        self.task, self.examples = task, examples
        self.checkpoint_every = checkpoint_every
        self.failures: dict[NodeId, Failure] = {}
        """The reasons why peers ended before their time."""
        self.checkpoints: dict[NodeId, Checkpoint] = {}
        self.logs: dict[NodeId, list[tuple[str, Mapping[str, object]]]] = {}
        """The lines that each participant has written into its own log."""
        self.payload: dict[Link, int] = {}
        """Bytes of vectors sent on each link."""
        self._meters = [Meter(node) for node in range(len(machines))]
        self._timers: dict[tuple[NodeId, Hashable], int] = {}
        self._training = LazyTraining()
        self._states: dict[NodeId, Any] = {}  # the task's memory of a peer, with its checkpoint
        self._sent: dict[Link, int] = {}
        self._touched, self._restarts = script.touches_messages, bool(script.restarts)
        self._progress = RunProgress(len(machines))

    # --- results of effects ---------------------------------------------------------------------------------------

    def _give(self, node: NodeId, event: Event, *_: object) -> None:
        self._handle(node, event)

    def _message_comes(self, node: NodeId, event: Received, _sequence: int, cost: Cost, lives: Lives) -> None:
        known = self.connections.lives
        if known and lives[0] < known.get((node, event.sender), 0):
            return  # the message was held back since before the sender died, and its connection is gone
        self._meters[node].received(*cost)
        self._handle(node, event)

    def _timer_fires(self, node: NodeId, event: Fired, sequence: int, *_: object) -> None:
        timer = node, event.key
        if self._timers.get(timer) == sequence:
            del self._timers[timer]
            if node not in self.results:
                self._handle(node, event)

    def _training_ends(self, node: NodeId, event: Trained, *_: object) -> None:
        update, meter = self._training.update(self.task, node), self._meters[node]
        if update.over:
            self._handle(node, Stopping(over=True))
            return
        meter.train_ended(self.now_ns, event.job, update.metrics, update.logged)
        self._handle(node, Trained(event.job, update.difference, update.examples, update.metrics, update.extra))

    def _stretch_is_there(self, node: NodeId, event: Produced, *_: object) -> None:
        if stretch := self._training.stretch(self.task, node, event):
            self._handle(node, stretch)

    def _is_summed(self, node: NodeId, event: AddedUp, *_: object) -> None:
        self._perform_all(node, event.effects)

    # --- messages -------------------------------------------------------------------------------------------------

    def _perform_all(self, node: NodeId, effects: Sequence[Effect]) -> None:
        performed, sends = self._performed, list[Send]()
        for effect in effects:
            if type(effect) is Send:  # mostly to many, of one message
                sends.append(effect)
                continue
            if sends:
                self._send(node, sends)
                sends = []
            performed[type(effect)](self, node, effect)
        if sends:
            self._send(node, sends)

    def _send(self, node: NodeId, sends: Sequence[Send]) -> None:
        """Send messages one after the other; one to several neighbours is one object, and priced once."""
        dead, down, cuts = self.dead, self.connections.down, self.connections.cuts
        paid, received, cost = self.payload, Received(node, sends[0].message), self._priced(sends[0].message)
        times = 0
        for send in sends:
            to, message = send.to, send.message
            link = node, to
            if to in dead or (down and link in down):
                continue
            if message is not received.message:
                self._meters[node].sent(*cost, times)
                received, cost, times = Received(node, message), self._priced(message), 0
            times += 1
            if cost[1]:
                paid[link] = paid.get(link, 0) + cost[1]
            if cuts and link in cuts:
                self.connections.wait(link, received, cost)
            else:
                self._carry(link, received, cost)
        self._meters[node].sent(*cost, times)

    def _carry(self, link: Link, received: Received, cost: Cost) -> None:
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
        if fate is not UNHARMED:
            if fate.lost:
                self._count("lost")
            elif len(fate.held_ns) > 1:
                self._count("duplicated")

    def _fate(self, link: Link) -> Fate:
        self._sent[link] = number = self._sent.get(link, -1) + 1
        return self.script.fate(*link, number, self.now_ns)

    def _priced(self, message: Message) -> Cost:
        return wire_bytes(message), message.payload_bytes

    # --- training, timers, kept data ------------------------------------------------------------------------------

    def _train(self, node: NodeId, asked: Train) -> None:
        self._meters[node].train_began(self.now_ns)
        job = Job.of(node, asked)
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
            self._states[node] = memory_of(self.task, node)

    def _ignore(self, _node: NodeId, _effect: Witness | Part) -> None:
        pass

    # --- the record -----------------------------------------------------------------------------------------------

    def _go_out(self, node: NodeId, outgoing: Outgoing) -> None:
        self.record.outgoing(node, outgoing.round, outgoing.vector)

    def _aggregated(self, node: NodeId, done: Aggregated) -> None:
        self._meters[node].aggregated(done)

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

    def _finish(self, node: NodeId, finish: Finish) -> None:
        self.results[node] = finish.result
        if finish.failure:
            self._ended(node, finish.failure)

    def _ended(self, node: NodeId, failure: Failure) -> None:
        """Log why a peer ended before its time; for a spent budget its own report suffices."""
        self.failures[node] = failure
        if failure.kind != "budget":
            value = {"text": failure.text, "advice": failure.advice}
            self.write(EventRow(self.record.reached[node], node, "failed", value))

    _taken: ClassVar[Table] = {
        **dict.fromkeys((Started, Stopping, PeerJoined, PeerGone, Rostered, Moved, RowsChosen, ModelMeasured), _give),
        Received: _message_comes,
        Fired: _timer_fires,
        Trained: _training_ends,
        Produced: _stretch_is_there,
        AddedUp: _is_summed,
    }

    _performed: ClassVar[Table] = {
        Train: _train,
        ChooseRows: _choose,
        MeasureModel: _measure,
        SetTimer: _set_timer,
        Checkpoint: _keep,
        Log: _log,
        Finish: _finish,
        Witness: _ignore,
        Part: _ignore,
        Report: _report,
        Refused: _refused,
        Outgoing: _go_out,
        Aggregated: _aggregated,
        RoundDone: _close_round,
        LocalWork: _worked,
    }
    """The method for each effect."""
