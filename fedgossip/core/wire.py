"""Bytes on the link: a small msgpack header, then raw numbers in chunks.  Pure: no sockets.

Every ZeroMQ message has two frames:

    b"H" + transfer (u32)                  the header, msgpack, at most 64 KiB, unknown fields refused
    b"C" + transfer (u32) + index (u32)    the index-th chunk of the vectors announced by that header, 256 KiB or less

All integers little-endian, all numbers little-endian IEEE 754.  Chunks overlap the cipher with the copy; a link that
breaks in the middle of a transfer leaves chunks whose index does not follow, and these are dropped up to the next
header.  Sizes are checked against the schema before anything is allocated.  Nothing is ever unpickled.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from fedgossip.base.decoding import UnreadableError
from fedgossip.base.errors import PeerError
from fedgossip.base.vectors import Vector, empty
from fedgossip.core.headers import VOCABULARY, Carries
from fedgossip.core.messages import Account, AnyMessage, Carrier, Expected, Model, ModelFragment, OfARound

CHUNK_BYTES = 256 * 1024
"""Small enough that the cipher, the copy and the network overlap within the cache, large enough that the work per
message is negligible: 128, 256 and 512 KiB cost 4.0, 3.8 and 3.5 CPU seconds per encrypted GB, both ends together.
With 512 KiB the queue inside ZeroMQ holds two models of a million parameters; with 256 KiB 0.6 of one."""

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
        return len(self.header) + _beside_the_header(self.message)

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
    return VOCABULARY.length(message) + _beside_the_header(message)


def _beside_the_header(message: AnyMessage) -> int:
    """Return the bytes of the vectors and of the frames' marks."""
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
        """Parse the first frame.  Return the buffer for the second (a chunk), or None (a header: pass it to `header`).

        Raises FrameError for an invalid mark or a chunk out of order; both frames must be dropped.
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
    def coming(self) -> int | None:
        """Round of the synchronous model that is being received, or None."""
        kind = self._kind
        return getattr(self._open, "round", None) if kind and issubclass(kind, OfARound) else None

    @property
    def under_way(self) -> bool:
        """Whether a message with vectors has started and is incomplete."""
        return self._open is not None

    @property
    def begins(self) -> bool:
        """Whether such a message was just announced, and its buffer is not allocated yet."""
        return self._open is not None and not self._vectors

    @property
    def account(self) -> Account | None:
        """Return the edge account of a large model just announced, before its buffer is allocated.

        The receiver can free a model of the same size by it.
        """
        if not self.begins or self._kind not in (Model, ModelFragment) or self.to_come < 2:
            return None
        header: Any = self._open
        return Account(header.round, header.used, header.missing)

    @property
    def to_come(self) -> int:
        """Number of missing chunks of the message that is being received."""
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
            raise FrameError("header", f"a header that cannot be read: {error}") from None
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
        """Record a received chunk of `size` bytes: return the message if it is complete.  Raises FrameError.

        Its vectors are writeable: only the caller refers to them.
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
