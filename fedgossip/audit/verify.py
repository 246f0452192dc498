"""Offline checks of logs, one against its signatures and two participants' against each other; and exports of a log.

**One log.**  A changed byte, and entries that are removed, inserted, repeated or moved, are reported by line.
Truncation at an entry, or an older copy, shows only against a published later hash (`head`) or a receiving partner's
log.  Omissions, or another log from the beginning, do not show: the same key signs that too.

**Two logs.**  Every message recorded as sent in one must be recorded as received in the other, by session, stage, size
and hash, and vice versa.  If they differ, one is false, or a message was lost.  A client need not record received
messages.

**Export.**  A cover of facts, then every entry, as CSV or JSON: names, numbers and hashes, nothing secret.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fedgossip.audit.entries import (
    CLOSED,
    ENTRY_BYTES_MAX,
    NOTHING,
    OPENED,
    REOPENED,
    Facts,
    LogEntry,
    Owner,
    bytes_of,
    entries,
    is_signed,
    lines,
    moment,
    owner_of,
    parsed,
)
from fedgossip.base import owner_files
from fedgossip.base.errors import NotWrittenError
from fedgossip.base.untrusted_text import csv_text, printable

CLOCK_STEP_MS = 1000
"""Maximum milliseconds that a clock may step back without a remark."""

NAMED_MAX = 100
"""Maximum number of listed faults, and of listed steps of the clock."""


@dataclass(frozen=True)
class Fault:
    """The fault and its line or record, from 1; 0: the whole file."""

    place: int
    what: str


CLIENT, REFUSED = "client", "refused"

Content = tuple[int, str, int, str]


class Crossing(NamedTuple):
    """A frame or a message exchanged with `peer`; None: with all."""

    peer: int | None
    session: int
    stage: str
    bytes: int
    sha256: str
    name: str
    """Kind of its entry."""
    fates: str = ""
    """For a reveal: the owners of the shares by kind, "0-2; 3"."""

    def __str__(self) -> str:
        of = f"stage {self.stage} of session {self.session}"
        return f"{self.name!r}, {of}, {self.bytes:,} bytes, sha256 {self.sha256[:12]}"

    @property
    def content(self) -> Content:
        return self.session, self.stage, self.bytes, self.sha256


@dataclass
class TrafficRecord:
    """All messages of a participant in one file, sent and received, each with its line or record."""

    owner: Owner | None = None
    """Owner of the log; None: a transcript, the coordinator's."""
    members: Mapping[int, bytes] = field(default_factory=dict)
    """Keys of the roster if the file is a transcript."""
    sessions: Set[int] | None = None
    """Sessions covered by the file; None: all."""
    sent: dict[Crossing, int] = field(default_factory=dict)
    received: dict[Crossing, int] = field(default_factory=dict)
    """Includes refused frames: they were received."""
    receives: bool = False
    """Whether the file records acceptance of any frame."""
    sums: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Hash of each session's sum, and its line."""

    def take(self, place: int, entry: LogEntry) -> None:
        """Add the message recorded in an entry of a log, if any."""
        facts = entry.facts
        sum_hash, session = facts.get("sum_sha256"), facts.get("session")
        if isinstance(sum_hash, str) and isinstance(session, int):
            self.sums.setdefault(session, (sum_hash, place))
        if found := crossing(entry):
            (self.sent if "to" in facts else self.received).setdefault(found, place)
            self.receives = self.receives or ("to" not in facts and entry.kind != REFUSED)

    def __str__(self) -> str:
        return str(self.owner) if self.owner else "the transcript"

    @property
    def place(self) -> str:
        return "line" if self.owner else "record"


def crossing(entry: LogEntry) -> Crossing | None:
    """Return the message recorded in an entry; None for other entries."""
    facts = entry.facts
    peer, size, sha256 = facts.get("to", facts.get("from")), facts.get("bytes"), facts.get("sha256")
    session, stage = facts.get("session", facts.get("round", -1)), facts.get("stage", entry.kind)
    if type(peer) is not int or type(size) is not int or type(session) is not int or not size:
        return None
    if not isinstance(sha256, str) or not isinstance(stage, str):
        return None
    return Crossing(peer, session, stage, size, sha256, entry.kind, _fates(facts))


