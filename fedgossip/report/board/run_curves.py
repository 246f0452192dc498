"""The curves of a chosen run: its record's values over all participants, read as it grows.

Curves of a long run are thinned out evenly, each for itself, so that values measured every tenth round are kept.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from fedgossip.base.decoding import UnreadableError
from fedgossip.base.untrusted_text import line
from fedgossip.core import run_format
from fedgossip.core.records import LoggedNumbers, NetworkRow, PeerRow, Row, row_of
from fedgossip.report.board.heads import LETTERS_MAX, OF_ALL, counted
from fedgossip.report.watch.curves import Curve
from fedgossip.report.watch.tail import Tail

COLUMNS = ("score_averaged", "score_mean_peer", "score_worst_peer", "loss", "test_loss", "consensus_distance")
LOGGED = b'"logged"'
"""Bytes that a row with a loop's logged numbers contains."""
PREFIX = "logged:"
"""Of the names of their curves."""
BYTES, SECONDS = "bytes", "seconds"
POINTS_MAX = 2000
"""Maximum number of points of a curve."""


class RunCurves:
    """The curves of the run in `folder`; `version` changes when they do."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / run_format.ROWS
        self._decoder: msgspec.json.Decoder[Row] = msgspec.json.Decoder(Row)
        self.version = 0
        self._begin()

    def _begin(self) -> None:
        self._tail = Tail(self._path)
        self._curves = {name: Curve(POINTS_MAX) for name in COLUMNS}
        self._logged = LoggedNumbers(POINTS_MAX)
        self._places = LoggedNumbers(POINTS_MAX)  # of rounds on the other two axes, thinned alike

    def read(self, seconds: float) -> None:
        """Read new rows, for about so long."""
        until = time.monotonic() + seconds
        while lines := self._tail.lines():
            self.version += 1
            for text in lines:
                if OF_ALL in text or LOGGED in text:
                    self._fold(text)
            if time.monotonic() > until:
                return
        if self._tail.again:
            self.version += 1
            self._begin()

    def _fold(self, text: bytes) -> None:
        try:
            row = row_of(self._decoder, text)
        except UnreadableError:
            return
        if isinstance(row, PeerRow) and counted(row.round) is not None:
            self._logged.add(row.round, row.logged)
        if not isinstance(row, NetworkRow):
            return
        place = [counted(value) for value in (row.round, row.bytes_sent, row.seconds)]
        if None in place:
            return
        self._places.add(row.round, {BYTES: float(row.bytes_sent), SECONDS: row.seconds})
        for name, curve in self._curves.items():
            if (value := counted(getattr(row, name))) is not None:
                curve.add(row.round, *place[1:], value)

    def _lines_logged(self) -> Iterator[tuple[str, list[list[float | None]]]]:
        """Yield the mean of each logged number, at the bytes and seconds of its round or of the last one before it."""
        places = self._places.lines()
        rounds = [round for round, *_ in places.get(BYTES, ())]
        for name, points in self._logged.lines().items():
            at = [(point, bisect_right(rounds, point[0]) - 1) for point in points]
            yield (
                f"{PREFIX}{line(name, LETTERS_MAX)}",
                [[p[0], places[BYTES][k][1], places[SECONDS][k][1], p[1]] for p, k in at if k >= 0],
            )

    @property
    def read_share(self) -> float:
        """How much of the record is read: 1.0 where all is."""
        return 1.0 - self._tail.behind / self._tail.size if self._tail.size else 1.0

    def as_plain(self) -> dict[str, Any]:
        """Return the curves, each a list of [round, bytes sent by all until then, seconds since the start, value]."""
        lines = {name: [[at, *values] for at, values in curve.points()] for name, curve in self._curves.items()}
        lines |= dict(self._lines_logged())
        return {
            "version": self.version,
            "read": self.read_share,
            "lines": {name: line for name, line in lines.items() if line},
        }
