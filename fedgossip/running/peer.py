"""One real peer, from experiment to final model: what every process of a real run does, on one machine or on many.

It leaves a folder of its own:

    endpoint.toml        where it listens, and its public key
    metrics.jsonl        a line per round, and per event
    snapshots/000005.*   its vectors around an evaluated round (only when a collector asked for them)
    model.safetensors    its final model;  vector.safetensors: the same as one flat vector, for digests
    ended.json           written last: how it ended
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType

import msgspec

from fedgossip.errors import ConfigError, FedgossipError, NetworkError
from fedgossip.machine import NodeId
from fedgossip.messages import Hello
from fedgossip.metrics import EventRow, Row, RowWriter
from fedgossip.net import endpoints as endpoint_files
from fedgossip.net.endpoints import Endpoint, Endpoints
from fedgossip.net.host import Host, Ports
from fedgossip.net.identity import Identity
from fedgossip.net.links import Links
from fedgossip.protocols.sync_gossip import partners_of
from fedgossip.running import compose
from fedgossip.running.compose import Plan
from fedgossip.running.runs import save_model, write_whole
from fedgossip.task import LocalTask
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
        self.writer = RowWriter(folder / "metrics.jsonl")
        self._before: Vector | None = None
        self._outgoing: Vector | None = None
        if snapshots:
            (folder / "snapshots").mkdir()

    def _evaluated(self, round: int) -> bool:
        return round % self.every == 0 or round == self.rounds

    def started(self, vector: Vector) -> None:
        self._before = vector if self.snapshots and self._evaluated(1) else None

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
        write_whole(
            self.folder / "snapshots" / f"{round:06d}.safetensors",
            save({name: v for name, v in vectors.items() if v is not None}),
        )

    def ended(self, vector: Vector | None, ended: PeerEnded) -> None:
        self.writer.close()
        if vector is not None:
            from safetensors.numpy import save

            metadata = {"peer": str(self.node), "round": str(self.round)}
            save_model(self.folder / "model.safetensors", self.task, vector, **metadata)
            write_whole(self.folder / "vector.safetensors", save({"vector": vector}, metadata=metadata))
        write_ended(self.folder, ended)


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
) -> PeerEnded:
    """Run peer `node` to the end; `folder` exists and is empty.  Raises FedgossipError, which ended.json also tells.

    `endpoints`: where everyone is, or a file that will appear.  `child`: started by a collector on this machine, which
    reads snapshots and passes signals on.
    """
    try:
        links = Links(node, bind, identity)
    except FedgossipError as error:
        write_ended(folder, failed(error))
        raise
    with contextlib.closing(links), Stopper(links, child=child) as stop:
        try:
            where = Endpoint(links.address, identity.public)
            write_whole(folder / "endpoint.toml", endpoint_files.block(node, where).encode())
            task, shares = compose.task_of(plan.experiment, plan.n, [node])
            known = endpoints if not isinstance(endpoints, Path) else _await_endpoints(endpoints, plan.n, stop)
            hello = compose.hello_of(plan, task.schema, shares.digest)
            expected = Expected(task.schema, task.dtype.name, task.length)
            links.connect(partners_of(node, plan.mixing), known, expected, hello)
        except FedgossipError as error:
            write_ended(folder, failed(error))
            raise
        files = PeerFiles(folder, node, plan, task, snapshots=child)
        return _gossip(plan, node, links, hello, task, files, stop, watch)


def _gossip(
    plan: Plan,
    node: NodeId,
    links: Links,
    hello: Hello,
    task: LocalTask,
    files: PeerFiles,
    stop: Stopper,
    watch: Callable[[Row], None] | None,
) -> PeerEnded:
    initial = task.initial(node)
    files.started(initial)

    def write(row: Row) -> None:
        files.writer.write(row)
        if watch:
            watch(row)

    machine = compose.machine_of(plan, node, initial, task.schema)
    del initial  # the first model would stay in memory for the whole run
    host = Host(node, machine, links, task, hello, Ports(write, files.outgoing, files.mixed, stop))
    try:
        vector = host.run()
    except FedgossipError as error:
        write(EventRow(files.round, node, "failed", {"text": str(error), "advice": error.advice}))
        files.ended(None, failed(error, files.round, host.counts, hello))
        raise
    status, code = ("finished", 0) if files.round == plan.experiment.rounds else ("interrupted", 130)
    ended = PeerEnded(
        status, files.round, host.counts, exit_code=code, experiment=hello.experiment, schema=hello.schema
    )
    files.ended(vector, ended)
    return ended


def write_ended(folder: Path, ended: PeerEnded) -> None:
    """Write a peer's last word."""
    write_whole(folder / "ended.json", msgspec.json.encode(ended))


def failed(
    error: FedgossipError, rounds: int = 0, counts: dict[str, int] | None = None, hello: Hello | None = None
) -> PeerEnded:
    """Return the record of a peer that could not go on."""
    ended = PeerEnded("failed", rounds, counts or {}, str(error), error.advice, error.exit_code)
    if hello:
        ended.experiment, ended.schema = hello.experiment, hello.schema
    return ended


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
