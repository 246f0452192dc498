"""The warmed parent of local peers: imports the common modules once, then forks a process per peer.

Sixteen imports of torch take a minute of two cores.  This process imports it once, opens no socket and starts no
thread, so that forking is safe; it watches its children and ends them with its own parent.  If a library starts a
thread on import, or threads cannot be counted, each peer is a fresh interpreter.

    python -m fedgossip.drivers.fork_server FD MODULE...
    python -m fedgossip.drivers.fork_server {...}           one peer, as a fresh interpreter

FD is a stream socket.  JSON lines in:  {"start": {...}} | {"signal": id, "number": s} | {"stop": true} JSON lines out:
{"ready": true} | {"started": id, "pid": p} | {"exited": id, "code": c}
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fedgossip.base import signals, untrusted_text
from fedgossip.base.kernels import PYTHON, uncollected
from fedgossip.core import run_format

if TYPE_CHECKING:
    from fedgossip.net.identity import Identity

STOP_SECONDS = 6.0
"""Seconds after SIGTERM before remaining children are killed."""


class ForkServer:
    """The loop of the warmed parent."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.children: dict[int, int] = {}  # pid -> peer
        self._buffer = b""
        self._kill_at: float | None = None

    def run(self) -> None:
        """Serve until the parent sends stop or exits, and all children have ended."""
        self._report({"ready": True})
        while self._kill_at is None or self.children:
            readable, _, _ = select.select([self.control] if self._kill_at is None else [], [], [], 0.05)
            if readable:
                self._read_orders()
            self._reap()
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                self._signal(signals.KILL)

    def _read_orders(self) -> None:
        data = self.control.recv(1 << 20)
        if not data:
            self._stop()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            order: dict[str, Any] = msgspec.json.decode(line)
            if "start" in order:
                self._start(order["start"])
            elif "signal" in order:
                self._signal(order["number"], order["signal"])
            else:
                self._stop()

    def _stop(self) -> None:
        self._kill_at = time.monotonic() + STOP_SECONDS
        self._signal(signal.SIGTERM)
        self._signal(signals.GO_ON)  # a suspended child receives the signal too

    def _signal(self, number: int, only: int | None = None) -> None:
        for pid, peer in self.children.items():  # children not reaped yet: no other process has these numbers
            if only in (None, peer):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _start(self, spec: dict[str, Any]) -> None:
        pid = os.fork() if hasattr(os, "fork") and _threads() == 1 else self._afresh(spec)
        if pid == 0:
            self.control.close()
            os._exit(_child(spec))
        self.children[pid] = spec["node"]
        self._report({"started": spec["node"], "pid": pid})

    def _afresh(self, spec: dict[str, Any]) -> int:
        """Start a peer as a new interpreter, with the same signals as after a fork."""
        words = [*PYTHON, "-m", "fedgossip.drivers.fork_server", msgspec.json.encode(spec).decode()]
        actions = [
            (os.POSIX_SPAWN_CLOSE, self.control.fileno()),
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        ]
        return os.posix_spawn(sys.executable, words, os.environ, file_actions=actions)

    def _reap(self) -> None:
        for pid in list(self.children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._report({"exited": self.children.pop(pid), "code": os.waitstatus_to_exitcode(status)})

    def _report(self, line: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the parent exited: the next recv reports it
            self.control.sendall(msgspec.json.encode(line) + b"\n")


def _threads() -> int | None:
    """Return this process's number of threads, including those of libraries; None if unknown."""
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    except OSError:
        return None


def _child(spec: dict[str, Any]) -> int:
    """Run one peer; return the exit code."""
    from fedgossip.base import owner_files

    folder = Path(spec["folder"])
    try:
        log = os.open(folder / run_format.LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, owner_files.FILE)
        os.dup2(log, 1)
        os.dup2(log, 2)
        return _peer(spec, folder)
    except BaseException:
        with contextlib.suppress(OSError):  # a full disk has no room for the log either
            traceback.print_exc()
            sys.stderr.flush()
        return 1


def _peer(spec: dict[str, Any], folder: Path) -> int:
    from fedgossip.base.errors import FedgossipError
    from fedgossip.drivers.peer import run_peer
    from fedgossip.experiment import load_experiment
    from fedgossip.net.faulty import Faults, RunClock
    from fedgossip.plans import compose
    from fedgossip.plans.compose import faults_of

    plan = compose.plan(load_experiment(Path(spec["experiment"]), spec.get("overrides", ())))
    try:
        ended = run_peer(
            plan,
            spec["node"],
            folder,
            identity=_identity_of(folder, kept=bool(spec.get("restarts")) or plan.roles.get_role(spec["node"]).logged),
            bind=spec["bind"],
            endpoints=Path(spec["endpoints"]),
            child=True,
            faults=Faults(faults_of(plan), spec["node"], RunClock(Path(spec["began"]))),
            **{
                key: spec[key]
                for key in ("resume", "incarnation", "checkpoint_seconds", "trace_bytes", "wait_seconds")
                if key in spec
            },
        )
    except FedgossipError as error:
        with contextlib.suppress(OSError):
            print(f"error: {untrusted_text.line(error, 1000)}", file=sys.stderr, flush=True)
        return error.exit_code
    return ended.exit_code


def _identity_of(folder: Path, *, kept: bool) -> Identity:
    """Return a key pair of this process, or one stored for the peer's next incarnation."""
    from fedgossip.drivers.kept_keys import load_identity
    from fedgossip.net.identity import Identity

    return load_identity(folder) if kept else Identity.new()


def main() -> None:
    """Warm up with the modules named after the descriptor, then serve; or run the one peer described."""
    signals.ignore_terminals()
    if sys.argv[1].startswith("{"):
        sys.exit(_child(msgspec.json.decode(sys.argv[1])))
    with socket.socket(fileno=int(sys.argv[1])) as control:
        with uncollected():
            for module in sys.argv[2:]:
                importlib.import_module(module)
            gc.freeze()  # the peers' garbage collectors do not scan it either
        ForkServer(control).run()
    sys.stdout.flush()
    os._exit(0)  # a regular exit of an interpreter with torch takes a fifth of a second, and the run waits for it


if __name__ == "__main__":
    main()
