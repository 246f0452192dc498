"""What a coordinator might write in place of its transcript: records exchanged, left out, signed anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from audit_kit import decoded
from msgspec import structs
from secure_kit import signer

from fedgossip.audit.records import AnyRecord, Outline, WholeFrame
from fedgossip.secure import frames
from fedgossip.secure.session import Descriptor


def whole(found: list[AnyRecord], kind: type[frames.Frame], client: int | None = None) -> tuple[int, Any]:
    """The place of a frame that is kept whole, and its message."""
    for place, record in enumerate(found):
        if isinstance(record, WholeFrame) and record.client == client:
            message = decoded(record.frame)
            if isinstance(message, kind):
                return place, message
    raise AssertionError(f"no {frames.name_of(kind)} of {client}")


def outline(found: list[AnyRecord], message: str, client: int) -> tuple[int, Outline]:
    for place, record in enumerate(found):
        if isinstance(record, Outline) and (record.message, record.client) == (message, client):
            return place, record
    raise AssertionError(f"no {message} of {client}")


def without(found: list[AnyRecord], *places: int) -> list[AnyRecord]:
    return [record for place, record in enumerate(found) if place not in places]


def instead(found: list[AnyRecord], place: int, record: AnyRecord) -> list[AnyRecord]:
    return [*found[:place], record, *found[place + 1 :]]


def said(message: frames.Frame, client: int | None = None, by: int = -1) -> WholeFrame:
    """A frame signed anew."""
    return WholeFrame(by == -1, client, frames.pack(message, by, signer(by)))


def resigned(found: list[AnyRecord], kind: type[frames.Frame], **fields: Any) -> list[AnyRecord]:
    """The coordinator's own message with other fields, signed by it."""
    place, message = whole(found, kind)
    return instead(found, place, said(structs.replace(message, **fields)))


def redescribed(found: list[AnyRecord], **fields: Any) -> list[AnyRecord]:
    _, invite = whole(found, frames.SessionInvite)
    descriptor: Descriptor = structs.replace(invite.descriptor, **fields)
    return resigned(found, frames.SessionInvite, descriptor=descriptor)


def outlined(found: list[AnyRecord], name: str, who: int, **fields: Any) -> list[AnyRecord]:
    place, record = outline(found, name, who)
    return instead(found, place, structs.replace(record, **fields))


def gone(kind: type[frames.Frame], client: int | None) -> Callable[[list[AnyRecord]], list[AnyRecord]]:
    return lambda found: without(found, whole(found, kind, client)[0])


def gone_outlines(message: str, *clients: int) -> Callable[[list[AnyRecord]], list[AnyRecord]]:
    return lambda found: without(found, *(outline(found, message, client)[0] for client in clients))


def outline_of(record: Any) -> Outline:
    """What is kept of a frame that repeats another."""
    frame, name = record.frame, frames.name_of(type(decoded(record.frame)))
    size = len(frame) - frames.SIGNATURE
    return Outline(record.sent, record.client, name, frame[: frames.SIGNATURE], frames.body_hash(frame), size)
