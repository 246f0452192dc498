"""Signals by purpose.  A signal missing on Windows is omitted there."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

KILL: int = getattr(signal, "SIGKILL", 9)
SUSPEND: int = getattr(signal, "SIGSTOP", 19)
GO_ON: int = getattr(signal, "SIGCONT", 18)
OF_TERMINALS = tuple(number for name in ("SIGINT", "SIGHUP") if (number := getattr(signal, name, None)))
"""Signals of a terminal to all processes started in it: Ctrl-C, and hang-up."""


def signal_group(leader: int, number: int) -> None:
    """Send a signal to the leader of a process group, and to the whole group.  Raises ProcessLookupError."""
    if send := getattr(os, "killpg", None):
        send(leader, number)
    else:
        os.kill(leader, number)  # Windows has no groups, and nearly every number ends the process


_WATCH = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
leaders = set()
for line in sys.stdin: (leaders.add if line[0] == "+" else leaders.discard)(int(line[1:]))
def send(number):
    for leader in list(leaders):
        try: os.killpg(leader, number)
        except OSError: leaders.discard(leader)
send(signal.SIGCONT)
for number in (0, signal.SIGINT, signal.SIGKILL):
    send(number)
    until = time.monotonic() + float(sys.argv[1])
    while leaders and number != signal.SIGKILL and time.monotonic() < until:
        time.sleep(0.1)
        send(0)
"""


class GroupWatch:
    """Ends process groups when this process has ended without ending them, by SIGKILL for example.

    A process reads a pipe from this one.  When the pipe closes, it waits `grace` seconds, sends SIGINT to running
    groups, and after another `grace` seconds SIGKILL.  A program that has not joined cannot watch its launcher, and
    Linux's signal for a parent's death reaches no group.
    """

    def __init__(self, grace: float = 5.0) -> None:
        self._words = [sys.executable, "-I", "-S", "-c", _WATCH, str(grace)]
        self._process: subprocess.Popen[bytes] | None = None

    def add(self, leader: int) -> None:
        """Watch the process group of a leader."""
        if self._process is None and hasattr(os, "killpg"):
            nowhere = subprocess.DEVNULL
            self._process = subprocess.Popen(
                self._words, bufsize=0, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, cwd="/", process_group=0
            )
        self._write(f"+{leader}\n")

    def drop(self, leader: int) -> None:
        """Stop watching a group: its leader has ended, and its number may soon be reused."""
        self._write(f"-{leader}\n")

    def close(self) -> None:
        """End all watched groups, and the watch."""
        if self._process and self._process.stdin:
            self._process.stdin.close()
            self._process.wait()

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # somebody has killed the watch
            if self._process and self._process.stdin:
                self._process.stdin.write(line.encode())


@contextlib.contextmanager
def interruptible_children() -> Iterator[None]:
    """Let the programs started in this context receive SIGINT, also where this process ignores it.

    A shell lets a command behind "&" ignore SIGINT, and a program inherits what is ignored: a script would then be
    killed at every stop.  No effect outside the main thread.
    """
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if not ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: None)  # a handled signal has its default in a new program
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def ignore_terminals() -> None:
    """Ignore signals of the terminal: they reach the whole group, and the parent forwards them."""
    for number in OF_TERMINALS:
        signal.signal(number, signal.SIG_IGN)


_ENDING = tuple(number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)))
"""Signals that end a command as Ctrl-C does: from `kill`, docker stop, scancel, systemd; from a closed terminal."""

_asked: dict[int, float] = {}
"""Those of _ENDING that this command has received, the first one first, with their times."""

TWICE_SECONDS = 1.0
"""Time in which a signal of _ENDING counts once: `timeout` sends it to the command and to its group."""


@contextlib.contextmanager
def as_interrupt() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as SIGINT in this context, unless a handler is set: drivers then handle only
    KeyboardInterrupt.

    No effect outside the main thread.
    """
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in _ENDING if main and signal.getsignal(number) is signal.SIG_DFL]
    if ours:
        _asked.clear()
    for number in ours:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def exit_code() -> int:
    """Return the exit code of an interrupted command: 128 plus the signal's number; 130 for Ctrl-C."""
    return 128 + next(iter(_asked), signal.SIGINT)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    last, _asked[number] = _asked.get(number, -math.inf), time.monotonic()
    if _asked[number] - last < TWICE_SECONDS:
        return
    if number != signal.SIGTERM:  # both shell and system may send SIGHUP: a second one would end the command at once
        signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)
