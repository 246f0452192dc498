"""Keeping checkpoints while a peer runs: the newest always at hand, written now and then by a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedgossip.checkpoints.sameness import About
from fedgossip.checkpoints.stored import Stored, write
from fedgossip.checkpoints.tensor_file import Array
from fedgossip.guarded_threads import guarded_thread
from fedgossip.machine import Checkpoint

SECONDS = 10.0
"""Between two checkpoints: what a crash may cost."""


class Checkpoints:
    """Keeps the newest checkpoint of a running peer, and has a thread of its own write it every `seconds`.

    `keep` is called between two trainings, by the thread that trains: what the task remembers then belongs to the
    checkpoint.  Nothing is copied: vectors are frozen, and a task replaces what it remembers and never changes it.
    `failed` is told, by the writing thread, why a checkpoint could not be written; the one before stays.
    """

    def __init__(
        self, folder: Path, about: About, failed: Callable[[int, OSError], None], seconds: float = SECONDS
    ) -> None:
        self.folder, self.about, self.seconds = folder, about, seconds
        self._failed = failed
        self._newest: Stored | None = None
        self._written: Stored | None = None
        self._due = time.monotonic() + seconds
        self._condition = threading.Condition()
        self._asked: Stored | None = None
        self._ending = False
        self._thread: threading.Thread | None = None

    def keep(self, checkpoint: Checkpoint, memory: Mapping[str, Array]) -> None:
        """Take the state after a round; have it written if it is time."""
        if self._ending:
            return
        self._newest = Stored(self.about, checkpoint, memory)
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self.seconds
        with self._condition:
            self._asked = self._newest
            if self._thread is None:
                self._thread = guarded_thread(self._work, f"checkpoints-{self.about.node}")
                self._thread.start()
            self._condition.notify()

    def now(self, checkpoint: Checkpoint) -> None:
        """Take the state after a round, and write it: it is on disk when this returns, or `failed` is told.

        For a peer whose task remembers nothing; not to be mixed with `keep`.
        """
        self._newest = Stored(self.about, checkpoint, {})
        self._write(self._newest)

    def close(self) -> int | None:
        """Write the newest if it is not; return the round of the last one that is on disk, None where there is none."""
        with self._condition:
            self._ending = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()
        if self._newest is not None and self._newest is not self._written:
            self._write(self._newest)
        return None if self._written is None else self._written.machine.round

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._asked is not None or self._ending)
                asked, self._asked = self._asked, None
            if asked is None:
                return
            self._write(asked)
            del asked  # a model or two, and the next may be long in coming

    def _write(self, stored: Stored) -> None:
        try:
            write(self.folder, stored)
        except OSError as error:
            self._failed(stored.machine.round, error)
        else:
            self._written = stored