def _fates(facts: Facts) -> str:
    alive, dropped = facts.get("alive"), facts.get("dropped")
    return fates_of(alive, dropped) if isinstance(alive, str) and isinstance(dropped, str) else ""


def fates_of(alive: str, dropped: str) -> str:
    """Return the given shares in words, ids as ranges: shares of b of the `alive`, of the mask keys of the
    `dropped`.
    """
    return f"{alive or 'nobody'}; {dropped or 'nobody'}"


def compare(one: TrafficRecord, other: TrafficRecord) -> list[str]:
    """Return each disagreement of a log with another log, or with a transcript, in words."""
    if wrong := _strangers(one, other):
        return [wrong]
    return [*_direction(one, other), *_direction(other, one), *_results(one, other)]


def without_transcript(one: TrafficRecord, transcripts: Iterable[TrafficRecord]) -> list[str]:
    """Return the sessions with messages of a client but without a transcript of the coordinator."""
    known = {session for other in transcripts for session in other.sessions or ()}
    first: dict[int, tuple[Crossing, int]] = {}
    for found, place in one.sent.items():
        if found.session not in known:
            first.setdefault(found.session, (found, place))
    return [f"{one}, line {place}, sent {found}; no transcript is of that session" for found, place in first.values()]


def _results(one: TrafficRecord, other: TrafficRecord) -> Iterator[str]:
    for session, (sum_hash, place) in one.sums.items():
        if session in other.sums and other.sums[session][0] != sum_hash:
            there, at = other.sums[session]
            text = f"{one}, {one.place} {place}, received the sum {sum_hash[:12]} of session {session}"
            yield f"{text}; {other}, {other.place} {at}, states {there[:12]}"


def _strangers(one: TrafficRecord, other: TrafficRecord) -> str:
    """Return why two records do not belong to two partners of one run, or ""."""
    if one.owner is None:
        return "compared with a transcript is the log of a client"
    if other.owner is None:
        known = other.members.get(one.owner.participant)
        return "" if known == one.owner.key else f"in the roster of the transcript {one} has another key, or none"
    if one.owner.run != other.owner.run:
        return f"logs of two runs: {one.owner.run} and {other.owner.run}"
    return f"both are logs of {one}" if one.owner.participant == other.owner.participant else ""


def _direction(sender: TrafficRecord, receiver: TrafficRecord) -> Iterator[str]:
    """Yield the differences between messages sent by `sender` and received by `receiver`."""
    if receiver.owner and receiver.owner.role == CLIENT and not receiver.receives:
        return
    if receiver.owner and not receiver.receives and sender.sent:
        yield f"{receiver} records no receipt: compare with the transcripts"
        return
    left, arrived = _between(sender.sent, sender, receiver), _between(receiver.received, receiver, sender)
    named = set()
    for content, (sent, place) in left.items():
        text = f"{sender}, {sender.place} {place}, sent {sent}"
        if content in arrived:
            got, there = arrived[content]
            if sent.fates and got.fates and sent.fates != got.fates:
                yield f"{text}, of shares {sent.fates}; {receiver}, {receiver.place} {there}, states {got.fates}"
            continue
        others = [one for one in arrived if one[:2] == content[:2] and one not in left and one not in named]
        if others:
            named.add(others[0])
            got, there = arrived[others[0]]
            yield f"{text}; {receiver}, {receiver.place} {there}, received {got}"
        else:
            yield f"{text}; {receiver} does not record its receipt: lost on its way, or left out"
    for content, (got, there) in arrived.items():
        if content not in left and content not in named:
            yield f"{receiver}, {receiver.place} {there}, received {got}; {sender} does not record its sending"


def _between(
    crossings: Mapping[Crossing, int], of: TrafficRecord, other: TrafficRecord
) -> dict[Content, tuple[Crossing, int]]:
    sessions = of.sessions if other.sessions is None else other.sessions
    return {
        found.content: (found, place)
        for found, place in crossings.items()
        if (sessions is None or found.session in sessions)
        and (found.peer is None or other.owner is None or found.peer == other.owner.participant)
    }


