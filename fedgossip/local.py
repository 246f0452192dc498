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
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from fedgossip import compose, runs
from fedgossip.collect import Collector, last_word, raise_first_failure, raise_if_all_failed
from fedgossip.compose import Plan
from fedgossip.errors import NetworkError
from fedgossip.metrics import Network, Row
from fedgossip.runs import Ended, Keeper, Run, RunDirectory, write_whole

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
    folders = [out / "peers" / f"{node:02d}" for node in range(plan.n)]
    with family or Family(learning=plan.experiment.task.kind == "learning") as processes:
        status = "finished"
        try:
            _start(out, folders, processes)
            task, shares = compose.task_of(plan.experiment, plan.n)
            e = plan.experiment
            record = Network(plan.n, e.rounds, e.eval.every, task.evaluate, watch_all=False)
            collector = Collector(folders, record, keeper)
            for row in record.started([task.initial(node) for node in range(plan.n)]):
                keeper(row)
            _await_addresses(out, folders, processes)
            while len(processes.exited) < plan.n:
                processes.poll(POLL_SECONDS)
                collector.read()
        except KeyboardInterrupt:
            status = "interrupted"
        processes.stop()
    vectors, last_words = collector.finish()
    if status == "finished":
        raise_if_all_failed(last_words, out)
    counts = collector.counts(last_words, processes.exited if status == "finished" else {})
    summary = runs.summarize(
        plan, "local", task, shares, record, keeper, Ended(vectors, counts, status, time.monotonic() - began)
    )
    directory.finish(summary, task, runs.averaged(vectors), report=report)
    summary["run_dir"] = str(out)
    return Run(summary, keeper.rows, vectors, out)


def _start(out: Path, folders: Sequence[Path], processes: Family) -> None:
    for node, folder in enumerate(folders):
        folder.mkdir(parents=True)
        spec = {"node": node, "folder": str(folder.resolve()), "experiment": str((out / "experiment.toml").resolve())}
        processes.start({**spec, "bind": "tcp://127.0.0.1:*", "endpoints": str((out / "endpoints.toml").resolve())})


def _await_addresses(out: Path, folders: Sequence[Path], processes: Family) -> None:
    """Put the addresses that the peers chose together into the file that they wait for."""
    paths = [folder / "endpoint.toml" for folder in folders]
    until = time.monotonic() + START_SECONDS
    while not all(path.exists() for path in paths):
        processes.poll(0.02)
        if processes.exited or time.monotonic() > until:
            missing = [node for node, path in enumerate(paths) if not path.exists()]
            raise_first_failure([last_word(folders[node]) for node in missing])
            raise NetworkError(f"peers {missing[:5]} did not start", f"Their last words: {out}/peers/*/log.txt")
    write_whole(out / "endpoints.toml", b"\n".join(path.read_bytes() for path in paths))
