"""The small files of one run as a line of the board's table, in plain data.

Files may be forged: a value of another kind, type or size counts as unknown, and only short lines, numbers and booleans
are used.
"""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, from_json, from_toml
from fedgossip.base.untrusted_text import line
from fedgossip.core.records import NetworkRow, Row, renamed, row_of
from fedgossip.core.run_format import ENDED, EXPERIMENT, INCOMPLETE, REPORT, ROLES, ROWS, SUMMARY
from fedgossip.report.watch.places import OF_A_PEER, OF_A_RUN

READ = (EXPERIMENT, SUMMARY, ROWS, ENDED, INCOMPLETE, ROLES, REPORT, OF_A_PEER[0])
"""Files with changes that count as changes of the run."""
BYTES_MAX = 16 << 20
"""Maximum bytes of a file read as a whole; a summary of 10 000 peers has 3 MiB."""
EXPERIMENT_BYTES_MAX = 256 << 10
END_BYTES = 128 << 10
"""Number of bytes read at the end of a record for its newest round."""
KEYS_MAX = 400
"""Maximum number of an experiment's keys."""
LETTERS_MAX = 120
"""Maximum length of a text value."""
WHOLE_MAX = 2**53
"""Largest integer that a browser's numbers represent exactly."""
GOING_ON_SECONDS = 60.0
"""An unfinished run with files changed within this many seconds counts as running."""

Value = str | float | int | bool
Facts = dict[str, Value]


@dataclass(frozen=True)
class Head:
    """One run.  `facts`: its course and results, `settings`: its experiment by dotted keys; unknown ones are absent."""

    name: str
    facts: Facts
    settings: Facts
    lacks_report: bool
    changed: float
    """Time of the last change of its files, in seconds since 1970."""


Marks = Mapping[str, tuple[int, int]]
"""The existing files of READ: time of the last change, in ns, and size in bytes of each."""


def marks_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the marks of a folder's files; links are not followed, and other entries are absent.  Raises OSError."""
    with os.scandir(folder) as entries:
        found = {entry.name: entry.stat(follow_symlinks=False) for entry in entries if entry.name in READ}
    return {name: (at.st_mtime_ns, at.st_size) for name, at in found.items() if stat.S_ISREG(at.st_mode)}


def is_run(marks: Marks) -> bool:
    """Return whether it is the folder of a run, or of one participant of a run on several machines."""
    if OF_A_PEER[0] in marks:
        return ROWS in marks or ENDED in marks
    return any(name in marks for name in OF_A_RUN)


def read_head(folder: Path, marks: Marks) -> Head:
    """Return the head read from the files."""
    summary, error = _summary(folder / SUMMARY) if SUMMARY in marks else ({}, "")
    content = _experiment(folder / EXPERIMENT) if EXPERIMENT in marks else {}
    settings = dict(_flat(content, KEYS_MAX))
    changed = max((at for at, _ in marks.values()), default=0) / 1e9
    newest = _newest(folder / ROWS) if ROWS in marks and not summary else None
    facts = _scored(summary) | _facts_of(summary, settings) if summary else _going_on(newest, settings)
    facts["status"] = error or _status(folder, marks, summary, changed)
    name = summary.get("name") or content.get("name")
    return Head(line(name, LETTERS_MAX) if isinstance(name, str) else "", facts, settings, REPORT not in marks, changed)


def _status(folder: Path, marks: Marks, summary: Mapping[str, Any], changed: float) -> str:
    if summary:
        return line(summary.get("status") or "ended", LETTERS_MAX)
    if OF_A_PEER[0] in marks and ENDED in marks:
        return f"participant, {line(_summary(folder / ENDED)[0].get('status') or 'ended', LETTERS_MAX)}"
    return "running" if time.time() - changed < GOING_ON_SECONDS else "incomplete"


# --- facts ------------------------------------------------------------------------------------------------------------

_KEPT = ("driver", "digest", "rounds", "n", "test_loss", "consensus_distance", "bytes_sent", "seconds", "wall_seconds",
         "parameters", "algorithm", "graph", "mode", "rounds_abandoned", "secure", "processor")  # fmt: skip
_SCORES = {"averaged": "score", "mean_peer": "mean_peer", "worst_peer": "worst_peer", "name": "metric"}
_EPSILON = "epsilon"


def _facts_of(summary: Mapping[str, Any], settings: Facts) -> Facts:
    facts = {key: value for key in _KEPT if (value := plain(summary.get(key))) is not None}
    privacy = summary.get("privacy")
    if isinstance(privacy, dict) and (spent := plain(privacy.get(_EPSILON))) is not None:
        facts[_EPSILON] = spent
    return {**_method(settings), **facts}


