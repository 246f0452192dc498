"""One real peer, from experiment to final model, with a separate folder:

experiment.toml      the experiment with every default, and roles.json (without a collector that keeps them)
endpoint.toml        its address and public key
metrics.jsonl        a line per round, and per event
snapshots/000005.*   its vectors around an evaluated round (only on a collector's request)
model/               its final model, ready to use;  vector.safetensors: as one flat vector, for digests
ended.json           written last: the outcome
counts.json          its counts of all its lives, with every checkpoint
checkpoint.*         the state that the next life resumes from, see checkpoints
trace.bin            the events of its machine (only on request), see trace
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from fedgossip.base import kernels, outside_files
from fedgossip.base.decoding import from_toml
from fedgossip.base.errors import (
    PARTIAL_EXIT,
    BudgetError,
    FedgossipError,
    NetworkError,
    NotWrittenError,
    ResumeError,
    TooFewPeersError,
)
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Checkpoint, Machine, NodeId
from fedgossip.core.messages import Expected, Hello
from fedgossip.core.records import EventRow, PeerRow, Row, read_rows
from fedgossip.core.run_format import ENDPOINT, FOLDER_STATE, JOURNAL, ROWS
from fedgossip.core.task import (
    Begun,
    Job,
    LocalTask,
    begin_training,
    give_memory_with,
    memory_with,
    segments_of,
    table_of,
)
from fedgossip.drivers.journal_image import HostJournal
from fedgossip.drivers.participant import (
    FolderCarrier,
    Given,
    Made,
    check_journalled,
    check_open_files,
    check_recordable,
    check_selection,
    folder_links,
    open_maker,
    transport_of,
)
from fedgossip.net.endpoints import Endpoints, Members, block, load_endpoints, signed
from fedgossip.net.faulty import Faults
from fedgossip.net.folder_links import FolderLinks
from fedgossip.net.host import Host
from fedgossip.net.host_ports import ALONE, Ports, SharedParts
from fedgossip.net.identity import Identity
from fedgossip.net.relays.reachability import DIRECT, Ways
from fedgossip.net.relays.relay_client import RelayAccess, ways_through
from fedgossip.net.transport import Transport
from fedgossip.plans import compose
from fedgossip.plans.completeness import ExchangeCounts, describe_wrong_numbers
from fedgossip.plans.compose import DataShares, Plan
from fedgossip.plans.plan import PARTIAL
from fedgossip.runs import incarnations
from fedgossip.runs.checkpoints import SECONDS, Checkpoints
from fedgossip.runs.collect import last_word
from fedgossip.runs.incarnations import Life
from fedgossip.runs.journal import ROUNDS_HELD, Journal, check_room
from fedgossip.runs.peer_files import (
    LifeTotals,
    PeerEnded,
    PeerFiles,
    failed,
    life_totals_in,
    try_to_report,
    write_ended,
)
from fedgossip.runs.run_directory import describe, state_plan, write_whole
from fedgossip.runs.trace import Opening, Trace, Traced
from fedgossip.runs.tracking import pass_notes
from fedgossip.secure.session import Policy

WAIT_FOR_ENDPOINTS_SECONDS = 150.0
"""Maximum seconds to wait for all peers' addresses; longer than the collector's wait, which reports the missing
ones.
"""


WAITING = "waiting"
"""Status of a participant of an unfinished run that can do no work now."""


class Stopper:
    """Turns signals (in the main thread) into a flag that the host polls; also set when the parent process exits."""

    def __init__(self, links: Transport, *, child: bool, asked: threading.Event | None = None) -> None:
        self.asked = False
        self._event = asked
        self._parent = os.getppid() if child else None
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():  # Python allows signal handlers only there
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # otherwise it interrupts the command
                self._before[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._stop)
            on_interrupt = signal.SIG_IGN if child else self._stop  # see PeerProcesses
            self._before[signal.SIGINT] = signal.signal(signal.SIGINT, on_interrupt)
            links.wake_on_signals()

    def __enter__(self) -> Stopper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    def __call__(self) -> bool:
        asked = self.asked or (self._event is not None and self._event.is_set())
        return asked or (self._parent is not None and os.getppid() != self._parent)


def run_peer(
    plan: Plan,
    node: NodeId,
    folder: Path,
    *,
    identity: Identity,
    bind: str,
    endpoints: Endpoints | Path,
    child: bool = False,
    watch: Callable[[Row], None] | None = None,
    resume: bool = False,
    incarnation: int | None = None,
    checkpoint_seconds: float = SECONDS,
    trace_bytes: int = 0,
    faults: Faults | None = None,
    members: Members | None = None,
    join: bool = False,
    policy: Policy | None = None,
    masked: Path | None = None,
    spent: Path | None = None,
    learning: tuple[LocalTask, DataShares] | None = None,
    data: str = "",
    ways: Ways = DIRECT,
    asked_to_stop: threading.Event | None = None,
    shared: SharedParts = ALONE,
    first_work: Callable[[], None] | None = None,
    wait_seconds: float = WAIT_FOR_ENDPOINTS_SECONDS,
    carrier: FolderCarrier | None = None,
) -> PeerEnded:
    """Run peer `node` to the end; `folder` exists and is empty.  Raises FedgossipError, also recorded in ended.json.

    `endpoints`: all addresses, or a file that will appear within `wait_seconds`.  `child`: started by a collector here,
    which reads snapshots and passes signals on.  `policy`: a client's demands on its coordinator; by default the
    experiment's.

    `resume`: continue in the folder of an earlier incarnation, from its last checkpoint if any.  `incarnation` numbers
    this one; by default one more than the last.  Raises ResumeError for another experiment's checkpoint, and if none is
    readable.

    `checkpoint_seconds`: time between two checkpoints; `trace_bytes`: maximum length of the trace, 0 for none.
    `faults`: this process's part of a fault script.  `members`: peers may join and leave; `join`: the run has begun.
    `masked`, `spent`: files of a key's masks and a client's spent budget, by default in the folder.  `learning`: the
    task and partition, if made already; `data`: own source, if the experiment names none.  `ways`: routes in addition
    to addresses. `asked_to_stop`: once set, the peer leaves.  `shared`: what it has in common with others of its
    process.  `first_work` is called before the first computation on its data, see `Ports`.

    `carrier`: messages are files of a shared folder.  Every event is then in a journal, and `resume` continues after
    the last, in the same incarnation; status WAITING: no work is possible now.
    """
    check_recordable(plan, trace_bytes)
    if carrier:
        check_journalled(plan)
        if resume and (over := _over(folder)):
            return over
    check_selection(plan, whole=child)
    with contextlib.ExitStack() as stack:
        with _logged_errors(folder):
            check_open_files(plan, [node])
            refused: Sequence[EventRow] = ()
            if carrier:
                links: Transport = folder_links(node, identity, carrier, folder)
            else:
                reached = stack.enter_context(_reached(node, identity, bind, endpoints, ways))
                refused = _refusals(node, reached)
                bind = _same_port(folder, reached.bind) if resume else reached.bind
                links = transport_of(plan, node, bind, identity, reached.ways, shared)
        stack.enter_context(contextlib.closing(links))
        stop = stack.enter_context(Stopper(links, child=child, asked=asked_to_stop))
        # a refused resume changes nothing
        with _logged_errors(folder) if child or not resume else contextlib.nullcontext():
            if not child:  # if no collector writes it
                describe(folder, plan)
            where = signed(identity, links.address if plan.roles.listens(node) and not carrier else "")
            write_whole(folder / ENDPOINT, block(node, where).encode())
            plan, task, shares = _with_task(plan, node, learning)
            pass_notes(watch, shares.notes)
            if not child:
                state_plan(folder, plan, task)
            task = faults.on_task(task) if faults else task
            begin = incarnations.next_after if resume and not carrier else incarnations.first
            life = begin(plan, node, folder, task.schema, shares.digest, incarnation)
            known = _await_endpoints(endpoints, plan, stop, wait_seconds)
            hello = _hello_of(plan, node, task, shares, life)
            journal = stack.enter_context(_journal_of(folder, hello)) if carrier else None
            expected = Expected(task.schema, task.dtype.name, task.length, plan.vectors, plan.masked(task.length))
            if carrier and not resume:
                _check_journal_fits(folder, plan, node, expected)
            links.connect(() if members else plan.partners(node), known, expected, hello)
            if resume and not (child or carrier):  # a collector may have read further: the rows it read stay
                incarnations.cut_rows(folder / ROWS, life.round)
            files = PeerFiles(folder, node, plan, task, snapshots=child)
            given = Given(folder, identity, known, hello, links, members, join, resume, policy, masked, spent, data,
                          journal)  # fmt: skip
            made = stack.enter_context(open_maker(plan, node, given))
            made = replace(made, events=[*refused, *made.events])
        one = _PeerLife(
            plan, task, hello, files, life, watch, checkpoint_seconds, made, first_work, shared, carrier, journal
        )
        return one.run(faults.on_links(links) if faults else links, stop, trace_bytes)


def _reached(
    node: NodeId, identity: Identity, bind: str, endpoints: Endpoints | Path, ways: Ways
) -> contextlib.AbstractContextManager[RelayAccess]:
    """Return a participant's access to the others: by the `ways` of an invite, otherwise by the endpoints."""
    if isinstance(endpoints, Path) or ways is not DIRECT or node not in endpoints:
        return contextlib.nullcontext(RelayAccess(bind, ways))
    others = (one.address for other, one in endpoints.items() if other != node)
    return ways_through(identity, bind, endpoints[node].address, others)


