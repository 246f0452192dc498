"""`python -m fedgossip` is `fedgossip`."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys

STOPPED = 130
"""The exit code of Ctrl-C."""

ENDED_BY_SIGNALS = (STOPPED, 143, 129)
"""Those of Ctrl-C, SIGTERM and SIGHUP."""


def command() -> None:
    """Run the command line.  Ctrl-C while it is imported ends it without a word; once all is said, with its code."""
    before = signal.getsignal(signal.SIGINT)
    interruptible = before is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, lambda *_: os._exit(STOPPED))
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # the first there: called last
    from fedgossip.cli import main
    from fedgossip.cli.text import hold_standard_streams

    hold_standard_streams()
    signal.signal(signal.SIGINT, before)
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
        if interruptible:
            signal.signal(signal.SIGINT, lambda *_: _end(code))
        if code in ENDED_BY_SIGNALS:
            # a Ctrl-C inside exec(), with which libraries make classes as they are imported, has the interpreter end by
            # the signal whatever the code is
            _end(code)
        raise


def _end(code: int) -> None:
    """End the process at once, output flushed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # it is closed, or was being written
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    command()
