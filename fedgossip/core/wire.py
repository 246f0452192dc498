"""Frames on the link: a small msgpack header, then raw numbers in chunks.  Pure: no sockets.

Every ZeroMQ message has two frames:

    b"H" + transfer (u32)                  the header, msgpack, at most 64 KiB, unknown fields refused
    b"C" + transfer (u32) + index (u32)    the index-th chunk of the vectors announced by that header, 256 KiB or less

All integers little-endian, all numbers little-endian IEEE 754.  Chunks of a broken transfer are dropped up to the next
header.  Sizes are checked against the schema before allocation.  Nothing is unpickled.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import struct
import sys
import types
import typing
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, Union

import msgspec
import numpy as np

from fedgossip.base.decoding import UnreadableError, from_msgpack
from fedgossip.base.errors import PeerError
from fedgossip.base.vectors import Vector, empty
from fedgossip.core.messages import (
    DECLARED,
    Account,
    AnyMessage,
    Carrier,
    Expected,
    Model,
    ModelFragment,
    OfARound,
    Part,
)

CHUNK_BYTES = 256 * 1024
"""Bytes of a chunk: cipher, copy and network then overlap within the cache.

128, 256 and 512 KiB cost 4.0, 3.8 and 3.5 CPU seconds per encrypted GB, both ends together; ZeroMQ's queue holds 0.6
model of a million parameters, two with 512 KiB.
"""

HEADER_BYTES_MAX = 64 * 1024
FRAME_BYTES_MAX = CHUNK_BYTES
MARK_BYTES = 9

_MARK = struct.Struct("<cII")

Body = TypeVar("Body")


def chunks(message: AnyMessage) -> list[memoryview]:
    """Return the vectors of `message` as chunks of at most CHUNK_BYTES: views, not copies; none for small messages."""
    if not isinstance(message, Carrier):
        return []
    if empty := [vector.dtype for vector in message.vectors if not vector.size]:
        raise ValueError(f"{type(message).__name__} with a vector of 0 {empty[0]}")
    return list(_slices([_little(v) for v in message.vectors]))


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A message ready for sending: its header is encoded once for all receivers."""

    message: AnyMessage
    header: bytes

    @property
    def size(self) -> int:
        """Bytes of its frames, without ZeroMQ's framing and the cipher's overhead."""
        return len(self.header) + _count_body_bytes(self.message)

    def frames(self, transfer: int, bodies: Iterable[Body]) -> Iterator[tuple[bytes, bytes | Body]]:
        """Yield its (mark, body) pairs; `bodies` are its chunks, in the caller's format."""
        yield _MARK.pack(b"H", transfer, 0), self.header
        for index, body in enumerate(bodies):
            yield _MARK.pack(b"C", transfer, index), body


def packed(message: AnyMessage) -> Packed:
    """Encode a message's header."""
    return Packed(message, VOCABULARY.encoded(message))


def frames(message: AnyMessage, transfer: int, bodies: Iterable[Body]) -> Iterator[tuple[bytes, bytes | Body]]:
    """Yield the (mark, body) pairs of a message for one receiver."""
    return packed(message).frames(transfer, bodies)


def wire_bytes(message: AnyMessage) -> int:
    """Return the bytes of the frames of `message`; see `Packed.size`."""
    return VOCABULARY.length(message) + _count_body_bytes(message)