def _refusals(node: NodeId, reached: RelayAccess) -> Sequence[EventRow]:
    """Return a row for each relay that could not be used."""
    return [
        EventRow(0, node, "refused", {"from": node, "reason": "relay", "text": f"{one}  {one.advice}"})
        for one in reached.faults
    ]


def _check_journal_fits(folder: Path, plan: Plan, node: NodeId, expected: Expected) -> None:
    """Raise ConfigError if the disk has no room for the journal at its longest."""
    models = min(plan.experiment.rounds, ROUNDS_HELD) * (1 + len(plan.partners(node)))
    check_room(folder, models * expected.payload_bytes)


def _journal_of(folder: Path, hello: Hello) -> Journal:
    """Open a participant's journal.  Raises ResumeError if it is missing."""
    path = folder / JOURNAL
    if (folder / FOLDER_STATE).exists() and not path.exists():
        text = f"{path} is gone, and this participant has sent messages by it"
        raise ResumeError(text, "Put it back; without it a new run is needed, in a new folder.")
    return Journal(path, hello.experiment, hello.schema)


def _over(folder: Path) -> PeerEnded | None:
    """Return the end of a run by folder with all messages fetched, or None."""
    return None if (folder / JOURNAL).exists() else last_word(folder)


@contextlib.contextmanager
def _logged_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except FedgossipError as error:
        try_to_report(folder, failed(error))
        raise


