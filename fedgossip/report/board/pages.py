"""Answers to a browser: the page, the table's changes, curves, reports, and `watch` of each run.

A report may be forged: it is served with a separate origin, and its script runs only if it is fedgossip's.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError
from fedgossip.base.errors import FedgossipError
from fedgossip.base.untrusted_text import line
from fedgossip.core import run_format
from fedgossip.core.records import EventRow, LoggedNumbers, NetworkRow, PeerRow, Row, row_of
from fedgossip.core.roles import Roles
from fedgossip.report.board.heads import LETTERS_MAX, OF_ALL, Head, Marks, counted, is_run, marks_of, read_head
from fedgossip.report.page.markup import REPORT_SCRIPTS
from fedgossip.report.watch import snapshot
from fedgossip.report.watch.federation import Curve
from fedgossip.report.watch.follow import Follower, Tail
from fedgossip.report.watch.local_server import OF_DATA, HttpAnswer, LocalServer, Query, WatchPage, json_answer, page_of
from fedgossip.report.watch.places import DEEP, RunPlace, find

PAGE = "fedgossip.report.board:board.html"
SCRIPTS = ("fedgossip.report.page:figure.js", "fedgossip.report.board:chart.js", "fedgossip.report.board:board.js")
STYLES = ("fedgossip.report.page:style.css", "fedgossip.report.board:board.css")

RUNS_AT_ONCE = 250
"""Maximum number of runs in one answer; a browser requests the rest again."""
CHOSEN_MAX = 24
"""Maximum number of runs in one request for curves."""
CURVES_KEPT = 96
WATCHED_KEPT = 8
"""Maximum number of runs with files in memory; a request beyond it reads the oldest again."""
READ_SECONDS = 0.25
"""Maximum seconds for reading curves in one answer; the rest is sent later."""
REPORT_BYTES_MAX = 256 << 20

T = TypeVar("T")
Words = Callable[[Roles], Callable[[EventRow], str]]
"""The wording of events, for a run with these roles."""


class Recent(Generic[T]):
    """The `most` latest requested values, by a key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, T] = OrderedDict()

    def get(self, key: str, make: Callable[[], T]) -> T:
        found = self._kept.pop(key, None)
        self._kept[key] = found = make() if found is None else found
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return found


class WatchedRun:
    """The watch page of one run of the board."""

    def __init__(self, place: RunPlace, words: Words) -> None:
        self._follower = Follower(place)
        self._words = words
        self._lock = threading.Lock()
        self.page = WatchPage(self._graph, self._moment)

    def _graph(self) -> dict[str, Any]:
        with self._lock:
            return snapshot.graph(self._follower)

    def _moment(self) -> dict[str, Any]:
        with self._lock:
            self._follower.poll()
            return snapshot.moment(self._follower, self._words(self._follower.state.roles))


class Board:
    """Answers for a catalogue.  Many threads may call `answer` at once."""

    def __init__(self, catalogue: Catalogue, words: Words) -> None:
        self._catalogue = catalogue
        self._words = words
        self._page = page_of(PAGE, SCRIPTS, STYLES)
        self._token = secrets.token_hex(8)  # versions are those of one board
        self._lock = threading.Lock()  # of the curves and the watched runs
        self._of_runs: Recent[RunCurves] = Recent(CURVES_KEPT)
        self._watched: Recent[WatchedRun] = Recent(WATCHED_KEPT)
        self._of_reports = _policy_of_reports()

    def answer(self, path: str, query: Query) -> HttpAnswer | None:
        """Return the answer for a path; None for an unknown one."""
        match path.split("/")[1:]:
            case [""]:
                return self._page
            case ["runs.json"]:
                return json_answer(self._news(query))
            case ["curves.json"]:
                return json_answer(self._curves(query))
            case ["report", key]:
                return self._report(key)
            case ["watch", key, name]:
                return self._watch(key, name)
        return None

    def _news(self, query: Query) -> dict[str, Any]:
        since = _parse_number(query.get("since")) if query.get("board") == [self._token] else 0
        news = self._catalogue.since(since, RUNS_AT_ONCE)
        return {
            "board": self._token,
            "folder": line(self._catalogue.folder.resolve()),
            "now": time.time(),
            "version": news.version,
            "runs": [row(key, run) for key, run in news.runs],
            "gone": news.gone,
            "count": news.count,
            "unread": news.unread,
            "more": news.more,
            "overfull": self._catalogue.overfull,
        }

    def _curves(self, query: Query) -> dict[str, Any]:
        """Return the curves of the requested "run=ID:VERSION" newer than VERSION."""
        until, found = time.monotonic() + READ_SECONDS, {}
        with self._lock:
            for asked in query.get("run", [])[:CHOSEN_MAX]:
                key, _, version = asked.partition(":")
                if (run := self._catalogue.run(key)) is None:
                    continue
                curves = self._of_runs.get(key, lambda run=run: RunCurves(run.folder))  # type: ignore[misc]
                curves.read(max(0.0, until - time.monotonic()))
                if curves.version != _parse_number([version]):
                    found[key] = curves.as_plain()
        return {"board": self._token, "runs": found}

    def _report(self, key: str) -> HttpAnswer | None:
        if (run := self._catalogue.run(key)) is None:
            return None
        try:
            content = outside_files.read_bytes(run.folder / run_format.REPORT, REPORT_BYTES_MAX)
        except OSError:
            return None
        return HttpAnswer("text/html; charset=utf-8", content, self._of_reports)

    def _watch(self, key: str, name: str) -> HttpAnswer | None:
        if (run := self._catalogue.run(key)) is None:
            return None
        try:
            with self._lock:
                watched = self._watched.get(key, lambda: WatchedRun(find([run.folder]), self._words))
        except FedgossipError:  # its folder no longer holds a run
            return None
        return watched.page.answer(name)


