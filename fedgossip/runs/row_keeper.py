"""Distributes every row of a run to the file, to memory, to watchers and to trackers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedgossip.base.scores import Score
from fedgossip.core import run_format
from fedgossip.core.forecasts import encoded
from fedgossip.core.records import EventRow, NetworkRow, PeerRow, Row
from fedgossip.core.run_summary import ForecastFacts
from fedgossip.plans.completeness import ExchangeCounts, Exchanges
from fedgossip.runs.run_directory import Foretold, RunDirectory, write_whole
from fedgossip.runs.tracking import Tracking


class Keeper:
    """Passes every row of a run on: to the file, to memory for the caller, and to watchers."""

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

    def begin(self, directory: RunDirectory | None, tracking: Tracking | None) -> None:
        """Write rows to `directory`, and to trackers, from now on: a run that is refused before leaves neither."""
        self._directory, self._tracking = directory, tracking
        if tracking:
            tracking.begin()

    @property
    def lost(self) -> int:
        """The number of rows that did not fit on the disk."""
        return self._directory.writer.lost if self._directory else 0

    @property
    def missed(self) -> tuple[str, ...]:
        """A sentence on the exchanges that single rounds went on without."""
        return self._attendance.missing_exchanges() if self._attendance else ()

    def remember(self, rows: Sequence[Row]) -> None:
        """Read the rows of the part of the run that is written already."""
        for row in rows:
            self._take(row)
            if self._attendance:
                self._attendance.take(row)

    def _take(self, row: Row) -> None:
        self.rows.append(row)
        if isinstance(row, EventRow):
            self.events[row.name] = self.events.get(row.name, 0) + 1

    def __call__(self, row: Row, *, news: bool = True) -> None:
        """Pass a row on; to watchers where it is `news`, not an event of an earlier incarnation."""
        for event in self._attendance.take(row) if self._attendance else ():
            self(event, news=news)
        written = self._directory.writer.write(row) if self._directory else None
        for one in (row, written) if written else (row,):
            self._take(one)
            if self._watch and news:
                self._watch(one)
        self._track(row)

    def all(self, rows: Sequence[Row]) -> None:
        """Pass a batch of rows on: all are in the file before the first is watched."""
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
        """Let the trackers finish: the run ended so."""
        if self._tracking:
            last = next((row for row in reversed(self.rows) if isinstance(row, NetworkRow)), None)
            self._tracking.end(status, last)
            self._report_failures(self._tracking)

    def held_against_the_forecast(self, rows: Sequence[NetworkRow], score: Score, *, whole: bool) -> ForecastFacts:
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
