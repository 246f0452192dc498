"""A real run on this machine: a process per peer, ZeroMQ between them, and this collector that reads what they write.

The collector is no part of the learning: it knows the files that the peers leave, as they would lie on several
machines, and puts them together into one run directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from fedgossip import kernels, owner_files
from fedgossip.drivers.fault_injector import Striker
from fedgossip.drivers.forecasting import foretold_of
from fedgossip.drivers.participant import check_recordable
from fedgossip.drivers.run_processes import RunProcesses
from fedgossip.drivers.simulate import faults_of
from fedgossip.errors import ConfigError, FedgossipError, NetworkError, NotWrittenError
from fedgossip.experiment import Experiment, load_experiment
from fedgossip.plans import compose
from fedgossip.plans.adversary import check_real
from fedgossip.plans.compose import Plan
from fedgossip.plans.plan import record_of
from fedgossip.records import EventRow, Row
from fedgossip.rundir import incarnations
from fedgossip.rundir.collect import ENDPOINT, Collector, Watched, conclude, first_failure, last_word
from fedgossip.rundir.row_keeper import Keeper
from fedgossip.rundir.run_directory import Run, RunDirectory, state_plan, write_whole
from fedgossip.rundir.tracking import Tracking

START_SECONDS = 120.0
"""For the warmed parent to import and every peer to listen; a cold disk and sixteen peers need some."""

PATIENCE_SECONDS = 5.0
"""When a peer has ended, the others may be silent for two trainings, two deadlines and so much longer;
when the coordinator has ended, a training and so much longer."""

COME_TOO_LATE_SECONDS = 1.0
"""Where workers of one model have ended, one that was started again after that is not waited for when it is silent for
so long: it waits for them."""

CHECKPOINT_SECONDS = 0.5
"""Between two checkpoints of a peer that the script will kill and start again."""

FULL_BYTES = 1 << 16
"""A disk with less room than this has none for the addresses of peers."""

BEGAN = "began"
"""When the first training of the run began, in nanoseconds of this machine's clock: the fault scripts' zero."""

STOP_SECONDS = 10.0
POLL_SECONDS = 0.05

NUMERIC = ("fedgossip.drivers.peer", "safetensors.numpy", "fedgossip.learning.analytic")
LEARNING = (*NUMERIC, "torch", "fedgossip.learning.task", "fedgossip.learning.data")


def check_processes() -> None:
    """Raise ConfigError where a run cannot have processes of its own: they are signalled as groups of POSIX."""
    if os.name != "posix":
        advice = "Simulate it, which ends with the same digest, or start each participant by itself: fedgossip peer."
        raise ConfigError("a run as processes of one machine needs Linux or macOS", advice)


class PeerProcesses:
    """The peers' processes: a warmed parent, started early, forks them when they are wanted."""

    driver, bind, delay = "local", "tcp://127.0.0.1:*", 0.0

    def __init__(self, *, learning: bool = True, portable: bool = False) -> None:
        check_processes()
        ours, theirs = socket.socketpair()
        modules = LEARNING if learning else NUMERIC
        one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
        path = os.pathsep.join(p for p in sys.path if p)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedgossip.drivers.fork_server", str(theirs.fileno()), *modules],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C reaches us alone, and we pass it on
            env={**kernels.environment(portable=portable), **one_thread, "PYTHONPATH": path},
        )
        theirs.close()
        self._control, self._buffer = ours, b""
        self.pids: dict[int, int] = {}
        self.exited: dict[int, int] = {}

    def start(self, spec: dict[str, Any]) -> None:
        """Fork one peer; for the second time, where it has exited."""
        self.exited.pop(spec["node"], None)
        self._say({"start": spec})

    def signal(self, node: int, number: int) -> None:
        """Send a signal to a peer, if it runs."""
        self._say({"signal": node, "number": number})

    def poll(self, timeout: float) -> None:
        """Wait for news of the processes, at most `timeout` seconds."""
        if not self._hear(timeout):
            raise NetworkError("the process that starts the peers died", "Look at what it printed above.")

    def _hear(self, timeout: float) -> bool:
        """Take what the warmed parent says within `timeout` seconds; false when it has ended."""
        readable, _, _ = select.select([self._control], [], [], timeout)
        if not readable:
            return True
        data = self._control.recv(1 << 16)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            news = msgspec.json.decode(line)
            if "started" in news:
                self.pids[news["started"]] = news["pid"]
            elif "exited" in news:
                self.exited[news["exited"]] = news["code"]
        return bool(data)

    def await_addresses(self, out: Path, folders: Sequence[Path]) -> None:
        """Put the addresses that the peers chose together into the file that they wait for."""
        paths = [folder / ENDPOINT for folder in folders]
        until = time.monotonic() + START_SECONDS
        while not all(path.exists() for path in paths):
            self.poll(0.02)
            if self.exited or time.monotonic() > until:
                raise not_started(out, folders)
        write_whole(out / "endpoints.toml", b"\n".join(path.read_bytes() for path in paths))

    def stop(self) -> None:
        """Ask all peers to end, wait, and end the warmed parent; it kills what does not obey."""
        if self._process.returncode is not None:
            return
        self._say({"stop": True})
        until = time.monotonic() + STOP_SECONDS
        while self._hear(POLL_SECONDS) and time.monotonic() < until:
            pass
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _say(self, line: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it is gone: `poll` says so
            self._control.sendall(msgspec.json.encode(line) + b"\n")

    def __enter__(self) -> PeerProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        self._control.close()


def family_of(plan: Plan) -> PeerProcesses:
    """Return the processes for a run, being warmed."""
    return PeerProcesses(learning=plan.experiment.learns, portable=plan.experiment.train.portable)


def run_local(
    experiment: Experiment | Mapping[str, Any] | Path | str,
    out: Path | str,
    *,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    report: bool = True,
    watch: Callable[[Row], None] | None = None,
    forecast: str | None = None,
) -> Run:
    """Run every peer of an experiment as a process of this machine; `out` is a new folder for the run directory.

    `experiment`, `seed`, `overrides`, `watch` and `forecast` as in `simulate`.  A synchronous run without faults, late
    peers and a budget of privacy ends with its digest.  Raises ConfigError before a process is started, NetworkError
    where peers do not come up, and where a peer fails its error.
    """
    if not isinstance(experiment, Experiment):
        experiment = load_experiment(experiment, overrides, seed=seed)
    return run_local_plan(compose.plan(experiment), Path(out), report=report, watch=watch, forecast=forecast)


def run_local_plan(
    plan: Plan,
    out: Path,
    *,
    family: RunProcesses | None = None,
    report: bool = True,
    watch: Callable[[Row], None] | None = None,
    resume: bool = False,
    trace_bytes: int = 0,
    forecast: str | None = None,
    made: Callable[[], None] = lambda: None,
) -> Run:
    """`run_local`, for an experiment whose graph is resolved already.  `family`: one that is warm already, or whose
    processes live elsewhere.

    A peer that dies, or hangs, does not stop the others: the run is "partial".  Ctrl-C ends all of them and keeps what
    was measured.  Raises the error of a peer that failed (its training raised, say) when the others have ended; what
    was measured is kept.

    `resume`: all peers of the run that was stopped in `out` go on from their last checkpoints.  Raises ResumeError.
    `trace_bytes`: the longest trace of what a peer's machine is told, 0 for none.  `made` is called when the run's
    directory is there, before a process is started.
    """
    began = time.monotonic()
    check_recordable(plan, trace_bytes)
    check_real(plan.experiment)
    with family or family_of(plan) as processes:
        script = faults_of(plan)
        task, shares = compose.task_of(plan.experiment, plan.learners)  # may refuse it: nothing is made before
        folders = [out / "peers" / f"{node:02d}" for node in range(plan.n)]
        left = incarnations.prepare(out, folders, plan, task.schema, shares.digest) if resume else None
        tracking = Tracking(plan.experiment, out) if plan.experiment.track.to else None
        foretold = foretold_of(plan, task, forecast, out if resume else None)
        directory = RunDirectory.again(out, plan, left.rows) if left else RunDirectory(out, plan, foretold)
        state_plan(out, plan, task)
        made()
        keeper = Keeper(directory, watch, tracking, foretold)
        record = record_of(plan, task.evaluate, watch_all=False)
        collector = Collector(folders, record, keeper)
        interrupted = False

        def note(name: str, peer: int, value: object = None) -> None:
            keeper(EventRow(collector.rounds[peer], peer, name, value))

        try:
            measured = directory.rows() if left else ()
            collector.begin(left, measured, lambda: [task.initial(node) for node in range(plan.n)])
            specs = specs_of(out, folders, processes, restarts=script.restarts, resume=resume, trace_bytes=trace_bytes)
            for folder, spec in zip(folders, specs.values(), strict=True):
                owner_files.made(folder)
                processes.start(spec)
            (out / BEGAN).unlink(missing_ok=True)
            processes.await_addresses(out, folders)
            _gather(plan, processes, collector, Striker(script, processes, _again(plan, specs), note), out / BEGAN)
        except KeyboardInterrupt:
            interrupted = True
        except BaseException:
            keeper.ended("failed")
            directory.abandon()
            raise
        processes.stop()
    watched = Watched(interrupted, processes.exited, time.monotonic() - began)
    return conclude(plan, task, shares, collector, directory, watched, driver=processes.driver, report=report)


def _gather(plan: Plan, processes: RunProcesses, collector: Collector, striker: Striker, began: Path) -> None:
    """Read what the peers write until all have ended, or until those that are left hang; do what the script says."""
    silent, zero, (starting, deadline), counted = 0.0, 0, plan.patience, set(plan.roles.counted)
    while len(processes.exited) < plan.n or striker.away:
        ended = len(processes.exited)
        processes.poll(POLL_SECONDS)
        news = collector.read() or len(processes.exited) > ended
        if not zero and any(collector.rounds):
            zero = time.monotonic_ns() - int(collector.slowest_training * 1e9)
        if zero and not began.exists():
            with contextlib.suppress(NotWrittenError):  # soon, perhaps: the run goes on
                write_whole(began, str(zero).encode())
        if zero:
            striker.act(time.monotonic_ns() - zero, collector.rounds)
        collector.ended(processes.exited.keys() - striker.away)
        if not zero and (fallen := _fallen(plan, processes, collector.folders)):
            raise fallen
        # polls, not a clock: we may have been suspended with them
        silent = 0.0 if news or striker.away else silent + POLL_SECONDS
        if not processes.exited:
            continue  # while all of them work nobody can say what is too long
        left = [node for node in range(plan.n) if node not in processes.exited]
        if silent > COME_TOO_LATE_SECONDS + processes.delay and _come_too_late(plan, left, striker, collector):
            for node in left:
                collector.keeper(EventRow(collector.rounds[node], node, "run_was_over"))
            return
        waiting = 2 * (deadline + collector.slowest_training)
        if plan.n > len(counted) and not counted & {*left, *striker.away}:
            waiting = collector.slowest_training  # whose run it is has ended: nobody is there to be waited for
        elif any(collector.rounds[node] == 0 for node in left):
            waiting += starting
        if silent > waiting + PATIENCE_SECONDS + processes.delay:
            for node in left:
                collector.keeper(EventRow(collector.rounds[node], node, "hung"))
            return


def _fallen(plan: Plan, processes: RunProcesses, folders: Sequence[Path]) -> FedgossipError | None:
    """Return why one has failed that had not begun: the others would wait for it, for as long as they may."""
    failed = [node for node, code in sorted(processes.exited.items()) if (code or 0) > 0]
    words = {node: last_word(folders[node]) for node in failed}
    never = [node for node, ended in words.items() if ended is None or not ended.experiment]
    if not never:
        return None
    text = f"{plan.roles.label(never[0])} ended before the run began"
    return first_failure([words[node] for node in never]) or NetworkError(text, f"Read {folders[never[0]]}/log.txt.")


def _come_too_late(plan: Plan, left: Sequence[int], striker: Striker, collector: Collector) -> bool:
    """Whether those who are left were started again when the others had ended: nobody takes them in any more."""
    behind = all(collector.rounds[node] < plan.experiment.rounds for node in left)
    return plan.one_model and behind and striker.restarted >= set(left)


def specs_of(
    out: Path,
    folders: Sequence[Path],
    family: RunProcesses,
    *,
    restarts: bool = False,
    resume: bool = False,
    trace_bytes: int = 0,
) -> dict[int, dict[str, Any]]:
    """What each peer's process is told; a peer that may be started again keeps its key, and checkpoints often."""
    experiment, endpoints, began = ((out / name).resolve() for name in ("experiment.toml", "endpoints.toml", BEGAN))
    files = {"experiment": str(experiment), "endpoints": str(endpoints), "began": str(began)}
    common = {**files, "bind": family.bind, "restarts": restarts, "resume": resume, "trace_bytes": trace_bytes}
    often = {"checkpoint_seconds": CHECKPOINT_SECONDS} if restarts else {}
    return {
        node: {"node": node, "folder": str(folder.resolve()), **common, **often} for node, folder in enumerate(folders)
    }


def _again(plan: Plan, specs: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """What a peer is told that is started again: the others have long begun, or have finished; it waits for no more."""
    return {node: {**spec, "overrides": plan.restart_overrides} for node, spec in specs.items()}


def not_started(out: Path, folders: Sequence[Path]) -> FedgossipError:
    """Return why a run does not begin: what the first of those said who left no address, or that they left none."""
    missing = [node for node, folder in enumerate(folders) if not (folder / ENDPOINT).exists()]
    failure = first_failure([last_word(folder) for folder in folders])
    if not failure and shutil.disk_usage(out).free < FULL_BYTES:
        return NotWrittenError(out / "peers", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    advice = f"Their last words: {out}/peers/*/log.txt"
    return failure or NetworkError(f"peers {missing[:5]} did not start", advice)
