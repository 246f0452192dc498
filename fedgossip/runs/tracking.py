"""Passes every row of a run to the file, to memory, to watchers and to trackers.

Separate threads call the trackers, so that none can delay or change the run.  A tracker that raises is dropped, a slow
one loses rounds, an unresponsive server is abandoned at the end; each is reported as `tracker_failed`.
"""

from __future__ import annotations

import csv
import io
import math
import os
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fedgossip.base import outside_files, owner_files
from fedgossip.base.errors import ConfigError, needed
from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.base.scores import Score
from fedgossip.base.untrusted_text import MASK, cell_text, csv_text, line, masked
from fedgossip.core import run_format
from fedgossip.core.forecasts import encoded
from fedgossip.core.records import EventRow, LoggedNumbers, NetworkRow, PeerRow, Row
from fedgossip.core.run_summary import ForecastFacts
from fedgossip.experiment import Experiment
from fedgossip.plans.completeness import ExchangeCounts, Exchanges
from fedgossip.runs.run_directory import Foretold, RunDirectory, write_whole

# Trackers of curves: each receives numbers by name and step, without information on runs.
#
# A tracker may raise any exception: `tracking` then drops it and reports it.


FINISHED = "finished"
MLFLOW_WORDS = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
"""Environment variables with MLflow's credentials."""


class Tracker(Protocol):
    """Made only when a run is certain to begin; called by one thread, in this order."""

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """Start a run of this name with these settings, each named "section.key"."""

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        """Record the measurements after `step` rounds."""

    def end(self, status: str, values: Mapping[str, float]) -> None:
        """Record the end of the run with its status and final numbers."""


class CsvTracker:
    """rounds.csv in the run's folder: a line per round, a column per number; cells of rounds without it are empty."""

    def __init__(self, place: str, folder: Path) -> None:
        self._path = outside_files.resolve(place) if place else folder / run_format.ROUNDS_CSV
        self._columns: list[str] = []

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        pass

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        values = {cell_text(name): value for name, value in values.items()}
        if not {"round", *values} <= set(self._columns):
            self._widen(values)
        cells = {"round": step, **values}
        self._write([[cells.get(name, "") for name in self._columns]])

    def end(self, status: str, values: Mapping[str, float]) -> None:
        pass

    def _widen(self, values: Mapping[str, float]) -> None:
        there = outside_files.read_text(self._path, outside_files.LARGE) if self._path.exists() else ""
        head, *lines = list(csv.reader(io.StringIO(there))) or [["round"]]
        self._columns = list(dict.fromkeys([*head, "round", *values]))
        if self._columns != head or not lines:
            wide = ([*line, *[""] * (len(self._columns) - len(line))] for line in lines)
            owner_files.placed(self._path, csv_text([self._columns, *wide]).encode())

    def _write(self, lines: Sequence[Sequence[object]]) -> None:
        with owner_files.opened(self._path, "ab") as file:
            file.write(csv_text(lines).encode())


class TensorBoardTracker:
    """Event files in the run's folder, or in `place`: tensorboard --logdir runs."""

    def __init__(self, place: str, folder: Path) -> None:
        self._place = Path(place) / folder.name if place else folder / run_format.TENSORBOARD
        self._made = needed("tensorboard.summary", "tensorboard", 'track.to = ["tensorboard"]').Writer
        self._writer: Any = None

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._writer = self._made(str(self._place))

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def end(self, status: str, values: Mapping[str, float]) -> None:  # noqa: ARG002
        self._writer.close()


class MlflowTracker:
    """A run of MLflow at `place`: a server's address, sqlite:///FILE, or a folder, in MLflow's notation."""

    def __init__(self, place: str, folder: Path) -> None:
        client = needed("mlflow.tracking", "mlflow", 'track.to = ["mlflow:URI"]').MlflowClient
        uri = place or str(folder.parent / run_format.MLRUNS)
        self._connect: Callable[[], Any] = lambda: client(tracking_uri=uri)
        self._name = folder.name
        self._client: Any = None
        self._run = ""

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        self._client = self._connect()
        there = self._client.get_experiment_by_name(name)
        experiment = there.experiment_id if there else self._client.create_experiment(name)
        self._run = self._client.create_run(experiment, run_name=self._name).info.run_id
        for key, value in settings.items():
            self._client.log_param(self._run, key, str(value)[:250])

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def end(self, status: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value)
        self._client.set_terminated(self._run, "FINISHED" if status == FINISHED else "FAILED")


