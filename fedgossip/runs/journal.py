"""The journal of a participant: every event is on disk before its machine handles it, so that a new process can resume.

A machine's state is a function of its events: a resumed process makes the same machine and passes it the same events
(`Host`).  Each event has a seed, drawn when it is written, for the random bytes of its handling.

    file      "fgjourn1", then records as in a trace (`trace`): an opening, an image if any, then one for each event
    image     the state after all events before it: a journal that has grown is replaced by a new one with an image
    secrets   seeds and images contain a run's masks: only its owner can read the file, which is removed at the end of
              the run

Source of the random bytes: SHAKE256 (NIST FIPS 202) of the seed and a counter.

A record cut short by a kill is removed: its event was not handled, and its cause still exists.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedgossip.base import owner_files
from fedgossip.base.decoding import from_msgpack
from fedgossip.base.errors import ConfigError, NotWrittenError, ResumeError
from fedgossip.base.version import __version__
from fedgossip.core.machine import Event
from fedgossip.runs.trace import (
    ENCODER,
    FRAME,
    HEADER_BYTES_MAX,
    Array,
    ArrayShape,
    arrays_in,
    raw,
    rebuild_event,
    shapes_of,
    split_event,
)

MAGIC = b"fgjourn1"

GROWN_BYTES = 256 << 10
"""Minimum bytes of events that are replaced by an image; more, if the image itself is longer."""

ROUNDS_HELD = 8
"""Number of rounds with messages as long as the old and the new journal while one replaces the other."""

SEED_BYTES = 32
"""Bytes of an event's seed."""

_PURPOSE = b"fedgossip 1 entropy of a journal's event"


class _Begun(msgspec.Struct, tag_field="kind", tag="begun", forbid_unknown_fields=True):
    """Facts that a resuming process must have in common with the first."""

    version: str
    experiment: str
    schema: str
    began_ns: int
    """Nanoseconds since 1970, by this machine's clock."""
    seed: bytes


class _Noted(msgspec.Struct, tag_field="kind", tag="noted", forbid_unknown_fields=True):
    """State of the participant's log when the run began."""

    logged: int
    """Number of its lines."""
    company: str
    """Hash of the clients of earlier exact sums of the same records."""


class _Event(msgspec.Struct, tag_field="kind", tag="event", forbid_unknown_fields=True):
    now_ns: int
    event: str
    fields: dict[str, Any]
    arrays: list[ArrayShape]
    seed: bytes
    memory: list[str] = []
    """Names of the task's state after a training; its arrays are the last ones."""


class _Image(msgspec.Struct, tag_field="kind", tag="image", forbid_unknown_fields=True):
    logged: int
    """Number of lines in the participant's log."""
    names: list[str]
    shapes: list[list[int]]
    arrays: list[ArrayShape]


_Header = _Begun | _Noted | _Image | _Event
_decoder: msgspec.msgpack.Decoder[_Header] = msgspec.msgpack.Decoder(_Header)


def check_room(folder: Path, size: int) -> None:
    """Raise ConfigError if the folder's disk has no room for a journal of about `size` bytes."""
    free = shutil.disk_usage(folder).free
    if size > free:
        text = f"{folder}: the journal grows to about {size / 1e9:.3g} GB in this run, and {free / 1e9:.3g} GB are free"
        raise ConfigError(text, "Name a folder on a larger disk with --out.")


