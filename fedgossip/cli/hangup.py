"""Closing the terminal of a running command is Ctrl-C; what is written to it afterwards is lost, which is no fault."""

from __future__ import annotations

import errno
import io
import signal
import sys
from types import FrameType
from typing import Any


def prepare() -> None:
    """Take SIGHUP as Ctrl-C from now on, where nobody has said otherwise (nohup), and ignore a closed terminal."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            setattr(sys, name, _on_terminal(stream))
    number = getattr(signal, "SIGHUP", None)  # Windows has none
    if number is not None and signal.getsignal(number) is signal.SIG_DFL:
        signal.signal(number, _hung_up)


def _hung_up(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # both shell and system may send it: a second Ctrl-C would end at once
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


class _Terminal(io.FileIO):
    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return memoryview(content).nbytes


def _on_terminal(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    raw = io.BufferedWriter(_Terminal(stream.fileno(), "w", closefd=False))
    through = stream.write_through
    return io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=True, write_through=through)
