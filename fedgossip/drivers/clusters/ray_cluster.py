"""A Ray cluster, or one of this machine that ends with its connection; and the actor that starts a command and sends
its files.

Ray pickles a class of an installed package by its name: a node runs its own fedgossip, and only names, arguments and
files are sent.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from fedgossip.base import owner_files
from fedgossip.base.errors import NetworkError, needed
from fedgossip.base.kernels import PYTHON
from fedgossip.core import run_format
from fedgossip.drivers.clusters.meeting import LOCAL
from fedgossip.drivers.clusters.mirror import FolderNews, Piece, apply
from fedgossip.drivers.clusters.node import find_own_host, start_participant
from fedgossip.runs.run_directory import write_whole

ANSWER_SECONDS = 15.0
"""Maximum seconds for a cluster to answer; Ray itself waits for minutes."""

ADVICE_HERE = "Is the machine busy, or short of memory?  Ray's words are in /tmp/ray/session_latest/logs."
TRIES = "RAY_NUM_REDIS_GET_RETRIES", "12"
"""Ray's variable, read at its import: maximum tries, one per second, on a server of HTTP/2 that is no cluster."""
ADVICE = "Start one: ray start --head; or try it here, with local.  Of a cluster with a token: RAY_AUTH_MODE=token."

# A cluster's address belongs to a server of HTTP/2; its first frame, SETTINGS, answers these bytes (RFC 9113, 3.4).
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS_TYPE, _HEAD = 4, 9


def connected(address: str, cpus: int = 0) -> Any:
    """Return ray, connected to the cluster at HOST:PORT, `auto` (RAY_ADDRESS, or the one of this machine) or `local`.

    `cpus`: minimum of a cluster started here, perhaps more than the machine's.  Raises ConfigError without Ray,
    NetworkError if no cluster answers.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns of changes in its next release
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage report leaves the machine
    if address != LOCAL:
        os.environ.setdefault(*TRIES)
    ray = needed("ray", "cluster", "a Ray cluster")
    if address == LOCAL:
        where: dict[str, Any] = {"num_cpus": max(cpus, os.cpu_count() or 1), "include_dashboard": False}
    else:
        _check_answers(address if address != "auto" else os.environ.get("RAY_ADDRESS", "auto"))
        where = {"address": address}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**where, log_to_driver=False, logging_level="error")
    except Exception as error:  # Ray raises plain Exception if a node of its own starts too slowly
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if address == LOCAL:
            raise NetworkError(f"Ray does not start on this machine: {reason}", ADVICE_HERE) from None
        raise NetworkError(f"no Ray cluster at {address}: {reason}", ADVICE) from None
    finally:
        if threading.current_thread() is threading.main_thread():  # other errors propagate
            signal.signal(signal.SIGTERM, before)
    return ray


def _check_answers(address: str) -> None:
    """Raise NetworkError if no HTTP/2 server answers at HOST:PORT."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS) as line:
            line.settimeout(ANSWER_SECONDS)
            line.sendall(_PREFACE)
            head = b""
            while len(head) < _HEAD and (more := line.recv(_HEAD - len(head))):
                head += more
    except (OSError, OverflowError) as error:
        reason = "no answer" if isinstance(error, TimeoutError) else str(error)
        raise NetworkError(f"no Ray cluster at {address}: {reason}", ADVICE) from None
    if len(head) < _HEAD or head[3] != _SETTINGS_TYPE:
        raise NetworkError(f"no Ray cluster at {address}: another server answers there", ADVICE)


END_SECONDS = 20.0
"""Seconds for a process to end on request before it is killed."""

LOOK_SECONDS = 0.05
"""Seconds between two looks at the process and its folder."""

News = tuple[list[Piece], int | None]
"""Changes of the folder, and the exit code of an ended process once all changes are sent."""


class _Ended:
    """A process asked to end, and killed after a grace period."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._kill_at = 0.0

    def ask(self) -> None:
        if not self._kill_at and self._process.poll() is None:
            self._process.terminate()
            self._kill_at = time.monotonic() + END_SECONDS

    @property
    def code(self) -> int | None:
        if self._kill_at and time.monotonic() > self._kill_at:
            self._process.kill()
        return self._process.poll()


class RayParticipant:
    """An actor: one participant in a folder of this node (mode 0700, deleted at the end); it ends with the actor."""

    def host(self) -> str:
        """Return the address of this node in its cluster."""
        ray: Any = needed("ray", "cluster", "a Ray cluster")
        return str(ray.util.get_node_ip_address())

    def start(
        self, spec: dict[str, Any], files: dict[str, bytes], content: list[Piece], hosts: list[str], how: dict[str, Any]
    ) -> int:
        """Start the participant of `spec`; return its process.

        `files`, `content`: to resume from; `hosts`: of all; `how`: here, path, cpus, portable, interface.  Raises
        ConfigError.
        """
        self._base = Path(tempfile.mkdtemp(prefix="fedgossip-"))
        self._folder = self._base / run_format.PEERS / f"{spec['node']:02d}"
        owner_files.make_folder(self._folder)
        for name, data in files.items():
            owner_files.written(self._base / name, data)
        apply(self._folder, content)
        self._news = FolderNews(self._folder)
        self._news.mark_sent()
        places = {key: str(self._base / name) for key, name in how["places"].items()}
        bind = f"tcp://{find_own_host(self.host(), hosts, how['interface'])}:*"
        here = how["here"] if Path(how["here"]).is_dir() else str(self._base)
        child = start_participant(
            {**spec, **places, "folder": str(self._folder), "bind": bind},
            here, how["path"], cpus=how["cpus"], portable=how["portable"],
        )  # fmt: skip
        self._child = _Ended(child)
        return child.pid

    def give(self, name: str, data: bytes) -> None:
        """Write a file next to the participant's folder, atomically."""
        write_whole(self._base / name, data)

    def news(self, seconds: float) -> News:
        """Return the changes as soon as there are any, at the latest after `seconds`."""
        until = time.monotonic() + seconds
        while True:
            code = self._child.code  # before the changes are read: an ended process has written all of its files
            pieces = self._news.pieces()
            if pieces or code is not None or time.monotonic() > until:
                return pieces, None if pieces else code
            time.sleep(LOOK_SECONDS)

    def end(self) -> None:
        """Request the participant to end; `news` reports its exit."""
        self._child.ask()

    def leave(self) -> None:
        """Delete the folder; the process has ended."""
        shutil.rmtree(self._base, ignore_errors=True)


class RayCommand:
    """An actor: one command on a node with a shared disk, which ends with this process; standard error is reported on
    failure.
    """

    def start(self, words: list[str], here: str, path: list[str]) -> int:
        """Start `python -m WORDS` in the folder `here`, on one thread, and return its process.

        Its standard input ends with this process.
        """
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 as long as the process
        command = [*PYTHON, "-m", *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=self._stderr, cwd=here, env=environment)
        self._process, self._child = process, _Ended(process)
        return process.pid

    def code(self) -> tuple[int | None, str]:
        """Return the exit code, None while it runs, and the last line of output."""
        code = self._child.code
        if not code:
            return code, ""
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return code, lines[-1] if lines else ""

    def wait(self, seconds: float) -> None:
        """Return when the command has ended, or after `seconds`."""
        until = time.monotonic() + seconds
        while self._child.code is None and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)

    def end(self) -> None:
        """End the command, and wait for it."""
        self._child.ask()
        while self._child.code is None:
            time.sleep(LOOK_SECONDS)
