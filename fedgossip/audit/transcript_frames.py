"""The frames of a transcript: each has a valid signature, and no participant contradicts itself.

This is the first half of `verify_transcript`; the second checks that the frames are those of a sound round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeVar, get_args

from fedgossip.audit.entries import AuditError
from fedgossip.audit.records import (
    KEPT,
    MAGIC,
    Announced,
    AnyRecord,
    Begun,
    Outline,
    RecordError,
    Sealed,
    WholeFrame,
    records,
    sealed_content,
)
from fedgossip.base.errors import ProtocolError
from fedgossip.secure import frames
from fedgossip.secure.primitives import verify
from fedgossip.secure.session import ParticipantRoster

TO_ALL = ("Invite", "Survivors", "Result")
"""Names of messages that are the same for everybody."""

DOWN = tuple(frames.name_of(kind) for kind in get_args(frames.Downward))
STAGES = {frames.name_of(kind): kind.stage for kind in (*get_args(frames.Downward), *get_args(frames.Upward))}
"""The stage of every message, by its name."""
_WHOLE = tuple(frames.name_of(kind) for kind in KEPT)

Kind = TypeVar("Kind", bound=frames.Frame)


class WrongError(AuditError):
    """The first thing wrong in a transcript, in record `place`, from 1; 0: in the whole."""

    def __init__(self, place: int, what: str) -> None:
        super().__init__(what)
        self.place, self.what = place, what


def wrong(place: int, what: str) -> NoReturn:
    raise WrongError(place, what)


@dataclass(frozen=True, eq=False)
class Said:
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
    """All frames of a transcript, as far as it is sound."""

    path: Path
    roster: ParticipantRoster
    coordinator: bytes
    begun: Begun | None = None
    outcome: str = ""
    file: str = ""
    """SHA-256 of the whole file."""
    said: dict[tuple[str, int | None], Said] = field(default_factory=dict)
    """The first frame of each kind from, or to, each client."""
    every: list[Said] = field(default_factory=list)
    announced: dict[int, tuple[int, frames.Keys]] = field(default_factory=dict)
    """Keys from the session before, with their records."""

    # --- asking -------------------------------------------------------------------------------------------------------

    def whole(self, kind: type[Kind], among: Set[int], who: str) -> Iterator[tuple[int, Said, Kind]]:
        """Yield the messages of a kind by client, ascending.  Raises WrongError for a client not `among` those."""
        for client, said in self.outlines(kind, among, who):
            assert isinstance(said.message, kind)
            yield client, said, said.message

    def outlines(self, kind: type[frames.Frame], among: Set[int], who: str) -> Iterator[tuple[int, Said]]:
        """Yield the same of frames without their body."""
        clients = [(client, said) for (name, client), said in self.said.items() if name == frames.name_of(kind)]
        for client, said in sorted(clients, key=lambda found: found[1].client or 0):
            if client is None or client not in among:
                wrong(said.place, f"a {frames.name_of(kind)} of client {client}, who {who}")
            yield client, said

    def only(self, kind: type[Kind]) -> tuple[int, Kind] | None:
        """Return the record and the message that is the same for all, or None where there is none."""
        said = self.said.get((frames.name_of(kind), None))
        if said is None:
            return None
        assert isinstance(said.message, kind)
        return said.place, said.message

    # --- reading ------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read every record.  Raises WrongError; AuditError for a file that is no transcript."""
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
            wrong(place, "a transcript begins with whose it is, once")
        if isinstance(record, Begun):
            self._begin(record)
        elif isinstance(record, Sealed):
            if not verify(self.coordinator, record.signature, sealed_content(before, record.outcome)):
                wrong(place, "the coordinator has not signed this file as it is: changed, cut out or put in")
            self.outcome = record.outcome or "given up"
        elif isinstance(record, Announced):
            if self.announced.setdefault(record.keys.client, (place, record.keys))[1] != record.keys:
                wrong(place, f"other keys of client {record.keys.client} than before")
        else:
            self._hear(
                self._of_whole(place, record) if isinstance(record, WholeFrame) else self._of_outline(place, record)
            )

    def _begin(self, begun: Begun) -> None:
        self.begun = begun
        if begun.coordinator != self.coordinator:
            wrong(1, "the transcript of another coordinator")
        if begun.roster != self.roster.hash:
            wrong(1, "a transcript with another roster")

    def _hear(self, said: Said) -> None:
        self.every.append(said)
        first = self.said.setdefault(said.key, said)
        if first is said and said.message is None and said.name in _WHOLE:
            wrong(said.place, f"of a {said.name} only the outline is here")
        if first.digest != said.digest:
            wrong(said.place, f"a second, different {said.name} of {said.speaker}; the first is record {first.place}")

    def _of_whole(self, place: int, record: WholeFrame) -> Said:
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
            wrong(place, f"{message!r} is kept whole: what it carries does not belong here")
        name, size = frames.name_of(type(message)), len(record.frame) - frames.SIGNATURE
        return Said(place, record.sent, record.client, name, frames.body_hash(record.frame), size, message)

    def _of_outline(self, place: int, record: Outline) -> Said:
        sender, identity = self._sender(place, record)
        said = Said(
            place, record.sent, record.client, record.message, record.digest, record.size, None,
            record.ids, record.alive,
        )  # fmt: skip
        if not verify(identity, record.signature, frames.signed_content(sender, record.digest)):
            wrong(place, f"a {said.name} that {said.speaker} did not sign")
        if said.name not in STAGES or said.sent != (said.name in DOWN):
            wrong(place, f"a {said.name!r} of {said.speaker} is no message")
        if said.client is None and said.name not in TO_ALL:
            wrong(place, f"a {said.name} to all, which is for one")
        return said

    def _sender(self, place: int, record: WholeFrame | Outline) -> tuple[int, bytes]:
        if record.client is not None and record.client >= len(self.roster.members):
            wrong(place, f"client {record.client} is not in the roster")
        if record.sent:
            return frames.COORDINATOR, self.coordinator
        if record.client is None:
            wrong(place, "a frame from nobody")
        return record.client, self.roster.identity(record.client)
