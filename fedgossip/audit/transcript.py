"""The coordinator's transcript of one secure sum: every signed frame of the round, appended in order of arrival.

    transcript = Transcript(folder, descriptor.round, roster, own_key, sign)      the number of the session
    transcript.sent(None, inviting.frame)           to all; else the client's id
    transcript.received(client, frame)              after the step has taken it: a refused frame belongs in the log
    transcript.close()                              or close(reason) for an abandoned round

`Round` reads one again: valid signatures, no contradictions.  `records` documents the stored parts, `verify_round` the
checks.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeVar, get_args

import msgspec

from fedgossip.audit.entries import AuditError
from fedgossip.audit.records import (
    KEPT,
    MAGIC,
    TRANSCRIPT_BYTES_MAX,
    Announced,
    AnyRecord,
    Begun,
    Outline,
    RecordError,
    Sealed,
    WholeFrame,
    content_of,
    packed,
    records,
    sealed_content,
    transcripts,
)
from fedgossip.base.decoding import from_msgpack
from fedgossip.base.errors import NotWrittenError, ProtocolError
from fedgossip.base.owner_files import patiently
from fedgossip.base.version import __version__
from fedgossip.core import run_format
from fedgossip.secure import frames
from fedgossip.secure.aborts import SUMMED
from fedgossip.secure.primitives import Sign, verify
from fedgossip.secure.session import NONE, ParticipantRoster

_down: msgspec.msgpack.Decoder[frames.Downward] = msgspec.msgpack.Decoder(frames.Downward)
_up: msgspec.msgpack.Decoder[frames.Upward] = msgspec.msgpack.Decoder(frames.Upward)


class Transcript:
    """Writes the file of one session, which has the previous file's hash; memory: a hash per frame, and key holders'
    ids.

    Raises AuditError for an existing file; NotWrittenError without room: the file is then unchanged, and closed.
    """

    def __init__(self, folder: Path, session: int, roster: ParticipantRoster, coordinator: bytes, sign: Sign) -> None:
        self.path = folder / f"{session:06d}{run_format.TRANSCRIPT}"
        self._sign = sign
        self._hash = hashlib.sha256()
        self._bytes = 0
        self._whole: set[bytes] = set()
        self._known: set[int] = set()
        self._file: int | None = None
        try:
            before = transcripts(folder)
            previous = hashlib.sha256(content_of(before[-1])).digest() if before else NONE
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
            self._file = patiently(lambda: os.open(self.path, flags, 0o600))
        except FileExistsError:
            advice = "Every session has a number of its own, higher than those before."
            raise AuditError(f"{self.path}: a transcript of this session exists", advice) from None
        except OSError as error:
            raise NotWrittenError(self.path, error) from None
        self._append(MAGIC + packed(Begun(__version__, session, roster.hash, coordinator, previous)))

    def sent(self, client: int | None, frame: bytes) -> None:
        """Write a frame of the coordinator for a client; None: for all of the cohort."""
        message = from_msgpack(_down, frame[frames.SIGNATURE :])
        for keys in message.keys if isinstance(message, frames.Neighbourhood) else ():
            if keys.client not in self._known:
                self._known.add(keys.client)
                self._put(Announced(keys))
        self._frame(sent=True, client=client, frame=frame, message=message)

    def received(self, client: int, frame: bytes) -> None:
        """Write a frame of a client that a step has accepted."""
        message = from_msgpack(_up, frame[frames.SIGNATURE :])
        if isinstance(message, frames.Advertise):
            self._known.add(client)
        self._frame(sent=False, client=client, frame=frame, message=message)

    def close(self, outcome: str = SUMMED) -> bytes:
        """End the file; return its SHA-256, to be logged.  `outcome`: reason for abandoning a round
        (secure/aborts.Reason).
        """
        self._put(Sealed(outcome, self._sign(sealed_content(self._hash.digest(), outcome))))
        file, self._file = self._file, None
        assert file is not None
        try:
            os.fsync(file)
        except OSError as error:
            raise NotWrittenError(self.path, error) from None
        finally:
            os.close(file)
        return self._hash.digest()

    def _frame(self, *, sent: bool, client: int | None, frame: bytes, message: frames.Frame) -> None:
        digest = frames.body_hash(frame)
        if isinstance(message, KEPT) and digest not in self._whole:
            self._whole.add(digest)
            self._put(WholeFrame(sent, client, frame))
            return
        name, signature = frames.name_of(type(message)), frame[: frames.SIGNATURE]
        size = len(frame) - frames.SIGNATURE
        self._put(Outline(sent, client, name, signature, digest, size, _ids(message), _alive(message)))

    def _put(self, record: AnyRecord) -> None:
        self._append(packed(record))

    def _append(self, data: bytes) -> None:
        if self._file is None:
            raise AuditError(f"{self.path}: this transcript is closed", "Its last write failed, or its round is over.")
        try:
            if self._bytes + len(data) > TRANSCRIPT_BYTES_MAX:
                raise OSError(f"it would be longer than {TRANSCRIPT_BYTES_MAX:,} bytes")
            rest = data
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            self._give_up()
            raise NotWrittenError(self.path, error) from None
        self._hash.update(data)
        self._bytes += len(data)

    def _give_up(self) -> None:
        file, self._file = self._file, None
        assert file is not None
        try:
            os.ftruncate(file, self._bytes)
        finally:
            os.close(file)
        if not self._bytes:
            self.path.unlink(missing_ok=True)


def _ids(message: frames.Frame) -> tuple[int, ...]:
    if isinstance(message, frames.Neighbourhood):
        return tuple(keys.client for keys in message.keys)
    if isinstance(message, (frames.Shares, frames.Delivery)):
        return tuple(v for v, _ in message.sealed)
    if isinstance(message, frames.Consents):
        return tuple(v for v, _ in message.signatures)
    return tuple(v for v, _, _ in message.shares) if isinstance(message, frames.Reveal) else ()


def _alive(message: frames.Frame) -> tuple[bool, ...]:
    return tuple(alive for _, alive, _ in message.shares) if isinstance(message, frames.Reveal) else ()


TO_ALL = ("Invite", "Survivors", "Result")
"""Names of messages that all clients receive equally."""

DOWN = tuple(frames.name_of(kind) for kind in get_args(frames.Downward))
STAGES = {frames.name_of(kind): kind.stage for kind in (*get_args(frames.Downward), *get_args(frames.Upward))}
"""Stage of every message, by its name."""
_WHOLE = tuple(frames.name_of(kind) for kind in KEPT)

Kind = TypeVar("Kind", bound=frames.Frame)


class WrongError(AuditError):
    """The first fault of a transcript, in record `place`, from 1; 0: in the whole file."""

    def __init__(self, place: int, what: str) -> None:
        super().__init__(what)
        self.place, self.what = place, what


def wrong(place: int, what: str) -> NoReturn:
    raise WrongError(place, what)


@dataclass(frozen=True, eq=False)
class LoggedFrame:
    """One frame: its record and decoded content; `message` is None for an outline."""

    place: int
    sent: bool
    client: int | None
    name: str
    digest: bytes
    size: int
    """Bytes of the body."""
    message: frames.Frame | None
    ids: tuple[int, ...] = ()
    alive: tuple[bool, ...] = ()

    @property
    def key(self) -> tuple[str, int | None]:
        return self.name, None if self.name in TO_ALL else self.client

    @property
    def speaker(self) -> str:
        return "the coordinator" if self.sent else f"client {self.client}"


@dataclass(eq=False)
class Round:
    """All frames of a transcript up to its first fault."""

    path: Path
    roster: ParticipantRoster
    coordinator: bytes
    begun: Begun | None = None
    outcome: str = ""
    file: str = ""
    """SHA-256 of the whole file."""
    first_frames: dict[tuple[str, int | None], LoggedFrame] = field(default_factory=dict)
    """First frame of each kind from, or to, each client."""
    every: list[LoggedFrame] = field(default_factory=list)
    announced: dict[int, tuple[int, frames.Keys]] = field(default_factory=dict)
    """Keys from the previous session, with their records."""

    # --- asking -------------------------------------------------------------------------------------------------------

    def whole(self, kind: type[Kind], among: Set[int], who: str) -> Iterator[tuple[int, LoggedFrame, Kind]]:
        """Yield the messages of a kind by client, ascending.  Raises WrongError for a client outside `among`."""
        for client, statement in self.outlines(kind, among, who):
            assert isinstance(statement.message, kind)
            yield client, statement, statement.message

    def outlines(self, kind: type[frames.Frame], among: Set[int], who: str) -> Iterator[tuple[int, LoggedFrame]]:
        """Yield the same for frames without their body."""
        clients = [
            (client, statement)
            for (name, client), statement in self.first_frames.items()
            if name == frames.name_of(kind)
        ]
        for client, statement in sorted(clients, key=lambda found: found[1].client or 0):
            if client is None or client not in among:
                wrong(statement.place, f"a {frames.name_of(kind)} of client {client}, who {who}")
            yield client, statement

    def only(self, kind: type[Kind]) -> tuple[int, Kind] | None:
        """Return the record and the message common to all; None if there is none."""
        statement = self.first_frames.get((frames.name_of(kind), None))
        if statement is None:
            return None
        assert isinstance(statement.message, kind)
        return statement.place, statement.message

    # --- reading ------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read every record.  Raises WrongError; AuditError for a file other than a transcript."""
        so_far, place = hashlib.sha256(MAGIC), 0
        try:
            for place, (record, data) in enumerate(records(self.path), 1):
                if self.outcome:
                    wrong(place, "something after the end")
                self._take(place, record, so_far.digest())
                so_far.update(data)
        except RecordError as error:
            wrong(error.number, error.what)
        self.file = so_far.hexdigest()
        if not self.outcome:
            wrong(place, "no end after it: the coordinator was stopped in this round, or the file was cut")

    def _take(self, place: int, record: AnyRecord, before: bytes) -> None:
        if (place == 1) != isinstance(record, Begun):
            wrong(place, "a transcript begins with its owner, once")
        if isinstance(record, Begun):
            self._begin(record)
        elif isinstance(record, Sealed):
            if not verify(self.coordinator, record.signature, sealed_content(before, record.outcome)):
                wrong(place, "the coordinator has not signed this file: something was changed, removed or added")
            self.outcome = record.outcome or "given up"
        elif isinstance(record, Announced):
            if self.announced.setdefault(record.keys.client, (place, record.keys))[1] != record.keys:
                wrong(place, f"other keys of client {record.keys.client} than before")
        else:
            self._add(
                self._check_whole(place, record)
                if isinstance(record, WholeFrame)
                else self._check_outline(place, record)
            )

    def _begin(self, begun: Begun) -> None:
        self.begun = begun
        if begun.coordinator != self.coordinator:
            wrong(1, "the transcript of another coordinator")
        if begun.roster != self.roster.hash:
            wrong(1, "a transcript with another roster")

    def _add(self, statement: LoggedFrame) -> None:
        self.every.append(statement)
        first = self.first_frames.setdefault(statement.key, statement)
        if first is statement and statement.message is None and statement.name in _WHOLE:
            wrong(statement.place, f"of a {statement.name} only the outline is here")
        if first.digest != statement.digest:
            wrong(
                statement.place,
                f"a second, different {statement.name} of {statement.speaker}; the first is record {first.place}",
            )

    def _check_whole(self, place: int, record: WholeFrame) -> LoggedFrame:
        sender, identity = self._sender(place, record)
        try:
            message: frames.Frame
            if record.sent:
                message = frames.from_coordinator(record.frame, identity)
            else:
                message = frames.from_client(record.frame, sender, identity)
        except ProtocolError as error:
            wrong(place, str(error))
        if not isinstance(message, KEPT):
            wrong(place, f"{message!r} is stored whole: its content does not belong here")
        name, size = frames.name_of(type(message)), len(record.frame) - frames.SIGNATURE
        return LoggedFrame(place, record.sent, record.client, name, frames.body_hash(record.frame), size, message)

    def _check_outline(self, place: int, record: Outline) -> LoggedFrame:
        sender, identity = self._sender(place, record)
        statement = LoggedFrame(
            place, record.sent, record.client, record.message, record.digest, record.size, None,
            record.ids, record.alive,
        )  # fmt: skip
        if not verify(identity, record.signature, frames.signed_content(sender, record.digest)):
            wrong(place, f"a {statement.name} that {statement.speaker} did not sign")
        if statement.name not in STAGES or statement.sent != (statement.name in DOWN):
            wrong(place, f"a {statement.name!r} of {statement.speaker} is no message")
        if statement.client is None and statement.name not in TO_ALL:
            wrong(place, f"a {statement.name} to all, which is for one")
        return statement

    def _sender(self, place: int, record: WholeFrame | Outline) -> tuple[int, bytes]:
        if record.client is not None and record.client >= len(self.roster.members):
            wrong(place, f"client {record.client} is not in the roster")
        if record.sent:
            return frames.COORDINATOR, self.coordinator
        if record.client is None:
            wrong(place, "a frame without a sender")
        return record.client, self.roster.identity(record.client)