@dataclass(frozen=True)
class Verification:
    """The verdict on one file.  `remarks` are not faults: limits of the file's evidence, and steps of clocks."""

    path: Path
    what: str
    """"log of client 3", "transcript of session 12"."""
    faults: tuple[Fault, ...]
    remarks: tuple[str, ...]
    facts: Mapping[str, object]
    account: TrafficRecord = field(repr=False)
    unit: str = "line"

    @property
    def sound(self) -> bool:
        return not self.faults

    def worded(self) -> list[str]:
        """Return a line per fault."""
        return [f"{self.unit} {fault.place}: {fault.what}" if fault.place else fault.what for fault in self.faults]


def verify_log(path: Path, key: bytes | None = None, head: str | None = None) -> Verification:
    """Verify every link and signature by `key`, 32 bytes; without a key, by the one in the log itself.

    `head`: a published hash, which must occur.  Raises AuditError for an unreadable file.
    """
    following = _Following(key)
    for place, line in enumerate(lines(path), 1):
        following.take(place, line)
        if len(following.faults) >= NAMED_MAX:
            following.faults.append(Fault(place, "too many faults: the rest was not examined"))
            break
    return following.verdict(path, head)


class _Following:
    """Reads a log once; stores the hashes of valid entries, and totals."""

    def __init__(self, key: bytes | None) -> None:
        self.given, self.key = key, key
        self.owner: Owner | None = None
        self.faults: list[Fault] = []
        self.remarks: list[str] = []
        self.account = TrafficRecord()
        self.last: LogEntry | None = None
        """Last valid entry at its correct place."""
        self._unsound = 0  # lines since then, each perhaps at an entry's place
        self._places: dict[str, int] = {}  # valid entries by hash
        self._first = self._newest = ""
        self._kinds: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._versions: list[str] = []

    def take(self, place: int, line: bytes) -> None:
        if not line.endswith(b"\n"):
            size = f"{len(line)} bytes" if len(line) < ENTRY_BYTES_MAX else "many bytes"
            what = f"cut short, {size} without an end; a crash does this, and the next life mends and records it"
            return self._wrong(place, what)
        try:
            entry = parsed(line)
        except ValueError as error:
            return self._wrong(place, str(error))
        if place == 1:
            self._begin(entry)
        if self.key and not is_signed(entry, self.key):
            who = "the key that was given" if self.given else "the key that the log begins with"
            return self._wrong(place, f"entry {entry.number} is not signed by {who}")
        if self._placed(place, entry):
            self._count(place, entry)
        return None

    def _wrong(self, place: int, what: str) -> None:
        self.faults.append(Fault(place, what))
        self._unsound += 1

    def _begin(self, entry: LogEntry) -> None:
        try:
            self.owner = owner_of(entry)
        except ValueError as error:
            self.faults.append(Fault(1, str(error)))
            return
        if self.given and self.owner.key != self.given:
            self.faults.append(Fault(1, f"a log of the key {self.owner.key.hex()}, not of the one that was given"))
        self.key = self.given or self.owner.key

    def _placed(self, place: int, entry: LogEntry) -> bool:
        """Return whether a signed entry is at its place; record a fault otherwise."""
        number, previous = (self.last.number, self.last.hash) if self.last else (-1, NOTHING)
        unsound, due = self._unsound, number + 1
        if entry.hash in self._places:
            self.faults.append(Fault(place, f"line {self._places[entry.hash]}, entry {entry.number}, once more"))
            return False
        if entry.number < due:
            self.faults.append(Fault(place, f"entry {entry.number} after entry {number}: moved from its place"))
            return False
        self._places[entry.hash] = place
        self.last, self._unsound = entry, 0
        if entry.number > due + unsound:
            missing = f"entry {due} is" if entry.number == due + 1 else f"entries {due} to {entry.number - 1} are"
            self.faults.append(Fault(place, f"{missing} not before entry {entry.number}: cut out, or moved"))
        elif entry.number == due and entry.previous != previous:
            # a valid signature on another previous line: the owner has written two logs
            self.faults.append(Fault(place, f"entry {entry.number} follows another entry {number} than the one here"))
        return True

    def _count(self, place: int, entry: LogEntry) -> None:
        back = self._newest and moment(entry.time) < moment(self._newest) - CLOCK_STEP_MS
        if back and len(self.remarks) < NAMED_MAX:
            self.remarks.append(f"line {place}: {entry.time} after {self._newest}: the clock was set back")
        self._first, self._newest = self._first or entry.time, entry.time
        self._kinds[entry.kind] += 1
        size, version = bytes_of(entry.facts), entry.facts.get("version")
        if size:
            self._bytes[entry.kind] += size
        if entry.kind in (OPENED, REOPENED) and isinstance(version, str) and version not in self._versions:
            self._versions.append(version)
        self.account.take(place, entry)

    def verdict(self, path: Path, head: str | None) -> Verification:
        if self.last is None and not self.faults:
            self.faults.append(Fault(0, "the log has no entry"))
        elif self.key is None:
            self.faults.append(Fault(0, "no signature was verified: the log does not name its owner; give the key"))
        if self.owner and not self.given:
            self.remarks.append(f"verified by the key that the log itself names, {self.owner.key.hex()}: is it theirs?")
        self._end(head)
        self.account.owner = self.owner
        what = f"log of {self.owner or 'nobody'}"
        return Verification(path, what, tuple(self.faults), tuple(self.remarks), self._facts(), self.account)

    def _end(self, head: str | None) -> None:
        if head is None:
            if self.last and self.last.kind != CLOSED:
                self.remarks.append(
                    "no end marker: still being written, ended by a crash, or cut off there; --head decides"
                )
        elif head not in self._places:
            self.faults.append(Fault(0, f"no entry has the hash {head}, which was given: the end is cut off"))
        elif self.last and (after := self.last.number + 1 - self._places[head]) > 0:
            self.remarks.append(f"{after} entries after the given hash")

    def _facts(self) -> dict[str, object]:
        owner = self.owner
        return {
            "participant": owner and owner.participant,
            "role": owner and owner.role,
            "key": owner and owner.key.hex(),
            "run": owner and owner.run,
            "versions": self._versions,
            "entries": sum(self._kinds.values()),
            "first": self._first,
            "last": self._newest,
            "kinds": dict(sorted(self._kinds.items())),
            "bytes": dict(sorted(self._bytes.items())),
            "head": self.last.hash if self.last else "",
        }


