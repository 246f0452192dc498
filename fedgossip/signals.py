"""Signals by what they do.  Windows knows few of them: there a number that it lacks stands for none that can come."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

KILL: int = getattr(signal, "SIGKILL", 9)
SUSPEND: int = getattr(signal, "SIGSTOP", 19)
GO_ON: int = getattr(signal, "SIGCONT", 18)
OF_TERMINALS = tuple(number for name in ("SIGINT", "SIGHUP") if (number := getattr(signal, name, None)))
"""What a terminal sends to all that it has started: Ctrl-C, and its own end."""


def to_group(leader: int, number: int) -> None:
    """Send a signal to a process that leads a group, and to all in it.  Raises ProcessLookupError."""
    if send := getattr(os, "killpg", None):
        send(leader, number)
    else:
        os.kill(leader, number)  # Windows has no groups, and ends the process for nearly every number


def ignore_terminals() -> None:
    """Ignore what a terminal sends: it reaches the whole group, and the parent passes it on."""
    for number in OF_TERMINALS:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def term_as_interrupt() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt meanwhile, where nobody has said otherwise.

    In another thread than the main one nothing changes.
    """
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
