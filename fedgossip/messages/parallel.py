"""What workers of a collective tell each other: chunks of sums, and who goes on where one is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from fedgossip.messages.base import Carrier, Count, Expected, Note, Numbers, Part, Word, declared, longest_payload
from fedgossip.messages.members import MODEL_CHUNK
from fedgossip.vectors import Vector

TAIL = 2
"""Elements behind a gradient: its loss, and a one that counts weights."""
WORKERS_MAX = 64
"""Maximum number of workers that all know each other."""

Workers = Annotated[tuple[Count, ...], msgspec.Meta(max_length=WORKERS_MAX)]
Weight = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


@declared
@dataclass(frozen=True, slots=True, eq=False)
class ReduceChunk(Carrier):
    """Elements `start` to `start + length` of what is summed in `round`.

    It is the step-th chunk of this bucket that its sender has for its receiver.  `weight`: of a term that
    the receiver is to add exactly; 0 for what is summed already.
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

    @property
    def name(self) -> tuple[int, int, int, int]:
        """By which its receiver says that it is there."""
        return self.epoch, self.round, self.bucket, self.step

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        if not 0 < header.length <= expected.length + TAIL - header.start:
            return ()
        return ((expected.dtype, header.length),)


@declared
@dataclass(frozen=True, slots=True, eq=False)
class CodedChunk(Carrier):
    """A gradient of `round` as a codec says it, of the worker whose part begins at `start`: `length` bytes.

    The other fields are those of a `ReduceChunk`; `weight` is of the gradient that it stands for.
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

    @property
    def name(self) -> tuple[int, int, int, int]:
        """By which its receiver says that it is there."""
        return self.epoch, self.round, self.bucket, self.step

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        if not 0 < header.length <= longest_payload(expected.length, expected.itemsize):
            return ()
        return (("uint8", header.length),)


@declared
@dataclass(frozen=True, slots=True)
class ChunkTaken(Note):
    """The chunk of these numbers is here; it need not be kept."""

    epoch: Count
    round: Count
    bucket: Count
    step: Count


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
