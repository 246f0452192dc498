"""The curves of a run that somebody has chosen: what its record says of all together, read as it grows.

Of a long run they are thinned out evenly, each for itself, so that what is measured every tenth round is not lost.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from fedgossip.board.heads import OF_ALL, counted
from fedgossip.decoding import UnreadableError
from fedgossip.records import NetworkRow, Row, row_of
from fedgossip.watching.curves import Curve
from fedgossip.watching.places import ROWS
from fedgossip.watching.tail import Tail

COLUMNS = ("score_averaged", "score_mean_peer", "score_worst_peer", "loss", "test_loss", "consensus_distance")
POINTS_MAX = 2000
"""Maximum number of points of a curve."""


class RunCurves:
    """The curves of the run in `folder`; `version` changes when they do."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ROWS
        self._decoder: msgspec.json.Decoder[Row] = msgspec.json.Decoder(Row)
        self.version = 0
        self._begin()

    def _begin(self) -> None:
        self._tail = Tail(self._path)
        self._curves = {name: Curve(POINTS_MAX) for name in COLUMNS}

    def read(self, seconds: float) -> None:
        """Read what is new, for about so long."""
        until = time.monotonic() + seconds
        while lines := self._tail.lines():
            self.version += 1
            for line in lines:
                if OF_ALL in line:
                    self._fold(line)
            if time.monotonic() > until:
                return
        if self._tail.again:
            self.version += 1
            self._begin()

    def _fold(self, line: bytes) -> None:
        try:
            row = row_of(self._decoder, line)
        except UnreadableError:
            return
        if not isinstance(row, NetworkRow):
            return
        place = [counted(value) for value in (row.round, row.bytes_sent, row.seconds)]
        if None in place:
            return
        for name, curve in self._curves.items():
            if (value := counted(getattr(row, name))) is not None:
                curve.add(row.round, *place[1:], value)

    @property
    def read_share(self) -> float:
        """How much of the record is read: 1.0 where all is."""
        return 1.0 - self._tail.behind / self._tail.size if self._tail.size else 1.0

    def as_plain(self) -> dict[str, Any]:
        """Return the curves, each a list of [round, bytes sent by all until then, seconds since the start, value]."""
        lines = {name: [[at, *values] for at, values in curve.points()] for name, curve in self._curves.items()}
        return {
            "version": self.version,
            "read": self.read_share,
            "lines": {name: line for name, line in lines.items() if line},
        }
