"""The processes of launched scripts: each in a separate group, with its output in its folder's log.txt."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from fedgossip.base import kernels, outside_files, owner_files, signals
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, FedgossipError, ResumeError, reason
from fedgossip.base.kernels import PYTHON
from fedgossip.base.untrusted_text import printable
from fedgossip.core.machine import NodeId
from fedgossip.core.run_format import ENDED, LAUNCHED, LOG, SEAT
from fedgossip.drivers.loops.seats import LOOP, NODE, N
from fedgossip.drivers.peer_processes import check_processes
from fedgossip.runs.run_directory import write_whole

STOP_SECONDS = 10.0
"""Seconds after SIGINT before remaining scripts are killed."""

TRACEBACK_BYTES = 1 << 15
"""Number of last bytes of a script's output searched for a traceback."""

MODULES_MOST = 500
"""Maximum number of modules in the script's folder that are searched for a join."""

_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"(?:\w+\.)*(\w+(?:Error|Exception|Exit|Interrupt|Warning))(?=$|: )")
"""Beginning of the line with an exception's name and module: `fedgossip.base.errors.ConfigError: ...`."""


@dataclass(frozen=True)
class Command:
    """The command of every loop: a Python script and its arguments."""

    script: Path
    arguments: tuple[str, ...] = ()
    portable: bool = False
    folder: Path | None = None
    """Working folder; None: the current one."""
    ranks: int = 1
    """Number of processes that train one model, as started by `torchrun`."""

    @property
    def words(self) -> list[str]:
        """Return the command line of one loop."""
        together = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks)]
        python = PYTHON if self.ranks > 1 else PYTHON[:1]  # Python finds modules next to a script
        return [*python, "-u", *(together if self.ranks > 1 else []), str(self.script), *self.arguments]

    def checked(self) -> Command:
        """Return this command.  Raises ConfigError for a script that does not exist, and for a file of another kind."""
        if not self.script.is_file():
            what = "is a folder" if self.script.is_dir() else "no such file"
            raise ConfigError(f"{self.script}: {what}", "Give a script that calls fedgossip.join.")
        if self.script.suffix not in ("", ".py", ".pyw"):
            text = f"{self.script}: by its name no script of Python"
            raise ConfigError(text, "Give a script that calls fedgossip.join; its arguments follow it.")
        return self

    def check_joins(self) -> None:
        """Raise ConfigError for a script that no other machine should wait for: it does not parse, or neither it nor a
        module in its folder names fedgossip.
        """
        try:
            compile(outside_files.read_bytes(outside_files.resolve(self.script)), str(self.script), "exec")
        except (SyntaxError, ValueError) as error:
            raise ConfigError(f"{self.script}: {error}", "Python cannot read it.") from None
        folder = self.script.resolve().parent
        beside = itertools.islice(itertools.chain(folder.glob("*.py"), folder.glob("*/*.py")), MODULES_MOST)
        if not any(map(_names_fedgossip, (self.script.resolve(), *beside))):
            advice = "Call peer = fedgossip.join(model, optimizer); if an installed package does, import fedgossip."
            raise ConfigError(f"{self.script}: neither it nor a module in its folder names fedgossip", advice)

    def keep(self, run: Path) -> None:
        """Write the command into the folder of the run, for its resumption.  Raises NotWrittenError."""
        here = self.folder or Path.cwd()
        kept = _KeptCommand(str(here / self.script), list(self.arguments), str(here), self.ranks)
        write_whole(run / LAUNCHED, msgspec.json.format(msgspec.json.encode(kept), indent=1))


def _names_fedgossip(path: Path) -> bool:
    try:
        return b"fedgossip" in outside_files.read_bytes(path)
    except OSError:  # of another kind, or unreadable: the script's import reports it
        return False


class _KeptCommand(msgspec.Struct):
    script: str
    arguments: list[str]
    folder: str
    ranks: int = 1


def read_command(run: Path, portable: bool = False) -> Command:
    """Return the command launched in the folder of a run.  Raises ResumeError."""
    path = run / LAUNCHED
    try:
        kept = from_json(msgspec.json.Decoder(_KeptCommand), outside_files.read_bytes(path))
    except (OSError, UnreadableError) as error:
        advice = "Give the folder of a launched run; of others: fedgossip run --resume."
        raise ResumeError(f"{path}: cannot be read: {reason(error)}", advice) from None
    folder = Path(kept.folder)
    if not folder.is_dir():
        raise ResumeError(f"{folder}: no such folder: the scripts ran there", f"Make it, or change it in {path}.")
    return Command(Path(kept.script), tuple(kept.arguments), portable, folder, kept.ranks)