def _scored(summary: Mapping[str, Any]) -> Facts:
    score = summary.get("score")
    score = score if isinstance(score, dict) else {}
    return {ours: value for key, ours in _SCORES.items() if (value := plain(score.get(key))) is not None}


def _going_on(newest: NetworkRow | None, settings: Facts) -> Facts:
    facts = _method(settings)
    if newest is None:
        return facts
    entries = {
        "rounds": newest.round, "score": newest.score_averaged, "mean_peer": newest.score_mean_peer,
        "worst_peer": newest.score_worst_peer, "test_loss": newest.test_loss, "seconds": newest.seconds,
        "consensus_distance": newest.consensus_distance, "bytes_sent": newest.bytes_sent,
    }  # fmt: skip
    return facts | {key: known for key, value in entries.items() if (known := plain(value)) is not None}


def _method(settings: Facts) -> Facts:
    beside = {"graph": "topology.graph", "n": "topology.n", "algorithm": "algorithm.name", "mode": "algorithm.mode"}
    if "coordinator.clients" in settings:
        beside = {"n": "coordinator.clients", "algorithm": "coordinator.algorithm"}
    if "parallel.workers" in settings:
        beside = {"n": "parallel.workers", "algorithm": "parallel.method"}
    return {ours: settings[key] for ours, key in beside.items() if key in settings}


def plain(value: object) -> Value | None:
    """Return a value that a table can show and a browser can calculate with; None for any other."""
    if isinstance(value, bool):
        return value
    return line(value, LETTERS_MAX) if isinstance(value, str) else counted(value)


def counted(value: object) -> float | None:
    """Return a number that a browser can calculate with; None for any other value."""
    if isinstance(value, int):
        return value if abs(value) <= WHOLE_MAX else None
    return value if isinstance(value, float) and math.isfinite(value) else None


def _flat(content: Mapping[str, Any], most: int, before: str = "") -> Iterator[tuple[str, Value]]:
    """Yield (dotted key, value) of nested tables; a list becomes a text."""
    for key, value in content.items():
        name = line(f"{before}{key}", LETTERS_MAX)
        if isinstance(value, dict):
            for found in _flat(value, most, f"{name}."):
                if most <= 0:
                    return
                most -= 1
                yield found
            continue
        shown = line(", ".join(map(_short, value[:16])), LETTERS_MAX) if isinstance(value, list) else plain(value)
        if most <= 0:
            return
        if shown is not None:
            most -= 1
            yield name, shown


def _short(value: object) -> str:
    """Return a list's entry as text; a table by its kind."""
    if isinstance(value, dict):
        return str(value.get("kind", "{…}"))[:LETTERS_MAX]
    return "[…]" if isinstance(value, list) else str(value)[:LETTERS_MAX]


# --- files ------------------------------------------------------------------------------------------------------------


_TOP: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_WANTED = {*_KEPT, "name", "status", "score", "accuracy", "privacy"}


def _summary(path: Path) -> tuple[dict[str, Any], str]:
    """Return a summary's displayed keys; "unreadable" for a malformed one.

    The graph and its weights, most of the bytes, are skipped: parsing them took most of the time for a thousand runs.
    """
    try:
        parts = from_json(_TOP, outside_files.read_bytes(path, BYTES_MAX))
    except (OSError, UnreadableError):
        return {}, "unreadable"
    found: dict[str, Any] = {}
    for key in _WANTED & parts.keys():
        try:
            found[key] = _ANY.decode(parts[key])
        except (msgspec.MsgspecError, RecursionError, ValueError):
            continue
    return renamed(found) or {"status": "ended"}, ""


def _experiment(path: Path) -> dict[str, Any]:
    try:
        return from_toml(outside_files.read_bytes(path, EXPERIMENT_BYTES_MAX).decode())
    except (OSError, ValueError, RecursionError):
        return {}


_ROW: msgspec.json.Decoder[Row] = msgspec.json.Decoder(Row)
OF_ALL = b'"kind":"network"'
"""Bytes that identify a network's row in its written form."""


def _newest(path: Path) -> NetworkRow | None:
    try:
        with outside_files.open_file(path, outside_files.ROWS) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - END_BYTES))
            lines = file.read(END_BYTES).splitlines()
    except OSError:
        return None
    for text in reversed(lines):
        if OF_ALL in text:
            try:
                row = row_of(_ROW, text)
            except UnreadableError:
                continue
            if isinstance(row, NetworkRow):
                return row
    return None