def _with_task(
    plan: Plan, node: NodeId, learning: tuple[LocalTask, DataShares] | None
) -> tuple[Plan, LocalTask, DataShares]:
    held = [node] if node < plan.learners else []
    task, shares = learning or compose.task_of(plan.experiment, plan.learners, held, os.urandom)
    compose.check_task(plan, task)
    return plan.with_shares(shares).with_segments(segments_of(task)).with_table(table_of(task)), task, shares


def _hello_of(plan: Plan, node: NodeId, task: LocalTask, shares: DataShares, life: Life) -> Hello:
    return replace(
        compose.hello_of(plan, task.schema, shares.digest, compose.likeness_of(plan, task)),
        incarnation=life.about.incarnation,
        process=secrets.randbits(53),
        processor=compose.processor_of(plan, node),
    )


class _PeerLife:
    """One incarnation of a peer, with all its parts made."""

    def __init__(
        self,
        plan: Plan,
        task: LocalTask,
        hello: Hello,
        files: PeerFiles,
        life: Life,
        watch: Callable[[Row], None] | None,
        checkpoint_seconds: float,
        made: Made,
        first_work: Callable[[], None] | None,
        shared: SharedParts,
        carrier: FolderCarrier | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._made, self._first_work, self._carrier, self._journal = made, first_work, carrier, journal
        self._shared = shared
        self.plan, self.task, self.hello, self.files, self.life, self.watch = plan, task, hello, files, life, watch
        self.node = files.node
        before = read_rows(files.folder / ROWS) if life.again or journal else []  # of earlier incarnations
        earlier = [] if journal else before  # a host with a journal counts the time of earlier processes itself
        self._seconds_before = max((row.seconds for row in earlier if isinstance(row, PeerRow)), default=0.0)
        self.counts: dict[str, int] = {}
        """Counts of events outside the machine's reports."""
        self._attendance = ExchangeCounts(plan.exchanges)
        for row in before:
            self._attendance.take(row)
        if journal:
            journal.rounds = {row.round for row in before if isinstance(row, PeerRow)}
        self._begun: Begun = {}
        self._turn = threading.Lock()
        self._totals_before = (life_totals_in(files.folder) if life.again else None) or LifeTotals()
        self._counted: Callable[[], tuple[dict[str, int], dict[NodeId, int]]] = lambda: ({}, {})
        """Returns the counts of this incarnation: events, and bytes of vectors to each partner."""
        written = self._save_counts
        self._kept = Checkpoints(files.folder, life.about, self._not_written, checkpoint_seconds, written)

    def run(self, links: Transport, stop: Stopper, trace_bytes: int) -> PeerEnded:
        """Gossip to the end, and write the result."""
        files, vector = self.files, None
        error: FedgossipError | None = None
        for row in [*self.life.events(), *self._made.events]:
            self._event(row)
        with contextlib.ExitStack() as stack:
            machine = self._machine(trace_bytes, stack)
            ports = Ports(self._write, files.outgoing, files.mixed, stop, self._keep, begin=self._begin,
                          measure=files.measure, shared=self._shared)  # fmt: skip
            if recorder := self._made.recorder:
                ports = replace(ports, log=recorder.log, witness=recorder.witness)
            if self._first_work:
                ports = replace(ports, first_work=self._first_work)
            if self._journal:
                assert isinstance(links, FolderLinks)
                parts = self._journal, links, self._made.recorder, self.plan.externals, self._make
                ports = replace(ports, journal=HostJournal(*parts, self._not_compacted))
                if self._carrier:
                    ports = replace(ports, stretch=self._carrier.stretch(self.plan))
                files.round = max(self._journal.rounds, default=files.round)
            host = Host(self.node, machine, links, self.task, self.hello, ports)
            del machine
            self._counted = lambda: ({**host.counted(), **self.counts}, dict(links.traffic.sent))
            try:
                vector = host.run_while(lambda: not (self._carrier and self._carrier.once))
            except FedgossipError as failure:
                error, vector = failure, host.result  # earlier progress is kept
        written = self._kept.close()
        if vector is None and not error:
            self.counts |= files.lost()
            return PeerEnded(WAITING, files.round, *self._counted()[:1])
        try:
            files.save(vector)
        except NotWrittenError as failure:
            error = failure
        if error and not isinstance(error, BudgetError):  # the machine's own report contains it in full
            self._write(EventRow(files.round, self.node, "failed", {"text": str(error), "advice": error.advice}))
        over = "no_better" in host.counts
        ended = self._ended(error, written, vector, stopped=stop(), over=over)
        self.counts |= files.lost()
        ended.counts, ended.payload = self._counted()
        self._save_counts()
        if error:
            try_to_report(files.folder, ended)
            raise error
        write_ended(files.folder, ended)
        if self._journal and isinstance(links, FolderLinks) and not links.unfetched:
            self._journal.remove()
        return ended

    def _machine(self, trace_bytes: int, stack: contextlib.ExitStack) -> Machine:
        """Make the machine, in the state of the previous incarnation, or with its first vector."""
        node, life, initial = self.node, self.life, self.task.initial(self.node)
        try:
            if life.resumed:
                give_memory_with(self.task, node, life.resumed.task, self._begun)
                self._kept.begin(life.resumed.machine.round, life.resumed.task)
            begun = self.plan.model_in(life.checkpoint) if life.checkpoint else initial
            self.files.started(life.round, begun)
            self._make = partial(self._made.make, initial, life.checkpoint, life.about.incarnation)
            machine = self._make()
        except Exception as error:
            if isinstance(error, FedgossipError) or not life.resumed:
                raise
            text = f"{self.files.folder}: a checkpoint that peer {node} cannot resume from: {error!r}"
            raise ResumeError(text, "Put a good copy there, or start this peer in a new folder.") from error
        if not trace_bytes:
            return machine
        about = life.about
        whose = node, about.incarnation, self.task.schema, about.version, about.experiment
        opening = Opening(*whose, initial, life.checkpoint, self.plan.segments)
        path = incarnations.trace_path(self.files.folder, about.incarnation)
        trace = stack.enter_context(contextlib.closing(Trace(path, opening, self._not_traced, trace_bytes)))
        return Traced(machine, trace)

    def _write(self, row: Row) -> None:
        for event in self._attendance.take(row):
            self._event(event)
        if isinstance(row, PeerRow):
            row.seconds += self._seconds_before
            self.files.round = max(self.files.round, row.round)
        with self._turn:  # a separate thread writes checkpoints
            written = self.files.writer.write(row)
            if self.watch:
                self.watch(row)
                if written:
                    self.watch(written)

    def _event(self, row: EventRow) -> None:
        self.counts[row.name] = self.counts.get(row.name, 0) + 1
        self._write(row)

    def _begin(self, job: Job) -> None:
        begin_training(self.task, job, self._begun)

    def _keep(self, checkpoint: Checkpoint) -> None:
        if checkpoint.durable:
            self._kept.now(checkpoint)
            return
        self._kept.keep(checkpoint, memory_with(self.task, checkpoint, self.node, self._begun))

    def _save_counts(self) -> None:
        with contextlib.suppress(NotWrittenError):  # the disk is full, and the run continues
            self._totals_before.with_life(*self._counted()).write(self.files.folder)

    def _not_written(self, round: int, error: OSError) -> None:
        self._report_unwritten(round, type(error).__name__, error.strerror or str(error))

    def _not_compacted(self, error: FedgossipError) -> None:
        self._report_unwritten(self.files.round, type(error).__name__, str(error))

    def _report_unwritten(self, round: int, reason: str, text: str) -> None:
        self._event(EventRow(round, self.node, "checkpoint_failed", {"reason": reason, "text": text}))

    def _not_traced(self, name: str, text: str) -> None:
        self._event(EventRow(self.files.round, self.node, name, {"text": text}))

    def _ended(
        self, error: FedgossipError | None, written: int | None, vector: Vector | None, *, stopped: bool, over: bool
    ) -> PeerEnded:
        rounds = self.files.round
        whole = over or self.plan.is_complete(self.node, rounds, stopped=stopped)
        whole = whole or (vector is not None and self.plan.is_over(self.node, vector))
        ended = self._judge_end(rounds, vector) if whole else PeerEnded("interrupted", rounds, {}, exit_code=130)
        if error:
            ended = failed(error, rounds)
        ended.experiment, ended.schema, ended.code = self.hello.experiment, self.hello.schema, self.hello.code
        ended.checkpoint = self.life.round if written is None and self.life.resumed else written
        ended.incarnation = self.life.about.incarnation
        ended.processor, ended.kernels = kernels.processor(), kernels.used() or ""
        return ended

    def _judge_end(self, rounds: int, vector: Vector | None) -> PeerEnded:
        rows = read_rows(self.files.folder / ROWS)  # including those of earlier incarnations
        lacking = self.plan.lacking(rows, self.node)
        lacking_ = (*lacking.sentences, *describe_wrong_numbers((), [vector], self.plan.segments))
        if not lacking_:
            counts = ExchangeCounts(self.plan.exchanges)
            for row in rows:
                counts.take(row)
            return PeerEnded("finished", rounds, {}, " ".join(counts.missing_exchanges(self.node)))
        code = TooFewPeersError.exit_code if lacking.in_vain else PARTIAL_EXIT
        return PeerEnded(PARTIAL, rounds, {}, " ".join(lacking_), exit_code=code)


def _same_port(folder: Path, bind: str) -> str:
    """Return the last incarnation's address if `bind` leaves the port open: others call that address."""
    if not bind.endswith(":*"):
        return bind
    try:
        (peer,) = from_toml(outside_files.read_text(folder / ENDPOINT))["peer"]
        return str(peer["address"])
    except (OSError, ValueError, KeyError):
        return bind


def _await_endpoints(path: Endpoints | Path, plan: Plan, stop: Stopper, seconds: float) -> Endpoints:
    if not isinstance(path, Path):
        return path
    until = time.monotonic() + seconds
    while not path.exists():
        if stop() or time.monotonic() > until:
            raise NetworkError(f"{path} did not appear", "Did the other peers of this run start?")
        time.sleep(0.01)
    return load_endpoints(path, plan.n, plan.roles.listens)
