"""Bytes on the link: a small msgpack header, then raw numbers in chunks.  Pure: nothing here knows a socket.

Every ZeroMQ message has two frames:

    b"H" + transfer (u32)                  the header, msgpack, at most 64 KiB, unknown fields refused
    b"C" + transfer (u32) + index (u32)    the index-th chunk of the vectors announced by that header, 256 KiB or less

All integers little-endian, all numbers little-endian IEEE 754.  Chunks overlap the cipher with the copy; a link that
breaks in the middle of a transfer leaves chunks whose index does not follow, and these are dropped up to the next
header.  Sizes are checked against the schema before anything is allocated.  Nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, Union

import msgspec
import numpy as np

from fedgossip.errors import PeerError
from fedgossip.messages import (
    CARRIERS,
    CHECK_WORDS,
    MEMBERS_MAX,
    NEWS_MAX,
    PIECE,
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
    Secured,
    Seek,
    Settled,
    Suspicion,
    Tidings,
    Verdict,
    Vouch,
)
from fedgossip.vectors import Vector, empty

CHUNK_BYTES = 256 * 1024
"""Small enough that the cipher, the copy and the network overlap within the cache, large enough that the work per
message does not show: 128, 256 and 512 KiB cost 4.0, 3.8 and 3.5 CPU seconds per encrypted GB, both ends together.
With 512 KiB what waits inside ZeroMQ is two models of a million parameters; with 256 KiB it is 0.6 of one."""


HEADER_BYTES_MAX = 64 * 1024
FRAME_OF_A_SUM_MAX = 60 * 1024
"""A signed frame of a secure sum travels in a header: keys of up to 200 neighbours fit."""

FRAME_BYTES_MAX = CHUNK_BYTES
MARK_BYTES = 9

_MARK = struct.Struct("<cII")

Body = TypeVar("Body")


_Count = Annotated[int, msgspec.Meta(ge=0)]
_CountOrNone = Annotated[int, msgspec.Meta(ge=-1)]
_Word = Annotated[str, msgspec.Meta(max_length=64)]
_Text = Annotated[str, msgspec.Meta(max_length=128)]
_Frame = Annotated[bytes, msgspec.Meta(max_length=FRAME_OF_A_SUM_MAX)]


class _Header(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A message without its vectors: the same fields by the same names."""


class _Carries(_Header):
    """A message with vectors: their type and lengths in place of them."""

    schema: str
    dtype: str
    lengths: list[int]


class _ModelHeader(_Carries, tag="model", kw_only=True):
    round: _Count
    used: _CountOrNone = -1
    missing: _CountOrNone = -1
    view: _Word = ""


class _MaskedHeader(_Carries, tag="masked", kw_only=True):
    round: _Count


class _LeavingHeader(_Header, tag="leaving"):
    round: _Count
    used: _CountOrNone = -1
    missing: _CountOrNone = -1
    done: bool = False


class _AccountHeader(_Header, tag="account"):
    round: _Count
    used: _CountOrNone = -1
    missing: _CountOrNone = -1
    asks: bool = False


class _OfferHeader(_Carries, tag="offer", kw_only=True):
    number: _Count
    round: _Count


class _AnswerHeader(_Carries, tag="answer", kw_only=True):
    number: _Count
    round: _Count


class _DeclineHeader(_Header, tag="decline"):
    number: _Count
    round: _Count


class _QueryHeader(_Header, tag="query"):
    number: _Count


class _SettledHeader(_Header, tag="settled"):
    number: _Count


class _ParcelHeader(_Carries, tag="parcel", kw_only=True):
    number: _Count
    round: _Count
    weight: float


class _AcceptedHeader(_Header, tag="accepted"):
    number: _Count


class _InviteHeader(_Carries, tag="invite", kw_only=True):
    round: _Count
    counted: _CountOrNone = -1
    session: _CountOrNone = -1
    frame: _Frame = b""


class _ContributionHeader(_Carries, tag="contribution", kw_only=True):
    round: _Count
    examples: _Count
    steps: _Count
    loss: float | None
    accuracy: float = 0.0
    tested: _Count = 0


class _SecuredHeader(_Header, tag="secured"):
    session: _Count
    stage: _Count
    frame: _Frame


class _MaskedInputHeader(_Carries, tag="masked input", kw_only=True):
    session: _Count
    stage: _Count
    frame: _Frame


class _RefusalHeader(_Header, tag="refusal"):
    round: _Count
    session: _CountOrNone
    reason: _Word


class _FinalHeader(_Carries, tag="final", kw_only=True):
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


class _PingHeader(_Header, tag="ping"):
    number: _Count
    round: _CountOrNone
    digest: _Word


class _PongHeader(_Header, tag="pong"):
    number: _Count
    round: _CountOrNone
    digest: _Word


class _ProbeHeader(_Header, tag="probe"):
    number: _Count
    node: _Count


