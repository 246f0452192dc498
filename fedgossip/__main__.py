"""`python -m fedgossip` is `fedgossip`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

STOPPED = 130
"""The exit code of Ctrl-C."""


def command() -> None:
    """Run the command line.  Ctrl-C while it is imported ends it without a word."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(STOPPED))
    from fedgossip.cli import main

    signal.signal(signal.SIGINT, before)
    try:
        main()
    except SystemExit as ended:
        if ended.code == STOPPED:
            # a Ctrl-C inside exec(), with which libraries make classes as they are imported, has the interpreter end by
            # the signal whatever the code is
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):  # it is closed
                    stream.flush()
            os._exit(STOPPED)
        raise


if __name__ == "__main__":
    command()
