"""Records: one line per peer and round, one per round for the network, one per event; and the kinds of events.

A `RowWriter` appends them to `metrics.jsonl`, without fields at their defaults.  Row 1 follows the first round, row 0
is the state before it.  Machines report events (`machine.Report`), drivers and fault scripts processes and links;
event_kinds.toml holds every property of an event name; machines read none of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec
import numpy as np

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import UnreadableError, from_json, from_toml
from fedgossip.core.machine import Report

FOLLOWED_MOST = 64
"""Maximum number of clients with a row each in every round."""
ADAPTER_DISTANCE = "adapter_distance"
"""Name of ||mean(B) mean(A) - mean(BA)|| / ||mean(BA)||, over the contributions of a round, in the record."""


class PeerRow(msgspec.Struct, tag="peer", tag_field="kind", omit_defaults=True, gc=False):
    """One peer's round: bytes of frames, and of payload vectors alone; seconds of training, of communicating (transfers
    without training), of waiting (the remaining time), and of mixing.
    """

    round: int
    peer: int
    loss: float | None
    score: float | None
    """Score of its model on the common test set; a client's: of the received model, on its local examples."""
    bytes_sent: int
    bytes_received: int
    seconds_training: float
    seconds_waiting: float
    seconds_mixing: float
    seconds: float
    staleness: int | None = None
    """Asynchronous runs: number of model changes while this round was trained from an older one."""
    clients: int | None = None
    """A coordinator's rows: number of contributions in the round; `loss` is the mean of their losses."""
    counted: list[int] | None = None
    """A coordinator's: ids of the contributors, with at most FOLLOWED_MOST clients."""
    score_clients: float | None = None
    """A coordinator's: mean score of the sent model, on the clients' held-out examples."""
    score_worst_client: float | None = None
    """The worst of those scores, if visible."""
    epsilon: float | None = None
    """Spent privacy budget of this participant."""
    logged: dict[str, float | None] | None = None
    """Numbers logged by a user's loop, each the mean over the round; null is NaN."""
    payload_sent: int = 0
    payload_received: int = 0
    seconds_communicating: float = 0.0
    """Earlier releases count it in seconds_waiting."""
    metrics: dict[str, float | None] | None = None
    """Numbers of its model from `evaluate` other than loss and score; null: not finite."""


class NetworkRow(msgspec.Struct, tag="network", tag_field="kind", omit_defaults=True, gc=False):
    """All peers after one round.  `bytes_sent` is cumulative; None if it was not measured."""

    round: int
    peers: int
    seconds: float
    bytes_sent: int
    loss: float | None = None
    test_loss: float | None = None
    score_averaged: float | None = None
    score_mean_peer: float | None = None
    score_worst_peer: float | None = None
    consensus_distance: float | None = None
    consensus_before: float | None = None
    update_spread: float | None = None
    metrics: dict[str, float | None] | None = None
    """Numbers of the averaged model from `evaluate` other than loss and score; null: not finite."""

    @property
    def measured(self) -> bool:
        """Whether a model was measured after this round, by a loss, a score or both."""
        return self.test_loss is not None or self.score_averaged is not None


class EventRow(msgspec.Struct, tag="event", tag_field="kind", omit_defaults=True, gc=False):
    """An event for readers of the run: a peer gone, a deadline missed, a frame refused."""

    round: int
    peer: int
    name: str
    value: object = None


Row = PeerRow | NetworkRow | EventRow

LOGGED_ROUNDS = 400
LOGGED_NAMES = 24
"""Maximum number of logged names; the first ones are kept."""
LoggedPoint = tuple[int, float, float, float]
"""(round, mean, lowest, highest) over the peers that logged the number in the round."""


