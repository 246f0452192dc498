"""All runs below a folder, found and read a piece at a time, the newest first.

A thousand runs are listed at once as lines with few facts, which are completed as their files are read; afterwards only
changed runs are read again.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgossip.base.untrusted_text import line
from fedgossip.report.board.heads import Head, Marks, is_run, marks_of, read_head
from fedgossip.report.watch.places import DEEP

RUNS_MAX = 20_000
"""Maximum number of runs on a board; of more the first by their folders."""
FOLDERS_MAX = 100_000
"""Maximum number of folders that are looked into."""
LOOK_SECONDS = 2.0
"""Seconds between two scans for changes; a tenth of a scan's time, where one takes longer than that."""
PATIENCE = 10.0


@dataclass
class ListedRun:
    """A run that was found.  `head`: None until it was read once."""

    folder: Path
    shown: str
    """Its folder, as displayed."""
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
    """All known runs."""
    unread: int
    more: bool
    """More changes remain than were requested."""


class Catalogue:
    """Call `look` again and again, from one thread; other threads may read its results at any time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.overfull = False
        """There are more runs than a board has room for."""
        self._known: dict[str, ListedRun] = {}
        self._gone: dict[str, int] = {}
        self._waiting: list[str] = []
        """Ids of the runs to read, the newest last."""
        self._version = 0
        self._next_look = 0.0
        self._lock = threading.Lock()

    def look(self, seconds: float = 0.2) -> None:
        """Scan for changes, if due, and read changed runs for about so long."""
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
        """Return the changes after `version`, the oldest first, at most about so many runs."""
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
            except OSError:  # deleted since, or not readable for us
                continue


def _within(folder: Path, base: Path) -> str:
    inner = folder.relative_to(base).as_posix()
    return folder.resolve().name if inner == "." else inner


def _inner(folder: Path) -> list[Path]:
    """Return the folders in a folder, the last by name first; links are not followed."""
    with os.scandir(folder) as entries:
        return sorted((Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)), reverse=True)


def _key(shown: str) -> str:
    """Return a run's key in addresses: letters that stay the same as long as its folder does."""
    return hashlib.blake2s(shown.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def row(key: str, run: ListedRun) -> Mapping[str, Any]:
    """Return a run as plain data, for the page."""
    told: dict[str, Any] = {"id": key, "folder": run.shown}
    if run.head is None:
        return told
    head = run.head
    return {
        **told,
        "name": head.name,
        "facts": head.facts,
        "settings": head.settings,
        "report": not head.lacks_report,
        "changed": head.changed,
    }
