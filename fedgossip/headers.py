"""Headers: a message without its vectors, as msgpack; unknown fields, and numbers out of bounds, are refused."""

from __future__ import annotations

import dataclasses
import functools
from typing import Annotated, Any, Union

import msgspec
import numpy as np

from fedgossip.decoding import from_msgpack
from fedgossip.messages import (
    CARRIERS,
    MEMBERS_MAX,
    NEWS_MAX,
    Accepted,
    Account,
    Answer,
    AnyMessage,
    Compare,
    Contribution,
    Decline,
    Entry,
    Fetch,
    Final,
    Have,
    Hello,
    Invite,
    Join,
    Leaving,
    Masked,
    MaskedInput,
    Model,
    Offer,
    Parcel,
    Piece,
    Ping,
    Pong,
    Probe,
    Query,
    Refusal,
    Revocation,
    Secured,
    Seek,
    Settled,
    Suspicion,
    Tidings,
    Verdict,
    Vouch,
)
from fedgossip.vectors import Vector

_Count = Annotated[int, msgspec.Meta(ge=0)]
_CountOrNone = Annotated[int, msgspec.Meta(ge=-1)]
_Word = Annotated[str, msgspec.Meta(max_length=64)]
_Numbers = Annotated[list[float], msgspec.Meta(max_length=16)]
_Text = Annotated[str, msgspec.Meta(max_length=128)]
FRAME_OF_A_SUM_MAX = 60 * 1024
"""A signed frame of a secure sum travels in a header: keys of up to 200 neighbours fit."""

_Frame = Annotated[bytes, msgspec.Meta(max_length=FRAME_OF_A_SUM_MAX)]


