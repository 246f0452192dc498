"""What workers of a collective tell each other: chunks of sums, and who goes on where one is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from fedgossip.messages.base import Carrier, Count, Expected, Note, Part, Word, declared
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

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        if not 0 < header.length <= expected.length + TAIL - header.start:
            return ()
        return ((expected.dtype, header.length),)


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
    """The sender has stopped its round, for a worker is missing.

    `rounds` are behind it, with a model of this digest.
    """

    epoch: Count
    rounds: Count
    digest: Word


@declared
@dataclass(frozen=True, slots=True)
class GroupView(Note):
    """From now on these are the workers, and `rounds` are behind them; `behind`: who gets the last mean of `donor`."""

    epoch: Count
    members: Workers
    rounds: Count
    donor: Count
    behind: Workers = ()


@declared
@dataclass(frozen=True, slots=True, eq=False)
class RoundMean(Carrier):
    """The mean of `round`, whole, for a worker that did not see the end of it."""

    epoch: Count
    round: Count
    schema: str
    vectors: tuple[Vector, ...]

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:  # noqa: ARG003
        return ((expected.dtype, expected.length + TAIL),)
