"""What workers and the servers of a model's shards tell each other: gradients there, the model back.

A shard goes in pieces, each until its receiver says that it is there.  `epoch`: by which the sender knows who owns
which shard; `clock`: the worker's own count of rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from fedgossip.base.vectors import Vector
from fedgossip.core.messages.base import Carrier, Count, Expected, Note, Part, declared, longest_payload
from fedgossip.core.messages.parallel import WORKERS_MAX

SERVERS_MAX = 32
"""Maximum number of servers."""
SHARDS_MAX = 4096
"""Maximum number of shards; a model has fewer than servers x points."""

PIECE_BYTES = 1 << 20
"""Bytes of a piece but the last: what is lost with a link is said again, and four of them are under way."""

ShardNumber = Annotated[int, msgspec.Meta(ge=0, lt=SHARDS_MAX)]
PushWeight = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
StepRate = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
PieceName = tuple[int, int, int, int]
"""(epoch, shard, clock, start)"""


class OfClock:
    """Something of a shard that goes until its receiver says that it is there: for a clock, from `start` on."""

    __slots__ = ()
    epoch: int
    shard: int
    clock: int
    start: int

    @property
    def name(self) -> PieceName:
        return self.epoch, self.shard, self.clock, self.start


class OfChange:
    """The same of the `number`-th change of a shard, or of what the shard is after it."""

    __slots__ = ()
    epoch: int
    shard: int
    number: int
    start: int

    @property
    def name(self) -> PieceName:
        return self.epoch, self.shard, self.number, self.start


class Piece(Carrier):
    """Elements `start` to `start + length` of something that is of a shard."""

    __slots__ = ()
    start: int
    length: int

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        if not 0 < header.length <= expected.length - header.start:
            return ()
        return ((expected.dtype, header.length),)


class CodedPiece(Carrier):
    """Bytes `start` to `start + length` of a shard, or of a gradient of it, as a codec says it."""

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
    """A gradient of a worker's `clock` at the model that it was given last.

    That had the pushes of all workers below clock `version`, and `steps` steps behind it.  `weight`: the examples that
    the gradient is the mean of.
    """

    epoch: Count
    shard: ShardNumber
    clock: Count
    version: Count
    steps: Count
    weight: PushWeight


@dataclass(frozen=True, slots=True, eq=False)
class PulledHead:
    """A shard for clock `clock` of the worker, which may be later than the one that it asked for.

    All pushes below clock `version` are in it, after `steps` steps in all; `missed` is how many of these were made
    between the worker's last pull and its last push.
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
    """A piece of a gradient as a codec says it; see PushHead."""

    start: Count
    length: Count
    schema: str
    vectors: tuple[Vector, ...]


@declared
@dataclass(frozen=True, slots=True)
class ShardPull(Note):
    """The sender wants the shard for its `clock`; it pushes, or has pushed, from clock `first` on.

    Where both are the same it comes anew, and has nothing to push before.
    """

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
    """A piece of a shard as a codec says it; see PulledHead."""

    start: Count
    length: Count
    schema: str
    vectors: tuple[Vector, ...]


@declared
@dataclass(frozen=True, slots=True)
class PieceTaken(OfClock, Note):
    """The piece of these numbers is here; it need not be kept."""

    epoch: Count
    shard: ShardNumber
    clock: Count
    start: Count


@declared
@dataclass(frozen=True, slots=True)
class PullHeld(Note):
    """The pull is here, and is answered when other workers have pushed."""

    epoch: Count
    shard: ShardNumber
    clock: Count


# --- copies of shards, and who has which ------------------------------------------------------------------------------

Servers = Annotated[tuple[Count, ...], msgspec.Meta(max_length=SERVERS_MAX)]
Clocks = Annotated[tuple[Count, ...], msgspec.Meta(max_length=WORKERS_MAX)]
ARRAYS_MAX = 8
"""Maximum number of arrays that a shard is: the model's, the one before, and what the descent remembers."""


@dataclass(frozen=True, slots=True, eq=False)
class ChangeHead:
    """A shard's `number`-th change: a step of `rate`, which closes `clock` of `workers`; () for all."""

    epoch: Count
    shard: ShardNumber
    number: Count
    clock: Count
    rate: StepRate
    workers: Clocks


@dataclass(frozen=True, slots=True, eq=False)
class CopyHead:
    """What a shard is after its `number`-th change, beside arrays.

    `clocks` are those of the workers, ascending by id; `counts` the plain numbers of the descent by name.
    """

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
    """A change without a gradient: nobody has pushed for that clock, or no row."""

    @property
    def name(self) -> PieceName:
        return self.epoch, self.shard, self.number, 0


@declared
@dataclass(frozen=True, slots=True, eq=False)
class ShardCopy(CopyHead, OfChange, Piece):
    """A piece of all that a shard is: `arrays` arrays, one after the other."""

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
    """All that a shard of a table is of which no row was touched."""

    @property
    def name(self) -> PieceName:
        return self.epoch, self.shard, self.number, 0


@declared
@dataclass(frozen=True, slots=True)
class Tenure(Note):
    """From now on these servers have the shards between them; those that are `joining` get copies, and own none yet.

    `anew`: all begin with what their checkpoints hold.
    """

    epoch: Count
    servers: Servers
    joining: Servers = ()
    anew: bool = False


@declared
@dataclass(frozen=True, slots=True)
class TenureTaken(Note):
    """The sender goes by the tenure of this epoch."""

    epoch: Count


@declared
@dataclass(frozen=True, slots=True)
class ServerReady(Note):
    """The sender, which was joining, has a copy of every shard that it is to have."""

    epoch: Count


@declared
@dataclass(frozen=True, slots=True)
class ShardLost(Note):
    """The sender is to own a shard, and nobody has a copy of it."""

    epoch: Count
    shard: ShardNumber
