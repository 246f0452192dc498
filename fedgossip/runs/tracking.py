"""Trackers fed from the record of a run, by a thread of their own, so that none can hold it up or change it.

One that raises is dropped; one that is slower than the run loses rounds; one whose server does not answer is left
behind at the end.  Each case is reported in one event, `tracker_failed`.
"""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.base.untrusted_text import line, masked
from fedgossip.core.records import EventRow, LoggedNumbers, NetworkRow, PeerRow
from fedgossip.experiment import Experiment
from fedgossip.runs.trackers import Tracker, make_tracker

WAITING = 10_000
"""Maximum number of rounds that a slow tracker may be behind."""
END_SECONDS = 15.0
"""Longest wait at the end of a run for what trackers have still to write."""

Call = Callable[[Tracker], None]


class Tracking:
    """The trackers of one run."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self._threads = [
            TrackerThread(masked(text), make_tracker(text, folder)) for text in experiment.track.to
        ]  # a missing library raises before anything is created
        self._experiment = experiment
        self._score = experiment.score.name
        self._logged: dict[int, LoggedNumbers] = {}
        """Numbers that peers logged in rounds whose network row has not been written yet."""

    def begin(self) -> None:
        """The run has a folder, and begins."""
        content = self._experiment.to_dict()
        name = self._experiment.name or "fedgossip"
        settings = dict(_flat("", content))
        for thread in self._threads:
            thread.begin(lambda tracker: tracker.begin(name, settings))

    def peer(self, row: PeerRow) -> None:
        """Keep what a peer logged in a round, until the row of the round passes it on; WAITING rounds at most."""
        if row.logged and (row.round in self._logged or len(self._logged) < WAITING):
            self._logged.setdefault(row.round, LoggedNumbers()).add(row.round, row.logged)

    def row(self, row: NetworkRow) -> None:
        """Pass on the measurements of a round, and the means of the numbers that its peers logged."""
        values = measured(row, self._score)
        for name, points in self._logged.pop(row.round, LoggedNumbers()).lines().items():
            values[f"logged/{name}"] = points[0][1]
        for thread in self._threads:
            thread.put(lambda tracker: tracker.measured(row.round, values))

    def end(self, status: str, last: NetworkRow | None) -> None:
        """The run has ended; wait for what is still to be written, END_SECONDS at most."""
        values = measured(last, self._score) if last else {}
        for thread in self._threads:
            thread.put(lambda tracker: tracker.end(status, values), last=True)
        for thread in self._threads:
            thread.join(END_SECONDS)

    def failures(self) -> list[EventRow]:
        """Return the events of the trackers that have failed since this was last asked."""
        return [
            EventRow(-1, -1, "tracker_failed", {"tracker": thread.name, "reason": reason})
            for thread in self._threads
            if (reason := thread.failure())
        ]


class TrackerThread:
    """One tracker, called by a thread that ends with the process where it must."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self.name = name
        self._tracker = tracker
        self._calls: queue.Queue[Call | None] = queue.Queue(WAITING)
        self._reason = ""
        self._told = False
        self._thread = guarded_thread(self._serve, f"tracker {name}")

    def begin(self, call: Call) -> None:
        self._calls.put_nowait(call)
        self._thread.start()

    def put(self, call: Call, *, last: bool = False) -> None:
        try:
            self._calls.put_nowait(call)
            if last:
                self._calls.put_nowait(None)
        except queue.Full:
            self._reason = self._reason or "it is slower than the run, and has lost rounds"

    def join(self, seconds: float) -> None:
        if self._thread.is_alive():
            self._thread.join(seconds)
        if self._thread.is_alive():
            self._reason = self._reason or f"it has not taken all within {seconds:g} s of the end"

    def failure(self) -> str:
        """Return the reason of a failure, once; "" otherwise."""
        if not self._reason or self._told:
            return ""
        self._told = True
        return self._reason

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            if self._reason:
                continue
            try:
                call(self._tracker)
            except Exception as error:  # a library's, or its server's
                self._reason = line(f"{type(error).__name__}: {error}", 200)


def measured(row: NetworkRow, score: str) -> dict[str, float]:
    """Return the numbers of a round by the names that trackers show."""
    named = {
        "loss/training": row.loss,
        "loss/test": row.test_loss,
        f"{score or 'score'}/averaged model": row.score_averaged,
        f"{score or 'score'}/mean peer": row.score_mean_peer,
        f"{score or 'score'}/worst peer": row.score_worst_peer,
        "consensus distance": row.consensus_distance,
        "bytes sent": row.bytes_sent,
        "seconds": row.seconds,
    }
    return {name: float(value) for name, value in named.items() if value is not None and math.isfinite(value)}


def _flat(place: str, content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{place}{key}.", value)
        elif not isinstance(value, Sequence) or isinstance(value, str):
            yield f"{place}{key}", value
