"""Messages between the workers of a collective: chunks of sums, and agreement on the group after a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from fedgossip.base.vectors import Vector
from fedgossip.core.messages.base import Carrier, Count, Expected, Note, Numbers, Part, Word, declared, longest_payload
from fedgossip.core.messages.members import MODEL_CHUNK

TAIL = 2
"""Number of elements after a gradient: its loss, and a one that sums the weights."""
WORKERS_MAX = 64
"""Maximum number of workers in a full mesh."""

CHUNKS_ASKED_MAX = 8
"""Maximum number of chunks in one query; a link has at most half as many in flight."""

ChunkName = tuple[Count, Count, Count, Count]
"""Identifies a chunk in an acknowledgement; unique among the chunks in flight on a link."""
ChunkNames = Annotated[tuple[ChunkName, ...], msgspec.Meta(max_length=CHUNKS_ASKED_MAX)]
Workers = Annotated[tuple[Count, ...], msgspec.Meta(max_length=WORKERS_MAX)]
Weight = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class OfStep:
    """A message about the step-th chunk of a bucket, from its sender to its receiver."""

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
    """A chunk of `round`, elements `start` to `start + length`.

    `weight`: that of a term, to be added exactly; 0: the chunk is a finished sum.
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
    """Elements of a round's sum or of a term of it; see ChunkHead."""

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        if not 0 < header.length <= expected.length + TAIL - header.start:
            return ()
        return ((expected.dtype, header.length),)


@declared
@dataclass(frozen=True, slots=True, eq=False)
class CodedChunk(ChunkHead):
    """An encoded gradient, `length` bytes, of the worker whose part begins at `start`; `weight` of the decoded
    gradient, as in ChunkHead.
    """

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        if not 0 < header.length <= longest_payload(expected.length, expected.itemsize):
            return ()
        return (("uint8", header.length),)


@declared
@dataclass(frozen=True, slots=True)
class ChunkTaken(OfStep, Note):
    """Acknowledgement of the chunk with these numbers; its sender may drop it."""

    epoch: Count
    round: Count
    bucket: Count
    step: Count


@declared
@dataclass(frozen=True, slots=True)
class ChunksAsked(Note):
    """Query whether the given chunks, sent before, arrived.  Answered by `ChunksHere` with this number."""

    number: Count
    names: ChunkNames


@declared
@dataclass(frozen=True, slots=True)
class ChunksHere(Note):
    """The chunks of a query that arrived; on an ordered link the others are lost."""

    number: Count
    names: ChunkNames


@declared
@dataclass(frozen=True, slots=True)
class GroupReport(Note):
    """The sender stopped its round because a worker is missing or has returned.

    It completed `rounds` rounds, and its model has this digest.
    """

    epoch: Count
    rounds: Count
    digest: Word


@declared
@dataclass(frozen=True, slots=True)
class GroupView(Note):
    """These are the workers from now on, with `rounds` completed; `behind`: workers that fetch the state of `donor`.

    `agreed`: the last confirmed group; more than half of it must continue.
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
    """The sender returned after the others continued without it, and requests to take part from the next round on."""

    rounds: Count


@declared
@dataclass(frozen=True, slots=True)
class WorkerRefused(Note):
    """The sender excludes `worker`, which sent numbers that cannot be summed."""

    epoch: Count
    worker: Count


STATE_VECTORS_MAX = 4
"""Maximum number of vectors in an optimiser's state; a model and its two moments are three."""


@declared
@dataclass(frozen=True, slots=True)
class StateQuery(Note):
    """Request the state after `rounds` rounds, from element `start` on; answered by a `StatePiece`, or not answered."""

    rounds: Count
    start: Count


@declared
@dataclass(frozen=True, slots=True, eq=False)
class StatePiece(Carrier):
    """Elements of an optimiser's state after `rounds` rounds, from `start` on: MODEL_CHUNK of them, or the remaining
    ones.

    The state's vectors are concatenated, `length` elements with this digest; `numbers`: its scalars.
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