def _count_body_bytes(message: AnyMessage) -> int:
    total = MARK_BYTES
    for vector in message.vectors if isinstance(message, Carrier) else ():
        size = vector.nbytes
        total += size + MARK_BYTES * -(-size // CHUNK_BYTES)
    return total


def _little(vector: Vector) -> Vector:
    return vector if sys.byteorder == "little" else vector.astype(vector.dtype.newbyteorder("<"))


class FrameError(PeerError):
    """An invalid frame.  `reason` is one word for counting; its transfer is dropped."""

    def __init__(self, reason: str, message: str, advice: str = "") -> None:
        super().__init__(message, advice)
        self.reason = reason


class Assembler:
    """Assembles one sender's messages.  One per sender; at most one transfer is open, so memory is bounded."""

    def __init__(self, expected: Expected | None) -> None:
        """`expected` None: the sender may not send vectors."""
        self.expected = expected
        self._open: Carries | None = None
        self._vectors: tuple[Vector, ...] = ()  # allocated when the first chunk arrives
        self._transfer = 0
        self._targets: list[memoryview] = []
        self._next = self._taken = 0
        self.size = 0
        """Bytes of the frames of the last complete message."""

    def mark(self, mark: bytes) -> memoryview | None:
        """Parse the first frame; return the buffer for a chunk, or None before a header (`header`).

        Raises FrameError for an invalid mark or order; the caller then drops both frames.
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
            if transfer == self._transfer:  # else a chunk of a broken connection: the new transfer continues
                self._drop()
            raise FrameError("order", f"chunk {index} of transfer {transfer} does not follow")
        if not self._vectors:
            assert self._open is not None
            self._vectors = tuple(empty(length, dtype) for dtype, length in self._open.parts)
            self._targets = list(_slices(self._vectors))
        return self._targets[self._next]

    @property
    def _kind(self) -> type[AnyMessage] | None:
        return None if self._open is None else VOCABULARY.messages[type(self._open)]

    @property
    def arriving_round(self) -> int | None:
        """Round of the synchronous model now being received, or None."""
        kind = self._kind
        return getattr(self._open, "round", None) if kind and issubclass(kind, OfARound) else None

    @property
    def under_way(self) -> bool:
        """Whether a message with vectors has started and is incomplete."""
        return self._open is not None

    @property
    def begins(self) -> bool:
        """Whether such a message was just announced and has no buffer so far."""
        return self._open is not None and not self._vectors

    @property
    def account(self) -> Account | None:
        """Return the edge account of an announced large model without a buffer: the account may free another."""
        if not self.begins or self._kind not in (Model, ModelFragment) or self.missing_chunks < 2:
            return None
        header: Any = self._open
        return Account(header.round, header.used, header.missing)

    @property
    def missing_chunks(self) -> int:
        """Number of missing chunks of the message now being received."""
        if self._open is None:
            return 0
        sizes = (length * np.dtype(dtype).itemsize for dtype, length in self._open.parts)
        return sum(-(-size // CHUNK_BYTES) for size in sizes) - self._next

    def give_up(self) -> None:
        """Drop the incomplete message and its buffer."""
        self._drop()

    def header(self, body: bytes) -> AnyMessage | None:
        """Decode a header: return the message if it is complete, None if chunks follow.  Raises FrameError."""
        if len(body) > HEADER_BYTES_MAX:
            raise FrameError("oversized", f"a header of {len(body)} bytes; the limit is {HEADER_BYTES_MAX}")
        try:
            header = VOCABULARY.decoded(body)
        except UnreadableError as error:
            text = f"a header that cannot be read: {error}"
            raise FrameError("header", text, "Give every participant the same fedgossip.") from None
        self._taken = MARK_BYTES + len(body)
        if isinstance(header, Carries):
            self._announce(header)
            return None
        self.size = self._taken
        return VOCABULARY.message_of(header)

    def _announce(self, header: Carries) -> None:
        want = self.expected
        if want is None:
            raise FrameError("vectors", "a message with vectors from one that may send none")
        if header.schema != want.schema:
            raise FrameError(
                "schema",
                f"a model of another layout (schema {header.schema[:12]}, ours {want.schema[:12]})",
                "Give every peer the same [model] section.",
            )
        kind = VOCABULARY.messages[type(header)]
        allowed = kind.allowed(header, want)
        if header.parts != list(allowed) or not allowed:
            raise FrameError("size", f"a {kind.__name__} of {header.parts[:4]}, not {list(allowed[:4])}")
        self._open = header

    def landed(self, size: int) -> AnyMessage | None:
        """Record a received chunk of `size` bytes; return the message, with writeable vectors, once complete.

        Raises FrameError.
        """
        assert self._open is not None
        if size != len(self._targets[self._next]):
            expected = len(self._targets[self._next])
            self._drop()
            raise FrameError("truncated", f"a chunk of {size} bytes; expected {expected}")
        self._next += 1
        self._taken += MARK_BYTES + size
        if self._next < len(self._targets):
            return None
        header, vectors, self.size = self._open, self._vectors, self._taken
        self._drop()
        if sys.byteorder == "big":
            vectors = tuple(v.byteswap() for v in vectors)
        return VOCABULARY.message_of(header, vectors)

    def _drop(self) -> None:
        self._open, self._vectors, self._targets, self._next = None, (), [], 0


def _slices(vectors: Sequence[Vector]) -> Iterator[memoryview]:
    for vector in vectors:
        raw = vector.view(np.uint8).data
        for start in range(0, len(raw), CHUNK_BYTES):
            yield raw[start : start + CHUNK_BYTES]


# Headers: a message without its vectors, as msgpack; unknown fields and numbers out of bounds raise.
#
# They are generated from the declarations of the messages (messages/base): the same fields by the same names, vectors
# replaced by `parts`, dtype and length of each.  The kind of a message on the wire is its lower-case name.


LENGTHS_KEPT = 4096
"""Maximum number of cached header lengths."""


class Header(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A message without its vectors: the same fields by the same names."""


class Carries(Header):
    """Header of a message with vectors: dtype and length of each."""

    schema: str
    parts: list[Part]


class Item(msgspec.Struct, forbid_unknown_fields=True, array_like=True):
    """A structured part of a message; its fields in the order of its dataclass."""


class Vocabulary:
    """The headers of all messages that may cross the network; converts messages to headers and back."""

    def __init__(self, messages: Sequence[type[Any]]) -> None:
        self._items: dict[type[Any], type[Item]] = {}
        self.headers: dict[type[Any], type[Header]] = {message: self._header(message) for message in messages}
        self.messages = {header: message for message, header in self.headers.items()}
        self._fields = {kind: _names(kind) for kind in messages}
        self._nested = {kind: self._nested_in(kind) for kind in messages}
        self._parts = {item: part for part, item in self._items.items()}
        self._decoder: msgspec.msgpack.Decoder[Header] = msgspec.msgpack.Decoder(Union[tuple(self.messages)])  # noqa: UP007
        self._encoder = msgspec.msgpack.Encoder()
        self._getters = {kind: operator.attrgetter(*self._fields[kind]) for kind in messages if self._is_short(kind)}
        self._lengths: dict[Hashable, int] = {}

    def encoded(self, message: AnyMessage) -> bytes:
        kind = type(message)
        fields: dict[str, Any] = {name: getattr(message, name) for name in self._fields[kind]}
        for name in self._nested[kind]:
            fields[name] = self._packed(fields[name])
        if isinstance(message, Carrier):
            fields["parts"] = [(_name(v.dtype), v.size) for v in message.vectors]
        return self._encoder.encode(self.headers[kind](**fields))

    def length(self, message: AnyMessage) -> int:
        """Return the bytes of the header of `message`; equal headers are encoded once."""
        kind = type(message)
        getter = self._getters.get(kind)
        if getter is None:
            return len(self.encoded(message))
        parts = [(v.dtype, v.size) for v in message.vectors] if isinstance(message, Carrier) else ()
        key = kind, getter(message), *parts
        length = self._lengths.get(key)
        if length is None:
            if len(self._lengths) >= LENGTHS_KEPT:
                self._lengths.clear()
            length = self._lengths[key] = len(self.encoded(message))
        return length

    def decoded(self, body: bytes) -> Header:
        """Decode a header.  Raises ValueError or msgspec.MsgspecError."""
        return from_msgpack(self._decoder, body)

    def message_of(self, header: Header, vectors: tuple[Vector, ...] = ()) -> AnyMessage:
        """Return the message with this header and its announced vectors."""
        kind = self.messages[type(header)]
        fields: dict[str, Any] = {name: getattr(header, name) for name in self._fields[kind]}
        for name in self._nested[kind]:
            fields[name] = self._unpacked(fields[name])
        if isinstance(header, Carries):
            fields["vectors"] = vectors
        return kind(**fields)  # type: ignore[no-any-return]

    def _header(self, message: type[Any]) -> type[Header]:
        base = Carries if issubclass(message, Carrier) else Header
        fields = self._described(message, {"vectors", *base.__struct_fields__})
        return msgspec.defstruct(f"{message.__name__}Header", fields, bases=(base,), tag=tag_of(message), kw_only=True)  # type: ignore[return-value]

    def _item(self, part: type[Any]) -> type[Item]:
        if part not in self._items:
            fields = [field[:2] for field in self._described(part, set())]
            made = msgspec.defstruct(f"{part.__name__}Item", fields, bases=(Item,), tag=tag_of(part))
            self._items[part] = made  # type: ignore[assignment]
        return self._items[part]

    def _described(self, kind: type[Any], without: set[str]) -> list[Any]:
        hints = typing.get_type_hints(kind, include_extras=True)
        found: list[Any] = []
        for field in dataclasses.fields(kind):
            if field.name in without:
                continue
            spoken = self._as_msgpack(hints[field.name])
            if field.default is dataclasses.MISSING:
                found.append((field.name, spoken))
            else:
                default = msgspec.field(default_factory=list) if field.default == () else field.default
                found.append((field.name, spoken, default))
        return found

    def _as_msgpack(self, hint: Any) -> Any:
        """Return a field's type in msgpack: lists for tuples of any length, items for parts."""
        if dataclasses.is_dataclass(hint):
            return self._item(hint)  # type: ignore[arg-type]
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            return Annotated[self._as_msgpack(arguments[0]), *hint.__metadata__]
        if origin in (Union, types.UnionType):
            return Union[tuple(self._as_msgpack(one) for one in arguments)]  # noqa: UP007
        if origin is tuple and arguments[-1] is Ellipsis:
            return list[self._as_msgpack(arguments[0])]  # type: ignore[misc]
        return hint

    def _is_short(self, kind: type[Any]) -> bool:
        """Whether all fields are integers and short texts, so that equal values have equal lengths."""
        hints = typing.get_type_hints(kind)
        return bool(self._fields[kind]) and all(hints[name] in (int, bool, str) for name in self._fields[kind])

    def _nested_in(self, kind: type[Any]) -> tuple[str, ...]:
        hints = typing.get_type_hints(kind)
        return tuple(name for name in self._fields[kind] if self._as_msgpack(hints[name]) != hints[name])

    def _packed(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return [self._packed(one) for one in value]
        item = self._items.get(type(value))
        return value if item is None else item(*(getattr(value, name) for name in item.__struct_fields__))

    def _unpacked(self, value: Any) -> Any:
        if isinstance(value, list):
            return tuple(self._unpacked(one) for one in value)
        part = self._parts.get(type(value))
        return value if part is None else part(*(getattr(value, name) for name in value.__struct_fields__))


def tag_of(kind: type[Any]) -> str:
    """Return the wire name of a message or part: MaskedInput is "masked input"."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).lower()


def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind) if field.name != "vectors")


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name  # cached: numpy builds the string at every access


VOCABULARY = Vocabulary(DECLARED)