class Header(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A message without its vectors: the same fields by the same names."""


class Carries(Header):
    """A message with vectors: their type and lengths in place of them."""

    schema: str
    dtype: str
    lengths: list[int]


class ModelHeader(Carries, tag="model", kw_only=True):
    round: _Count
    used: _CountOrNone = -1
    missing: _CountOrNone = -1
    view: _Word = ""


class MaskedHeader(Carries, tag="masked", kw_only=True):
    round: _Count


class _LeavingHeader(Header, tag="leaving"):
    round: _Count
    used: _CountOrNone = -1
    missing: _CountOrNone = -1
    done: bool = False


class _AccountHeader(Header, tag="account"):
    round: _Count
    used: _CountOrNone = -1
    missing: _CountOrNone = -1
    asks: bool = False


class _OfferHeader(Carries, tag="offer", kw_only=True):
    number: _Count
    round: _Count


class _AnswerHeader(Carries, tag="answer", kw_only=True):
    number: _Count
    round: _Count


class _DeclineHeader(Header, tag="decline"):
    number: _Count
    round: _Count


class _QueryHeader(Header, tag="query"):
    number: _Count


class _SettledHeader(Header, tag="settled"):
    number: _Count


class _ParcelHeader(Carries, tag="parcel", kw_only=True):
    number: _Count
    round: _Count
    weight: float


class _AcceptedHeader(Header, tag="accepted"):
    number: _Count


class _InviteHeader(Carries, tag="invite", kw_only=True):
    round: _Count
    counted: _CountOrNone = -1
    session: _CountOrNone = -1
    frame: _Frame = b""


class _ContributionHeader(Carries, tag="contribution", kw_only=True):
    round: _Count
    examples: _Count
    steps: _Count
    loss: float | None
    accuracy: float = 0.0
    tested: _Count = 0


class _SecuredHeader(Header, tag="secured"):
    session: _Count
    stage: _Count
    frame: _Frame


class MaskedInputHeader(Carries, tag="masked input", kw_only=True):
    session: _Count
    stage: _Count
    frame: _Frame


class _RefusalHeader(Header, tag="refusal"):
    round: _Count
    session: _CountOrNone
    reason: _Word


class _FinalHeader(Carries, tag="final", kw_only=True):
    round: _Count


class _Item(msgspec.Struct, forbid_unknown_fields=True, array_like=True):
    """A part of a message that has fields of its own, in the order of its dataclass."""


class _EntryItem(_Item, tag="entry"):
    node: _Count
    incarnation: _Count
    address: _Text
    key: _Word
    verify: _Word
    since: _CountOrNone
    until: _CountOrNone
    admission: _Text
    signature: _Text


class _SuspicionItem(_Item, tag="suspicion"):
    node: _Count
    incarnation: _Count
    by: _Count
    signature: _Text


class _VerdictItem(_Item, tag="verdict"):
    node: _Count
    incarnation: _Count
    until: _Count
    by: _Count
    signature: _Text


class _RevocationItem(_Item, tag="revocation"):
    node: _Count
    key: _Word
    verify: _Word
    signature: _Text


_NewsItem = _EntryItem | _SuspicionItem | _VerdictItem | _RevocationItem


class _PingHeader(Header, tag="ping"):
    number: _Count
    round: _CountOrNone
    digest: _Word


class _PongHeader(Header, tag="pong"):
    number: _Count
    round: _CountOrNone
    digest: _Word


class _ProbeHeader(Header, tag="probe"):
    number: _Count
    node: _Count


class _VouchHeader(Header, tag="vouch"):
    number: _Count
    node: _Count


class _TidingsHeader(Header, tag="tidings"):
    news: Annotated[list[_NewsItem], msgspec.Meta(max_length=NEWS_MAX)]


class _CompareHeader(Header, tag="compare"):
    known: Annotated[list[tuple[_Count, _Count, _Count]], msgspec.Meta(max_length=MEMBERS_MAX)]


class _JoinHeader(Header, tag="join"):
    entry: _EntryItem


class _SeekHeader(Header, tag="seek"):
    pass


class _HaveHeader(Header, tag="have"):
    round: _Count
    digest: _Word


class _FetchHeader(Header, tag="fetch"):
    round: _Count
    digest: _Word
    start: _Count


class PieceHeader(Carries, tag="piece", kw_only=True):
    round: _Count
    digest: _Word
    start: _Count


class _HelloHeader(Header, tag="hello"):
    schema: str
    experiment: str
    version: str
    incarnation: _Count = 0
    process: _Count = 0
    processor: _Count = 0
    code: _Word = ""
    frozen: _Numbers = []
    probe: _Numbers = []


_HEADERS: dict[type[AnyMessage], type[Header]] = {
    Model: ModelHeader,
    Masked: MaskedHeader,
    Leaving: _LeavingHeader,
    Account: _AccountHeader,
    Offer: _OfferHeader,
    Answer: _AnswerHeader,
    Decline: _DeclineHeader,
    Query: _QueryHeader,
    Settled: _SettledHeader,
    Parcel: _ParcelHeader,
    Accepted: _AcceptedHeader,
    Invite: _InviteHeader,
    Contribution: _ContributionHeader,
    Secured: _SecuredHeader,
    MaskedInput: MaskedInputHeader,
    Refusal: _RefusalHeader,
    Final: _FinalHeader,
    Ping: _PingHeader,
    Pong: _PongHeader,
    Probe: _ProbeHeader,
    Vouch: _VouchHeader,
    Tidings: _TidingsHeader,
    Compare: _CompareHeader,
    Join: _JoinHeader,
    Seek: _SeekHeader,
    Have: _HaveHeader,
    Fetch: _FetchHeader,
    Piece: PieceHeader,
    Hello: _HelloHeader,
}
_ITEMS: dict[type, type[_Item]] = {
    Entry: _EntryItem,
    Suspicion: _SuspicionItem,
    Verdict: _VerdictItem,
    Revocation: _RevocationItem,
}
_PARTS = {item: part for part, item in _ITEMS.items()}
_MESSAGES = {header: message for message, header in _HEADERS.items()}
_FIELDS = {
    header: tuple(field.name for field in dataclasses.fields(message) if field.name != "vectors")
    for header, message in _MESSAGES.items()
}
_NESTED: dict[type[Header], tuple[str, ...]] = {
    _TidingsHeader: ("news",),
    _CompareHeader: ("known",),
    _JoinHeader: ("entry",),
    _HelloHeader: ("frozen", "probe"),
}
"""Fields that are more than a number, a text or bytes."""
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Header] = msgspec.msgpack.Decoder(Union[tuple(_MESSAGES)])  # noqa: UP007


def encoded(message: AnyMessage) -> bytes:
    return _encoder.encode(_header_of(message))


def decoded(body: bytes) -> Header:
    """Return the header in these bytes.  Raises UnreadableError."""
    return from_msgpack(_decoder, body)


def _header_of(message: AnyMessage) -> Header:
    kind = _HEADERS[type(message)]
    fields: dict[str, Any] = {name: getattr(message, name) for name in _FIELDS[kind]}
    for name in _NESTED.get(kind, ()):
        fields[name] = _packed(fields[name])
    if isinstance(message, CARRIERS):
        fields.update(dtype=_name(message.vectors[0].dtype), lengths=[v.size for v in message.vectors])
    return kind(**fields)


def message_of(header: Header, vectors: tuple[Vector, ...] = ()) -> AnyMessage:
    """Return the message of a header, with the vectors that it announces."""
    fields: dict[str, Any] = {name: getattr(header, name) for name in _FIELDS[type(header)]}
    for name in _NESTED.get(type(header), ()):
        fields[name] = _unpacked(fields[name])
    if isinstance(header, Carries):
        fields["vectors"] = vectors
    return _MESSAGES[type(header)](**fields)


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name  # numpy puts it together anew for every asking


def _packed(value: Any) -> Any:
    """A field as msgpack has it: lists for tuples, items for parts."""
    if isinstance(value, tuple):
        return [_packed(one) for one in value]
    item = _ITEMS.get(type(value))
    return value if item is None else item(*(getattr(value, name) for name in item.__struct_fields__))


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_unpacked(one) for one in value)
    part = _PARTS.get(type(value))
    return value if part is None else part(*(getattr(value, name) for name in value.__struct_fields__))
