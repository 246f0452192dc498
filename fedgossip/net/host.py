"""Runs one machine over real sockets.  This thread owns every socket and the machine; one worker thread trains."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace

from fedgossip.base.errors import FedgossipError, PeerError
from fedgossip.base.untrusted_text import line
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import (
    Aggregated,
    Checkpoint,
    ChooseRows,
    Effect,
    Event,
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
    Reporting,
    RoundDone,
    RowsChosen,
    Send,
    SetTimer,
    Started,
    Stopping,
    Train,
    Trained,
    Witness,
    guarded_handle,
)
from fedgossip.core.messages import Hello, Invite, Join
from fedgossip.core.meter import Meter
from fedgossip.core.records import EventRow, PeerRow, event_row
from fedgossip.core.task import HeldTask, LocalTask, give_memory, memory_of
from fedgossip.net.endpoints import Endpoint, is_web
from fedgossip.net.host_ports import Ports
from fedgossip.net.training_thread import Evaluate, TrainingThread, WorkerPorts
from fedgossip.net.transport import (
    NOBODY,
    Arrived,
    LinkDown,
    LinkEvent,
    LinkUp,
    ModelBegun,
    Refusals,
    Rejected,
    Relocated,
    Routed,
    Transport,
    is_goodbye,
    refused,
)

GRACE_NS = 1_000_000_000
"""Nanoseconds for a broken link to be restored before its peer is reported as gone."""

GREETING_NS = 10_000_000_000
"""Nanoseconds for a peer behind a restored link to greet or send: a new process reads its data before it greets."""

FLUSH_SECONDS, HURRY_SECONDS = 5.0, 1.0
"""Maximum seconds at the end until messages are sent; the shorter one if a person or the launcher stops the run."""

TURN_AWAY_SECONDS = 15.0
"""The same if no other participant runs this experiment: refused partners must receive the local Hello, or
would wait.
"""

EVALUATE_SECONDS = 60.0
"""Maximum seconds for the last evaluation, when all else is done."""

TEXT_LETTERS = 300
"""Maximum length of a refusal's text, which may contain a stranger's words."""

REPLACED_MAX = 1000
"""Maximum number of replaced timers in the queue before they are removed."""

IDLE_MS = 500
"""Maximum wait in milliseconds: signals and the end of the parent are noticed within it."""


class Host:
    """One peer.  `links` are bound and connected; `run` returns the final vector."""

    def __init__(
        self, node: NodeId, machine: Machine, links: Transport, task: LocalTask, hello: Hello, ports: Ports
    ) -> None:
        self.node, self.machine, self.links, self.task = node, machine, links, task
        self.hello, self.ports = hello, ports
        self.result: Vector | None = None
        self.counts: dict[str, int] = {}
        self._refusals = Refusals(self._write_refusal)
        self.meter = Meter(node)
        self._zero = time.monotonic_ns()
        self._handled_ns = 0
        self._timers: dict[Hashable, int] = {}
        self._due: list[tuple[int, int, Hashable]] = []
        self._sequence = 0
        self._greeted: set[NodeId] = set()
        self._lives: dict[NodeId, int] = {}
        self._processes: dict[NodeId, int] = {}  # partners greeted since their links came up
        self._joined: set[NodeId] = set()
        self._met = False  # whether any partner ever joined
        self._gone: set[NodeId] = set()
        self._refused: dict[NodeId, Rejected] = {}
        self._up: set[NodeId] = set()
        self._processor = hello.processor
        self._fatal: FedgossipError | None = None
        self._turned_away = False  # whether no other participant runs this experiment
        self._round = 0
        self._counted = 0, 0  # bytes sent in completed rounds: in total, and of vectors
        self._began_ns: int | None = None  # start of the first round: a coordinator's invitation, or a training
        self._received: Counter[NodeId] = Counter()  # with a journal: messages of each partner
        self._witnessed: list[Witness] = []  # with a journal: frames of the open session
        own = ports.mixed, ports.checkpoint, links.wake, ports.first_work, ports.begin, ports.measure, ports.shared
        worker = WorkerPorts(self.clock, lambda: self._round, *own)
        self._training = TrainingThread(node, task, self.meter, worker)

    def clock(self) -> int:
        """Nanoseconds since this host was made."""
        return time.monotonic_ns() - self._zero

    def run(self) -> Vector:
        """Run the machine to its end.  Raises the error that ended it, after the goodbye."""
        result = self.run_while(lambda: True)
        assert result is not None
        return result

    def run_while(self, more: Callable[[], bool]) -> Vector | None:
        """Run the machine to its end, or while `more` returns True whenever it is idle.

        Returns None if the run is not over: nothing is sent, and the journal continues.  Raises the error that ended
        it.
        """
        self._training.start()
        waits = False
        try:
            if self._continue() == 0:
                self.dispatch(Started())
            while self.result is None and not waits:
                quiet = self._step()
                if quiet and self.ports.journal:
                    self.ports.journal.compact(self)
                waits = (quiet and not more()) or self._is_paused()
            if self.result is not None and self.ports.journal:
                self.ports.journal.finish()
                self.links.poll(0)
        finally:
            stopped = self.ports.stop()  # read it before a joined loop receives the end, and leaves too
            self._training.end()
            if isinstance(self.task, HeldTask):
                self.task.dismiss()
            self.links.close(HURRY_SECONDS if waits else self._drain_seconds(stopped=stopped))
        self._training.join(EVALUATE_SECONDS if not self.ports.stop() else 1.0)
        self._take_answers()
        self._refusals.close()
        if self._fatal:
            raise self._fatal
        return self.result

    def counted(self) -> dict[str, int]:
        """Return the number of each event in this incarnation."""
        if self.links.dropped:  # messages dropped as a live link was too slow
            self.counts["dropped"] = self.links.dropped
        return dict(self.counts)

    def _drain_seconds(self, *, stopped: bool) -> float:
        if stopped or self.result is None:
            return HURRY_SECONDS
        return TURN_AWAY_SECONDS if self._turned_away else FLUSH_SECONDS

    def _continue(self) -> int:
        """Replay the journal's events and perform their missing effects; return 0 without any, and without an image."""
        journal = self.ports.journal
        if journal is None:
            return 0
        count = int(journal.restore(self))
        for seen in self._witnessed:
            self.ports.witness(seen)
        owed: dict[Hashable, Effect] = {}
        for now_ns, event in journal:
            count, self._handled_ns = count + 1, now_ns
            self._note_again(event, owed)
            try:
                effects = guarded_handle(self.machine, event, now_ns)
            except PeerError:
                continue
            for effect in effects:
                if (key := _job_of(effect)) is not None:
                    owed[key] = effect
                    self._note_training(effect, now_ns)
                else:
                    self._perform_again(effect, now_ns)
        # this machine's clock also counts the time without a process; never backwards
        since_ns = max(self._handled_ns, time.time_ns() - journal.began_ns)
        self._zero = time.monotonic_ns() - since_ns
        if journal.memory is not None:
            give_memory(self.task, self.node, journal.memory)
        journal.resume(self._received)
        for effect in owed.values():
            self._perform(effect, self._handled_ns, 0)
        return count

    def _note_again(self, event: Event, owed: dict[Hashable, Effect]) -> None:
        match event:
            case Received(sender):
                self._received[sender] += 1
            case PeerJoined(node, life):
                for group in (self._greeted, self._up, self._joined):
                    group.add(node)
                self._gone.discard(node)
                self._lives[node], self._met = life, True
            case PeerGone(node):
                self._joined.discard(node)
                self._gone.add(node)
            case Fired(key):
                self._timers.pop(key, None)
            case Trained(job):
                owed.pop(("train", job), None)
            case ModelMeasured(round):
                owed.pop(("measure", round), None)

    def _perform_again(self, effect: Effect, now_ns: int) -> None:
        """Perform an effect that an earlier process may have performed, so that it happens once."""
        match effect:
            case SetTimer(key):
                self._set_timer(key, self._delay_ns(effect), now_ns)
            case Report(name):
                self._count(name)
            case Refused():
                self._count("refused")
            case RoundDone(round) | LocalWork(round) if self.ports.journal and round in self.ports.journal.rounds:
                self._round = round
            case Checkpoint() | Outgoing():
                pass
            case _:
                self._perform(effect, now_ns, 0)

    def dispatch(self, event: Event) -> None:
        """Pass one event to the machine and perform its effects."""
        now_ns = self._handled_ns = self.clock()  # read once: handled, and recorded, with the same value
        if self.ports.journal:
            memory = memory_of(self.task, self.node) if isinstance(event, Trained) else None
            self.ports.journal.write(now_ns, event, memory)
            if isinstance(event, Received):
                self._received[event.sender] += 1
        try:
            effects = guarded_handle(self.machine, event, now_ns)
        except PeerError as error:
            self._reject(Rejected(error.peer, "refused", str(error), error.advice))
            return
        mixing_ns = self.clock() - now_ns
        for effect in effects:
            self._perform(effect, now_ns, mixing_ns)

    # --- the loop -------------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Do the due work, with a bounded wait for more; return whether there was none."""
        busy = not self._training.idle
        events = self.links.poll(self._sleep_ms())
        with self.ports.shared.handling:
            return self._work(events, busy=busy)

    def _work(self, events: list[LinkEvent], *, busy: bool) -> bool:
        """Handle the events, answers and due timers; return whether there was none."""
        quiet = not (busy or events)
        stops = self.ports.stop() and not self.ports.journal
        goodbyes = [event for event in events if stops and is_goodbye(event)]
        events.reverse()
        while events:  # no reference remains: the next model reuses this one's memory
            event = events.pop()
            if not (stops and is_goodbye(event)):
                self._take_event(event)
            del event
        if self.result is None and stops:  # if all stop, no round is completed without the first leaver
            self.dispatch(Stopping(again=True))
        for event in goodbyes:
            self._take_event(event)
        self._take_answers()
        if self.ports.journal and not quiet:  # a message that waited is not late because this process slept
            return False
        while self._due and self._due[0][0] <= self.clock():
            quiet = False
            _, sequence, key = heapq.heappop(self._due)
            if self._timers.get(key) == sequence:
                del self._timers[key]
                self._fire(key)
        return quiet

    def _is_paused(self) -> bool:
        """Return whether to stop so that another process can resume."""
        return self.ports.journal is not None and self.result is None and self.ports.stop()

    def _end_with(self, error: FedgossipError) -> None:
        """End the run by this error; with a journal another process can resume."""
        if self.ports.journal:
            raise error
        self._fatal = self._fatal or error
        self.dispatch(Stopping())

    def _sleep_ms(self) -> int:
        if not self._due:
            return IDLE_MS
        return max(0, min(IDLE_MS, (self._due[0][0] - self.clock()) // 1_000_000 + 1))

    def _report_route(self, node: NodeId, relay: str) -> None:
        if not relay:
            self._count("direct")
            self.ports.write(EventRow(self._round, self.node, "direct", node))
            return
        name = "via_web" if is_web(relay) else "via_relay"
        self._count(name)
        self.ports.write(EventRow(self._round, self.node, name, node))

    def _take_event(self, event: LinkEvent) -> None:
        match event:
            case Arrived(sender, Hello() as hello):
                self._greet(sender, hello)
            case Arrived(sender, Join() as join) if sender == NOBODY:
                self.dispatch(Received(NOBODY, join))
            case Arrived(sender) if sender not in self._greeted:
                text = f"peer {sender} has not said that it runs this experiment"
                self._reject(Rejected(sender, "ungreeted", text))
            case Arrived(sender, message, size) if not isinstance(message, Hello):
                self._recognise(sender)
                self.meter.record_received(size, message.payload_bytes)
                self.dispatch(Received(sender, message))
            case ModelBegun(sender, account) if sender in self._greeted:
                self._recognise(sender)
                self.dispatch(Received(sender, account))
            case LinkUp(node, afresh):
                if afresh:
                    self._joined.discard(node)  # the machine then repeats lost requests
                self._link(node)
            case LinkDown(node):
                self._up.discard(node)
                self._processes.pop(node, None)  # it may restart without a record of its last incarnation number
                self._set_timer(("grace", node), GRACE_NS)
            case Routed(node, relay):
                self._report_route(node, relay)
            case Relocated(address):
                self.dispatch(Moved(address))
            case Rejected():
                self._take_rejection(event)

    def _take_rejection(self, event: Rejected) -> None:
        if event.sender is not None and event.reason == "handshake":
            self._give_up_on(event)
            return
        if event.sender is not None and event.reason == "twin":  # it may follow the other one; if not, this is why
            self._refused[event.sender] = event
        self._reject(event)

    def _greet(self, sender: NodeId, hello: Hello) -> None:
        """Accept a partner of the same experiment, or report it as gone."""
        if refusal := refused(sender, hello, self.hello):
            self._give_up_on(refusal)
        else:
            self._greet_life(sender, hello.incarnation, hello.process)
            self._compare_processors(sender, hello.processor)

    def _greet_life(self, sender: NodeId, incarnation: int, process: int) -> None:
        known = self._lives.get(sender, 0)
        if incarnation < known:
            text = f"peer {sender} says that this is its life {incarnation}, and was in life {known} already"
            self._reject(Rejected(sender, "stale_incarnation", text, "Is the same peer started twice?"))
            return
        if incarnation == known and self._processes.get(sender, process) != process:
            text = f"two processes run as peer {sender}, with its key: another one greets while the first is connected"
            self._reject(Rejected(sender, "twin", text, "Stop one of them; give each peer an id and a key of its own."))
            return
        if incarnation > known and sender in self._joined:  # it crashed and is back before its silence was noticed
            self._report_gone(sender)
        self._lives[sender], self._processes[sender] = incarnation, process
        self._greeted.add(sender)
        self._gone.discard(sender)
        self._refused.pop(sender, None)
        self._join_if_ready(sender)

    def _link(self, node: NodeId) -> None:
        self._up.add(node)
        self._timers.pop(("grace", node), None)
        if node in self._gone:  # perhaps a new incarnation, which has not greeted yet
            self._set_timer(("greeting", node), GREETING_NS)
        self._join_if_ready(node)

    def _compare_processors(self, sender: NodeId, processor: int) -> None:
        """Report once that processors differ, if they affect the bits."""
        if processor and not self._processor:
            self._processor = processor
        if processor not in (0, self._processor) and "unlike" not in self.counts:
            self._count("unlike")
            self.ports.write(EventRow(self._round, self.node, "unlike", sender))

    def _give_up_on(self, event: Rejected) -> None:
        self._reject(event)
        assert event.sender is not None
        self._greeted.discard(event.sender)
        self._refused[event.sender] = event
        self._report_gone(event.sender)

    def _join_if_ready(self, node: NodeId) -> None:
        """Report a partner as joined when both directions work; one that was gone after its next greeting."""
        if node in self._greeted and node in self._up and node not in self._joined | self._gone:
            self._joined.add(node)
            self._met = True
            self.dispatch(PeerJoined(node, self._lives[node]))

    def _recognise(self, node: NodeId) -> None:
        """Accept the process of a gone partner with a restored link: its own connection lasted, without a greeting."""
        if node in self._gone & self._up:
            self._gone.discard(node)
            self._join_if_ready(node)

    def _report_gone(self, node: NodeId) -> None:
        """Report a partner as gone; end the run if none ever joined and none can."""
        self._gone.add(node)
        self._joined.discard(node)
        if self._refused and not self._met and self._gone >= set(self.links.partners):
            first = self._refused[min(self._refused)]
            why = line(first.text, TEXT_LETTERS)
            self._turned_away = True
            self._end_with(PeerError(f"no partner to learn with: {why}", first.advice, peer=first.sender))
        else:
            self.dispatch(PeerGone(node))

    def _fire(self, key: Hashable) -> None:
        match key:
            case ("grace", int(node)):
                self._report_gone(node)
            case ("greeting", int(node)):
                self._recognise(node)
            case _:
                self.dispatch(Fired(key))

    # --- effects --------------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect, now_ns: int, mixing_ns: int) -> None:
        match effect:
            case Send(to, message):
                if isinstance(message, Invite) and self._began_ns is None:
                    self._began_ns = now_ns
                    self.meter.began(now_ns)
                self.links.send(to, message)
            case Train() | ChooseRows() | MeasureModel() | Checkpoint(durable=False):
                self._note_training(effect, now_ns)
                self._training.put(effect)
            case SetTimer(key):
                self._set_timer(key, self._delay_ns(effect))
            case Meet(node, address, key):
                self._meet(node, Endpoint(address, key))
            case Part(node):
                self._part(node)
            case Checkpoint():
                self.ports.checkpoint(effect)
            case Log():
                self.ports.log(effect)
            case Witness():
                self._witness(effect)
            case Finish(result, failure):
                self.result = result
                if failure and not self._fatal:
                    self._fatal = failure.error()
            case _:
                self._record(effect, now_ns, mixing_ns)

    def _note_training(self, effect: Effect, now_ns: int) -> None:
        if isinstance(effect, Train) and self._began_ns is None:
            self._began_ns = now_ns

    def _witness(self, seen: Witness) -> None:
        if self.ports.journal and seen.frame:
            self._witnessed.append(seen)
        else:
            self._witnessed.clear()
        self.ports.witness(seen)

    def _record(self, effect: Reporting, now_ns: int, mixing_ns: int) -> None:
        match effect:
            case Report():
                self._report(effect)
            case Refused(sender, reason, text, _, advice):
                self._reject(Rejected(sender, reason, text, advice))
            case Outgoing(round, vector):
                self.ports.outgoing(round, vector)
            case Aggregated():
                self.meter.aggregated(effect)
            case RoundDone(_, model):
                self._training.put(Evaluate(model, self._row(effect, now_ns, mixing_ns)))
            case LocalWork():
                self.ports.write(self._row(effect, now_ns, mixing_ns))

    def _row(self, effect: RoundDone | LocalWork, now_ns: int, mixing_ns: int) -> PeerRow:
        self._round = effect.round
        self._account()
        row = self.meter.done(effect, now_ns, mixing_ns)
        row.seconds -= (self._began_ns or 0) / 1e9  # people start peers minutes apart
        return row

    def _account(self) -> None:
        sent, payload = self.links.bytes_sent, self.links.traffic.payload_sent
        self.meter.record_sent(sent - self._counted[0], payload - self._counted[1])
        self._counted = sent, payload
        self.meter.carried((begins - self._zero, ends - self._zero) for begins, ends in self.links.traffic.take_spans())

    def _meet(self, node: NodeId, endpoint: Endpoint) -> None:
        try:
            self.links.meet(node, endpoint)
        except FedgossipError as error:  # the endpoint is the member's own claim: an invalid one affects only it
            self._reject(Rejected(node, "endpoint", str(error), error.advice))

    def _part(self, node: NodeId) -> None:
        self.links.part(node)
        for of in (self._greeted, self._joined, self._up, self._gone):
            of.discard(node)
        self._timers.pop(("grace", node), None)

    def _delay_ns(self, timer: SetTimer) -> int:
        exact = self.ports.stretch == 1.0 or not timer.stretched
        return timer.after_ns if exact else int(timer.after_ns * self.ports.stretch)

    def _set_timer(self, key: Hashable, after_ns: int, now_ns: int | None = None) -> None:
        self._sequence += 1
        self._timers[key] = self._sequence
        due_ns = (self.clock() if now_ns is None else now_ns) + after_ns
        heapq.heappush(self._due, (due_ns, self._sequence, key))
        if len(self._due) > 2 * len(self._timers) + REPLACED_MAX:  # a frequent sender replaces a long timer each time
            self.drop_replaced_timers()

    def drop_replaced_timers(self) -> None:
        """Remove the queue's timers that later ones have replaced."""
        self._due = [due for due in self._due if self._timers.get(due[2]) == due[1]]
        heapq.heapify(self._due)

    def _report(self, report: Report) -> None:
        self._count(report.name)
        if event := event_row(self.node, report):
            self.ports.write(event)

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def _reject(self, event: Rejected) -> None:
        self._count("refused")
        self._refusals.add(replace(event, text=line(event.text, TEXT_LETTERS)))

    def _write_refusal(self, value: dict[str, object]) -> None:
        self.ports.write(EventRow(self._round, self.node, "refused", value))

    def _take_answers(self) -> None:
        for reply in self._training.answers():
            match reply:
                case Produced() | Trained() | RowsChosen() | ModelMeasured() | Stopping() as answer:
                    self.dispatch(answer)
                case Report() as report:
                    self._report(report)
                case PeerRow() as row:
                    self.ports.write(row)
                case FedgossipError() as error:
                    self._end_with(error)


def _job_of(effect: Effect) -> Hashable | None:
    """Return the key of a training job, which its result repeats, or None."""
    match effect:
        case Train(job):
            return "train", job
        case MeasureModel(round):
            return "measure", round
    return None
