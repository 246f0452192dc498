"""A participant's own log: a line is on disk before its action is performed.

    log = AuditLog(folder / NAME, owner, sign, time.time_ns)
    log.past                      entries of earlier incarnations, (kind, facts) in order
    log.append("sent", {...})     on disk when it returns; NotWrittenError without room: nothing is changed

An incarnation without the entry "closed" was killed, or the log truncated; only a published `head` reveals truncation.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from fedgossip.audit.entries import (
    BEGIN,
    CLOSED,
    ENTRY_BYTES_MAX,
    MENDED,
    NOTHING,
    OPENED,
    REOPENED,
    AuditError,
    Facts,
    LogEntry,
    Owner,
    is_signed,
    lines,
    owner_of,
    parsed,
    written,
)
from fedgossip.base import owner_files
from fedgossip.base.errors import NotWrittenError
from fedgossip.base.owner_files import patiently
from fedgossip.base.untrusted_text import quoted
from fedgossip.secure.primitives import Sign

OWN = (OPENED, REOPENED, MENDED, CLOSED)


# --- what is there ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Lives:
    """A log of earlier incarnations."""

    owner: Owner
    first: str
    """Hash of the first entry, unique to this log."""
    last: LogEntry
    logged: tuple[tuple[str, Facts], ...]
    """Kind and facts of every line written by the participant itself."""
    whole_bytes: int
    """Bytes up to the end of the last complete line."""
    torn_bytes: int
    """Bytes of an incomplete line after it; its action was not performed."""


def read(path: Path) -> Lives:
    """Return the entries of earlier incarnations, after a check of every hash and link, and of the last entry's
    signature.

    Raises AuditError if one is wrong, and for a log without a complete line.
    """
    owner: Owner | None = None
    first = NOTHING
    last: LogEntry | None = None
    logged: list[tuple[str, Facts]] = []
    whole = torn = 0
    for place, line in enumerate(lines(path), 1):
        if not line.endswith(b"\n"):
            torn = path.stat().st_size - whole
            break
        try:
            entry = parsed(line)
            owner, first = owner or owner_of(entry), first if owner else entry.hash
        except ValueError as error:
            raise _refused(path, f"line {place}: {error}") from None
        if (entry.number, entry.previous) != (place - 1, last.hash if last else NOTHING):
            raise _refused(path, f"line {place}: entry {entry.number} does not follow the line before")
        if entry.kind not in OWN:
            logged.append((entry.kind, entry.facts))
        last, whole = entry, whole + len(line)
    if owner is None or last is None:
        raise _refused(path, "the log has no entry")
    if not is_signed(last, owner.key):
        raise _refused(path, f"line {last.number + 1}: not signed by {owner}, whose log this is")
    if torn > ENTRY_BYTES_MAX:
        raise _refused(path, f"{torn} bytes after line {last.number + 1} are no torn line")
    return Lives(owner, first, last, tuple(logged), whole, torn)


def _torn_first(path: Path) -> bool:
    """Return whether the first write into this file was cut short."""
    line = next(lines(path))
    begin = BEGIN[: len(line)]
    return not line.endswith(b"\n") and line.startswith(begin)


def _refused(path: Path, what: str) -> AuditError:
    advice = f"Keep the file, look with `fedgossip audit verify {quoted(path)}`, and start in a new folder."
    return AuditError(f"{path}: this log is not continued: {what}", advice)


# --- writing ----------------------------------------------------------------------------------------------------------


class AuditLog:
    """Appends one incarnation of a participant to its log; a context manager, for one thread.

    `clock`: nanoseconds since 1970.  `synced`: entries outlive a loss of power.  Raises AuditError for the log of
    another participant or run, a changed one, and one in use; NotWrittenError without room.
    """

    def __init__(self, path: Path, owner: Owner, sign: Sign, clock: Callable[[], int], *, synced: bool = True) -> None:
        self.path, self.owner = path, owner
        self._sign, self._clock, self._synced = sign, clock, synced
        self.number, self.head = 0, NOTHING
        """Number of the next entry, and hash of the last."""
        self.past: tuple[tuple[str, Facts], ...] = ()
        self.first = NOTHING
        """Hash of its first entry, unique to this log."""
        self._bytes = 0
        self._file: int | None = _locked(path)
        try:
            self._begin()
        except BaseException:
            self._close_file()
            raise

    def _begin(self) -> None:
        assert self._file is not None
        size = os.fstat(self._file).st_size
        past = read(self.path) if size and not _torn_first(self.path) else None
        torn = past.torn_bytes if past else size
        if past:
            self._check(past.owner)
            self.number, self.head, self._bytes = past.last.number + 1, past.last.hash, past.whole_bytes
            self.past, self.first = past.logged, past.first
        try:
            os.ftruncate(self._file, self._bytes)
            if self._synced:
                owner_files.sync_folder(self.path.parent)
        except OSError as error:
            raise NotWrittenError(self.path, error) from None
        if past:
            self._write(REOPENED, {"version": self.owner.version})
        else:
            self.first = self._write(OPENED, self.owner.facts())
        if torn:
            self._write(MENDED, {"bytes": torn})

    def _check(self, found: Owner) -> None:
        for name in ("participant", "role", "key", "run"):
            was, now = getattr(found, name), getattr(self.owner, name)
            if was != now:
                was, now = (one.hex()[:16] if isinstance(one, bytes) else one for one in (was, now))
                raise _refused(self.path, f"it is of {name} {was}, not {now}")

    def append(self, kind: str, facts: Facts) -> str:
        """Write an entry, on disk when this returns; return its hash.

        Raises NotWrittenError without room: nothing is changed, and the entry's action must not be performed.  Raises
        ValueError for too long facts, or bytes.
        """
        if kind in OWN:
            raise ValueError(f"{kind!r} is written by the log itself")
        return self._write(kind, facts)

    def close(self) -> None:
        """Write the end of this incarnation.  Raises NotWrittenError; the file is closed in any case."""
        if self._file is None:
            return
        try:
            self._write(CLOSED, {})
        finally:
            self._close_file()

    def _write(self, kind: str, facts: Facts) -> str:
        if self._file is None:
            raise AuditError(f"{self.path}: this log is closed", "Its last write failed, or its life has ended.")
        line, name = written(self.number, self._clock(), kind, facts, self.head, self._sign)
        try:
            _write_whole(self._file, line)
            if self._synced:
                os.fsync(self._file)
        except OSError as error:
            self._undo()
            raise NotWrittenError(self.path, error) from None
        self.number, self.head, self._bytes = self.number + 1, name, self._bytes + len(line)
        return name

    def _undo(self) -> None:
        """Truncate a failed write; if that fails, the next incarnation repairs the file."""
        assert self._file is not None
        try:
            os.ftruncate(self._file, self._bytes)
        except OSError:
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> AuditLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _locked(path: Path) -> int:
    """Open and lock the file for this process: two appending processes would fork the chain."""
    try:
        file = patiently(lambda: owner_files.opened_to_lock(path))
    except OSError as error:
        raise NotWrittenError(path, error) from None
    try:
        if owner_files.try_lock(file):
            return file
    except OSError as error:
        os.close(file)
        raise NotWrittenError(path, error) from None
    os.close(file)
    raise AuditError(f"{path}: another process writes this log", "End it, or use another folder.")


def _write_whole(file: int, line: bytes) -> None:
    """Write a line in one piece; in two on a nearly full disk: the second write raises the error."""
    rest = line
    while rest:
        rest = rest[os.write(file, rest) :]
