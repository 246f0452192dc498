"""One line of an audit log: its content, the hash that chains it to the previous line, and a signature.

    {"number":3,"time":"2026-03-01T08:15:30.125Z","kind":"sent","facts":{...},"previous":H,"hash":H,"signature":S}

    hash       SHA-256 of ("audit entry", the line up to the hash), which holds the hash of the line before
    signature  Ed25519 of ("audit", hash), by the participant's identity

The hash covers the file's bytes.  The first line names the participant; the hash before it is zeros.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from fedgossip.base import outside_files
from fedgossip.base.decoding import from_json
from fedgossip.base.errors import ConfigError
from fedgossip.base.untrusted_text import quoted
from fedgossip.core import run_format
from fedgossip.secure.primitives import Sign, digest, transcript, verify

FORMAT = 1

ENTRY_BYTES_MAX = 8192
"""Maximum bytes of a line: a cohort of 1000 ids fits as text."""

NOTHING = "0" * 64
"""Previous hash of the first entry."""

OPENED, REOPENED, MENDED, CLOSED = "opened", "reopened", "mended", "closed"
"""The log's own entries: its first line, a later incarnation's first, a truncated torn line, an incarnation's end."""

BEGIN = b'{"number":0,'
"""First bytes of every log."""

Fact = int | float | str | bool
Facts = Mapping[str, Fact]

_Hash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Signature = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{128}$")]
_WORD = re.compile(r"[a-z][a-z0-9_]{0,39}")
_TAIL = len(',"hash":"' + NOTHING + '","signature":"' + 2 * NOTHING + '"}')


class AuditError(ConfigError):
    """An audit log or a transcript that cannot be read, or cannot be continued."""


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    number: Annotated[int, msgspec.Meta(ge=0)]
    time: str
    kind: str
    facts: dict[str, int | float | str | bool]
    previous: _Hash


class LogEntry(_Content, frozen=True, forbid_unknown_fields=True):
    hash: _Hash
    signature: _Signature


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(LogEntry)


# --- whose log --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Owner:
    """The owner of a log; the facts of its first entry."""

    participant: int
    """Its id in the run; below 0 for approvals to join, before the organiser has assigned an id."""
    role: str
    """"client" or "coordinator"."""
    key: bytes
    """Its Ed25519 key, 32 bytes."""
    run: str
    """Hash or name that identifies the run."""
    version: str

    def facts(self) -> dict[str, Fact]:
        named: dict[str, Fact] = {"participant": self.participant, "role": self.role, "key": self.key.hex()}
        return {**named, "run": self.run, "version": self.version, "format": FORMAT}

    def __str__(self) -> str:
        return f"{self.role} {self.participant}" if self.participant >= 0 else f"a {self.role} by invite"


def owner_of(first: LogEntry) -> Owner:
    """Return the owner named in the first entry.  Raises ValueError without one."""
    if (first.number, first.previous, first.kind) != (0, NOTHING, OPENED):
        raise ValueError("the first entry is not there")
    facts = first.facts
    if facts.get("format") != FORMAT:
        raise ValueError(f"a log of format {facts.get('format')}; this is format {FORMAT}")
    participant, words = facts.get("participant"), [facts.get(name) for name in ("role", "key", "run", "version")]
    if not isinstance(participant, int) or not all(isinstance(word, str) for word in words):
        raise ValueError("a first entry that does not name the log's owner")
    role, key, run, version = map(str, words)
    if not re.fullmatch("[0-9a-f]{64}", key):
        raise ValueError("a first entry without a key")
    return Owner(participant, role, bytes.fromhex(key), run, version)


# --- writing one ------------------------------------------------------------------------------------------------------


def written(number: int, time_ns: int, kind: str, facts: Facts, previous: str, sign: Sign) -> tuple[bytes, str]:
    """Return the line, with its end, and its hash.  Raises ValueError for invalid or too long facts."""
    _check(kind, facts)
    content = _encoder.encode(_Content(number, stamp(time_ns), kind, dict(facts), previous))[:-1]
    name = _hash(content)
    line = _closed(content, name, sign(_signed(name)).hex()) + b"\n"
    if len(line) > ENTRY_BYTES_MAX:
        raise ValueError(f"an entry {kind!r} of {len(line)} bytes; at most {ENTRY_BYTES_MAX}")
    return line, name


