"""One command at a time writes a run directory: the lock of its folder, released at the end of its process.

Where a folder cannot be locked (on Windows, on some file systems of a network) other commands are not excluded.
"""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

from fedgossip.base import file_locks
from fedgossip.base.errors import ResumeError

PATIENCE_SECONDS = 5.0
"""Delay before a folder counts as another command's: the processes of one that was killed end a little later."""


class RunLock:
    """The lock of the run in `folder`, until `release`.  Raises ResumeError where another command has it."""

    def __init__(self, folder: Path) -> None:
        self._file: int | None = None
        try:
            self._file = os.open(folder, os.O_RDONLY)
            free = self._await()
        except OSError:
            free = True
        if not free:
            self.release()
            advice = f"Wait until it has ended, or end it; to see it: fedgossip watch {shlex.quote(str(folder))}"
            raise ResumeError(f"{folder}: another command is running in it", advice)

    def _await(self) -> bool:
        assert self._file is not None
        until = time.monotonic() + PATIENCE_SECONDS
        while not (free := file_locks.taken(self._file)) and time.monotonic() < until:
            time.sleep(0.05)
        return free

    def release(self) -> None:
        """Let others write the run; nothing happens the second time."""
        if self._file is not None:
            file_locks.let_go(self._file)
            os.close(self._file)
            self._file = None


def check_free(folder: Path) -> None:
    """Raise ResumeError where a command is running in `folder`."""
    RunLock(folder).release()
