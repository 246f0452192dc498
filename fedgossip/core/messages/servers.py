"""Messages between workers and parameter servers: gradients to the servers, and the model, or rows of a table, back.

**A model.**  A shard is sent in pieces, each repeated until acknowledged.  `epoch`: the tenure (assignment of shards to
owners) that the sender uses; `clock`: the worker's count of rounds.

**A table.**  A list of keys is sent once and then referenced by its digest (`keyed_rows.digest_of`); a server without
it requests it again.  Rows are sent in pieces of elements, row after row, each piece repeated until acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from fedgossip.base.vectors import Vector
from fedgossip.core.messages.base import Carrier, Count, Expected, Note, Part, Word, declared, longest_payload
from fedgossip.core.messages.parallel import WORKERS_MAX

SERVERS_MAX = 32
"""Maximum number of servers."""
SHARDS_MAX = 4096
"""Maximum number of shards; a model has fewer than servers x points of them."""

PIECE_BYTES = 1 << 20
"""Bytes of each piece but the last: pieces lost with a link are sent again, and four are in flight."""

ShardNumber = Annotated[int, msgspec.Meta(ge=0, lt=SHARDS_MAX)]
PushWeight = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
StepRate = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
PieceName = tuple[int, int, int, int]
"""(epoch, shard, clock, start)"""


class OfClock:
    """A part of a shard for a clock, from `start` on; repeated until acknowledged."""

    __slots__ = ()
    epoch: int
    shard: int
    clock: int
    start: int

    @property
    def name(self) -> PieceName:
        return self.epoch, self.shard, self.clock, self.start


class OfChange:
    """A part of the `number`-th change of a shard, or of the shard after it; repeated until acknowledged."""

    __slots__ = ()
    epoch: int
    shard: int
    number: int
    start: int

    @property
    def name(self) -> PieceName:
        return self.epoch, self.shard, self.number, self.start


class Piece(Carrier):
    """Elements `start` to `start + length` of an array of a shard."""

    __slots__ = ()
    start: int
    length: int

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        if not 0 < header.length <= expected.length - header.start:
            return ()
        return ((expected.dtype, header.length),)


class CodedPiece(Carrier):
    """Bytes `start` to `start + length` of an encoded shard, or of an encoded gradient of it."""

    __slots__ = ()
    start: int
    length: int

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        if not 0 < header.length <= longest_payload(expected.length, expected.itemsize) - header.start:
            return ()
        return (("uint8", header.length),)


@dataclass(frozen=True, slots=True, eq=False)
class PushHead:
    """A worker's gradient of its `clock`, at the last received model.

    That model contains all pushes below clock `version`, in `steps` steps.  `weight`: number of examples in the mean.
    """

    epoch: Count
    shard: ShardNumber
    clock: Count
    version: Count
    steps: Count
    weight: PushWeight


@dataclass(frozen=True, slots=True, eq=False)
class PulledHead:
    """A shard for the worker's `clock`, possibly later than requested, with all pushes below clock `version`, in
    `steps` steps.

    `missed`: number of steps between the worker's last pull and push.
    """

    epoch: Count
    shard: ShardNumber
    clock: Count
    version: Count
    steps: Count
    missed: Count


@declared
@dataclass(frozen=True, slots=True, eq=False)
class ShardPush(PushHead, OfClock, Piece):
    """A piece of a gradient; see PushHead."""

    start: Count
    length: Count
    schema: str
    vectors: tuple[Vector, ...]


@declared
@dataclass(frozen=True, slots=True, eq=False)
class CodedPush(PushHead, OfClock, CodedPiece):
    """A piece of an encoded gradient; see PushHead."""

    start: Count
    length: Count
    schema: str
    vectors: tuple[Vector, ...]


@declared
@dataclass(frozen=True, slots=True)
class ShardPull(Note):
    """Request of the shard for `clock`; the sender pushes from clock `first` on; equal without an earlier push."""

    epoch: Count
    shard: ShardNumber
    clock: Count
    first: Count


@declared
@dataclass(frozen=True, slots=True, eq=False)
class Pulled(PulledHead, OfClock, Piece):
    """A piece of a shard; see PulledHead."""

    start: Count
    length: Count
    schema: str
    vectors: tuple[Vector, ...]


@declared
@dataclass(frozen=True, slots=True, eq=False)
class CodedPulled(PulledHead, OfClock, CodedPiece):
    """A piece of an encoded shard; see PulledHead."""

    start: Count
    length: Count
    schema: str
    vectors: tuple[Vector, ...]


@declared
@dataclass(frozen=True, slots=True)
class PieceTaken(OfClock, Note):
    """Acknowledgement of the piece with these numbers; its sender may drop it."""

    epoch: Count
    shard: ShardNumber
    clock: Count
    start: Count


@declared
@dataclass(frozen=True, slots=True)
class PullHeld(Note):
    """The pull was received, and waits for pushes of other workers."""

    epoch: Count
    shard: ShardNumber
    clock: Count


# --- copies of shards, and their owners ------------------------------------------------------------------------------

Servers = Annotated[tuple[Count, ...], msgspec.Meta(max_length=SERVERS_MAX)]
Clocks = Annotated[tuple[Count, ...], msgspec.Meta(max_length=WORKERS_MAX)]
ARRAYS_MAX = 8
"""Maximum number of arrays in a shard: the model's, the previous one, and the state of the descent."""


