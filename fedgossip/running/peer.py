"""One real peer, from experiment to final model: what every process of a real run does, on one machine or on many.

It leaves a folder of its own:

    endpoint.toml        where it listens, and its public key
    metrics.jsonl        a line per round, and per event
    snapshots/000005.*   its vectors around an evaluated round (only when a collector asked for them)
    model.safetensors    its final model;  vector.safetensors: the same as one flat vector, for digests
    ended.json           written last: how it ended
    checkpoint.*         what a next life goes on from, see checkpoints
    trace.bin            what its machine was told (only when asked for), see trace
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType

import msgspec

from fedgossip.checkpoints import SECONDS, Checkpoints
from fedgossip.errors import ConfigError, FedgossipError, NetworkError, NotWrittenError
from fedgossip.machine import Checkpoint, Machine, NodeId
from fedgossip.messages import Hello
from fedgossip.metrics import EventRow, PeerRow, Row, RowWriter
from fedgossip.net import endpoints as endpoint_files
from fedgossip.net.endpoints import Endpoint, Endpoints, Members
from fedgossip.net.faulty import Faults
from fedgossip.net.host import Host, Ports
from fedgossip.net.identity import Identity
from fedgossip.net.links import Links
from fedgossip.running import compose, lives
from fedgossip.running.compose import Plan
from fedgossip.running.lives import Life
from fedgossip.running.members import member_of
from fedgossip.running.runs import save_model, write_whole
from fedgossip.task import LocalTask
from fedgossip.trace.files import Opening, Trace, Traced
from fedgossip.vectors import Vector
from fedgossip.wire import Expected

WAIT_FOR_ENDPOINTS_SECONDS = 150.0
"""For a collector to hear from all peers; longer than it waits itself, so that it is the one to say who is missing."""


class PeerEnded(msgspec.Struct):
    """ended.json: `status` is finished, interrupted or failed; the rest says why."""

    status: str
    rounds: int
    counts: dict[str, int]
    message: str = ""
    advice: str = ""
    exit_code: int = 0
    experiment: str = ""
    schema: str = ""
    """As in the Hello: folders of two runs are not put together."""
    checkpoint: int | None = None
    """The round from which a next life would go on; None where nothing is written."""
    incarnation: int = 0


class Stopper:
    """Turns signals into a question that the host asks; also stops when the process that started us is gone."""

    def __init__(self, links: Links, *, child: bool) -> None:
        self.asked = False
        self._parent = os.getppid() if child else None
        self._before = {
            signal.SIGTERM: signal.signal(signal.SIGTERM, self._stop),
            signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN if child else self._stop),  # see Family
        }
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
        return self.asked or (self._parent is not None and os.getppid() != self._parent)


class PeerFiles:
    """What a peer writes while it runs.  Rounds are counted by completion."""

    def __init__(self, folder: Path, node: NodeId, plan: Plan, task: LocalTask, *, snapshots: bool) -> None:
        self.folder, self.node, self.task = folder, node, task
        self.rounds, self.every, self.snapshots = plan.experiment.rounds, plan.experiment.eval.every, snapshots
        self.round = 0
        lives.mend_rows(folder / "metrics.jsonl")  # of a life before
        self.snapshots_lost = 0
        self._before: Vector | None = None
        self._outgoing: Vector | None = None
        try:
            self.writer = RowWriter(folder / "metrics.jsonl")
            if snapshots:
                (folder / "snapshots").mkdir(exist_ok=True)
        except OSError as error:
            raise NotWrittenError(folder / "metrics.jsonl", error) from None

    def _evaluated(self, round: int) -> bool:
        return round % self.every == 0 or round == self.rounds

    def started(self, round: int, vector: Vector) -> None:
        """The peer begins with `vector`; or it goes on after `round` rounds, with a vector of its own."""
        self.round = round
        self._before = vector if self.snapshots and round == 0 and self._evaluated(1) else None

    def outgoing(self, round: int, vector: Vector) -> None:
        self._outgoing = vector if self.snapshots and self._evaluated(round) else None

    def mixed(self, round: int, vector: Vector) -> float | None:
        """Keep what an evaluated round needs; return this peer's accuracy there."""
        self.round = round
        accuracy = None
        if self._evaluated(round):
            accuracy = self.task.evaluate([vector])[0].get("accuracy")
            if self.snapshots:
                self._snapshot(round, vector)
        self._before = vector if self.snapshots and self._evaluated(round + 1) else None
        return accuracy

    def _snapshot(self, round: int, vector: Vector) -> None:
        from safetensors.numpy import save

        vectors = {"before": self._before, "outgoing": self._outgoing, "mixed": vector}
        content = save({name: v for name, v in vectors.items() if v is not None})
        try:
            write_whole(self.folder / "snapshots" / f"{round:06d}.safetensors", content)
        except NotWrittenError:  # the collector measures this round without us
            self.snapshots_lost += 1

    def lost(self) -> dict[str, int]:
        """Close the record; return how much of it and of the snapshots the disk had no room for."""
        self.writer.close()
        found = {"rows_lost": self.writer.lost, "snapshots_lost": self.snapshots_lost}
        return {name: count for name, count in found.items() if count}

    def save(self, vector: Vector | None) -> None:
        """Write the final model, if there is one.  Raises NotWrittenError."""
        if vector is None:
            return
        from safetensors.numpy import save

        metadata = {"peer": str(self.node), "round": str(self.round)}
        save_model(self.folder / "model.safetensors", self.task, vector, **metadata)
        write_whole(self.folder / "vector.safetensors", save({"vector": vector}, metadata=metadata))


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
) -> PeerEnded:
    """Run peer `node` to the end; `folder` exists and is empty.  Raises FedgossipError, which ended.json also tells.

    `endpoints`: where everyone is, or a file that will appear.  `child`: started by a collector on this machine, which
    reads snapshots and passes signals on.

    `resume`: go on in the folder of a life before, from its last checkpoint, or from the beginning where it wrote none.
    `incarnation` numbers this life; by default one more than the last.  Raises ResumeError for a checkpoint of another
    experiment, and where there are some and none can be read.

    `checkpoint_seconds` lie between two checkpoints; `trace_bytes` is the longest trace of what the machine is told,
    0 for none.  `faults`: what a fault script does inside this process.  `members`: others may come and go, and so may
    we; `join`: the run has begun.
    """
    try:
        links = Links(node, _same_port(folder, bind) if resume else bind, identity)
    except FedgossipError as error:
        _try_to_tell(folder, failed(error))
        raise
    with contextlib.closing(links), Stopper(links, child=child) as stop:
        try:
            where = Endpoint(links.address, identity.public, identity.verify)
            write_whole(folder / "endpoint.toml", endpoint_files.block(node, where).encode())
            task, shares = compose.task_of(plan.experiment, plan.n, [node])
            task = faults.on_task(task) if faults else task
            begin = lives.next_after if resume else lives.first
            life = begin(plan, node, folder, task.schema, shares.digest, incarnation)
            known = endpoints if not isinstance(endpoints, Path) else _await_endpoints(endpoints, plan.n, stop)
            hello = replace(
                compose.hello_of(plan, task.schema, shares.digest),
                incarnation=life.about.incarnation,
                process=secrets.randbits(53),
            )
            expected = Expected(task.schema, task.dtype.name, task.length)
            links.connect(() if members else plan.schedule.partners(node), known, expected, hello)
            if resume and not child:  # a collector has read on: it must find what it has read
                lives.cut_rows(folder / "metrics.jsonl", life.round)
            files = PeerFiles(folder, node, plan, task, snapshots=child)
        except FedgossipError as error:
            if child or not resume:  # a refused resume changes nothing
                _try_to_tell(folder, failed(error))
            raise
        make = _maker(plan, node, task.schema, links, identity, members, join=join)
        return _Peer(plan, task, hello, files, life, watch, checkpoint_seconds, make).run(
            faults.on_links(links) if faults else links, stop, trace_bytes
        )


