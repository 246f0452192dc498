"""Follows a place: reads new rows of its files and keeps the state of the run up to date.

The record is metrics.jsonl.  During a run on this machine, peers' own rows precede it; only their newest figures are
used.  Files are read a bounded piece at a time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, json_value
from fedgossip.core.records import Row, row_of
from fedgossip.core.run_format import ENDED, ENDPOINT, EXPERIMENT, PEERS, ROWS, SUMMARY
from fedgossip.report.watch.places import Facts, RunPlace, facts_of
from fedgossip.report.watch.state import State

PACE_SECONDS = 20.0
"""Period over which rounds per second are averaged."""

DRIVERS = {
    "sim": "simulated",
    "stacked": "stacked",
    "local": "real processes, this machine",
    "peers": "real processes, started one by one",
    "slurm": "real processes, tasks of Slurm",
    "ray": "real processes, actors of Ray",
}


class Follower:
    """Reads `place`; its attributes have the state of the last `poll`; `on_row` is called with each new row, once it is
    in the state.
    """

    def __init__(self, place: RunPlace, on_row: Callable[[Row], None] | None = None) -> None:
        self.place, self.on_row = place, on_row
        self.facts: Facts = facts_of(place)
        self.driver = "" if place.folder else "peers"
        self.unreadable = 0
        """Number of lines skipped as invalid rows."""
        self.version = 0
        """Changes with any other attribute."""
        self.news_at = time.time()
        self.began_at = self._began()
        self.ended_at: float | None = None
        self.lacking: list[str] = []
        """Missing work of an ended run, in sentences."""
        self.wall_seconds: float | None = None
        self._decoder = msgspec.json.Decoder(Row)
        self._pace: deque[tuple[float, float]] = deque()
        self._start()

    def _start(self) -> None:
        facts = self.facts
        self.state = State(facts.roles, facts.rounds, facts.topology, facts.federation, facts.score)
        self.state.foretold = facts.foretold
        self._record = {-1: Tail(self.place.folder / ROWS)} if self.place.folder else {}
        self._own: dict[int, Tail] = {}
        self._ended: set[int] = set()
        self._pace.clear()
        if not self.place.folder:
            for peer in self.state.peers.values():
                peer.watched = False
            for node, folder in self.place.peers.items():
                self._record[node] = Tail(folder / ROWS)
                if peer_there := self.state.peer(node):
                    peer_there.watched = True

    @property
    def ended(self) -> bool:
        """Whether the run has ended and all its rows are read."""
        return bool(self.state.status) and not self.behind

    @property
    def behind(self) -> int:
        """Number of unread bytes of the record."""
        return sum(tail.behind for tail in self._record.values())

    @property
    def read_share(self) -> float:
        """Share of the record read so far; 1.0 for all."""
        whole = sum(tail.size for tail in self._record.values())
        return 1.0 if not whole else 1.0 - self.behind / whole

    @property
    def seconds(self) -> float:
        """Wall-clock duration of the run, so far or in total."""
        if self.wall_seconds is not None:
            return self.wall_seconds
        return max(0.0, (self.ended_at or time.time()) - self.began_at)

    @property
    def rounds_per_second(self) -> float | None:
        """Recent rate, by the mean peer; over the whole run if it has ended; None if unknown."""
        if self.state.status:
            return self.state.round / self.seconds if self.seconds > 0 and self.state.round else None
        if len(self._pace) < 2 or self._pace[-1][0] - self._pace[0][0] < 1.0:
            return None
        (began, at), (now, here) = self._pace[0], self._pace[-1]
        return (here - at) / (now - began)

    def poll(self, seconds: float = 0.25) -> bool:
        """Read new rows, for about `seconds`; return whether any were new."""
        until = time.monotonic() + seconds
        over = self._last_words()  # checked before reading: everything written before the check is then read too
        news = self._read(self._record, until, own=False)
        if not self.behind and self.place.folder and not self.state.status:
            self._meet()
            news = self._read(self._own, until, own=True) or news
        if any(tail.again for tail in self._record.values()):
            self._start()
            news = True
        if over and not self.behind and self.state.status != over:
            self._end(over)
            news = True
        if news:
            self.version += 1
            self.news_at = time.time()
        self._measure_pace()
        return news

    def _end(self, status: str) -> None:
        """End the run: all rows are read."""
        self.state.status = status
        if self.driver == "peers" and self.place.folder:
            for peer in self.state.peers.values():
                peer.watched = peer.turns > 0

    def _read(self, tails: dict[int, Tail], until: float, *, own: bool) -> bool:
        news = False
        for tail in list(tails.values()):
            while lines := tail.lines():
                news = True
                for line in lines:
                    self._fold(line, own=own)
                if time.monotonic() > until:
                    return True
        return news

    def _fold(self, line: bytes, *, own: bool) -> None:
        try:
            row = row_of(self._decoder, line)
        except UnreadableError:
            self.unreadable += bool(line.strip())
            return
        if own:
            self.state.preview(row)
        elif self.state.take(row) and self.on_row:
            self.on_row(row)

    def _meet(self) -> None:
        assert self.place.folder
        if len(self._own) < self.state.n and (self.place.folder / PEERS).is_dir():
            for node in range(self.state.n):
                path = self.place.folder / PEERS / f"{node:02d}" / ROWS
                if node not in self._own and path.exists():
                    self._own[node] = Tail(path, newest=True)

    def _measure_pace(self) -> None:
        if self.behind or not self.state.peers:
            return
        now = time.monotonic()
        self._pace.append((now, self.state.progress))
        while now - self._pace[0][0] > PACE_SECONDS:
            self._pace.popleft()

    # --- beginning and end ------------------------------------------------------------------------------------------

    def _began(self) -> float:
        folders = [self.place.folder] if self.place.folder else list(self.place.peers.values())
        names = (EXPERIMENT, ENDPOINT, ROWS)
        times = [path.stat().st_mtime for folder in folders for name in names if (path := folder / name).exists()]
        return min(times, default=time.time())

    def _last_words(self) -> str:
        if self.state.status:
            return self.state.status
        if self.place.folder:
            return self._summary(self.place.folder)
        for node, folder in self.place.peers.items():
            if node not in self._ended and (word := _json(folder / ENDED)):
                self._ended.add(node)
                self.ended_at = _changed(folder / ENDED)
                if peer := self.state.peer(node):
                    peer.ended = str(word.get("status"))
                text = word.get("message")
                if peer and peer.ended in ("partial", "finished") and isinstance(text, str) and text:
                    self.lacking.append(text)
                self.version += 1
        if len(self._ended) < len(self.place.peers):
            return ""
        words = {self.state.peers[node].ended for node in self.place.peers if node in self.state.peers}
        return next((word for word in ("failed", "interrupted", "partial") if word in words), "finished")

    def _summary(self, folder: Path) -> str:
        if not self.driver:
            local = (folder / PEERS).is_dir()
            self.driver = "local" if local else next((d for d in DRIVERS if f"-{d}-" in folder.name), "")
        summary = _json(folder / SUMMARY)
        if not summary:
            return ""
        self.ended_at = _changed(folder / SUMMARY)
        wall, driver = summary.get("wall_seconds"), summary.get("driver")
        if wall is None:  # combined from folders: the peers' own durations
            wall = summary.get("seconds")
        self.wall_seconds = float(wall) if isinstance(wall, int | float) else None
        self.driver = driver if isinstance(driver, str) else self.driver
        lacking = summary.get("lacking")
        self.lacking = [text for text in lacking if isinstance(text, str)] if isinstance(lacking, list) else []
        return str(summary.get("status") or "ended")


def _json(path: Path) -> dict[str, Any]:
    """Return the object in a file; {} if it is missing or incomplete."""
    try:
        content = json_value(outside_files.read_bytes(path))
    except (OSError, UnreadableError):
        return {}
    return content if isinstance(content, dict) else {}


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


PIECE_BYTES = 1 << 20
"""Maximum bytes read at once; a longer line is invalid and is skipped."""

NEWEST_BYTES = 1 << 16
"""Bytes read at the end of a file with earlier rows available elsewhere."""


class Tail:
    """Reads complete lines.  `newest`: begin near the end; `again`: the file became shorter, so it is another one."""

    def __init__(self, path: Path, *, newest: bool = False) -> None:
        self.path = path
        self.offset = 0
        self.size = 0
        """Size of the file at the last look, in bytes."""
        self.again = False
        self._torn = False  # the line at the offset began before it
        if newest and (size := self._look()) > NEWEST_BYTES:
            self.offset, self._torn = size - NEWEST_BYTES, True

    @property
    def behind(self) -> int:
        """Number of unread bytes at the last look."""
        return self.size - self.offset

    def lines(self) -> list[bytes]:
        """Return the next complete lines, PIECE_BYTES at most; an empty list after the last."""
        if self._look() == self.offset:
            return []
        if self.size < self.offset:
            self.again = True
            return []
        try:
            with outside_files.open_file(self.path, outside_files.ROWS) as file:
                file.seek(self.offset)
                data = file.read(PIECE_BYTES)
        except OSError:  # the file was deleted since the last check
            return []
        return self._split_lines(data)

    def _look(self) -> int:
        try:
            self.size = self.path.stat().st_size
        except OSError:
            self.size = self.offset  # no file, so nothing new
        return self.size

    def _split_lines(self, data: bytes) -> list[bytes]:
        end = data.rfind(b"\n") + 1
        if not end:
            if len(data) == PIECE_BYTES:
                self.offset, self._torn = self.offset + len(data), True
            return []
        self.offset += end
        first = data.find(b"\n") + 1 if self._torn else 0
        self._torn = False
        return data[first:end].splitlines()