@dataclass(frozen=True, slots=True, eq=False)
class ChangeHead:
    """A shard's `number`-th change: a step of `rate` that closes `clock` of `workers`; () for all."""

    epoch: Count
    shard: ShardNumber
    number: Count
    clock: Count
    rate: StepRate
    workers: Clocks


@dataclass(frozen=True, slots=True, eq=False)
class CopyHead:
    """A shard's state after its `number`-th change, without arrays; `clocks` ascending by worker, `counts`: scalars."""

    epoch: Count
    shard: ShardNumber
    number: Count
    closed: Count
    steps: Count
    clocks: Clocks
    counts: Annotated[tuple[Count, ...], msgspec.Meta(max_length=ARRAYS_MAX)]


@declared
@dataclass(frozen=True, slots=True, eq=False)
class ShardStep(ChangeHead, OfChange, Piece):
    """A piece of the gradient of a change."""

    start: Count
    length: Count
    schema: str
    vectors: tuple[Vector, ...]


@declared
@dataclass(frozen=True, slots=True)
class EmptyStep(ChangeHead, Note):
    """A change without a gradient: no push for that clock, or none with rows."""

    @property
    def name(self) -> PieceName:
        return self.epoch, self.shard, self.number, 0


@declared
@dataclass(frozen=True, slots=True, eq=False)
class ShardCopy(CopyHead, OfChange, Piece):
    """A piece of a shard's full state: `arrays` arrays, concatenated."""

    arrays: Annotated[int, msgspec.Meta(ge=1, le=ARRAYS_MAX)]
    start: Count
    length: Count
    schema: str
    vectors: tuple[Vector, ...]

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        if not 0 < header.length <= header.arrays * expected.length - header.start:
            return ()
        return ((expected.dtype, header.length),)


@declared
@dataclass(frozen=True, slots=True)
class EmptyCopy(CopyHead, Note):
    """The full state of a shard of a table without touched rows."""

    @property
    def name(self) -> PieceName:
        return self.epoch, self.shard, self.number, 0


@declared
@dataclass(frozen=True, slots=True)
class Tenure(Note):
    """These servers share the shards from now on; `joining` servers receive copies and own none so far.

    `anew`: all start from their checkpoints.  `whole`: all have reported their copies, and the manager has stored that;
    owners answer from then on.
    """

    epoch: Count
    servers: Servers
    joining: Servers = ()
    anew: bool = False
    whole: bool = False


@declared
@dataclass(frozen=True, slots=True)
class TenureTaken(Note):
    """The sender uses the tenure of this epoch."""

    epoch: Count


@declared
@dataclass(frozen=True, slots=True)
class ServerReady(Note):
    """The sender has a copy of every shard assigned to it; `whole`: it also has the tenure with `whole` set."""

    epoch: Count
    whole: bool = False


@declared
@dataclass(frozen=True, slots=True)
class ShardLost(Note):
    """The sender is the owner of a shard without any copy."""

    epoch: Count
    shard: ShardNumber


LIST_KEYS_MAX = 1 << 18
"""Maximum number of rows of one shard in a request: 1 MiB of keys."""


class RowPiece(Carrier):
    """Elements `start` to `start + length` of the rows of a list of keys; the receiver has the total."""

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
    """Some of the `count` keys referenced as `among`, one bit each, referenced as `digest` from now on."""

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

    At most PIECE_BYTES, or one row.
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
    """A piece of all touched rows of a shard: the model's, the optimiser's state, and further arrays."""

    of: RowCount
    start: Count
    rows: RowCount
    length: Count
    schema: str
    vectors: tuple[Any, ...]