class Scripts:
    """Starts, signals and ends scripts.  `shown`: participants with output copied to this process's, line by line."""

    def __init__(self, command: Command, n: int, shown: Sequence[NodeId] = ()) -> None:
        check_processes()
        self.command, self.n, self.shown = command, n, tuple(shown)
        self.exited: dict[NodeId, int] = {}
        """Exit codes of ended processes, and of those that left the run and continue alone."""
        self._processes: dict[NodeId, subprocess.Popen[bytes]] = {}
        self._watch = signals.GroupWatch()
        self._folders: dict[NodeId, Path] = {}
        self._read: dict[NodeId, int] = {}
        self._began: dict[NodeId, int] = {}
        """Length of each log before the first start of this launch: the lines of an earlier one."""

    def start(self, spec: Mapping[str, Any]) -> None:
        """Start a script, or restart an exited one.  `spec`: its node and folder, and its command if it differs."""
        node, folder = int(spec["node"]), Path(spec["folder"])
        words = spec.get("words") or self.command.words
        (folder / ENDED).unlink(missing_ok=True)
        log = owner_files.opened(folder / LOG, "ab", buffering=0)
        environment = {**kernels.environment(portable=self.command.portable), LOOP: str(folder / SEAT)}
        environment |= {NODE: str(node), N: str(self.n)}
        for library in ("OMP", "OPENBLAS", "MKL"):
            environment.setdefault(f"{library}_NUM_THREADS", str(kernels.threads_of_loops()))
        if node not in self._began:
            self._began[node] = self._read[node] = log.tell()
        with log, signals.interruptible_children():
            self._processes[node] = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                process_group=0,
                cwd=self.command.folder,
            )
        self._watch.add(self._processes[node].pid)
        self._folders[node] = folder
        self.exited.pop(node, None)

    def signal(self, node: NodeId, number: int) -> None:
        """Send a signal to a script and all its child processes, if it runs."""
        if (process := self._processes.get(node)) and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signals.signal_group(process.pid, number)

    def poll(self, timeout: float) -> None:
        """Wait `timeout` seconds, and collect the exits."""
        time.sleep(timeout)
        for node, process in self._processes.items():
            self._show(node)
            code = process.poll()
            if code is not None:
                self._watch.drop(process.pid)
                self.exited[node] = code
            elif (self._folders[node] / ENDED).exists():
                self.exited[node] = 0

    @property
    def running(self) -> list[NodeId]:
        """Return the participants with running processes."""
        return [node for node, process in self._processes.items() if process.poll() is None]

    def wait(self) -> dict[NodeId, int]:
        """Wait without limit until all scripts have ended by themselves; return their exit codes."""
        while self.running:
            self.poll(0.05)
        for node in self._processes:
            self._show(node)
        return {node: process.returncode for node, process in self._processes.items()}

    def stop(self) -> None:
        """Interrupt all running scripts, and kill those that do not end in time."""
        for node in self.running:
            self.signal(node, signal.SIGINT)
            self.signal(node, signals.GO_ON)
        until = time.monotonic() + STOP_SECONDS
        while self.running and time.monotonic() < until:
            self.poll(0.05)
        for node in self.running:
            self.signal(node, signals.KILL)
        for process in self._processes.values():
            process.wait()
            self._watch.drop(process.pid)
        self._watch.close()

    def show_traceback(self, node: NodeId) -> None:
        """Show the last traceback that a script printed, unless its output is shown already."""
        with contextlib.suppress(OSError):
            text = self._printed(node).decode(errors="replace")
            _, head, rest = text.rpartition(_TRACEBACK)
            if head and node not in self.shown:
                sys.stdout.write(printable(f"{LOG} of loop {node}:\n{head}{rest}", keep="\n\t"))
                sys.stdout.flush()

    def last_words(self, node: NodeId) -> str:
        """Return the exception of a script's last traceback, or without one its last line; "" for no output."""
        try:
            lines = self._printed(node).decode(errors="replace").rpartition(_TRACEBACK)[2].split("\n")
        except OSError:
            return ""
        raised = next((line for line in lines if _RAISED.match(line)), "")
        printed = next((line for line in reversed(lines) if line.strip()), "")
        return _RAISED.sub(r"\1", raised) or printed.strip()

    def _printed(self, node: NodeId) -> bytes:
        """Return the last lines that a script has printed in this launch."""
        with outside_files.open_file(self._folders[node] / LOG, outside_files.ROWS) as log:
            log.seek(max(self._began[node], log.seek(0, os.SEEK_END) - TRACEBACK_BYTES))
            return log.read()

    def _show(self, node: NodeId) -> None:
        if node not in self.shown:
            return
        path, ended = self._folders[node] / LOG, self._processes[node].poll() is not None
        with contextlib.suppress(OSError), outside_files.open_file(path, outside_files.ROWS) as log:
            log.seek(self._read.get(node, 0))
            content = log.read(1 << 20)
            if not ended and len(content) < 1 << 20:  # the rest of a line waits for its end: events print in between
                content = content[: max(content.rfind(b"\n"), content.rfind(b"\r")) + 1]
            self._read[node] = self._read.get(node, 0) + len(content)
            if content and ended and not content.endswith(b"\n"):
                content += b"\n"
            sys.stdout.write(printable(content.decode(errors="replace"), keep="\n\r\t"))
            sys.stdout.flush()

    def __enter__(self) -> Scripts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, FedgossipError):  # interrupts caused by it print no traceback before it
            self.poll(0.0)
            self.shown = ()
        self.stop()
