"""What workers and the servers of a table's rows tell each other: which rows, gradients of them, and the rows back.

A list of keys is told once and then known by its digest (`keyed_rows.digest_of`); a server that has it no longer asks
for it.  Rows travel in pieces of elements, one row after the other, and each piece until its receiver has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedgossip.messages.base import Carrier, Count, Expected, Note, Part, Word, declared
from fedgossip.messages.servers import PIECE_BYTES, PieceName, PushWeight, ShardNumber
from fedgossip.vectors import Vector

LIST_KEYS_MAX = 1 << 18
"""Maximum number of rows of one shard that a worker asks for at a time: 1 MiB of keys."""


class RowPiece(Carrier):
    """Elements `start` to `start + length` of the rows of a list of keys; how many there are its receiver knows."""

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
    """The list of `count` keys, strictly ascending rows of the shard, that is known as `digest` from now on."""

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
    """Of the list of `count` keys known as `among` those with a bit, eight in a byte, are known as `digest` from now.

    Like RowKeys, for less where a filter has left some rows out.
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
    """The receiver has spoken of a list of keys that the sender has not, or no longer."""

    epoch: Count
    shard: ShardNumber
    digest: Word


@declared
@dataclass(frozen=True, slots=True)
class RowPull(Note):
    """The sender wants the rows of these keys for its `clock`; `first` as in ShardPull."""

    epoch: Count
    shard: ShardNumber
    clock: Count
    first: Count
    digest: Word


@declared
@dataclass(frozen=True, slots=True, eq=False)
class RowsPulled(RowPiece):
    """A piece of the rows of these keys; all else as in Pulled."""

    epoch: Count
    shard: ShardNumber
    clock: Count
    version: Count
    steps: Count
    missed: Count
    digest: Word
    start: Count
    length: Count
    schema: str
    vectors: tuple[Vector, ...]

    @property
    def name(self) -> PieceName:
        return self.epoch, self.shard, self.clock, self.start


@declared
@dataclass(frozen=True, slots=True, eq=False)
class RowPush(RowPiece):
    """A piece of the gradient of the rows of these keys; all else as in ShardPush."""

    epoch: Count
    shard: ShardNumber
    clock: Count
    version: Count
    steps: Count
    weight: PushWeight
    digest: Word
    start: Count
    length: Count
    schema: str
    vectors: tuple[Vector, ...]

    @property
    def name(self) -> PieceName:
        return self.epoch, self.shard, self.clock, self.start


@declared
@dataclass(frozen=True, slots=True)
class NoRows(Note):
    """The gradient of a worker's `clock` has no rows of the shard: a push like any other, of `weight` examples."""

    epoch: Count
    shard: ShardNumber
    clock: Count
    version: Count
    steps: Count
    weight: PushWeight

    @property
    def name(self) -> PieceName:
        return self.epoch, self.shard, self.clock, 0
