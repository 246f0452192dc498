"""Keeping checkpoints while a peer runs: the newest always at hand, written now and then by a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.core.machine import Checkpoint
from fedgossip.runs.checkpoints.sameness import About
from fedgossip.runs.checkpoints.stored import Stored, write
from fedgossip.runs.checkpoints.tensor_file import Array

SECONDS = 10.0
"""Seconds between two checkpoints: the maximum loss in a crash."""


TURN_SECONDS = 1.0
"""Maximum wait of a durable checkpoint for the task's state after its round, from the training thread."""


class Checkpoints:
    """Keeps the newest checkpoint of a running peer, and has a thread of its own write it every `seconds`.

    `keep` is called between two trainings, by the training thread: the task's state then belongs to the checkpoint.
    Nothing is copied: vectors are frozen, and a task replaces its state arrays and never changes them.  `failed` is
    called, by the writing thread, where a checkpoint could not be written; the one before stays.  `written` is called
    by it after each success.  That thread alone writes, so the files on disk are one whole state.
    """

    def __init__(
        self,
        folder: Path,
        about: About,
        failed: Callable[[int, OSError], None],
        seconds: float = SECONDS,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder, self.about, self.seconds = folder, about, seconds
        self._failed, self._after = failed, written
        self._newest: Stored | None = None
        self._written: Stored | None = None
        self._memory: tuple[int, Mapping[str, Array]] = 0, {}
        self._due = time.monotonic() + seconds
        self._condition = threading.Condition()
        self._asked: Stored | None = None
        self._writing: Stored | None = None
        self._ending = False
        self._thread: threading.Thread | None = None
        self._died: BaseException | None = None

    def begin(self, round: int, memory: Mapping[str, Array]) -> None:
        """Record the task's state at the start of this incarnation."""
        self._memory = round, memory

    def keep(self, checkpoint: Checkpoint, memory: Mapping[str, Array]) -> None:
        """Take the state after a round; have it written if it is time."""
        with self._condition:
            if self._ending:
                return
            self._memory = checkpoint.round, memory
            self._condition.notify_all()
            newest = self._newest
            if newest is not None and newest.machine.durable and newest.machine.round >= checkpoint.round:
                return  # it was faster than the thread that trains, and binds the next life
            self._newest = Stored(self.about, checkpoint, memory)
            if time.monotonic() >= self._due:
                self._ask()

    def now(self, checkpoint: Checkpoint) -> None:
        """Take the state after a round, and have it written: it is on disk when this returns, or `failed` was called.

        The task's state is that passed to `keep` for this round, not the current one.
        """
        with self._condition:
            if self._memory[1] and self._memory[0] < checkpoint.round:
                self._condition.wait_for(lambda: self._memory[0] >= checkpoint.round, TURN_SECONDS)
            stored = self._newest = Stored(self.about, checkpoint, self._memory[1])
            self._ask()
            self._condition.wait_for(lambda: stored not in (self._asked, self._writing) or self._died)
            if self._died:
                raise self._died

    def close(self) -> int | None:
        """Write the newest if it is not; return the round of the last one that is on disk, None where there is none."""
        with self._condition:
            if self._newest is not None and self._newest is not self._written and self._newest is not self._writing:
                self._ask()
            self._ending = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()
        return None if self._written is None else self._written.machine.round

    def _ask(self) -> None:
        """Have the newest written; the condition is held."""
        self._due = time.monotonic() + self.seconds
        self._asked = self._newest
        if self._thread is None:
            self._thread = guarded_thread(self._work, f"checkpoints-{self.about.node}")
            self._thread.start()
        self._condition.notify_all()

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._asked is not None or self._ending)
                self._writing, self._asked = self._asked, None
            if self._writing is None:
                return
            try:
                self._write(self._writing)
            except BaseException as error:  # a waiting thread must not wait for ever
                self._died = error
                raise
            finally:
                with self._condition:  # a model or two, and the next may be long in coming
                    self._writing = None
                    self._condition.notify_all()

    def _write(self, stored: Stored) -> None:
        try:
            write(self.folder, stored)
        except OSError as error:
            self._failed(stored.machine.round, error)
        else:
            self._written = stored
            self._after()
