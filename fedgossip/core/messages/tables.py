"""Messages between workers and the servers of a table's rows: keys, gradients of rows, and the rows back.

A list of keys is sent once and then referenced by its digest (`keyed_rows.digest_of`); a server without it requests it
again.  Rows are sent in pieces of elements, row after row, each piece repeated until acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from fedgossip.base.vectors import Vector
from fedgossip.core.messages.base import Carrier, Count, Expected, Note, Part, Word, declared
from fedgossip.core.messages.servers import (
    ARRAYS_MAX,
    PIECE_BYTES,
    ChangeHead,
    CopyHead,
    OfChange,
    OfClock,
    PieceName,
    PulledHead,
    PushHead,
    ShardNumber,
)

LIST_KEYS_MAX = 1 << 18
"""Maximum number of rows of one shard in a request: 1 MiB of keys."""


class RowPiece(Carrier):
    """Elements `start` to `start + length` of the rows of a list of keys; the receiver knows the total."""

    __slots__ = ()
    start: int
    length: int

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        if not 0 < header.length * expected.itemsize <= PIECE_BYTES:
            return ()
        return ((expected.dtype, header.length),)


@declared
@dataclass(frozen=True, slots=True, eq=False)
class RowKeys(Carrier):
    """The list of `count` keys, strictly ascending rows of the shard, referenced as `digest` from now on."""

    epoch: Count
    shard: ShardNumber
    digest: Word
    count: Count
    schema: str
    vectors: tuple[Vector, ...]

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:  # noqa: ARG003
        return (("uint32", header.count),) if 0 < header.count <= LIST_KEYS_MAX else ()


@declared
@dataclass(frozen=True, slots=True, eq=False)
class SomeKeys(Carrier):
    """A sublist of the `count` keys referenced as `among`, one bit per key, referenced as `digest` from now on.

    Shorter than RowKeys where a filter removed rows.
    """

    epoch: Count
    shard: ShardNumber
    digest: Word
    among: Word
    count: Count
    schema: str
    vectors: tuple[Vector, ...]

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:  # noqa: ARG003
        return (("uint8", -(-header.count // 8)),) if 0 < header.count <= LIST_KEYS_MAX else ()


@declared
@dataclass(frozen=True, slots=True)
class KeysWanted(Note):
    """Request of a list of keys that the receiver referenced and the sender does not have."""

    epoch: Count
    shard: ShardNumber
    digest: Word


@declared
@dataclass(frozen=True, slots=True)
class RowPull(Note):
    """Request of the rows of these keys for the sender's `clock`; `first` as in ShardPull."""

    epoch: Count
    shard: ShardNumber
    clock: Count
    first: Count
    digest: Word


@declared
@dataclass(frozen=True, slots=True, eq=False)
class RowsPulled(PulledHead, OfClock, RowPiece):
    """A piece of the rows of these keys; see PulledHead."""

    digest: Word
    start: Count
    length: Count
    schema: str
    vectors: tuple[Vector, ...]


@declared
@dataclass(frozen=True, slots=True, eq=False)
class RowPush(PushHead, OfClock, RowPiece):
    """A piece of the gradient of the rows of these keys; see PushHead."""

    digest: Word
    start: Count
    length: Count
    schema: str
    vectors: tuple[Vector, ...]


@declared
@dataclass(frozen=True, slots=True)
class NoRows(PushHead, Note):
    """A gradient without rows of the shard; it counts as a push."""

    @property
    def name(self) -> PieceName:
        return self.epoch, self.shard, self.clock, 0


# --- copies of rows at other servers ----------------------------------------------------------------------------------

RowCount = Annotated[int, msgspec.Meta(ge=1)]


class KeyedPiece(Carrier):
    """Rows `start` to `start + rows` of `of`: their keys, and `length` elements, row by row of one array after another.

    A piece has at most PIECE_BYTES, or one row.
    """

    __slots__ = ()
    of: int
    start: int
    rows: int
    length: int

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        most = ARRAYS_MAX * expected.length if header.rows == 1 else PIECE_BYTES // expected.itemsize
        if header.start + header.rows > header.of or not header.rows <= header.length <= most:
            return ()
        return ("uint32", header.rows), (expected.dtype, header.length)


@declared
@dataclass(frozen=True, slots=True, eq=False)
class RowStep(ChangeHead, OfChange, KeyedPiece):
    """A piece of the gradient of a change: of these rows."""

    of: RowCount
    start: Count
    rows: RowCount
    length: Count
    schema: str
    vectors: tuple[Any, ...]


@declared
@dataclass(frozen=True, slots=True, eq=False)
class RowCopy(CopyHead, OfChange, KeyedPiece):
    """A piece of all touched rows of a shard: the model's, the descent's state, and further arrays."""

    of: RowCount
    start: Count
    rows: RowCount
    length: Count
    schema: str
    vectors: tuple[Any, ...]