class LoggedNumbers:
    """Logged numbers by name and round, combined over peers.

    Above `most` rounds it stores every second, fourth, ... and the newest.
    """

    def __init__(self, most: int = LOGGED_ROUNDS) -> None:
        self._most = most
        self._found: dict[str, dict[int, tuple[int, float, float, float]]] = {}  # count, sum, lowest, highest
        self._every: dict[str, int] = {}

    def add(self, round: int, logged: Mapping[str, float | None] | None) -> None:
        for name, value in (logged or {}).items():
            if value is not None and math.isfinite(value) and (name in self._found or len(self._found) < LOGGED_NAMES):
                self._add_number(self._found.setdefault(name, {}), name, round, value)

    def _add_number(
        self, rounds: dict[int, tuple[int, float, float, float]], name: str, round: int, value: float
    ) -> None:
        every, newest = self._every.setdefault(name, 1), max(rounds, default=round)
        if round % every and round < newest and round not in rounds:
            return
        if newest < round and newest % every:
            del rounds[newest]
        count, total, low, high = rounds.get(round, (0, 0.0, value, value))
        rounds[round] = count + 1, total + value, min(low, value), max(high, value)
        if len(rounds) > self._most:
            self._every[name] = every = 2 * every
            newest = max(rounds)
            for old in [one for one in rounds if one % every and one != newest]:
                del rounds[old]

    def lines(self) -> dict[str, list[LoggedPoint]]:
        """Return the points of each name, ascending by round."""
        return {
            name: [(round, total / count, low, high) for round, (count, total, low, high) in sorted(rounds.items())]
            for name, rounds in self._found.items()
        }


@runtime_checkable
class RowsTaker(Protocol):
    """A receiver of single rows and of whole batches."""

    def __call__(self, row: Row) -> None: ...
    def all(self, rows: Sequence[Row]) -> None: ...


def give_all(rows: Sequence[Row], take: Callable[[Row], None]) -> None:
    """Pass on rows in order: as one batch if `take` supports it."""
    if len(rows) > 1 and isinstance(take, RowsTaker):
        take.all(rows)
        return
    for row in rows:
        take(row)


class RowWriter:
    """Appends whole rows to a JSON-lines file; they survive a kill.

    A row that does not fit on the disk is dropped; `rows_lost` reports their number later.
    """

    def __init__(self, path: Path) -> None:
        self._file = owner_files.opened(path, "ab", buffering=0)
        self._encoder = msgspec.json.Encoder(enc_hook=_plain)
        self.lost = 0
        """Number of dropped rows."""
        self._dropped = 0
        self._reason = ""
        self._place = -1, -1

    def write(self, row: Row) -> EventRow | None:
        """Append a row.  Return the event `rows_lost` if it was written too, after the first row that fitted."""
        self._place = _place_of(row)
        if self._append(row):
            return self._write_lost()
        self.lost += 1
        self._dropped += 1
        return None

    def write_all(self, rows: Sequence[Row]) -> Iterator[EventRow]:
        """Append rows, in one piece if it fits.  Yield events as `write` returns them."""
        if not self._dropped and self._append_lines(self._encoder.encode_lines(rows)):
            self._place = _place_of(rows[-1])
            return
        for row in rows:
            if lost := self.write(row):
                yield lost

    def close(self) -> EventRow | None:
        """Close the file.  Return as `write` does."""
        if self._file.closed:
            return None
        lost = self._write_lost()
        self._file.close()
        return lost

    def _write_lost(self) -> EventRow | None:
        if not self._dropped:
            return None
        event = EventRow(*self._place, "rows_lost", {"count": self._dropped, "reason": self._reason})
        if not self._append(event):
            return None
        self._dropped = 0
        return event

    def _append(self, row: Row) -> bool:
        return self._append_lines(self._encoder.encode(row) + b"\n")

    def _append_lines(self, lines: bytes) -> bool:
        """Append whole lines; return False if they did not fit: the file is unchanged."""
        written = 0
        try:
            while written < len(lines):  # a nearly full disk takes a part before it reports that it is full
                written += self._file.write(lines[written:] if written else lines)
        except OSError as error:
            self._reason = error.strerror or str(error)
            if written:
                self._file.truncate(self._file.tell() - written)
            return False
        return True

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _place_of(row: Row) -> tuple[int, int]:
    return row.round, -1 if isinstance(row, NetworkRow) else row.peer


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no record")


