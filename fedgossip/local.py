"""A real run on this machine: a process per peer, ZeroMQ between them, and this collector that reads what they write.

The collector is no part of the learning: it knows the files that the peers leave, as they would lie on several
machines, and puts them together into one run directory.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from fedgossip import compose, runs
from fedgossip.compose import Plan
from fedgossip.errors import FedgossipError, NetworkError
from fedgossip.metrics import EventRow, Network, PeerRow, Row
from fedgossip.peer import PeerEnded
from fedgossip.runs import Ended, Keeper, Run, RunDirectory, write_whole
from fedgossip.vectors import Vector, frozen

START_SECONDS = 120.0
"""For the warmed parent to import and every peer to listen; a cold disk and sixteen peers need some."""

STOP_SECONDS = 10.0
POLL_SECONDS = 0.05

NUMERIC = ("fedgossip.peer", "safetensors.numpy", "fedgossip.learning.analytic")
LEARNING = (*NUMERIC, "torch", "sklearn.datasets", "fedgossip.learning.task", "fedgossip.learning.data")


class Family:
    """The peers' processes: a warmed parent, started early, forks them when they are wanted."""

    def __init__(self, *, learning: bool = True) -> None:
        ours, theirs = socket.socketpair()
        one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedgossip.nursery", str(theirs.fileno()), *(LEARNING if learning else NUMERIC)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        theirs.close()
        self._control, self._buffer = ours, b""
        self.exited: dict[int, int] = {}

    def start(self, spec: dict[str, Any]) -> None:
        """Fork one peer."""
        self._say({"start": spec})

    def poll(self, timeout: float) -> None:
        """Wait for news of the processes, at most `timeout` seconds."""
        readable, _, _ = select.select([self._control], [], [], timeout)
        if not readable:
            return
        data = self._control.recv(1 << 16)
        if not data:
            raise NetworkError("the process that starts the peers died", "Look at what it printed above.")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            news = msgspec.json.decode(line)
            if "exited" in news:
                self.exited[news["exited"]] = news["code"]

    def stop(self) -> None:
        """Ask all peers to end, wait, and end the warmed parent; it kills what does not obey."""
        self._say({"stop": True})
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _say(self, line: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it is gone: `poll` says so
            self._control.sendall(msgspec.json.encode(line) + b"\n")

    def __enter__(self) -> Family:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        self._control.close()


class Collector:
    """Reads the peers' files as they grow and feeds the run's record."""

    def __init__(self, root: Path, n: int, record: Network, keeper: Keeper) -> None:
        self.root, self.n, self.record, self.keeper = root, n, record, keeper
        self._offsets = [0] * n
        self._decoder = msgspec.json.Decoder(Row)

    def folder(self, node: int) -> Path:
        return self.root / f"{node:02d}"

    def read(self) -> None:
        """Take every whole line that is new."""
        for node in range(self.n):
            path = self.folder(node) / "metrics.jsonl"
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._offsets[node])
                data = file.read()
            whole = data.rfind(b"\n") + 1
            self._offsets[node] += whole
            for line in data[:whole].splitlines():
                self._take(node, self._decoder.decode(line))

    def _take(self, node: int, row: Row) -> None:
        if isinstance(row, EventRow):
            self.keeper(row)
        elif isinstance(row, PeerRow):
            for line in self.record.mixed(row, self._snapshot(node, row.round)):
                self.keeper(line)

    def _snapshot(self, node: int, round: int) -> Vector | None:
        path = self.folder(node) / "snapshots" / f"{round:06d}.safetensors"
        if not path.exists():
            return None
        from safetensors.numpy import load_file

        vectors = {name: frozen(vector) for name, vector in load_file(path).items()}
        path.unlink()
        if "before" in vectors:
            self.record.before(node, round, vectors["before"])
        self.record.outgoing(node, round, vectors["outgoing"])
        return vectors["mixed"]

    def finish(self) -> tuple[list[Vector | None], list[PeerEnded | None]]:
        """Read what is left, close the record, and return every peer's final vector and last word."""
        self.read()
        for row in self.record.flush():
            self.keeper(row)
        return [self._vector(node) for node in range(self.n)], [self._ended(node) for node in range(self.n)]

    def _vector(self, node: int) -> Vector | None:
        path = self.folder(node) / "vector.safetensors"
        if not path.exists():
            return None
        from safetensors.numpy import load_file

        vector: Vector = frozen(load_file(path)["vector"])
        return vector

    def _ended(self, node: int) -> PeerEnded | None:
        path = self.folder(node) / "ended.json"
        return msgspec.json.decode(path.read_bytes(), type=PeerEnded) if path.exists() else None