COLUMNS = ("number", "time", "kind", "bytes", "with", "round", "session", "sha256", "more", "hash")

_IN_COLUMNS = {"bytes", "to", "from", "round", "session", "sha256"}


def row(entry: LogEntry) -> dict[str, object]:
    """Return an entry by COLUMNS."""
    facts = entry.facts
    peer = next((f"{word} {facts[word]}" for word in ("to", "from") if word in facts), "")
    more = "; ".join(f"{name} {printable(str(value))}" for name, value in facts.items() if name not in _IN_COLUMNS)
    size, round = bytes_of(facts), facts.get("round", "")
    return {
        "number": entry.number, "time": entry.time, "kind": entry.kind, "bytes": "" if size is None else size,
        "with": peer, "round": printable(str(round)), "session": printable(str(facts.get("session", ""))),
        "sha256": printable(str(facts.get("sha256", ""))), "more": more, "hash": entry.hash,
    }  # fmt: skip


def cover(verdict: Verification) -> dict[str, object]:
    """Return the facts above the entries: owner of the log, totals, verdict."""
    facts = dict(verdict.facts)
    kinds, sizes = facts.pop("kinds"), facts.pop("bytes")
    assert isinstance(kinds, Mapping) and isinstance(sizes, Mapping)
    totals = {f"{kind}, entries": count for kind, count in kinds.items()}
    totals |= {f"{kind}, bytes": size for kind, size in sizes.items()}
    return {
        **facts,
        **totals,
        "verified": "sound" if verdict.sound else "NOT sound: " + "; ".join(verdict.worded()),
        "remarks": "; ".join(verdict.remarks),
    }


def as_json(verdict: Verification) -> str:
    """Return cover and entries as one JSON object."""
    found = [{name: getattr(entry, name) for name in entry.__struct_fields__} for entry in entries(verdict.path)]
    return json.dumps({"cover": cover(verdict), "entries": found}, indent=1)


def as_csv(verdict: Verification) -> str:
    """Return the cover with a fact in each row, an empty row, the names of the columns, and a row per entry."""
    listed = [list(row(entry).values()) for entry in entries(verdict.path)]
    return csv_text([*cover(verdict).items(), [], COLUMNS, *listed], "\r\n")


def write(path: Path, text: str) -> None:
    """Write a file atomically.  Raises NotWrittenError."""
    try:
        owner_files.placed(path, text.encode())
    except OSError as error:
        raise NotWrittenError(path, error) from None
