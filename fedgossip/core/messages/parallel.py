"""What workers of a collective tell each other: chunks of sums, and who goes on where one is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from fedgossip.base.vectors import Vector
from fedgossip.core.messages.base import Carrier, Count, Expected, Note, Numbers, Part, Word, declared, longest_payload
from fedgossip.core.messages.members import MODEL_CHUNK

TAIL = 2
"""Elements behind a gradient: its loss, and a one that counts weights."""
WORKERS_MAX = 64
"""Maximum number of workers that all know each other."""

CHUNKS_ASKED_MAX = 8
"""Maximum number of chunks that are asked about at once; a link has half as many under way."""

ChunkName = tuple[Count, Count, Count, Count]
"""By which a receiver says that a chunk is there; no two that are under way on a link have the same."""
ChunkNames = Annotated[tuple[ChunkName, ...], msgspec.Meta(max_length=CHUNKS_ASKED_MAX)]
Workers = Annotated[tuple[Count, ...], msgspec.Meta(max_length=WORKERS_MAX)]
Weight = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class OfStep:
    """Something of the step-th chunk of a bucket that its sender has for its receiver."""

    __slots__ = ()
    epoch: int
    round: int
    bucket: int
    step: int

    @property
    def name(self) -> tuple[int, int, int, int]:
        return self.epoch, self.round, self.bucket, self.step


@dataclass(frozen=True, slots=True, eq=False)
class ChunkHead(OfStep, Carrier):
    """Which chunk of `round` it is, and its place: elements `start` to `start + length`.

    `weight`: of a term that the receiver is to add exactly; 0 for what is summed already.
    """

    epoch: Count
    round: Count
    bucket: Count
    step: Count
    start: Count
    length: Count
    weight: Weight
    schema: str
    vectors: tuple[Vector, ...]


@declared
@dataclass(frozen=True, slots=True, eq=False)
class ReduceChunk(ChunkHead):
    """Elements of what is summed in a round; see ChunkHead."""

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        if not 0 < header.length <= expected.length + TAIL - header.start:
            return ()
        return ((expected.dtype, header.length),)


@declared
@dataclass(frozen=True, slots=True, eq=False)
class CodedChunk(ChunkHead):
    """A gradient of a round as a codec says it, of the worker whose part begins at `start`: `length` bytes.

    `weight` is of the gradient that it stands for; see ChunkHead.
    """

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        if not 0 < header.length <= longest_payload(expected.length, expected.itemsize):
            return ()
        return (("uint8", header.length),)


@declared
@dataclass(frozen=True, slots=True)
class ChunkTaken(OfStep, Note):
    """The chunk of these numbers is here; it need not be kept."""

    epoch: Count
    round: Count
    bucket: Count
    step: Count


@declared
@dataclass(frozen=True, slots=True)
class ChunksAsked(Note):
    """Are the chunks of these names here, which the sender has sent?  Answered by `ChunksHere` of this number."""

    number: Count
    names: ChunkNames


@declared
@dataclass(frozen=True, slots=True)
class ChunksHere(Note):
    """Those of a question's chunks that are here; on a link that keeps the order the others are lost."""

    number: Count
    names: ChunkNames


@declared
@dataclass(frozen=True, slots=True)
class GroupReport(Note):
    """The sender has stopped its round, for a worker is missing, or one is back.

    `rounds` are behind it, with a model of this digest.
    """

    epoch: Count
    rounds: Count
    digest: Word


@declared
@dataclass(frozen=True, slots=True)
class GroupView(Note):
    """From now on these are the workers, and `rounds` are behind them; `behind`: who fetches the state of `donor`.

    `agreed`: the last workers that are known to have worked together; more than half of them go on.
    """

    epoch: Count
    members: Workers
    rounds: Count
    donor: Count
    behind: Workers = ()
    agreed: Workers = ()


@declared
@dataclass(frozen=True, slots=True)
class WorkerReturn(Note):
    """The others went on without the sender, which is here again: let it take part from the next round on."""

    rounds: Count


@declared
@dataclass(frozen=True, slots=True)
class WorkerRefused(Note):
    """The sender works with `worker` no more, which has sent it numbers that cannot be added up."""

    epoch: Count
    worker: Count


STATE_VECTORS_MAX = 4
"""Maximum number of vectors in the state of a descent; a model and its two moments are three."""


@declared
@dataclass(frozen=True, slots=True)
class StateQuery(Note):
    """Send the state after `rounds` rounds, from element `start` on; answered by a `StatePiece`, or not at all."""

    rounds: Count
    start: Count


@declared
@dataclass(frozen=True, slots=True, eq=False)
class StatePiece(Carrier):
    """Elements of a descent's state after `rounds` rounds, from `start` on: MODEL_CHUNK of them, or what is left.

    The state's vectors follow each other, `length` elements in all, of this digest; `numbers` are the rest of it.
    """

    rounds: Count
    digest: Word
    length: Count
    start: Count
    numbers: Numbers
    schema: str
    vectors: tuple[Vector, ...]

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        if header.start % MODEL_CHUNK or not header.start < header.length <= STATE_VECTORS_MAX * expected.length:
            return ()
        return ((expected.dtype, min(MODEL_CHUNK, header.length - header.start)),)