def _policy_of_reports() -> str:
    """Return the policy of reports: a report may run its script and save figures; it may not use the network."""
    script = "".join(files("fedgossip.report.page").joinpath(name).read_text("utf-8") for name in REPORT_SCRIPTS)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rest = OF_DATA.removeprefix("default-src 'none'; ")
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'; img-src data:; {rest}; "
        "sandbox allow-scripts allow-downloads"
    )


def _parse_number(words: list[str] | None) -> int:
    word = words[0] if words else ""
    return int(word) if word.isascii() and word.isdigit() and len(word) < 16 else 0


def served(folder: Path, words: Words, port: int = 0) -> tuple[LocalServer, Catalogue]:
    """Return a server of the board of a folder, and the catalogue; the caller must call its `look`."""
    catalogue = Catalogue(folder)
    return LocalServer(Board(catalogue, words).answer, port), catalogue


# All runs below a folder, found and read a piece at a time, the newest first.
#
# A thousand runs are listed at once as lines with few facts, which are completed as their files are read; afterwards
# only changed runs are read again.


RUNS_MAX = 20_000
"""Maximum number of runs on a board; beyond, only the first by folder are shown."""
FOLDERS_MAX = 100_000
"""Maximum number of searched folders."""
LOOK_SECONDS = 2.0
"""Minimum seconds between two scans for changes; ten times as long as a scan if that is more."""
PATIENCE = 10.0


@dataclass
class ListedRun:
    """A run found by the scan.  `head`: None until its first reading."""

    folder: Path
    shown: str
    """Its folder as displayed."""
    marks: Marks
    version: int
    head: Head | None = None


@dataclass(frozen=True)
class News:
    """Changes since a version."""

    version: int
    runs: list[tuple[str, ListedRun]]
    gone: list[str]
    count: int
    """Number of known runs."""
    unread: int
    more: bool
    """Whether more changes remain than were requested."""


