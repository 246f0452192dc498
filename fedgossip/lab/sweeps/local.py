"""Workers of a sweep as processes of this machine.  Dead workers are replaced; two dead workers fail a cell."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections import Counter
from pathlib import Path

from fedgossip.base.imports import PYTHON
from fedgossip.lab.sweeps.claims import holder
from fedgossip.lab.sweeps.folder import SweepFolder
from fedgossip.lab.sweeps.worker import words_of

DEATHS = 2
"""Number of worker deaths after which a cell counts as failed."""

PATIENCE = 60.0
"""Seconds between a request to stop and the kill of a worker."""


class LocalWorkers:
    """A number of worker processes."""

    def __init__(self, folder: Path, jobs: int, until: float, memory: int | None) -> None:
        self._folder = SweepFolder.opened(folder)
        self._words = [*words_of("fedgossip.lab.sweeps.worker", folder, until=until, memory=memory), "--listen"]
        self._workers = [self._start() for _ in range(jobs)]
        self._deaths: Counter[str] = Counter()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [*PYTHON, "-m", *self._words]
        # each trains on one thread: several that all use every core are slower than one after the other
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        return subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, **threads})

    def working(self) -> bool:
        """Return whether some still work.  A worker ended by a signal with a cell is replaced."""
        for place, worker in enumerate(self._workers):
            code = worker.poll()
            if code is not None and code < 0 and self._bury(worker.pid, -code):
                self._workers[place] = self._start()
        return any(worker.poll() is None for worker in self._workers)

    def _bury(self, pid: int, number: int) -> bool:
        """Count the death for the worker's cell, and return whether it had one; the second death fails the cell."""
        folder = self._folder
        host, name = socket.gethostname(), signal.Signals(number).name
        for cell in folder.open_cells():
            if holder(folder.claims, folder.grid.hash(cell)) == (host, pid):
                self._deaths[folder.grid.hash(cell)] += 1
                if self._deaths[folder.grid.hash(cell)] >= DEATHS:
                    why = "out of memory, if nobody did it" if name == "SIGKILL" else "a fault below Python"
                    folder.give_up(cell, f"its worker was ended by {name}, {DEATHS} times: {why}")
                return True
        return False

    def stop(self) -> None:
        """Request a stop, wait for the current cells to stop, and kill the remaining workers."""
        for worker in self._workers:
            if worker.stdin:
                worker.stdin.close()
        for worker in self._workers:
            try:
                worker.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
