"""The transcript file of one secure sum: its records, and their reading.

    file      "fgsums1\\n", then records: length u32 little-endian | msgpack
    records   begun (first) | frame, outline and keys, as they came | sealed (last)

A frame without secrets is stored whole.  Of a frame with shares, opened or sealed, an outline is stored: signature, the
SHA-256 that it covers, length, and the owners of the shares.  So the signature can be checked, and no share is on disk.
Frames that repeat others' parts (keys, consents) are outlines too.

A leak reveals each round's participants and dropouts; public keys; hashes of masked vectors, of the sum, of shares.
Except for the sum's, which confirms a guess of it, they look random.  Received shares are left out: with them a leak
would remove one of the two layers of masks from recorded traffic.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from fedgossip.audit.entries import AuditError
from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, from_msgpack
from fedgossip.core import run_format
from fedgossip.secure import frames
from fedgossip.secure.graph import COHORT_MAX
from fedgossip.secure.primitives import transcript
from fedgossip.secure.session import Hash, Id, Number

MAGIC = b"fgsums1\n"

TRANSCRIPT_BYTES_MAX = 256 << 20
"""Maximum bytes of a transcript; a round of 1000 clients needs about 4 MiB."""
RECORD_BYTES_MAX = frames.FRAME_MAX + 4096

KEPT = (frames.SessionInvite, frames.Advertise, frames.MaskedHeader, frames.Survivors, frames.Consent, frames.Result)
"""Messages with frames stored whole: they have public keys, hashes, signatures.  All others are outlines."""

NAMES = frozenset(frames.name_of(kind) for kind in KEPT)

LENGTH = struct.Struct("<I")

_Word = Annotated[str, msgspec.Meta(max_length=40)]
_Ids = Annotated[tuple[Id, ...], msgspec.Meta(max_length=COHORT_MAX)]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="record"):
    pass


class Begun(Record, frozen=True, tag="begun"):
    """The session of the file.  `previous`: the SHA-256 of the previous file; zeros if there is none."""

    version: _Word
    session: Number
    """Unique number of the session (descriptor.round)."""
    roster: Hash
    coordinator: Hash
    previous: Hash


class WholeFrame(Record, frozen=True, tag="frame"):
    """A frame as transferred: sent to a client or to all (None), or received."""

    sent: bool
    client: Id | None
    frame: Annotated[bytes, msgspec.Meta(max_length=frames.FRAME_MAX)]


class Outline(Record, frozen=True, tag="outline"):
    """A frame without its body.

    `ids`: owners of its keys, seals, signatures or shares, in order; empty for a whole frame.  `alive`: for each id of
    a Reveal whether the share is of b.
    """

    sent: bool
    client: Id | None
    message: _Word
    signature: frames.Signature
    digest: Hash
    size: Annotated[int, msgspec.Meta(ge=0, le=frames.FRAME_MAX)]
    """Length of the body, in bytes."""
    ids: _Ids = ()
    alive: Annotated[tuple[bool, ...], msgspec.Meta(max_length=COHORT_MAX)] = ()


class Announced(Record, frozen=True, tag="keys"):
    """Keys from the masked message of the previous session."""

    keys: frames.Keys


class Sealed(Record, frozen=True, tag="sealed"):
    """The end.  `signature`: the coordinator's, over the SHA-256 of all bytes before this record, and the outcome."""

    outcome: _Word
    signature: frames.Signature


AnyRecord = Begun | WholeFrame | Outline | Announced | Sealed

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)


class RecordError(AuditError):
    """The `number`-th record, from 1, is truncated or invalid; those before it can be read."""

    def __init__(self, path: Path, number: int, what: str) -> None:
        super().__init__(f"{path}, record {number}: {what}", "Was it copied whole?")
        self.number, self.what = number, what


def packed(record: AnyRecord) -> bytes:
    """Return the record with its length."""
    body = _encoder.encode(record)
    return LENGTH.pack(len(body)) + body


def sealed_content(before: bytes, outcome: str) -> bytes:
    """Return the message that the coordinator signs at the end; `before` is the SHA-256 of all bytes so far."""
    return transcript("round", before, outcome)


def transcripts(folder: Path) -> list[Path]:
    """Return the transcripts in `folder`, in the order of their sessions."""
    found = {int(path.stem): path for path in folder.glob(f"*{run_format.TRANSCRIPT}") if path.stem.isdecimal()}
    return [found[session] for session in sorted(found)]


def content_of(path: Path) -> bytes:
    """Return the bytes of a transcript.  Raises OSError, also for a file too large for a transcript."""
    return outside_files.read_bytes(path, TRANSCRIPT_BYTES_MAX)


def is_transcript(path: Path) -> bool:
    """Return whether the file begins like a transcript.  Raises AuditError if it cannot be read."""
    try:
        with outside_files.open_file(path, outside_files.LARGE) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise AuditError(f"{path}: {error.strerror}", "Name a log, or a transcript of a round.") from None


def records(path: Path) -> Iterator[tuple[AnyRecord, bytes]]:
    """Yield each record and its bytes in the file.

    Raises AuditError for a file other than a transcript, RecordError for an invalid record.
    """
    try:
        content = content_of(path)
    except OSError as error:
        raise AuditError(f"{path}: {error.strerror}", "Name the transcript of a round.") from None
    if not content.startswith(MAGIC):
        raise AuditError(f"{path}: no transcript of a round", f"Transcripts end in {run_format.TRANSCRIPT}.")
    at, number = len(MAGIC), 0
    while at < len(content):
        number += 1
        end = at + LENGTH.size
        size = LENGTH.unpack_from(content, at)[0] if end <= len(content) else 0
        if not 0 < size <= RECORD_BYTES_MAX or end + size > len(content):
            raise RecordError(path, number, "cut short, or of another length than stated")
        whole = content[at : end + size]
        try:
            record = from_msgpack(_decoder, whole[LENGTH.size :])
        except UnreadableError:
            raise RecordError(path, number, "not in the canonical form") from None
        if packed(record) != whole:  # each record has one encoding, so that the bytes read are the bytes signed
            raise RecordError(path, number, "not in the canonical form")
        yield record, whole
        at = end + size