MakeMachine = Callable[[Vector, Checkpoint | None, int], Machine]
"""(first vector, what the life before left, the number of this life)."""


def _maker(
    plan: Plan, node: NodeId, schema: str, links: Links, identity: Identity, members: Members | None, *, join: bool
) -> MakeMachine:
    """Return what makes this peer's machine: one of a fixed graph, or a member."""

    def fixed(initial: Vector, checkpoint: Checkpoint | None, incarnation: int) -> Machine:
        return compose.machine_of(plan, node, initial, schema, checkpoint, incarnation=incarnation)

    def member(initial: Vector, checkpoint: Checkpoint | None, _incarnation: int) -> Machine:
        assert members is not None
        life = int(time.time())  # above those of earlier lives, as long as the clock is not set back
        machine = member_of(plan, node, initial, schema, identity, members, life, join=join, resumed=checkpoint)
        if members.organiser:
            links.admit_guests(machine.introduction())
        return machine

    return member if members else fixed


class _Peer:
    """One life of a peer, all its parts made."""

    def __init__(
        self,
        plan: Plan,
        task: LocalTask,
        hello: Hello,
        files: PeerFiles,
        life: Life,
        watch: Callable[[Row], None] | None,
        checkpoint_seconds: float,
        make: MakeMachine,
    ) -> None:
        self._make = make
        self.plan, self.task, self.hello, self.files, self.life, self.watch = plan, task, hello, files, life, watch
        self.node = files.node
        self._seconds_before = lives.seconds_in(files.folder / "metrics.jsonl") if life.again else 0.0
        self.counts: dict[str, int] = {}
        """What happened and is no report of the machine."""
        self._turn = threading.Lock()
        self._kept = Checkpoints(files.folder, life.about, self._not_written, checkpoint_seconds)

    def run(self, links: Links, stop: Stopper, trace_bytes: int) -> PeerEnded:
        """Gossip to the end, and write what came out."""
        files, vector = self.files, None
        error: FedgossipError | None = None
        for row in self.life.events():
            self._event(row)
        with contextlib.ExitStack() as stack:
            machine = self._machine(trace_bytes, stack)
            ports = Ports(self._write, files.outgoing, files.mixed, stop, self._keep)
            host = Host(self.node, machine, links, self.task, self.hello, ports)
            del machine
            try:
                vector = host.run()
            except FedgossipError as failure:
                error = failure
        written = self._kept.close()
        try:
            files.save(vector)
        except NotWrittenError as failure:
            error = failure
        if error:
            self._write(EventRow(files.round, self.node, "failed", {"text": str(error), "advice": error.advice}))
        ended = self._ended(error, written, stopped=stop())
        ended.counts = {**host.counts, **self.counts, **files.lost()}
        if error:
            _try_to_tell(files.folder, ended)
            raise error
        write_ended(files.folder, ended)
        return ended

    def _machine(self, trace_bytes: int, stack: contextlib.ExitStack) -> Machine:
        """Make the machine, in the state that the life before left, or with its first vector."""
        node, life, initial = self.node, self.life, self.task.initial(self.node)
        if life.resumed:
            lives.give_memory(self.task, node, life.resumed.task)
        self.files.started(life.round, initial)
        machine = self._make(initial, life.checkpoint, life.about.incarnation)
        if not trace_bytes:
            return machine
        about = life.about
        opening = Opening(
            node, about.incarnation, self.task.schema, about.version, about.experiment, initial, life.checkpoint
        )
        path = lives.trace_path(self.files.folder, about.incarnation)
        trace = stack.enter_context(contextlib.closing(Trace(path, opening, self._not_traced, trace_bytes)))
        return Traced(machine, trace)

    def _write(self, row: Row) -> None:
        if isinstance(row, PeerRow):
            row.seconds += self._seconds_before
        with self._turn:  # checkpoints are written by a thread of their own
            told = self.files.writer.write(row)
            if self.watch:
                self.watch(row)
                if told:
                    self.watch(told)

    def _event(self, row: EventRow) -> None:
        self.counts[row.name] = self.counts.get(row.name, 0) + 1
        self._write(row)

    def _keep(self, checkpoint: Checkpoint) -> None:
        self._kept.keep(checkpoint, lives.memory_of(self.task, self.node))

    def _not_written(self, round: int, error: OSError) -> None:
        value = {"reason": type(error).__name__, "text": error.strerror or str(error)}
        self._event(EventRow(round, self.node, "checkpoint_failed", value))

    def _not_traced(self, name: str, text: str) -> None:
        self._event(EventRow(self.files.round, self.node, name, {"text": text}))

    def _ended(self, error: FedgossipError | None, written: int | None, *, stopped: bool) -> PeerEnded:
        rounds = self.files.round
        whole = compose.whole(self.plan, rounds, stopped=stopped)
        ended = PeerEnded("finished", rounds, {}) if whole else PeerEnded("interrupted", rounds, {}, exit_code=130)
        if error:
            ended = failed(error, rounds)
        ended.experiment, ended.schema = self.hello.experiment, self.hello.schema
        ended.checkpoint = self.life.round if written is None and self.life.resumed else written
        ended.incarnation = self.life.about.incarnation
        return ended