class _VouchHeader(_Header, tag="vouch"):
    number: _Count
    node: _Count


class _TidingsHeader(_Header, tag="tidings"):
    news: Annotated[list[_EntryItem | _SuspicionItem | _VerdictItem], msgspec.Meta(max_length=NEWS_MAX)]


class _CompareHeader(_Header, tag="compare"):
    known: Annotated[list[tuple[_Count, _Count, _CountOrNone]], msgspec.Meta(max_length=MEMBERS_MAX)]


class _JoinHeader(_Header, tag="join"):
    entry: _EntryItem


class _SeekHeader(_Header, tag="seek"):
    pass


class _HaveHeader(_Header, tag="have"):
    round: _Count
    digest: _Word


class _FetchHeader(_Header, tag="fetch"):
    round: _Count
    digest: _Word
    start: _Count


class _PieceHeader(_Carries, tag="piece", kw_only=True):
    round: _Count
    digest: _Word
    start: _Count


class _HelloHeader(_Header, tag="hello"):
    schema: str
    experiment: str
    version: str
    incarnation: _Count = 0
    process: _Count = 0


_HEADERS: dict[type[AnyMessage], type[_Header]] = {
    Model: _ModelHeader,
    Masked: _MaskedHeader,
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
    MaskedInput: _MaskedInputHeader,
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
    Piece: _PieceHeader,
    Hello: _HelloHeader,
}


def _holds_parts(annotation: str) -> bool:
    return annotation.startswith("tuple[") or annotation in {part.__name__ for part in _ITEMS}


_ITEMS: dict[type, type[_Item]] = {Entry: _EntryItem, Suspicion: _SuspicionItem, Verdict: _VerdictItem}
_PARTS = {item: part for part, item in _ITEMS.items()}
_MESSAGES = {header: message for message, header in _HEADERS.items()}
_FIELDS = {
    header: tuple(field.name for field in dataclasses.fields(message) if field.name != "vectors")
    for header, message in _MESSAGES.items()
}
_NESTED = {
    header: tuple(f.name for f in dataclasses.fields(message) if f.name != "vectors" and _holds_parts(str(f.type)))
    for header, message in _MESSAGES.items()
}
"""The fields that are more than a number, a text or bytes."""
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[_Header] = msgspec.msgpack.Decoder(Union[tuple(_MESSAGES)])  # noqa: UP007


def _header(message: AnyMessage) -> _Header:
    kind = _HEADERS[type(message)]
    fields: dict[str, Any] = {name: getattr(message, name) for name in _FIELDS[kind]}
    for name in _NESTED[kind]:
        fields[name] = _packed(fields[name])
    if isinstance(message, CARRIERS):
        fields.update(dtype=_name(message.vectors[0].dtype), lengths=[v.size for v in message.vectors])
    return kind(**fields)


def _message(header: _Header, vectors: tuple[Vector, ...] = ()) -> AnyMessage:
    fields: dict[str, Any] = {name: getattr(header, name) for name in _FIELDS[type(header)]}
    for name in _NESTED[type(header)]:
        fields[name] = _unpacked(fields[name])
    if isinstance(header, _Carries):
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


def chunks(message: AnyMessage) -> list[memoryview]:
    """Return the vectors of `message` as chunks of at most CHUNK_BYTES: views, not copies; none for small messages."""
    return list(_slices([_little(v) for v in message.vectors])) if isinstance(message, CARRIERS) else []


def frames(message: AnyMessage, transfer: int, bodies: Iterable[Body]) -> Iterator[tuple[bytes, bytes | Body]]:
    """Yield the (mark, body) pairs of `message`; `bodies` are its chunks, in whatever form the caller sends them."""
    yield _MARK.pack(b"H", transfer, 0), _encoder.encode(_header(message))
    for index, body in enumerate(bodies):
        yield _MARK.pack(b"C", transfer, index), body


