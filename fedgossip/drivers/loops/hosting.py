"""A loop's peer in this process: the host runs in one thread, the user's loop trains in its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedgossip.base.errors import FedgossipError, NetworkError
from fedgossip.core.machine import NodeId
from fedgossip.drivers.loops.asked import AnsweringLoop
from fedgossip.drivers.loops.handoff import Released
from fedgossip.drivers.loops.loop_handle import LEAVE_SECONDS
from fedgossip.drivers.loops.seats import is_there
from fedgossip.drivers.loops.task import LoopTask
from fedgossip.runs.collect import final_vector
from fedgossip.runs.peer_files import PeerEnded

Run = Callable[[threading.Event], PeerEnded]
"""Run the peer to its end, or until the event is set.  Raises FedgossipError."""


class HostThread:
    """Runs a peer beside its loop; `asked`: folder of a collector's measuring requests, if one exists."""

    leave_seconds: float | None = LEAVE_SECONDS

    def __init__(
        self, run: Run, task: LoopTask, node: NodeId, folder: Path, asked: Path | None = None, launcher: int = 0
    ) -> None:
        self._run, self._task, self._node, self._folder, self._launcher = run, task, node, folder, launcher
        self._meeting = meeting = task.meetings[node]
        self._stop = threading.Event()
        self.ended: PeerEnded | None = None
        self._thread = threading.Thread(target=self._main, name=f"host-{node}", daemon=True)
        self._thread.start()
        self._answering = AnsweringLoop(asked, node, meeting, self._launched, self.stop) if asked else None

    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._stop.set()

    def needs_loop(self) -> bool:
        return self._answering is not None and self._answering.needed

    def _launched(self) -> bool:
        """Whether the collector may still send requests: it is running, and the run was not stopped."""
        measured = self.ended is None or self.ended.exit_code in _MEASURED
        return not self._stop.is_set() and measured and is_there(self._launcher)

    def _main(self) -> None:
        try:
            self.ended = self._run(self._stop)
            error = self.stopped(self.ended, asked=self._stop.is_set())
            released = replace(self._task.released(self._node, final_vector(self._folder)), error=error)
        except FedgossipError as error:
            released = Released(error=error)
        except BaseException as error:
            failure = NetworkError(f"the run's own thread failed: {type(error).__name__}: {error}", "Please report it.")
            failure.__cause__ = error
            released = Released(error=failure)
        self._meeting.release(released)

    @staticmethod
    def stopped(ended: PeerEnded, *, asked: bool) -> FedgossipError | None:
        """Return the error of a loop whose run was stopped from outside."""
        if ended.status != "interrupted" or asked:
            return None
        return NetworkError("the run was stopped: its launcher is gone", "Start it again; it goes on where it was.")


_MEASURED = (0, 7, 9)
"""Exit codes of peers that ended normally."""