def run_local(
    plan: Plan,
    out: Path,
    *,
    family: Family | None = None,
    report: bool = True,
    watch: Callable[[Row], None] | None = None,
) -> Run:
    """Run every peer as a process of this machine; `out` is a new folder.  `family`: one that is warm already.

    A peer that dies does not stop the others.  Ctrl-C ends all of them and keeps what was measured.  Raises the error
    of a peer where all of them failed.
    """
    began = time.monotonic()
    directory = RunDirectory(out, plan)
    keeper = Keeper(directory, watch)
    with family or Family(learning=plan.experiment.task.kind == "learning") as processes:
        status = "finished"
        try:
            _start(plan, out, processes)
            task, shares = compose.task_of(plan.experiment, plan.n)
            e = plan.experiment
            record = Network(plan.n, e.rounds, e.eval.every, task.evaluate, watch_all=False)
            collector = Collector(out / "peers", plan.n, record, keeper)
            for row in record.started([task.initial(node) for node in range(plan.n)]):
                keeper(row)
            _await_addresses(plan, out, processes)
            while len(processes.exited) < plan.n:
                processes.poll(POLL_SECONDS)
                collector.read()
        except KeyboardInterrupt:
            status = "interrupted"
        processes.stop()
    vectors, last_words = collector.finish()
    if status == "finished":
        _raise_if_all_failed(out, last_words)
    counts: dict[str, int] = {}
    for node, ended in enumerate(last_words):
        for name, count in (ended.counts if ended else {"died": 1}).items():
            counts[name] = counts.get(name, 0) + count
        if ended is None and status == "finished":
            keeper(EventRow(-1, node, "died", {"exit_code": processes.exited.get(node)}))
    summary = runs.summarize(
        plan, "local", task, shares, record, keeper, Ended(vectors, counts, status, time.monotonic() - began)
    )
    directory.finish(summary, task, runs.averaged(vectors), report=report)
    summary["run_dir"] = str(out)
    return Run(summary, keeper.rows, vectors, out)


def _start(plan: Plan, out: Path, processes: Family) -> None:
    for node in range(plan.n):
        folder = out / "peers" / f"{node:02d}"
        folder.mkdir(parents=True)
        spec = {"node": node, "folder": str(folder.resolve()), "experiment": str((out / "experiment.toml").resolve())}
        processes.start({**spec, "bind": "tcp://127.0.0.1:*", "endpoints": str((out / "endpoints.toml").resolve())})


def _await_addresses(plan: Plan, out: Path, processes: Family) -> None:
    """Put the addresses that the peers chose together into the file that they wait for."""
    paths = [out / "peers" / f"{node:02d}" / "endpoint.toml" for node in range(plan.n)]
    until = time.monotonic() + START_SECONDS
    while not all(path.exists() for path in paths):
        processes.poll(0.02)
        if processes.exited or time.monotonic() > until:
            missing = [node for node, path in enumerate(paths) if not path.exists()]
            _raise_first_failure(out, missing)
            raise NetworkError(f"peers {missing[:5]} did not start", f"Their last words: {out}/peers/*/log.txt")
    write_whole(out / "endpoints.toml", b"\n".join(path.read_bytes() for path in paths))


def _raise_first_failure(out: Path, nodes: list[int]) -> None:
    for node in nodes:
        path = out / "peers" / f"{node:02d}" / "ended.json"
        if path.exists():
            _raise(msgspec.json.decode(path.read_bytes(), type=PeerEnded))


def _raise_if_all_failed(out: Path, last_words: list[PeerEnded | None]) -> None:
    if any(ended is not None and ended.status != "failed" for ended in last_words):
        return
    for ended in last_words:
        if ended is not None:
            _raise(ended)
    raise NetworkError("every peer died", f"Their last words: {out}/peers/*/log.txt")


def _raise(ended: PeerEnded) -> None:
    error = FedgossipError(ended.message, ended.advice)
    error.exit_code = ended.exit_code
    raise error