class WandbTracker:
    """A run of Weights & Biases in the project `place`."""

    def __init__(self, place: str, folder: Path) -> None:
        self._wandb = needed("wandb", "wandb", 'track.to = ["wandb:PROJECT"]')
        self._project, self._folder = place or "fedgossip", folder
        self._run: Any = None

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:  # noqa: ARG002
        about = {"project": self._project, "name": self._folder.name, "dir": str(self._folder)}
        self._run = self._wandb.init(**about, config=dict(settings))

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def end(self, status: str, values: Mapping[str, float]) -> None:
        self._run.summary.update(dict(values))
        self._run.finish(exit_code=0 if status == FINISHED else 1)


KINDS: Mapping[str, Callable[[str, Path], Tracker]] = {
    "csv": CsvTracker,
    "tensorboard": TensorBoardTracker,
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
}


def _without_mask(name: str, place: str) -> str:
    """Return the address without the password's mask, if the environment has MLflow's credentials; otherwise raise
    ConfigError.
    """
    if name == "mlflow" and f"{MASK}@" in place and all(word in os.environ for word in MLFLOW_WORDS):
        return place.replace(f"{MASK}@", "")
    text = f"track.to: {name}:{place}: the password is not kept in a run's folder"
    raise ConfigError(text, f"Give the experiment file again, or set {' and '.join(MLFLOW_WORDS)} for MLflow.")


def make_tracker(text: str, folder: Path) -> Tracker:
    """Return the tracker "name" or "name:place", for a run in `folder`.

    Raises ConfigError if a library is missing.
    """
    name, _, place = text.partition(":")
    if MASK in place:
        place = _without_mask(name, place)
    return KINDS[name](place, folder)


WAITING = 10_000
"""Maximum number of rounds that a slow tracker may be behind."""
END_SECONDS = 15.0
"""Maximum wait for trackers at the end of a run, in seconds."""

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
        """Numbers logged by peers in rounds without a network row so far."""

    def begin(self) -> None:
        """Start the trackers, once the run has a folder."""
        content = self._experiment.to_dict()
        name = self._experiment.name or "fedgossip"
        settings = dict(_flat("", content))
        for thread in self._threads:
            thread.begin(lambda tracker: tracker.begin(name, settings))

    def peer(self, row: PeerRow) -> None:
        """Store the numbers that a peer logged in a round until the round's row passes them on; for at most WAITING
        rounds.
        """
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
        """End the trackers; wait at most END_SECONDS for their writing."""
        values = measured(last, self._score) if last else {}
        for thread in self._threads:
            thread.put(lambda tracker: tracker.end(status, values), last=True)
        for thread in self._threads:
            thread.join(END_SECONDS)

    def failures(self) -> list[EventRow]:
        """Return the events of the trackers that have failed since the last call."""
        return [
            EventRow(-1, -1, "tracker_failed", {"tracker": thread.name, "reason": reason})
            for thread in self._threads
            if (reason := thread.failure())
        ]


class TrackerThread:
    """One tracker, called by a thread that does not outlive the process."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self.name = name
        self._tracker = tracker
        self._calls: queue.Queue[Call | None] = queue.Queue(WAITING)
        self._reason = ""
        self._reported = False
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
        if not self._reason or self._reported:
            return ""
        self._reported = True
        return self._reason

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            if self._reason:
                continue
            try:
                call(self._tracker)
            except Exception as error:  # an error of a library, or of its server
                self._reason = line(f"{type(error).__name__}: {error}", 200)


def measured(row: NetworkRow, score: str) -> dict[str, float]:
    """Return the numbers of a round by their names in trackers."""
    named = {
        "loss/training": row.loss,
        "loss/test": row.test_loss,
        f"{score or 'score'}/averaged model": row.score_averaged,
        f"{score or 'score'}/mean peer": row.score_mean_peer,
        f"{score or 'score'}/worst peer": row.score_worst_peer,
        "consensus distance": row.consensus_distance,
        "bytes sent": row.bytes_sent,
        "seconds": row.seconds,
        **{f"metrics/{name}": value for name, value in (row.metrics or {}).items()},
    }
    return {name: float(value) for name, value in named.items() if value is not None and math.isfinite(value)}


def _flat(place: str, content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{place}{key}.", value)
        elif not isinstance(value, Sequence) or isinstance(value, str):
            yield f"{place}{key}", value


@runtime_checkable
class TakesNotes(Protocol):
    """A watcher that also takes remarks on a run's data, before its first row."""

    def __call__(self, row: Row) -> None: ...

    def take_notes(self, notes: Sequence[str]) -> None: ...


