"""Answers to a browser: the page, the table's changes, curves of chosen runs, their reports, and `watch` of each.

A report is a file of the run, and may be forged: it is served as a page of its own origin, whose script runs only where
it is ours.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedgossip.base import outside_files
from fedgossip.base.errors import FedgossipError
from fedgossip.base.untrusted_text import line
from fedgossip.core import run_format
from fedgossip.core.records import EventRow
from fedgossip.core.roles import Roles
from fedgossip.report.board.catalogue import Catalogue, row
from fedgossip.report.board.run_curves import RunCurves
from fedgossip.report.page.markup import REPORT_SCRIPTS
from fedgossip.report.watch import snapshot
from fedgossip.report.watch.follow import Follower
from fedgossip.report.watch.local_server import OF_DATA, HttpAnswer, LocalServer, Query, page_of
from fedgossip.report.watch.places import RunPlace, find
from fedgossip.report.watch.serving import WatchPage, json_answer

PAGE = "fedgossip.report.board:board.html"
SCRIPTS = ("fedgossip.report.page:figure.js", "fedgossip.report.board:chart.js", "fedgossip.report.board:board.js")
STYLES = ("fedgossip.report.page:style.css", "fedgossip.report.board:board.css")

RUNS_AT_ONCE = 250
"""Maximum number of runs in one answer; a browser requests the rest again."""
CHOSEN_MAX = 24
"""Maximum number of runs in one request for curves."""
CURVES_KEPT = 96
WATCHED_KEPT = 8
"""Maximum number of runs with files in memory; a request for more reads the oldest again."""
READ_SECONDS = 0.25
"""Seconds for which one answer may read curves; the rest is sent later."""
REPORT_BYTES_MAX = 256 << 20

T = TypeVar("T")
Words = Callable[[Roles], Callable[[EventRow], str]]
"""The wording of events, for a run with these roles."""


class Recent(Generic[T]):
    """The newest `most` requested values, by a key."""

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
    """Answers for a catalogue.  `answer` may be called by many threads at once."""

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
        since = _whole(query.get("since")) if query.get("board") == [self._token] else 0
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
        """Return the curves of the runs requested as "run=ID:VERSION", where they are newer than VERSION."""
        until, found = time.monotonic() + READ_SECONDS, {}
        with self._lock:
            for asked in query.get("run", [])[:CHOSEN_MAX]:
                key, _, version = asked.partition(":")
                if (run := self._catalogue.run(key)) is None:
                    continue
                curves = self._of_runs.get(key, lambda run=run: RunCurves(run.folder))  # type: ignore[misc]
                curves.read(max(0.0, until - time.monotonic()))
                if curves.version != _whole([version]):
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
    """A report may run the script of reports, and save its figures; it reaches neither the board nor a network."""
    script = "".join(files("fedgossip.report.page").joinpath(name).read_text("utf-8") for name in REPORT_SCRIPTS)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rest = OF_DATA.removeprefix("default-src 'none'; ")
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'; img-src data:; {rest}; "
        "sandbox allow-scripts allow-downloads"
    )


def _whole(words: list[str] | None) -> int:
    """Return the requested number; 0 for any other text."""
    word = words[0] if words else ""
    return int(word) if word.isascii() and word.isdigit() and len(word) < 16 else 0


def served(folder: Path, words: Words, port: int = 0) -> tuple[LocalServer, Catalogue]:
    """Return a server of the board of a folder, and the catalogue; the caller must call its `look`."""
    catalogue = Catalogue(folder)
    return LocalServer(Board(catalogue, words).answer, port), catalogue
