"""Logs and transcripts of sessions that were run: by secure_kit's room, written as a host writes them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import secure_kit
from secure_kit import Course, Room, public, signer

from fedgossip.audit.entries import Facts, Owner
from fedgossip.audit.log import AuditLog
from fedgossip.audit.records import MAGIC, AnyRecord, Sealed, packed, records, sealed_content
from fedgossip.audit.transcript import Transcript
from fedgossip.core.run_format import AUDIT_LOG
from fedgossip.secure import frames
from fedgossip.secure.aborts import RoundAbandoned
from fedgossip.secure.session import ranges

START_NS = 1_772_352_000_000_000_000
"""2026-03-01 08:00 UTC."""


def ticking(step_ms: int = 250) -> Callable[[], int]:
    """A clock that goes on by as much with each look."""
    ticks = itertools.count()
    return lambda: START_NS + next(ticks) * step_ms * 1_000_000


def owner(participant: int, key: int | None = None, run: str = "run of the test") -> Owner:
    """A participant; `key` is whose key it has, its own without."""
    role = "coordinator" if key == -1 else "client"
    return Owner(participant, role, public(participant if key is None else key), run, "0.1.0")


def log_of(folder: Path, participant: int, key: int | None = None, run: str = "run of the test") -> AuditLog:
    folder.mkdir(parents=True, exist_ok=True)
    mine = owner(participant, key, run)
    return AuditLog(folder / AUDIT_LOG, mine, signer(participant if key is None else key), ticking(), synced=False)


_decoder: Any = msgspec.msgpack.Decoder(frames.Downward | frames.Upward)


def decoded(frame: bytes) -> Any:
    """The message in a frame, whoever signed it."""
    return _decoder.decode(frame[frames.SIGNATURE :])


def told(word: str, peer: int, session: int, frame: bytes) -> tuple[str, Facts]:
    """The kind and the facts of a frame that crossed, as the docstring of the room says."""
    message = decoded(frame)
    facts: dict[str, Any] = {word: peer, "session": session, "round": session, "stage": message.stage.name}
    facts |= {"bytes": len(frame), "sha256": frames.body_hash(frame).hex()}
    if isinstance(message, frames.MaskedHeader):
        facts["words"] = message.length
    if isinstance(message, frames.Reveal):
        for name, kind in (("alive", True), ("dropped", False)):
            facts[name] = ranges([v for v, alive, _ in message.shares if alive is kind])
    return frames.name_of(type(message)).lower(), facts


@dataclass
class Kept:
    """A round that was run, and what is left of it."""

    room: Room
    path: Path
    """The transcript."""
    folder: Path
    course: Course = field(default_factory=Course)

    def log(self, participant: int | str) -> Path:
        return self.folder / str(participant) / AUDIT_LOG


def kept(
    folder: Path,
    room: Room | None = None,
    drops: Mapping[int, int] | None = None,
    logged: Sequence[int] = (),
    **more: Any,
) -> Kept:
    """Run a round with a transcript; with logs of the coordinator and of the clients `logged`."""
    room = room or Room(6)
    d = more.pop("descriptor", None) or room.proposal()
    rounds = folder / "rounds"
    rounds.mkdir(exist_ok=True)
    transcript = Transcript(rounds, d.round, room.roster, public(-1), signer(-1))
    found = Kept(room, transcript.path, folder)
    logs = {v: log_of(folder / str(v), v) for v in logged}
    own = log_of(folder / "coordinator", room.n, -1)
    outcome, once = "summed", set[str]()

    def down(stage: str, v: int, frame: bytes) -> bytes:
        if stage not in ("invite", "survivors"):
            transcript.sent(v, frame)
        elif stage not in once:
            once.add(stage)
            transcript.sent(None, frame)
        own.append(*told("to", v, d.round, frame))
        return frame

    def up(stage: str, v: int, frame: bytes) -> bytes:
        if v in logs:
            logs[v].append(*told("to", room.n, d.round, frame))
        own.append(*told("from", v, d.round, frame))
        transcript.received(v, frame)
        return frame

    def upload(summing: Any, v: int, masked: Any) -> None:
        up("masked", v, masked.frame)
        plain(summing, v, masked)

    plain = secure_kit.upload
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secure_kit.upload", upload)
        try:
            secure_kit.run(room, d, drops=drops, up=up, down=down, course=found.course, **more)
        except RoundAbandoned as error:
            outcome = error.reason
    if found.course.summed:
        transcript.sent(None, found.course.summed.frame)
        digest = hashlib.sha256(found.course.summed.total.tobytes()).hexdigest()
        for v in found.course.revealed.keys() & logs.keys():
            logs[v].append("result", {"session": d.round, "sum_sha256": digest})
    transcript.close(outcome)
    for log in (*logs.values(), own):
        log.close()
    return found


Change = Callable[[list[AnyRecord]], list[AnyRecord]]


def forged(path: Path, change: Change) -> Path:
    """What the coordinator might write in place of its transcript: other records, and its own seal."""
    found = change([record for record, _ in records(path) if not isinstance(record, Sealed)])
    content = MAGIC + b"".join(map(packed, found))
    seal = Sealed("summed", signer(-1)(sealed_content(hashlib.sha256(content).digest(), "summed")))
    path.write_bytes(content + packed(seal))
    return path