def pass_notes(watch: Callable[[Row], None] | None, notes: Sequence[str]) -> None:
    """Pass remarks on a run's data to a watcher that takes them; the summary has them too."""
    if isinstance(watch, TakesNotes):
        watch.take_notes(notes)


class Keeper:
    """Passes every row of a run to the file, to memory for the caller, and to watchers."""

    def __init__(
        self,
        directory: RunDirectory | None,
        watch: Callable[[Row], None] | None,
        tracking: Tracking | None = None,
        foretold: Foretold | None = None,
        exchanges: Exchanges | None = None,
    ) -> None:
        """`exchanges`: the plan's; a run with half of its exchanges missing reports it early."""
        self._attendance = ExchangeCounts(exchanges) if exchanges else None
        self.foretold = foretold
        self.rows: list[Row] = []
        self.events: dict[str, int] = {}
        self._watch = watch
        self.begin(directory, tracking)

    def begin(self, directory: RunDirectory | None, tracking: Tracking | None, notes: Sequence[str] = ()) -> None:
        """Write rows to `directory`, and to trackers, from now on: a run refused before leaves neither."""
        pass_notes(self._watch, notes)
        self._directory, self._tracking = directory, tracking
        if tracking:
            tracking.begin()

    @property
    def lost(self) -> int:
        """Number of rows that did not fit on the disk."""
        return self._directory.writer.lost if self._directory else 0

    @property
    def missed(self) -> tuple[str, ...]:
        """Sentences on missing exchanges of single rounds."""
        return self._attendance.missing_exchanges() if self._attendance else ()

    def remember(self, rows: Sequence[Row]) -> None:
        """Read the rows of the part of the run that was written before."""
        for row in rows:
            self._take(row)
            if self._attendance:
                self._attendance.take(row)

    def _take(self, row: Row) -> None:
        self.rows.append(row)
        if isinstance(row, EventRow):
            self.events[row.name] = self.events.get(row.name, 0) + 1

    def __call__(self, row: Row, *, news: bool = True) -> None:
        """Pass a row on; to watchers only if it is `news`, not an event of an earlier incarnation."""
        for event in self._attendance.take(row) if self._attendance else ():
            self(event, news=news)
        written = self._directory.writer.write(row) if self._directory else None
        for one in (row, written) if written else (row,):
            self._take(one)
            if self._watch and news:
                self._watch(one)
        self._track(row)

    def all(self, rows: Sequence[Row]) -> None:
        """Pass a batch of rows on: all are in the file before watchers see the first."""
        if self._attendance:
            rows = [one for row in rows for one in (*self._attendance.take(row), row)]
        written = list(self._directory.writer.write_all(rows)) if self._directory else []
        self.rows += rows
        for row in rows:
            if type(row) is EventRow:
                self.events[row.name] = self.events.get(row.name, 0) + 1
            if self._watch:
                self._watch(row)
        for event in written:
            self._take(event)
            if self._watch:
                self._watch(event)
        for row in rows if self._tracking else ():
            self._track(row)

    def _track(self, row: Row) -> None:
        if self._tracking and isinstance(row, PeerRow):
            self._tracking.peer(row)
        elif self._tracking and isinstance(row, NetworkRow):
            self._tracking.row(row)
            self._report_failures(self._tracking)

    def ended(self, status: str) -> None:
        """Let the trackers finish with this status."""
        if self._tracking:
            last = next((row for row in reversed(self.rows) if isinstance(row, NetworkRow)), None)
            self._tracking.end(status, last)
            self._report_failures(self._tracking)

    def compare_with_forecast(self, rows: Sequence[NetworkRow], score: Score, *, whole: bool) -> ForecastFacts:
        """Return the summary's facts on the forecast; after losses, write the forecast of the actual mixing."""
        if self.foretold is None:
            return {}
        realised = self.foretold.realised(self.rows) if whole else None
        if realised and self._directory:
            write_whole(self._directory.path / run_format.REALISED, encoded(realised))
        return self.foretold.facts(rows, score, realised)

    def _report_failures(self, tracking: Tracking) -> None:
        for event in tracking.failures():
            self(event)