def wire_bytes(message: AnyMessage) -> int:
    """Return how many bytes of frames `message` costs (without ZeroMQ's framing and the cipher's overhead)."""
    sizes = [v.nbytes for v in message.vectors] if isinstance(message, CARRIERS) else []
    chunks = sum(-(-size // CHUNK_BYTES) for size in sizes)
    return len(_encoder.encode(_header(message))) + sum(sizes) + MARK_BYTES * (1 + chunks)


def _little(vector: Vector) -> Vector:
    return vector if sys.byteorder == "little" else vector.astype(vector.dtype.newbyteorder("<"))


class FrameError(PeerError):
    """A frame that cannot be accepted.  `reason` is one word for counting; the transfer it belongs to is dropped."""

    def __init__(self, reason: str, message: str, advice: str = "") -> None:
        super().__init__(message, advice)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Expected:
    """What a model must look like to be allocated: `count` vectors of `length` elements of `dtype`.

    `words`: those of a masked vector; 0 where nothing is masked.
    """

    schema: str
    dtype: str
    length: int
    count: int = 1
    words: int = 0

    @property
    def payload_bytes(self) -> int:
        return self.count * self.length * np.dtype(self.dtype).itemsize


class Assembler:
    """Puts one sender's messages together.  One per sender; at most one transfer is open, so memory is bounded."""

    def __init__(self, expected: Expected) -> None:
        self.expected = expected
        self._open: _Carries | None = None
        self._vectors: tuple[Vector, ...] = ()  # made when the first chunk is there
        self._transfer = 0
        self._targets: list[memoryview] = []
        self._next = 0

    def mark(self, mark: bytes) -> memoryview | None:
        """Take the first frame.  Return where the second belongs (a chunk), or None (a header: give it to `header`).

        Raises FrameError for a mark that cannot be read or a chunk that does not follow; both frames are to be dropped.
        """
        if len(mark) != MARK_BYTES or mark[:1] not in (b"H", b"C"):
            raise FrameError("mark", f"a frame mark of {len(mark)} bytes")
        kind, transfer, index = _MARK.unpack(mark)
        if kind == b"H":
            self._drop()
            self._transfer = transfer
            return None
        follows = self._open is not None and index == self._next
        if transfer != self._transfer or not follows:
            if transfer == self._transfer:  # else it is of a broken connection: the new transfer goes on
                self._drop()
            raise FrameError("order", f"chunk {index} of transfer {transfer} does not follow")
        if not self._vectors:
            assert self._open is not None
            self._vectors = tuple(empty(length, self._open.dtype) for length in self._open.lengths)
            self._targets = list(_slices(self._vectors))
        return self._targets[self._next]

    @property
    def coming(self) -> int | None:
        """The round of the synchronous model whose chunks are coming in, or None."""
        return self._open.round if isinstance(self._open, _ModelHeader | _MaskedHeader) else None

    @property
    def to_come(self) -> int:
        """How many chunks of the message that is coming in are not there yet."""
        if self._open is None:
            return 0
        bytes_each = np.dtype(self.expected.dtype).itemsize
        return sum(-(-length * bytes_each // CHUNK_BYTES) for length in self._open.lengths) - self._next

    def give_up(self) -> None:
        """Forget the message that is coming in, and its memory."""
        self._drop()

    def header(self, body: bytes) -> AnyMessage | None:
        """Take a header: return the message if it is whole, None if chunks follow.  Raises FrameError."""
        if len(body) > HEADER_BYTES_MAX:
            raise FrameError("oversized", f"a header of {len(body)} bytes; the limit is {HEADER_BYTES_MAX}")
        try:
            header = _decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is no UTF-8
            raise FrameError("header", f"a header that cannot be read: {error}") from None
        if isinstance(header, _Carries):
            self._announce(header)
            return None
        return _message(header)

    def _announce(self, header: _Carries) -> None:
        want = self.expected
        if header.schema != want.schema:
            raise FrameError(
                "schema",
                f"a model of another layout (schema {header.schema[:12]}, ours {want.schema[:12]})",
                "Give every peer the same [model] section.",
            )
        lengths, dtype = [want.length] * want.count, want.dtype
        if isinstance(header, _MaskedHeader):
            lengths, dtype = [want.length + CHECK_WORDS], "uint32"
        if isinstance(header, _MaskedInputHeader):
            lengths, dtype = [want.words] * bool(want.words), "uint32"
        if isinstance(header, _PieceHeader):
            if header.start % PIECE or header.start >= want.length:
                raise FrameError("size", f"a piece that begins at {header.start} of {want.length}")
            lengths = [min(PIECE, want.length - header.start)]
        if header.dtype != dtype or header.lengths != lengths or not lengths:
            raise FrameError("size", f"a model of {header.lengths[:4]} {header.dtype}, not {lengths[:4]} {dtype}")
        self._open = header

    def landed(self, size: int) -> AnyMessage | None:
        """The last chunk, of `size` bytes, is in place: return the message if it is whole.  Raises FrameError.

        Its vectors are writeable: nobody but the caller refers to them.
        """
        assert self._open is not None
        if size != len(self._targets[self._next]):
            expected = len(self._targets[self._next])
            self._drop()
            raise FrameError("truncated", f"a chunk of {size} bytes; expected {expected}")
        self._next += 1
        if self._next < len(self._targets):
            return None
        header, vectors = self._open, self._vectors
        self._drop()
        if sys.byteorder == "big":
            vectors = tuple(v.byteswap() for v in vectors)
        return _message(header, vectors)

    def _drop(self) -> None:
        self._open, self._vectors, self._targets, self._next = None, (), [], 0


def _slices(vectors: Sequence[Vector]) -> Iterator[memoryview]:
    for vector in vectors:
        raw = vector.view(np.uint8).data
        for start in range(0, len(raw), CHUNK_BYTES):
            yield raw[start : start + CHUNK_BYTES]