def renamed(record: Any) -> Any:
    """Return a row or a summary with the current keys: earlier releases call scores accuracies."""
    if not isinstance(record, dict):
        return record
    return {f"score{key[8:]}" if key.startswith("accuracy") else key: value for key, value in record.items()}


def row_of(decoder: msgspec.json.Decoder[Row], line: bytes) -> Row:
    """Decode the row of a line.  Raises UnreadableError."""
    # rows of this release have no such key: most lines are decoded once
    if b'"accuracy' not in line:
        return from_json(decoder, line)
    named = renamed(from_json(_ANY, line))  # the row's own keys alone: a logged number may have this name
    return from_json(decoder, msgspec.json.encode(named))


_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a metrics.jsonl.  A last line truncated by a crash is omitted."""
    decoder = msgspec.json.Decoder(Row)
    rows: list[Row] = []
    for line in outside_files.lines_of(path):
        try:
            rows.append(row_of(decoder, line))
        except UnreadableError:
            break
    return rows


def event_row(peer: int, report: Report) -> EventRow | None:
    """Return the row of a report; None if it is outside the record."""
    if kind_of(report.name).quiet:
        return None
    return EventRow(round=report.round, peer=peer, name=report.name, value=report.value)


Implied = Literal[
    "", "gone", "suspected", "missed", "back", "there", "left", "ended", "asleep", "awake", "again", "relayed",
    "by_web", "direct",
]  # fmt: skip
"""The state that an event implies for participants.

The named ones: gone, suspected or missed at the reporter; back there (the reporter itself if none is named); there, for
all; or left.  The reporter: ended, in a state of the event's name; asleep or awake; alive again, from an earlier round
on.  Both: the route between them.
"""


class EventKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The properties of the events of one name."""

    meaning: str = ""
    """One sentence: the fact that the event reports."""
    advice: str = "Nothing: it is in the order of things."
    """One sentence: the action to take."""
    words: str = ""
    """Text of an event with a single value, {value}, or without one."""
    facts: tuple[str, ...] = ()
    """Texts of an event with several named facts: the first template with all its facts present, else the last."""
    led: str = ""
    """As `words`, in runs with a coordinator, if their text differs."""
    severity: Literal["grave", "noted", "quiet"] = "noted"
    """grave: shown first; noted: listed; quiet: part of normal operation, only counted."""
    implies: Implied = ""
    open_round: bool = False
    """Whether a coordinator and its clients report it for the open round, numbered by the completed rounds."""
    disturbs: bool = False
    """Whether the event changes the numbers of a real run."""

    @property
    def quiet(self) -> bool:
        return self.severity == "quiet"


HALF_MISSING = "half_missing"
"""Event of a run that continues but cannot end well; shown regardless of the number of shown events."""

MISSED = "missed"
"""A round lacks the models of some partners."""

SKIPPED = "skipped"
"""Rounds that a synchronous peer skipped: their number, and the next round that it takes part in."""

SKIPPED_MIX = "skipped_mix"
"""A round of private gossip whose sum could not be unmasked: no neighbour's model counts for it."""

UNKNOWN = EventKind()
"""Kind of a name outside the vocabulary, from another program or version."""


@cache
def event_kinds() -> Mapping[str, EventKind]:
    """Return the kind of every event by name, the gravest first."""
    text = Path(__file__).with_name("event_kinds.toml").read_text(encoding="utf-8")
    return msgspec.convert(from_toml(text), dict[str, EventKind])


def kind_of(name: str) -> EventKind:
    """Return the kind of a name; UNKNOWN outside the vocabulary."""
    return event_kinds().get(name, UNKNOWN)