def _same_port(folder: Path, bind: str) -> str:
    """Return the address of the life before where `bind` leaves the port open: the others look for us there."""
    if not bind.endswith(":*"):
        return bind
    try:
        (peer,) = tomllib.loads((folder / "endpoint.toml").read_text())["peer"]
        return str(peer["address"])
    except (OSError, ValueError, KeyError):
        return bind


def write_ended(folder: Path, ended: PeerEnded) -> None:
    """Write a peer's last word.  Raises NotWrittenError."""
    write_whole(folder / "ended.json", msgspec.json.encode(ended))


def _try_to_tell(folder: Path, ended: PeerEnded) -> None:
    """Write the last word of a peer that failed; where there is no room for it the error itself is all that is said."""
    with contextlib.suppress(NotWrittenError):
        write_ended(folder, ended)


def failed(error: FedgossipError, rounds: int = 0) -> PeerEnded:
    """Return the record of a peer that could not go on."""
    return PeerEnded("failed", rounds, {}, str(error), error.advice, error.exit_code)


def _await_endpoints(path: Path, n: int, stop: Stopper) -> dict[NodeId, Endpoint]:
    until = time.monotonic() + WAIT_FOR_ENDPOINTS_SECONDS
    while not path.exists():
        if stop() or time.monotonic() > until:
            raise NetworkError(f"{path} did not appear", "Did the other peers of this run start?")
        time.sleep(0.01)
    return endpoint_files.load(path, n)


def empty_folder(folder: Path) -> Path:
    """Make `folder`, or take it if it is empty.  Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        empty = not any(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}", "Choose a folder that can be written, with --out.") from None
    if not empty:
        raise ConfigError(f"{folder}: not empty", "Give a new folder with --out.")
    return folder
