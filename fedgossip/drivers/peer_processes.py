"""The processes of a run's peers on this machine: started by a warmed parent, watched, signalled and ended.

The command line imports this first, so that the parent warms up during the other imports.  `RunProcesses` is a real
run's interface to its processes, on any machine.  A fault script kills, restarts, suspends and wakes them, with one row
of the record each (faults inside: net/faulty).
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
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec

from fedgossip.base import kernels, outside_files, signals
from fedgossip.base.errors import ConfigError, FedgossipError, NetworkError, NotWrittenError
from fedgossip.base.kernels import PYTHON
from fedgossip.core import run_format
from fedgossip.core.machine import NodeId
from fedgossip.faults import MOST_IN_VAIN, FaultScript, Happening, RunProgress, Strike, Turn

if TYPE_CHECKING:
    from fedgossip.experiment import Experiment


START_SECONDS = 120.0
"""Maximum seconds for the warmed parent to import and every peer to listen; a cold disk and sixteen peers need some."""

FULL_BYTES = 1 << 16
"""Minimum free bytes of a disk for the addresses of peers."""

STOP_SECONDS = 10.0
POLL_SECONDS = 0.05

NUMERIC = ("fedgossip.drivers.peer", "safetensors.numpy", "fedgossip.learning.analytic")
LEARNING = (*NUMERIC, "torch", "fedgossip.learning.task", "fedgossip.data.data")


def check_processes() -> None:
    """Raise ConfigError if the system does not support a run's processes: they are signalled as POSIX process
    groups.
    """
    if os.name != "posix":
        advice = "Simulate it, which ends with the same digest, or start each participant by itself: fedgossip peer."
        raise ConfigError("a run as processes of one machine needs Linux or macOS", advice)


class PeerProcesses:
    """The peers' processes: a warmed parent, started early, forks them on request."""

    driver, bind, delay = "local", "tcp://127.0.0.1:*", 0.0

    def __init__(self, *, learning: bool = True, portable: bool = False) -> None:
        check_processes()
        ours, theirs = socket.socketpair()
        modules = LEARNING if learning else NUMERIC
        one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
        path = os.pathsep.join(p for p in sys.path if p)
        self._process = subprocess.Popen(
            [*PYTHON, "-m", "fedgossip.drivers.fork_server", str(theirs.fileno()), *modules],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C reaches only this process, which passes it on
            env={**kernels.environment(portable=portable), **one_thread, "PYTHONPATH": path},
        )
        theirs.close()
        self._control, self._buffer, self._used = ours, b"", False
        self.pids: dict[int, int] = {}
        self.exited: dict[int, int] = {}

    def start(self, spec: dict[str, Any]) -> None:
        """Fork one peer, or fork it again after its exit."""
        self.exited.pop(spec["node"], None)
        self._used = True
        self._send_order({"start": spec})

    def signal(self, node: int, number: int) -> None:
        """Send a signal to a peer, if it runs."""
        self._send_order({"signal": node, "number": number})

    def poll(self, timeout: float) -> None:
        """Wait for reports on the processes, at most `timeout` seconds."""
        if not self._read_reports(timeout):
            raise NetworkError("the process that starts the peers died", "Look at its output above.")

    def _read_reports(self, timeout: float) -> bool:
        """Read the warmed parent's reports for at most `timeout` seconds; false at its end."""
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
        """Combine the addresses chosen by the peers into the file that they wait for."""
        from fedgossip.runs.run_directory import write_whole

        paths = [folder / run_format.ENDPOINT for folder in folders]
        until = time.monotonic() + START_SECONDS
        while not all(path.exists() for path in paths):
            self.poll(0.02)
            if self.exited or time.monotonic() > until:
                raise start_failure(out, folders)
        write_whole(out / run_format.ENDPOINTS, b"\n".join(outside_files.read_bytes(path) for path in paths))

    def stop(self) -> None:
        """Request all peers to end, wait, kill those still running, and end the warmed parent."""
        if self._process.returncode is not None:
            return
        if not self._used:  # it may still be importing, for seconds, with no child started
            self._process.kill()
            self._process.wait()
            return
        self._send_order({"stop": True})
        until = time.monotonic() + STOP_SECONDS
        while self._read_reports(POLL_SECONDS) and time.monotonic() < until:
            pass
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send_order(self, line: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it has exited: `poll` reports it
            self._control.sendall(msgspec.json.encode(line) + b"\n")

    def __enter__(self) -> PeerProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        self._control.close()


def processes_for(experiment: Experiment) -> PeerProcesses:
    """Return the processes for a run, which begin to warm up."""
    return PeerProcesses(learning=experiment.learns, portable=experiment.train.portable)


def start_failure(out: Path, folders: Sequence[Path]) -> FedgossipError:
    """Return why a run does not begin: the first error of the peers without an address, or that they left none."""
    from fedgossip.runs.collect import first_failure, last_word

    missing = [node for node, folder in enumerate(folders) if not (folder / run_format.ENDPOINT).exists()]
    failure = first_failure([last_word(folder) for folder in folders])
    if not failure and shutil.disk_usage(out).free < FULL_BYTES:
        return NotWrittenError(out / run_format.PEERS, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    advice = f"Their last words: {out}/{run_format.PEERS}/*/{run_format.LOG}"
    return failure or NetworkError(f"peers {missing[:5]} did not start", advice)


class RunProcesses(Protocol):
    """The processes of a run's participants: `PeerProcesses` here, others on a cluster.  A context manager, which ends
    the remaining ones.
    """

    driver: str
    """Name of the driver in the summary."""
    bind: str
    """Address at which each participant listens; those elsewhere determine it on their nodes."""
    delay: float
    """Maximum delay, in seconds, until a participant's files are visible here."""

    @property
    def exited(self) -> Mapping[int, int | None]:
        """Exit codes of ended processes; None for an unknown code."""

    def start(self, spec: dict[str, Any]) -> None:
        """Start one participant, or queue its start: `await_addresses` starts all of them."""

    def signal(self, node: int, number: int) -> None: ...

    def poll(self, timeout: float) -> None:
        """Wait for reports, at most `timeout` seconds.  Raises NetworkError if there will be none."""

    def await_addresses(self, out: Path, folders: Sequence[Path]) -> None:
        """Return once all participants have received the addresses of the others.  Raises FedgossipError."""

    def stop(self) -> None:
        """Request all to end, then end them; return when none is left."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


class Processes(Protocol):
    """The operations on peers' processes that faults need."""

    @property
    def exited(self) -> Mapping[int, int | None]: ...
    def start(self, spec: dict[str, Any]) -> None: ...
    def signal(self, node: NodeId, number: int) -> None: ...


class Striker:
    """Call `act` often.  `specs[i]` starts peer i; `note(name, peer, value)` receives each action."""

    def __init__(
        self,
        script: FaultScript,
        processes: Processes,
        specs: Mapping[NodeId, dict[str, Any]],
        note: Callable[[str, NodeId, object], None],
    ) -> None:
        self.processes, self.specs, self.note = processes, specs, note
        self._happenings = script.happenings()
        self._upcoming: Happening | None = next(self._happenings, None)
        self._killed: dict[NodeId, int | None] = {}  # time of the restart; None: never
        self._asleep: dict[NodeId, int] = {}  # end of the absence
        self._dying: set[NodeId] = set()  # killed, exit not seen yet
        self._progress = RunProgress(len(specs))
        self.restarted: set[NodeId] = set()
        """Restarted peers."""

    @property
    def away(self) -> Collection[NodeId]:
        """Absent peers that will return."""
        return {node for node, back in self._killed.items() if back is not None} | self._asleep.keys()

    def act(self, now_ns: int, rounds: Sequence[int]) -> None:
        """Apply the faults due at `now_ns` of the run; `rounds`: completed rounds of each participant."""
        for node, round in enumerate(rounds):
            self._progress.reached(node, round)
        while self._upcoming is not None and self._upcoming.at_ns <= now_ns:
            self._apply(self._upcoming)
            self._upcoming = next(self._happenings, None)
        for node in sorted(self._dying & self.processes.exited.keys()):
            self._note_exit(node)
        for node, until_ns in list(self._asleep.items()):
            if until_ns <= now_ns:
                del self._asleep[node]
                self.processes.signal(node, signals.GO_ON)
                self.note("awake", node, None)
        for node, back_ns in list(self._killed.items()):
            if back_ns is not None and back_ns <= now_ns and node in self.processes.exited:
                self._restart(node)

    def _apply(self, happening: Happening) -> None:
        match happening:
            case Turn(_, name, peer, value):
                self.note(name, peer, value)
            case Strike(_, _, node) if node in self.processes.exited or node in self._killed:
                return  # it has finished, or is dead already
            case Strike(endless=True) if 0 in self.processes.exited.values():
                return  # otherwise leaving peers could be killed again and again
            case Strike(of_series=True) if self._progress.over:
                return
            case Strike(_, kind, node, back_ns, of_series):
                self._sleep(node, back_ns) if kind == "sleep" else self._kill(node, back_ns)
                if of_series and self._progress.struck():
                    self.note("struck_in_vain", node, MOST_IN_VAIN)

    def _sleep(self, node: NodeId, back_ns: int | None) -> None:
        if node not in self._asleep and back_ns is not None:
            self._asleep[node] = back_ns
            self.processes.signal(node, signals.SUSPEND)
            self.note("asleep", node, None)

    def _kill(self, node: NodeId, back_ns: int | None) -> None:
        self._asleep.pop(node, None)
        self._killed[node] = back_ns
        self._dying.add(node)
        self.processes.signal(node, signals.KILL)

    def _note_exit(self, node: NodeId) -> None:
        self._dying.discard(node)
        if self.processes.exited[node] == -signals.KILL:
            self.note("crashed", node, None)
        else:  # it finished before the signal arrived
            del self._killed[node]

    def _restart(self, node: NodeId) -> None:
        del self._killed[node]
        self.restarted.add(node)
        self.processes.start({**self.specs[node], "resume": True})  # its folder counts its incarnations
        self.note("restarted", node, None)