class Journal:
    """The journal of one participant's incarnation, for one thread; a context manager.

    `rounds`: rounds with rows in the record.  `entropy`: random bytes of the handled event.  Raises ResumeError for the
    journal of another run or release, a changed one, and one in use.
    """

    def __init__(self, path: Path, experiment: str, schema: str) -> None:
        self.path = path
        self.rounds: set[int] = set()
        self.memory: Mapping[str, Array] | None = None
        """Task's state after the last training read; None without one."""
        self.logged, self.company = -1, ""
        """Number of lines in the log at the image, at first when the run began; see `note`."""
        self.image: Mapping[str, Array] | None = None
        """The state from which the events continue; None: from the beginning."""
        self._seed, self._drawn = b"", 0
        new = not path.exists()
        self._file = owner_files.opened_to_lock(path)
        try:
            free = owner_files.try_lock(self._file)
            if not free or not os.path.samestat(os.fstat(self._file), path.stat()):  # it was replaced meanwhile
                raise ResumeError(f"{path}: another process continues this run", "Wait until it has ended.")
            self._end = os.fstat(self._file).st_size
            if new or self._end == 0:
                seed = os.urandom(SEED_BYTES)
                self._begun = _Begun(__version__, experiment, schema, time.time_ns(), seed)
                self._end = 0
                self._append(MAGIC, self._begun, [])
            else:
                self._begun = self._opening(experiment, schema)
        except BaseException:
            self.close()
            raise
        self._base = self._load_head()
        self._reseed(self._begun.seed)

    @property
    def began_ns(self) -> int:
        """Start of the run in nanoseconds since 1970, by this machine's clock."""
        return self._begun.began_ns

    def _opening(self, experiment: str, schema: str) -> _Begun:
        if os.pread(self._file, len(MAGIC), 0) != MAGIC:
            raise self._broken("not a journal")
        found = self._record(len(MAGIC))
        if found is None or not isinstance(found[0], _Begun):
            raise self._broken("no opening")
        begun = found[0]
        if begun.version != __version__:
            text = f"{self.path}: begun by fedgossip {begun.version}, this is {__version__}"
            raise ResumeError(text, "Resume with the release that started the run.")
        if (begun.experiment, begun.schema) != (experiment, schema):
            raise ResumeError(f"{self.path}: begun with another experiment or model", "Name the same file and keys.")
        return begun

    def note(self, logged: int, company: str) -> None:
        """Record the state of the participant's log at the beginning; only the first call has an effect."""
        if self.logged < 0:
            self.logged, self.company = logged, company
            self._append(b"", _Noted(logged, company), [])
            self._base = self._end

    def __iter__(self) -> Iterator[tuple[int, Event]]:
        """Yield (now_ns, event) of each written event, with its `entropy`; a truncated record is removed.

        Raises ResumeError for a damaged one.
        """
        at = self._base
        while (found := self._record(at)) is not None:
            header, arrays, at = found
            if not isinstance(header, _Event):
                raise self._broken("no event where one belongs")
            count = len(arrays) - len(header.memory)
            try:
                event = rebuild_event(header.event, header.fields, arrays[:count])
            except Exception as error:
                raise self._broken(f"an event that cannot be read: {error!r}") from None
            if header.memory or header.event == "Trained":
                self.memory = dict(zip(header.memory, arrays[count:], strict=True))
            self._reseed(header.seed)
            yield header.now_ns, event
        if at < self._end:
            os.ftruncate(self._file, at)
            self._end = at

    def _load_head(self) -> int:
        """Read the records before the events; return the offset after them."""
        at = len(MAGIC)
        while (found := self._record(at)) and not isinstance(found[0], _Event):
            header, arrays, at = found
            if isinstance(header, _Noted):
                self.logged, self.company = header.logged, header.company
            elif isinstance(header, _Image):
                self.logged = header.logged
                whole = (array.reshape(shape) for array, shape in zip(arrays, header.shapes, strict=True))
                self.image = dict(zip(header.names, whole, strict=True))
        return at

    @property
    def grown(self) -> bool:
        """Whether the events take more bytes than an image in their place."""
        return self._end - self._base > max(self._base, GROWN_BYTES)

    def replace(self, image: Mapping[str, Array], logged: int) -> None:
        """Replace the events by an image of the state after them; the file is at any time the old or the new one.

        `logged`: number of lines in the participant's log.  Raises NotWrittenError; nothing is changed then.
        """
        old, end = self._file, self._end
        arrays = [*image.values()]
        header = _Image(logged, list(image), [[*one.shape] for one in arrays], shapes_of(arrays))
        try:
            self._file, self._end = owner_files.opened_to_lock(self._part), 0
            try:
                os.ftruncate(self._file, 0)  # a killed process may have begun it
                owner_files.try_lock(self._file)
                self._append(MAGIC, self._begun, [])
                if self.logged >= 0:
                    self._append(b"", _Noted(self.logged, self.company), [])
                self._append(b"", header, arrays)
                self._part.replace(self.path)
            except BaseException:
                self.close()
                raise
        except (OSError, NotWrittenError) as error:
            self._file, self._end = old, end
            with contextlib.suppress(OSError):
                self._part.unlink(missing_ok=True)
            raise NotWrittenError(self.path, error) if isinstance(error, OSError) else error from None
        os.close(old)
        self._base, self.logged = self._end, logged
        self._sync_name()

    @property
    def _part(self) -> Path:
        return self.path.with_name(f"{self.path.name}.part")

    def _sync_name(self) -> None:
        """Wait until the new file has the journal's name on disk: the next event is in it alone."""
        try:
            owner_files.sync_folder(self.path.parent)
        except OSError as error:
            raise NotWrittenError(self.path, error) from None

    def write(self, now_ns: int, event: Event, memory: Mapping[str, Array] | None = None) -> None:
        """Write an event to disk, before its machine handles it.  Raises NotWrittenError; nothing is changed then."""
        fields, arrays = split_event(event)
        kept = dict(memory or {})
        seed = os.urandom(SEED_BYTES)
        shapes = shapes_of([*arrays, *kept.values()])
        header = _Event(now_ns, type(event).__name__, fields, shapes, seed, list(kept))
        self._append(b"", header, [*arrays, *kept.values()])
        self._reseed(seed)

    def entropy(self, size: int) -> bytes:
        """Return random bytes, a function of the handled event's seed and of the bytes drawn before."""
        self._drawn += 1
        return hashlib.shake_256(_PURPOSE + self._seed + self._drawn.to_bytes(8, "big")).digest(size)

    def remove(self) -> None:
        """Remove the file: the run has ended and needs its secrets no longer."""
        self.close()
        with contextlib.suppress(OSError):
            self._part.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reseed(self, seed: bytes) -> None:
        self._seed, self._drawn = seed, 0

    def _append(self, begin: bytes, header: _Header, arrays: list[Array]) -> None:
        text, bodies = ENCODER.encode(header), [raw(array) for array in arrays]
        crc = zlib.crc32(text)
        for body in bodies:
            crc = zlib.crc32(body, crc)
        parts: list[bytes | memoryview] = [
            begin,
            FRAME.pack(len(text), sum(len(body) for body in bodies), crc),
            text,
            *bodies,
        ]
        try:
            for part in parts:
                rest = memoryview(part)
                while rest:
                    rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, self._end)
            raise NotWrittenError(self.path, error) from None
        self._end += sum(len(part) for part in parts)

    def _record(self, at: int) -> tuple[_Header, list[Array], int] | None:
        """Return the record at a byte offset, its arrays, and the offset after it; None at the end or for a torn
        record.
        """
        frame = os.pread(self._file, FRAME.size, at)
        if len(frame) < FRAME.size:
            return None
        length, size, crc = FRAME.unpack(frame)
        after = at + FRAME.size + length + size
        if after > self._end:
            return None
        if length > HEADER_BYTES_MAX:
            raise self._broken(f"the record at byte {at} is too long")
        text, body = self._read(at + FRAME.size, length), bytearray(self._read(at + FRAME.size + length, size))
        if zlib.crc32(body, zlib.crc32(text)) != crc:
            raise self._broken(f"the record at byte {at} is not as it was written")
        try:
            header = from_msgpack(_decoder, bytes(text))
            arrays = list(arrays_in(header.arrays, body)) if isinstance(header, _Event | _Image) else []
        except Exception as error:
            raise self._broken(f"the record at byte {at}: {error}") from None
        return header, arrays, after

    def _read(self, at: int, size: int) -> bytes:
        """Read `size` bytes, in calls of at most 2 GiB."""
        parts = []
        while size:
            part = os.pread(self._file, min(size, 1 << 30), at)
            if not part:
                raise self._broken(f"it ends at byte {at}")
            parts.append(part)
            at, size = at + len(part), size - len(part)
        return b"".join(parts)

    def _broken(self, text: str) -> ResumeError:
        return ResumeError(f"{self.path}: {text}", "Put a good copy there; a damaged run cannot resume.")