class Catalogue:
    """Call `look` repeatedly from one thread; other threads may read its results at any time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.overfull = False
        """Whether there are more runs than a board has room for."""
        self._known: dict[str, ListedRun] = {}
        self._gone: dict[str, int] = {}
        self._waiting: list[str] = []
        """Ids of the runs to read, the newest last."""
        self._version = 0
        self._next_look = 0.0
        self._lock = threading.Lock()

    def look(self, seconds: float = 0.2) -> None:
        """Scan for changes if due, and read changed runs for about `seconds`."""
        until = time.monotonic() + seconds
        if time.monotonic() >= self._next_look:
            began = time.monotonic()
            self._find()
            self._next_look = time.monotonic() + max(LOOK_SECONDS, PATIENCE * (time.monotonic() - began))
        while self._waiting and time.monotonic() < until:
            self._read(self._waiting[-1])
            self._waiting.pop()

    @property
    def unread(self) -> int:
        return len(self._waiting)

    def run(self, key: str) -> ListedRun | None:
        """Return the run with this id."""
        return self._known.get(key)

    def since(self, version: int, most: int) -> News:
        """Return the changes after `version`, the oldest first, for at most about `most` runs."""
        with self._lock:
            new = sorted((run.version, key) for key, run in self._known.items() if run.version > version)
            shown, more = new[:most], len(new) > most
            upto = shown[-1][0] if more else self._version
            gone = [key for key, at in self._gone.items() if version < at <= upto]
            runs = [(key, self._known[key]) for _, key in shown]
            return News(upto, runs, gone, len(self._known), len(self._waiting), more)

    def _find(self) -> None:
        found = {_key(shown): (folder, shown, marks) for folder, shown, marks in self._folders()}
        changed = [
            key for key, (_, _, marks) in found.items() if (run := self._known.get(key)) is None or run.marks != marks
        ]
        changed.sort(key=lambda key: max((at for at, _ in found[key][2].values()), default=0))
        with self._lock:
            for key in [key for key in self._known if key not in found]:
                del self._known[key]
                self._version += 1
                self._gone[key] = self._version
            for key in reversed(changed):
                self._gone.pop(key, None)
                before = self._known.get(key)
                self._version += 1
                self._known[key] = ListedRun(*found[key], self._version, before.head if before else None)
            for key in list(self._gone)[: max(0, len(self._gone) - RUNS_MAX)]:
                del self._gone[key]
            again = set(changed)
            self._waiting = [key for key in self._waiting if key in self._known and key not in again] + changed

    def _read(self, key: str) -> None:
        run = self._known.get(key)
        if run is None:
            return
        head = read_head(run.folder, run.marks)
        with self._lock:
            self._version += 1
            run.head, run.version = head, self._version

    def _folders(self) -> Iterator[tuple[Path, str, Marks]]:
        looked, listed = 0, 0
        self.overfull = False
        below = [(self.folder, 0)]
        while below:
            folder, deep = below.pop()
            looked += 1
            if looked > FOLDERS_MAX or listed >= RUNS_MAX:
                self.overfull = True
                return
            try:
                marks = marks_of(folder)
                if is_run(marks):
                    listed += 1
                    yield folder, line(_within(folder, self.folder), 400), marks
                elif deep < DEEP:
                    below += [(path, deep + 1) for path in _inner(folder)]
            except OSError:  # deleted since, or not readable for this user
                continue


def _within(folder: Path, base: Path) -> str:
    inner = folder.relative_to(base).as_posix()
    return folder.resolve().name if inner == "." else inner


def _inner(folder: Path) -> list[Path]:
    """Return a folder's subfolders, the last by name first, without links."""
    with os.scandir(folder) as entries:
        return sorted((Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)), reverse=True)


def _key(shown: str) -> str:
    """Return a run's key in addresses, a function of its folder."""
    return hashlib.blake2s(shown.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def row(key: str, run: ListedRun) -> Mapping[str, Any]:
    """Return a run as plain data, for the page."""
    fields: dict[str, Any] = {"id": key, "folder": run.shown}
    if run.head is None:
        return fields
    head = run.head
    return {
        **fields,
        "name": head.name,
        "facts": head.facts,
        "settings": head.settings,
        "report": not head.lacks_report,
        "changed": head.changed,
    }


# The curves of a chosen run: its record's values over all participants, read as it grows.
#
# Curves of a long run are thinned out evenly, each separately, so that values measured every tenth round stay.


COLUMNS = ("score_averaged", "score_mean_peer", "score_worst_peer", "loss", "test_loss", "consensus_distance")
LOGGED = b'"logged"'
"""Bytes that identify a row with a loop's logged numbers."""
PREFIX = "logged:"
"""Prefix of the names of their curves."""
BYTES, SECONDS = "bytes", "seconds"
POINTS_MAX = 2000
"""Maximum number of points of a curve."""


class RunCurves:
    """The curves of the run in `folder`; `version` changes with them."""

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
        """Read new rows, for about `seconds`."""
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
        if counted(row.round) is not None:
            self._logged.add(row.round, row.metrics)
        place = [counted(value) for value in (row.round, row.bytes_sent, row.seconds)]
        if None in place:
            return
        self._places.add(row.round, {BYTES: float(row.bytes_sent), SECONDS: row.seconds})
        for name, curve in self._curves.items():
            if (value := counted(getattr(row, name))) is not None:
                curve.add(row.round, *place[1:], value)

    def _lines_logged(self) -> Iterator[tuple[str, list[list[float | None]]]]:
        """Yield the means of each logged number, by bytes and seconds."""
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
        """Share of the record read so far; 1.0 for all."""
        return 1.0 - self._tail.behind / self._tail.size if self._tail.size else 1.0

    def as_plain(self) -> dict[str, Any]:
        """Return the curves, each a list of [round, bytes sent by all so far, seconds since the start, value]."""
        lines = {name: [[at, *values] for at, values in curve.points()] for name, curve in self._curves.items()}
        lines |= dict(self._lines_logged())
        return {
            "version": self.version,
            "read": self.read_share,
            "lines": {name: line for name, line in lines.items() if line},
        }
