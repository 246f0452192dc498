"""The coordinator's transcript of one secure sum: every signed frame of the round, appended in order of arrival.

    transcript = Transcript(folder, descriptor.round, roster, own_key, sign)      the number of the session
    transcript.sent(None, inviting.frame)           to all; else the client's id
    transcript.received(client, frame)              after the step has taken it: a refused frame belongs in the log
    transcript.close()                              or close(reason) for a round that was given up

`records` documents the stored parts of a frame, and why no share is stored; `verify_round` documents the checks.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

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
    Sealed,
    WholeFrame,
    content_of,
    packed,
    sealed_content,
    transcripts,
)
from fedgossip.base.decoding import from_msgpack
from fedgossip.base.errors import NotWrittenError
from fedgossip.base.owner_files import patiently
from fedgossip.base.version import __version__
from fedgossip.core import run_format
from fedgossip.secure import frames
from fedgossip.secure.aborts import SUMMED
from fedgossip.secure.primitives import Sign
from fedgossip.secure.session import NONE, ParticipantRoster

_down: msgspec.msgpack.Decoder[frames.Downward] = msgspec.msgpack.Decoder(frames.Downward)
_up: msgspec.msgpack.Decoder[frames.Upward] = msgspec.msgpack.Decoder(frames.Upward)


class Transcript:
    """Writes the file of one session.  Memory: a hash per frame, and the ids of clients with keys in it.

    It names the file before by its hash.  Raises AuditError where a file of this session is there;
    NotWrittenError where there is no room: the file is then as it was before the call, and closed.
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
            raise AuditError(f"{self.path}: there is a transcript of this session", advice) from None
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
        """Write a frame of a client that a step has taken."""
        message = from_msgpack(_up, frame[frames.SIGNATURE :])
        if isinstance(message, frames.Advertise):
            self._known.add(client)
        self._frame(sent=False, client=client, frame=frame, message=message)

    def close(self, outcome: str = SUMMED) -> bytes:
        """End the file; return its SHA-256, to be logged, so that others receive it.

        `outcome`: one word, why a round was given up (secure/aborts.Reason).
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