def _check(kind: str, facts: Facts) -> None:
    for word in (kind, *facts):
        if not _WORD.fullmatch(word):
            raise ValueError(f"{word!r}: names are lower-case words of at most 40 letters, digits and _")
    for name, value in facts.items():
        whole = type(value) is int and abs(value) < 2**63
        if not (whole or type(value) in (str, bool) or (type(value) is float and math.isfinite(value))):
            raise ValueError(f"{kind}: {name} is no number, text, true or false")  # its value may be secret


def _closed(content: bytes, name: str, signature: str) -> bytes:
    return content + f',"hash":"{name}","signature":"{signature}"}}'.encode()


def _hash(content: bytes) -> str:
    return digest("audit entry", content).hex()


def _signed(name: str) -> bytes:
    return transcript("audit", bytes.fromhex(name))


def stamp(time_ns: int) -> str:
    """Return nanoseconds since 1970 as UTC with milliseconds."""
    seconds, rest = divmod(time_ns // 1_000_000, 1000)
    at = datetime.fromtimestamp(seconds, UTC).replace(microsecond=1000 * rest)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(time: str) -> int:
    """Return the milliseconds since 1970 of a stamp.  Raises ValueError for any other text."""
    at = datetime.fromisoformat(time)
    if at.tzinfo is None:
        raise ValueError("a time without a zone")
    ms = round(at.timestamp() * 1000)
    if stamp(ms * 1_000_000) != time:
        raise ValueError(f"{time!r} is not a time in this log's format")
    return ms


# --- reading them -----------------------------------------------------------------------------------------------------


def lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a log, each with its end; a torn last line has none.  A line longer than any entry is cut."""
    try:
        with outside_files.open_file(path, outside_files.ROWS) as file:
            while line := file.readline(ENTRY_BYTES_MAX):
                end = line
                while not end.endswith(b"\n") and (more := file.readline(ENTRY_BYTES_MAX)):
                    end = more
                yield line if end is line else line + end[-1:]
    except OSError as error:
        raise AuditError(
            f"{path}: {error.strerror}", f"A participant's log is {run_format.AUDIT_LOG} in its folder."
        ) from None


def parsed(line: bytes) -> LogEntry:
    """Return the entry of a complete line.  Raises ValueError for an invalid or changed line."""
    try:
        entry = from_json(_decoder, line)
        moment(entry.time)
        _check(entry.kind, entry.facts)
    except (ValueError, OverflowError):
        raise ValueError("no entry of a log") from None
    content = line[: -_TAIL - 1]
    if line != _closed(content, entry.hash, entry.signature) + b"\n" or entry.hash != _hash(content):
        raise ValueError(f"not as it was written: entry {entry.number} states another hash than its own")
    return entry


def is_signed(entry: LogEntry, key: bytes) -> bool:
    """Return whether the holder of `key` has signed this entry, and with it all entries before."""
    return verify(key, bytes.fromhex(entry.signature), _signed(entry.hash))


def bytes_of(facts: Facts) -> int | None:
    """Return the number of bytes recorded in an entry, with the words after a frame; None without any."""
    size, words = facts.get("bytes"), facts.get("words", 0)
    return size + 4 * words if isinstance(size, int) and isinstance(words, int) else None


def find_owner(path: Path) -> Owner | None:
    """Return the owner of a log; None if its first entry cannot be read."""
    try:
        return owner_of(next(entries(path)))
    except (AuditError, ValueError, StopIteration):
        return None


def entries(path: Path) -> Iterator[LogEntry]:
    """Yield a log's entries in order, without a torn last line, each with the hash written in it (`verify_log` checks
    the rest).

    Raises AuditError for a line other than an entry.
    """
    for place, line in enumerate(lines(path), 1):
        if not line.endswith(b"\n"):
            return
        try:
            yield parsed(line)
        except ValueError as error:
            raise AuditError(
                f"{path}, line {place}: {error}", f"Look with: fedgossip audit verify {quoted(path)}"
            ) from None
